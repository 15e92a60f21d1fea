// The whole chip in time: workgroups go to XCDs and CUs, CUs run, the memory system answers.
#pragma once

#include "../launch.h"
#include "compute_unit.h"
#include "memory_system.h"

namespace mi300x::timing {

class Chip {
 public:
  explicit Chip(const Constants& constants);

  // Runs every workgroup of the launch and writes its record to the dispatch's profile. Sets the simulated time of the
  // launch's outcome.
  void run(Launch& launch);

 private:
  struct Xcd {
    uint64_t next_workgroup = 0;  // of the launch; every eighth is this XCD's
    uint64_t free = 0;            // the clock from which the dispatcher can start the next one
    size_t next_cu = 0;
  };

  void dispatch(Launch& launch, Xcd& xcd, std::vector<std::unique_ptr<ComputeUnit>>& cus, size_t first, uint64_t now);
  void answer(std::vector<std::unique_ptr<ComputeUnit>>& cus);

  const Constants constants_;
  MemorySystem memory_;
  std::vector<LineRequest> requests_;
};

}  // namespace mi300x::timing

// What the waves of a dispatch execute, counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "effects.h"

namespace mi300x {

struct Launch;

class Statistics {
 public:
  // `dwords` of code.
  explicit Statistics(size_t dwords) : counts_(dwords) {}

  // Takes note of the instruction that the wave is about to execute.
  void count(Wave& wave, const Instruction& inst, const Effects& effects);

  // Those of another host thread.
  void add(const Statistics& other);

  // All of it as JSON, with how many workgroups of the kernel fit into a compute unit.
  std::string record(const Launch& launch) const;

 private:
  // Of the instruction at a dword of the code; bytes are those that lanes ask for.
  struct Count {
    uint64_t executed = 0;
    uint64_t active_lanes = 0;
    uint64_t global_bytes = 0, lds_bytes = 0, scratch_bytes = 0;
    uint64_t lds_clocks = 0, conflict_clocks = 0;

    void add(const Count& other);
  };

  void count_vector_memory(Wave& wave, const Instruction& inst, const Effects& effects, Count& count) const;

  std::vector<Count> counts_;
};

}  // namespace mi300x

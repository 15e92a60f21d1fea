// Counters of what the waves of a dispatch execute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../execution/wave.h"
#include "../isa/effects.h"

namespace mi300x {

struct Launch;

class Statistics {
 public:
  // `dwords` is the length of the code.
  explicit Statistics(size_t dwords) : counts_(dwords) {}

  // Counts the instruction that the wave is about to execute.
  void count(Wave& wave, const Instruction& inst, const Effects& effects);

  // Adds the counters of another host thread.
  void add(const Statistics& other);

  // The counters as JSON, with the kernel's occupancy.
  std::string record(const Launch& launch) const;

 private:
  // Counters of the instruction at a dword of the code. Bytes are those that lanes ask for.
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

// Sampling of large launches: some workgroups are simulated in detail, the others are extrapolated from them.
//
// A generation is as many workgroups as the chip holds at once. In each part of the launch two generations in a row are
// kept: the first one warms the caches, the second one is measured. Generations that are left out are assumed to cost
// the same as the measured ones. The end of the launch is always kept, because it shows how CUs run out of work.
#pragma once

#include <cstdint>
#include <vector>

#include "counters.h"
#include "memory_system.h"

namespace mi300x::timing {

// The cost of a launch up to some point.
struct Cost {
  double clocks = 0;
  Counters counters;
  MemoryCounters memory;
};

class Sampling {
 public:
  // Everything is kept until `leave_out` is called.
  explicit Sampling(uint64_t workgroups) : workgroups_(workgroups) {}

  // Chooses generations of `resident` workgroups, so that about `most_instructions` are executed in detail.
  void leave_out(uint64_t resident, uint64_t instructions_of_workgroup, uint64_t most_instructions);

  bool keeps(uint64_t workgroup) const;
  uint64_t left_out() const { return generations_left_out() * resident_; }

  // Number of ended workgroups at which the next measurement begins or ends; `never` after the last one.
  uint64_t next_mark() const;
  void measure(Cost cost);

  // Adds the estimated cost of the generations that were left out.
  void extrapolate(Cost& cost) const;

 private:
  static constexpr uint64_t never = ~0ull;

  uint64_t generations_left_out() const { return full_generations_ - 2 * pairs_; }
  uint64_t first_of_pair(uint64_t pair) const { return pair * full_generations_ / pairs_; }

  uint64_t workgroups_;
  uint64_t resident_ = 0, full_generations_ = 0, pairs_ = 0;
  std::vector<Cost> marks_;  // begin and end of each measured generation
};

}  // namespace mi300x::timing

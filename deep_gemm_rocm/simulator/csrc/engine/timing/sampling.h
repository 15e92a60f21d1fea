// Sampling of large launches: some workgroups are simulated in detail, the others are extrapolated from them.
//
// A generation is as many workgroups as the chip holds at once. In each part of the launch two generations in a row are
// kept: the first one warms the caches, the second one is measured. The end of the launch is always kept, because it
// shows how CUs run out of work.
//
// Workgroups may do unequal work, so the others aren't assumed to be like these. How often they execute each
// instruction is counted, and each is assumed to take as long as it does in the measured generations.
#pragma once

#include <cstdint>
#include <vector>

#include "counters.h"
#include "memory_system.h"

namespace mi300x::timing {

// Work of an XCD up to some point.
struct Work {
  double residence = 0;  // clocks that workgroups were resident
  Counters counters;
  MemoryCounters memory;

  // Adds the difference between two points in time, times `weight`.
  void add_difference(const Work& end, const Work& begin, double weight);
};

// The cost of a launch.
struct Cost {
  double clocks = 0;
  Work work;
};

class Sampling {
 public:
  // Everything is kept until `leave_out` is called.
  Sampling(uint64_t workgroups, size_t xcds) : workgroups_(workgroups), marks_(xcds) {}

  // Chooses generations of `resident` workgroups, so that about `most_instructions` are executed in detail.
  void leave_out(uint64_t resident, uint64_t instructions_of_workgroup, uint64_t most_instructions);

  bool keeps(uint64_t workgroup) const;
  uint64_t left_out() const { return generations_left_out() * resident_; }

  // Number of ended workgroups of an XCD at which its next measurement begins or ends; `never` after the last one.
  uint64_t next_mark(size_t xcd) const;
  void measure(size_t xcd, Work work) { marks_[xcd].push_back(std::move(work)); }

  // Adds the estimated cost of the workgroups that were left out. For each XCD, `ends` are the clocks at which its last
  // workgroup ended, and `left_out` how often those that were left out executed the instruction at each dword.
  void extrapolate(Cost& cost, const std::vector<uint64_t>& ends,
                   const std::vector<std::vector<uint64_t>>& left_out) const;

 private:
  static constexpr uint64_t never = ~0ull;

  uint64_t generations_left_out() const { return full_generations_ - 2 * pairs_; }
  // The first pair is at the beginning, the last one before the end.
  uint64_t first_of_pair(uint64_t pair) const { return pair * (full_generations_ - 2) / (pairs_ - 1); }

  uint64_t workgroups_;
  uint64_t resident_ = 0, full_generations_ = 0, pairs_ = 0;
  std::vector<std::vector<Work>> marks_;  // of each XCD: begin and end of each measured generation
};

}  // namespace mi300x::timing

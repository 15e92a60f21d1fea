#include "sampling.h"

#include <algorithm>

namespace mi300x::timing {

void Sampling::leave_out(uint64_t resident, uint64_t instructions_of_workgroup, uint64_t most_instructions) {
  const uint64_t full = (workgroups_ - 1) / resident;  // at least one workgroup is left for the end
  const uint64_t instructions_of_pair = std::max<uint64_t>(1, 2 * resident * instructions_of_workgroup);
  // A single pair would be at the beginning, where all CUs still run in lockstep.
  const uint64_t pairs = std::max<uint64_t>(2, most_instructions / instructions_of_pair);
  if (2 * pairs >= full) return;
  resident_ = resident;
  full_generations_ = full;
  pairs_ = pairs;
}

bool Sampling::keeps(uint64_t workgroup) const {
  if (pairs_ == 0) return true;
  const uint64_t generation = workgroup / resident_;
  if (generation >= full_generations_) return true;
  // The last pair that begins at or before this generation.
  const uint64_t pair = ((generation + 1) * pairs_ - 1) / full_generations_;
  return generation - first_of_pair(pair) < 2;
}

uint64_t Sampling::next_mark() const {
  return marks_.size() < 2 * pairs_ ? (marks_.size() + 1) * resident_ : never;
}

void Sampling::measure(Cost cost) { marks_.push_back(std::move(cost)); }

void Sampling::extrapolate(Cost& cost) const {
  if (pairs_ == 0) return;
  const double weight = double(generations_left_out()) / double(pairs_);
  for (size_t i = 0; i + 1 < marks_.size(); i += 2) {
    const Cost &begin = marks_[i], &end = marks_[i + 1];
    cost.clocks += weight * (end.clocks - begin.clocks);
    cost.counters.add_difference(end.counters, begin.counters, weight);
    cost.memory.add_difference(end.memory, begin.memory, weight);
  }
}

}  // namespace mi300x::timing

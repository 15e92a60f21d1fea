#include "sampling.h"

#include <algorithm>

namespace mi300x::timing {
namespace {

// Mean clocks of each instruction, from the measured generations if they execute it.
struct Means {
  Means(const std::vector<InstructionCounters>& measured, const std::vector<InstructionCounters>& all)
      : clocks(measured.size()), busy(measured.size()) {
    uint64_t executed = 0;
    for (const InstructionCounters& instruction : measured) {
      executed += instruction.executed;
      all_clocks += double(instruction.clocks);
    }
    for (size_t pc = 0; pc < measured.size(); ++pc) {
      const InstructionCounters& known = measured[pc].executed != 0 ? measured[pc] : all[pc];
      clocks[pc] = known.executed != 0 ? double(known.clocks) / double(known.executed) : all_clocks / double(executed);
      busy[pc] = known.executed != 0 ? double(known.busy) / double(known.executed) : 0;
    }
  }

  std::vector<double> clocks, busy;
  double all_clocks = 0;
};

}  // namespace

void Work::add_difference(const Work& end, const Work& begin, double weight) {
  residence += weight * (end.residence - begin.residence);
  counters.add_difference(end.counters, begin.counters, weight);
  memory.add_difference(end.memory, begin.memory, weight);
}

void Sampling::leave_out(uint64_t resident, uint64_t instructions_of_workgroup, uint64_t most_instructions) {
  const uint64_t full = (workgroups_ - 1) / resident;  // at least one workgroup is left for the end
  const uint64_t instructions_of_pair = std::max<uint64_t>(1, 2 * resident * instructions_of_workgroup);
  // At least two pairs: a single one would be at the beginning, where all CUs still run in lockstep.
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
  const uint64_t pair = ((generation + 1) * (pairs_ - 1) - 1) / (full_generations_ - 2);
  return generation - first_of_pair(pair) < 2;
}

uint64_t Sampling::next_mark(size_t xcd) const {
  const size_t marks = marks_[xcd].size();
  return marks < 2 * pairs_ ? (marks + 1) * resident_ / marks_.size() : never;
}

void Sampling::extrapolate(Cost& cost, const std::vector<uint64_t>& ends,
                           const std::vector<std::vector<uint64_t>>& left_out) const {
  Work measured;
  for (const std::vector<Work>& marks : marks_)
    for (size_t i = 0; i + 1 < marks.size(); i += 2) measured.add_difference(marks[i + 1], marks[i], 1);
  const Means means(measured.counters.by_instruction, cost.work.counters.by_instruction);
  std::vector<InstructionCounters> by_instruction = cost.work.counters.by_instruction;
  double last = 0, weight = 0;
  for (size_t xcd = 0; xcd < ends.size(); ++xcd) {
    double clocks = 0;
    for (size_t pc = 0; pc < by_instruction.size(); ++pc) {
      const uint64_t times = left_out[xcd][pc];
      by_instruction[pc].executed += times;
      by_instruction[pc].clocks += uint64_t(double(times) * means.clocks[pc]);
      by_instruction[pc].busy += uint64_t(double(times) * means.busy[pc]);
      clocks += double(times) * means.clocks[pc];
    }
    const double share = clocks / means.all_clocks;  // of what was measured
    const double resident = double(resident_) / double(ends.size());
    weight += share;
    last = std::max(last, double(ends[xcd]) + share * measured.residence / resident);
  }
  cost.clocks += last - double(*std::max_element(ends.begin(), ends.end()));
  cost.work.add_difference(measured, {}, weight);
  cost.work.counters.by_instruction = std::move(by_instruction);
}

}  // namespace mi300x::timing

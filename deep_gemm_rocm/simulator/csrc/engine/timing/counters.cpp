#include "counters.h"

#include <algorithm>

namespace mi300x::timing {

const char* const stall_names[stall_count] = {"issue",   "vector_busy", "matrix_busy",  "matrix_result",
                                              "wait_memory", "wait_local",  "barrier", "local_queue",
                                              "memory_queue", "nop", "scalar"};

template <class F>
void Counters::for_each_total(F f) {
  for (uint64_t Counters::*total :
       {&Counters::lds_conflict_clocks, &Counters::l1_hits, &Counters::l1_misses, &Counters::wave_clocks})
    f(total);
}

void Counters::add(const Counters& other) { add_difference(other, {}, 1); }

void Counters::add_difference(const Counters& end, const Counters& begin, double weight) {
  for (size_t i = 0; i < stall_count; ++i) stalls[i] = extrapolated(stalls[i], end.stalls[i], begin.stalls[i], weight);
  for_each_total([&](uint64_t Counters::*total) {
    this->*total = extrapolated(this->*total, end.*total, begin.*total, weight);
  });
  by_instruction.resize(std::max(by_instruction.size(), end.by_instruction.size()));
  for (size_t i = 0; i < end.by_instruction.size(); ++i) {
    const InstructionCounters from = i < begin.by_instruction.size() ? begin.by_instruction[i] : InstructionCounters();
    InstructionCounters& sum = by_instruction[i];
    const InstructionCounters& to = end.by_instruction[i];
    sum.executed = extrapolated(sum.executed, to.executed, from.executed, weight);
    sum.clocks = extrapolated(sum.clocks, to.clocks, from.clocks, weight);
    sum.busy = extrapolated(sum.busy, to.busy, from.busy, weight);
  }
}

Sums::Sums(const std::vector<InstructionCounters>& by_instruction, const std::vector<Plan>& plans) {
  for (size_t pc = 0; pc < by_instruction.size(); ++pc) {
    const InstructionCounters& counters = by_instruction[pc];
    const Plan& plan = plans[pc];
    const uint64_t clocks = counters.executed * plan.clocks;
    instructions += counters.executed;
    if (plan.kind == Plan::Kind::vector) vector_clocks += clocks;
    if (plan.kind == Plan::Kind::lds) lds_clocks += counters.busy;
    if (plan.kind == Plan::Kind::vector_memory) {
      memory_clocks += counters.busy;
      l1_bytes += double(counters.busy) * plan.l1_port_bytes;
    }
    if (plan.kind != Plan::Kind::matrix) continue;
    matrix_clocks += clocks;
    if (plan.operands == Plan::Operands::fp8) matrix_clocks_fp8 += clocks;
    if (plan.operands == Plan::Operands::i8) matrix_clocks_i8 += clocks;
    if (plan.operands == Plan::Operands::f16) matrix_clocks_f16 += clocks;
  }
}

}  // namespace mi300x::timing

#include "slice.h"

#include <algorithm>
#include <bitset>

namespace mi300x::timing {
namespace {

constexpr int scc_bit = register_count;
using Registers = std::bitset<register_count + 1>;

void insert(Registers& set, const RegisterRange& range) {
  for (int i = 0; i < range.count; ++i) set.set(size_t(range.first + i));
}
void erase(Registers& set, const RegisterRange& range) {
  for (int i = 0; i < range.count; ++i) set.reset(size_t(range.first + i));
}
bool touches(const Registers& set, const RegisterRange& range) {
  for (int i = 0; i < range.count; ++i)
    if (set[size_t(range.first + i)]) return true;
  return false;
}

bool is_end(const Instruction& inst) { return inst.op == Op::s_endpgm || inst.op == Op::s_endpgm_saved; }

bool reads_special(const Instruction& inst, Operand::Special special) {
  return std::any_of(inst.src, inst.src + 3, [&](const Operand& operand) { return operand.special == special; });
}
bool reads_scc(const Instruction& inst, const Effects& effects) {
  return reads_special(inst, Operand::Special::scc) || effects.has(trait::reads_scc | trait::reads_status);
}
bool reads_vccz(const Instruction& inst, const Effects& effects) {
  return reads_special(inst, Operand::Special::vccz) || effects.has(trait::reads_status);
}

// True for writes that leave some bits or lanes of the register as they are even under a full EXEC.
bool keeps_part(const Instruction& inst, const Effects& effects) {
  if (effects.unit == Unit::matrix) return false;
  return effects.is_partial || inst.dpp || inst.sdwa || effects.derivation == Derivation::write_lane ||
         effects.has(trait::narrow);
}

// The kinds of memory that the slice loads from.
struct LoadedMemory {
  bool lds = false, scratch = false, global = false;
  bool operator==(const LoadedMemory& other) const {
    return lds == other.lds && scratch == other.scratch && global == other.global;
  }
};

// Facts about EXEC before an instruction: whether it has all lanes that the wave began with, and which SGPR pairs hold
// such a mask. A write under a full mask overwrites the whole register.
struct Masks {
  bool reached = false, full = false;
  std::bitset<128> saved;
};

class Slice {
 public:
  Slice(const Launch& launch, Wanted wanted)
      : code_(launch.code->instructions),
        effects_(launch.effects),
        wants_addresses_(wanted == Wanted::branches_and_addresses),
        live_(code_.size()),
        masks_(code_.size()) {
    const Kernel& kernel = *launch.dispatch.kernel;
    entry_ = (kernel.first_instruction() - kernel.code_begin) / 4;
  }

  std::vector<uint8_t> needed() {
    if (!follow_masks()) return std::vector<uint8_t>(code_.size(), 1);
    while (follow_values()) {
    }
    std::vector<uint8_t> result(code_.size());
    for (const size_t pc : order_) result[pc] = is_needed(pc, live_after(pc));
    return result;
  }

 private:
  template <class F>
  void for_each_successor(size_t pc, F f) const {
    const Instruction& inst = code_[pc];
    if (is_end(inst)) return;
    if (opcode_of(inst).has(trait::branch) && size_t(inst.imm) < code_.size()) f(size_t(inst.imm));
    if (inst.op != Op::s_branch && pc + inst.size < code_.size()) f(pc + inst.size);
  }

  // ---- Forward: EXEC ----

  // Visits the code that can be reached from the entry; false where that isn't known.
  bool follow_masks() {
    masks_[entry_] = {true, true, {}};
    std::vector<size_t> work = {entry_};
    while (!work.empty()) {
      const size_t pc = work.back();
      work.pop_back();
      if (opcode_of(code_[pc]).has(trait::untraceable) || code_[pc].op == Op::unknown) return false;
      const Masks after = masks_after(pc);
      for_each_successor(pc, [&](size_t next) {
        Masks& masks = masks_[next];
        const Masks before = masks;
        masks = before.reached ? Masks{true, before.full && after.full, before.saved & after.saved} : after;
        if (!before.reached || masks.full != before.full || masks.saved != before.saved) work.push_back(next);
      });
    }
    for (size_t pc = 0; pc < code_.size(); ++pc)
      if (masks_[pc].reached) order_.push_back(pc);
    return true;
  }

  static bool is_pair(const Operand& operand) {
    return operand.kind == Operand::Kind::scalar && operand.special == Operand::Special::none && operand.dwords == 2;
  }
  static bool is_exec(const Operand& operand) { return is_pair(operand) && operand.index == sgpr_exec; }
  static bool holds_full(const Masks& masks, const Operand& operand) {
    if (is_exec(operand)) return masks.full;
    if (operand.kind == Operand::Kind::constant) return operand.constant == ~0ull;
    return is_pair(operand) && masks.saved[operand.index & 127u];
  }

  Masks masks_after(size_t pc) const {
    const Instruction& inst = code_[pc];
    const Masks before = masks_[pc];
    Masks after = before;
    bool writes_exec = false;
    for (const RegisterRange& range : effects_[pc].writes) {
      if (range.is_vector()) continue;
      for (int i = 0; i < range.count; ++i) {
        const int sgpr = range.first - first_scalar + i;
        if (sgpr == sgpr_exec || sgpr == sgpr_exec + 1) writes_exec = true;
        else after.saved.reset(size_t(sgpr & 126));
      }
    }
    const bool copies = inst.op == Op::s_mov_b64 && holds_full(before, inst.src[0]);
    const bool unites = inst.op == Op::s_or_b64 && (holds_full(before, inst.src[0]) || holds_full(before, inst.src[1]));
    const bool saves = effects_[pc].has(trait::saves_exec);
    if (writes_exec || effects_[pc].has(trait::combines_exec)) after.full = (copies || unites) && is_exec(inst.dst);
    if (is_pair(inst.dst) && !is_exec(inst.dst) && (copies || unites || (saves && before.full)))
      after.saved.set(inst.dst.index & 127u);
    return after;
  }

  // ---- Backward: live registers ----

  Registers live_after(size_t pc) const {
    Registers live;
    for_each_successor(pc, [&](size_t next) { live |= live_[next]; });
    return live;
  }

  // One pass over the code from its end. Returns true while it finds something new.
  bool follow_values() {
    const LoadedMemory memory_before = memory_;
    bool changed = false;
    for (auto pc = order_.rbegin(); pc != order_.rend(); ++pc) {
      const Registers live = live_before(*pc, live_after(*pc));
      if (live == live_[*pc]) continue;
      live_[*pc] = live;
      changed = true;
    }
    return changed || !(memory_ == memory_before);
  }

  bool is_needed(size_t pc, const Registers& after) const {
    const Instruction& inst = code_[pc];
    const Effects& effects = effects_[pc];
    for (const RegisterRange& range : effects.writes)
      if (touches(after, range)) return true;
    switch (effects.unit) {
      case Unit::other: case Unit::scalar_memory: return true;
      case Unit::scalar:
        return effects.has(trait::combines_exec) || effects.writes.size() == 0 ||
               (effects.has(trait::writes_scc) && after[scc_bit]);
      case Unit::vector: case Unit::transcendental: case Unit::matrix: return effects.writes.size() == 0;
      case Unit::lds: return effects.memory.parts == 0 ? effects.writes.size() == 0 : effects.is_store && memory_.lds;
      case Unit::vector_memory: case Unit::flat: return is_needed_store(inst, effects);
    }
    return true;
  }

  bool is_needed_store(const Instruction& inst, const Effects& effects) const {
    if (effects.to_lds && memory_.lds) return true;
    if (!effects.is_store) return effects.memory.parts == 0 && !effects.is_load;
    // Other workgroups may wait for the value of an atomic, except for sums of floats.
    if (effects.memory.atomic && !effects.has(trait::floating)) return true;
    if (inst.family == Family::SCRATCH) return memory_.scratch;
    if (inst.family == Family::FLAT) return memory_.scratch || memory_.global || memory_.lds;
    return memory_.global;
  }

  void note_load(const Instruction& inst, const Effects& effects) {
    if (!effects.is_load && !effects.memory.reads) return;
    const bool flat = inst.family == Family::FLAT;
    if (effects.unit == Unit::lds) memory_.lds |= effects.memory.parts != 0;
    else if (effects.unit == Unit::vector_memory || flat) {
      memory_.scratch |= flat || inst.family == Family::SCRATCH;
      memory_.global |= flat || inst.family != Family::SCRATCH;
      memory_.lds |= flat;
    }
  }

  Registers live_before(size_t pc, Registers live) {
    const Instruction& inst = code_[pc];
    const Effects& effects = effects_[pc];
    const bool needed = is_needed(pc, live);
    for (const RegisterRange& range : effects.writes) {
      const bool all_lanes = !range.is_vector() || masks_[pc].full || effects.unit == Unit::matrix;
      if (all_lanes && !keeps_part(inst, effects)) erase(live, range);
    }
    if (effects.has(trait::writes_scc)) live.reset(scc_bit);
    for (size_t i = 0; i < effects.reads.size(); ++i)
      if (needed || (wants_addresses_ && i < effects.address_count)) insert(live, effects.reads[i]);
    if (needed) {
      note_load(inst, effects);
      if (reads_scc(inst, effects)) live.set(scc_bit);
      if (reads_vccz(inst, effects)) insert(live, scalar_range(sgpr_vcc, 2));
    }
    insert(live, scalar_range(sgpr_exec, 2));
    insert(live, scalar_range(sgpr_m0, 1));
    return live;
  }

  const std::vector<Instruction>& code_;
  const Effects* effects_;
  const bool wants_addresses_;
  size_t entry_;
  std::vector<size_t> order_;    // reachable instructions, by address
  std::vector<Registers> live_;  // before each instruction
  std::vector<Masks> masks_;
  LoadedMemory memory_;
};

}  // namespace

std::vector<uint8_t> needed_instructions(const Launch& launch, Wanted wanted) { return Slice(launch, wanted).needed(); }

}  // namespace mi300x::timing

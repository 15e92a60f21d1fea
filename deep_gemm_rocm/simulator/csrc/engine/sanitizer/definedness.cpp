#include "definedness.h"

#include <algorithm>

#include "../execution/lane_crossing.h"

namespace mi300x {
namespace {

// Bits with their definedness. AND with a defined 0 and OR with a defined 1 give defined results.
struct Bits {
  uint64_t value, defined;
};
Bits operator~(Bits a) { return {~a.value, a.defined}; }
Bits operator&(Bits a, Bits b) {
  return {a.value & b.value, (a.defined & b.defined) | (a.defined & ~a.value) | (b.defined & ~b.value)};
}
Bits operator|(Bits a, Bits b) { return ~(~a & ~b); }

uint64_t selection(Wave& wave, const Instruction& inst) {
  return inst.family == Family::VOP3 ? wave.read_scalar(inst.src[2]) : wave.vcc();
}

// The lanes of a DPP instruction's first source that are defined once moved. Lanes without a source read a defined
// zero.
uint64_t moved(const DppMove& move, uint64_t defined) {
  uint64_t result = ~move.valid;
  for (uint64_t rest = move.valid; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctzll(rest);
    result |= (defined >> move.source[lane] & 1) << lane;
  }
  return result;
}

// The lanes that an instruction writes.
uint64_t written_lanes(const Wave& wave, const Instruction& inst, const Effects& effects) {
  if (effects.derivation == Derivation::matrix) return ~0ull;
  return inst.dpp ? wave.exec() & dpp_move(wave, inst).written : wave.exec();
}

bool is_move(Op op) {
  return op == Op::v_mov_b32 || op == Op::v_mov_b64 || op == Op::v_accvgpr_read_b32 || op == Op::v_accvgpr_write_b32 ||
         op == Op::v_accvgpr_mov_b32;
}

}  // namespace

void Definedness::start(const Wave& wave, const Kernel& kernel, int scalars) {
  for (auto* row_bits : {&rows_, &gaps_}) {
    std::fill_n(row_bits->begin(), kernel.vector_registers(), 0);
    std::fill_n(row_bits->begin() + accumulator_row, kernel.accumulators(), 0);
    std::fill(row_bits->begin() + temporary_row, row_bits->end(), 0);
  }
  scalars_.fill(0);
  scalar_gaps_.fill(false);
  std::fill(scalars_.begin(), scalars_.begin() + scalars, ~0u);
  for (int index : {sgpr_flat_scratch, sgpr_flat_scratch + 1, sgpr_vcc, sgpr_vcc + 1, sgpr_m0, sgpr_exec, sgpr_exec + 1})
    scalars_[size_t(index)] = ~0u;
  rows_[0] = wave.exec();
  scc_ = true;
}

bool Definedness::is_defined(const RegisterRange& range, uint64_t lanes) const {
  for (int number = range.first; number < range.first + range.count; ++number) {
    if (number < first_scalar && undefined_lanes(number, lanes) != 0) return false;
    if (number >= first_scalar && scalars_[size_t(number - first_scalar)] != ~0u) return false;
  }
  return true;
}

uint64_t Definedness::bits_of(const Operand& operand) const {
  if (operand.kind != Operand::Kind::scalar || operand.special != Operand::Special::none) return ~0ull;
  return operand.dwords >= 2 ? pair(operand.index) : scalars_[operand.index] | 0xFFFFFFFF'00000000;
}

uint64_t Definedness::lanes_of(const Operand& operand, int dword) const {
  const int index = operand.index + std::min(dword, operand.dwords - 1);
  if (operand.kind == Operand::Kind::vector) return rows_[size_t(index)];
  const bool is_register = operand.kind == Operand::Kind::scalar && operand.special == Operand::Special::none;
  return !is_register || scalars_[size_t(index)] == ~0u ? ~0ull : 0;
}

uint64_t Definedness::gaps_of(const Operand& operand, int dword) const {
  const int index = operand.index + std::min(dword, operand.dwords - 1);
  if (operand.kind == Operand::Kind::vector) return gaps_[size_t(index)];
  const bool is_register = operand.kind == Operand::Kind::scalar && operand.special == Operand::Special::none;
  return is_register && scalar_gaps_[size_t(index)] ? ~0ull : 0;
}

void Definedness::define_scalar(const RegisterRange& range, uint64_t bits) {
  for (int i = 0; i < range.count; ++i) {
    scalars_[size_t(range.first - first_scalar + i)] = uint32_t(i % 2 ? bits >> 32 : bits);
    scalar_gaps_[size_t(range.first - first_scalar + i)] = false;
  }
}

void Definedness::define_loaded_scalars(const RegisterRange& range, uint64_t dwords) {
  const bool has_any = (dwords & ((1ull << range.count) - 1)) != 0;
  for (int i = 0; i < range.count; ++i) {
    scalars_[size_t(range.first - first_scalar + i)] = dwords >> i & 1 ? ~0u : 0;
    scalar_gaps_[size_t(range.first - first_scalar + i)] = has_any;
  }
}

// Moves and lane mask arithmetic.
void Definedness::execute_bitwise(const Wave& wave, const Instruction& inst, const Effects& effects) {
  const Derivation operation = effects.derivation;
  const Bits exec{wave.exec(), pair(sgpr_exec)};
  const Bits a{wave.read_scalar(inst.src[0]), bits_of(inst.src[0])};
  const Bits b = effects.has(trait::combines_exec) ? exec : Bits{wave.read_scalar(inst.src[1]), bits_of(inst.src[1])};
  Bits result = a;
  const bool gaps[2] = {gaps_of(inst.src[0], 0) != 0, gaps_of(inst.src[0], 1) != 0};
  switch (operation) {
    case Derivation::bit_and: result = a & b; break;
    case Derivation::bit_or: result = a | b; break;
    case Derivation::bit_and_not: result = a & ~b; break;
    case Derivation::bit_not_and: result = ~a & b; break;
    default: break;
  }
  const bool saves_exec = effects.has(trait::saves_exec);
  define_scalar(scalar_range(inst.dst.index, inst.dst.dwords), saves_exec ? exec.defined : result.defined);
  if (effects.has(trait::combines_exec)) define_scalar(scalar_range(sgpr_exec, 2), result.defined);
  const uint64_t width = inst.dst.dwords == 2 ? ~0ull : 0xFFFFFFFF;
  if (operation == Derivation::bit_move)
    for (int i = 0; i < inst.dst.dwords; ++i) scalar_gaps_[size_t(inst.dst.index + i)] = gaps[i];
  else
    scc_ = (~result.defined & width) == 0 || (result.value & result.defined & width) != 0;
}

uint64_t Definedness::crossed_lanes(Wave& wave, const Instruction& inst) const {
  int sources[lanes];
  crossing_sources(wave, inst, sources);
  const uint64_t data = lanes_of(crossing_data(inst), 0);
  uint64_t defined = 0;
  for (int lane = 0; lane < lanes; ++lane)
    defined |= uint64_t(sources[lane] == no_lane || (data >> sources[lane] & 1)) << lane;
  return defined;
}

// The lanes of result row `row` that are computed from defined values only.
uint64_t Definedness::result_lanes(Wave& wave, const Instruction& inst, const Effects& effects, int row) const {
  const auto lanes_of_source = [&](int i, int dword) {
    const uint64_t defined = lanes_of(inst.src[i], dword);
    return inst.dpp && i == 0 ? moved(dpp_move(wave, inst), defined) : defined;
  };
  const auto all_dwords = [&](int i, int dwords) {
    uint64_t defined = ~0ull;
    for (int dword = 0; dword < dwords; ++dword) defined &= lanes_of_source(i, dword);
    return defined;
  };
  uint64_t defined = ~0ull;
  switch (effects.derivation) {
    case Derivation::select: {
      const uint64_t mask = selection(wave, inst);
      const uint64_t known = inst.family == Family::VOP3 ? bits_of(inst.src[2]) : pair(sgpr_vcc);
      return known & ((mask & lanes_of_source(1, 0)) | (~mask & lanes_of_source(0, 0)));
    }
    case Derivation::packed_move: return lanes_of(inst.src[row], inst.vop.op_sel >> row & 1);
    case Derivation::packed_pairs:
      for (int i = 0; i < 3; ++i)
        defined &= lanes_of(inst.src[i], (row ? inst.vop.op_sel_hi : inst.vop.op_sel) >> i & 1);
      return defined;
    case Derivation::low_dwords_first:
      for (int i = 0; i < 3; ++i) defined &= all_dwords(i, std::min<int>(row + 1, inst.src[i].dwords));
      return defined;
    case Derivation::crossing: return crossed_lanes(wave, inst);
    case Derivation::carry:
      defined = inst.family == Family::VOP2 ? pair(sgpr_vcc) : bits_of(inst.src[2]);
      return defined & lanes_of_source(0, 0) & lanes_of_source(1, 0);
    default: break;
  }
  for (int i = 0; i < 3; ++i) defined &= all_dwords(i, inst.src[i].dwords);
  if (effects.derivation == Derivation::matrix) return defined == ~0ull ? ~0ull : 0;
  return defined;
}

// The lanes of result row `row` that are copies of a gap, if they aren't defined.
uint64_t Definedness::result_gaps(Wave& wave, const Instruction& inst, const Effects& effects, int row) const {
  if (effects.derivation == Derivation::packed_move) return gaps_of(inst.src[row], inst.vop.op_sel >> row & 1);
  if (effects.derivation == Derivation::select) {
    const uint64_t mask = selection(wave, inst);
    return (mask & gaps_of(inst.src[1], 0)) | (~mask & gaps_of(inst.src[0], 0));
  }
  return is_move(inst.op) && !inst.dpp && !inst.sdwa ? gaps_of(inst.src[0], row) : 0;
}

void Definedness::execute(Wave& wave, const Instruction& inst, const Effects& effects, const Loaded& loaded) {
  switch (effects.derivation) {
    case Derivation::write_lane:
      rows_[inst.dst.index] |= 1ull << (wave.read_scalar(inst.src[1]) % lanes);
      return;
    case Derivation::read_lane: {
      const uint64_t exec = wave.exec();
      const uint64_t first_active = exec ? uint64_t(__builtin_ctzll(exec)) : 0;
      const uint64_t lane = inst.op == Op::v_readlane_b32 ? wave.read_scalar(inst.src[1]) % lanes : first_active;
      scalars_[inst.dst.index] = lanes_of(inst.src[0], 0) >> lane & 1 ? ~0u : 0;
      scalar_gaps_[inst.dst.index] = gaps_of(inst.src[0], 0) >> lane & 1;
      return;
    }
    case Derivation::bit_move: case Derivation::bit_and: case Derivation::bit_or: case Derivation::bit_and_not:
    case Derivation::bit_not_and: return execute_bitwise(wave, inst, effects);
    default: break;
  }
  if (effects.derivation == Derivation::loaded ? loaded.is_complete() : all_is_defined(effects.reads))
    return define_all(effects, written_lanes(wave, inst, effects));
  write_results(wave, inst, effects, loaded);
}

bool Definedness::all_is_defined(const RangeList<6>& ranges) const {
  uint64_t undefined = 0;
  for (const RegisterRange& range : ranges) {
    if (range.is_vector())
      for (int i = 0; i < range.count; ++i) undefined |= ~rows_[size_t(range.first + i)];
    else
      for (int i = 0; i < range.count; ++i) undefined |= ~scalars_[size_t(range.first - first_scalar + i)];
  }
  return undefined == 0;
}

void Definedness::define_all(const Effects& effects, uint64_t lanes) {
  for (const RegisterRange& range : effects.writes) {
    if (range.is_vector())
      for (int i = 0; i < range.count; ++i) rows_[size_t(range.first + i)] |= lanes;
    else
      define_scalar(range, ~0ull);
  }
  if (effects.has(trait::writes_scc)) scc_ = true;
}

void Definedness::write_results(Wave& wave, const Instruction& inst, const Effects& effects, const Loaded& loaded) {
  constexpr int most_dwords = 32;
  const uint64_t exec = wave.exec(), active = written_lanes(wave, inst, effects);
  const bool writes_scalars = effects.unit == Unit::scalar ||
                              (effects.writes.size() != 0 && !effects.writes[effects.writes.size() - 1].is_vector());
  bool all_sources = true;
  if (writes_scalars)
    for (const RegisterRange& range : effects.reads) all_sources &= is_defined(range, exec);
  const uint64_t scalar_bits = inst.sdst.kind != Operand::Kind::none ? ~active | result_lanes(wave, inst, effects, 0)
                               : all_sources                           ? ~0ull
                                                                       : 0;
  // An instruction may write registers that it reads, so all results are computed before any is stored.
  uint64_t results[most_dwords], gaps[most_dwords];
  for (const RegisterRange& range : effects.writes) {
    if (!range.is_vector()) continue;
    const bool is_loaded = effects.derivation == Derivation::loaded;
    uint64_t with_data = 0;
    for (int i = 0; is_loaded && i < range.count; ++i) with_data |= loaded.lanes[size_t(i)];
    for (int i = 0; i < range.count; ++i) {
      gaps[i] = is_loaded ? with_data : result_gaps(wave, inst, effects, i);
      if (is_loaded) results[i] = loaded.lanes[size_t(i)];
      else if (effects.derivation == Derivation::matrix && i > 0) results[i] = results[0];
      else results[i] = result_lanes(wave, inst, effects, i);
    }
    for (int i = 0; i < range.count; ++i) {
      uint64_t &row = rows_[size_t(range.first + i)], &gap = gaps_[size_t(range.first + i)];
      row = (row & ~active) | (results[i] & active);
      gap = (gap & ~active) | (gaps[i] & active);
    }
  }
  for (const RegisterRange& range : effects.writes) {
    if (range.is_vector()) continue;
    if (effects.unit == Unit::scalar_memory) define_loaded_scalars(range, loaded.scalars);
    else define_scalar(range, scalar_bits);
  }
  if (effects.has(trait::writes_scc)) scc_ = all_sources;
}

}  // namespace mi300x

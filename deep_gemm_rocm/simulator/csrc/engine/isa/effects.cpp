#include "effects.h"

#include <algorithm>

#include "decoder.h"

namespace mi300x {
namespace {

bool is_buffer(Family family) { return family == Family::MUBUF || family == Family::MTBUF; }

template <int capacity>
void add(RangeList<capacity>& ranges, const Operand& operand) {
  if (operand.kind == Operand::Kind::vector) ranges.push_back({operand.index, operand.dwords});
  if (operand.kind == Operand::Kind::scalar && operand.special == Operand::Special::none)
    ranges.push_back(scalar_range(operand.index, operand.dwords));
}

// ---- Memory ----

// Atomics return the old value in a form of their own: with SC0, or, in LDS, as another opcode.
bool loads(const Instruction& inst, const Effects& effects) {
  if (effects.to_lds || effects.has(trait::load)) return true;
  const bool sc0_tells = is_buffer(inst.family) || inst.family == Family::SMEM;
  return effects.has(trait::atomic) && (sc0_tells ? inst.mem.sc0 : inst.dst.dwords != 0);
}

void describe_access(Effects& effects, uint8_t bytes) {
  MemoryAccess& access = effects.memory;
  access.bytes = bytes;
  access.parts = bytes == 0 ? 0 : effects.has(trait::pair) ? 2 : 1;
  access.reads = effects.is_load || effects.has(trait::atomic);
  access.writes = effects.is_store;
  access.overwrites = effects.has(trait::overwrites);
  access.atomic = effects.has(trait::atomic);
}

void add_lds(Effects& effects, const Instruction& inst) {
  for (const Operand& operand : inst.src) add(effects.reads, operand);
  effects.address_count = inst.op != Op::ds_swizzle_b32 && inst.src[0].kind != Operand::Kind::none;
  if (effects.is_load) add(effects.writes, inst.dst);
  const uint8_t bytes = opcode_of(inst).bytes;
  if (bytes == 0) return;
  describe_access(effects, bytes);
  effects.memory.compares = effects.has(trait::compares);
  const uint32_t scale = bytes * (effects.has(trait::stride64) ? 64 : 1);
  effects.memory.offsets[0] = effects.has(trait::pair) ? inst.mem.offset0 * scale : uint32_t(inst.imm);
  effects.memory.offsets[1] = effects.has(trait::pair) ? inst.mem.offset1 * scale : 0;
}

void add_vector_memory(Effects& effects, const Instruction& inst) {
  const bool buffer = is_buffer(inst.family);
  add(effects.reads, inst.src[0]);
  add(effects.reads, inst.src[2]);
  if (buffer) add(effects.reads, inst.src[1]);
  effects.address_count = uint8_t(effects.reads.size());
  if (!buffer) add(effects.reads, inst.src[1]);
  else if (effects.is_store) add(effects.reads, inst.dst);
  if (effects.is_load && !effects.to_lds) add(effects.writes, inst.dst);
  if (!effects.is_load && !effects.is_store) return;
  const uint8_t bytes = opcode_of(inst).bytes;
  describe_access(effects, effects.to_lds ? std::min<uint8_t>(bytes, 4) : bytes);
  effects.memory.high_half = effects.has(trait::high_half);
  effects.memory.compares = effects.has(trait::compares);
  effects.memory.atomic |= inst.mem.sc1;
}

void add_scalar_memory(Effects& effects, const Instruction& inst) {
  add(effects.reads, inst.src[0]);
  add(effects.reads, inst.src[1]);
  effects.address_count = uint8_t(effects.reads.size());
  if (effects.is_store) add(effects.reads, inst.dst);
  if (effects.is_load) add(effects.writes, inst.dst);
  const bool has_address = inst.src[0].dwords == 2;  // others have a buffer resource
  if (has_address && (effects.is_load || effects.is_store)) describe_access(effects, opcode_of(inst).bytes);
}

void add_memory(Effects& effects, const Instruction& inst) {
  effects.to_lds = effects.has(trait::to_lds) || (inst.mem.lds && effects.has(trait::load));
  effects.is_load = loads(inst, effects);
  effects.is_store = effects.has(trait::store);
  if (effects.derivation == Derivation::loaded && !effects.is_load) effects.derivation = Derivation::all_operands;
  switch (inst.family) {
    case Family::SMEM: return add_scalar_memory(effects, inst);
    case Family::DS: return add_lds(effects, inst);
    default: return add_vector_memory(effects, inst);
  }
}

// ---- Arithmetic ----

// SDWA with a destination select other than DWORD (bits 8..10 of its word), and op_sel on the destination.
bool is_partial(const Instruction& inst) {
  constexpr uint32_t whole_dword = 6;
  if (inst.sdwa) return inst.family != Family::VOPC && (inst.vop.sdwa_dpp >> 8 & 7) != whole_dword;
  return inst.family == Family::VOP3 && (inst.vop.op_sel & 8) != 0;
}

void add_arithmetic(Effects& effects, const Instruction& inst) {
  const MatrixShape* matrix = matrix_shape(inst.op);
  add(effects.reads, inst.src[0]);
  add(effects.reads, inst.src[1]);
  if (matrix && matrix->sparse) add(effects.reads, inst.dst);  // C, in its usual place; the indices follow
  add(effects.reads, inst.src[2]);
  if (effects.has(trait::reads_dst)) add(effects.reads, inst.dst);
  if (effects.has(trait::reads_vcc)) effects.reads.push_back(scalar_range(sgpr_vcc, 2));
  if (effects.has(trait::reads_exec)) effects.reads.push_back(scalar_range(sgpr_exec, 2));
  if (!effects.has(trait::keeps_dst)) add(effects.writes, inst.dst);
  add(effects.writes, inst.sdst);
  if (effects.has(trait::writes_vcc)) effects.writes.push_back(scalar_range(sgpr_vcc, 2));
  if (effects.has(trait::writes_exec)) effects.writes.push_back(scalar_range(sgpr_exec, 2));
  effects.is_partial = is_partial(inst);
  if (matrix == nullptr) return;
  effects.passes = matrix->passes;
  effects.is_f64 = matrix->type == MatrixType::f64;
  effects.is_xdl = matrix->is_xdl();
}

// ---- Registers ----

void want(RegisterCounts& wanted, const RegisterRange& range) {
  const int end = range.first + range.count;
  if (!range.is_vector()) {
    if (range.first < first_scalar + sgpr_flat_scratch)
      wanted.scalars = std::max(wanted.scalars, std::min(end - first_scalar, sgpr_flat_scratch));
  } else if (range.first >= accumulator_row) {
    wanted.accumulators = std::max(wanted.accumulators, end - accumulator_row);
  } else {
    wanted.vectors = std::max(wanted.vectors, end);
  }
}

}  // namespace

std::string register_name(int number) {
  if (number >= first_scalar + sgpr_exec && number < first_scalar + sgpr_exec + 2) return "exec";
  if (number == first_scalar + sgpr_vcc || number == first_scalar + sgpr_vcc + 1) return "vcc";
  if (number == first_scalar + sgpr_m0) return "m0";
  if (number >= first_scalar) return "s" + std::to_string(number - first_scalar);
  return number < accumulator_row ? "v" + std::to_string(number) : "a" + std::to_string(number - accumulator_row);
}

Effects effects_of(const Instruction& inst) {
  Effects effects;
  if (!is_executable(inst)) return effects;
  const Opcode& opcode = opcode_of(inst);
  effects.unit = opcode.unit;
  effects.derivation = opcode.derivation;
  effects.traits = opcode.traits;
  if (inst.family == Family::SMEM || inst.family >= Family::DS) add_memory(effects, inst);
  else add_arithmetic(effects, inst);
  for (const RegisterRange& range : effects.reads) want(effects.registers, range);
  for (const RegisterRange& range : effects.writes) want(effects.registers, range);
  return effects;
}

}  // namespace mi300x

#include "effects.h"

#include <cstring>

#include "decoder.h"

namespace mi300x {
namespace {

bool starts_with(const char* text, const char* prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }
bool contains(const char* text, const char* part) { return strstr(text, part) != nullptr; }
bool contains_any(const char* text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (contains(text, part)) return true;
  return false;
}

bool is_vector_alu(Family family) { return family >= Family::VOP1 && family <= Family::VOP3P; }
bool is_buffer(Family family) { return family == Family::MUBUF || family == Family::MTBUF; }

bool is_transcendental(const char* name) {
  for (const char* prefix : {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"})
    if (starts_with(name, prefix)) return true;
  return false;
}

bool is_lane_read(Op op) { return op == Op::v_readlane_b32 || op == Op::v_readfirstlane_b32; }

// VOP2 forms that take the mask in VCC.
bool reads_vcc(const Instruction& inst) {
  if (inst.op == Op::v_div_fmas_f32 || inst.op == Op::v_div_fmas_f64) return true;
  if (inst.family != Family::VOP2) return false;
  return inst.op == Op::v_cndmask_b32 || inst.op == Op::v_addc_co_u32 || inst.op == Op::v_subb_co_u32 ||
         inst.op == Op::v_subbrev_co_u32;
}
bool is_branch_on_vcc(Op op) { return op == Op::s_cbranch_vccz || op == Op::s_cbranch_vccnz; }
bool writes_vcc(const Instruction& inst) { return inst.family == Family::VOP2 && contains(mnemonic(inst.op), "_co_"); }

Unit unit_of(const Instruction& inst) {
  switch (inst.family) {
    case Family::SOP1: case Family::SOP2: case Family::SOPC: case Family::SOPK: return Unit::scalar;
    case Family::SOPP: return Unit::other;
    case Family::SMEM: return Unit::scalar_memory;
    case Family::DS: return Unit::lds;
    case Family::FLAT: return Unit::flat;
    case Family::GLOBAL: case Family::SCRATCH: case Family::MUBUF: case Family::MTBUF: return Unit::vector_memory;
    default: break;
  }
  if (inst.matrix != nullptr) return Unit::matrix;
  return is_transcendental(mnemonic(inst.op)) ? Unit::transcendental : Unit::vector;
}

template <int capacity>
void add(RangeList<capacity>& ranges, const Operand& operand) {
  if (operand.kind == Operand::Kind::vector) ranges.push_back({operand.index, operand.dwords});
  if (operand.kind == Operand::Kind::scalar && operand.special == Operand::Special::none)
    ranges.push_back(scalar_range(operand.index, operand.dwords));
}

// ---- Memory ----

// Of one access of a lane, from the mnemonic and the width of the data.
uint8_t access_bytes(const Instruction& inst, const Operand& data) {
  const char* name = mnemonic(inst.op);
  if (contains(name, "format")) return 0;  // the resource tells
  if (inst.family == Family::DS) {
    if (contains_any(name, {"_b8", "_u8", "_i8"})) return 1;
    if (contains_any(name, {"_b16", "_u16", "_i16"})) return 2;
  } else {
    if (contains(name, "byte")) return 1;
    if (contains(name, "short")) return 2;
  }
  const int dwords = data.dwords ? data.dwords : 1;
  return uint8_t(4 * (contains(name, "cmpswap") ? dwords / 2 : dwords));
}

MemoryAccess lds_access(const Instruction& inst, const Effects& effects) {
  const char* name = mnemonic(inst.op);
  MemoryAccess access;
  if (inst.op == Op::ds_nop || contains_any(name, {"permute", "swizzle", "addtid", "append", "consume", "gws"}))
    return access;
  access.parts = contains_any(name, {"read2", "write2", "wrxchg2"}) ? 2 : 1;
  access.writes = effects.is_store;
  access.atomic = access.writes && !contains(name, "ds_write");
  access.overwrites = access.writes && (!access.atomic || contains(name, "wrxchg"));
  access.reads = effects.is_load || access.atomic;
  access.bytes = access_bytes(inst, access.writes ? inst.src[1] : inst.dst);
  if (access.parts == 1) {
    access.offsets[0] = uint32_t(inst.imm);
    return access;
  }
  if (!access.writes) access.bytes = uint8_t(access.bytes / 2);  // the destination holds both
  const uint32_t scale = access.bytes * (contains(name, "st64") ? 64 : 1);
  access.offsets[0] = inst.mem.offset0 * scale;
  access.offsets[1] = inst.mem.offset1 * scale;
  return access;
}

MemoryAccess vector_memory_access(const Instruction& inst, const Effects& effects, bool is_atomic) {
  MemoryAccess access;
  if (!effects.is_load && !effects.is_store) return access;
  const Operand& stored = is_buffer(inst.family) ? inst.dst : inst.src[1];
  access.bytes = access_bytes(inst, effects.is_store ? stored : inst.dst);
  access.parts = access.bytes ? 1 : 0;
  access.reads = effects.is_load || is_atomic;
  access.writes = effects.is_store;
  access.overwrites = access.writes && !is_atomic;
  access.high_half = contains(mnemonic(inst.op), "d16_hi");
  access.atomic = is_atomic || inst.mem.sc1;
  return access;
}

void add_memory(Effects& effects, const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  const bool buffer = is_buffer(inst.family), lds = inst.family == Family::DS;
  const bool is_atomic = contains(name, "atomic") || (lds && inst.src[1].dwords && inst.dst.dwords);
  const bool is_write = contains(name, "store") || contains(name, "ds_write");
  effects.to_lds = contains(name, "load_lds") || (buffer && inst.mem.lds);
  effects.is_load = effects.to_lds || contains(name, "load") || (inst.dst.dwords != 0 && !buffer) ||
                    (buffer && is_atomic && inst.mem.sc0);
  effects.is_store = is_write || is_atomic || (lds && inst.src[1].dwords);

  add(effects.reads, inst.src[0]);
  if (!lds) add(effects.reads, inst.src[2]);
  if (buffer) add(effects.reads, inst.src[1]);
  effects.address_count = inst.op == Op::ds_swizzle_b32 ? 0 : uint8_t(effects.reads.size());
  if (buffer && (is_write || is_atomic)) add(effects.reads, inst.dst);
  if (!buffer) add(effects.reads, inst.src[1]);
  if (lds) add(effects.reads, inst.src[2]);
  if (effects.is_load && !effects.to_lds) add(effects.writes, inst.dst);
  effects.memory = lds ? lds_access(inst, effects) : vector_memory_access(inst, effects, is_atomic);
  effects.memory.compares = contains(name, "cmpswap") || contains(name, "cmpst");
}

void add_scalar_memory(Effects& effects, const Instruction& inst) {
  add(effects.reads, inst.src[0]);
  add(effects.reads, inst.src[1]);
  effects.address_count = uint8_t(effects.reads.size());
  const bool is_atomic = contains(mnemonic(inst.op), "atomic");
  effects.is_store = is_atomic || contains(mnemonic(inst.op), "store");
  effects.is_load = is_atomic ? inst.mem.sc0 : !effects.is_store && inst.dst.dwords != 0;
  if (effects.is_store) add(effects.reads, inst.dst);
  if (effects.is_load) add(effects.writes, inst.dst);
  const bool has_address = inst.src[0].dwords == 2;
  if (!has_address || !(effects.is_load || effects.is_store)) return;
  effects.memory.parts = 1;
  effects.memory.bytes = access_bytes(inst, inst.dst);
  effects.memory.reads = effects.is_load || is_atomic;
  effects.memory.writes = effects.is_store;
  effects.memory.atomic = is_atomic;
}

// ---- Arithmetic ----

// S_CMPK, S_ADDK, S_MULK, S_SETREG and the bit-setting instructions read what they name as their destination.
bool reads_destination(const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  if (inst.family == Family::SOPK)
    return !contains(name, "movk") && !contains(name, "getreg") && inst.op != Op::s_call_b64;
  return starts_with(name, "s_bitset") || starts_with(name, "s_cmov");
}
bool only_reads_destination(const Instruction& inst) {
  return starts_with(mnemonic(inst.op), "s_cmpk") || inst.op == Op::s_setreg_b32 || inst.op == Op::s_cbranch_i_fork;
}

// SDWA with a destination select other than DWORD (bits 8..10 of its word), and op_sel on the destination.
bool is_partial(const Instruction& inst) {
  constexpr uint32_t whole_dword = 6;
  if (inst.sdwa) return inst.family != Family::VOPC && (inst.vop.sdwa_dpp >> 8 & 7) != whole_dword;
  return inst.family == Family::VOP3 && (inst.vop.op_sel & 8) != 0;
}

Derivation scalar_derivation(const Instruction& inst) {
  if (inst.family != Family::SOP1 && inst.family != Family::SOP2) return Derivation::all_operands;
  const char* name = mnemonic(inst.op);
  if (starts_with(name, "s_mov_b")) return Derivation::bit_move;
  if (starts_with(name, "s_and_")) return Derivation::bit_and;
  if (starts_with(name, "s_or_")) return Derivation::bit_or;
  if (starts_with(name, "s_andn2_")) return Derivation::bit_and_not;
  if (starts_with(name, "s_andn1_")) return Derivation::bit_not_and;
  return Derivation::all_operands;
}

Derivation vector_derivation(const Instruction& inst) {
  switch (inst.op) {
    case Op::v_cndmask_b32: return Derivation::select;
    case Op::v_pk_mov_b32: return Derivation::packed_move;
    case Op::v_pk_fma_f32: case Op::v_pk_mul_f32: case Op::v_pk_add_f32: return Derivation::packed_pairs;
    case Op::v_mad_u64_u32: case Op::v_mad_i64_i32: case Op::v_lshlrev_b64: case Op::v_lshl_add_u64: case Op::v_mov_b64:
      return Derivation::low_dwords_first;
    case Op::v_writelane_b32: return Derivation::write_lane;
    case Op::v_readlane_b32: case Op::v_readfirstlane_b32: return Derivation::read_lane;
    case Op::v_addc_co_u32: case Op::v_subb_co_u32: case Op::v_subbrev_co_u32: return Derivation::carry;
    default: return Derivation::all_operands;
  }
}

Derivation derivation_of(const Instruction& inst, const Effects& effects) {
  if (inst.op == Op::ds_bpermute_b32 || inst.op == Op::ds_permute_b32 || inst.op == Op::ds_swizzle_b32)
    return Derivation::crossing;
  if (effects.is_load) return Derivation::loaded;
  switch (effects.unit) {
    case Unit::scalar: return scalar_derivation(inst);
    case Unit::matrix: return Derivation::matrix;
    case Unit::vector: return vector_derivation(inst);
    default: return Derivation::all_operands;
  }
}

void add_matrix(Effects& effects, const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  effects.passes = uint8_t(matrix_passes(name));
  effects.is_f64 = contains(name, "_f64");
  const bool multiply_adds = effects.is_f64 || strcmp(name + strlen(name) - 4, "_f32") == 0;
  effects.is_xdl = !multiply_adds;
}

void add_arithmetic(Effects& effects, const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  add(effects.reads, inst.src[0]);
  add(effects.reads, inst.src[1]);
  if (contains(name, "smfmac")) add(effects.reads, inst.dst);  // C, in its usual place; the indices follow
  add(effects.reads, inst.src[2]);
  if (!only_reads_destination(inst)) add(effects.writes, inst.dst);
  if (reads_destination(inst)) add(effects.reads, inst.dst);
  add(effects.writes, inst.sdst);
  if (reads_vcc(inst) || is_branch_on_vcc(inst.op)) effects.reads.push_back(scalar_range(sgpr_vcc, 2));
  if (writes_vcc(inst)) effects.writes.push_back(scalar_range(sgpr_vcc, 2));
  if (starts_with(name, "v_cmpx")) effects.writes.push_back(scalar_range(sgpr_exec, 2));
  if (effects.unit == Unit::matrix) return add_matrix(effects, inst);
  if (is_vector_alu(inst.family) && !is_lane_read(inst.op)) effects.reads.push_back(scalar_range(sgpr_exec, 2));
  effects.is_partial = is_vector_alu(inst.family) && is_partial(inst);
  effects.is_dot = starts_with(name, "v_dot");
  effects.combines_exec = effects.unit == Unit::scalar && contains(name, "exec");
  effects.saves_exec = effects.unit == Unit::scalar && contains(name, "saveexec");
  effects.keeps_scc = inst.family == Family::SOPK && !contains(name, "cmpk") && inst.op != Op::s_addk_i32;
}

}  // namespace

std::string register_name(int number) {
  if (number >= first_scalar + sgpr_exec && number < first_scalar + sgpr_exec + 2) return "exec";
  if (number == first_scalar + sgpr_vcc || number == first_scalar + sgpr_vcc + 1) return "vcc";
  if (number == first_scalar + sgpr_m0) return "m0";
  if (number >= first_scalar) return "s" + std::to_string(number - first_scalar);
  return number < accumulator_row ? "v" + std::to_string(number) : "a" + std::to_string(number - accumulator_row);
}

int matrix_passes(const char* name) {
  if (contains(name, "_f64_16x16x4")) return 8;
  if (contains(name, "_f64_4x4x4")) return 4;
  if (contains(name, "_4x4x")) return 2;
  const bool large = contains(name, "32x32"), blocks = contains_any(name, {"2b_", "4b_"});
  const bool single_precision = contains_any(name, {"x1_", "x2_f32", "x4_f32"});
  if (blocks || single_precision) return large ? 16 : 8;
  return large ? 8 : 4;
}

Effects effects_of(const Instruction& inst) {
  Effects effects;
  if (!is_executable(inst)) return effects;
  effects.unit = unit_of(inst);
  if (inst.family == Family::SMEM) add_scalar_memory(effects, inst);
  else if (inst.family >= Family::DS) add_memory(effects, inst);
  else add_arithmetic(effects, inst);
  effects.derivation = derivation_of(inst, effects);
  return effects;
}

}  // namespace mi300x

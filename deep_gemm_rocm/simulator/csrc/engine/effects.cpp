#include "effects.h"

#include <cstring>
#include <string>

namespace mi300x {
namespace {

bool starts_with(const char* text, const char* prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }
bool contains(const char* text, const char* part) { return strstr(text, part) != nullptr; }

bool is_vector_alu(Family family) { return family >= Family::VOP1 && family <= Family::VOP3P; }

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

void add(std::vector<RegisterRange>& ranges, const Operand& operand) {
  if (operand.kind == Operand::Kind::vector) ranges.push_back({true, operand.index, operand.dwords});
  if (operand.kind == Operand::Kind::scalar && operand.special == Operand::Special::none)
    ranges.push_back({false, operand.index, operand.dwords});
}

void add_memory(Effects& effects, const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  const bool is_buffer = inst.family == Family::MUBUF || inst.family == Family::MTBUF;
  const bool is_atomic = contains(name, "atomic") || (inst.family == Family::DS && inst.src[1].dwords && inst.dst.dwords);
  const bool is_write = contains(name, "store") || contains(name, "ds_write");
  effects.to_lds = contains(name, "load_lds") || (is_buffer && inst.mem.lds);
  effects.is_load = effects.to_lds || contains(name, "load") || (inst.dst.dwords != 0 && !is_buffer) ||
                    (is_buffer && is_atomic && inst.mem.sc0);
  effects.is_store = is_write || is_atomic || (inst.family == Family::DS && inst.src[1].dwords);

  add(effects.addresses, inst.src[0]);
  if (inst.family != Family::DS) add(effects.addresses, inst.src[2]);
  if (is_buffer) add(effects.addresses, inst.src[1]);
  effects.reads = effects.addresses;
  if (is_buffer && (is_write || is_atomic)) add(effects.reads, inst.dst);
  if (!is_buffer) add(effects.reads, inst.src[1]);
  if (inst.family == Family::DS) add(effects.reads, inst.src[2]);
  if (effects.is_load && !effects.to_lds) add(effects.writes, inst.dst);
  if (contains(name, "d16")) add(effects.reads, inst.dst);  // the other half stays
}

// S_CMPK, S_ADDK, S_MULK, S_SETREG and the bit-setting instructions read what they name as their destination.
bool reads_destination(const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  if (inst.family == Family::SOPK) return !contains(name, "movk") && !contains(name, "getreg") && inst.op != Op::s_call_b64;
  return starts_with(name, "s_bitset") || starts_with(name, "s_cmov");
}
bool only_reads_destination(const Instruction& inst) {
  return starts_with(mnemonic(inst.op), "s_cmpk") || inst.op == Op::s_setreg_b32;
}

}  // namespace

int matrix_passes(const char* name) {
  const std::string text = name;
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (has("_f64_16x16x4")) return 8;
  if (has("_f64_4x4x4")) return 4;
  if (has("_4x4x")) return 2;
  const bool large = has("32x32"), blocks = has("2b_") || has("4b_");
  const bool single_precision = has("x1_") || has("x2_f32") || has("x4_f32") || has("x1_2b") || has("x1_4b");
  if (blocks) return large ? 16 : 8;
  if (single_precision) return large ? 16 : 8;
  return large ? 8 : 4;
}

Effects effects_of(const Instruction& inst) {
  Effects effects;
  effects.unit = unit_of(inst);
  if (inst.family == Family::SMEM) {
    add(effects.addresses, inst.src[0]);
    add(effects.addresses, inst.src[1]);
    effects.reads = effects.addresses;
    effects.is_store = contains(mnemonic(inst.op), "store");
    effects.is_load = !effects.is_store && inst.dst.dwords != 0;
    add(effects.is_store ? effects.reads : effects.writes, inst.dst);
    return effects;
  }
  if (inst.family >= Family::DS) {
    add_memory(effects, inst);
    return effects;
  }
  for (const Operand& operand : inst.src) add(effects.reads, operand);
  if (!only_reads_destination(inst)) add(effects.writes, inst.dst);
  if (reads_destination(inst)) add(effects.reads, inst.dst);
  add(effects.writes, inst.sdst);
  if (reads_vcc(inst)) effects.reads.push_back({false, sgpr_vcc, 2});
  if (writes_vcc(inst)) effects.writes.push_back({false, sgpr_vcc, 2});
  if (is_vector_alu(inst.family) && !is_lane_read(inst.op) && effects.unit != Unit::matrix)
    effects.reads.push_back({false, sgpr_exec, 2});
  if (effects.unit == Unit::matrix) {
    const char* name = mnemonic(inst.op);
    effects.passes = uint8_t(matrix_passes(name));
    const bool multiply_adds = contains(name, "_f64") || (contains(name, "_f32") && std::string(name).substr(strlen(name) - 4) == "_f32");
    effects.is_xdl = !multiply_adds;
    if (contains(name, "smfmac")) add(effects.reads, inst.dst);
  }
  return effects;
}

}  // namespace mi300x

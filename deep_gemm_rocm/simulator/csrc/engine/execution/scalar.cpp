// Scalar instructions: SOP1, SOP2, SOPC, SOPK and SOPP (CDNA3 ISA, chapters "Scalar ALU operations" and "Program flow
// control").

#include <cstring>

#include "wave.h"

namespace mi300x {
namespace {

// ---- ALU instructions with up to two sources: D = f(S0, S1, SCC) ----

using ScalarFunction = uint64_t (*)(uint64_t a, uint64_t b, bool& scc);

template <ScalarFunction f>
void run_scalar(Wave& wave, const Instruction& inst) {
  const uint64_t a = wave.read_scalar(inst.src[0]);
  const uint64_t b = wave.read_scalar(inst.src[1]);
  const uint64_t result = f(a, b, wave.scc);
  if (inst.dst.dwords) wave.write_scalar(inst.dst, result);
}

template <ScalarFunction f, ConstantType type>
void bind_scalar(Instruction& inst) {
  for (Operand& operand : inst.src) resolve_constant(operand, type, inst.literal);
  inst.handler = run_scalar<f>;
}

// SCALAR(name, type of its constants, expression of a, b and scc)
#define SCALAR(name, type, expression)                                                                  \
  uint64_t name##_value([[maybe_unused]] uint64_t a, [[maybe_unused]] uint64_t b, [[maybe_unused]] bool& scc) { \
    expression;                                                                                         \
  }                                                                                                     \
  const Semantics name##_semantics(Op::name, bind_scalar<name##_value, ConstantType::type>);

uint64_t with_scc(bool& scc, bool value, uint64_t result) {
  scc = value;
  return result;
}
uint64_t nonzero32(bool& scc, uint64_t result) { return with_scc(scc, uint32_t(result) != 0, uint32_t(result)); }
uint64_t nonzero64(bool& scc, uint64_t result) { return with_scc(scc, result != 0, result); }

int32_t i32(uint64_t value) { return int32_t(value); }
uint32_t u32(uint64_t value) { return uint32_t(value); }
bool fits_i32(int64_t value) { return value == int32_t(value); }

uint64_t add_i32(bool& scc, int64_t value) { return with_scc(scc, !fits_i32(value), u32(uint64_t(value))); }
uint64_t carry_u32(bool& scc, uint64_t value) { return with_scc(scc, value >> 32 & 1, u32(value)); }

uint64_t field(uint64_t value, uint32_t offset, uint32_t width, int bits, bool is_signed) {
  if (width == 0) return 0;
  value >>= offset;
  if (offset + width >= uint32_t(bits)) width = bits - offset;
  const int unused = 64 - int(width);
  return is_signed ? uint64_t(int64_t(value << unused) >> unused) : value << unused >> unused;
}
uint64_t field32(uint64_t a, uint64_t b, bool is_signed) {
  const uint64_t value = is_signed ? uint64_t(int64_t(i32(a))) : u32(a);
  return field(value, b & 31, (b >> 16) & 127, 32, is_signed);
}
uint64_t field64(uint64_t a, uint64_t b, bool is_signed) { return field(a, b & 63, (b >> 16) & 127, 64, is_signed); }

uint64_t whole_quads(uint64_t value) {
  uint64_t result = 0;
  for (int quad = 0; quad < 64; quad += 4)
    if (value >> quad & 15) result |= uint64_t(15) << quad;
  return result;
}
uint64_t quad_mask(uint64_t value) {
  uint64_t result = 0;
  for (int quad = 0; quad < 16; ++quad)
    if (value >> (4 * quad) & 15) result |= uint64_t(1) << quad;
  return result;
}
uint64_t reverse_bits(uint64_t value, int bits) {
  uint64_t result = 0;
  for (int i = 0; i < bits; ++i)
    if (value >> i & 1) result |= uint64_t(1) << (bits - 1 - i);
  return result;
}
uint64_t replicate_bits(uint32_t value) {
  uint64_t result = 0;
  for (int i = 0; i < 32; ++i)
    if (value >> i & 1) result |= uint64_t(3) << (2 * i);
  return result;
}
uint64_t first_one(uint64_t value) { return value ? uint64_t(__builtin_ctzll(value)) : 0xFFFFFFFF; }
uint64_t leading_zeros(uint64_t value, int bits) {
  return value ? uint64_t(__builtin_clzll(value) - (64 - bits)) : 0xFFFFFFFF;
}
uint64_t leading_sign_bits(int64_t value, int bits) {
  if (value == 0 || value == -1) return 0xFFFFFFFF;
  return leading_zeros(uint64_t(value < 0 ? ~value : value) & (~0ull >> (64 - bits)), bits);
}

SCALAR(s_add_u32, b32, return carry_u32(scc, (a & 0xFFFFFFFF) + (b & 0xFFFFFFFF)))
SCALAR(s_sub_u32, b32, return with_scc(scc, u32(b) > u32(a), u32(a - b)))
SCALAR(s_add_i32, b32, return add_i32(scc, int64_t(i32(a)) + i32(b)))
SCALAR(s_sub_i32, b32, return add_i32(scc, int64_t(i32(a)) - i32(b)))
SCALAR(s_addc_u32, b32, return carry_u32(scc, uint64_t(u32(a)) + u32(b) + scc))
SCALAR(s_subb_u32, b32, const bool borrow = uint64_t(u32(b)) + scc > u32(a); const uint64_t d = u32(a - b - scc);
       return with_scc(scc, borrow, d))
SCALAR(s_min_i32, b32, return with_scc(scc, i32(a) < i32(b), u32(i32(a) < i32(b) ? a : b)))
SCALAR(s_min_u32, b32, return with_scc(scc, u32(a) < u32(b), u32(u32(a) < u32(b) ? a : b)))
SCALAR(s_max_i32, b32, return with_scc(scc, i32(a) > i32(b), u32(i32(a) > i32(b) ? a : b)))
SCALAR(s_max_u32, b32, return with_scc(scc, u32(a) > u32(b), u32(u32(a) > u32(b) ? a : b)))
SCALAR(s_cselect_b32, b32, return scc ? a : b)
SCALAR(s_cselect_b64, b64, return scc ? a : b)
SCALAR(s_and_b32, b32, return nonzero32(scc, a & b))
SCALAR(s_and_b64, b64, return nonzero64(scc, a & b))
SCALAR(s_or_b32, b32, return nonzero32(scc, a | b))
SCALAR(s_or_b64, b64, return nonzero64(scc, a | b))
SCALAR(s_xor_b32, b32, return nonzero32(scc, a ^ b))
SCALAR(s_xor_b64, b64, return nonzero64(scc, a ^ b))
SCALAR(s_andn2_b32, b32, return nonzero32(scc, a & ~b))
SCALAR(s_andn2_b64, b64, return nonzero64(scc, a & ~b))
SCALAR(s_orn2_b32, b32, return nonzero32(scc, a | ~b))
SCALAR(s_orn2_b64, b64, return nonzero64(scc, a | ~b))
SCALAR(s_nand_b32, b32, return nonzero32(scc, ~(a & b)))
SCALAR(s_nand_b64, b64, return nonzero64(scc, ~(a & b)))
SCALAR(s_nor_b32, b32, return nonzero32(scc, ~(a | b)))
SCALAR(s_nor_b64, b64, return nonzero64(scc, ~(a | b)))
SCALAR(s_xnor_b32, b32, return nonzero32(scc, ~(a ^ b)))
SCALAR(s_xnor_b64, b64, return nonzero64(scc, ~(a ^ b)))
SCALAR(s_lshl_b32, b32, return nonzero32(scc, u32(a) << (b & 31)))
SCALAR(s_lshl_b64, b64, return nonzero64(scc, a << (b & 63)))
SCALAR(s_lshr_b32, b32, return nonzero32(scc, u32(a) >> (b & 31)))
SCALAR(s_lshr_b64, b64, return nonzero64(scc, a >> (b & 63)))
SCALAR(s_ashr_i32, b32, return nonzero32(scc, uint64_t(i32(a) >> (b & 31))))
SCALAR(s_ashr_i64, i64, return nonzero64(scc, uint64_t(int64_t(a) >> (b & 63))))
SCALAR(s_bfm_b32, b32, return u32(((1ull << (a & 31)) - 1) << (b & 31)))
SCALAR(s_bfm_b64, b64, return ((1ull << (a & 63)) - 1) << (b & 63))
SCALAR(s_mul_i32, b32, return u32(u32(a) * u32(b)))
SCALAR(s_mul_hi_u32, b32, return uint64_t(u32(a)) * u32(b) >> 32)
SCALAR(s_mul_hi_i32, b32, return u32(uint64_t(int64_t(i32(a)) * i32(b) >> 32)))
SCALAR(s_bfe_u32, b32, return nonzero32(scc, field32(a, b, false)))
SCALAR(s_bfe_i32, b32, return nonzero32(scc, field32(a, b, true)))
SCALAR(s_bfe_u64, b64, return nonzero64(scc, field64(a, b, false)))
SCALAR(s_bfe_i64, i64, return nonzero64(scc, field64(a, b, true)))
SCALAR(s_absdiff_i32, b32, const int32_t d = i32(u32(a - b)); return nonzero32(scc, d < 0 ? -uint64_t(d) : uint64_t(d)))
SCALAR(s_lshl1_add_u32, b32, const uint64_t d = (uint64_t(u32(a)) << 1) + u32(b); return with_scc(scc, d >> 32, u32(d)))
SCALAR(s_lshl2_add_u32, b32, const uint64_t d = (uint64_t(u32(a)) << 2) + u32(b); return with_scc(scc, d >> 32, u32(d)))
SCALAR(s_lshl3_add_u32, b32, const uint64_t d = (uint64_t(u32(a)) << 3) + u32(b); return with_scc(scc, d >> 32, u32(d)))
SCALAR(s_lshl4_add_u32, b32, const uint64_t d = (uint64_t(u32(a)) << 4) + u32(b); return with_scc(scc, d >> 32, u32(d)))
SCALAR(s_pack_ll_b32_b16, b32, return (a & 0xFFFF) | (b & 0xFFFF) << 16)
SCALAR(s_pack_lh_b32_b16, b32, return (a & 0xFFFF) | (b & 0xFFFF0000))
SCALAR(s_pack_hh_b32_b16, b32, return (a >> 16 & 0xFFFF) | (b & 0xFFFF0000))

SCALAR(s_mov_b32, b32, return a)
SCALAR(s_mov_b64, b64, return a)
SCALAR(s_not_b32, b32, return nonzero32(scc, ~a))
SCALAR(s_not_b64, b64, return nonzero64(scc, ~a))
SCALAR(s_wqm_b32, b32, return nonzero32(scc, whole_quads(u32(a))))
SCALAR(s_wqm_b64, b64, return nonzero64(scc, whole_quads(a)))
SCALAR(s_quadmask_b32, b32, return nonzero32(scc, quad_mask(u32(a))))
SCALAR(s_quadmask_b64, b64, return nonzero64(scc, quad_mask(a)))
SCALAR(s_brev_b32, b32, return reverse_bits(a, 32))
SCALAR(s_brev_b64, b64, return reverse_bits(a, 64))
SCALAR(s_bcnt0_i32_b32, b32, return nonzero32(scc, 32 - __builtin_popcount(u32(a))))
SCALAR(s_bcnt0_i32_b64, b64, return nonzero32(scc, 64 - __builtin_popcountll(a)))
SCALAR(s_bcnt1_i32_b32, b32, return nonzero32(scc, __builtin_popcount(u32(a))))
SCALAR(s_bcnt1_i32_b64, b64, return nonzero32(scc, __builtin_popcountll(a)))
SCALAR(s_ff0_i32_b32, b32, return first_one(u32(~a)))
SCALAR(s_ff0_i32_b64, b64, return first_one(~a))
SCALAR(s_ff1_i32_b32, b32, return first_one(u32(a)))
SCALAR(s_ff1_i32_b64, b64, return first_one(a))
SCALAR(s_flbit_i32_b32, b32, return leading_zeros(u32(a), 32))
SCALAR(s_flbit_i32_b64, b64, return leading_zeros(a, 64))
SCALAR(s_flbit_i32, b32, return leading_sign_bits(i32(a), 32))
SCALAR(s_flbit_i32_i64, b64, return leading_sign_bits(int64_t(a), 64))
SCALAR(s_sext_i32_i8, b32, return u32(uint64_t(int64_t(int8_t(a)))))
SCALAR(s_sext_i32_i16, b32, return u32(uint64_t(int64_t(int16_t(a)))))
SCALAR(s_abs_i32, b32, return nonzero32(scc, i32(a) < 0 ? -a : a))
SCALAR(s_bitreplicate_b64_b32, b32, return replicate_bits(u32(a)))

SCALAR(s_cmp_eq_i32, b32, return scc = u32(a) == u32(b))
SCALAR(s_cmp_lg_i32, b32, return scc = u32(a) != u32(b))
SCALAR(s_cmp_gt_i32, b32, return scc = i32(a) > i32(b))
SCALAR(s_cmp_ge_i32, b32, return scc = i32(a) >= i32(b))
SCALAR(s_cmp_lt_i32, b32, return scc = i32(a) < i32(b))
SCALAR(s_cmp_le_i32, b32, return scc = i32(a) <= i32(b))
SCALAR(s_cmp_eq_u32, b32, return scc = u32(a) == u32(b))
SCALAR(s_cmp_lg_u32, b32, return scc = u32(a) != u32(b))
SCALAR(s_cmp_gt_u32, b32, return scc = u32(a) > u32(b))
SCALAR(s_cmp_ge_u32, b32, return scc = u32(a) >= u32(b))
SCALAR(s_cmp_lt_u32, b32, return scc = u32(a) < u32(b))
SCALAR(s_cmp_le_u32, b32, return scc = u32(a) <= u32(b))
SCALAR(s_cmp_eq_u64, b64, return scc = a == b)
SCALAR(s_cmp_lg_u64, b64, return scc = a != b)
SCALAR(s_bitcmp0_b32, b32, return scc = !(a >> (b & 31) & 1))
SCALAR(s_bitcmp1_b32, b32, return scc = a >> (b & 31) & 1)
SCALAR(s_bitcmp0_b64, b64, return scc = !(a >> (b & 63) & 1))
SCALAR(s_bitcmp1_b64, b64, return scc = a >> (b & 63) & 1)

// ---- Instructions that touch more than their operands ----

template <Handler handler, ConstantType type>
void bind_to(Instruction& inst) {
  for (Operand& operand : inst.src) resolve_constant(operand, type, inst.literal);
  inst.handler = handler;
}

// STATE(name, type of its constants) { body with `wave` and `inst` }
#define STATE(name, type)                                                          \
  void name##_run(Wave& wave, const Instruction& inst);                            \
  const Semantics name##_semantics(Op::name, bind_to<name##_run, ConstantType::type>); \
  void name##_run([[maybe_unused]] Wave& wave, [[maybe_unused]] const Instruction& inst)

STATE(s_cmov_b32, b32) {
  if (wave.scc) wave.write_scalar(inst.dst, wave.read_scalar(inst.src[0]));
}
STATE(s_cmov_b64, b64) {
  if (wave.scc) wave.write_scalar(inst.dst, wave.read_scalar(inst.src[0]));
}

void set_bit(Wave& wave, const Instruction& inst, bool value) {
  const int bits = 32 * inst.dst.dwords;
  const uint64_t mask = 1ull << (wave.read_scalar(inst.src[0]) & (bits - 1));
  const uint64_t old = wave.read_scalar(inst.dst);
  wave.write_scalar(inst.dst, value ? old | mask : old & ~mask);
}
STATE(s_bitset0_b32, b32) { set_bit(wave, inst, false); }
STATE(s_bitset0_b64, b32) { set_bit(wave, inst, false); }
STATE(s_bitset1_b32, b32) { set_bit(wave, inst, true); }
STATE(s_bitset1_b64, b32) { set_bit(wave, inst, true); }

// D = EXEC; EXEC = f(S0, EXEC); SCC = EXEC != 0
template <class F>
void save_exec(Wave& wave, const Instruction& inst, F f) {
  const uint64_t exec = wave.exec(), source = wave.read_scalar(inst.src[0]);
  wave.write_scalar(inst.dst, exec);
  wave.set_exec(f(source, exec));
  wave.scc = wave.exec() != 0;
}
#define SAVE_EXEC(name, expression) \
  STATE(name, b64) { save_exec(wave, inst, [](uint64_t s, uint64_t exec) { return expression; }); }
SAVE_EXEC(s_and_saveexec_b64, s & exec)
SAVE_EXEC(s_or_saveexec_b64, s | exec)
SAVE_EXEC(s_xor_saveexec_b64, s ^ exec)
SAVE_EXEC(s_andn2_saveexec_b64, s & ~exec)
SAVE_EXEC(s_orn2_saveexec_b64, s | ~exec)
SAVE_EXEC(s_nand_saveexec_b64, ~(s & exec))
SAVE_EXEC(s_nor_saveexec_b64, ~(s | exec))
SAVE_EXEC(s_xnor_saveexec_b64, ~(s ^ exec))
SAVE_EXEC(s_andn1_saveexec_b64, ~s & exec)
SAVE_EXEC(s_orn1_saveexec_b64, ~s | exec)

STATE(s_andn1_wrexec_b64, b64) {
  wave.set_exec(~wave.read_scalar(inst.src[0]) & wave.exec());
  wave.write_scalar(inst.dst, wave.exec());
  wave.scc = wave.exec() != 0;
}
STATE(s_andn2_wrexec_b64, b64) {
  wave.set_exec(wave.read_scalar(inst.src[0]) & ~wave.exec());
  wave.write_scalar(inst.dst, wave.exec());
  wave.scc = wave.exec() != 0;
}

// Relative moves: M0 is added to the number of the source or destination SGPR.
void move_relative(Wave& wave, const Instruction& inst, bool relative_source) {
  Operand source = inst.src[0], target = inst.dst;
  (relative_source ? source : target).index += uint16_t(wave.m0() & 127);
  if (source.index + source.dwords > 128 || target.index + target.dwords > 128)
    return wave.fail(Outcome::Status::illegal_instruction, "relative move beyond the last SGPR");
  wave.write_scalar(target, wave.read_scalar(source));
}
STATE(s_movrels_b32, b32) { move_relative(wave, inst, true); }
STATE(s_movrels_b64, b64) { move_relative(wave, inst, true); }
STATE(s_movreld_b32, b32) { move_relative(wave, inst, false); }
STATE(s_movreld_b64, b64) { move_relative(wave, inst, false); }

STATE(s_getpc_b64, b64) { wave.write_scalar(inst.dst, wave.address_of(wave.pc)); }
STATE(s_setpc_b64, b64) { wave.jump(wave.read_scalar(inst.src[0])); }
STATE(s_swappc_b64, b64) {
  const uint64_t target = wave.read_scalar(inst.src[0]);
  wave.write_scalar(inst.dst, wave.address_of(wave.pc));
  wave.jump(target);
}
STATE(s_call_b64, b64) {
  wave.write_scalar(inst.dst, wave.address_of(wave.pc));
  wave.jump(wave.address_of(uint64_t(int64_t(inst.imm))));
}

// ---- SOPK ----

uint64_t signed_imm(const Instruction& inst) { return uint32_t(inst.imm); }
uint32_t unsigned_imm(const Instruction& inst) { return uint16_t(inst.imm); }

STATE(s_movk_i32, b32) { wave.write_scalar(inst.dst, signed_imm(inst)); }
STATE(s_cmovk_i32, b32) {
  if (wave.scc) wave.write_scalar(inst.dst, signed_imm(inst));
}
STATE(s_addk_i32, b32) {
  const int64_t sum = int64_t(i32(wave.read_scalar(inst.dst))) + inst.imm;
  wave.scc = !fits_i32(sum);
  wave.write_scalar(inst.dst, uint64_t(sum));
}
STATE(s_mulk_i32, b32) { wave.write_scalar(inst.dst, u32(wave.read_scalar(inst.dst)) * uint32_t(inst.imm)); }

#define COMPARE_IMMEDIATE(condition, operation)                                                                  \
  STATE(s_cmpk_##condition##_i32, b32) { wave.scc = i32(wave.read_scalar(inst.dst)) operation inst.imm; }        \
  STATE(s_cmpk_##condition##_u32, b32) { wave.scc = u32(wave.read_scalar(inst.dst)) operation unsigned_imm(inst); }
COMPARE_IMMEDIATE(eq, ==)
COMPARE_IMMEDIATE(lg, !=)
COMPARE_IMMEDIATE(gt, >)
COMPARE_IMMEDIATE(ge, >=)
COMPARE_IMMEDIATE(lt, <)
COMPARE_IMMEDIATE(le, <=)

// Hardware registers (CDNA3 ISA, S_GETREG_B32): the field is id[5:0], offset[10:6], size-1[15:11].
enum HardwareRegister { hw_mode = 1, hw_status = 2, hw_trapsts = 3, hw_hw_id = 4, hw_lds_alloc = 6, hw_xcc_id = 20 };
constexpr uint32_t xcd_count = 8, cus_per_xcd = 38;

uint32_t read_hardware_register(const Wave& wave, uint32_t id) {
  const uint32_t workgroup = wave.group->flat_id;
  switch (id) {
    case hw_mode: return wave.mode.bits;
    case hw_status: return uint32_t(wave.scc) | uint32_t(wave.exec() == 0) << 9 | uint32_t(wave.vcc() == 0) << 10;
    case hw_trapsts: return wave.trap_status;
    case hw_hw_id: return (wave.index_in_group & 3) << 4 | (workgroup / xcd_count % cus_per_xcd & 15) << 8;
    case hw_lds_alloc: return (wave.group->lds_bytes + 511) / 512 << 12;
    case hw_xcc_id: return workgroup % xcd_count;  // workgroups go round-robin over the XCDs
    default: return 0;
  }
}

struct RegisterField {
  uint32_t id, offset, mask;
  explicit RegisterField(int32_t imm)
      : id(imm & 63), offset(imm >> 6 & 31), mask(uint32_t((2ull << (imm >> 11 & 31)) - 1)) {}
};

void write_hardware_register(Wave& wave, int32_t imm, uint32_t value) {
  const RegisterField target(imm);
  uint32_t* state = target.id == hw_mode ? &wave.mode.bits : target.id == hw_trapsts ? &wave.trap_status : nullptr;
  if (state == nullptr) return;
  const uint32_t mask = target.mask << target.offset;
  *state = (*state & ~mask) | (value << target.offset & mask);
  apply_mode(wave.mode);
}

STATE(s_getreg_b32, b32) {
  const RegisterField source(inst.imm);
  wave.write_scalar(inst.dst, read_hardware_register(wave, source.id) >> source.offset & source.mask);
}
STATE(s_setreg_b32, b32) { write_hardware_register(wave, inst.imm, u32(wave.read_scalar(inst.dst))); }
STATE(s_setreg_imm32_b32, b32) { write_hardware_register(wave, inst.imm, inst.literal); }

// ---- SOPP ----

STATE(s_nop, b32) {}
STATE(s_waitcnt, b32) {}  // memory operations complete at once
// A wave sleeps while it waits for another one, so its turn ends.
STATE(s_sleep, b32) {
  wave.turn_end = wave.instructions;
  wave.sleeps = true;
}
STATE(s_wakeup, b32) {}
STATE(s_setprio, b32) {}
STATE(s_icache_inv, b32) {}
STATE(s_ttracedata, b32) {}
STATE(s_incperflevel, b32) {}
STATE(s_decperflevel, b32) {}
STATE(s_sendmsg, b32) {
  constexpr int interrupt = 1;  // CDNA3 ISA, "S_SENDMSG Messages"
  if ((inst.imm & 15) != interrupt || wave.host == nullptr) return;
  const std::string mistake = wave.host->answer_interrupt();
  if (!mistake.empty()) wave.fail(Outcome::Status::trap, mistake);
}
STATE(s_endpgm, b32) { wave.state = Wave::State::ended; }
STATE(s_endpgm_saved, b32) { wave.state = Wave::State::ended; }
STATE(s_setkill, b32) {
  if (inst.imm & 1) wave.state = Wave::State::ended;
}
// Only a debugger could resume the wave.
void halt(Wave& wave) { wave.fail(Outcome::Status::deadlock, "the wave halts for ever"); }
STATE(s_sethalt, b32) {
  if (inst.imm & 1) halt(wave);
}
STATE(s_sendmsghalt, b32) { halt(wave); }
STATE(s_barrier, b32) { wave.state = Wave::State::at_barrier; }
STATE(s_trap, b32) {
  constexpr int debug_trap = 3;  // LLVM's llvm.debugtrap: without a debugger the program goes on
  if ((inst.imm & 0xFF) == debug_trap) return;
  wave.fail(Outcome::Status::trap, "the kernel executed s_trap " + std::to_string(inst.imm & 0xFF));
}

// ---- Modes of vector instructions, which the workgroup runner's loop applies: VSKIP and GPR indexing ----

STATE(s_setvskip, b32) {
  const uint32_t bit = u32(wave.read_scalar(inst.src[0])) >> (wave.read_scalar(inst.src[1]) & 31) & 1;
  wave.mode.bits = (wave.mode.bits & ~Mode::skips_vector) | (bit ? Mode::skips_vector : 0);
}

STATE(s_set_gpr_idx_on, b32) {
  wave.mode.bits |= Mode::indexes_registers;
  const uint32_t fields = inst.word[0] >> 8 & 15;
  wave.sgpr[sgpr_m0] = (wave.m0() & 0xFFFF0F00) | (u32(wave.read_scalar(inst.src[0])) & 0xFF) | fields << 12;
}
STATE(s_set_gpr_idx_off, b32) { wave.mode.bits &= ~Mode::indexes_registers; }
STATE(s_set_gpr_idx_mode, b32) { wave.sgpr[sgpr_m0] = (wave.m0() & 0xFFFF0FFF) | (inst.imm & 15u) << 12; }
STATE(s_set_gpr_idx_idx, b32) {
  wave.sgpr[sgpr_m0] = (wave.m0() & 0xFFFFFF00) | (u32(wave.read_scalar(inst.src[0])) & 0xFF);
}

#define BRANCH(name, condition) \
  STATE(name, b32) {            \
    if (condition) wave.jump(wave.address_of(uint64_t(int64_t(inst.imm)))); \
  }
BRANCH(s_branch, true)
BRANCH(s_cbranch_scc0, !wave.scc)
BRANCH(s_cbranch_scc1, wave.scc)
BRANCH(s_cbranch_vccz, wave.vcc() == 0)
BRANCH(s_cbranch_vccnz, wave.vcc() != 0)
BRANCH(s_cbranch_execz, wave.exec() == 0)
BRANCH(s_cbranch_execnz, wave.exec() != 0)

// ---- Forks run both paths of a branch one after the other. MODE.CSP counts the SGPR quads from s0 on that hold EXEC
// and address of the paths still to run. ----

constexpr int csp_shift = 29;
uint32_t csp(const Wave& wave) { return wave.mode.bits >> csp_shift; }
void set_csp(Wave& wave, uint32_t value) {
  wave.mode.bits = (wave.mode.bits & ~(7u << csp_shift)) | value << csp_shift;
}

void fork(Wave& wave, uint64_t condition, uint64_t target) {
  const uint64_t pass = condition & wave.exec(), fail = ~condition & wave.exec(), next = wave.address_of(wave.pc);
  if (pass == wave.exec()) return wave.jump(target);
  if (fail == wave.exec()) return;
  const bool fewer_fail = __builtin_popcountll(fail) < __builtin_popcountll(pass);
  const int quad = int(csp(wave)) * 4;
  wave.set_pair(quad, fewer_fail ? pass : fail);
  wave.set_pair(quad + 2, fewer_fail ? target : next);
  set_csp(wave, csp(wave) + 1);
  wave.set_exec(fewer_fail ? fail : pass);
  if (!fewer_fail) wave.jump(target);
}
STATE(s_cbranch_g_fork, b64) { fork(wave, wave.read_scalar(inst.src[0]), wave.read_scalar(inst.src[1])); }
STATE(s_cbranch_i_fork, b64) {
  fork(wave, wave.read_scalar(inst.dst), wave.address_of(uint64_t(int64_t(inst.imm))));
}
STATE(s_cbranch_join, b32) {
  if (csp(wave) == u32(wave.read_scalar(inst.src[0]))) return;
  set_csp(wave, csp(wave) - 1);
  const int quad = int(csp(wave)) * 4;
  wave.set_exec(wave.pair(quad));
  wave.jump(wave.pair(quad + 2));
}

}  // namespace
}  // namespace mi300x

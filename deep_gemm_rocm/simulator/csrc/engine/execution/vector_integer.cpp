// Integer vector instructions (CDNA3 ISA, "Vector ALU operations").

#include <algorithm>
#include <limits>

#include "lanes.h"

namespace mi300x {
namespace {

uint32_t u24(uint32_t value) { return value & 0xFFFFFF; }
int32_t i24(int32_t value) { return int32_t(uint32_t(value) << 8) >> 8; }

template <class Int>
Int median(Int a, Int b, Int c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }

// Results of additions saturate where the instruction is clamped.
template <class Int, class Wide>
Int saturated(Wide value) {
  return Int(std::clamp<Wide>(value, std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max()));
}

// Clamping instructions have two lane functions; which of them runs is known when the instruction is decoded.
template <auto plain, auto clamping, HalfResult half>
void bind_clampable(Instruction& inst) {
  inst.vop.clamp ? bind_lanes<clamping, half>(inst) : bind_lanes<plain, half>(inst);
}
#define CLAMPABLE(name, half, T, Wide, parameters, expression)                             \
  inline T name##_lane parameters { return T(expression); }                                \
  inline T name##_clamped parameters { return saturated<T, Wide>(expression); }            \
  const Semantics name##_semantics(Op::name, bind_clampable<name##_lane, name##_clamped, HalfResult::half>);

CLAMPABLE(v_add_u32, clears_upper, uint32_t, int64_t, (uint32_t a, uint32_t b), int64_t(a) + b)
CLAMPABLE(v_sub_u32, clears_upper, uint32_t, int64_t, (uint32_t a, uint32_t b), int64_t(a) - b)
CLAMPABLE(v_subrev_u32, clears_upper, uint32_t, int64_t, (uint32_t a, uint32_t b), int64_t(b) - a)
CLAMPABLE(v_add_i32, clears_upper, int32_t, int64_t, (int32_t a, int32_t b), int64_t(a) + b)
CLAMPABLE(v_sub_i32, clears_upper, int32_t, int64_t, (int32_t a, int32_t b), int64_t(a) - b)
CLAMPABLE(v_add_u16, clears_upper, uint16_t, int32_t, (uint16_t a, uint16_t b), a + b)
CLAMPABLE(v_sub_u16, clears_upper, uint16_t, int32_t, (uint16_t a, uint16_t b), a - b)
CLAMPABLE(v_subrev_u16, clears_upper, uint16_t, int32_t, (uint16_t a, uint16_t b), b - a)
CLAMPABLE(v_add_i16, keeps_other, int16_t, int32_t, (int16_t a, int16_t b), a + b)
CLAMPABLE(v_sub_i16, keeps_other, int16_t, int32_t, (int16_t a, int16_t b), a - b)
CLAMPABLE(v_mad_u16, keeps_other, uint16_t, int64_t, (uint16_t a, uint16_t b, uint16_t c), int64_t(a) * b + c)
CLAMPABLE(v_mad_i16, keeps_other, int16_t, int64_t, (int16_t a, int16_t b, int16_t c), int64_t(a) * b + c)
CLAMPABLE(v_mad_legacy_u16, clears_upper, uint16_t, int64_t, (uint16_t a, uint16_t b, uint16_t c), int64_t(a) * b + c)
CLAMPABLE(v_mad_legacy_i16, clears_upper, int16_t, int64_t, (int16_t a, int16_t b, int16_t c), int64_t(a) * b + c)
CLAMPABLE(v_mad_u32_u16, clears_upper, uint32_t, int64_t, (uint16_t a, uint16_t b, uint32_t c), int64_t(a) * b + c)
CLAMPABLE(v_mad_i32_i16, clears_upper, int32_t, int64_t, (int16_t a, int16_t b, int32_t c), int64_t(a) * b + c)
CLAMPABLE(v_mad_u32_u24, clears_upper, uint32_t, int64_t, (uint32_t a, uint32_t b, uint32_t c),
          int64_t(u24(a)) * u24(b) + c)
CLAMPABLE(v_mad_i32_i24, clears_upper, int32_t, int64_t, (int32_t a, int32_t b, int32_t c),
          int64_t(i24(a)) * i24(b) + c)

VECTOR(v_mul_lo_u16, uint16_t, (uint16_t a, uint16_t b), return uint16_t(uint32_t(a) * b))
VECTOR(v_mul_lo_u32, uint32_t, (uint32_t a, uint32_t b), return a * b)
VECTOR(v_mul_hi_u32, uint32_t, (uint32_t a, uint32_t b), return uint32_t(uint64_t(a) * b >> 32))
VECTOR(v_mul_hi_i32, int32_t, (int32_t a, int32_t b), return int32_t(int64_t(a) * b >> 32))
VECTOR(v_mul_u32_u24, uint32_t, (uint32_t a, uint32_t b), return u24(a) * u24(b))
VECTOR(v_mul_hi_u32_u24, uint32_t, (uint32_t a, uint32_t b), return uint32_t(uint64_t(u24(a)) * u24(b) >> 32))
VECTOR(v_mul_i32_i24, int32_t, (int32_t a, int32_t b), return int32_t(int64_t(i24(a)) * i24(b)))
VECTOR(v_mul_hi_i32_i24, int32_t, (int32_t a, int32_t b), return int32_t(int64_t(i24(a)) * i24(b) >> 32))

VECTOR(v_min_i32, int32_t, (int32_t a, int32_t b), return std::min(a, b))
VECTOR(v_max_i32, int32_t, (int32_t a, int32_t b), return std::max(a, b))
VECTOR(v_min_u32, uint32_t, (uint32_t a, uint32_t b), return std::min(a, b))
VECTOR(v_max_u32, uint32_t, (uint32_t a, uint32_t b), return std::max(a, b))
VECTOR(v_min_i16, int16_t, (int16_t a, int16_t b), return std::min(a, b))
VECTOR(v_max_i16, int16_t, (int16_t a, int16_t b), return std::max(a, b))
VECTOR(v_min_u16, uint16_t, (uint16_t a, uint16_t b), return std::min(a, b))
VECTOR(v_max_u16, uint16_t, (uint16_t a, uint16_t b), return std::max(a, b))
VECTOR(v_min3_i32, int32_t, (int32_t a, int32_t b, int32_t c), return std::min(std::min(a, b), c))
VECTOR(v_max3_i32, int32_t, (int32_t a, int32_t b, int32_t c), return std::max(std::max(a, b), c))
VECTOR(v_min3_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return std::min(std::min(a, b), c))
VECTOR(v_max3_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return std::max(std::max(a, b), c))
VECTOR(v_med3_i32, int32_t, (int32_t a, int32_t b, int32_t c), return median(a, b, c))
VECTOR(v_med3_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return median(a, b, c))
VECTOR_OP_SEL(v_min3_i16, int16_t, (int16_t a, int16_t b, int16_t c), return std::min(std::min(a, b), c))
VECTOR_OP_SEL(v_max3_i16, int16_t, (int16_t a, int16_t b, int16_t c), return std::max(std::max(a, b), c))
VECTOR_OP_SEL(v_min3_u16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), return std::min(std::min(a, b), c))
VECTOR_OP_SEL(v_max3_u16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), return std::max(std::max(a, b), c))
VECTOR_OP_SEL(v_med3_i16, int16_t, (int16_t a, int16_t b, int16_t c), return median(a, b, c))
VECTOR_OP_SEL(v_med3_u16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), return median(a, b, c))

VECTOR(v_and_b32, uint32_t, (uint32_t a, uint32_t b), return a & b)
VECTOR(v_or_b32, uint32_t, (uint32_t a, uint32_t b), return a | b)
VECTOR(v_xor_b32, uint32_t, (uint32_t a, uint32_t b), return a ^ b)
VECTOR(v_xnor_b32, uint32_t, (uint32_t a, uint32_t b), return ~(a ^ b))
VECTOR(v_not_b32, uint32_t, (uint32_t a), return ~a)
VECTOR(v_and_or_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a & b) | c)
VECTOR(v_or3_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return a | b | c)
VECTOR(v_bfi_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a & b) | (~a & c))
VECTOR(v_bfm_b32, uint32_t, (uint32_t a, uint32_t b), return ((1u << (a & 31)) - 1) << (b & 31))
VECTOR(v_bfe_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
       return uint32_t(uint64_t(a >> (b & 31)) & ((1ull << (c & 31)) - 1)))
VECTOR(v_bfe_i32, int32_t, (int32_t a, uint32_t b, uint32_t c), const int width = c & 31, offset = b & 31;
       const int used = std::min(width, 32 - offset); if (width == 0) return 0;
       return int32_t(uint32_t(a >> offset) << (32 - used)) >> (32 - used))

VECTOR(v_lshlrev_b32, uint32_t, (uint32_t a, uint32_t b), return b << (a & 31))
VECTOR(v_lshrrev_b32, uint32_t, (uint32_t a, uint32_t b), return b >> (a & 31))
VECTOR(v_ashrrev_i32, int32_t, (uint32_t a, int32_t b), return b >> (a & 31))
VECTOR(v_lshlrev_b16, uint16_t, (uint16_t a, uint16_t b), return uint16_t(b << (a & 15)))
VECTOR(v_lshrrev_b16, uint16_t, (uint16_t a, uint16_t b), return uint16_t(b >> (a & 15)))
VECTOR(v_ashrrev_i16, int16_t, (uint16_t a, int16_t b), return int16_t(b >> (a & 15)))
VECTOR(v_lshlrev_b64, uint64_t, (uint32_t a, uint64_t b), return b << (a & 63))
VECTOR(v_lshrrev_b64, uint64_t, (uint32_t a, uint64_t b), return b >> (a & 63))
VECTOR(v_ashrrev_i64, int64_t, (uint32_t a, int64_t b), return b >> (a & 63))
VECTOR(v_lshl_add_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a << (b & 31)) + c)
VECTOR(v_add_lshl_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a + b) << (c & 31))
VECTOR(v_lshl_or_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a << (b & 31)) | c)
// Shifts by more than 4 aren't supported: then nothing is shifted.
VECTOR(v_lshl_add_u64, uint64_t, (uint64_t a, uint32_t b, uint64_t c), return (a << ((b & 7) <= 4 ? b & 7 : 0)) + c)
VECTOR(v_add3_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return a + b + c)
VECTOR(v_xad_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a ^ b) + c)
VECTOR(v_alignbit_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
       return uint32_t((uint64_t(a) << 32 | b) >> (c & 31)))
VECTOR(v_alignbyte_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
       return uint32_t((uint64_t(a) << 32 | b) >> (8 * (c & 3))))

VECTOR(v_bcnt_u32_b32, uint32_t, (uint32_t a, uint32_t b), return uint32_t(__builtin_popcount(a)) + b)
VECTOR(v_bfrev_b32, uint32_t, (uint32_t a), uint32_t result = 0;
       for (int i = 0; i < 32; ++i) result |= (a >> i & 1) << (31 - i); return result)
VECTOR(v_ffbh_u32, uint32_t, (uint32_t a), return a ? uint32_t(__builtin_clz(a)) : ~0u)
VECTOR(v_ffbl_b32, uint32_t, (uint32_t a), return a ? uint32_t(__builtin_ctz(a)) : ~0u)
VECTOR(v_ffbh_i32, uint32_t, (int32_t a), return a == 0 || a == -1 ? ~0u : uint32_t(__builtin_clz(a < 0 ? ~a : a)))

VECTOR(v_cvt_pk_u16_u32, uint32_t, (uint32_t a, uint32_t b), return std::min(a, 0xFFFFu) | std::min(b, 0xFFFFu) << 16)
VECTOR(v_cvt_pk_i16_i32, uint32_t, (int32_t a, int32_t b),
       return uint16_t(saturated<int16_t>(a)) | uint32_t(uint16_t(saturated<int16_t>(b))) << 16)
VECTOR(v_sat_pk_u8_i16, uint16_t, (uint32_t a),
       return uint16_t(saturated<uint8_t>(int16_t(a)) | saturated<uint8_t>(int16_t(a >> 16)) << 8))

// ---- Bytes ----

uint32_t byte_at(uint64_t value, int index) { return uint32_t(value >> (8 * index) & 0xFF); }

uint32_t permuted_byte(uint64_t bytes, uint32_t selector) {
  if (selector < 8) return byte_at(bytes, int(selector));
  if (selector < 12) return bytes >> (16 * (selector - 8) + 15) & 1 ? 0xFF : 0;
  return selector == 12 ? 0 : 0xFF;
}
VECTOR(v_perm_b32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), const uint64_t bytes = uint64_t(a) << 32 | b;
       uint32_t result = 0; for (int i = 0; i < 4; ++i) result |= permuted_byte(bytes, byte_at(c, i)) << (8 * i);
       return result)

VECTOR(v_lerp_u8, uint32_t, (uint32_t a, uint32_t b, uint32_t c), uint32_t result = 0;
       for (int i = 0; i < 4; ++i) result |= (byte_at(a, i) + byte_at(b, i) + (byte_at(c, i) & 1)) >> 1 << (8 * i);
       return result)

uint32_t difference(uint32_t a, uint32_t b) { return a > b ? a - b : b - a; }
uint32_t sum_of_differences(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += difference(byte_at(a, i), byte_at(b, i));
  return sum;
}
// Bytes of the reference that are zero don't count.
uint32_t sum_of_masked_differences(uint32_t a, uint32_t reference) {
  uint32_t sum = 0;
  for (int i = 0; i < 4; ++i)
    if (byte_at(reference, i) != 0) sum += difference(byte_at(a, i), byte_at(reference, i));
  return sum;
}
VECTOR(v_sad_u8, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return sum_of_differences(a, b) + c)
VECTOR(v_sad_hi_u8, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (sum_of_differences(a, b) << 16) + c)
VECTOR(v_sad_u16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
       return difference(a & 0xFFFF, b & 0xFFFF) + difference(a >> 16, b >> 16) + c)
VECTOR(v_sad_u32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return difference(a, b) + c)
VECTOR(v_msad_u8, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return sum_of_masked_differences(a, b) + c)

template <uint32_t (*sum)(uint32_t, uint32_t)>
uint64_t four_sums(uint64_t bytes, uint32_t reference, uint64_t addend) {
  uint64_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t value = sum(uint32_t(bytes >> (8 * i)), reference) + uint32_t(addend >> (16 * i) & 0xFFFF);
    result |= uint64_t(value & 0xFFFF) << (16 * i);
  }
  return result;
}
VECTOR(v_qsad_pk_u16_u8, uint64_t, (uint64_t a, uint32_t b, uint64_t c), return four_sums<sum_of_differences>(a, b, c))
VECTOR(v_mqsad_pk_u16_u8, uint64_t, (uint64_t a, uint32_t b, uint64_t c),
       return four_sums<sum_of_masked_differences>(a, b, c))

VECTOR_STATE(v_mqsad_u32_u8, b64) {
  alignas(64) Lanes<uint64_t> buffer_a;
  alignas(64) Lanes<uint32_t> buffer_b, results[4];
  const uint64_t* a = load_source(wave, inst.src[0], false, buffer_a);
  const uint32_t* b = load_source(wave, inst.src[1], false, buffer_b);
  const bool from_registers = inst.src[2].kind == Operand::Kind::vector;
  for (int i = 0; i < 4; ++i)
    for (int l = 0; l < lanes; ++l) {
      const uint32_t addend = from_registers ? wave.row(inst.src[2].index + i)[l] : 0;
      results[i][l] = sum_of_masked_differences(uint32_t(a[l] >> (8 * i)), b[l]) + addend;
    }
  for (int i = 0; i < 4; ++i) store_row(wave.row(inst.dst.index + i), results[i], wave.exec());
}

// ---- Carries: the mask comes and goes in VCC (VOP2) or in an SGPR pair (VOP3) ----

struct Sum {
  uint32_t value;
  bool carry;
};
Sum add(uint32_t a, uint32_t b, bool carry) {
  const uint32_t value = a + b + carry;
  return {value, bool((value < a) | ((value == a) & carry))};
}
Sum subtract(uint32_t a, uint32_t b, bool borrow) { return {a - b - borrow, bool((b > a) | ((b == a) & borrow))}; }
Sum subtract_reversed(uint32_t a, uint32_t b, bool borrow) { return subtract(b, a, borrow); }

template <Sum (*f)(uint32_t, uint32_t, bool), bool takes_carry>
void run_carry(Wave& wave, const Instruction& inst) {
  alignas(64) Lanes<uint32_t> buffer_a, buffer_b, results;
  const uint32_t* a = load_source(wave, inst.src[0], false, buffer_a);
  const uint32_t* b = load_source(wave, inst.src[1], false, buffer_b);
  const bool vop3 = inst.family == Family::VOP3;
  const uint64_t carry_in = !takes_carry ? 0 : vop3 ? wave.read_scalar(inst.src[2]) : wave.vcc();
  alignas(64) Lanes<bool> carries;
  for (int l = 0; l < lanes; ++l) {
    const Sum sum = f(a[l], b[l], carry_in >> l & 1);
    results[l] = sum.value;
    carries[l] = sum.carry;
  }
  if (inst.vop.clamp)
    for (int l = 0; l < lanes; ++l) results[l] = carries[l] ? (f == add ? ~0u : 0u) : results[l];
  const uint64_t carry_out = mask_of(carries) & wave.exec();
  vop3 ? wave.write_scalar(inst.sdst, carry_out) : wave.set_vcc(carry_out);
  store_row(wave.row(inst.dst.index), results, wave.exec());
}
#define CARRY(name, f, takes_carry) \
  const Semantics name##_semantics(Op::name, bind_handler<run_carry<f, takes_carry>, ConstantType::b32>);
CARRY(v_add_co_u32, add, false)
CARRY(v_sub_co_u32, subtract, false)
CARRY(v_subrev_co_u32, subtract_reversed, false)
CARRY(v_addc_co_u32, add, true)
CARRY(v_subb_co_u32, subtract, true)
CARRY(v_subbrev_co_u32, subtract_reversed, true)

// 32 x 32 + 64 bits; what goes to the SGPRs is bit 64 of the sum.
template <class Narrow, class Wide>
void run_wide_mad(Wave& wave, const Instruction& inst) {
  alignas(64) Lanes<Narrow> buffer_a, buffer_b;
  alignas(64) Lanes<uint64_t> buffer_c, results;
  const Narrow* a = load_source(wave, inst.src[0], false, buffer_a);
  const Narrow* b = load_source(wave, inst.src[1], false, buffer_b);
  const uint64_t* c = load_source(wave, inst.src[2], false, buffer_c);
  uint64_t carry_out = 0;
  for (int l = 0; l < lanes; ++l) {
    const uint64_t product = uint64_t(Wide(a[l]) * Wide(b[l]));
    results[l] = product + c[l];
    const __int128 sum = std::is_signed_v<Wide> ? __int128(int64_t(product)) + int64_t(c[l]) : __int128(product) + c[l];
    carry_out |= uint64_t(sum >> 64 & 1) << l;
  }
  wave.write_scalar(inst.sdst, carry_out & wave.exec());
  store_result<uint64_t>(wave, inst.dst, results, HalfResult::clears_upper, false);
}
template <class Narrow, class Wide>
void bind_wide_mad(Instruction& inst) {
  resolve_constant(inst.src[0], ConstantType::b32, inst.literal);
  resolve_constant(inst.src[1], ConstantType::b32, inst.literal);
  resolve_constant(inst.src[2], std::is_signed_v<Wide> ? ConstantType::i64 : ConstantType::b64, inst.literal);
  inst.handler = run_wide_mad<Narrow, Wide>;
}
const Semantics mad_u64_u32(Op::v_mad_u64_u32, bind_wide_mad<uint32_t, uint64_t>);
const Semantics mad_i64_i32(Op::v_mad_i64_i32, bind_wide_mad<int32_t, int64_t>);

}  // namespace
}  // namespace mi300x

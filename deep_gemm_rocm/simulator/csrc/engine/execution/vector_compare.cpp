// Vector compares: VOPC and its VOP3 forms. A lane whose EXEC bit is clear gives 0.

#include "half_arithmetic.h"
#include "lanes.h"

namespace mi300x {
namespace {

template <auto f>
void run_compare_and_set_exec(Wave& wave, const Instruction& inst) {
  LaneOperation<f, HalfResult::clears_upper, decltype(f)>::run(wave, inst);
  wave.set_exec(wave.pair(inst.sdst.index));
}
template <auto f>
void bind_compare_and_set_exec(Instruction& inst) {
  bind_lanes<f>(inst);
  inst.handler = run_compare_and_set_exec<f>;
}

// V_CMP writes a mask, V_CMPX writes it to EXEC as well.
#define COMPARE(suffix, parameters, expression)                                                  \
  inline bool cmp_##suffix parameters { return expression; }                                      \
  const Semantics v_cmp_##suffix(Op::v_cmp_##suffix, bind_lanes<cmp_##suffix>);                   \
  const Semantics v_cmpx_##suffix(Op::v_cmpx_##suffix, bind_compare_and_set_exec<cmp_##suffix>);

#define COMPARE_FLOAT(type, T, convert)                                                        \
  COMPARE(f_##type, ([[maybe_unused]] T a, [[maybe_unused]] T b), false)                       \
  COMPARE(lt_##type, (T a, T b), convert(a) < convert(b))                                      \
  COMPARE(eq_##type, (T a, T b), convert(a) == convert(b))                                     \
  COMPARE(le_##type, (T a, T b), convert(a) <= convert(b))                                     \
  COMPARE(gt_##type, (T a, T b), convert(a) > convert(b))                                      \
  COMPARE(lg_##type, (T a, T b), convert(a) < convert(b) || convert(a) > convert(b))           \
  COMPARE(ge_##type, (T a, T b), convert(a) >= convert(b))                                     \
  COMPARE(o_##type, (T a, T b), convert(a) == convert(a) && convert(b) == convert(b))          \
  COMPARE(u_##type, (T a, T b), convert(a) != convert(a) || convert(b) != convert(b))          \
  COMPARE(nge_##type, (T a, T b), !(convert(a) >= convert(b)))                                 \
  COMPARE(nlg_##type, (T a, T b), !(convert(a) < convert(b) || convert(a) > convert(b)))       \
  COMPARE(ngt_##type, (T a, T b), !(convert(a) > convert(b)))                                  \
  COMPARE(nle_##type, (T a, T b), !(convert(a) <= convert(b)))                                 \
  COMPARE(neq_##type, (T a, T b), !(convert(a) == convert(b)))                                 \
  COMPARE(nlt_##type, (T a, T b), !(convert(a) < convert(b)))                                  \
  COMPARE(tru_##type, ([[maybe_unused]] T a, [[maybe_unused]] T b), true)

#define COMPARE_INTEGER(type, T)                                      \
  COMPARE(f_##type, ([[maybe_unused]] T a, [[maybe_unused]] T b), false) \
  COMPARE(lt_##type, (T a, T b), a < b)                               \
  COMPARE(eq_##type, (T a, T b), a == b)                              \
  COMPARE(le_##type, (T a, T b), a <= b)                              \
  COMPARE(gt_##type, (T a, T b), a > b)                               \
  COMPARE(ne_##type, (T a, T b), a != b)                              \
  COMPARE(ge_##type, (T a, T b), a >= b)                              \
  COMPARE(t_##type, ([[maybe_unused]] T a, [[maybe_unused]] T b), true)

COMPARE_FLOAT(f32, float, float)
COMPARE_FLOAT(f64, double, double)
COMPARE_FLOAT(f16, Half, float)
COMPARE_INTEGER(i16, int16_t)
COMPARE_INTEGER(u16, uint16_t)
COMPARE_INTEGER(i32, int32_t)
COMPARE_INTEGER(u32, uint32_t)
COMPARE_INTEGER(i64, int64_t)
COMPARE_INTEGER(u64, uint64_t)

// Bits of the class mask (CDNA3 ISA, V_CMP_CLASS_F32).
template <class Bits, int exponent_bits, int mantissa_bits>
bool in_class(Bits value, uint32_t mask) {
  const bool negative = value >> (exponent_bits + mantissa_bits) & 1;
  const Bits exponent = value >> mantissa_bits & ((Bits(1) << exponent_bits) - 1);
  const Bits mantissa = value & ((Bits(1) << mantissa_bits) - 1);
  const bool special = exponent == (Bits(1) << exponent_bits) - 1;
  if (special && mantissa != 0) return mask >> (mantissa >> (mantissa_bits - 1) & 1) & 1;  // signaling, quiet
  const int distance = special ? 0 : exponent != 0 ? 1 : mantissa != 0 ? 2 : 3;  // infinity, normal, subnormal, zero
  return mask >> (negative ? 2 + distance : 9 - distance) & 1;
}
COMPARE(class_f32, (float a, uint32_t mask), (in_class<uint32_t, 8, 23>(bit_cast<uint32_t>(a), mask)))
COMPARE(class_f64, (double a, uint32_t mask), (in_class<uint64_t, 11, 52>(bit_cast<uint64_t>(a), mask)))
COMPARE(class_f16, (PlainHalf a, uint32_t mask), (in_class<uint32_t, 5, 10>(a.bits, mask)))

}  // namespace
}  // namespace mi300x

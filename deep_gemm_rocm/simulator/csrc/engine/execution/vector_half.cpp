// Vector instructions on f16 (CDNA3 ISA, "Vector ALU operations").

#include <algorithm>

#include "half_arithmetic.h"
#include "lanes.h"

namespace mi300x {
namespace {

VECTOR(v_add_f16, Half, (Half a, Half b), return sum_of(a, b))
VECTOR(v_sub_f16, Half, (Half a, Half b), return difference_of(a, b))
VECTOR(v_subrev_f16, Half, (Half a, Half b), return difference_of(b, a))
VECTOR(v_mul_f16, Half, (Half a, Half b), return product_of(a, b))
VECTOR(v_min_f16, Half, (Half a, Half b), return minimum(a, b))
VECTOR(v_max_f16, Half, (Half a, Half b), return maximum(a, b))
// Clamps the exponent: powers of two beyond the limits give the same half, and within them no product is subnormal in
// f32.
Half scaled_by_power(Half a, int exponent) {
  const int biased = 127 + std::clamp(exponent, -64, 64);
  return Half::from(float(a) * bit_cast<float>(biased << 23));
}
VECTOR(v_ldexp_f16, Half, (Half a, uint16_t exponent), return scaled_by_power(a, int16_t(exponent)))
VECTOR_ACCUMULATE(v_mac_f16, Half, (Half a, Half b, Half d), return unfused(a, b, d))

const Semantics madmk(Op::v_madmk_f16, bind_literal_factor<v_mac_f16_lane>);
const Semantics madak(Op::v_madak_f16, bind_literal_addend<v_mac_f16_lane>);

VECTOR_OP_SEL(v_fma_f16, Half, (Half a, Half b, Half c), return fused(a, b, c))
VECTOR_OP_SEL(v_mad_f16, Half, (Half a, Half b, Half c), return unfused(a, b, c))
VECTOR(v_fma_legacy_f16, Half, (Half a, Half b, Half c), return fused(a, b, c))
VECTOR(v_mad_legacy_f16, Half, (Half a, Half b, Half c), return unfused(a, b, c))
VECTOR_OP_SEL(v_min3_f16, Half, (Half a, Half b, Half c), return minimum(minimum(a, b), c))
VECTOR_OP_SEL(v_max3_f16, Half, (Half a, Half b, Half c), return maximum(maximum(a, b), c))
VECTOR_OP_SEL(v_med3_f16, Half, (Half a, Half b, Half c), return median(a, b, c))
VECTOR_OP_SEL(v_div_fixup_f16, Half, (Half a, Half b, Half c), return division_fixup(a, b, c))
VECTOR(v_div_fixup_legacy_f16, Half, (Half a, Half b, Half c), return division_fixup(a, b, c))
VECTOR(v_pack_b32_f16, uint32_t, (Half a, Half b), return a.bits | uint32_t(b.bits) << 16)

VECTOR(v_rcp_f16, Half, (Half a), return Half::from(1.0f / float(a)))
VECTOR(v_sqrt_f16, Half, (Half a), return Half::from(std::sqrt(float(a))))
VECTOR(v_rsq_f16, Half, (Half a), return Half::from(1.0f / std::sqrt(float(a))))
VECTOR(v_log_f16, Half, (Half a), return Half::from(std::log2(float(a))))
VECTOR(v_exp_f16, Half, (Half a), return Half::from(std::exp2(float(a))))
VECTOR(v_sin_f16, Half, (Half a), return Half::from(float(std::sin(6.283185307179586 * double(float(a))))))
VECTOR(v_cos_f16, Half, (Half a), return Half::from(float(std::cos(6.283185307179586 * double(float(a))))))
const Approximate transcendentals({Op::v_rcp_f16, Op::v_sqrt_f16, Op::v_rsq_f16, Op::v_log_f16, Op::v_exp_f16,
                                   Op::v_sin_f16, Op::v_cos_f16},
                                  "correctly rounded to a bit or so, the chip to 1 ulp: last bits may differ");
VECTOR(v_floor_f16, Half, (Half a), return Half::from(rounded_down(float(a))))
VECTOR(v_ceil_f16, Half, (Half a), return Half::from(rounded_up(float(a))))
VECTOR(v_trunc_f16, Half, (Half a), return Half::from(truncated(float(a))))
VECTOR(v_rndne_f16, Half, (Half a), return Half::from(__builtin_roundevenf(a)))
VECTOR(v_fract_f16, Half, (Half a), const float x = a; return Half::from(std::min(x - rounded_down(x), 0x1.ffcp-1f)))

bool has_exponent(float value) { return value != 0 && std::isfinite(value); }
VECTOR(v_frexp_mant_f16, Half, (Half a), int exponent;
       return has_exponent(a) ? Half::from(std::frexp(float(a), &exponent)) : a)
VECTOR(v_frexp_exp_i16_f16, int16_t, (Half a), return int16_t(has_exponent(a) ? std::ilogb(float(a)) + 1 : 0))

template <class Int>
Int saturating(float value) {
  constexpr float low = std::numeric_limits<Int>::min(), high = std::numeric_limits<Int>::max();
  return value != value ? Int(0) : Int(std::trunc(std::clamp(value, low, high)));
}
VECTOR(v_cvt_f16_u16, Half, (uint16_t a), return Half::from(float(a)))
VECTOR(v_cvt_f16_i16, Half, (int16_t a), return Half::from(float(a)))
VECTOR(v_cvt_u16_f16, uint16_t, (Half a), return saturating<uint16_t>(a))
VECTOR(v_cvt_i16_f16, int16_t, (Half a), return saturating<int16_t>(a))

}  // namespace
}  // namespace mi300x

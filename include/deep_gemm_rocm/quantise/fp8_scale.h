// FP8 values and the scale that they share: from their largest magnitude to the scale, and from values to bytes. Bit for
// bit what deep_gemm_rocm/api/host_casts.py computes with fp32 divisions.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// An fp32 quotient that isn't representable is at least 2^-49 of itself away from where fp32 would round otherwise, for
// both operands have 24 bits. The product with an fp64 reciprocal is nearer than that, so rounding it gives the quotient.
DG_DEVICE float divided(float value, double reciprocal) {
  return static_cast<float>(static_cast<double>(value) * reciprocal);
}

// 1 / value to the last bit or two: two Newton steps after v_rcp_f64, which would make a NaN of an infinity's zero.
DG_DEVICE double reciprocal_of(float value) {
  const double divisor = value;
  const double estimate = __builtin_amdgcn_rcp(divisor);
  double refined = estimate;
#pragma unroll
  for (int step = 0; step < 2; ++step) refined = __builtin_fma(__builtin_fma(-divisor, refined, 1.0), refined, refined);
  return __builtin_isinf(value) ? estimate : refined;
}

// The fp32 number's bits, those of the next power of two unless it is one.
DG_DEVICE unsigned rounded_up_to_power_of_two(unsigned bits) {
  constexpr unsigned kFraction = 0x7FFFFF;
  return (bits + kFraction) & ~kFraction;
}

struct Fp8Range {
  double reciprocal;            // of `largest`
  float largest;                // what the largest magnitude is scaled to
  int has_power_of_two_scales;  // whether scales are rounded up to powers of two

  // `magnitude` is an fp32 number without its sign. The scale is at least the least normal number, so that values of
  // zero aren't divided by zero. A NaN or an infinity stays one.
  DG_DEVICE float scale_of(unsigned magnitude) const {
    const float exact = divided(__builtin_bit_cast(float, magnitude), reciprocal);
    const float scale = exact < __FLT_MIN__ ? __FLT_MIN__ : exact;
    if (!has_power_of_two_scales) return scale;
    const unsigned rounded = rounded_up_to_power_of_two(__builtin_bit_cast(unsigned, scale));
    return __builtin_isnan(scale) ? scale : __builtin_bit_cast(float, rounded);
  }
};

// Quantises values by a scale. Quotients may be a unit in the last place beyond `largest`. That only matters if
// `largest` is halfway between two FP8 numbers, kClamps.
template <bool kClamps>
struct Quantiser {
  float largest;

  DG_DEVICE float quotient(float value, double reciprocal) const {
    const float result = divided(value, reciprocal);
    if constexpr (!kClamps) return result;
    const float number = __builtin_amdgcn_fmed3f(result, -largest, largest);
    return __builtin_isnan(result) ? result : number;  // v_med3_f32 makes NaNs numbers
  }

  template <int kSize>
  DG_DEVICE Vector<uint8_t, kSize> operator()(const float (&values)[kSize], double reciprocal) const {
    float quotients[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) quotients[i] = quotient(values[i], reciprocal);
    return Storage<E4M3>::rounded<kSize>(quotients);
  }

  template <int kSize>
  DG_DEVICE Vector<uint8_t, kSize> operator()(const float (&values)[kSize], const double (&reciprocals)[kSize]) const {
    float quotients[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) quotients[i] = quotient(values[i], reciprocals[i]);
    return Storage<E4M3>::rounded<kSize>(quotients);
  }
};

}  // namespace deep_gemm_rocm

// FP8 values and the scale that they share: from their largest magnitude to the scale, and from values to bytes. Bit
// for bit what deep_gemm_rocm/api/host_casts.py computes with fp32 divisions.
#pragma once

#include "deep_gemm_rocm/arithmetic/reciprocal.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// value / divisor, correctly rounded to fp32, from an fp64 reciprocal. An inexact quotient of two fp32 numbers, which
// have 24 bits each, is at least 2^-49 of itself away from any point where fp32's rounding changes. The error of the
// product with an fp64 reciprocal is smaller, so it rounds to the same number.
DG_DEVICE float divided(float value, double reciprocal) {
  return static_cast<float>(static_cast<double>(value) * reciprocal);
}

// Rounds an fp32 number up to a power of two, both given as bits.
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

// Divides values by a scale. `high` + `low` is the reciprocal of shrink · scale. `shrink` is a power of two if the
// scale is so large that `low` would be subnormal, else 1. Factor is float, or a vector with a factor for each value.
template <class Factor>
struct Divisor {
  Factor shrink, high, low;

  // Quotients with an error of at most one unit in the last place. FP8 rounds them as it does exact fp32 quotients: an
  // error only matters near the midpoint of two FP8 numbers, and there the quotients for all scales were compared, and
  // are on the same side of it.
  template <class Floats>
  DG_DEVICE Floats quotients(const Floats& values) const {
    const Floats shrunk = values * Floats(shrink);
    return __builtin_elementwise_fma(shrunk, Floats(high), shrunk * Floats(low));
  }
};

DG_DEVICE Divisor<float> divisor_of(float scale) {
  constexpr float kLarge = 0x1p64f;
  const float shrink = scale > kLarge ? 1 / kLarge : 1;
  const double reciprocal = reciprocal_of(scale * shrink);
  const auto high = static_cast<float>(reciprocal);
  return {shrink, high, static_cast<float>(reciprocal - static_cast<double>(high))};
}

// Quantises values by a scale. Quotients may exceed `largest` by a unit in the last place. That only matters if
// `largest` is the midpoint of two FP8 numbers; kClamps says so.
template <bool kClamps>
struct Quantiser {
  float largest;

  // Factor is float, for the divisor of all values, or a vector of as many as values.
  template <int kSize, class Factor>
  DG_DEVICE Vector<uint8_t, kSize> operator()(const Vector<float, kSize>& values, const Divisor<Factor>& divisor) const {
    using Floats = Vector<float, kSize>;
    const Floats quotients = divisor.quotients(values);
    float numbers[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) numbers[i] = kClamps ? clamped(quotients[i], largest) : quotients[i];
    return Storage<E4M3>::rounded<kSize>(numbers);
  }
};

}  // namespace deep_gemm_rocm

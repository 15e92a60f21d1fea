// FP8 values and the scale that they share: from their largest magnitude to the scale, and from values to bytes. Bit for
// bit what deep_gemm_rocm/api/host_casts.py computes with fp32 divisions.
#pragma once

#include "deep_gemm_rocm/arithmetic/reciprocal.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// An fp32 quotient that isn't representable is at least 2^-49 of itself away from where fp32 would round otherwise, for
// both operands have 24 bits. The product with an fp64 reciprocal is nearer than that, so rounding it gives the quotient.
DG_DEVICE float divided(float value, double reciprocal) {
  return static_cast<float>(static_cast<double>(value) * reciprocal);
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

// Divides values by a scale: holds the reciprocal of shrink · scale as the sum of two fp32 numbers. `shrink` is a power of
// two for scales so large that the second number would be subnormal, else 1. Factor is float, or a vector of one for
// each value.
template <class Factor>
struct Divisor {
  Factor shrink, high, low;

  // To a unit in the last place or nearer, so that FP8 rounds them as it does fp32 quotients. An error only counts beside
  // halves between FP8 numbers, and there all scales' quotients were compared: they are on the same side.
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

// Quantises values by a scale. Quotients may be a unit in the last place beyond `largest`. That only matters if
// `largest` is halfway between two FP8 numbers, kClamps.
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

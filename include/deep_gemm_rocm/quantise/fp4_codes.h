// FP4 (e2m1) and its scales, bit for bit what deep_gemm_rocm/api/host_casts.py computes.
#pragma once

#include "deep_gemm_rocm/quantise/fp8_scale.h"

namespace deep_gemm_rocm {

constexpr float kLargestFp4 = 6;

// The scale of values whose largest magnitude this is: an fp32 number without its sign. A NaN or an infinity stays one,
// or becomes the largest power of two.
DG_DEVICE float fp4_scale(unsigned magnitude, bool is_power_of_two) {
  constexpr unsigned kLeast = __builtin_bit_cast(unsigned, 1e-4f);
  constexpr unsigned kLargestPower = 254u << 23;
  const float exact = divided(__builtin_bit_cast(float, max(magnitude, kLeast)), 1.0 / kLargestFp4);
  if (!is_power_of_two) return exact;
  return __builtin_bit_cast(float, min(rounded_up_to_power_of_two(__builtin_bit_cast(unsigned, exact)), kLargestPower));
}

// The code of the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, the smaller of two. Never -0; 6 for a NaN.
DG_DEVICE unsigned fp4_code(float value) {
  const float magnitude = __builtin_fminf(__builtin_fabsf(value), kLargestFp4);
  // From 1 on, a code is the fp32 number's exponent and first bit of its fraction. Halves are rounded down.
  constexpr int kFirstBit = 22, kCodeOfOne = 2, kBelowHalf = (1 << (kFirstBit - 1)) - 1;
  constexpr int kOne = __builtin_bit_cast(int, 1.0f) - (kCodeOfOne << kFirstBit);
  const int from_one = (__builtin_bit_cast(int, magnitude) + kBelowHalf - kOne) >> kFirstBit;
  const int below_one = (magnitude > 0.25f) + (magnitude > 0.75f);
  const unsigned code = max(from_one, below_one);
  return code | (value < 0 && code != 0 ? 8 : 0);
}

}  // namespace deep_gemm_rocm

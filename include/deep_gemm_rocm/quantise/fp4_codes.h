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

// Rounds to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, ties toward zero, and packs the codes, the
// first one in the low bits. Never gives -0; gives 6 for a NaN. Uses no comparisons, as reading their results costs
// wait states.
template <int kSize>
DG_DEVICE unsigned fp4_codes(const float (&values)[kSize]) {
  static_assert(kSize <= 8);
  unsigned magnitudes = 0, signs = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float value = __builtin_fminf(values[i], kLargestFp4);  // a NaN's sign doesn't count
    const float magnitude = __builtin_fminf(__builtin_fabsf(value), kLargestFp4);
    // From 1 on, a code is the fp32 number's exponent and first bit of its fraction.
    constexpr int kFirstBit = 22, kCodeOfOne = 2, kBelowHalf = (1 << (kFirstBit - 1)) - 1;
    constexpr int kOne = __builtin_bit_cast(int, 1.0f) - (kCodeOfOne << kFirstBit);
    const int from_one = (__builtin_bit_cast(int, magnitude) + kBelowHalf - kOne) >> kFirstBit;
    // Up to 1, it counts halves: the sum's fraction, rounded once. Almost 2 keeps ties below, and nothing else.
    constexpr float kAlmostTwo = 2 - __FLT_EPSILON__, kIntegers = 0x1.8p23f;
    const float sum = __builtin_fmaf(__builtin_fminf(magnitude, 1), kAlmostTwo, kIntegers);
    const int up_to_one = __builtin_bit_cast(int, sum) - __builtin_bit_cast(int, kIntegers);
    magnitudes |= static_cast<unsigned>(max(from_one, up_to_one)) << (4 * i);
    signs |= __builtin_bit_cast(unsigned, value) >> (28 - 4 * i) & 8u << (4 * i);
  }
  const unsigned nonzero = (magnitudes | magnitudes >> 1 | magnitudes >> 2) & 0x11111111;
  return magnitudes | (signs & nonzero << 3);
}

}  // namespace deep_gemm_rocm

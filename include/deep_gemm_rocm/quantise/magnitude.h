// The largest magnitude of many values. Their bits are compared as integers, in which a NaN is larger than all numbers.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

DG_DEVICE unsigned magnitude_of(float value) { return __builtin_bit_cast(unsigned, value) & 0x7FFFFFFF; }

template <int kSize>
DG_DEVICE unsigned largest_magnitude(const Vector<float, kSize>& values) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) largest = max(largest, magnitude_of(values[i]));
  return largest;
}

// With the lane that kControl names; v_max_u32 takes its operand by DPP, since 0 is the least magnitude.
template <int kControl>
DG_DEVICE unsigned larger_by_dpp(unsigned value) {
  return max(value, static_cast<unsigned>(handed_over<kControl>(static_cast<int>(value))));
}

// With lane `lane ^ kMask`.
template <int kMask>
DG_DEVICE unsigned larger_of_pair(unsigned value) {
  return max(value, __builtin_bit_cast(unsigned, exchanged<kMask>(__builtin_bit_cast(float, value))));
}

// Over 2, 4, 8 or 16 neighbouring lanes.
template <int kLanes>
DG_DEVICE unsigned largest_of_neighbours(unsigned value) {
  static_assert(kLanes == 2 || kLanes == 4 || kLanes == 8 || kLanes == 16);
  // DPP controls: CDNA3 ISA guide, "Data Parallel Primitives".
  constexpr int kPairs = 0xB1, kPairsOfPairs = 0x4E, kRowHalfMirror = 0x141, kRowMirror = 0x140;
  value = larger_by_dpp<kPairs>(value);
  if constexpr (kLanes >= 4) value = larger_by_dpp<kPairsOfPairs>(value);
  if constexpr (kLanes >= 8) value = larger_by_dpp<kRowHalfMirror>(value);
  if constexpr (kLanes >= 16) value = larger_by_dpp<kRowMirror>(value);
  return value;
}

// A step of a reduction between two lanes, whose numbers differ in bit kMask. Each has kSize values. The lane without
// the bit keeps the first half, the other one the second: the larger one of its own and the other lane's value.
template <int kMask, int kSize, int kMost>
DG_DEVICE void keep_larger_half(unsigned (&values)[kMost]) {
  constexpr int kHalf = kSize / 2;
  const bool keeps_second = lane_id() & kMask;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const unsigned kept = keeps_second ? values[i + kHalf] : values[i];
    const unsigned sent = keeps_second ? values[i] : values[i + kHalf];
    values[i] = max(kept, __builtin_bit_cast(unsigned, exchanged<kMask>(__builtin_bit_cast(float, sent))));
  }
}

}  // namespace deep_gemm_rocm

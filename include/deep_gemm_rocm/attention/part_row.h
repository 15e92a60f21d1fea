// How a partial result stores a query's row: its elements as f16, followed by shared powers of two as e8m0, one for the
// neighbouring elements that a lane has stored. f16 has three bits more than a bf16 output, and the powers give it any
// range: elements keep all bits unless they are 2^28 times smaller than the largest of their lane.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// kValues: the head's elements, including the padding that lanes hold past its end.
template <int kValues, int kLaneValues>
class PartRow {
  static constexpr int kPowersOffset = round_up(kValues, 64) * sizeof(_Float16);
  static constexpr int kPowersBytes = 32;
  static constexpr int kStored = 8;
  static_assert(kLaneValues % kStored == 0 && kValues % kLaneValues == 0 && kValues / kLaneValues <= kPowersBytes);

  // fp32 and e8m0 have the same exponent bias, 127. The power scales the largest element to between 2^14 and 2^15.
  static constexpr int kMantissaBits = 23;
  static constexpr unsigned kExponentOfLargest = 14;

 public:
  static constexpr int kBytes = kPowersOffset + kPowersBytes;  // _part_row_bytes() in launch/decode.py

  // Stores a lane's values, from number `first` on.
  static DG_DEVICE void store(uint8_t* row, int first, const float (&values)[kLaneValues]) {
    const unsigned power = common_power(values);
    const float reciprocal = __builtin_bit_cast(float, (254 - power) << kMantissaBits);
#pragma unroll
    for (int i = 0; i < kLaneValues; i += kStored) {
      using Stored = Vector<_Float16, kStored>;
      Stored stored;
#pragma unroll
      for (int j = 0; j < kStored; ++j) stored[j] = static_cast<_Float16>(values[i + j] * reciprocal);
      *(Global<Stored>*)(row + (first + i) * sizeof(_Float16)) = stored;
    }
    *(Global<uint8_t>*)(row + kPowersOffset + first / kLaneValues) = power;
  }

  // Neighbouring elements as they are loaded. The loading lane may hold others than the lane that stored them.
  template <int kCount>
  struct Loaded {
    static_assert(kLaneValues % kCount == 0, "values have a power in common");
    Vector<_Float16, kCount> stored;
    uint8_t power;

    DG_DEVICE Vector<float, kCount> values() const {
      const float factor = __builtin_bit_cast(float, static_cast<unsigned>(power) << kMantissaBits);
      return __builtin_convertvector(stored, Vector<float, kCount>) * factor;
    }
  };

  // Elements past the last one repeat the last ones.
  template <int kCount>
  static DG_DEVICE Loaded<kCount> load(const Buffer& row, int first) {
    const int existing = min(first, kValues - kCount);
    return {row.load<Vector<_Float16, kCount>>(existing * sizeof(_Float16)),
            row.load<uint8_t>(kPowersOffset + existing / kLaneValues)};
  }

 private:
  // The power for the largest finite element.
  static DG_DEVICE unsigned common_power(const float (&values)[kLaneValues]) {
    float largest = largest_of(values, [](float magnitude) { return magnitude; });
    if (ballot(largest == kInfinity) != 0) {
      largest = largest_of(values, [](float magnitude) { return magnitude == kInfinity ? 0 : magnitude; });
    }
    const unsigned exponent = __builtin_bit_cast(unsigned, largest) >> kMantissaBits;
    return max(exponent, kExponentOfLargest + 1) - kExponentOfLargest;
  }

  template <class Magnitude>
  static DG_DEVICE float largest_of(const float (&values)[kLaneValues], const Magnitude& magnitude) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      largest = __builtin_fmaxf(largest, magnitude(__builtin_fabsf(values[i])));  // not a NaN
    }
    return largest;
  }
};

}  // namespace deep_gemm_rocm

// The order of logits by their bits, and where the k-th largest one is in it.
#pragma once

#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr int kDigitBits = 12;
constexpr int kBins = 1 << kDigitBits;

// Bits whose unsigned order is that of the numbers. -0 is 0, and NaNs are below everything else.
DG_DEVICE unsigned ordered_bits(float value) {
  const float number = value + 0.0f;  // -0 + 0 is 0
  const int bits = __builtin_bit_cast(int, number);
  const unsigned ordered = bits ^ (bits >> 31 | static_cast<int>(0x80000000u));
  return __builtin_isunordered(number, number) ? 0 : ordered;
}

// The number with these ordered bits; a NaN for 0. No number has others below those of -inf, which stand for -inf.
DG_DEVICE float number_of(unsigned ordered) {
  constexpr unsigned kMinusInfinity = 0x007fffff;
  if (ordered != 0) ordered = max(ordered, kMinusInfinity);
  return __builtin_bit_cast(float, ordered >> 31 ? ordered ^ 0x80000000u : ~ordered);
}

// Where the k-th largest number is: in the bin of all numbers whose ordered bits, shifted, are `prefix`.
struct SelectionBin {
  unsigned prefix;
  int shift;
  int above;   // numbers in higher bins
  int inside;  // numbers in the bin
  int wanted;  // of these, 1 to `inside`

  DG_DEVICE bool is_above(unsigned ordered) const { return shifted(ordered) > prefix; }
  DG_DEVICE bool has(unsigned ordered) const { return shifted(ordered) == prefix; }
  // The ordered bits of the k-th largest number, if the bin's numbers are spread evenly.
  DG_DEVICE unsigned expected() const {
    const float lower = static_cast<float>(inside - wanted) / static_cast<float>(inside);  // part of the bin
    return (prefix << shift) + static_cast<unsigned>(lower * static_cast<float>(1u << shift));
  }

  DG_DEVICE bool is_exact() const { return shift == 0 || inside == wanted; }

  // Goes on to one part of the bin, of those with different next bits.
  DG_DEVICE void narrow(int next_bits, int more_above, int now_inside) {
    // The last bits are fewer. They are the highest of what is counted by.
    const int bits = min(kDigitBits, shift);
    prefix = prefix << bits | static_cast<unsigned>(next_bits) >> (kDigitBits - bits);
    shift -= bits;
    above += more_above;
    inside = now_inside;
    wanted -= more_above;
  }

 private:
  DG_DEVICE unsigned shifted(unsigned ordered) const { return static_cast<uint64_t>(ordered) >> shift; }
};

}  // namespace deep_gemm_rocm

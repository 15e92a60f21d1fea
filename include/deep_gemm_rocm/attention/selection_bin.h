// Keys for radix selection, and the range of keys in which the k-th largest number is.
#pragma once

#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr int kDigitBits = 12;
constexpr int kBins = 1 << kDigitBits;

// A key whose unsigned order is that of the numbers. -0 equals 0, and NaNs are below everything else.
DG_DEVICE unsigned ordered_bits(float value) {
  const float number = value + 0.0f;  // -0 + 0 is 0
  const int bits = __builtin_bit_cast(int, number);
  const unsigned ordered = bits ^ (bits >> 31 | static_cast<int>(0x80000000u));
  return __builtin_isunordered(number, number) ? 0 : ordered;
}

// The inverse of ordered_bits(). 0 gives NaN; other keys below that of -inf, which no number has, give -inf.
DG_DEVICE float number_of(unsigned ordered) {
  constexpr unsigned kMinusInfinity = 0x007fffff;
  if (ordered != 0) ordered = max(ordered, kMinusInfinity);
  return __builtin_bit_cast(float, ordered >> 31 ? ordered ^ 0x80000000u : ~ordered);
}

// Where the k-th largest number is: in the bin of all numbers whose ordered bits, shifted, are `prefix`.
struct SelectionBin {
  unsigned prefix;
  int shift;
  int above;   // how many numbers are in higher bins
  int inside;  // how many are in the bin
  int wanted;  // how many of these are among the k largest, 1 to `inside`

  DG_DEVICE bool is_above(unsigned ordered) const { return shifted(ordered) > prefix; }
  DG_DEVICE bool has(unsigned ordered) const { return shifted(ordered) == prefix; }
  // An estimate of the key of the k-th largest number, which assumes that the bin's numbers are spread evenly.
  DG_DEVICE unsigned expected() const {
    const float lower = static_cast<float>(inside - wanted) / static_cast<float>(inside);  // part of the bin
    return (prefix << shift) + static_cast<unsigned>(lower * static_cast<float>(1u << shift));
  }

  DG_DEVICE bool is_exact() const { return shift == 0 || inside == wanted; }

  // Narrows the bin to those of its numbers whose next bits are next_bits.
  DG_DEVICE void narrow(int next_bits, int more_above, int now_inside) {
    // The last digit has fewer bits. count() has them at the top of the bin's number.
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

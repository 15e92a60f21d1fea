// Conversions between f32 and the narrow formats of gfx942, written without branches so that loops over lanes
// vectorise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mi300x {

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7FFF;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) | 0x7F800000;
  const uint32_t subnormal = bit_cast<uint32_t>(float(int32_t(magnitude)) * 0x1p-24f);
  const uint32_t result = magnitude < 0x0400 ? subnormal : magnitude < 0x7C00 ? normal : special;
  return bit_cast<float>(result | sign);
}

inline uint16_t f16_with_sign(uint32_t magnitude, uint32_t f32_bits) {
  return uint16_t(magnitude | (f32_bits >> 16 & 0x8000));
}
inline uint32_t f16_nan(uint32_t f32_magnitude) { return 0x7E00 | (f32_magnitude >> 13 & 0x3FF); }

// Rounds in the direction of the host's floating-point control register, which the engine sets from the MODE register.
inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF, sign = bits & 0x80000000;
  // 2^13 times the power of two at or below the value: the last bit of a sum with it is the last one of the half.
  constexpr uint32_t least_normal = 113u << 23, greatest = 142u << 23;
  const uint32_t exponent = magnitude & 0x7F800000;
  const uint32_t clamped = exponent < least_normal ? least_normal : exponent > greatest ? greatest : exponent;
  const float coarse = bit_cast<float>((clamped + (13u << 23)) | sign);
  const uint32_t rounded = bit_cast<uint32_t>((value + coarse) - coarse) & 0x7FFFFFFF;
  const uint32_t normal = (rounded - (112u << 23)) >> 13;
  // Adding 0.5 puts the last bit of a subnormal half, 2^-24, in the last bit of the sum.
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(rounded) + 0.5f) - 0x3F000000;
  const float overflowed = bit_cast<float>(0x7F000000 | sign) * bit_cast<float>(0x7F000000u);
  const uint32_t overflow = std::isinf(overflowed) || exponent == 0x7F800000 ? 0x7C00 : 0x7BFF;
  uint32_t result = rounded < least_normal ? subnormal : normal;
  result = magnitude >= 0x47800000 || rounded >= 0x47800000 ? overflow : result;
  result = magnitude > 0x7F800000 ? f16_nan(magnitude) : result;
  return f16_with_sign(result, bits);
}

inline uint16_t f32_to_f16_toward_zero(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF, exponent = magnitude >> 23;
  const uint32_t shift = exponent < 126 - 31 ? 31 : 126 - exponent;
  const uint32_t subnormal = ((magnitude & 0x7FFFFF) | 0x800000) >> (shift & 31);
  uint32_t result = exponent < 113 ? subnormal : (magnitude - (112u << 23)) >> 13;
  result = magnitude >= 0x47800000 ? 0x7BFF : result;
  result = magnitude == 0x7F800000 ? 0x7C00 : result;
  result = magnitude > 0x7F800000 ? f16_nan(magnitude) : result;
  return f16_with_sign(result, bits);
}

inline float bf16_to_f32(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }

// An 8-bit float of the FNUZ family: no infinities, no negative zero, 0x80 is the one NaN.
template <int exponent_bits, int mantissa_bits, int bias>
struct Fnuz8 {
  static constexpr uint8_t nan = 0x80;
  static constexpr uint8_t max = 0x7F;

  static float to_f32(uint8_t code) {
    if (code == nan) return bit_cast<float>(0x7FC00000u);
    const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const float magnitude = exponent == 0
                                ? std::ldexp(float(mantissa), 1 - bias - mantissa_bits)
                                : std::ldexp(float(mantissa | 1 << mantissa_bits), exponent - bias - mantissa_bits);
    return code & 0x80 ? -magnitude : magnitude;
  }

  // `noise` is added below the last kept bit: half a unit less one gives round to nearest (ties are resolved here),
  // random bits give stochastic rounding. Overflow gives NaN, or the largest value where `saturate` (MODE.FP16_OVFL).
  static uint8_t from_f32(float value, bool saturate) { return convert(value, saturate, false, 0); }
  static uint8_t from_f32_stochastic(float value, uint32_t random, bool saturate) {
    return convert(value, saturate, true, random);
  }

 private:
  static uint8_t convert(float value, bool saturate, bool stochastic, uint32_t random) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    const uint8_t sign = bits >> 31 ? 0x80 : 0;
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return nan;
    if (magnitude == 0x7F800000) return saturate ? sign | max : nan;
    if (magnitude < 0x00800000) return 0;  // f32 subnormals lie far below half of the smallest value
    const int exponent = int(magnitude >> 23) - 127;
    const uint64_t significand = (magnitude & 0x7FFFFF) | 0x800000;  // value = significand * 2^(exponent - 23)
    // Bits to drop: 23 - mantissa_bits for normal results, more for subnormal ones.
    int drop = 23 - mantissa_bits;
    if (exponent < 1 - bias) drop += 1 - bias - exponent;
    if (drop > 40) return 0;
    uint64_t kept;
    if (stochastic) {
      const uint64_t noise = drop <= 32 ? random >> (32 - drop) : uint64_t(random) << (drop - 32);
      kept = (significand + noise) >> drop;
    } else {
      const uint64_t half = 1ull << (drop - 1);
      kept = (significand + half - 1 + (significand >> drop & 1)) >> drop;
    }
    const int result_exponent = exponent < 1 - bias ? 1 - bias : exponent;
    // For normal results `kept` carries the implicit bit: adding it to the exponent field less one also handles the
    // carry of rounding up to the next power of two, and subnormals that round up to a normal.
    const uint64_t code = (uint64_t(result_exponent + bias - 1) << mantissa_bits) + kept;
    if (code > max) return saturate ? sign | max : nan;
    return code == 0 ? 0 : uint8_t(code) | sign;
  }
};

using Fp8 = Fnuz8<4, 3, 8>;
using Bf8 = Fnuz8<5, 2, 16>;

}  // namespace mi300x

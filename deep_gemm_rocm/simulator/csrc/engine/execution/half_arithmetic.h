// Arithmetic on f16 values, each operation rounded once.
#pragma once

#include <limits>

#include "arithmetic.h"
#include "lanes.h"

namespace mi300x {

inline bool is_nan(Half a) { return (a.bits & 0x7FFF) > 0x7C00; }

// The product of two halves is exact in f64 and so is every sum that can reach a rounding boundary of f16; rounding
// that sum to odd in f32 keeps the information for the last rounding.
inline Half round_f64(double value) {
  float rounded = float(value);
  if (double(rounded) != value && std::isfinite(value)) {
    uint32_t bits = bit_cast<uint32_t>(rounded);
    if (std::fabs(double(rounded)) > std::fabs(value)) bits -= 1;
    rounded = bit_cast<float>(bits | 1);
  }
  return Half::from(rounded);
}
inline Half sum_of(Half a, Half b) { return Half::from(sum_of(float(a), float(b))); }
inline Half difference_of(Half a, Half b) { return Half::from(difference_of(float(a), float(b))); }
inline Half product_of(Half a, Half b) { return Half::from(product_of(float(a), float(b))); }
inline Half fused(Half a, Half b, Half c) {
  return round_f64(sum_of(product_of(double(float(a)), double(float(b))), double(float(c))));
}
inline Half unfused(Half a, Half b, Half c) { return sum_of(product_of(a, b), c); }

inline bool is_signaling(Half a) { return is_nan(a) && !(a.bits & 0x0200); }
inline Half quieted(Half a) { return {uint16_t(a.bits | 0x0200)}; }

// A signaling NaN is quieted (MODE.IEEE); a number wins over a quiet NaN.
inline Half minimum(Half a, Half b) {
  if (is_signaling(a)) return quieted(a);
  if (is_signaling(b)) return quieted(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  return float(a) < float(b) || (float(a) == float(b) && a.bits & 0x8000) ? a : b;
}
inline Half maximum(Half a, Half b) {
  if (is_signaling(a)) return quieted(a);
  if (is_signaling(b)) return quieted(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  return float(a) > float(b) || (float(a) == float(b) && !(a.bits & 0x8000)) ? a : b;
}
inline Half median(Half a, Half b, Half c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return minimum(minimum(a, b), c);
  return maximum(minimum(a, b), minimum(maximum(a, b), c));
}

inline Half division_fixup(Half quotient, Half denominator, Half numerator) {
  constexpr uint16_t infinity = 0x7C00, nan = 0xFE00;
  const uint16_t sign = (denominator.bits ^ numerator.bits) & 0x8000;
  const uint16_t d = denominator.bits & 0x7FFF, n = numerator.bits & 0x7FFF;
  if (is_nan(numerator)) return {uint16_t(numerator.bits | 0x0200)};
  if (is_nan(denominator)) return {uint16_t(denominator.bits | 0x0200)};
  if ((d == 0 && n == 0) || (d == infinity && n == infinity)) return {nan};
  if (d == 0 || n == infinity) return {uint16_t(sign | infinity)};
  if (d == infinity || n == 0) return {sign};
  return {uint16_t((quotient.bits & 0x7FFF) | sign)};
}

}  // namespace mi300x

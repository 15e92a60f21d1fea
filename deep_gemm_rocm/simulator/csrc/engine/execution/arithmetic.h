// Arithmetic whose bits are the same on each host, and in engines for different x86-64 levels.
#pragma once

#include <xmmintrin.h>

#include <cmath>
#include <limits>

#include "float_formats.h"

namespace mi300x {

template <class Float>
bool is_nan(Float value) {
  return value != value;
}
inline float quieted(float value) { return bit_cast<float>(bit_cast<uint32_t>(value) | 0x00400000); }
inline double quieted(double value) { return bit_cast<double>(bit_cast<uint64_t>(value) | 0x0008000000000000); }

inline bool is_signaling(float value) { return is_nan(value) && !(bit_cast<uint32_t>(value) & 0x00400000); }
inline bool is_signaling(double value) { return is_nan(value) && !(bit_cast<uint64_t>(value) & 0x0008000000000000); }

// `of_numbers`, unless an operand is a NaN: a number wins over it, but a signaling NaN comes out quieted.
template <class Float>
Float unless_nan(Float a, Float b, Float of_numbers) {
  Float result = is_nan(b) ? a : of_numbers;
  result = is_nan(a) ? b : result;
  result = is_signaling(b) ? quieted(b) : result;
  return is_signaling(a) ? quieted(a) : result;
}

// IEEE 754-2008 minNum and maxNum, with -0 below +0.
template <class Float>
Float lesser(Float a, Float b) {
  return unless_nan(a, b, a < b || (a == b && std::signbit(a)) ? a : b);
}
template <class Float>
Float greater(Float a, Float b) {
  return unless_nan(a, b, a > b || (a == b && !std::signbit(a)) ? a : b);
}

// The first operand that is a NaN, or else the last one. Of two NaNs, x86 instructions give that of one of their
// operands, and the compiler chooses the order of these.
template <class Float>
Float first_nan(Float a, Float b) {
  return is_nan(a) ? a : b;
}

template <class Float>
Float sum_of(Float a, Float b) {
  return a + first_nan(a, b);
}
template <class Float>
Float difference_of(Float a, Float b) {
  return a - first_nan(a, b);
}
template <class Float>
Float product_of(Float a, Float b) {
  return a * first_nan(a, b);
}

// Fused multiply-adds for operands of which none is a NaN, or the last one and all others that are have the same bits.
#ifdef __FMA__
inline float host_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double host_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
// Where the product is invalid, the C library gives another NaN than the last operand.
inline float host_fma(float a, float b, float c) { return is_nan(c) ? quieted(c) : std::fma(a, b, c); }
// On a processor without FMA, the C library computes with differences that may be subnormal. So none may be flushed
// while it does, but the operands before and the result after it.
inline double host_fma(double a, double b, double c) {
  if (is_nan(c)) return quieted(c);
  constexpr unsigned underflow = 1u << 4, zero_inputs = 1u << 6, zero_results = 1u << 15;
  const unsigned control = _mm_getcsr();
  if (!(control & (zero_inputs | zero_results))) return std::fma(a, b, c);
  const auto flushed = [](double value) {
    return std::fabs(value) < std::numeric_limits<double>::min() ? std::copysign(0.0, value) : value;
  };
  if (control & zero_inputs) a = flushed(a), b = flushed(b), c = flushed(c);
  _mm_setcsr(control & ~(underflow | zero_inputs | zero_results));
  asm volatile("" : "+x"(a), "+x"(b), "+x"(c));  // the compiler takes the sum for independent of the control register
  double result = std::fma(a, b, c);
  asm volatile("" : "+x"(result));
  const bool is_tiny = _mm_getcsr() & underflow;
  _mm_setcsr(control);
  if (!(control & zero_results)) return result;
  return is_tiny ? std::copysign(0.0, result) : flushed(result);
}
#endif

// a * b + c, rounded once.
template <class Float>
Float fused_sum(Float a, Float b, Float c) {
  const Float second = first_nan(a, b);
  return host_fma(a, second, first_nan(second, c));
}

// Without SSE4.1, GCC adds and subtracts a power of two to round to an integer. That gives -0 in place of 0 where the
// MODE register rounds down, and leaves signaling NaNs as they are.
template <class Float>
Float whole(Float rounded, Float value) {
  return is_nan(value) ? quieted(value) : std::copysign(rounded, value);
}
template <class Float>
Float truncated(Float value) {
  return whole(std::trunc(value), value);
}
template <class Float>
Float rounded_up(Float value) {
  return whole(std::ceil(value), value);
}
template <class Float>
Float rounded_down(Float value) {
  return whole(std::floor(value), value);
}

}  // namespace mi300x

// Functions that take numbers apart, round them to integers, or compare them: for double, float with C's suffix, and
// float without, as in C++.
#pragma once

#include "math_f32.h"

#define __HIP_M __HIP_INLINE_DEVICE__

namespace __hip_math {
// Long division; fmod leaves the last three bits of the quotient to it.
__HIP_M double remquo(double x, double y, int* quotient) {
  const double divisor = __builtin_fabs(y);
  double rest = __builtin_fabs(x);
  *quotient = 0;
  if (!(rest <= __DBL_MAX__) || !(divisor > 0)) return __builtin_nan("");
  if (divisor < 0x1p1020) rest = ::fmod(rest, 8 * divisor);
  int whole = 0;
#pragma unroll
  for (int bit = 2; bit >= 0; --bit) {
    const double part = __builtin_ldexp(divisor, bit);
    if (rest >= part) rest -= part, whole |= 1 << bit;
  }
  // A tie goes to the even quotient.
  const double to_next = divisor - rest;
  if (rest > to_next || (rest == to_next && (whole & 1))) rest -= divisor, ++whole;
  *quotient = __builtin_signbit(x) != __builtin_signbit(y) ? -(whole & 7) : whole & 7;
  const double result = rest == 0 ? 0 : rest;
  return __builtin_signbit(x) ? -result : result;
}
__HIP_M double logb(double x) {
  if (x == 0) return -__builtin_inf();
  return __builtin_isfinite(x) ? __builtin_amdgcn_frexp_exp(x) - 1 : x * x;
}
__HIP_M int ilogb(double x) {  // 0 and NaN as in glibc
  if (x == 0 || x != x) return -__INT_MAX__ - 1;
  return __builtin_isfinite(x) ? __builtin_amdgcn_frexp_exp(x) - 1 : __INT_MAX__;
}
template <class T, class Bits>
__HIP_M T nextafter(T x, T y) {
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  const Bits bits = __builtin_bit_cast(Bits, x);
  if (x == 0) return (y > 0 ? T(1) : T(-1)) * __builtin_bit_cast(T, Bits(1));
  return __builtin_bit_cast(T, Bits((x < y) == (x > 0) ? bits + 1 : bits - 1));
}
}  // namespace __hip_math

// The functions of T with names that end in f or not.
#define __HIP_PARTS(T, Bits, f)                                                                  \
  __HIP_M T modf##f(T x, T* whole) {                                                             \
    *whole = __builtin_trunc(x);                                                                 \
    return __builtin_copysign(__builtin_isinf(x) ? T(0) : x - *whole, x);                        \
  }                                                                                              \
  __HIP_M T remquo##f(T x, T y, int* quotient) { return T(__hip_math::remquo(x, y, quotient)); } \
  __HIP_M T remainder##f(T x, T y) {                                                             \
    int quotient;                                                                                \
    return T(__hip_math::remquo(x, y, &quotient));                                               \
  }                                                                                              \
  __HIP_M T logb##f(T x) { return T(__hip_math::logb(x)); }                                      \
  __HIP_M int ilogb##f(T x) { return __hip_math::ilogb(x); }                                     \
  __HIP_M T nextafter##f(T x, T y) { return __hip_math::nextafter<T, Bits>(x, y); }              \
  __HIP_M T scalbln##f(T x, long power) {                                                        \
    return __builtin_ldexp(x, int(power > 5000 ? 5000 : power < -5000 ? -5000 : power));         \
  }                                                                                              \
  __HIP_M long lrint##f(T x) { return long(__builtin_rint(x)); }                                 \
  __HIP_M long long llrint##f(T x) { return (long long)__builtin_rint(x); }                      \
  __HIP_M long lround##f(T x) { return long(__builtin_round(x)); }                               \
  __HIP_M long long llround##f(T x) { return (long long)__builtin_round(x); }
__HIP_PARTS(double, long long, )
__HIP_PARTS(float, int, f)
__HIP_PARTS(float, int, )
#undef __HIP_PARTS

__HIP_M double nan(const char*) { return __builtin_nan(""); }
__HIP_M float nanf(const char*) { return __builtin_nanf(""); }

#define __HIP_COMPARE(T)                                                           \
  __HIP_M bool isnormal(T x) { return __builtin_isnormal(x); }                     \
  /* glibc's FP_NAN to FP_NORMAL */                                                \
  __HIP_M int fpclassify(T x) { return __builtin_fpclassify(0, 1, 4, 3, 2, x); }   \
  __HIP_M bool isgreater(T x, T y) { return __builtin_isgreater(x, y); }           \
  __HIP_M bool isgreaterequal(T x, T y) { return __builtin_isgreaterequal(x, y); } \
  __HIP_M bool isless(T x, T y) { return __builtin_isless(x, y); }                 \
  __HIP_M bool islessequal(T x, T y) { return __builtin_islessequal(x, y); }       \
  __HIP_M bool islessgreater(T x, T y) { return __builtin_islessgreater(x, y); }   \
  __HIP_M bool isunordered(T x, T y) { return __builtin_isunordered(x, y); }
__HIP_COMPARE(double)
__HIP_COMPARE(float)
#undef __HIP_COMPARE

#undef __HIP_M

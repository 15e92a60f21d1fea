// Double-precision functions. Those that aren't instructions are series after a reduction of the argument, with errors
// of a few ulp; sin, cos and tan reduce arguments up to 2^30. ROCm's device libraries are faster in corners and more
// accurate in others, so simulated times of kernels that live on these functions differ.
#pragma once

#include "qualifiers.h"

#define __HIP_M __HIP_INLINE_DEVICE__

__HIP_M double fabs(double x) { return __builtin_fabs(x); }
__HIP_M double sqrt(double x) { return __builtin_sqrt(x); }
__HIP_M double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
__HIP_M double floor(double x) { return __builtin_floor(x); }
__HIP_M double ceil(double x) { return __builtin_ceil(x); }
__HIP_M double trunc(double x) { return __builtin_trunc(x); }
__HIP_M double rint(double x) { return __builtin_rint(x); }
__HIP_M double nearbyint(double x) { return __builtin_rint(x); }
__HIP_M double round(double x) { return __builtin_round(x); }
__HIP_M double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
__HIP_M double fmin(double x, double y) { return __builtin_fmin(x, y); }
__HIP_M double fmax(double x, double y) { return __builtin_fmax(x, y); }
__HIP_M double fdim(double x, double y) { return x > y ? x - y : x <= y ? 0.0 : x + y; }
__HIP_M double copysign(double x, double y) { return __builtin_copysign(x, y); }
__HIP_M double ldexp(double x, int power) { return __builtin_ldexp(x, power); }
__HIP_M double scalbn(double x, int power) { return __builtin_ldexp(x, power); }
__HIP_M bool isnan(double x) { return __builtin_isnan(x); }
__HIP_M bool isinf(double x) { return __builtin_isinf(x); }
__HIP_M bool isfinite(double x) { return __builtin_isfinite(x); }
__HIP_M bool signbit(double x) { return __builtin_signbit(x); }
__HIP_M double frexp(double x, int* power) {
  const bool has_power = x != 0 && __builtin_isfinite(x);
  *power = has_power ? __builtin_amdgcn_frexp_exp(x) : 0;
  return has_power ? __builtin_amdgcn_frexp_mant(x) : x;
}
// Exact, by subtracting shifted divisors as in long division.
__HIP_M double fmod(double x, double y) {
  double rest = __builtin_fabs(x);
  const double divisor = __builtin_fabs(y);
  if (!(rest <= __DBL_MAX__) || !(divisor > 0)) return __builtin_nan("");
  while (rest >= divisor) {
    double part = __builtin_ldexp(divisor, __builtin_amdgcn_frexp_exp(rest) - __builtin_amdgcn_frexp_exp(divisor));
    if (part > rest) part *= 0.5;
    rest -= part;
  }
  return __builtin_copysign(rest, x);
}

namespace __hip_math {
// sum of terms[i] * x^i
template <int count>
__HIP_M double polynomial(double x, const double (&terms)[count]) {
  double sum = terms[count - 1];
#pragma unroll
  for (int i = count - 2; i >= 0; --i) sum = __builtin_fma(sum, x, terms[i]);
  return sum;
}

// exp(x) - 1 for |x| <= ln(2) / 2
__HIP_M double expm1_near_zero(double x) {
  constexpr double terms[] = {1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880,
                              1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};
  return x * polynomial(x, terms);
}

struct Circle {
  double sin, cos;
};
// sin and cos: x = quarter * pi / 2 + a rest of at most pi / 4, pi / 2 being the sum of three doubles.
__HIP_M Circle circle(double x) {
  constexpr double high = 0x1.921fb54442d18p+0, middle = 0x1.1a62633145c07p-54, low = -0x1.f1976b7ed8fbcp-110;
  const double quarter = __builtin_rint(x * 0x1.45f306dc9c883p-1);
  const double rest = __builtin_fma(-quarter, low, __builtin_fma(-quarter, middle, __builtin_fma(-quarter, high, x)));
  const double square = rest * rest;
  constexpr double of_sin[] = {-1. / 6, 1. / 120, -1. / 5040, 1. / 362880, -1. / 39916800, 1. / 6227020800,
                               -1. / 1307674368000, 1. / 355687428096000};
  constexpr double of_cos[] = {-1. / 2, 1. / 24, -1. / 720, 1. / 40320, -1. / 3628800, 1. / 479001600,
                               -1. / 87178291200, 1. / 20922789888000};
  const double sin = __builtin_fma(rest * square, polynomial(square, of_sin), rest);
  const double cos = __builtin_fma(square, polynomial(square, of_cos), 1.0);
  const int turn = int((long long)quarter) & 3;
  const double a = turn & 1 ? cos : sin, b = turn & 1 ? sin : cos;
  return {turn & 2 ? -a : a, (turn + 1) & 2 ? -b : b};
}
}  // namespace __hip_math

__HIP_M double exp(double x) {
  if (x > 710) return __builtin_inf();
  if (x < -746) return 0;
  const double power = __builtin_rint(x * 0x1.71547652b82fep+0);
  const double rest = __builtin_fma(-power, 0x1.abc9e3b39803fp-56, __builtin_fma(-power, 0x1.62e42fefa39efp-1, x));
  return __builtin_ldexp(1.0 + __hip_math::expm1_near_zero(rest), int(power));
}
__HIP_M double expm1(double x) {
  return __builtin_fabs(x) < 0.34 ? __hip_math::expm1_near_zero(x) : exp(x) - 1.0;
}
__HIP_M double exp2(double x) {
  if (x > 1025) return __builtin_inf();
  if (x < -1100) return 0;
  const double power = __builtin_rint(x);
  return __builtin_ldexp(1.0 + __hip_math::expm1_near_zero((x - power) * 0x1.62e42fefa39efp-1), int(power));
}
__HIP_M double exp10(double x) { return exp2(x * 3.32192809488736234787); }

// x = m * 2^e with m near 1; log(m) = 2 artanh((m - 1) / (m + 1))
__HIP_M double log(double x) {
  if (!(x > 0)) return x == 0 ? -__builtin_inf() : __builtin_nan("");
  if (x > __DBL_MAX__) return x;
  double m = __builtin_amdgcn_frexp_mant(x);
  int e = __builtin_amdgcn_frexp_exp(x);
  if (m < 0.70710678118654752) m *= 2, --e;
  const double s = (m - 1) / (m + 1), square = s * s;
  constexpr double terms[] = {1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21,
                              1. / 23};
  const double artanh = __builtin_fma(s * square, __hip_math::polynomial(square, terms), s);
  return __builtin_fma(double(e), 0x1.62e42fefa39efp-1, __builtin_fma(double(e), 0x1.abc9e3b39803fp-56, 2 * artanh));
}
__HIP_M double log2(double x) { return log(x) * 1.44269504088896340736; }
__HIP_M double log10(double x) { return log(x) * 0.43429448190325182765; }
// With u = 1 + x rounded, x / (u - 1) makes up for the rounding.
__HIP_M double log1p(double x) {
  const double u = 1 + x;
  return u == 1 ? x : u > __DBL_MAX__ ? u : log(u) * (x / (u - 1));
}
__HIP_M double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (__builtin_isnan(x) || __builtin_isnan(y)) return __builtin_nan("");
  const bool is_integer = __builtin_rint(y) == y, is_odd = is_integer && __builtin_rint(y / 2) != y / 2;
  const double size = __builtin_fabs(x) == 1 ? 1.0 : exp(y * log(__builtin_fabs(x)));
  if (x < 0 && !is_integer && __builtin_isfinite(x)) return __builtin_nan("");
  return __builtin_signbit(x) && is_odd ? -size : size;
}
__HIP_M double sin(double x) { return __hip_math::circle(x).sin; }
__HIP_M double cos(double x) { return __hip_math::circle(x).cos; }
__HIP_M double tan(double x) {
  const __hip_math::Circle at = __hip_math::circle(x);
  return at.sin / at.cos;
}
__HIP_M void sincos(double x, double* sin, double* cos) {
  const __hip_math::Circle at = __hip_math::circle(x);
  *sin = at.sin;
  *cos = at.cos;
}
// Halves the angle twice, so that the series of arctan sees at most tan(pi / 16).
__HIP_M double atan(double x) {
  const double size = __builtin_fabs(x);
  double t = size > 1 ? 1 / size : size;
  t = t / (1 + __builtin_sqrt(1 + t * t));
  t = t / (1 + __builtin_sqrt(1 + t * t));
  const double square = t * t;
  constexpr double terms[] = {-1. / 3, 1. / 5, -1. / 7, 1. / 9, -1. / 11, 1. / 13, -1. / 15, 1. / 17, -1. / 19,
                              1. / 21, -1. / 23};
  const double angle = 4 * __builtin_fma(t * square, __hip_math::polynomial(square, terms), t);
  return __builtin_copysign(size > 1 ? 1.57079632679489661923 - angle : angle, x);
}
__HIP_M double atan2(double y, double x) {
  if (__builtin_isnan(x) || __builtin_isnan(y)) return __builtin_nan("");
  const double pi = 3.14159265358979323846;
  if (y == 0) return __builtin_signbit(x) ? __builtin_copysign(pi, y) : y;
  if (x == 0) return __builtin_copysign(pi / 2, y);
  if (__builtin_isinf(x) && __builtin_isinf(y)) return __builtin_copysign(x > 0 ? pi / 4 : 3 * pi / 4, y);
  const double angle = atan(y / x);
  return x > 0 ? angle : angle + __builtin_copysign(pi, y);
}
__HIP_M double asin(double x) { return atan2(x, __builtin_sqrt((1 - x) * (1 + x))); }
__HIP_M double acos(double x) { return atan2(__builtin_sqrt((1 - x) * (1 + x)), x); }
__HIP_M double sinh(double x) {
  const double e = expm1(__builtin_fabs(x));
  return __builtin_copysign(e > 1e300 ? e : 0.5 * (e + e / (e + 1)), x);
}
__HIP_M double cosh(double x) {
  const double e = exp(__builtin_fabs(x));
  return 0.5 * e + 0.5 / e;
}
__HIP_M double tanh(double x) {
  const double size = __builtin_fabs(x), e = expm1(size > 20 ? 40.0 : 2 * size);
  return __builtin_isnan(x) ? x : __builtin_copysign(e / (e + 2), x);
}
__HIP_M double asinh(double x) {
  const double size = __builtin_fabs(x);
  return __builtin_copysign(size > 1e8 ? log(size) + 0.69314718055994530942
                                       : log1p(size + size * size / (1 + __builtin_sqrt(1 + size * size))), x);
}
__HIP_M double acosh(double x) {
  return x > 1e8 ? log(x) + 0.69314718055994530942 : log(x + __builtin_sqrt((x - 1) * (x + 1)));
}
__HIP_M double atanh(double x) {
  const double size = __builtin_fabs(x);
  return __builtin_copysign(0.5 * log1p(2 * size / (1 - size)), x);
}
__HIP_M double hypot(double x, double y) {
  const double larger = __builtin_fmax(__builtin_fabs(x), __builtin_fabs(y));
  const double smaller = __builtin_fmin(__builtin_fabs(x), __builtin_fabs(y));
  if (__builtin_isinf(larger)) return larger;
  if (larger == 0 || __builtin_isnan(x) || __builtin_isnan(y)) return x + y;
  const double ratio = smaller / larger;
  return larger * __builtin_sqrt(__builtin_fma(ratio, ratio, 1.0));
}
// A start from logarithms and one step of Newton's method.
__HIP_M double cbrt(double x) {
  if (x == 0 || !__builtin_isfinite(x)) return x;
  const double size = __builtin_fabs(x);
  double root = exp(log(size) / 3);
  root -= (root * root * root - size) / (3 * root * root);
  return __builtin_copysign(root, x);
}
// A series without cancellation up to 3, a continued fraction beyond (Abramowitz and Stegun 7.1.6 and 7.1.14).
__HIP_M double erfc(double x);
__HIP_M double erf(double x) {
  const double size = __builtin_fabs(x);
  if (size > 3) return __builtin_isnan(x) ? x : __builtin_copysign(size > 6 ? 1.0 : 1.0 - erfc(size), x);
  double term = size, sum = size;
  for (int n = 1; n < 60; ++n) {
    term *= 2 * size * size / (2 * n + 1);
    sum += term;
  }
  return __builtin_copysign(1.12837916709551257390 * exp(-size * size) * sum, x);
}
__HIP_M double erfc(double x) {
  if (!(x > 3)) return 1.0 - erf(x);
  if (x > 27) return 0;
  double fraction = x;
  for (int n = 60; n >= 1; --n) fraction = x + 0.5 * n / fraction;
  return exp(-x * x) * 0.56418958354775628695 / fraction;
}

#undef __HIP_M

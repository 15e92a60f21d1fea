// Double-precision functions. Those that aren't instructions are series after a reduction of the argument, with errors
// of a few ulp. ROCm's device libraries are faster in corners and more accurate in others, so simulated times of
// kernels that live on these functions differ.
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

// An angle of rest + turn * pi / 2; the rest is at most pi / 4.
struct Angle {
  double rest;
  int turn;
};
constexpr double half_pi = 0x1.921fb54442d18p+0, half_pi_tail = 0x1.1a62633145c07p-54;

// For |x| >= 2^30 (Payne and Hanek, SIGNUM Newsletter 18, 1983): bits of 2 / pi that only add multiples of 4 to
// x * 2 / pi are left out. No such double is nearer than 2^-62 to a multiple of pi / 2, so of the product's 126 bits
// behind the point, at least 64 count.
__HIP_M Angle reduce_large(double x) {
#pragma clang fp contract(off)
  static constexpr unsigned long long bits[] = {  // of 2 / pi, after 64 zeros
      0x0,                0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
      0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41,
      0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7,
      0x4f463f669e5fea2d, 0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};
  const unsigned long long size = __builtin_bit_cast(unsigned long long, __builtin_fabs(x));
  if (size >= 0x7ffull << 52) return {__builtin_nan(""), 0};
  const unsigned long long mantissa = (size & ((1ull << 52) - 1)) | 1ull << 52;
  const int first = int(size >> 52) - 1075 + 62, word = first >> 6, shift = first & 63;
  unsigned words[6], product[6] = {};  // the lowest first
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const unsigned long long part = bits[word + i] << shift | bits[word + i + 1] >> 1 >> (63 - shift);
    words[5 - 2 * i] = unsigned(part >> 32), words[4 - 2 * i] = unsigned(part);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned factor = unsigned(mantissa >> 32 * half);
    unsigned long long sum = 0;
#pragma unroll
    for (int i = half; i < 6; ++i) {
      sum += (unsigned long long)factor * words[i - half] + product[i];
      product[i] = unsigned(sum), sum >>= 32;
    }
  }
  // The highest two bits count quarters; the others are a fraction, from -1/2 to 1/2 if they are signed.
  const int first_fraction = int(product[5] << 2 | product[4] >> 30);
  const int turn = int(product[5] >> 30) + (first_fraction < 0);
  const double a = double(first_fraction) * 0x1p-32, b = double(product[4] << 2 | product[3] >> 30) * 0x1p-64;
  const double c = double(product[3] << 2 | product[2] >> 30) * 0x1p-96, d = double(product[2] << 2) * 0x1p-128;
  const double upper = a + b, lower = (b - (upper - a)) + (c + d);
  const double head = upper + lower, tail = lower - (head - upper);
  const double product_tail = __builtin_fma(head, half_pi, -(head * half_pi)) + (head * half_pi_tail + tail * half_pi);
  const double rest = head * half_pi + product_tail;
  return {x < 0 ? -rest : rest, x < 0 ? -turn : turn};
}
__HIP_M Angle reduce(double x) {
  if (!(__builtin_fabs(x) < 0x1p30)) return reduce_large(x);
  // pi / 2 as the sum of three doubles
  const double quarter = __builtin_rint(x * 0x1.45f306dc9c883p-1);
  const double rest = __builtin_fma(-quarter, half_pi_tail, __builtin_fma(-quarter, half_pi, x));
  return {__builtin_fma(quarter, 0x1.f1976b7ed8fbcp-110, rest), int(quarter)};
}

struct Circle {
  double sin, cos;
};
__HIP_M Circle circle(Angle angle) {
  const double rest = angle.rest, square = rest * rest;
  constexpr double of_sin[] = {-1. / 6, 1. / 120, -1. / 5040, 1. / 362880, -1. / 39916800, 1. / 6227020800,
                               -1. / 1307674368000, 1. / 355687428096000};
  constexpr double of_cos[] = {-1. / 2, 1. / 24, -1. / 720, 1. / 40320, -1. / 3628800, 1. / 479001600,
                               -1. / 87178291200, 1. / 20922789888000};
  const double sin = __builtin_fma(rest * square, polynomial(square, of_sin), rest);
  const double cos = __builtin_fma(square, polynomial(square, of_cos), 1.0);
  const double a = angle.turn & 1 ? cos : sin, b = angle.turn & 1 ? sin : cos;
  return {angle.turn & 2 ? -a : a, (angle.turn + 1) & 2 ? -b : b};
}
__HIP_M Circle circle(double x) {
  const Circle at = circle(reduce(x));
  return {x == 0 ? x : at.sin, at.cos};  // The sign of zero stays.
}
// The circle at x * pi. Zeros of the sine have the sign of x.
__HIP_M Circle circle_pi(double x) {
  const double half_turns = __builtin_rint(2 * x), turn = half_turns - 4 * __builtin_floor(half_turns * 0.25);
  const double rest = __builtin_fma(-0.5, half_turns, x) * 3.14159265358979323846;
  if (!(__builtin_fabs(x) < 0x1p53)) return {__builtin_copysign(x - x, x), 1 + (x - x)};  // even, infinite or a NaN
  const Circle at = circle(Angle{rest, int(turn)});
  return {x == __builtin_rint(x) ? __builtin_copysign(0.0, x) : at.sin, at.cos + 0.0};
}

// A value and the rounding error that it lacks.
struct Sum {
  double head, tail;
};
// x = power * ln(2) + rest
struct Exponent {
  double rest;
  int power;
};
__HIP_M Exponent reduce_exponent(double x) {
  const double power = __builtin_rint(x * 0x1.71547652b82fep+0);
  const double rest = __builtin_fma(-power, 0x1.abc9e3b39803fp-56, __builtin_fma(-power, 0x1.62e42fefa39efp-1, x));
  return {rest, int(power)};
}
// 2^shift * exp(x + tail) with a small tail; only the result overflows.
__HIP_M double scaled_exp(double x, double tail, int shift) {
  if (x > 800) return __builtin_inf();
  if (x < -800) return 0;
  const Exponent of_x = reduce_exponent(x);
  return __builtin_ldexp(1.0 + expm1_near_zero(of_x.rest + tail), of_x.power + shift);
}
}  // namespace __hip_math

__HIP_M double exp(double x) { return __hip_math::scaled_exp(x, 0, 0); }
// With x = n * ln(2) + r: 2^n * (exp(r) - 1 + 1 - 2^-n), which cancels less than exp(x) - 1.
__HIP_M double expm1(double x) {
  if (__builtin_fabs(x) < 0.34) return __hip_math::expm1_near_zero(x);
  if (x > 710) return __builtin_inf();
  if (x < -40) return -1;
  const __hip_math::Exponent of_x = __hip_math::reduce_exponent(x);
  const double sum = __hip_math::expm1_near_zero(of_x.rest) + (1.0 - __builtin_ldexp(1.0, -of_x.power));
  return __builtin_ldexp(sum, of_x.power);
}
__HIP_M double exp2(double x) {
  if (x > 1025) return __builtin_inf();
  if (x < -1100) return 0;
  const double power = __builtin_rint(x);
  return __builtin_ldexp(1.0 + __hip_math::expm1_near_zero((x - power) * 0x1.62e42fefa39efp-1), int(power));
}
__HIP_M double exp10(double x) {
  if (x > 310) return __builtin_inf();
  if (x < -330) return 0;
  const double power = __builtin_rint(x * 3.32192809488736234787);  // log10(2) as the sum of two doubles
  const double rest = __builtin_fma(power, 0x1.9dc1da994fd21p-59, __builtin_fma(-power, 0x1.34413509f79ffp-2, x));
  return __builtin_ldexp(1.0 + __hip_math::expm1_near_zero(rest * 2.30258509299404568402), int(power));
}

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

namespace __hip_math {
// log(x) for finite x > 0 as the sum of two doubles, with an error of 2^-64 or so: y * log(x) may be 745.
__HIP_M Sum log_twice(double x) {
#pragma clang fp contract(off)
  double m = __builtin_amdgcn_frexp_mant(x);
  int e = __builtin_amdgcn_frexp_exp(x);
  if (m < 0.70710678118654752) m *= 2, --e;
  // s = (m - 1) / (m + 1), its tail from the remainder of the division
  const double below = m - 1, above = m + 1, above_tail = m - (above - 1);
  const double s = below / above, s_tail = __builtin_fma(-s, above_tail, __builtin_fma(-s, above, below)) / above;
  const double square = s * s, square_tail = __builtin_fma(s, s, -square) + 2 * s * s_tail;
  // artanh(s) = s + s * third + ..., third = s^2 / 3 + s^4 / 5 + ...
  constexpr double terms[] = {1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21, 1. / 23};
  const double more = square * square * polynomial(square, terms);
  const double first = square * 0x1.5555555555555p-2, third = first + more;
  const double first_tail = __builtin_fma(square, 0x1.5555555555555p-2, -first) + square * 0x1.5555555555555p-56 +
                            square_tail * 0x1.5555555555555p-2;
  const double third_tail = (more - (third - first)) + first_tail;
  const double cube = s * third;
  const double cube_tail = __builtin_fma(s, third, -cube) + (s * third_tail + s_tail * third);
  // e * ln(2) + 2 * (s + cube), the larger one first
  const double ln2 = double(e) * 0x1.62e42fefa39efp-1;
  const double ln2_tail =
      __builtin_fma(double(e), 0x1.62e42fefa39efp-1, -ln2) + double(e) * 0x1.abc9e3b39803fp-56;
  const double inner = s + cube, inner_tail = (cube - (inner - s)) + (s_tail + cube_tail);
  const double sum = ln2 + 2 * inner, rest = 2 * inner - (sum - ln2);
  const double tail = rest + (ln2_tail + 2 * inner_tail), head = sum + tail;
  return {head, tail - (head - sum)};
}
// x^y from |x|^y
__HIP_M double power_of(double x, double y, double size) {
  if (y == 0 || x == 1) return 1;
  if (__builtin_isnan(x) || __builtin_isnan(y)) return __builtin_nan("");
  const bool is_integer = __builtin_rint(y) == y, is_odd = is_integer && __builtin_rint(y / 2) != y / 2;
  if (__builtin_fabs(x) == 1) size = 1;
  if (x < 0 && !is_integer && __builtin_isfinite(x)) return __builtin_nan("");
  return __builtin_signbit(x) && is_odd ? -size : size;
}
}  // namespace __hip_math

__HIP_M double pow(double x, double y) {
  const double size = __builtin_fabs(x);
  double result;
  if (size > 0 && size <= __DBL_MAX__ && __builtin_fabs(y) < 0x1p80) {
    const __hip_math::Sum of_size = __hip_math::log_twice(size);
    const double product = y * of_size.head;
    result = __hip_math::scaled_exp(product, __builtin_fma(y, of_size.head, -product) + y * of_size.tail, 0);
  } else {
    result = exp(y * log(size));
  }
  return __hip_math::power_of(x, y, result);
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
__HIP_M double sinpi(double x) { return __hip_math::circle_pi(x).sin; }
__HIP_M double cospi(double x) { return __hip_math::circle_pi(x).cos; }
__HIP_M void sincospi(double x, double* sin, double* cos) {
  const __hip_math::Circle at = __hip_math::circle_pi(x);
  *sin = at.sin;
  *cos = at.cos;
}
// The angle is 0, pi / 4 or pi / 2 and a rest, so that the series of arctan sees at most tan(pi / 8).
__HIP_M double atan(double x) {
  const double size = __builtin_fabs(x);
  const bool is_middle = size > 0.41421356237309505, is_large = size > 2.41421356237309505;
  const double t = (is_large ? -1 : is_middle ? size - 1 : size) / (is_large ? size : is_middle ? size + 1 : 1);
  const double less = is_large ? __hip_math::half_pi : is_middle ? 0.5 * __hip_math::half_pi : 0;
  const double less_tail = is_large ? __hip_math::half_pi_tail : is_middle ? 0.5 * __hip_math::half_pi_tail : 0;
  const double square = t * t;
  constexpr double terms[] = {-1. / 3,  1. / 5,   -1. / 7,  1. / 9,   -1. / 11, 1. / 13,  -1. / 15,
                              1. / 17,  -1. / 19, 1. / 21,  -1. / 23, 1. / 25,  -1. / 27, 1. / 29,
                              -1. / 31, 1. / 33,  -1. / 35, 1. / 37,  -1. / 39, 1. / 41};
  const double rest = __builtin_fma(t * square, __hip_math::polynomial(square, terms), t);
  return __builtin_copysign(less + (rest + less_tail), x);
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
  const double size = __builtin_fabs(x);
  if (size < 1) {
    const double e = expm1(size);
    return __builtin_copysign(0.5 * (e + e / (e + 1)), x);
  }
  const double half = __hip_math::scaled_exp(size, 0, -1);  // exp may overflow where its half doesn't
  return __builtin_copysign(half - 0.25 / half, x);
}
__HIP_M double cosh(double x) {
  const double half = __hip_math::scaled_exp(__builtin_fabs(x), 0, -1);
  return half + 0.25 / half;
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
  const double above = x - 1;
  if (x < 1) return __builtin_nan("");
  return x > 1e8 ? log(x) + 0.69314718055994530942 : log1p(above + __builtin_sqrt(above * (above + 2)));
}
__HIP_M double atanh(double x) {
  const double size = __builtin_fabs(x);
  return __builtin_copysign(0.5 * log1p(2 * size / (1 - size)), x);
}
__HIP_M double hypot(double x, double y) {
  const double larger = __builtin_fmax(__builtin_fabs(x), __builtin_fabs(y));
  const double smaller = __builtin_fmin(__builtin_fabs(x), __builtin_fabs(y));
  if (__builtin_isinf(larger)) return larger;
  if (larger == 0 || __builtin_isnan(x) || __builtin_isnan(y)) return __builtin_fabs(x) + __builtin_fabs(y);
  const double ratio = smaller / larger;
  return larger * __builtin_sqrt(__builtin_fma(ratio, ratio, 1.0));
}
// A start from logarithms and one step of Newton's method, for size / 8^third: subnormal numbers have few bits.
__HIP_M double cbrt(double x) {
  if (x == 0 || !__builtin_isfinite(x)) return x;
  const int third = __builtin_amdgcn_frexp_exp(x) / 3;
  const double size = __builtin_ldexp(__builtin_fabs(x), -3 * third);
  double root = exp(log(size) / 3);
  root -= (root * root * root - size) / (3 * root * root);
  return __builtin_copysign(__builtin_ldexp(root, third), x);
}

namespace __hip_math {
// erf(x) for |x| <= 0.5 (Abramowitz and Stegun 7.1.5)
__HIP_M double erf_near_zero(double x) {
  constexpr double terms[] = {1,           -1. / 3,      1. / 10,      -1. / 42,       1. / 216,
                              -1. / 1320,  1. / 9360,    -1. / 75600,  1. / 685440,    -1. / 6894720,
                              1. / 76204800, -1. / 918086400, 1. / 11975040000};
  return 1.12837916709551257390 * x * polynomial(x * x, terms);
}
// erfc(x) for x >= 0.5. exp(x^2) * (1 + 2 * x) * erfc(x) changes little; the polynomial was fitted to it at Chebyshev's
// points, in the variable of Shepherd and Laframboise (Mathematics of Computation 36, 1981).
__HIP_M double erfc_beyond(double x) {
  if (x > 28) return 0;
  constexpr double terms[] = {
      1.2530080582697296, -0.13562110612458084, -0.04756229435343384, 0.12964515870271817,
      -0.11927366341637591, 0.06830802734557402, -0.023770514892453878, 0.002529391787416037,
      0.0018886900308933137, -0.0007798319787670749, -0.00010515741491655, 0.00012509749095168397,
      4.9387975342434404e-06, -2.00929833045886e-05, -7.012462973163499e-07, 3.4525197016153044e-06,
      3.0307407103093377e-07, -5.840747551910045e-07, -8.42551957399924e-08, 7.124245030572795e-08,
      8.635681414307825e-09};
  const double square = x * x, e = exp(-square), of_square = __builtin_fma(-e, __builtin_fma(x, x, -square), e);
  return of_square * polynomial((x - 3) / (x + 3), terms) / (1 + 2 * x);
}
}  // namespace __hip_math

__HIP_M double erf(double x) {
  const double size = __builtin_fabs(x);
  return size <= 0.5 ? __hip_math::erf_near_zero(x) : __builtin_copysign(1.0 - __hip_math::erfc_beyond(size), x);
}
__HIP_M double erfc(double x) {
  const double size = __builtin_fabs(x);
  if (size <= 0.5) return 1.0 - __hip_math::erf_near_zero(x);
  const double beyond = __hip_math::erfc_beyond(size);
  return x < 0 ? 2.0 - beyond : beyond;
}

#undef __HIP_M

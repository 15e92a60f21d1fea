// Single-precision functions: instructions and the compiler's own expansions where it has them, else the
// double-precision function, rounded. Both the names of C (expf) and the overloads of C++ (exp) are there.
#pragma once

#include "math_f64.h"

#define __HIP_M __HIP_INLINE_DEVICE__

__HIP_M float fabsf(float x) { return __builtin_fabsf(x); }
__HIP_M float sqrtf(float x) { return __builtin_sqrtf(x); }
__HIP_M float floorf(float x) { return __builtin_floorf(x); }
__HIP_M float ceilf(float x) { return __builtin_ceilf(x); }
__HIP_M float truncf(float x) { return __builtin_truncf(x); }
__HIP_M float rintf(float x) { return __builtin_rintf(x); }
__HIP_M float nearbyintf(float x) { return __builtin_rintf(x); }
__HIP_M float roundf(float x) { return __builtin_roundf(x); }
__HIP_M float expf(float x) { return __builtin_expf(x); }
__HIP_M float exp2f(float x) { return __builtin_exp2f(x); }
__HIP_M float exp10f(float x) { return float(exp10(double(x))); }
__HIP_M float logf(float x) { return __builtin_logf(x); }
__HIP_M float log2f(float x) { return __builtin_log2f(x); }
__HIP_M float log10f(float x) { return __builtin_log10f(x); }
__HIP_M float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
__HIP_M float expm1f(float x) { return float(expm1(double(x))); }
__HIP_M float log1pf(float x) { return float(log1p(double(x))); }
__HIP_M float sinf(float x) { return float(sin(double(x))); }
__HIP_M float cosf(float x) { return float(cos(double(x))); }
__HIP_M float tanf(float x) { return float(tan(double(x))); }
__HIP_M float asinf(float x) { return float(asin(double(x))); }
__HIP_M float acosf(float x) { return float(acos(double(x))); }
__HIP_M float atanf(float x) { return float(atan(double(x))); }
__HIP_M float sinhf(float x) { return float(sinh(double(x))); }
__HIP_M float coshf(float x) { return float(cosh(double(x))); }
__HIP_M float asinhf(float x) { return float(asinh(double(x))); }
__HIP_M float acoshf(float x) { return float(acosh(double(x))); }
__HIP_M float atanhf(float x) { return float(atanh(double(x))); }
__HIP_M float cbrtf(float x) { return float(cbrt(double(x))); }
__HIP_M float erff(float x) { return float(erf(double(x))); }
__HIP_M float erfcf(float x) { return float(erfc(double(x))); }
// Without the double's detour: activations call it often.
__HIP_M float tanhf(float x) {
  const float size = __builtin_fabsf(x), square = size * size;
  const float tail = -17.0f / 315 + square * (62.0f / 2835 - square * (1382.0f / 155925));
  const float series = size * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * tail)));
  const float result = size < 0.35f ? series : 1.0f - 2.0f / (__builtin_expf(2.0f * size) + 1.0f);
  return __builtin_isnan(x) ? x : __builtin_copysignf(result, x);
}
__HIP_M float fminf(float x, float y) { return __builtin_fminf(x, y); }
__HIP_M float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
__HIP_M float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
__HIP_M float fdimf(float x, float y) { return x > y ? x - y : x <= y ? 0.0f : x + y; }
__HIP_M float powf(float x, float y) {
  return float(__hip_math::power_of(x, y, exp(double(y) * log(__builtin_fabs(double(x))))));
}
__HIP_M float fmodf(float x, float y) { return float(fmod(double(x), double(y))); }
__HIP_M float atan2f(float x, float y) { return float(atan2(double(x), double(y))); }
__HIP_M float hypotf(float x, float y) { return float(hypot(double(x), double(y))); }
__HIP_M float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__HIP_M float ldexpf(float x, int power) { return __builtin_ldexpf(x, power); }
__HIP_M float scalbnf(float x, int power) { return __builtin_ldexpf(x, power); }
__HIP_M float frexpf(float x, int* power) { return float(frexp(double(x), power)); }
__HIP_M void sincosf(float x, float* sin, float* cos) {
  const __hip_math::Circle at = __hip_math::circle(x);
  *sin = float(at.sin);
  *cos = float(at.cos);
}
__HIP_M float sinpif(float x) { return float(sinpi(double(x))); }
__HIP_M float cospif(float x) { return float(cospi(double(x))); }
__HIP_M void sincospif(float x, float* sin, float* cos) {
  const __hip_math::Circle at = __hip_math::circle_pi(x);
  *sin = float(at.sin);
  *cos = float(at.cos);
}
__HIP_M bool isnan(float x) { return __builtin_isnan(x); }
__HIP_M bool isinf(float x) { return __builtin_isinf(x); }
__HIP_M bool isfinite(float x) { return __builtin_isfinite(x); }
__HIP_M bool signbit(float x) { return __builtin_signbit(x); }

__HIP_M float fabs(float x) { return fabsf(x); }
__HIP_M float sqrt(float x) { return sqrtf(x); }
__HIP_M float floor(float x) { return floorf(x); }
__HIP_M float ceil(float x) { return ceilf(x); }
__HIP_M float trunc(float x) { return truncf(x); }
__HIP_M float rint(float x) { return rintf(x); }
__HIP_M float nearbyint(float x) { return nearbyintf(x); }
__HIP_M float round(float x) { return roundf(x); }
__HIP_M float exp(float x) { return expf(x); }
__HIP_M float exp2(float x) { return exp2f(x); }
__HIP_M float exp10(float x) { return exp10f(x); }
__HIP_M float log(float x) { return logf(x); }
__HIP_M float log2(float x) { return log2f(x); }
__HIP_M float log10(float x) { return log10f(x); }
__HIP_M float rsqrt(float x) { return rsqrtf(x); }
__HIP_M float expm1(float x) { return expm1f(x); }
__HIP_M float log1p(float x) { return log1pf(x); }
__HIP_M float sin(float x) { return sinf(x); }
__HIP_M float cos(float x) { return cosf(x); }
__HIP_M float tan(float x) { return tanf(x); }
__HIP_M float sinpi(float x) { return sinpif(x); }
__HIP_M float cospi(float x) { return cospif(x); }
__HIP_M float asin(float x) { return asinf(x); }
__HIP_M float acos(float x) { return acosf(x); }
__HIP_M float atan(float x) { return atanf(x); }
__HIP_M float sinh(float x) { return sinhf(x); }
__HIP_M float cosh(float x) { return coshf(x); }
__HIP_M float asinh(float x) { return asinhf(x); }
__HIP_M float acosh(float x) { return acoshf(x); }
__HIP_M float atanh(float x) { return atanhf(x); }
__HIP_M float cbrt(float x) { return cbrtf(x); }
__HIP_M float erf(float x) { return erff(x); }
__HIP_M float erfc(float x) { return erfcf(x); }
__HIP_M float tanh(float x) { return tanhf(x); }
__HIP_M float fmin(float x, float y) { return fminf(x, y); }
__HIP_M float fmax(float x, float y) { return fmaxf(x, y); }
__HIP_M float copysign(float x, float y) { return copysignf(x, y); }
__HIP_M float fdim(float x, float y) { return fdimf(x, y); }
__HIP_M float pow(float x, float y) { return powf(x, y); }
__HIP_M float fmod(float x, float y) { return fmodf(x, y); }
__HIP_M float atan2(float x, float y) { return atan2f(x, y); }
__HIP_M float hypot(float x, float y) { return hypotf(x, y); }
__HIP_M float fma(float x, float y, float z) { return fmaf(x, y, z); }
__HIP_M float ldexp(float x, int power) { return ldexpf(x, power); }
__HIP_M float scalbn(float x, int power) { return ldexpf(x, power); }
__HIP_M float frexp(float x, int* power) { return frexpf(x, power); }
__HIP_M float abs(float x) { return __builtin_fabsf(x); }
__HIP_M double abs(double x) { return __builtin_fabs(x); }
__HIP_M int abs(int x) { return x < 0 ? -x : x; }
__HIP_M long abs(long x) { return x < 0 ? -x : x; }
__HIP_M long long abs(long long x) { return x < 0 ? -x : x; }

// Fast forms: the instructions.
__HIP_M float __expf(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
__HIP_M float __exp10f(float x) { return __builtin_amdgcn_exp2f(x * 3.32192809f); }
__HIP_M float __logf(float x) { return __builtin_amdgcn_logf(x) * 0.69314718f; }
__HIP_M float __log2f(float x) { return __builtin_amdgcn_logf(x); }
__HIP_M float __log10f(float x) { return __builtin_amdgcn_logf(x) * 0.30103000f; }
__HIP_M float __powf(float x, float y) { return __builtin_amdgcn_exp2f(y * __builtin_amdgcn_logf(x)); }
__HIP_M float __sinf(float x) { return __builtin_amdgcn_sinf(__builtin_amdgcn_fractf(x * 0.15915494f)); }
__HIP_M float __cosf(float x) { return __builtin_amdgcn_cosf(__builtin_amdgcn_fractf(x * 0.15915494f)); }
__HIP_M float __tanf(float x) { return __sinf(x) * __builtin_amdgcn_rcpf(__cosf(x)); }
__HIP_M float __frcp_rn(float x) { return 1.0f / x; }
__HIP_M float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
__HIP_M float __frsqrt_rn(float x) { return __builtin_amdgcn_rsqf(x); }
__HIP_M float __fdividef(float x, float y) { return x / y; }
__HIP_M float fdividef(float x, float y) { return x / y; }
__HIP_M float __fdiv_rn(float x, float y) { return x / y; }
__HIP_M float __fadd_rn(float x, float y) { return x + y; }
__HIP_M float __fsub_rn(float x, float y) { return x - y; }
__HIP_M float __fmul_rn(float x, float y) { return x * y; }
__HIP_M float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__HIP_M float __saturatef(float x) { return __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f); }

#define __HIP_MIN_MAX(T)                            \
  __HIP_M T min(T x, T y) { return x < y ? x : y; } \
  __HIP_M T max(T x, T y) { return x < y ? y : x; }
__HIP_MIN_MAX(int)
__HIP_MIN_MAX(unsigned)
__HIP_MIN_MAX(long)
__HIP_MIN_MAX(unsigned long)
__HIP_MIN_MAX(long long)
__HIP_MIN_MAX(unsigned long long)
#undef __HIP_MIN_MAX
__HIP_M float min(float x, float y) { return __builtin_fminf(x, y); }
__HIP_M float max(float x, float y) { return __builtin_fmaxf(x, y); }
__HIP_M double min(double x, double y) { return __builtin_fmin(x, y); }
__HIP_M double max(double x, double y) { return __builtin_fmax(x, y); }

#undef __HIP_M

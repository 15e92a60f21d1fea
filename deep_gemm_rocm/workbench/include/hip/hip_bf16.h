// __hip_bfloat16 and __hip_bfloat162. Arithmetic is in single precision, rounded to nearest even after each operation.
#pragma once

#include "hip_runtime.h"

struct __hip_bfloat16_raw {
  unsigned short x;
};
struct __hip_bfloat162_raw {
  unsigned short x, y;
};

struct __attribute__((aligned(2))) __hip_bfloat16 {
  unsigned short __x;

  __hip_bfloat16() = default;
  constexpr __HIP_BOTH__ __hip_bfloat16(float value) : __x(__builtin_bit_cast(unsigned short, __bf16(value))) {}
  // Not by way of float, which would round twice.
  constexpr __HIP_BOTH__ __hip_bfloat16(double value) : __x(__builtin_bit_cast(unsigned short, __bf16(value))) {}
  constexpr __HIP_BOTH__ __hip_bfloat16(int value) : __hip_bfloat16(float(value)) {}
  constexpr __HIP_BOTH__ __hip_bfloat16(unsigned value) : __hip_bfloat16(float(value)) {}
  constexpr __HIP_BOTH__ __hip_bfloat16(__hip_bfloat16_raw raw) : __x(raw.x) {}
  constexpr __HIP_BOTH__ operator float() const { return __builtin_bit_cast(float, unsigned(__x) << 16); }
  constexpr __HIP_BOTH__ operator __hip_bfloat16_raw() const { return {__x}; }
#define __HIP_OPERATOR(op)                                                                       \
  friend constexpr __HIP_BOTH__ __hip_bfloat16 operator op(__hip_bfloat16 a, __hip_bfloat16 b) { \
    return __hip_bfloat16(float(a) op float(b));                                                 \
  }                                                                                              \
  constexpr __HIP_BOTH__ __hip_bfloat16& operator op##=(__hip_bfloat16 other) {                  \
    return *this = *this op other;                                                               \
  }
  __HIP_OPERATOR(+)
  __HIP_OPERATOR(-)
  __HIP_OPERATOR(*)
  __HIP_OPERATOR(/)
#undef __HIP_OPERATOR
#define __HIP_OPERATOR(op)                                                             \
  friend constexpr __HIP_BOTH__ bool operator op(__hip_bfloat16 a, __hip_bfloat16 b) { \
    return float(a) op float(b);                                                       \
  }
  __HIP_OPERATOR(==)
  __HIP_OPERATOR(!=)
  __HIP_OPERATOR(<)
  __HIP_OPERATOR(<=)
  __HIP_OPERATOR(>)
  __HIP_OPERATOR(>=)
#undef __HIP_OPERATOR
  constexpr __HIP_BOTH__ __hip_bfloat16 operator-() const {
    return __hip_bfloat16(__hip_bfloat16_raw{(unsigned short)(__x ^ 0x8000)});
  }
};
typedef __hip_bfloat16 hip_bfloat16;

struct __attribute__((aligned(4))) __hip_bfloat162 {
  __hip_bfloat16 x, y;

  __hip_bfloat162() = default;
  constexpr __HIP_BOTH__ __hip_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) : x(x), y(y) {}
  constexpr __HIP_BOTH__ __hip_bfloat162(__hip_bfloat162_raw raw)
      : x(__hip_bfloat16_raw{raw.x}), y(__hip_bfloat16_raw{raw.y}) {}
  constexpr __HIP_BOTH__ operator float2() const { return float2(float(x), float(y)); }
  constexpr __HIP_BOTH__ operator __hip_bfloat162_raw() const { return {x.__x, y.__x}; }
#define __HIP_OPERATOR(op)                                                                          \
  friend constexpr __HIP_BOTH__ __hip_bfloat162 operator op(__hip_bfloat162 a, __hip_bfloat162 b) { \
    return __hip_bfloat162(a.x op b.x, a.y op b.y);                                                 \
  }                                                                                                 \
  constexpr __HIP_BOTH__ __hip_bfloat162& operator op##=(__hip_bfloat162 other) {                   \
    return *this = *this op other;                                                                  \
  }
  __HIP_OPERATOR(+)
  __HIP_OPERATOR(-)
  __HIP_OPERATOR(*)
  __HIP_OPERATOR(/)
#undef __HIP_OPERATOR
  friend constexpr __HIP_BOTH__ bool operator==(__hip_bfloat162 a, __hip_bfloat162 b) {
    return a.x == b.x && a.y == b.y;
  }
  friend constexpr __HIP_BOTH__ bool operator!=(__hip_bfloat162 a, __hip_bfloat162 b) { return !(a == b); }
  constexpr __HIP_BOTH__ __hip_bfloat162 operator-() const { return __hip_bfloat162(-x, -y); }
};

#define __HIP_B __HIP_INLINE_BOTH__
__HIP_B __hip_bfloat16 __float2bfloat16(float x) { return __hip_bfloat16(x); }
__HIP_B __hip_bfloat16 __float2bfloat16_rn(float x) { return __hip_bfloat16(x); }
__HIP_B __hip_bfloat16 __float2bfloat16_rz(float x) {
  const unsigned bits = x == x ? __builtin_bit_cast(unsigned, x) >> 16 : 0x7FFF;
  return __hip_bfloat16(__hip_bfloat16_raw{(unsigned short)bits});
}
__HIP_B __hip_bfloat16 __double2bfloat16(double x) { return __hip_bfloat16(x); }
__HIP_B __hip_bfloat16 __int2bfloat16_rn(int x) { return __hip_bfloat16(x); }
__HIP_B float __bfloat162float(__hip_bfloat16 x) { return float(x); }
__HIP_B int __bfloat162int_rz(__hip_bfloat16 x) { return int(float(x)); }
__HIP_B unsigned short __bfloat16_as_ushort(__hip_bfloat16 x) { return x.__x; }
__HIP_B short __bfloat16_as_short(__hip_bfloat16 x) { return short(x.__x); }
__HIP_B __hip_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __hip_bfloat16(__hip_bfloat16_raw{x}); }
__HIP_B __hip_bfloat16 __short_as_bfloat16(short x) { return __ushort_as_bfloat16((unsigned short)x); }
__HIP_B __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return __hip_bfloat162(x, y); }
__HIP_B __hip_bfloat162 make_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return __hip_bfloat162(x, y); }
__HIP_B __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 x) { return __hip_bfloat162(x, x); }
__HIP_B __hip_bfloat162 __float2bfloat162_rn(float x) { return __bfloat162bfloat162(__hip_bfloat16(x)); }
__HIP_B __hip_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return __hip_bfloat162(__hip_bfloat16(x), __hip_bfloat16(y));
}
__HIP_B __hip_bfloat162 __float22bfloat162_rn(float2 x) { return __floats2bfloat162_rn(x.x, x.y); }
__HIP_B float2 __bfloat1622float2(__hip_bfloat162 x) { return float2(float(x.x), float(x.y)); }
__HIP_B __hip_bfloat16 __low2bfloat16(__hip_bfloat162 x) { return x.x; }
__HIP_B __hip_bfloat16 __high2bfloat16(__hip_bfloat162 x) { return x.y; }
__HIP_B float __low2float(__hip_bfloat162 x) { return float(x.x); }
__HIP_B float __high2float(__hip_bfloat162 x) { return float(x.y); }
__HIP_B __hip_bfloat162 __low2bfloat162(__hip_bfloat162 x) { return __hip_bfloat162(x.x, x.x); }
__HIP_B __hip_bfloat162 __high2bfloat162(__hip_bfloat162 x) { return __hip_bfloat162(x.y, x.y); }
__HIP_B __hip_bfloat162 __lowhigh2highlow(__hip_bfloat162 x) { return __hip_bfloat162(x.y, x.x); }

__HIP_B __hip_bfloat16 __hadd(__hip_bfloat16 x, __hip_bfloat16 y) { return x + y; }
__HIP_B __hip_bfloat16 __hsub(__hip_bfloat16 x, __hip_bfloat16 y) { return x - y; }
__HIP_B __hip_bfloat16 __hmul(__hip_bfloat16 x, __hip_bfloat16 y) { return x * y; }
__HIP_B __hip_bfloat16 __hdiv(__hip_bfloat16 x, __hip_bfloat16 y) { return x / y; }
__HIP_B __hip_bfloat16 __hneg(__hip_bfloat16 x) { return -x; }
__HIP_B __hip_bfloat16 __habs(__hip_bfloat16 x) { return __ushort_as_bfloat16((unsigned short)(x.__x & 0x7FFF)); }
__HIP_B __hip_bfloat16 __hfma(__hip_bfloat16 x, __hip_bfloat16 y, __hip_bfloat16 z) {
  return __hip_bfloat16(__builtin_fmaf(float(x), float(y), float(z)));
}
// Beside a NaN, the number is the result; -0 is less than +0. The forms with _nan give the NaN.
__HIP_B __hip_bfloat16 __hmin(__hip_bfloat16 x, __hip_bfloat16 y) {
  return __ushort_as_bfloat16((unsigned short)(__builtin_bit_cast(unsigned, __builtin_fminf(x, y)) >> 16));
}
__HIP_B __hip_bfloat16 __hmax(__hip_bfloat16 x, __hip_bfloat16 y) {
  return __ushort_as_bfloat16((unsigned short)(__builtin_bit_cast(unsigned, __builtin_fmaxf(x, y)) >> 16));
}
__HIP_B __hip_bfloat16 __hmin_nan(__hip_bfloat16 x, __hip_bfloat16 y) {
  return x != x ? x : y != y ? y : __hmin(x, y);
}
__HIP_B __hip_bfloat16 __hmax_nan(__hip_bfloat16 x, __hip_bfloat16 y) {
  return x != x ? x : y != y ? y : __hmax(x, y);
}
__HIP_B bool __heq(__hip_bfloat16 x, __hip_bfloat16 y) { return x == y; }
__HIP_B bool __hne(__hip_bfloat16 x, __hip_bfloat16 y) { return x != y; }
__HIP_B bool __hlt(__hip_bfloat16 x, __hip_bfloat16 y) { return x < y; }
__HIP_B bool __hle(__hip_bfloat16 x, __hip_bfloat16 y) { return x <= y; }
__HIP_B bool __hgt(__hip_bfloat16 x, __hip_bfloat16 y) { return x > y; }
__HIP_B bool __hge(__hip_bfloat16 x, __hip_bfloat16 y) { return x >= y; }
__HIP_B bool __hisnan(__hip_bfloat16 x) { return x != x; }
__HIP_B __hip_bfloat162 __hadd2(__hip_bfloat162 x, __hip_bfloat162 y) { return x + y; }
__HIP_B __hip_bfloat162 __hsub2(__hip_bfloat162 x, __hip_bfloat162 y) { return x - y; }
__HIP_B __hip_bfloat162 __hmul2(__hip_bfloat162 x, __hip_bfloat162 y) { return x * y; }
__HIP_B __hip_bfloat162 __h2div(__hip_bfloat162 x, __hip_bfloat162 y) { return x / y; }
__HIP_B __hip_bfloat162 __hneg2(__hip_bfloat162 x) { return -x; }
__HIP_B __hip_bfloat162 __habs2(__hip_bfloat162 x) { return __hip_bfloat162(__habs(x.x), __habs(x.y)); }
__HIP_B __hip_bfloat162 __hfma2(__hip_bfloat162 x, __hip_bfloat162 y, __hip_bfloat162 z) {
  return __hip_bfloat162(__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y));
}
__HIP_B __hip_bfloat162 __hmin2(__hip_bfloat162 x, __hip_bfloat162 y) {
  return __hip_bfloat162(__hmin(x.x, y.x), __hmin(x.y, y.y));
}
__HIP_B __hip_bfloat162 __hmax2(__hip_bfloat162 x, __hip_bfloat162 y) {
  return __hip_bfloat162(__hmax(x.x, y.x), __hmax(x.y, y.y));
}
__HIP_B __hip_bfloat162 __hmin2_nan(__hip_bfloat162 x, __hip_bfloat162 y) {
  return __hip_bfloat162(__hmin_nan(x.x, y.x), __hmin_nan(x.y, y.y));
}
__HIP_B __hip_bfloat162 __hmax2_nan(__hip_bfloat162 x, __hip_bfloat162 y) {
  return __hip_bfloat162(__hmax_nan(x.x, y.x), __hmax_nan(x.y, y.y));
}
#undef __HIP_B

#define __HIP_FUNCTION(name, in_float)                                                                          \
  __HIP_INLINE_DEVICE__ __hip_bfloat16 h##name(__hip_bfloat16 x) { return __hip_bfloat16(in_float(float(x))); } \
  __HIP_INLINE_DEVICE__ __hip_bfloat162 h2##name(__hip_bfloat162 x) { return {h##name(x.x), h##name(x.y)}; }
__HIP_FUNCTION(exp, expf)
__HIP_FUNCTION(exp2, exp2f)
__HIP_FUNCTION(log, logf)
__HIP_FUNCTION(log2, log2f)
__HIP_FUNCTION(sqrt, sqrtf)
__HIP_FUNCTION(rsqrt, rsqrtf)
__HIP_FUNCTION(sin, sinf)
__HIP_FUNCTION(cos, cosf)
__HIP_FUNCTION(tanh, tanhf)
__HIP_FUNCTION(rcp, __frcp_rn)
#undef __HIP_FUNCTION

__HIP_INLINE_DEVICE__ __hip_bfloat162 unsafeAtomicAdd(__hip_bfloat162* place, __hip_bfloat162 value) {
  typedef short Pair __attribute__((ext_vector_type(2)));
  const auto pair = __builtin_bit_cast(Pair, value);
  const Pair before = __builtin_amdgcn_flat_atomic_fadd_v2bf16(reinterpret_cast<Pair*>(place), pair);
  return __builtin_bit_cast(__hip_bfloat162, before);
}

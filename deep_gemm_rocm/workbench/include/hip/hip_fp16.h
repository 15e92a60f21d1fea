// __half and __half2: IEEE half precision, computed by the chip's instructions.
#pragma once

#include "hip_runtime.h"

typedef _Float16 __hip_native_half2 __attribute__((ext_vector_type(2)));

struct __half_raw {
  union {
    unsigned short x;
    _Float16 data;
  };
};

struct __half {
  _Float16 data;

  __half() = default;
  constexpr __HIP_BOTH__ __half(_Float16 value) : data(value) {}
  constexpr __HIP_BOTH__ __half(float value) : data(_Float16(value)) {}
  constexpr __HIP_BOTH__ __half(double value) : data(_Float16(value)) {}
  constexpr __HIP_BOTH__ __half(int value) : data(_Float16(value)) {}
  constexpr __HIP_BOTH__ __half(unsigned value) : data(_Float16(value)) {}
  __HIP_BOTH__ __half(const __half_raw& raw) : data(raw.data) {}
  constexpr __HIP_BOTH__ operator _Float16() const { return data; }
  constexpr __HIP_BOTH__ operator float() const { return float(data); }
  __HIP_BOTH__ operator __half_raw() const {
    __half_raw raw;
    raw.data = data;
    return raw;
  }
#define __HIP_OPERATOR(op)                                               \
  friend constexpr __HIP_BOTH__ __half operator op(__half a, __half b) { \
    return __half(_Float16(a.data op b.data));                           \
  }                                                                      \
  constexpr __HIP_BOTH__ __half& operator op##=(__half other) {          \
    data = _Float16(data op other.data);                                 \
    return *this;                                                        \
  }
  __HIP_OPERATOR(+)
  __HIP_OPERATOR(-)
  __HIP_OPERATOR(*)
  __HIP_OPERATOR(/)
#undef __HIP_OPERATOR
#define __HIP_OPERATOR(op) \
  friend constexpr __HIP_BOTH__ bool operator op(__half a, __half b) { return a.data op b.data; }
  __HIP_OPERATOR(==)
  __HIP_OPERATOR(!=)
  __HIP_OPERATOR(<)
  __HIP_OPERATOR(<=)
  __HIP_OPERATOR(>)
  __HIP_OPERATOR(>=)
#undef __HIP_OPERATOR
  constexpr __HIP_BOTH__ __half operator-() const { return __half(_Float16(-data)); }
};
typedef __half half;

struct __half2 {
  union {
    struct {
      __half x, y;
    };
    __hip_native_half2 data;
  };
  __half2() = default;
  constexpr __HIP_BOTH__ __half2(__half x, __half y) : x(x), y(y) {}
  __HIP_BOTH__ __half2(__hip_native_half2 data) : data(data) {}
  __HIP_BOTH__ operator __hip_native_half2() const { return data; }
#define __HIP_OPERATOR(op)                                                                                 \
  friend __HIP_BOTH__ __half2 operator op(const __half2& a, const __half2& b) { return a.data op b.data; } \
  __HIP_BOTH__ __half2& operator op##=(const __half2& other) {                                             \
    data = data op other.data;                                                                             \
    return *this;                                                                                          \
  }
  __HIP_OPERATOR(+)
  __HIP_OPERATOR(-)
  __HIP_OPERATOR(*)
  __HIP_OPERATOR(/)
#undef __HIP_OPERATOR
  __HIP_BOTH__ __half2 operator-() const { return -data; }
  friend __HIP_BOTH__ bool operator==(const __half2& a, const __half2& b) { return a.x == b.x && a.y == b.y; }
  friend __HIP_BOTH__ bool operator!=(const __half2& a, const __half2& b) { return !(a == b); }
};
typedef __half2 half2;

#define __HIP_H __HIP_INLINE_BOTH__
__HIP_H __half __float2half(float x) { return __half(x); }
__HIP_H __half __float2half_rn(float x) { return __half(x); }
__HIP_H __half __double2half(double x) { return __half(x); }
__HIP_H __half __int2half_rn(int x) { return __half(x); }
__HIP_H __half __uint2half_rn(unsigned x) { return __half(x); }
__HIP_H float __half2float(__half x) { return float(x.data); }
__HIP_H int __half2int_rz(__half x) { return int(x.data); }
__HIP_H int __half2int_rn(__half x) { return int(__builtin_rintf(float(x.data))); }
__HIP_H unsigned short __half_as_ushort(__half x) { return __builtin_bit_cast(unsigned short, x.data); }
__HIP_H short __half_as_short(__half x) { return __builtin_bit_cast(short, x.data); }
__HIP_H __half __ushort_as_half(unsigned short x) { return __half(__builtin_bit_cast(_Float16, x)); }
__HIP_H __half __short_as_half(short x) { return __half(__builtin_bit_cast(_Float16, x)); }
__HIP_H __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
__HIP_H __half2 make_half2(__half x, __half y) { return __half2(x, y); }
__HIP_H __half2 __half2half2(__half x) { return __half2(x, x); }
__HIP_H __half2 __float2half2_rn(float x) { return __half2(__half(x), __half(x)); }
__HIP_H __half2 __floats2half2_rn(float x, float y) { return __half2(__half(x), __half(y)); }
__HIP_H __half2 __float22half2_rn(float2 x) { return __half2(__half(x.x), __half(x.y)); }
__HIP_H float2 __half22float2(__half2 x) { return float2(float(x.x), float(x.y)); }
__HIP_H __half __low2half(__half2 x) { return x.x; }
__HIP_H __half __high2half(__half2 x) { return x.y; }
__HIP_H float __low2float(__half2 x) { return float(x.x); }
__HIP_H float __high2float(__half2 x) { return float(x.y); }
__HIP_H __half2 __low2half2(__half2 x) { return __half2(x.x, x.x); }
__HIP_H __half2 __high2half2(__half2 x) { return __half2(x.y, x.y); }
__HIP_H __half2 __lowhigh2highlow(__half2 x) { return __half2(x.y, x.x); }

__HIP_H __half __hadd(__half x, __half y) { return x + y; }
__HIP_H __half __hsub(__half x, __half y) { return x - y; }
__HIP_H __half __hmul(__half x, __half y) { return x * y; }
__HIP_H __half __hdiv(__half x, __half y) { return x / y; }
__HIP_H __half __hneg(__half x) { return -x; }
__HIP_H __half __habs(__half x) { return __half(__builtin_fabsf16(x.data)); }
__HIP_H __half __hfma(__half x, __half y, __half z) { return __half(__builtin_fmaf16(x.data, y.data, z.data)); }
// Beside a NaN, the number is the result; -0 is less than +0. The forms with _nan give the NaN.
__HIP_H __half __hmin(__half x, __half y) { return __half(__builtin_fminf16(x.data, y.data)); }
__HIP_H __half __hmax(__half x, __half y) { return __half(__builtin_fmaxf16(x.data, y.data)); }
__HIP_H __half __hmin_nan(__half x, __half y) { return x != x ? x : y != y ? y : __hmin(x, y); }
__HIP_H __half __hmax_nan(__half x, __half y) { return x != x ? x : y != y ? y : __hmax(x, y); }
__HIP_H bool __heq(__half x, __half y) { return x == y; }
__HIP_H bool __hne(__half x, __half y) { return x != y; }
__HIP_H bool __hlt(__half x, __half y) { return x < y; }
__HIP_H bool __hle(__half x, __half y) { return x <= y; }
__HIP_H bool __hgt(__half x, __half y) { return x > y; }
__HIP_H bool __hge(__half x, __half y) { return x >= y; }
__HIP_H bool __hisnan(__half x) { return x != x; }
__HIP_H __half2 __hadd2(__half2 x, __half2 y) { return x + y; }
__HIP_H __half2 __hsub2(__half2 x, __half2 y) { return x - y; }
__HIP_H __half2 __hmul2(__half2 x, __half2 y) { return x * y; }
__HIP_H __half2 __h2div(__half2 x, __half2 y) { return x / y; }
__HIP_H __half2 __hneg2(__half2 x) { return -x; }
__HIP_H __half2 __habs2(__half2 x) { return __half2(__habs(x.x), __habs(x.y)); }
__HIP_H __half2 __hfma2(__half2 x, __half2 y, __half2 z) { return __builtin_elementwise_fma(x.data, y.data, z.data); }
__HIP_H __half2 __hmin2(__half2 x, __half2 y) { return __builtin_elementwise_min(x.data, y.data); }
__HIP_H __half2 __hmax2(__half2 x, __half2 y) { return __builtin_elementwise_max(x.data, y.data); }
__HIP_H __half2 __hmin2_nan(__half2 x, __half2 y) { return __half2(__hmin_nan(x.x, y.x), __hmin_nan(x.y, y.y)); }
__HIP_H __half2 __hmax2_nan(__half2 x, __half2 y) { return __half2(__hmax_nan(x.x, y.x), __hmax_nan(x.y, y.y)); }
#undef __HIP_H

#define __HIP_H __HIP_INLINE_DEVICE__
#define __HIP_FUNCTION(name, in_float)                                         \
  __HIP_H __half h##name(__half x) { return __half(in_float(float(x.data))); } \
  __HIP_H __half2 h2##name(__half2 x) { return __half2(h##name(x.x), h##name(x.y)); }
__HIP_FUNCTION(exp, expf)
__HIP_FUNCTION(exp2, exp2f)
__HIP_FUNCTION(log, logf)
__HIP_FUNCTION(log2, log2f)
__HIP_FUNCTION(sqrt, sqrtf)
__HIP_FUNCTION(rsqrt, rsqrtf)
__HIP_FUNCTION(sin, sinf)
__HIP_FUNCTION(cos, cosf)
__HIP_FUNCTION(tanh, tanhf)
__HIP_FUNCTION(floor, floorf)
__HIP_FUNCTION(ceil, ceilf)
__HIP_FUNCTION(trunc, truncf)
__HIP_FUNCTION(rint, rintf)
#undef __HIP_FUNCTION
__HIP_H __half hrcp(__half x) { return __half(1.0f / float(x.data)); }
__HIP_H __half2 h2rcp(__half2 x) { return __half2(hrcp(x.x), hrcp(x.y)); }
#undef __HIP_H

__HIP_INLINE_DEVICE__ __half2 unsafeAtomicAdd(__half2* place, __half2 value) {
  return __builtin_amdgcn_flat_atomic_fadd_v2f16(reinterpret_cast<__hip_native_half2*>(place), value.data);
}

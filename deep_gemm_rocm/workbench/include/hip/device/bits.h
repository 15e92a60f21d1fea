// Integer functions, conversions by bits, and the rounding conversions of CUDA's names.
#pragma once

#include "coordinates.h"

__HIP_INLINE_DEVICE__ int __popc(unsigned x) { return __builtin_popcount(x); }
__HIP_INLINE_DEVICE__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__HIP_INLINE_DEVICE__ int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
__HIP_INLINE_DEVICE__ int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
__HIP_INLINE_DEVICE__ int __ffs(int x) { return __builtin_ffs(x); }
__HIP_INLINE_DEVICE__ int __ffsll(long long x) { return __builtin_ffsll(x); }
__HIP_INLINE_DEVICE__ unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
__HIP_INLINE_DEVICE__ unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
__HIP_INLINE_DEVICE__ int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
__HIP_INLINE_DEVICE__ unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFFu) * (b & 0xFFFFFFu); }
__HIP_INLINE_DEVICE__ int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
__HIP_INLINE_DEVICE__ unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
__HIP_INLINE_DEVICE__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
__HIP_INLINE_DEVICE__ unsigned __sad(int a, int b, unsigned c) {
  return c + (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a);
}
__HIP_INLINE_DEVICE__ unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
__HIP_INLINE_DEVICE__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
__HIP_INLINE_DEVICE__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
// Bytes 0 to 3 of the selector name bytes of b:a. V_PERM_B32 numbers them with its second operand first.
__HIP_INLINE_DEVICE__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned spread = (selector & 7) | (selector & 0x70) << 4 | (selector & 0x700) << 8 | (selector & 0x7000) << 12;
  return __builtin_amdgcn_perm(b, a, spread);
}

__HIP_INLINE_BOTH__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__HIP_INLINE_BOTH__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__HIP_INLINE_BOTH__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__HIP_INLINE_BOTH__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__HIP_INLINE_BOTH__ long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
__HIP_INLINE_BOTH__ double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

__HIP_INLINE_DEVICE__ int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
__HIP_INLINE_DEVICE__ int __float2int_rz(float x) { return (int)x; }
__HIP_INLINE_DEVICE__ int __float2int_rd(float x) { return (int)__builtin_floorf(x); }
__HIP_INLINE_DEVICE__ int __float2int_ru(float x) { return (int)__builtin_ceilf(x); }
__HIP_INLINE_DEVICE__ unsigned __float2uint_rn(float x) { return (unsigned)__builtin_rintf(x); }
__HIP_INLINE_DEVICE__ unsigned __float2uint_rz(float x) { return (unsigned)x; }
__HIP_INLINE_DEVICE__ float __int2float_rn(int x) { return (float)x; }
__HIP_INLINE_DEVICE__ float __uint2float_rn(unsigned x) { return (float)x; }
__HIP_INLINE_DEVICE__ int __double2int_rn(double x) { return (int)__builtin_rint(x); }
__HIP_INLINE_DEVICE__ int __double2int_rz(double x) { return (int)x; }
__HIP_INLINE_DEVICE__ float __double2float_rn(double x) { return (float)x; }
__HIP_INLINE_DEVICE__ double __int2double_rn(int x) { return (double)x; }

template <class T>
__HIP_INLINE_DEVICE__ T __ldg(const T* pointer) { return *pointer; }

// Relaxed atomics at the scope of the device, of the workgroup (_block) and of the system (_system).
#pragma once

#include "coordinates.h"

template <class T>
struct __hip_same {
  using type = T;
};
template <class T>
using __hip_identity = typename __hip_same<T>::type;  // so that only the place's type is deduced

#define __HIP_ATOMIC(name, builtin)                                               \
  template <class T>                                                              \
  __HIP_INLINE_DEVICE__ T name(T* place, __hip_identity<T> value) {               \
    return builtin(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);     \
  }                                                                               \
  template <class T>                                                              \
  __HIP_INLINE_DEVICE__ T name##_block(T* place, __hip_identity<T> value) {       \
    return builtin(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP); \
  }                                                                               \
  template <class T>                                                              \
  __HIP_INLINE_DEVICE__ T name##_system(T* place, __hip_identity<T> value) {      \
    return builtin(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);    \
  }
__HIP_ATOMIC(atomicAdd, __hip_atomic_fetch_add)
__HIP_ATOMIC(atomicSub, __hip_atomic_fetch_sub)
__HIP_ATOMIC(atomicAnd, __hip_atomic_fetch_and)
__HIP_ATOMIC(atomicOr, __hip_atomic_fetch_or)
__HIP_ATOMIC(atomicXor, __hip_atomic_fetch_xor)
__HIP_ATOMIC(atomicMin, __hip_atomic_fetch_min)
__HIP_ATOMIC(atomicMax, __hip_atomic_fetch_max)
__HIP_ATOMIC(atomicExch, __hip_atomic_exchange)
#undef __HIP_ATOMIC

template <class T>
__HIP_INLINE_DEVICE__ T atomicCAS(T* place, __hip_identity<T> expected, __hip_identity<T> desired) {
  __hip_atomic_compare_exchange_strong(place, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}
__HIP_INLINE_DEVICE__ unsigned atomicInc(unsigned* place, unsigned limit) {
  return __builtin_amdgcn_atomic_inc32(place, limit, __ATOMIC_RELAXED, "agent");
}
__HIP_INLINE_DEVICE__ unsigned atomicDec(unsigned* place, unsigned limit) {
  return __builtin_amdgcn_atomic_dec32(place, limit, __ATOMIC_RELAXED, "agent");
}

// One instruction, for memory of the device. atomicAdd compiles to a loop of compare-and-swap where the memory may be
// the host's, unless -munsafe-fp-atomics is given.
__HIP_INLINE_DEVICE__ float unsafeAtomicAdd(float* place, float value) {
  return __builtin_amdgcn_flat_atomic_fadd_f32(place, value);
}
__HIP_INLINE_DEVICE__ double unsafeAtomicAdd(double* place, double value) {
  return __builtin_amdgcn_flat_atomic_fadd_f64(place, value);
}
__HIP_INLINE_DEVICE__ float safeAtomicAdd(float* place, float value) { return atomicAdd(place, value); }
__HIP_INLINE_DEVICE__ double safeAtomicAdd(double* place, double value) { return atomicAdd(place, value); }
__HIP_INLINE_DEVICE__ float atomicAddNoRet(float* place, float value) { return unsafeAtomicAdd(place, value); }

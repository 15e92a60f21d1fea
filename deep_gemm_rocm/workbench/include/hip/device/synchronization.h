// Barriers, fences and clocks.
#pragma once

#include "coordinates.h"

__HIP_INLINE_DEVICE__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__HIP_INLINE_DEVICE__ void __syncwarp(uint64_t = ~0ull) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
__HIP_INLINE_DEVICE__ void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
__HIP_INLINE_DEVICE__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
__HIP_INLINE_DEVICE__ void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// The results are the same for all threads of the workgroup.
__HIP_INLINE_DEVICE__ int __syncthreads_count(int predicate) {
  __shared__ int total;
  const bool first = threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
  if (first) total = 0;
  __syncthreads();
  if (predicate) __hip_atomic_fetch_add(&total, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  __syncthreads();
  const int counted = total;
  __syncthreads();
  return counted;
}
__HIP_INLINE_DEVICE__ int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
__HIP_INLINE_DEVICE__ int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }

__HIP_INLINE_DEVICE__ long long clock64() { return (long long)__builtin_readcyclecounter(); }
__HIP_INLINE_DEVICE__ long long wall_clock64() { return (long long)__builtin_amdgcn_s_memrealtime(); }
__HIP_INLINE_DEVICE__ long clock() { return (long)clock64(); }

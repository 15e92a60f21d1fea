#pragma once

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __shared__ __attribute__((shared))
// Spelled as macros in HIP: libraries use them as attributes too, as in __attribute__((__noinline__)).
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif
// nodebug: instructions get the line of the user's call.
#define __HIP_DEVICE__ __device__ __attribute__((always_inline, nodebug))
#define __HIP_BOTH__ __host__ __HIP_DEVICE__
#define __HIP_INLINE_DEVICE__ static inline __HIP_DEVICE__
#define __HIP_INLINE_BOTH__ static inline __HIP_BOTH__

#define __HIP_LAUNCH_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __HIP_LAUNCH_BOUNDS_2(threads, waves) \
  __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define __HIP_LAUNCH_BOUNDS_OF(one, two, chosen, ...) chosen
#define __launch_bounds__(...) \
  __HIP_LAUNCH_BOUNDS_OF(__VA_ARGS__, __HIP_LAUNCH_BOUNDS_2, __HIP_LAUNCH_BOUNDS_1, )(__VA_ARGS__)

#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define HIP_SYMBOL(name) name
#define HIP_KERNEL_NAME(...) __VA_ARGS__

#define HIP_VERSION_MAJOR 6
#define HIP_VERSION_MINOR 4
#define HIP_VERSION_PATCH 0
#define HIP_VERSION 60400000
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#ifndef __HIPCC__
#define __HIPCC__ 1
#endif

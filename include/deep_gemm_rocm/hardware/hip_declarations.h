// The few HIP declarations that kernels and their launchers need, so that they include no HIP headers: compiles are
// several times faster and any clang that targets gfx942 will do, with or without ROCm.
#pragma once

#include "deep_gemm_rocm/hardware/types.h"

#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define DG_DEVICE __attribute__((device)) __attribute__((always_inline)) inline
// For lambdas that are called at several places: held out of line, they would get their registers through memory.
#define DG_INLINE __attribute__((always_inline))
// Allowing workgroups of up to 512 work-items limits a lane to 256 registers. Within that budget every compiler keeps
// MFMA results in VGPRs, where the vector ALU reads them, and not in AccVGPRs.
#define DG_KERNEL extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(64, 512)))
// Up to 256 work-items, each wave with a SIMD for itself: a lane has 512 registers, half of them AccVGPRs.
#define DG_KERNEL_OF_512_REGISTERS \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(64, 256))) __attribute__((amdgpu_waves_per_eu(1, 1)))
// Two workgroups of 512 work-items fit onto a CU: a lane has up to 128 registers.
#define DG_KERNEL_OF_128_REGISTERS \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(512, 512))) __attribute__((amdgpu_waves_per_eu(4)))
// A workgroup of 1024 takes the whole CU, with as many registers.
#define DG_WIDE_KERNEL extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1024, 1024)))

struct dim3 {
  unsigned x, y, z;
};

using hipError_t = int;  // an enum of the same size in hip_runtime_api.h
using hipStream_t = struct ihipStream_t*;
constexpr hipError_t hipSuccess = 0;

extern "C" hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                      __SIZE_TYPE__ dynamic_lds_bytes, hipStream_t stream);

// Whether the compiler has the builtins for buffers and fences of LLVM 19, of which this one came last. AMD's compilers
// are cut from LLVM's development branch, so their version doesn't tell. Always false for host code.
#if defined(DG_HAS_LLVM_19_BUILTINS)  // by a test, on the command line
#elif defined(__HIP_DEVICE_COMPILE__) && __has_builtin(__builtin_amdgcn_raw_buffer_load_b128)
#define DG_HAS_LLVM_19_BUILTINS 1
#else
#define DG_HAS_LLVM_19_BUILTINS 0
#endif

namespace deep_gemm_rocm {

DG_DEVICE int workgroup_id() { return __builtin_amdgcn_workgroup_id_x(); }
DG_DEVICE int workgroup_id_y() { return __builtin_amdgcn_workgroup_id_y(); }
DG_DEVICE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DG_DEVICE int lane_id() { return thread_id() % kWaveSize; }
// lane_id() that compilers don't hoist: nothing computed from it is kept in registers throughout a loop.
DG_DEVICE int lane_id_computed_here() {
  int lane = lane_id();
  asm volatile("" : "+v"(lane));
  __builtin_assume(lane >= 0 && lane < kWaveSize);
  return lane;
}
// Makes a scalar of a value that is the same in all lanes of a wave.
DG_DEVICE int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }
DG_DEVICE int wave_id() { return uniform(thread_id() / kWaveSize); }

// The kernel's arguments, read again where this is called, so that a loop needn't keep them in registers.
template <class T>
DG_DEVICE const T& kernel_arguments() {
  auto* arguments = __builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(arguments));
  return *reinterpret_cast<const T*>((const void*)arguments);
}

// Brings all of the kernel's arguments into the scalar cache, so that only one of their loads takes long.
template <class T>
DG_DEVICE void fetch_arguments() {
  constexpr int kWordsOfLine = 64 / sizeof(int);
  constexpr int kLines = (sizeof(T) / sizeof(int) + kWordsOfLine - 1) / kWordsOfLine;
  constexpr int kMostLines = 16;
  static_assert(kLines <= kMostLines);
  const int* const words = reinterpret_cast<const int*>(&kernel_arguments<T>());
  // In registers of their own, so that all are loaded at once.
  Vector<int, kMostLines> of_lines = {};
#pragma unroll
  for (int line = 0; line < kLines; ++line) of_lines[line] = words[line * kWordsOfLine];
  asm volatile("" ::"s"(of_lines));
}

// Waits for scalar loads, which bring arguments to registers.
DG_DEVICE void wait_for_arguments() {
  constexpr int kNoScalarLoads = 0xc07f;  // s_waitcnt lgkmcnt(0): the other counters' largest values
  __builtin_amdgcn_s_waitcnt(kNoScalarLoads);
}

// Waits until at most kLeft of this wave's vector loads and stores are in flight.
template <int kLeft>
DG_DEVICE void wait_for_loads() {
  constexpr int kNoVectorMemory = 0x0f70;  // s_waitcnt vmcnt(0)
  static_assert(kLeft < 16, "the counter's other bits are elsewhere");
  __builtin_amdgcn_s_waitcnt(kNoVectorMemory + kLeft);
}

// Waits for this wave's LDS accesses.
DG_DEVICE void wait_for_lds() { wait_for_arguments(); }

// Orders LDS accesses of the whole workgroup; global loads in flight stay in flight.
DG_DEVICE void lds_barrier() {
#if DG_HAS_LLVM_19_BUILTINS
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else  // equivalent here, for the waves of a workgroup share one cache
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#endif
}

}  // namespace deep_gemm_rocm

// Kernels that only move memory, 16 bytes a work-item. simulator.py measures bandwidth with them, and small_m.py
// compares GEMMs with them.
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

constexpr int kThreads = 256;
constexpr int kWaves = kThreads / kWaveSize;
using Float4 = __attribute__((__vector_size__(16))) float;

DG_KERNEL void copy(const Float4* x, const Float4*, Float4* out, int count) {
#ifdef __HIP_DEVICE_COMPILE__
  const int i = workgroup_id() * kThreads + thread_id();
  if (i < count) out[i] = x[i];
#endif
}

DG_KERNEL void add(const Float4* x, const Float4* y, Float4* out, int count) {
#ifdef __HIP_DEVICE_COMPILE__
  const int i = workgroup_id() * kThreads + thread_id();
  if (i < count) out[i] = x[i] + y[i];
#endif
}

// out[r] = the sum of row r, of 4 * count floats.
DG_KERNEL void row_sum(const Float4* x, const Float4*, float* out, int count) {
#ifdef __HIP_DEVICE_COMPILE__
  __shared__ float sums[kWaves];
  Float4 sum4 = {};
  for (int i = thread_id(); i < count; i += kThreads) sum4 += x[(long)workgroup_id() * count + i];
  float sum = sum4[0] + sum4[1] + sum4[2] + sum4[3];
  for (int distance = kWaveSize / 2; distance > 0; distance /= 2) {
    const int neighbour = __builtin_amdgcn_ds_bpermute(4 * (lane_id() ^ distance), __builtin_bit_cast(int, sum));
    sum += __builtin_bit_cast(float, neighbour);
  }
  if (lane_id() == 0) sums[wave_id()] = sum;
  lds_barrier();
  if (thread_id() == 0) out[workgroup_id()] = sums[0] + sums[1] + sums[2] + sums[3];
#endif
}

// Only reads: what it adds up is stored where it isn't a number, so that compilers keep the loads.
constexpr int kReads = 8;
DG_KERNEL void read(const Float4* x, const Float4*, Float4* out, int count) {
#ifdef __HIP_DEVICE_COMPILE__
  const int first = workgroup_id() * kThreads * kReads + thread_id();
  Float4 sum = {};
#pragma unroll
  for (int i = 0; i < kReads; ++i) sum += x[min(first + i * kThreads, count - 1)];
  if (__builtin_isnan(sum[0] + sum[1] + sum[2] + sum[3])) out[0] = sum;
#endif
}

}  // namespace deep_gemm_rocm

// `columns` 0: elementwise.
extern "C" hipError_t dg_launch(int kernel, const void* x, const void* y, void* out, int rows, int columns,
                                hipStream_t stream) {
  using namespace deep_gemm_rocm;
  const void* const kernels[] = {reinterpret_cast<const void*>(&copy), reinterpret_cast<const void*>(&add),
                                 reinterpret_cast<const void*>(&row_sum), reinterpret_cast<const void*>(&read)};
  const bool elementwise = kernel != 2;
  const int of_workgroup = kernel == 3 ? kThreads * kReads : kThreads;
  int count = (elementwise ? rows * columns : columns) / 4;
  void* arguments[] = {&x, &y, &out, &count};
  const unsigned groups = elementwise ? ceil_div(count, of_workgroup) : rows;
  return hipLaunchKernel(kernels[kernel], {groups, 1, 1}, {kThreads, 1, 1}, arguments, 0, stream);
}

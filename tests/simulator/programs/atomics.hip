// Atomics of all widths on memory and on LDS, through typed and through generic pointers.
#include "device.h"

// targets: sum, negated sum, and, or, xor, least, largest
template <class T>
__device__ __attribute__((noinline)) void update(T* targets, T value) {
  atomicAdd(&targets[0], value);
  atomicSub(&targets[1], value);
  atomicAnd(&targets[2], value);
  atomicOr(&targets[3], value);
  atomicXor(&targets[4], value);
  atomicMin(&targets[5], value);
  atomicMax(&targets[6], value);
}
// By compare and swap: a sum of squares, saturated.
template <class T>
__device__ void saturate(T* place, T value) {
  T seen = *(volatile T*)place, before;
  do {
    before = seen;
    const T sum = before + value * value;
    seen = atomicCAS(place, before, sum < before ? T(~T(0)) : sum);
  } while (seen != before);
}
template <class T>
__device__ void all(const T* x, const T* start, T* targets, int n) {
  __shared__ T local[8];
  if (threadIdx.x < 8) local[threadIdx.x] = start[threadIdx.x];
  __syncthreads();
  const int i = global_thread();
  if (i < n) {
    update(targets, x[i]);
    update(local, x[i]);
    saturate(&local[7], x[i]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&targets[8], local[0]);
    atomicAdd(&targets[9], local[1]);
    atomicAnd(&targets[10], local[2]);
    atomicOr(&targets[11], local[3]);
    atomicXor(&targets[12], local[4]);
    atomicMin(&targets[13], local[5]);
    atomicMax(&targets[14], local[6]);
    atomicMax(&targets[15], local[7]);
  }
}
KERNEL all_u32(const u32* x, const u32* start, u32* targets, int n) { all(x, start, targets, n); }
KERNEL all_u64(const u64* x, const u64* start, u64* targets, int n) { all(x, start, targets, n); }

// Sums of floats, in memory, in LDS, and of pairs of halves; extremes of doubles.
KERNEL floats(const float* x, float* sums, double* wide, half2* pairs, int n) {
  __shared__ float sum;
  __shared__ double wide_sum;
  if (threadIdx.x == 0) {
    sum = 0;
    wide_sum = 0;
  }
  __syncthreads();
  const int i = global_thread();
  if (i < n) {
    atomicAdd(&sums[0], x[i]);
    atomicAdd(&sum, x[i]);
    atomicAdd(&wide[0], double(x[i]));
    atomicAdd(&wide_sum, double(x[i]));
    atomicMin(&wide[2], double(x[i]));
    atomicMax(&wide[3], double(x[i]));
    const half2 pair = {_Float16(1), _Float16(i & 3)};
    __builtin_amdgcn_global_atomic_fadd_v2f16((__attribute__((address_space(1))) half2*)&pairs[i % 4], pair);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&sums[1], sum);
    atomicAdd(&wide[1], wide_sum);
  }
}

// Tickets that wrap, and what each operation returns: the values before, all different.
KERNEL tickets(u32* counter, u32* taken, u32* wrapped, int n) {
  const int i = global_thread();
  if (i >= n) return;
  taken[i] = atomicAdd(counter, 1u);
  __builtin_amdgcn_atomic_inc32(&wrapped[0], 6u, __ATOMIC_RELAXED, "agent");
  __builtin_amdgcn_atomic_dec32(&wrapped[1], 6u, __ATOMIC_RELAXED, "agent");
}

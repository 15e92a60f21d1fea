// Sums by shuffles within a wave, by LDS across waves, by an atomic across blocks.
#include "device.h"

template <class T>
__device__ T wave_sum(T value) {
  for (int step = warpSize / 2; step > 0; step >>= 1) value += __shfl_down(value, step);
  return value;
}

template <class T>
__device__ void block_sum(const T* x, T* total, int n) {
  __shared__ T partial[16];
  T sum = 0;
  for (int i = global_thread(); i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = wave_sum(sum);
  const int wave = threadIdx.x / warpSize, waves = blockDim.x / warpSize;
  if (threadIdx.x % warpSize == 0) partial[wave] = sum;
  __syncthreads();
  if (wave == 0) {
    sum = wave_sum(threadIdx.x < waves ? partial[threadIdx.x] : T(0));
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}
KERNEL sum_f32(const float* x, float* total, int n) { block_sum(x, total, n); }
KERNEL sum_f64(const double* x, double* total, int n) { block_sum(x, total, n); }
KERNEL sum_i32(const int* x, int* total, int n) { block_sum(x, total, n); }
KERNEL sum_u64(const u64* x, u64* total, int n) { block_sum(x, total, n); }

// The largest magnitude and where it is: a butterfly on a struct, whose last wave is not full.
struct Peak {
  float value;
  int index;
};
KERNEL peaks(const float* x, float* values, int* indices, int n) {
  const int i = global_thread();
  Peak peak = {i < n ? __builtin_fabsf(x[i]) : -1.0f, i};
  for (int step = 32; step > 0; step >>= 1) {
    const Peak other = __shfl_xor(peak, step);
    if (other.value > peak.value || (other.value == peak.value && other.index < peak.index)) peak = other;
  }
  if (lane_id() == 0) {
    values[i / warpSize] = peak.value;
    indices[i / warpSize] = peak.index;
  }
}

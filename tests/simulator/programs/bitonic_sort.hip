// A block sorts its keys, with a value each, in LDS.
#include "device.h"

template <class Key>
__device__ void sort(Key* all_keys, u32* all_values) {
  constexpr u32 n = 512;
  __shared__ Key keys[n];
  __shared__ u32 values[n];
  all_keys += blockIdx.x * n;
  all_values += blockIdx.x * n;
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
    keys[i] = all_keys[i];
    values[i] = all_values[i];
  }
  for (u32 size = 2; size <= n; size *= 2) {
    for (u32 stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      const u32 i = 2 * threadIdx.x - (threadIdx.x & (stride - 1)), j = i + stride;
      const bool descends = i & size;
      if ((keys[i] > keys[j]) != descends) {
        const Key key = keys[i];
        keys[i] = keys[j];
        keys[j] = key;
        const u32 value = values[i];
        values[i] = values[j];
        values[j] = value;
      }
    }
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
    all_keys[i] = keys[i];
    all_values[i] = values[i];
  }
}
KERNEL sort_f32(float* keys, u32* values) { sort(keys, values); }
KERNEL sort_u64(u64* keys, u32* values) { sort(keys, values); }
KERNEL sort_i8(signed char* keys, u32* values) { sort(keys, values); }

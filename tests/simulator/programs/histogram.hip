// Counts in LDS, of the launch's size, then in memory.
#include "device.h"

extern __shared__ u32 counts[];

KERNEL histogram(const u8* x, u32* bins, int n, int num_bins) {
  for (int bin = threadIdx.x; bin < num_bins; bin += blockDim.x) counts[bin] = 0;
  __syncthreads();
  for (int i = global_thread(); i < n; i += gridDim.x * blockDim.x) atomicAdd(&counts[x[i] % num_bins], 1u);
  __syncthreads();
  for (int bin = threadIdx.x; bin < num_bins; bin += blockDim.x)
    if (counts[bin] != 0) atomicAdd(&bins[bin], counts[bin]);
}

// The rank of each element in its bin of its block, from what the atomic returns; bins of 16 bits in pairs.
KERNEL block_ranks(const u8* x, u16* ranks, int n) {
  __shared__ u32 pairs[128];
  for (int i = threadIdx.x; i < 128; i += blockDim.x) pairs[i] = 0;
  __syncthreads();
  const int i = global_thread();
  if (i < n) {
    const int shift = x[i] % 2 * 16;
    ranks[i] = u16(atomicAdd(&pairs[x[i] / 2], 1u << shift) >> shift);
  }
}

// Sums of all elements before each one: in one launch, where a block takes what the blocks before it have published.
#include "device.h"

__device__ int wave_scan(int value) {
  for (int step = 1; step < warpSize; step *= 2) {
    const int other = __shfl_up(value, step);
    if (lane_id() >= step) value += other;
  }
  return value;
}

// The sum of the block up to and with this thread; `total` of the whole block.
__device__ int block_scan(int value, int& total) {
  __shared__ int sums[16];
  const int wave = threadIdx.x / warpSize;
  const int inclusive = wave_scan(value);
  if (lane_id() == 63) sums[wave] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < int(blockDim.x / warpSize); ++i) {
    before += i < wave ? sums[i] : 0;
    total += sums[i];
  }
  __syncthreads();
  return before + inclusive;
}

// Decoupled look-back (Merrill and Garland): state is 0, or 1 and a block's own sum, or 2 and the sum up to the block.
KERNEL exclusive_scan(const int* x, int* y, u64* states, u32* next_block, int n) {
  __shared__ u32 ticket;
  __shared__ int carry;
  if (threadIdx.x == 0) ticket = atomicAdd(next_block, 1u);
  __syncthreads();
  const int block = ticket, i = block * blockDim.x + threadIdx.x;
  const int value = i < n ? x[i] : 0;
  int total;
  const int inclusive = block_scan(value, total);
  if (threadIdx.x == 0) {
    const auto publish = [&](u64 state, int sum) {
      __hip_atomic_store(&states[block], state << 32 | u32(sum), __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
    };
    publish(block == 0 ? 2 : 1, total);
    int before = 0;
    for (int other = block - 1; other >= 0;) {
      const u64 state = __hip_atomic_load(&states[other], __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
      if (state >> 32 == 0) continue;
      before += int(u32(state));
      if (state >> 32 == 2) break;
      --other;
    }
    if (block > 0) publish(2, before + total);
    carry = before;
  }
  __syncthreads();
  if (i < n) y[i] = carry + inclusive - value;
}

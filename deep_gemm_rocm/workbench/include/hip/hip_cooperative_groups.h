// Cooperative groups: the grid, the workgroup, its tiles of 2 to 64 lanes, and the active lanes of a wave.
#pragma once

#include "hip_runtime.h"

namespace cooperative_groups {

class thread_block {
 public:
  __HIP_DEVICE__ static void sync() { __syncthreads(); }
  __HIP_DEVICE__ static unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  __HIP_DEVICE__ static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
  __HIP_DEVICE__ static unsigned num_threads() { return size(); }
  __HIP_DEVICE__ static dim3 thread_index() { return threadIdx; }
  __HIP_DEVICE__ static dim3 group_index() { return blockIdx; }
  __HIP_DEVICE__ static dim3 group_dim() { return blockDim; }
};
__HIP_INLINE_DEVICE__ thread_block this_thread_block() { return {}; }

// All workgroups of a cooperative launch. The runtime passes the place of its barrier, as to ROCm's device libraries
// (ockl, cg.cl).
class grid_group {
 public:
  __HIP_DEVICE__ bool is_valid() const { return barrier() != nullptr; }
  __HIP_DEVICE__ void sync() const {
    __syncthreads();
    if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0) wait_for_all();
    __syncthreads();
  }
  __HIP_DEVICE__ static dim3 group_dim() { return gridDim; }
  __HIP_DEVICE__ static dim3 dim_blocks() { return gridDim; }
  __HIP_DEVICE__ static dim3 block_index() { return blockIdx; }
  __HIP_DEVICE__ static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  __HIP_DEVICE__ static unsigned long long block_rank() {
    return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  __HIP_DEVICE__ static unsigned long long size() { return num_blocks() * thread_block::size(); }
  __HIP_DEVICE__ static unsigned long long num_threads() { return size(); }
  __HIP_DEVICE__ static unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }

 private:
  struct Barrier {
    unsigned long long of_other_grids[4];
    unsigned arrived;  // workgroups in the lower half, barriers passed in the upper one
    unsigned reserved;
    unsigned workgroups;
  };
  __HIP_DEVICE__ static Barrier* barrier() {
    constexpr int hidden_multigrid_sync_arg = 11;  // LLVM AMDGPU usage, code object V5, in units of 8 bytes
    return static_cast<Barrier* const*>(__builtin_amdgcn_implicitarg_ptr())[hidden_multigrid_sync_arg];
  }
  __HIP_DEVICE__ static void wait_for_all() {
    Barrier* const at = barrier();
    __threadfence();
    const unsigned before = atomicAdd(&at->arrived, 1u), passed = before >> 16;
    if ((before & 0xFFFF) == at->workgroups - 1) atomicAdd(&at->arrived, 0x10000 - at->workgroups);
    while (__hip_atomic_load(&at->arrived, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) >> 16 == passed)
      __builtin_amdgcn_s_sleep(1);
    __threadfence();
  }
};
__HIP_INLINE_DEVICE__ grid_group this_grid() { return {}; }

// Consecutive threads of a workgroup within a wave, which run in step.
template <unsigned width, class Parent = thread_block>
class thread_block_tile {
  static_assert(width != 0 && width <= 64 && (width & (width - 1)) == 0, "tiles have 1, 2, 4, ... or 64 threads");

 public:
  __HIP_DEVICE__ static void sync() { __syncwarp(); }
  __HIP_DEVICE__ static unsigned thread_rank() { return __lane_id() % width; }
  __HIP_DEVICE__ static constexpr unsigned size() { return width; }
  __HIP_DEVICE__ static constexpr unsigned num_threads() { return width; }
  __HIP_DEVICE__ static unsigned meta_group_rank() { return thread_block::thread_rank() / width; }
  __HIP_DEVICE__ static unsigned meta_group_size() { return (thread_block::size() + width - 1) / width; }
  template <class T>
  __HIP_DEVICE__ static T shfl(T value, int lane) { return __shfl(value, lane, width); }
  template <class T>
  __HIP_DEVICE__ static T shfl_up(T value, unsigned delta) { return __shfl_up(value, delta, width); }
  template <class T>
  __HIP_DEVICE__ static T shfl_down(T value, unsigned delta) { return __shfl_down(value, delta, width); }
  template <class T>
  __HIP_DEVICE__ static T shfl_xor(T value, unsigned mask) { return __shfl_xor(value, int(mask), width); }
  __HIP_DEVICE__ static unsigned long long ballot(int predicate) {
    return __ballot(predicate) >> (__lane_id() & ~(width - 1)) & lanes();
  }
  __HIP_DEVICE__ static int any(int predicate) { return ballot(predicate) != 0; }
  __HIP_DEVICE__ static int all(int predicate) { return ballot(!predicate) == 0; }

 private:
  __HIP_DEVICE__ static constexpr unsigned long long lanes() { return ~0ull >> (64 - width); }
};
template <unsigned width, class Parent>
__HIP_INLINE_DEVICE__ thread_block_tile<width, Parent> tiled_partition(const Parent&) { return {}; }

class coalesced_group {
 public:
  __HIP_DEVICE__ explicit coalesced_group(unsigned long long lanes) : lanes_(lanes) {}
  __HIP_DEVICE__ static void sync() { __syncwarp(); }
  __HIP_DEVICE__ unsigned size() const { return unsigned(__popcll(lanes_)); }
  __HIP_DEVICE__ unsigned num_threads() const { return size(); }
  __HIP_DEVICE__ unsigned thread_rank() const { return unsigned(__popcll(lanes_ & ((1ull << __lane_id()) - 1))); }
  // Ranks wrap around; those of shfl_up and shfl_down stay within the group, as in tiles.
  template <class T>
  __HIP_DEVICE__ T shfl(T value, int rank) const { return __shfl(value, lane_of(unsigned(rank) % size())); }
  template <class T>
  __HIP_DEVICE__ T shfl_up(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return __shfl(value, lane_of(delta > rank ? rank : rank - delta));
  }
  template <class T>
  __HIP_DEVICE__ T shfl_down(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return __shfl(value, lane_of(delta >= size() - rank ? rank : rank + delta));
  }
  // A bit for each rank.
  __HIP_DEVICE__ unsigned long long ballot(int predicate) const {
    const unsigned long long agreeing = ballot_of_lanes(predicate);
    unsigned long long ranks = 0, bit = 1;
    for (unsigned long long rest = lanes_; rest != 0; rest &= rest - 1, bit <<= 1)
      if ((agreeing & rest & -rest) != 0) ranks |= bit;
    return ranks;
  }
  __HIP_DEVICE__ unsigned long long ballot_of_lanes(int predicate) const { return __ballot(predicate) & lanes_; }
  __HIP_DEVICE__ int any(int predicate) const { return ballot_of_lanes(predicate) != 0; }
  __HIP_DEVICE__ int all(int predicate) const { return ballot_of_lanes(!predicate) == 0; }

 private:
  // The lane of a rank: by halves, the one below which so many of the group are.
  __HIP_DEVICE__ int lane_of(unsigned rank) const {
    unsigned long long rest = lanes_;
    int lane = 0;
    for (int half = 32; half != 0; half /= 2) {
      const unsigned below = unsigned(__popcll(rest & ((1ull << half) - 1)));
      if (rank < below) continue;
      rank -= below;
      rest >>= half;
      lane += half;
    }
    return lane;
  }

  unsigned long long lanes_;
};
__HIP_INLINE_DEVICE__ coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <class Group>
__HIP_INLINE_DEVICE__ void sync(const Group& group) { group.sync(); }

}  // namespace cooperative_groups

// The part of HIP's device API that the programs beside this file use, for compilers that come without HIP's headers.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define KERNEL extern "C" __global__ void

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef _Float16 half2 __attribute__((ext_vector_type(2)));
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));

#define COORDINATES(Name, object, function)                             \
  struct Name {                                                         \
    static __device__ u32 get_x() { return function(x); }               \
    static __device__ u32 get_y() { return function(y); }               \
    static __device__ u32 get_z() { return function(z); }               \
    __declspec(property(get = get_x)) u32 x;                            \
    __declspec(property(get = get_y)) u32 y;                            \
    __declspec(property(get = get_z)) u32 z;                            \
  };                                                                    \
  extern const __device__ __attribute__((weak)) Name object;
#define THREAD_IDX(d) __builtin_amdgcn_workitem_id_##d()
#define BLOCK_IDX(d) __builtin_amdgcn_workgroup_id_##d()
#define BLOCK_DIM(d) __builtin_amdgcn_workgroup_size_##d()
#define GRID_DIM(d) (__builtin_amdgcn_grid_size_##d() / __builtin_amdgcn_workgroup_size_##d())
COORDINATES(ThreadIdx, threadIdx, THREAD_IDX)
COORDINATES(BlockIdx, blockIdx, BLOCK_IDX)
COORDINATES(BlockDim, blockDim, BLOCK_DIM)
COORDINATES(GridDim, gridDim, GRID_DIM)
constexpr int warpSize = 64;

static __device__ inline int global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

static __device__ inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
static __device__ inline void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }

static __device__ inline u32 lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
static __device__ inline u64 __ballot(bool predicate) { return __builtin_amdgcn_ballot_w64(predicate); }
static __device__ inline bool __any(bool predicate) { return __ballot(predicate) != 0; }
static __device__ inline bool __all(bool predicate) { return __ballot(predicate) == __ballot(true); }

template <class T>
static __device__ inline T shuffle(T value, u32 lane) {
  int words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute(int(lane * 4), word);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}
template <class T>
static __device__ inline T __shfl(T value, int lane) { return shuffle(value, u32(lane)); }
template <class T>
static __device__ inline T __shfl_xor(T value, int mask) { return shuffle(value, lane_id() ^ u32(mask)); }
template <class T>
static __device__ inline T __shfl_down(T value, int delta) {
  const u32 lane = lane_id() + u32(delta);
  return shuffle(value, lane < 64 ? lane : lane_id());
}
template <class T>
static __device__ inline T __shfl_up(T value, int delta) {
  const u32 lane = lane_id();
  return shuffle(value, lane >= u32(delta) ? lane - u32(delta) : lane);
}

#define ATOMIC(name, builtin)                                                        \
  template <class T>                                                                 \
  static __device__ inline T name(T* place, T value) {                               \
    return builtin(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);        \
  }
ATOMIC(atomicAdd, __hip_atomic_fetch_add)
ATOMIC(atomicSub, __hip_atomic_fetch_sub)
ATOMIC(atomicAnd, __hip_atomic_fetch_and)
ATOMIC(atomicOr, __hip_atomic_fetch_or)
ATOMIC(atomicXor, __hip_atomic_fetch_xor)
ATOMIC(atomicMin, __hip_atomic_fetch_min)
ATOMIC(atomicMax, __hip_atomic_fetch_max)
ATOMIC(atomicExch, __hip_atomic_exchange)
template <class T>
static __device__ inline T atomicCAS(T* place, T expected, T desired) {
  __hip_atomic_compare_exchange_strong(place, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

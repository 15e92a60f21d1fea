// Communication between the 64 lanes of a wave.
#pragma once

#include "coordinates.h"

__HIP_INLINE_DEVICE__ unsigned __lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
__HIP_INLINE_DEVICE__ unsigned long long __ballot(int predicate) { return __builtin_amdgcn_ballot_w64(predicate != 0); }
__HIP_INLINE_DEVICE__ unsigned long long __ballot64(int predicate) { return __ballot(predicate); }
__HIP_INLINE_DEVICE__ unsigned long long __activemask() { return __ballot(1); }
__HIP_INLINE_DEVICE__ int __any(int predicate) { return __ballot(predicate) != 0; }
__HIP_INLINE_DEVICE__ int __all(int predicate) { return __ballot(predicate) == __activemask(); }

namespace __hip_warp {
// The value of another lane, dword by dword.
template <class T>
__HIP_INLINE_DEVICE__ T of_lane(T value, int lane) {
  int words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute(4 * lane, word);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}
}  // namespace __hip_warp

// `width` is a power of two up to 64; lanes of different parts of that width don't see each other.
template <class T>
__HIP_INLINE_DEVICE__ T __shfl(T value, int lane, int width = warpSize) {
  const int self = int(__lane_id());
  return __hip_warp::of_lane(value, (self & ~(width - 1)) + (lane & (width - 1)));
}
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_up(T value, unsigned delta, int width = warpSize) {
  const int self = int(__lane_id()), lane = self - int(delta);
  return __hip_warp::of_lane(value, lane < (self & ~(width - 1)) ? self : lane);
}
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_down(T value, unsigned delta, int width = warpSize) {
  const int self = int(__lane_id());
  return __hip_warp::of_lane(value, (self & (width - 1)) + int(delta) >= width ? self : self + int(delta));
}
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_xor(T value, int mask, int width = warpSize) {
  const int self = int(__lane_id()), lane = self ^ mask;
  return __hip_warp::of_lane(value, lane >= ((self + width) & ~(width - 1)) ? self : lane);
}

// CUDA's forms. The mask of lanes isn't checked.
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_sync(unsigned long long, T value, int lane, int width = warpSize) {
  return __shfl(value, lane, width);
}
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_up_sync(unsigned long long, T value, unsigned delta, int width = warpSize) {
  return __shfl_up(value, delta, width);
}
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_down_sync(unsigned long long, T value, unsigned delta, int width = warpSize) {
  return __shfl_down(value, delta, width);
}
template <class T>
__HIP_INLINE_DEVICE__ T __shfl_xor_sync(unsigned long long, T value, int mask, int width = warpSize) {
  return __shfl_xor(value, mask, width);
}
__HIP_INLINE_DEVICE__ unsigned long long __ballot_sync(unsigned long long mask, int predicate) {
  return __ballot(predicate) & mask;
}
__HIP_INLINE_DEVICE__ int __any_sync(unsigned long long mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
__HIP_INLINE_DEVICE__ int __all_sync(unsigned long long mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}

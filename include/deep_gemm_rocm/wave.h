// Operations across the lanes of a wave. All 64 lanes must take part.
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"

namespace deep_gemm_rocm {

// One bit for each lane.
DG_DEVICE uint64_t ballot(bool condition) { return __builtin_amdgcn_ballot_w64(condition); }

DG_DEVICE int lowest_bit(uint64_t bits) { return __builtin_ctzl(bits); }
DG_DEVICE int highest_bit(uint64_t bits) { return 63 - __builtin_clzl(bits); }

// What `lane` holds; a scalar.
DG_DEVICE int read_lane(int value, int lane) { return __builtin_amdgcn_readlane(value, lane); }

// The sum over this lane and those before it.
DG_DEVICE int inclusive_sum(int value) {
  const int lane = lane_id_computed_here();
#pragma unroll
  for (int distance = 1; distance < kWaveSize; distance *= 2) {
    const int before = __builtin_amdgcn_ds_bpermute((lane - distance) * static_cast<int>(sizeof(int)), value);
    value += lane >= distance ? before : 0;
  }
  return value;
}

}  // namespace deep_gemm_rocm

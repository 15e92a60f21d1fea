// Operations across the lanes of a wave. All 64 lanes must take part.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/static_for.h"

namespace deep_gemm_rocm {

// One bit for each lane.
DG_DEVICE uint64_t ballot(bool condition) {
#if __clang_major__ < 18  // can't select an instruction for a ballot of `isunordered`
  int word = condition;
  asm("" : "+v"(word));
  condition = word != 0;
#endif
  return __builtin_amdgcn_ballot_w64(condition);
}

DG_DEVICE int lowest_bit(uint64_t bits) { return __builtin_ctzl(bits); }
DG_DEVICE int highest_bit(uint64_t bits) { return 63 - __builtin_clzl(bits); }
DG_DEVICE int count_bits(uint64_t bits) { return __builtin_popcountl(bits); }
// `sum` and the number of lanes before this one whose bits are set.
DG_DEVICE int add_lanes_before(uint64_t bits, int sum) {
  sum = __builtin_amdgcn_mbcnt_lo(static_cast<unsigned>(bits), sum);
  return __builtin_amdgcn_mbcnt_hi(static_cast<unsigned>(bits >> 32), sum);
}

// The value of `lane`, as a scalar.
DG_DEVICE int read_lane(int value, int lane) { return __builtin_amdgcn_readlane(value, lane); }
DG_DEVICE float read_lane(float value, int lane) {
  return __builtin_bit_cast(float, read_lane(__builtin_bit_cast(int, value), lane));
}

// The value of `lane`, which may differ from lane to lane.
DG_DEVICE int exchange(int value, int lane) {
  return __builtin_amdgcn_ds_bpermute(lane * static_cast<int>(sizeof(int)), value);
}
DG_DEVICE float exchange(float value, int lane) {
  return __builtin_bit_cast(float, exchange(__builtin_bit_cast(int, value), lane));
}

// The value of another lane by DPP, in the rows of 16 lanes whose bits are set in kRows. 0 where there is no such lane.
template <int kControl, int kRows = 0xF>
DG_DEVICE int handed_over(int value) {
  return __builtin_amdgcn_update_dpp(0, value, kControl, kRows, 0xF, false);
}

// DPP controls: CDNA3 ISA guide, "Data Parallel Primitives".
constexpr int kRowShiftRight = 0x110;  // by so many lanes
constexpr int kLastToNextRow = 0x142;
constexpr int kLane31ToOthers = 0x143;
constexpr int kRowNewBroadcast = 0x150;  // of a lane of each row to all of the row
constexpr int kLanesOfDppRow = 16;

// The value of lane kLane of this lane's row. It always exists, so no register is cleared first, as in handed_over().
template <int kLane>
DG_DEVICE float of_dpp_row(float value) {
  static_assert(kLane < kLanesOfDppRow);
  const int bits = __builtin_bit_cast(int, value);
  return __builtin_bit_cast(float, __builtin_amdgcn_mov_dpp(bits, kRowNewBroadcast + kLane, 0xF, 0xF, true));
}

// The same of a lane that is known once loops are unrolled.
DG_DEVICE float of_dpp_row(float value, int lane) {
  float result = 0;
  static_for<kLanesOfDppRow>([&](auto index) {
    if (index == lane) result = of_dpp_row<index>(value);
  });
  return result;
}

// The sum over this lane and those before it.
DG_DEVICE int inclusive_sum(int value) {
  constexpr int kOddRows = 0b1010;
  constexpr int kLastRows = 0b1100;
  value += handed_over<kRowShiftRight + 1>(value);
  value += handed_over<kRowShiftRight + 2>(value);
  value += handed_over<kRowShiftRight + 4>(value);
  value += handed_over<kRowShiftRight + 8>(value);
  value += handed_over<kLastToNextRow, kOddRows>(value);
  value += handed_over<kLane31ToOthers, kLastRows>(value);
  return value;
}

// One of kStepsOfWave steps, after which the last lane has the largest value of a wave.
constexpr int kStepsOfWave = 6;
template <int kStep>
DG_DEVICE unsigned larger_of_steps(unsigned value) {
  constexpr int kControls[] = {kRowShiftRight + 1, kRowShiftRight + 2, kRowShiftRight + 4, kRowShiftRight + 8,
                               kLastToNextRow, kLane31ToOthers};
  const unsigned other = handed_over<kControls[kStep]>(static_cast<int>(value));
  return value < other ? other : value;
}
DG_DEVICE unsigned of_last_lane(unsigned value) { return read_lane(static_cast<int>(value), kWaveSize - 1); }

// The largest value of a wave, as a scalar.
DG_DEVICE unsigned max_over_wave(unsigned value) {
  static_for<kStepsOfWave>([&](auto step) { value = larger_of_steps<step>(value); });
  return of_last_lane(value);
}

// The value of lane `lane ^ kMask`. Within 16 lanes by DPP, which costs no more than the operation that uses it.
template <int kMask>
DG_DEVICE float exchanged(float value) {
  const int bits = __builtin_bit_cast(int, value);
  // DPP controls and swizzle patterns: CDNA3 ISA guide, "Data Parallel Primitives" and "DS_SWIZZLE_B32".
  constexpr int kRowHalfMirror = 0x141;
  constexpr int kRowMirror = 0x140;
  if constexpr (kMask < 4) {
    constexpr int kQuadPermutation = (0 ^ kMask) | (1 ^ kMask) << 2 | (2 ^ kMask) << 4 | (3 ^ kMask) << 6;
    return __builtin_bit_cast(float, __builtin_amdgcn_update_dpp(bits, bits, kQuadPermutation, 0xF, 0xF, false));
  } else if constexpr (kMask == 7 || kMask == 15) {
    constexpr int kControl = kMask == 7 ? kRowHalfMirror : kRowMirror;
    return __builtin_bit_cast(float, __builtin_amdgcn_update_dpp(bits, bits, kControl, 0xF, 0xF, false));
  } else if constexpr (kMask < 32) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_swizzle(bits, kMask << 10 | 0x1F));
  } else {
    static_assert(kMask < kWaveSize);
    const int from = (lane_id_computed_here() ^ kMask) * static_cast<int>(sizeof(int));
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(from, bits));
  }
}

// Reduces over the lanes that agree in lane % kDistance. All of them get the result.
template <int kDistance>
DG_DEVICE float max_over_lane_groups(float value) {
  if constexpr (kDistance < kWaveSize) {
    return max_over_lane_groups<2 * kDistance>(__builtin_fmaxf(value, exchanged<kDistance>(value)));
  }
  return value;
}
template <int kDistance>
DG_DEVICE float sum_over_lane_groups(float value) {
  if constexpr (kDistance < kWaveSize) {
    return sum_over_lane_groups<2 * kDistance>(value + exchanged<kDistance>(value));
  }
  return value;
}

// Reduces over kLanes neighbouring lanes, up to 16. All of them get the result.
template <int kLanes>
DG_DEVICE float max_over_neighbours(float value) {
  if constexpr (kLanes > 1) {
    value = max_over_neighbours<kLanes / 2>(value);
    return __builtin_fmaxf(value, exchanged<kLanes == 2 ? 1 : kLanes == 4 ? 2 : kLanes - 1>(value));
  }
  return value;
}
template <int kLanes>
DG_DEVICE float sum_over_neighbours(float value) {
  if constexpr (kLanes > 1) {
    value = sum_over_neighbours<kLanes / 2>(value);
    return value + exchanged<kLanes == 2 ? 1 : kLanes == 4 ? 2 : kLanes - 1>(value);
  }
  return value;
}

}  // namespace deep_gemm_rocm

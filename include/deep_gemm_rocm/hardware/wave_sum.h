// Sums of fp64 over a wave, whose order can't be seen once they are rounded to fp32.
#pragma once

#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// The value of another lane by DPP, or 0 where there is no such lane.
template <int kControl>
DG_DEVICE double handed_over(double value) {
  using Halves = Vector<int, 2>;
  auto halves = __builtin_bit_cast(Halves, value);
#pragma unroll
  for (int i = 0; i < 2; ++i) halves[i] = __builtin_amdgcn_mov_dpp(halves[i], kControl, 0xF, 0xF, true);
  return __builtin_bit_cast(double, halves);
}

// As a scalar. The last lane of a row of 16 gets the row's sum, that of the second row both, and so on.
DG_DEVICE double sum_over_wave(double value) {
  static_for<6>([&](auto step) {
    constexpr int kControls[] = {kRowShiftRight + 1, kRowShiftRight + 2, kRowShiftRight + 4, kRowShiftRight + 8,
                                 kLastToNextRow, kLane31ToOthers};
    value += handed_over<kControls[step]>(value);
  });
  using Halves = Vector<int, 2>;
  const auto halves = __builtin_bit_cast(Halves, value);
  return __builtin_bit_cast(double, Halves{read_lane(halves[0], kWaveSize - 1), read_lane(halves[1], kWaveSize - 1)});
}

}  // namespace deep_gemm_rocm

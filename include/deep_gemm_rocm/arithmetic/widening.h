// FP8 numbers as bf16, which has all of them exactly.
#pragma once

#include "deep_gemm_rocm/hardware/buffer_intrinsics.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Two fp32 numbers as bf16. With kRounds they are rounded to nearest, ties away from zero; else they must be exact.
template <bool kRounds>
DG_DEVICE unsigned joined_bf16(float low, float high) {
  constexpr unsigned kHalf = kRounds ? 0x8000 : 0;
  constexpr unsigned kUpperHalves = 0x07060302;  // v_perm_b32: of both operands, the second one's first
  return __builtin_amdgcn_perm(__builtin_bit_cast(unsigned, high) + kHalf, __builtin_bit_cast(unsigned, low) + kHalf,
                               kUpperHalves);
}

// Prepares a factor of numbers that are rounded afterwards: makes a NaN canonical, as rounding could carry low bits of
// another one into the exponent.
DG_DEVICE float factor_before_rounding(float factor) { return __builtin_isnan(factor) ? __builtin_nanf("") : factor; }

// Eight values in order, multiplied with a factor. Without one they are in bf16 exactly.
template <bool kRounds = false>
DG_DEVICE Chunk widened_bf16(const HalfChunk& values, float factor = 1) {
  using Two = Vector<float, 2>;
  Chunk result;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Two low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(values[i]), false) * factor;
    const Two high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(values[i]), true) * factor;
    result[2 * i] = joined_bf16<kRounds>(low[0], low[1]);
    result[2 * i + 1] = joined_bf16<kRounds>(high[0], high[1]);
  }
  return result;
}

// One column of a block of words, each a row of 4 FP8 values, as bf16; each row is multiplied by its factor, if there
// are any. The result has a word for two rows. A conversion yields two columns, so calls for neighbouring columns share
// it.
template <class Result, bool kRounds = false>
DG_DEVICE Result widened_bf16_column(const unsigned* rows, int column, const float* factors = nullptr) {
  using Two = Vector<float, 2>;
  const auto value = [&](int row) {
    const auto word = static_cast<int>(rows[row]);
    const Two two = column < 2 ? __builtin_amdgcn_cvt_pk_f32_fp8(word, false)
                               : __builtin_amdgcn_cvt_pk_f32_fp8(word, true);
    return (kRounds ? two * factors[row] : two)[column % 2];
  };
  Result result;
#pragma unroll
  for (unsigned i = 0; i < sizeof(Result) / sizeof(unsigned); ++i) {
    result[i] = joined_bf16<kRounds>(value(2 * i), value(2 * i + 1));
  }
  return result;
}

}  // namespace deep_gemm_rocm

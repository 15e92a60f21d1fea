// FP8 numbers as bf16, which has all of them exactly.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/buffer_intrinsics.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Two numbers that bf16 has.
DG_DEVICE unsigned exact_bf16(float low, float high) {
  return __builtin_bit_cast(unsigned, NumberRounding<__bf16>::joined(__builtin_bit_cast(unsigned, low),
                                                                     __builtin_bit_cast(unsigned, high)));
}

// Eight values in order.
DG_DEVICE Chunk widened_bf16(const HalfChunk& values) {
  Chunk result;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(values[i]), false);
    const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(values[i]), true);
    result[2 * i] = exact_bf16(low[0], low[1]);
    result[2 * i + 1] = exact_bf16(high[0], high[1]);
  }
  return result;
}

// One column of 8 words of 4 values. A conversion makes two columns, so calls for neighbouring columns share it.
DG_DEVICE Chunk widened_bf16_column(const unsigned* rows, int column) {
  const auto value = [&](int row) {
    const auto word = static_cast<int>(rows[row]);
    const auto two = column < 2 ? __builtin_amdgcn_cvt_pk_f32_fp8(word, false)
                                : __builtin_amdgcn_cvt_pk_f32_fp8(word, true);
    return two[column % 2];
  };
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) chunk[i] = exact_bf16(value(2 * i), value(2 * i + 1));
  return chunk;
}

}  // namespace deep_gemm_rocm

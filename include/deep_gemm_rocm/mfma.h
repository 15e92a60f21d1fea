// Matrix-core instructions (MFMA) of gfx942 with fp32 accumulation: D = A·B + C.
//
// Layouts (AMD matrix instruction calculator, CDNA3). Every operand of these instructions is 8 bytes a lane, whatever
// its element type: lane l holds row l % kRows of A (column l % kRows of B) and the group l / kRows of consecutive k.
//
//   kRows  element      k of an instruction  k held by lane l        D element e of lane l
//   16     fp8, bf8     32                   8·(l/16) + 0…7          row 4·(l/16) + e,               column l % 16
//   16     f16, bf16    16                   4·(l/16) + 0…3          the same
//   32     fp8, bf8     16                   8·(l/32) + 0…7          row 8·(e/4) + 4·(l/32) + e%4,   column l % 32
//   32     f16, bf16     8                   4·(l/32) + 0…3          the same
//
// FP8 types are the FNUZ ones. MFMA ignores EXEC: all 64 lanes take part.
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"
#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// Operand of one lane: 8 bytes.
using MfmaOperand = uint64_t;

template <int kRows_>
struct MfmaShape {
  static constexpr int kRows = kRows_;
  static constexpr int kLaneGroups = kWaveSize / kRows;
  static constexpr int kBytesK = kLaneGroups * static_cast<int>(sizeof(MfmaOperand));
  static constexpr int kElements = kRows * kRows / kWaveSize;
  using Accumulator = Vector<float, kElements>;

  // Row of D that element `element` of a lane in group `group` (= lane / kRows) holds.
  static constexpr int row(int group, int element) {
    return element / 4 * 4 * kLaneGroups + 4 * group + element % 4;
  }
};

template <class A, class B, int kRows>
struct Mfma;

#define DG_DEFINE_MFMA(A, B, ROWS, OPERAND, BUILTIN)                                             \
  template <>                                                                                    \
  struct Mfma<A, B, ROWS> : MfmaShape<ROWS> {                                                    \
    static DG_DEVICE Accumulator multiply_add(MfmaOperand a, MfmaOperand b, Accumulator c) {     \
      return BUILTIN(__builtin_bit_cast(OPERAND, a), __builtin_bit_cast(OPERAND, b), c, 0, 0, 0); \
    }                                                                                            \
  };

using Half4 = Vector<_Float16, 4>;
using Short4 = Vector<short, 4>;

DG_DEFINE_MFMA(E4M3, E4M3, 16, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
DG_DEFINE_MFMA(E4M3, E5M2, 16, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8)
DG_DEFINE_MFMA(E5M2, E4M3, 16, long, __builtin_amdgcn_mfma_f32_16x16x32_bf8_fp8)
DG_DEFINE_MFMA(E5M2, E5M2, 16, long, __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8)
DG_DEFINE_MFMA(E4M3, E4M3, 32, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8)
DG_DEFINE_MFMA(E4M3, E5M2, 32, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_bf8)
DG_DEFINE_MFMA(E5M2, E4M3, 32, long, __builtin_amdgcn_mfma_f32_32x32x16_bf8_fp8)
DG_DEFINE_MFMA(E5M2, E5M2, 32, long, __builtin_amdgcn_mfma_f32_32x32x16_bf8_bf8)
DG_DEFINE_MFMA(_Float16, _Float16, 16, Half4, __builtin_amdgcn_mfma_f32_16x16x16f16)
DG_DEFINE_MFMA(_Float16, _Float16, 32, Half4, __builtin_amdgcn_mfma_f32_32x32x8f16)
DG_DEFINE_MFMA(__bf16, __bf16, 16, Short4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
DG_DEFINE_MFMA(__bf16, __bf16, 32, Short4, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k)

#undef DG_DEFINE_MFMA

}  // namespace deep_gemm_rocm

// Matrix-core instructions of gfx942 with fp32 accumulation: D = A·B + C. mfma_shape.h describes the layout of operands
// and results. FP8 types are the FNUZ ones. MFMA ignores EXEC: all 64 lanes take part.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/mfma_shape.h"
#include "deep_gemm_rocm/hardware/static_for.h"

namespace deep_gemm_rocm {

// A lane's part of an operand.
using MfmaOperand = uint64_t;

template <class A, class B, int kRows>
struct Mfma;

#define DG_DEFINE_MFMA(A, B, ROWS, OPERAND, BUILTIN)                                             \
  template <>                                                                                    \
  struct Mfma<A, B, ROWS> : MfmaShape<ROWS> {                                                    \
    using Accumulator = Vector<float, MfmaShape<ROWS>::kElements>;                               \
    static DG_DEVICE Accumulator multiply_add(MfmaOperand a, MfmaOperand b, Accumulator c) {     \
      return BUILTIN(__builtin_bit_cast(OPERAND, a), __builtin_bit_cast(OPERAND, b), c, 0, 0, 0); \
    }                                                                                            \
  };

using Float2 = Vector<float, 2>;
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
// The matrix cores round fp32 operands to xf32: 8 bits of exponent and 10 of mantissa.
DG_DEFINE_MFMA(float, float, 16, Float2, __builtin_amdgcn_mfma_f32_16x16x8_xf32)
DG_DEFINE_MFMA(float, float, 32, Float2, __builtin_amdgcn_mfma_f32_32x32x4_xf32)

#undef DG_DEFINE_MFMA

// fp32 times bf16 that was widened to fp32, and so is xf32 already. The fp32 operand is split into two xf32, which lose
// only its last three bits.
template <int kRows>
struct Mfma<float, __bf16, kRows> : Mfma<float, float, kRows> {
  using Xf32 = Mfma<float, float, kRows>;
  using Accumulator = typename Xf32::Accumulator;

  static DG_DEVICE Accumulator multiply_add(MfmaOperand a, MfmaOperand b, Accumulator c) {
    constexpr MfmaOperand kXf32Bits = 0xffffe000ffffe000;
    const Float2 whole = __builtin_bit_cast(Float2, a);
    const Float2 high = __builtin_bit_cast(Float2, a & kXf32Bits);
    Float2 low;
    // Infinities would become NaN without the condition.
#pragma unroll
    for (int i = 0; i < 2; ++i) low[i] = high[i] == whole[i] ? 0.0f : whole[i] - high[i];
    c = Xf32::multiply_add(__builtin_bit_cast(MfmaOperand, low), b, c);
    return Xf32::multiply_add(__builtin_bit_cast(MfmaOperand, high), b, c);
  }
};

// Has the compiler put so many instructions of the vector ALU behind each of kMfmas before this call. They take the
// time for which the matrix core is busy.
template <int kMfmas, int kInstructions>
DG_DEVICE void vector_alu_between_mfmas() {
  constexpr int kVectorAlu = 2, kMfma = 8;  // kinds of instructions
  static_for<kMfmas>([](auto) {
    __builtin_amdgcn_sched_group_barrier(kMfma, 1, 0);
    __builtin_amdgcn_sched_group_barrier(kVectorAlu, kInstructions, 0);
  });
}

}  // namespace deep_gemm_rocm

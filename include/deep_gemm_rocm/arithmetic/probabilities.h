// Converts softmax probabilities to MFMA operands of the second product, P · V.
#pragma once

#include "deep_gemm_rocm/hardware/mfma.h"

namespace deep_gemm_rocm {

// An MFMA operand of values that aren't negative, rounded to nearest. NaN stays NaN.
template <class T>
DG_DEVICE MfmaOperand rounded_operand(const float (&values)[sizeof(MfmaOperand) / sizeof(T)]);

template <>
DG_DEVICE MfmaOperand rounded_operand<__bf16>(const float (&values)[4]) {
  // gfx942 has no conversion to bf16. Adds half a unit and drops the low 16 bits, so ties round up. The NaNs
  // that arithmetic makes have few bits set and can't overflow.
  constexpr unsigned kHalfUnit = 0x8000;
  constexpr unsigned kHighHalves = 0x07060302;  // v_perm_b32: of both operands, the second one's first
  unsigned bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = __builtin_bit_cast(unsigned, values[i]) + kHalfUnit;
  const Vector<unsigned, 2> halves = {__builtin_amdgcn_perm(bits[1], bits[0], kHighHalves),
                                      __builtin_amdgcn_perm(bits[3], bits[2], kHighHalves)};
  return __builtin_bit_cast(MfmaOperand, halves);
}

template <>
DG_DEVICE MfmaOperand rounded_operand<_Float16>(const float (&values)[4]) {
  const Half4 halves = {static_cast<_Float16>(values[0]), static_cast<_Float16>(values[1]),
                        static_cast<_Float16>(values[2]), static_cast<_Float16>(values[3])};
  return __builtin_bit_cast(MfmaOperand, halves);
}

template <>
DG_DEVICE MfmaOperand rounded_operand<E4M3>(const float (&values)[8]) {
  Vector<int, 2> bytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* four = values + 4 * i;
    const int any = __builtin_nondeterministic_value(0);  // both halves are replaced
    const int low = __builtin_amdgcn_cvt_pk_fp8_f32(four[0], four[1], any, false);
    bytes[i] = __builtin_amdgcn_cvt_pk_fp8_f32(four[2], four[3], low, true);
  }
  return __builtin_bit_cast(MfmaOperand, bytes);
}

// Operand number `index` of P: consecutive elements of the lane, as keys are in the order RowsInRuns.
template <class Mfma, class T, int kFragments>
DG_DEVICE MfmaOperand probability_operand(const typename Mfma::Accumulator (&p)[kFragments], int index) {
  constexpr int kValues = sizeof(MfmaOperand) / sizeof(T);
  float values[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int element = index * kValues + i;
    values[i] = p[element / Mfma::kElements][element % Mfma::kElements];
  }
  return rounded_operand<T>(values);
}

// sum + probability · value, for values that may be infinite, of which matrix cores would make NaN. The key counts, so
// its probability is above 0 even if it has underflowed, and the product with an infinite value is infinite.
DG_DEVICE float add_value(float sum, float probability, float value) {
  return __builtin_isinf(value) ? sum + value : __builtin_fmaf(probability, value, sum);
}

// Whether a lane's sums are all finite. 0 times anything else is NaN.
template <class Accumulator, int kCount>
DG_DEVICE bool all_finite(const Accumulator (&sums)[kCount]) {
  Accumulator zeros = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) zeros = __builtin_elementwise_fma(sums[i], Accumulator(0), zeros);
  float zero = 0;
#pragma unroll
  for (unsigned i = 0; i < sizeof(Accumulator) / sizeof(float); ++i) zero += zeros[i];
  return zero == 0;
}

}  // namespace deep_gemm_rocm

// Reciprocals in fp64.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// 1 / value, correct to the last bit or two: v_rcp_f64 and two Newton steps. These would turn 0, the reciprocal of an
// infinity, into NaN.
DG_DEVICE double reciprocal_of(double value) {
  const double estimate = __builtin_amdgcn_rcp(value);
  double refined = estimate;
#pragma unroll
  for (int step = 0; step < 2; ++step) refined = __builtin_fma(__builtin_fma(-value, refined, 1.0), refined, refined);
  return __builtin_isinf(value) ? estimate : refined;
}

}  // namespace deep_gemm_rocm

// Reciprocals in fp64.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// 1 / value to the last bit or two: two Newton steps after v_rcp_f64, which would make a NaN of an infinity's zero.
DG_DEVICE double reciprocal_of(double value) {
  const double estimate = __builtin_amdgcn_rcp(value);
  double refined = estimate;
#pragma unroll
  for (int step = 0; step < 2; ++step) refined = __builtin_fma(__builtin_fma(-value, refined, 1.0), refined, refined);
  return __builtin_isinf(value) ? estimate : refined;
}

}  // namespace deep_gemm_rocm

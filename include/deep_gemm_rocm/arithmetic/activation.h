// Activations, which the epilogue applies to the sums over K. B has kParts parts, each with as many rows as the output
// has columns, and apply() makes a result of one sum from each part.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

struct Identity {
  static constexpr int kParts = 1;
  static DG_DEVICE float apply(const float (&sums)[kParts]) { return sums[0]; }
};

DG_DEVICE float sigmoid(float value) {
  constexpr float kLog2OfE = 1.44269504f;
  return __builtin_amdgcn_rcpf(1 + __builtin_amdgcn_exp2f(-kLog2OfE * value));
}

// silu(gate) · up, where the first half of B's rows is the gate and the second one is up.
struct SiluAndMul {
  static constexpr int kParts = 2;
  static DG_DEVICE float apply(const float (&sums)[kParts]) { return sums[0] * sigmoid(sums[0]) * sums[1]; }
};

}  // namespace deep_gemm_rocm

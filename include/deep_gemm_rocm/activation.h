// What the epilogue makes of the sums over K: the hook that the GEMM template takes. An activation says of how many
// parts of B, all of them with as many rows as the output has columns, it needs the sums (kParts), and what it makes of
// one sum from each (apply).
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"

namespace deep_gemm_rocm {

struct Identity {
  static constexpr int kParts = 1;
  static DG_DEVICE float apply(const float (&sums)[kParts]) { return sums[0]; }
};

// silu(gate) · up, where the first half of B's rows is the gate's and the other one up's.
struct SiluAndMul {
  static constexpr int kParts = 2;
  static DG_DEVICE float apply(const float (&sums)[kParts]) {
    constexpr float kLog2OfE = 1.44269504f;
    const float sigmoid = __builtin_amdgcn_rcpf(1 + __builtin_amdgcn_exp2f(-kLog2OfE * sums[0]));
    return sums[0] * sigmoid * sums[1];
  }
};

}  // namespace deep_gemm_rocm

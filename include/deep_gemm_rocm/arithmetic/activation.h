// Activations, which the epilogue applies to the sums over K. B has kParts parts (gate and up), each with as many rows
// as the output has columns. apply() combines one sum from each part into a result.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// Parameters of ClampedSiluAndMul. Other activations don't read them.
struct GateArguments {
  float alpha;        // 1 for SiLU
  float limit;        // infinite for none
  float added_to_up;  // 1 for gpt-oss, else 0
};

struct Identity {
  static constexpr int kParts = 1;
  static DG_DEVICE float apply(const float (&sums)[kParts], const GateArguments&) { return sums[0]; }
};

DG_DEVICE float sigmoid(float value) {
  constexpr float kLog2OfE = 1.44269504f;
  return __builtin_amdgcn_rcpf(1 + __builtin_amdgcn_exp2f(-kLog2OfE * value));
}

// silu(gate) · up, where the first half of B's rows is the gate and the second one is up.
struct SiluAndMul {
  static constexpr int kParts = 2;
  static DG_DEVICE float apply(const float (&sums)[kParts], const GateArguments&) {
    return sums[0] * sigmoid(sums[0]) * sums[1];
  }
};

// gate · sigmoid(alpha · gate) · (up + added_to_up), where the gate is at most `limit` and up within ±limit.
struct ClampedSiluAndMul {
  static constexpr int kParts = 2;
  // Comparisons, since v_min_f32 and v_max_f32 would make NaNs numbers.
  static DG_DEVICE float apply(const float (&sums)[kParts], const GateArguments& numbers) {
    const float limit = numbers.limit;
    const float gate = sums[0] > limit ? limit : sums[0];
    const float up = sums[1] > limit ? limit : sums[1] < -limit ? -limit : sums[1];
    return gate * sigmoid(numbers.alpha * gate) * (up + numbers.added_to_up);
  }
};

}  // namespace deep_gemm_rocm

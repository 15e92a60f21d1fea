// Softmax over keys that come block by block: a running maximum and sum for each query, and the factor for sums that
// were made with an older maximum. Everything is in powers of two: exp(x) is exp2(x · log2 e), and log2 e is part of
// the scale of the logits.
//
// Logits are results of MFMAs with keys as rows and queries as columns: a lane has some of the keys of one query,
// lane % kRows, and the lanes of other groups have the others.
#pragma once

#include "deep_gemm_rocm/hardware/mfma.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr float kInfinity = __builtin_inff();
constexpr float kLn2 = 0.693147181f;
constexpr float kLog2E = 1.44269504f;

// Keeps a scale of logits above 0, even if it has underflowed: -inf, the logit of unseen keys, times 0 would be NaN.
DG_DEVICE float positive(float scale) { return __builtin_fmaxf(scale, __FLT_DENORM_MIN__); }

// Probabilities are scaled by 2 to this power, so that more of them are in T's range. The factor cancels out in the
// division by their sum.
template <class T>
constexpr float kProbabilityExponent = 0;
template <>
constexpr float kProbabilityExponent<E4M3> = 7;  // up to 128, of 240

// A soft cap turns logits into cap · tanh(logit / cap). This computes only the tanh: OnlineSoftmax multiplies by the
// cap, which is its scale then. `factor` is 2 log2 e / cap, times the scale of logits that aren't scaled yet. tanh(x)
// is computed as 1 - 2 / (1 + e^2x), whose error is absolute and hence small beside the cap.
template <class Logits, int kFragments>
DG_DEVICE void cap_logits(Logits (&logits)[kFragments], float factor) {
#pragma unroll
  for (auto& fragment : logits) {
#pragma unroll
    for (unsigned i = 0; i < sizeof(Logits) / sizeof(float); ++i) {
      const float power = __builtin_amdgcn_exp2f(fragment[i] * factor);
      fragment[i] = __builtin_fmaf(-2, __builtin_amdgcn_rcpf(1 + power), 1);
    }
  }
}

// With kSlack, the maximum is only updated when a logit exceeds it by more than kSlack, so that sums are seldom
// rescaled. Probabilities are then up to 2^kSlack, which must be in the range of T.
template <class Mfma, class T, int kSlack = 0>
class OnlineSoftmax {
  using Logits = typename Mfma::Accumulator;

 public:
  // Turns logits into probabilities relative to the running maximum. The scale must be positive. Returns the factor by
  // which all earlier sums must be multiplied; 1 if the maximum stays.
  template <int kFragments>
  DG_DEVICE float update(Logits (&logits)[kFragments], float scale) {
    const float factor = raise_maximum(logits, scale);
    exponentiate(logits, scale, factor);
    return factor;
  }

  // update() in two steps: raise_maximum() returns the factor, which exponentiate() takes.
  template <int kFragments>
  DG_DEVICE float raise_maximum(const Logits (&logits)[kFragments], float scale) {
    const float highest_of_lane = scale * highest_of(logits);
    // With slack, other lanes' keys seldom matter.
    if (kSlack > 0 && ballot(highest_of_lane > highest_ + kSlack) == 0) return 1;
    float highest = __builtin_fmaxf(highest_, max_over_lane_groups<Mfma::kRows>(highest_of_lane));
    if (kSlack > 0) highest = highest > highest_ + kSlack ? highest : highest_;
    const float factor = exp2(highest_ - finite(highest));
    highest_ = highest;
    return factor;
  }
  template <int kFragments>
  DG_DEVICE void exponentiate(Logits (&logits)[kFragments], float scale, float factor) {
    // In pairs, for packed arithmetic.
    const float offset = kProbabilityExponent<T> - finite(highest_);
    Float2 sums = {};
#pragma unroll
    for (int pair = 0; pair < kFragments * Mfma::kElements / 2; ++pair) {
      auto& fragment = logits[2 * pair / Mfma::kElements];
      const int element = 2 * pair % Mfma::kElements;
      const Float2 exponents =
          __builtin_elementwise_fma(Float2{fragment[element], fragment[element + 1]}, Float2(scale), Float2(offset));
      const Float2 probabilities = {exp2(exponents[0]), exp2(exponents[1])};
      fragment[element] = probabilities[0];
      fragment[element + 1] = probabilities[1];
      sums += probabilities;
    }
    sum_ = __builtin_fmaf(sum_, factor, sums[0] + sums[1]);
  }

  // A key's probability once all keys are known, not yet divided by their sum.
  DG_DEVICE float probability(float scaled_logit) const {
    return exp2(scaled_logit + (kProbabilityExponent<T> - finite(highest_)));
  }

  // The sum of all keys' probabilities, in every lane of the query.
  DG_DEVICE float sum() const { return sum_over_lane_groups<Mfma::kRows>(sum_); }

  // The logarithm, to base 2 or e, of the sum of exp(logit); -inf without keys.
  DG_DEVICE float log2_sum() const { return highest_ + __builtin_amdgcn_logf(sum()) - kProbabilityExponent<T>; }
  DG_DEVICE float log_sum_exp() const { return log2_sum() * kLn2; }

 private:
  static DG_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }

  // The maximum is -inf where a query has seen no key. Differences with it would be NaN.
  static DG_DEVICE float finite(float highest) { return highest == -kInfinity ? 0 : highest; }

  template <int kFragments>
  static DG_DEVICE float highest_of(const Logits (&logits)[kFragments]) {
    float highest = logits[0][0];
#pragma unroll
    for (int i = 1; i < kFragments * Mfma::kElements; ++i) {
      highest = __builtin_fmaxf(highest, logits[i / Mfma::kElements][i % Mfma::kElements]);
    }
    return highest;
  }

  float highest_ = -kInfinity;
  float sum_ = 0;  // of this lane's keys
};

// The share of the softmax that a sink leaves to the keys. log2_sum doesn't include the sink.
DG_DEVICE float share_beside_sink(const float* sinks, int head, float log2_sum) {
  if (sinks == nullptr) return 1;
  const float sink = sinks[head] * kLog2E;
  return 1 / (1 + __builtin_amdgcn_exp2f(sink - log2_sum));
}

}  // namespace deep_gemm_rocm

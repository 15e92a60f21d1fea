// Merges two attention results of the same queries over different keys, by their log-sum-exps.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/attention_arguments.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Log-sum-exps, [batch, heads, tokens]. Strides are in elements.
struct LogSums {
  float* data;
  int64_t batch_stride, head_stride, token_stride;

  DG_DEVICE Global<float>& of(int sequence, int token, int head) const {
    return *((Global<float>*)data + (sequence * batch_stride + head * head_stride + token * token_stride));
  }
};

// MergeStatesArguments in launch/merge_states.py is the same structure.
struct MergeStatesArguments {
  HeadsTensor first, second, out;  // `out` may be one of the others
  LogSums first_lse, second_lse, out_lse;
  unsigned vectors;  // of the whole output
  unsigned tokens;   // of a sequence
  unsigned heads;
  unsigned vectors_of_head;
};

constexpr int kMergedVector = 8;  // values of a lane
constexpr int kMergeThreads = 256;

// The weights of a query's two partial results, by their log-sum-exps. Both -inf and inf stand for a sum over no key.
struct MergedSums {
  float first_share, second_share, lse;

  DG_DEVICE MergedSums(float first, float second) {
    first = __builtin_isinf(first) ? -kInfinity : first;
    second = __builtin_isinf(second) ? -kInfinity : second;
    const float larger = first > second ? first : second;  // a NaN of `second` stays
    const float highest = __builtin_isunordered(first, first) ? first : larger;
    const float reference = highest == -kInfinity ? 0 : highest;
    const float of_first = __builtin_amdgcn_exp2f((first - reference) * kLog2E);
    const float of_second = __builtin_amdgcn_exp2f((second - reference) * kLog2E);
    const float sum = of_first + of_second;
    const float inverse = sum == 0 ? 0 : __builtin_amdgcn_rcpf(sum);
    first_share = of_first * inverse;
    second_share = of_second * inverse;
    lse = highest + __builtin_amdgcn_logf(sum == 0 ? 1 : sum) * kLn2;
  }
};

// Merges one vector of a query and head. A result with weight 0 doesn't count, even if it is infinite or NaN.
template <class T>
DG_DEVICE void merge_states(const MergeStatesArguments& args, unsigned vector) {
  using Values = Vector<T, kMergedVector>;
  if (vector >= args.vectors) return;
  const unsigned row = vector / args.vectors_of_head, part = vector % args.vectors_of_head;
  const unsigned query = row / args.heads, head = row % args.heads;
  const unsigned sequence = query / args.tokens, token = query % args.tokens;

  const auto values_of = [&](const HeadsTensor& tensor) {
    const T* data = static_cast<const T*>(tensor.data) + tensor.offset(sequence, token, head);
    return (Global<Values>*)data + part;
  };
  const Values first = *values_of(args.first), second = *values_of(args.second);
  const MergedSums sums{args.first_lse.of(sequence, token, head), args.second_lse.of(sequence, token, head)};

  float merged[kMergedVector];
#pragma unroll
  for (int i = 0; i < kMergedVector; ++i) {
    const float of_first = sums.first_share == 0 ? 0 : sums.first_share * static_cast<float>(first[i]);
    const float of_second = sums.second_share == 0 ? 0 : sums.second_share * static_cast<float>(second[i]);
    merged[i] = of_first + of_second;
  }
  *values_of(args.out) = Storage<T>::template rounded<kMergedVector>(merged);
  if (part == 0) args.out_lse.of(sequence, token, head) = sums.lse;
}

}  // namespace deep_gemm_rocm

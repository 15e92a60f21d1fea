// Combines the partial results that decode kernels have for parts of a sequence's keys.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr int kCombinedQueries = 4;  // queries and heads of a workgroup, one in each wave

// One query and head. A lane has some of the values and, for weights, some of the parts.
template <class Out, int kValueDim>
class PartCombiner {
  static constexpr int kVector = kValueDim % (4 * kWaveSize) == 0 ? 4 : kValueDim % (2 * kWaveSize) == 0 ? 2 : 1;
  static constexpr int kVectors = ceil_div(kValueDim, kVector * kWaveSize);
  static constexpr int kPartsAtOnce = 4;  // parts that a wave loads before it adds them up
  using Values = Vector<float, kVector>;

 public:
  DG_DEVICE PartCombiner(const DecodeArguments& args, int query)
      : args_(args),
        head_(query % args.heads),
        token_(query / args.heads % args.tokens_q),
        sequence_(query / args.heads / args.tokens_q),
        group_(args.heads / args.kv_heads),
        parts_(parts_of(args, sequence_ * args.kv_heads + head_ / group_)) {}

  // Whether there are several parts. A single one is the output already.
  DG_DEVICE bool has_parts() const { return parts_.count != 1; }

  // Adds up the parts in order, each with the weight of its keys.
  DG_DEVICE void add_up() {
    highest_ = highest_of_parts(args_.split_lse);
    const float finite = highest_ == -kInfinity ? 0 : highest_;
    for (int first = 0; first < parts_.count; first += kWaveSize) {
      const float weight_of_lane = __builtin_amdgcn_exp2f(log2_sum(first + lane_id()) - finite);
      sum_ += weight_of_lane;
      const int end = min(parts_.count - first, kWaveSize);
      for (int begin = 0; begin < end; begin += kPartsAtOnce) add_some(first, begin, end, weight_of_lane);
    }
    sum_ = sum_over_lane_groups<1>(sum_);
  }

  DG_DEVICE void store() const {
    const float log2_sum = highest_ + __builtin_amdgcn_logf(sum_);
    const float factor = sum_ == 0 ? 0 : share_beside_sink(args_.sinks, head_, log2_sum) / sum_;
    const int64_t begin =
        sequence_ * args_.out.batch_stride + token_ * args_.out.token_stride + head_ * args_.out.head_stride;
    const Buffer stored{static_cast<Out*>(args_.out.data) + begin, kValueDim * sizeof(Out)};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Vector<Out, kVector> values;
#pragma unroll
      for (int e = 0; e < kVector; ++e) values[e] = rounded_to<Out>(factor == 0 ? 0 : out_[i][e] * factor);
      stored.store(values, first_value(i) * sizeof(Out));
    }
    const int64_t stored_lse = sequence_ * args_.lse_batch_stride + head_ * args_.lse_head_stride + token_;
    if (args_.lse != nullptr && lane_id() == 0) {
      args_.lse[stored_lse] = lse_of(args_, sum_ == 0 ? -kInfinity : log2_sum);
    }
    if (args_.max_logits != nullptr) {
      const float largest = highest_of_parts(args_.split_max);
      if (lane_id() == 0) args_.max_logits[stored_lse] = largest * kLn2;
    }
  }

 private:
  static DG_DEVICE int first_value(int vector) { return (vector * kWaveSize + lane_id()) * kVector; }

  DG_DEVICE int64_t row_of(int part) const {
    return row_of_part(args_, parts_.first + part, token_ * group_ + head_ % group_);
  }
  DG_DEVICE float log2_sum(int part) const { return part < parts_.count ? args_.split_lse[row_of(part)] : -kInfinity; }

  DG_DEVICE float highest_of_parts(const float* of_parts) const {
    float highest = -kInfinity;
    for (int first = 0; first < parts_.count; first += kWaveSize) {
      const int part = first + lane_id();
      highest = __builtin_fmaxf(highest, part < parts_.count ? of_parts[row_of(part)] : -kInfinity);
    }
    return max_over_lane_groups<1>(highest);
  }

  // Adds the parts from `begin` on, up to kPartsAtOnce, of those up to `end` of the 64 from `first` on.
  DG_DEVICE void add_some(int first, int begin, int end, float weight_of_lane) {
    Values of_parts[kPartsAtOnce][kVectors];
    static_for<kPartsAtOnce>([&](int i) {
      const int64_t row = row_of(first + begin + i);
      const Buffer values{args_.split_out + row * kValueDim, kValueDim * sizeof(float)};
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        of_parts[i][v] = values.only_if(begin + i < end).template load<Values>(first_value(v) * sizeof(float));
      }
    });
    static_for<kPartsAtOnce>([&](int i) {
      const float weight = read_lane(weight_of_lane, begin + i);
      // A part without keys that count is zeros. The weights of others are above 0, even if they underflow.
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) out_[v][j] = add_value(out_[v][j], weight, of_parts[i][v][j]);
      }
    });
  }

  const DecodeArguments& args_;
  int head_;
  int token_;
  int64_t sequence_;
  int group_;
  Parts parts_;
  float highest_;
  float sum_ = 0;
  Values out_[kVectors] = {};
};

template <class Out, int kValueDim>
DG_DEVICE void combine_parts(const DecodeArguments& args, int workgroup) {
  const int query = workgroup * kCombinedQueries + wave_id();
  if (query >= static_cast<int64_t>(args.batch) * args.tokens_q * args.heads) return;
  PartCombiner<Out, kValueDim> combiner(args, query);
  if (!combiner.has_parts()) return;
  combiner.add_up();
  combiner.store();
}

}  // namespace deep_gemm_rocm

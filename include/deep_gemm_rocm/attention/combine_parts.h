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

constexpr int kCombiningWaves = 4;  // of a workgroup

// With few queries most of the time is latency: loads of many parts are under way at once, and two waves share the
// values of a wide head. With many, waves of fewer registers and more work each are quicker.
constexpr bool are_few(int64_t queries) { return queries <= 1024; }

// Waves that combine the parts of a query, each some of the values.
template <int kValueDim>
constexpr int waves_of_query(bool few_queries) {
  return few_queries && kValueDim % (8 * kWaveSize) == 0 ? 2 : 1;
}

// One query and head. A lane has some of the values and, for weights, some of the parts.
template <class Out, int kValueDim, bool kFewQueries>
class PartCombiner {
  static constexpr int kWaves = waves_of_query<kValueDim>(kFewQueries);
  static constexpr int kVector = kValueDim % (4 * kWaveSize) == 0 ? 4 : kValueDim % (2 * kWaveSize) == 0 ? 2 : 1;
  static constexpr int kVectors = ceil_div(kValueDim, kVector * kWaveSize * kWaves);
  // Parts that a wave loads before it adds them up: of many, and of the last few.
  static constexpr int kFewParts = kFewQueries ? 8 : 4;
  static constexpr int kManyParts = kFewQueries ? 24 : kFewParts;
  using Values = Vector<float, kVector>;

 public:
  DG_DEVICE PartCombiner(const DecodeArguments& args, unsigned query) : args_(args) {
    const unsigned group = args.group;
    queries_ = args.tokens_q * group;
    const unsigned sequence_head = query / queries_;
    row_ = query - sequence_head * queries_;
    token_ = row_ / group;
    sequence_ = sequence_head / args.kv_heads;
    head_ = (sequence_head - sequence_ * args.kv_heads) * group + row_ - token_ * group;
    parts_ = parts_of(args, sequence_head);
  }

  // Whether there are several parts. A single one is the output already.
  DG_DEVICE bool has_parts() const { return parts_.count != 1; }

  // Adds up the parts in order, each with the weight of its keys.
  DG_DEVICE void add_up() {
    find_highest();
    add_up_values<false>();
    if (ballot(!all_finite(out_)) != 0) add_up_values<true>();
  }

  DG_DEVICE void store() const {
    const float log2_sum = highest_ + __builtin_amdgcn_logf(sum_);
    const float factor = sum_ == 0 ? 0 : share_beside_sink(args_.sinks, head_, log2_sum) / sum_;
    const Buffer stored{static_cast<Out*>(args_.out.data) + args_.out.offset(sequence_, token_, head_),
                        kValueDim * sizeof(Out)};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Vector<Out, kVector> values;
#pragma unroll
      for (int e = 0; e < kVector; ++e) values[e] = rounded_to<Out>(factor == 0 ? 0 : out_[i][e] * factor);
      stored.store(values, first_value(i) * sizeof(Out));
    }
    const bool stores_sums = own_part() == 0 && lane_id() == 0;
    const int64_t stored_lse = sequence_ * args_.lse_batch_stride + head_ * args_.lse_head_stride + token_;
    if (args_.lse != nullptr && stores_sums) {
      args_.lse[stored_lse] = lse_of(args_, sum_ == 0 ? -kInfinity : log2_sum);
    }
    if (args_.max_logits != nullptr && stores_sums) args_.max_logits[stored_lse] = largest_ * kLn2;
  }

 private:
  static DG_DEVICE int own_part() { return wave_id() % kWaves; }
  static DG_DEVICE int first_value(int vector) {
    return ((own_part() * kVectors + vector) * kWaveSize + lane_id()) * kVector;
  }

  DG_DEVICE int64_t row_of(int part) const { return static_cast<int64_t>(parts_.first + part) * queries_ + row_; }
  DG_DEVICE float log2_sum(int part) const { return part < parts_.count ? args_.split_lse[row_of(part)] : -kInfinity; }

  // The largest sum and, if it is stored, the largest logit.
  DG_DEVICE void find_highest() {
    const bool has_logits = args_.max_logits != nullptr;
    float highest = -kInfinity;
    float largest = -kInfinity;
    for (int first = 0; first < parts_.count; first += kWaveSize) {
      const int part = first + lane_id();
      const float logit = has_logits && part < parts_.count ? args_.split_max[row_of(part)] : -kInfinity;
      highest = __builtin_fmaxf(highest, log2_sum(part));
      largest = __builtin_fmaxf(largest, logit);
    }
    highest_ = max_over_lane_groups<1>(highest);
    largest_ = has_logits ? max_over_lane_groups<1>(largest) : largest;
  }

  template <bool kAnyOdd>
  DG_DEVICE void add_up_values() {
    static_for<kVectors>([&](int v) { out_[v] = 0; });
    sum_ = 0;
    const float finite = highest_ == -kInfinity ? 0 : highest_;
    for (int first = 0; first < parts_.count; first += kWaveSize) {
      const float weight_of_lane = __builtin_amdgcn_exp2f(log2_sum(first + lane_id()) - finite);
      sum_ += weight_of_lane;
      const int end = min(parts_.count - first, kWaveSize);
      int begin = 0;
      for (; begin + kManyParts <= end; begin += kManyParts) {
        add_some<kAnyOdd, kManyParts>(first, begin, end, weight_of_lane);
      }
      for (; begin < end; begin += kFewParts) add_some<kAnyOdd, kFewParts>(first, begin, end, weight_of_lane);
    }
    sum_ = sum_over_lane_groups<1>(sum_);
  }

  // Adds the parts from `begin` on, up to kParts, of those up to `end` of the 64 from `first` on.
  template <bool kAnyOdd, int kParts>
  DG_DEVICE void add_some(int first, int begin, int end, float weight_of_lane) {
    Values of_parts[kParts][kVectors];
    const float* row = args_.split_out + row_of(first + begin) * kValueDim;
    static_for<kParts>([&](int i) {
      const Buffer values{row, kValueDim * sizeof(float)};
      row += static_cast<int64_t>(queries_) * kValueDim;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        of_parts[i][v] = values.only_if(begin + i < end).template load<Values>(first_value(v) * sizeof(float));
      }
    });
    static_for<kParts>([&](int i) {
      const float weight = read_lane(weight_of_lane, begin + i);
      // A part without keys that count is zeros. The weights of others are above 0, even if they underflow.
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (!kAnyOdd) {
          out_[v] = __builtin_elementwise_fma(Values(weight), of_parts[i][v], out_[v]);
        } else {
#pragma unroll
          for (int j = 0; j < kVector; ++j) out_[v][j] = add_value(out_[v][j], weight, of_parts[i][v][j]);
        }
      }
    });
  }

  const DecodeArguments& args_;
  int queries_;  // that share a head of keys
  int row_;      // among these
  int token_;
  int head_;
  int sequence_;
  Parts parts_;
  float highest_;
  float largest_;
  float sum_;
  Values out_[kVectors];
};

template <class Out, int kValueDim, bool kFewQueries>
DG_DEVICE void combine_parts_of(const DecodeArguments& args, int wave, int64_t queries) {
  const int query = wave / waves_of_query<kValueDim>(kFewQueries);
  if (query >= queries) return;
  PartCombiner<Out, kValueDim, kFewQueries> combiner(args, query);
  if (!combiner.has_parts()) return;
  combiner.add_up();
  combiner.store();
}

template <class Out, int kValueDim>
DG_DEVICE void combine_parts(const DecodeArguments& args, int workgroup) {
  const int64_t queries = static_cast<int64_t>(args.batch) * args.tokens_q * args.heads;
  const int wave = workgroup * kCombiningWaves + wave_id();
  if (are_few(queries)) combine_parts_of<Out, kValueDim, true>(args, wave, queries);
  else combine_parts_of<Out, kValueDim, false>(args, wave, queries);
}

}  // namespace deep_gemm_rocm

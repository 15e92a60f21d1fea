// The second kernel of split-K decoding: combines the partial results that a decode kernel has stored for parts of a
// sequence's keys.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/attention/part_row.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr int kCombiningWaves = 4;  // of a workgroup

// With few queries, latency takes most of the time: so many parts are loaded at once, and four waves share the values
// of a wide head. With many queries, waves with fewer registers and more work each are faster.
template <int kValueDim>
constexpr int waves_of_query(bool few_queries) {
  return few_queries && kValueDim % (8 * kWaveSize) == 0 ? 4 : 1;
}

template <int kValueDim>
constexpr bool are_few(int64_t queries) {
  return queries * waves_of_query<kValueDim>(true) <= 2048;
}

// Combines the parts of one query and head. Each lane adds up some of the values, and computes the weights of some of
// the parts.
template <class Shape, bool kFewQueries>
class PartCombiner {
  using Out = typename Shape::Out;
  using Row = typename Shape::PartRow;
  static constexpr int kValueDim = Shape::kValueDim;
  static constexpr int kWaves = waves_of_query<kValueDim>(kFewQueries);
  // Neighbouring values that a lane loads at once, up to 16 bytes.
  static constexpr int widest(int width) {
    return kValueDim % (width * kWaveSize * kWaves) == 0 ? width : widest(width / 2);
  }
  static constexpr int kVector = kValueDim % kWaveSize == 0 ? widest(8) : 1;
  static constexpr int kVectors = ceil_div(kValueDim, kVector * kWaveSize * kWaves);
  // Parts that a wave loads at once before it adds them up: kManyParts as long as there are so many, then kFewParts.
  static constexpr int kFewParts = kFewQueries ? 8 : 4;
  static constexpr int kManyParts = kFewQueries ? 24 : kFewParts;
  using Values = Vector<float, kVector>;

 public:
  DG_DEVICE PartCombiner(const FirstCombineArguments& first, unsigned query) : first_(first) {
    sequence_head_ = quotient(query, first.queries, first.queries_reciprocal);
    row_ = query - sequence_head_ * first.queries;
    const Parts parts = parts_of(first, sequence_head_);
    first_part_ = parts.first;
    num_parts_ = parts.last - parts.first + 1;
  }

  // Whether there are several parts. A single one is the output already.
  DG_DEVICE bool has_parts() const { return num_parts_ != 1; }

  // Adds up the parts in order, each weighted by its sum of exponentials; store() divides by the sum of weights. If a
  // result isn't finite, large values may have overflowed. Then the parts are added up again with weights that are
  // already divided by their sum, and infinite values are added without weights.
  DG_DEVICE void add_up() {
    find_highest();
    add_up_values<false>(1);
    divisor_ = sum_;
    if (ballot(!all_finite(out_)) == 0) return;
    add_up_values<true>(1 / sum_);
    divisor_ = sum_ / sum_;  // NaN stays
  }

  DG_DEVICE void store() const {
    const auto& args = decode_arguments();
    const unsigned group = args.group;
    const int token = row_ / group;
    const int sequence = sequence_head_ / args.kv_heads;
    const int head = (sequence_head_ - sequence * args.kv_heads) * group + row_ - token * group;
    const float log2_sum = highest_ + __builtin_amdgcn_logf(sum_);
    const float factor = sum_ == 0 ? 0 : share_beside_sink(args.sinks, head, log2_sum) / divisor_;
    const Buffer stored{static_cast<Out*>(args.out.data) + args.out.offset(sequence, token, head),
                        kValueDim * sizeof(Out)};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Vector<Out, kVector> values;
#pragma unroll
      for (int e = 0; e < kVector; ++e) values[e] = rounded_to<Out>(factor == 0 ? 0 : out_[i][e] * factor);
      stored.store(values, first_value(i) * sizeof(Out));
    }
    const bool stores_sums = own_part() == 0 && lane_id() == 0;
    const int64_t stored_lse = sequence * args.lse_batch_stride + head * args.lse_head_stride + token;
    if (args.lse != nullptr && stores_sums) {
      args.lse[stored_lse] = lse_of(args, sum_ == 0 ? -kInfinity : log2_sum);
    }
    if (args.max_logits != nullptr && stores_sums) args.max_logits[stored_lse] = largest_ * kLn2;
  }

 private:
  static DG_DEVICE int own_part() { return wave_id() % kWaves; }
  static DG_DEVICE int first_value(int vector) {
    return ((own_part() * kVectors + vector) * kWaveSize + lane_id()) * kVector;
  }

  DG_DEVICE int64_t row_of(int part) const { return static_cast<int64_t>(first_part_ + part) * first_.queries + row_; }
  DG_DEVICE float log2_sum(int part) const { return part < num_parts_ ? first_.split_lse[row_of(part)] : -kInfinity; }

  // Finds the largest lse of all parts, to which weights are relative, and the largest logit if it is an output.
  DG_DEVICE void find_highest() {
    const auto& args = decode_arguments();
    const bool has_logits = args.max_logits != nullptr;
    float highest = -kInfinity;
    float largest = -kInfinity;
    for (int first = 0; first < num_parts_; first += kWaveSize) {
      const int part = first + lane_id();
      const float logit = has_logits && part < num_parts_ ? args.split_max[row_of(part)] : -kInfinity;
      highest = __builtin_fmaxf(highest, log2_sum(part));
      largest = __builtin_fmaxf(largest, logit);
    }
    highest_ = max_over_lane_groups<1>(highest);
    largest_ = has_logits ? max_over_lane_groups<1>(largest) : largest;
  }

  template <bool kAnyOdd>
  DG_DEVICE void add_up_values(float unit) {
    static_for<kVectors>([&](int v) { out_[v] = 0; });
    sum_ = 0;
    const float finite = highest_ == -kInfinity ? 0 : highest_;
    for (int first = 0; first < num_parts_; first += kWaveSize) {
      const float weight_of_lane = __builtin_amdgcn_exp2f(log2_sum(first + lane_id()) - finite);
      sum_ += weight_of_lane;
      const int end = min(num_parts_ - first, kWaveSize);
      int begin = 0;
      for (; begin + kManyParts <= end; begin += kManyParts) {
        add_some<kAnyOdd, kManyParts>(first, begin, end, weight_of_lane * unit);
      }
      for (; begin < end; begin += kFewParts) {
        add_some<kAnyOdd, kFewParts>(first, begin, end, weight_of_lane * unit);
      }
    }
    sum_ = sum_over_lane_groups<1>(sum_);
  }

  // Adds the parts from `begin` on, up to kParts, of those up to `end` of the 64 from `first` on.
  template <bool kAnyOdd, int kParts>
  DG_DEVICE void add_some(int first, int begin, int end, float weight_of_lane) {
    typename Row::template Loaded<kVector> of_parts[kParts][kVectors];
    const uint8_t* row = first_.split_out + row_of(first + begin) * Row::kBytes;
    static_for<kParts>([&](int i) {
      const Buffer values{row, Row::kBytes};
      row += static_cast<int64_t>(first_.queries) * Row::kBytes;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        of_parts[i][v] = Row::template load<kVector>(values.only_if(begin + i < end), first_value(v));
      }
    });
    static_for<kParts>([&](int i) {
      const float weight = read_lane(weight_of_lane, begin + i);
      // A part in which the query sees no key holds zeros. All other weights are positive, though they may underflow
      // to 0; add_value() relies on that.
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Values values = of_parts[i][v].values();
        if constexpr (!kAnyOdd) {
          out_[v] = __builtin_elementwise_fma(Values(weight), values, out_[v]);
        } else {
#pragma unroll
          for (int j = 0; j < kVector; ++j) out_[v][j] = add_value(out_[v][j], weight, values[j]);
        }
      }
    });
  }

  FirstCombineArguments first_;
  int sequence_head_;
  int row_;  // of the queries that share a head of keys
  int first_part_, num_parts_;
  float highest_;
  float largest_;
  float sum_;      // of weights
  float divisor_;  // of what is added up
  Values out_[kVectors];
};

template <class Shape, bool kFewQueries>
DG_DEVICE void combine_parts_of(const FirstCombineArguments& first, unsigned wave) {
  const unsigned query = wave / waves_of_query<Shape::kValueDim>(kFewQueries);
  if (query >= first.all_queries) return;
  PartCombiner<Shape, kFewQueries> combiner(first, query);
  fetch_arguments<DecodeKernelArguments>();
  if (!combiner.has_parts()) return;
  combiner.add_up();
  combiner.store();
}

template <class Shape>
DG_DEVICE void combine_parts(const FirstCombineArguments& first, unsigned workgroup) {
  const unsigned wave = workgroup * kCombiningWaves + wave_id();
  if (are_few<Shape::kValueDim>(first.all_queries)) combine_parts_of<Shape, true>(first, wave);
  else combine_parts_of<Shape, false>(first, wave);
}

}  // namespace deep_gemm_rocm

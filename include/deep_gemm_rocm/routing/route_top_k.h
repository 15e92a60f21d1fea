// Chooses the experts of a token. A wave has a token, and each lane some neighbouring experts, in the order of lanes.
#pragma once

#include "deep_gemm_rocm/arithmetic/exponential.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

struct RouteArguments {
  const void* logits;
  const float* bias;
  float* weights;
  int* ids;
  int64_t row_stride, column_stride;  // of the logits
  double scale;
  int tokens;
  int experts;
  int top_k;
  int top_groups;
  int renormalize;
};

// Keys of scores have their order as unsigned numbers: 0 and -0 are equal, a NaN is below all numbers, and what can't be
// chosen is below that.
constexpr unsigned kUnavailable = 0;
constexpr unsigned kNanKey = 1;
constexpr unsigned kSign = 0x80000000u;

DG_DEVICE unsigned key_of(float score) {
  const unsigned bits = __builtin_bit_cast(unsigned, score + 0.0f);
  return __builtin_isnan(score) ? kNanKey : bits & kSign ? ~bits : bits | kSign;
}

DG_DEVICE float score_of(unsigned key) {
  const float score = __builtin_bit_cast(float, key & kSign ? key ^ kSign : ~key);
  return key == kNanKey ? __builtin_nanf("") : score;
}

// The largest value of a wave, as a scalar.
DG_DEVICE unsigned largest_key(unsigned key) {
  // DPP controls: CDNA3 ISA guide, "Data Parallel Primitives".
  constexpr int kRowShiftRight = 0x110, kLastToNextRow = 0x142, kLane31ToOthers = 0x143;
  const auto larger = [&](int other) { key = max(key, static_cast<unsigned>(other)); };
  larger(handed_over<kRowShiftRight + 1>(key));
  larger(handed_over<kRowShiftRight + 2>(key));
  larger(handed_over<kRowShiftRight + 4>(key));
  larger(handed_over<kRowShiftRight + 8>(key));
  larger(handed_over<kLastToNextRow, 0b1010>(key));
  larger(handed_over<kLane31ToOthers, 0b1100>(key));
  return read_lane(static_cast<int>(key), kWaveSize - 1);
}

DG_DEVICE double sum_of_wave(double value) {
  const auto add = [&](auto exchange_half) {
    using Halves = Vector<float, 2>;
    const auto halves = __builtin_bit_cast(Halves, value);
    value += __builtin_bit_cast(double, Halves{exchange_half(halves[0]), exchange_half(halves[1])});
  };
  add([](float half) { return exchanged<1>(half); });
  add([](float half) { return exchanged<2>(half); });
  add([](float half) { return exchanged<7>(half); });
  add([](float half) { return exchanged<15>(half); });
  add([](float half) { return exchanged<16>(half); });
  add([](float half) { return exchanged<32>(half); });
  return value;
}

// kSlots experts of a lane; the lanes of each of the kGroups groups are neighbours.
template <class Logit, int kSlots, int kGroups, bool kSoftmax, bool kHasBias>
class Router {
  static constexpr int kLanes = kWaveSize / kGroups;  // of a group

 public:
  DG_DEVICE Router(const RouteArguments& args, int token) : args_(args), token_(token) {
    const int group_experts = args.experts / kGroups;
    const int first_of_group = lane_id() / kLanes * group_experts;
    const int in_group = lane_id() % kLanes * kSlots;
    first_ = first_of_group + in_group;
    available_ = group_experts - in_group;
    const auto* row = static_cast<const Logit*>(args.logits) + token * args.row_stride;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int expert = slot < available_ ? first_ + slot : 0;
      logits_[slot] = static_cast<float>(*(const Global<Logit>*)(row + expert * args.column_stride));
      if constexpr (kHasBias) bias_[slot] = *(const Global<float>*)(args.bias + expert);
    }
  }

  DG_DEVICE void route() {
    compute_scores();
    if constexpr (kGroups > 1) keep_best_groups();
    const int lane = lane_id();
    int id = 0;
    float score = 0;
    for (int i = 0; i < args_.top_k; ++i) {
      const Chosen chosen = take_best();
      if (lane == i) {
        id = chosen.expert;
        score = chosen.score;
      }
    }
    store(id, score);
  }

 private:
  struct Chosen {
    int expert;
    float score;
  };

  // Scores, rounded to fp32, and the keys to choose by. Without a bias, softmax keeps the order of the logits.
  DG_DEVICE void compute_scores() {
    unsigned largest = kUnavailable;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      keys_[slot] = slot < available_ ? key_of(logits_[slot]) : kUnavailable;
      largest = max(largest, keys_[slot]);
    }
    double terms[kSlots];
    double sum = 0;
    if constexpr (kSoftmax) {
      const double most = score_of(largest_key(largest));
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        terms[slot] = exponential(static_cast<double>(logits_[slot]) - most);
        sum += slot < available_ ? terms[slot] : 0;
      }
      sum = sum_of_wave(sum);
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      scores_[slot] = static_cast<float>(
          kSoftmax ? terms[slot] / sum : 1 / (1 + exponential(-static_cast<double>(logits_[slot]))));
      if constexpr (kHasBias || !kSoftmax) {
        const float biased = kHasBias ? scores_[slot] + bias_[slot] : scores_[slot];
        keys_[slot] = slot < available_ ? key_of(biased) : kUnavailable;
      }
    }
  }

  // A group's score is that of its best expert or, with a bias, the sum of its two best.
  DG_DEVICE void keep_best_groups() {
    unsigned best = kUnavailable, second = kUnavailable;
    const auto merge = [&](unsigned other_best, unsigned other_second) {
      second = max(min(best, other_best), max(second, other_second));
      best = max(best, other_best);
    };
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) merge(keys_[slot], kUnavailable);
    const auto of_lane = [](auto value, int lane) {
      return static_cast<unsigned>(exchange(static_cast<int>(value), lane));
    };
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const int other = lane_id() ^ distance;
      merge(of_lane(best, other), of_lane(second, other));
    }
    unsigned group_key = best;
    if constexpr (kHasBias) group_key = key_of(score_of(best) + score_of(second));
    bool keeps = false;
    for (int i = 0; i < args_.top_groups; ++i) {
      const int group = lowest_bit(ballot(group_key == largest_key(group_key))) / kLanes;
      if (lane_id() / kLanes == group) {
        keeps = true;
        group_key = kUnavailable;
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) keys_[slot] = keeps ? keys_[slot] : kUnavailable;
  }

  // The best of the experts that are left; the lowest of equal ones.
  DG_DEVICE Chosen take_best() {
    unsigned best = keys_[0];
#pragma unroll
    for (int slot = 1; slot < kSlots; ++slot) best = max(best, keys_[slot]);
    const int winner = lowest_bit(ballot(best == largest_key(best)));
    int expert = first_;
    float score = scores_[0];
    bool found = keys_[0] == best;
    if (lane_id() == winner && found) keys_[0] = kUnavailable;
#pragma unroll
    for (int slot = 1; slot < kSlots; ++slot) {
      const bool is_it = !found && keys_[slot] == best;
      expert = is_it ? first_ + slot : expert;
      score = is_it ? scores_[slot] : score;
      if (lane_id() == winner && is_it) keys_[slot] = kUnavailable;
      found |= is_it;
    }
    return {read_lane(expert, winner), read_lane(score, winner)};
  }

  // Lane i has the i-th expert. Weights are computed in fp64 and rounded once.
  DG_DEVICE void store(int id, float score) const {
    constexpr double kLeastSum = 1e-20;  // DeepSeek's, so that scores of zero don't become NaN
    const int lane = lane_id();
    double weight = static_cast<double>(score) * args_.scale;
    if (args_.renormalize) weight = weight / (sum_of_wave(lane < args_.top_k ? score : 0) + kLeastSum);
    if (lane >= args_.top_k) return;
    const int64_t at = static_cast<int64_t>(token_) * args_.top_k + lane;
    *(Global<float>*)(args_.weights + at) = static_cast<float>(weight);
    *(Global<int>*)(args_.ids + at) = id;
  }

  const RouteArguments& args_;
  int64_t token_;
  int first_;      // expert
  int available_;  // experts of the group from that one on
  float logits_[kSlots], bias_[kSlots], scores_[kSlots];
  unsigned keys_[kSlots];
};

}  // namespace deep_gemm_rocm

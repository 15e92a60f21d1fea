// Chooses the experts of a token. A wave has a token, and each lane some neighbouring experts, in the order of lanes.
#pragma once

#include "deep_gemm_rocm/arithmetic/exponential.h"
#include "deep_gemm_rocm/arithmetic/reciprocal.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"
#include "deep_gemm_rocm/hardware/wave_sum.h"

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
  const auto bits = __builtin_bit_cast(int, score + 0.0f);
  return __builtin_isnan(score) ? kNanKey : bits ^ (bits >> 31 | kSign);
}

DG_DEVICE float score_of(unsigned key) {
  const float score = __builtin_bit_cast(float, key ^ (~static_cast<int>(key) >> 31 | kSign));
  return key == kNanKey ? __builtin_nanf("") : score;
}

// kSlots experts of a lane; the lanes of each of the kGroups groups are neighbours.
template <class Logit, int kSlots, int kGroups, bool kSoftmax, bool kHasBias>
class Router {
  static constexpr int kLanes = kWaveSize / kGroups;  // of a group
  static constexpr int kDistances = __builtin_ctz(kLanes);

 public:
  DG_DEVICE Router(const RouteArguments& args, int token) : args_(args), token_(token) {
    const int group_experts = args.experts / kGroups;
    const int first_of_group = lane_id() / kLanes * group_experts;
    const int in_group = lane_id() % kLanes * kSlots;
    first_ = first_of_group + in_group;
    available_ = group_experts - in_group;
    const auto* row = static_cast<const Logit*>(args.logits) + token * args.row_stride;
    const int64_t first_column = first_ * args.column_stride;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool exists = slot < available_;
      const int64_t column = exists ? first_column + slot * args.column_stride : 0;
      logits_[slot] = static_cast<float>(*(const Global<Logit>*)(row + column));
      if constexpr (kHasBias) bias_[slot] = *(const Global<float>*)(args.bias + (exists ? first_ + slot : 0));
    }
    // The other arguments come while these values are on their way.
    asm volatile("" ::"s"(args.top_k), "s"(args.top_groups), "s"(args.scale), "s"(args.renormalize), "s"(args.weights),
                 "s"(args.ids));
  }

  DG_DEVICE void route() {
    compute_scores();
    if constexpr (kGroups > 1) keep_best_groups();
    sort_experts();
    unsigned chosen = 0;  // by lane i, the i-th place
    for (int i = 0; i < args_.top_k; ++i) {
      const int place = take_best();
      chosen = lane_id() == i ? place : chosen;
    }
    const int lane = chosen / kSlots, slot = chosen % kSlots;
    float score = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const float of_slot = exchange(scores_[s], lane);
      score = slot == s ? of_slot : score;
    }
    store(exchange(first_, lane) + slot, score);
  }

 private:
  // Scores, rounded to fp32, and the keys to choose by. Without a bias, softmax keeps the order of the logits.
  DG_DEVICE void compute_scores() {
    unsigned largest = kUnavailable;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      keys_[slot] = slot < available_ ? key_of(logits_[slot]) : kUnavailable;
      largest = max(largest, keys_[slot]);
    }
    double terms[kSlots];
    double sum = 0, reciprocal_of_sum = 0;
    if constexpr (kSoftmax) {
      const double most = score_of(max_over_wave(largest));
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        terms[slot] = exponential(static_cast<double>(logits_[slot]) - most);
        sum += slot < available_ ? terms[slot] : 0;
      }
      reciprocal_of_sum = reciprocal_of(sum_over_wave(sum));
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      scores_[slot] = static_cast<float>(
          kSoftmax ? terms[slot] * reciprocal_of_sum
                   : reciprocal_of(1 + exponential(-static_cast<double>(logits_[slot]))));
      if constexpr (kHasBias || !kSoftmax) {
        unsigned key = key_of(kHasBias ? scores_[slot] + bias_[slot] : scores_[slot]);
        asm("" : "+v"(key));  // computed in all lanes, so that loads of biases aren't put off
        keys_[slot] = slot < available_ ? key : kUnavailable;
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
    static_for<kDistances>([&](auto i) {
      constexpr int kMasks[] = {1, 2, 7, 15, 16, 32};  // after which 2, 4, 8, 16, 32 and 64 lanes have met
      merge(exchanged_key<kMasks[i]>(best), exchanged_key<kMasks[i]>(second));
    });
    const unsigned own = kHasBias ? key_of(score_of(best) + score_of(second)) : best;
    int better = 0;  // groups that come before
    static_for<kGroups>([&](auto group) {
      const auto other = static_cast<unsigned>(read_lane(static_cast<int>(own), group * kLanes));
      const bool wins_ties = lane_id() >= (group + 1) * kLanes;
      better += other > own - wins_ties;  // no group's key is 0
    });
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) keys_[slot] = better < args_.top_groups ? keys_[slot] : kUnavailable;
  }

  template <int kMask>
  static DG_DEVICE unsigned exchanged_key(unsigned key) {
    return __builtin_bit_cast(unsigned, exchanged<kMask>(__builtin_bit_cast(float, key)));
  }

  // Each lane's experts from the best on; the first of equal ones stays first.
  DG_DEVICE void sort_experts() {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) places_[slot] = lane_id() * kSlots + slot;
#pragma unroll
    for (int round = 0; round < kSlots; ++round) {
#pragma unroll
      for (int slot = round % 2; slot + 1 < kSlots; slot += 2) {
        const unsigned key = keys_[slot], next = keys_[slot + 1];
        const int place = places_[slot], next_place = places_[slot + 1];
        places_[slot] = next > key ? next_place : place;
        places_[slot + 1] = next > key ? place : next_place;
        keys_[slot] = max(key, next);
        keys_[slot + 1] = min(key, next);
      }
    }
  }

  // The place of the best of the experts that are left; the lowest of equal ones.
  DG_DEVICE int take_best() {
    const int winner = lowest_bit(ballot(keys_[0] == max_over_wave(keys_[0])));
    const int place = read_lane(places_[0], winner);
    const bool is_winner = lane_id() == winner;
#pragma unroll
    for (int slot = 0; slot + 1 < kSlots; ++slot) {
      keys_[slot] = is_winner ? keys_[slot + 1] : keys_[slot];
      places_[slot] = is_winner ? places_[slot + 1] : places_[slot];
    }
    keys_[kSlots - 1] = is_winner ? kUnavailable : keys_[kSlots - 1];
    return place;
  }

  // Lane i has the i-th expert. Weights are computed in fp64 and rounded once.
  DG_DEVICE void store(int id, float score) const {
    constexpr double kLeastSum = 1e-20;  // DeepSeek's, so that scores of zero don't become NaN
    const int lane = lane_id();
    double weight = static_cast<double>(score) * args_.scale;
    if (args_.renormalize) weight *= reciprocal_of(sum_over_wave(lane < args_.top_k ? score : 0) + kLeastSum);
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
  int places_[kSlots];  // of the keys, once these are sorted: lane · kSlots + slot
};

}  // namespace deep_gemm_rocm

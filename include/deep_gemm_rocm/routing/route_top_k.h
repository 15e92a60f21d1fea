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

// Experts are compared by unsigned keys, whose order is that of the scores: 0 and -0 are equal, a NaN is below all
// numbers, and an expert that can't be chosen is below that.
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

// Each lane has kSlots experts, and each of the kGroups groups has neighbouring lanes. The kWaves waves share the slots
// to compute scores; then the first wave chooses.
template <class Logit, int kSlots, int kGroups, bool kSoftmax, bool kHasBias, int kWaves>
class Router {
  static constexpr int kLanes = kWaveSize / kGroups;  // of a group
  static constexpr int kDistances = __builtin_ctz(kLanes);
  static constexpr int kOwnSlots = ceil_div(kSlots, kWaves);
  static_assert(kWaves == 1 || !kSoftmax, "a softmax is one of all slots");

 public:
  // Scores and keys by their place, lane · kSlots + slot.
  struct Lds {
    alignas(kChunkBytes) float scores[kWaveSize * kSlots];
    alignas(kChunkBytes) unsigned keys[kWaves == 1 ? 1 : kWaveSize * kSlots];
  };

  DG_DEVICE Router(const RouteArguments& args, int token, int wave, Lds& lds)
      : args_(args), wave_(wave), lds_(lds) {
    const int group_experts = static_cast<unsigned>(args.experts) / kGroups;
    const int first_of_group = lane_id() / kLanes * group_experts;
    const int in_group = lane_id() % kLanes * kSlots;
    first_ = first_of_group + in_group;
    available_ = group_experts - in_group;
    const auto* row = static_cast<const Logit*>(args.logits) + static_cast<unsigned>(token) * args.row_stride;
#pragma unroll
    for (int i = 0; i < kOwnSlots; ++i) {
      const unsigned expert = exists(i) ? first_ + own_slot(i) : 0;
      logits_[i] = static_cast<float>(*(const Global<Logit>*)(row + expert * args.column_stride));
      if constexpr (kHasBias) bias_[i] = ((const Global<float>*)args.bias)[expert];
    }
    // Loads the other arguments while these values are in flight.
    asm volatile("" ::"s"(args.top_k), "s"(args.top_groups), "s"(args.scale), "s"(args.renormalize), "s"(args.weights),
                 "s"(args.ids));
    result_ = static_cast<uint64_t>(static_cast<unsigned>(token)) * static_cast<unsigned>(args.top_k) + lane_id();
    asm volatile("" : "+v"(result_));
  }

  DG_DEVICE void route() {
    compute_scores();
    if constexpr (kWaves > 1) {
      share_keys();
      if (wave_ != 0) return;
    }
    if constexpr (kGroups > 1) keep_best_groups();
    sort_experts();
    // Lane i gets the i-th best expert. Two in a turn of the loop, to save branches; one beyond top_k isn't stored.
    unsigned chosen = 0;
    for (int i = 0; i < args_.top_k; i += 2) {
#pragma unroll
      for (int next = i; next < i + 2; ++next) {
        const int place = take_best();
        chosen = lane_id() == next ? place : chosen;
      }
    }
    const int lane = chosen / kSlots, slot = chosen % kSlots;
    store(exchange(first_, lane) + slot, lds_.scores[chosen]);
  }

 private:
  DG_DEVICE int own_slot(int i) const { return i * kWaves + wave_; }
  DG_DEVICE bool exists(int i) const { return own_slot(i) < min(available_, kSlots); }
  static DG_DEVICE int place(int slot) { return lane_id() * kSlots + slot; }

  // Scores, rounded to fp32, and the keys to choose by. Without a bias, softmax keeps the order of the logits.
  DG_DEVICE void compute_scores() {
    unsigned largest = kUnavailable;
#pragma unroll
    for (int i = 0; i < kOwnSlots; ++i) {
      keys_[i] = exists(i) ? key_of(logits_[i]) : kUnavailable;
      largest = max(largest, keys_[i]);
    }
    double terms[kOwnSlots];
    double sum = 0, reciprocal_of_sum = 0;
    if constexpr (kSoftmax) {
      const double most = score_of(max_over_wave(largest));
#pragma unroll
      for (int i = 0; i < kOwnSlots; ++i) {
        terms[i] = exponential(static_cast<double>(logits_[i]) - most);
        sum += exists(i) ? terms[i] : 0;
      }
      reciprocal_of_sum = reciprocal_of(sum_over_wave(sum));
    }
#pragma unroll
    for (int i = 0; i < kOwnSlots; ++i) {
      const auto score = static_cast<float>(
          kSoftmax ? terms[i] * reciprocal_of_sum : reciprocal_of(1 + exponential(-static_cast<double>(logits_[i]))));
      if (own_slot(i) < kSlots) lds_.scores[place(own_slot(i))] = score;
      if constexpr (kHasBias || !kSoftmax) {
        unsigned key = key_of(kHasBias ? score + bias_[i] : score);
        asm("" : "+v"(key));  // computed in all lanes, else the compiler moves loads of biases behind a branch
        keys_[i] = exists(i) ? key : kUnavailable;
      }
    }
  }

  // Gives the first wave the keys of all slots.
  DG_DEVICE void share_keys() {
#pragma unroll
    for (int i = 0; i < kOwnSlots; ++i) {
      if (own_slot(i) < kSlots) lds_.keys[place(own_slot(i))] = keys_[i];
    }
    lds_barrier();
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) keys_[slot] = lds_.keys[place(slot)];
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
    // A group's lanes compare it with a group each, and count together those that come before.
    const int first_lane = lane_id() / kLanes * kLanes;
    int better = 0;
#pragma unroll
    for (int round = 0; round < ceil_div(kGroups, kLanes); ++round) {
      const int other_lane = (round * kLanes + lane_id() % kLanes) * kLanes;
      const auto other = static_cast<unsigned>(exchange(static_cast<int>(own), other_lane));
      const bool wins_ties = other_lane < first_lane;
      const uint64_t before = ballot(other_lane < kWaveSize && other > own - wins_ties);  // no group's key is 0
      better += __builtin_popcountl(before >> first_lane & ((uint64_t{1} << kLanes) - 1));
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) keys_[slot] = better < args_.top_groups ? keys_[slot] : kUnavailable;
  }

  template <int kMask>
  static DG_DEVICE unsigned exchanged_key(unsigned key) {
    return __builtin_bit_cast(unsigned, exchanged<kMask>(__builtin_bit_cast(float, key)));
  }

  // Sorts each lane's experts, the best first. Stable: among equal ones the first stays first.
  DG_DEVICE void sort_experts() {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) places_[slot] = place(slot);
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

  // Takes the best of the remaining experts, the lowest place among equal ones, and returns its place. The lanes find
  // the largest key in dependent steps; between these, the experts after the last winner move up in their lane.
  DG_DEVICE int take_best() {
    unsigned best = keys_[0];
    static_for<kStepsOfWave>([&](auto step) {
      best = larger_of_steps<step>(best);
      if constexpr (step + 1 < kSlots) move_up(step + 1);
    });
    static_for<max(kSlots - 1 - kStepsOfWave, 0)>([&](int i) { move_up(kStepsOfWave + 1 + i); });
    const int winner = lowest_bit(ballot(keys_[0] == of_last_lane(best)));
    const int place = read_lane(places_[0], winner);
    is_winner_ = lane_id() == winner;
    move_up(0);
    return place;
  }

  DG_DEVICE void move_up(int slot) {
    const bool is_last = slot == kSlots - 1;
    keys_[slot] = is_winner_ ? is_last ? kUnavailable : keys_[slot + 1] : keys_[slot];
    if (!is_last) places_[slot] = is_winner_ ? places_[slot + 1] : places_[slot];
  }

  // Lane i has the i-th expert. Weights are computed in fp64 and rounded once.
  DG_DEVICE void store(int id, float score) const {
    constexpr double kLeastSum = 1e-20;  // DeepSeek's, so that scores of zero don't become NaN
    const int lane = lane_id();
    double weight = static_cast<double>(score) * args_.scale;
    if (args_.renormalize) weight *= reciprocal_of(sum_over_wave(lane < args_.top_k ? score : 0) + kLeastSum);
    if (lane >= args_.top_k) return;
    *(Global<float>*)(args_.weights + result_) = static_cast<float>(weight);
    *(Global<int>*)(args_.ids + result_) = id;
  }

  const RouteArguments& args_;
  uint64_t result_;  // the place of the lane's result
  int first_;        // expert
  int available_;    // experts of the group from that one on
  int wave_;
  Lds& lds_;
  bool is_winner_ = false;  // whether the lane's best expert was taken last
  float logits_[kOwnSlots], bias_[kOwnSlots];
  unsigned keys_[kSlots];
  int places_[kSlots];  // of the keys, once these are sorted: lane · kSlots + slot
};

}  // namespace deep_gemm_rocm

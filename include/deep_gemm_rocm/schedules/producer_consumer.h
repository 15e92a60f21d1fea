// A schedule of the K loop: some waves only load, the others only multiply.
#pragma once

#include "deep_gemm_rocm/schedules/pipeline.h"

namespace deep_gemm_rocm {

// The division of work that suits Hopper, kept for comparison; no heuristic chooses it. All waves of a kernel have
// equally many registers here, so producers hold many that they don't use, and consumers have too few.
//
// LDS has two stages, and there is one barrier a K-block; R = kNumStages - 2 more are in flight to registers:
//   producers:  store k + 1 into LDS · start the loads of k + 1 + R
//   consumers:  scales of k + R · fragments of k from LDS · multiply k
// Both then wait for each other: stage k % 2 has been read when K-block k + 2 is stored there.
template <class Kind, class Shape, int kNumStages, int kProducerWaves>
class ProducerConsumer : public ScheduleDefaults<Kind, Shape> {
 public:
  static constexpr int kUnroll = kNumStages - 2;
  static constexpr int kExtraWaves = kProducerWaves;
  static_assert(kUnroll >= 1, "two stages are in LDS, at least one is on its way in registers");

  struct Resources : PipelineResources<Shape> {
    static constexpr int kLdsStagesOfA = 2;
    static constexpr int kLdsStagesOfB = 2;
    static constexpr int kRegisterStages = kUnroll;
    static constexpr int kLoadingThreads = kProducerWaves * kWaveSize;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  static DG_DEVICE bool has_sums() { return is_consumer(); }

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    if (is_consumer()) {
      begin_scales();
#pragma unroll
      for (int stage = 0; stage < kUnroll; ++stage) state.load_scales(stage);
    } else {
#pragma unroll
      for (int stage = 0; stage < kUnroll; ++stage) state.load_tile(stage, stage);
      produce(state, 0, 0);
    }
    lds_barrier();
  }

  static DG_DEVICE void k_block(State& state, int stage, int k_block) {
    if (is_consumer()) {
      consume(state, stage, k_block);
    } else {
      produce(state, (stage + 1) % kUnroll, k_block + 1);
    }
    lds_barrier();
  }

 private:
  static DG_DEVICE bool is_consumer() { return wave_id() < Shape::kThreads / kWaveSize; }

  static DG_DEVICE void produce(State& state, int stage, int k_block) {
    state.store_tile(stage, k_block);
    state.load_tile(stage, k_block + kUnroll);
  }

  static DG_DEVICE void consume(State& state, int stage, int k_block) {
    state.mma.start_k_block(state.scales, stage);
    state.load_scales(stage);
    // The unrolled loop may end with K-blocks past the last one.
    if (kUnroll == 1 || k_block < state.end_k_block) {
      state.read_fragments(k_block);
      state.multiply();
    }
  }
};

}  // namespace deep_gemm_rocm

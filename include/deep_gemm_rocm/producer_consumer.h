// A schedule of the K loop: some waves only load, the others only multiply.
#pragma once

#include "deep_gemm_rocm/pipeline.h"

namespace deep_gemm_rocm {

// As kernels for Hopper divide the work. Here all waves get the same registers, so that producers hold many that they
// don't use, and consumers as many less; this schedule is there to be compared.
//
// LDS has two stages, and there is one barrier a K-block; R = kNumStages - 2 more are on their way in registers:
//   producers:  store k + 1 into LDS · start the loads of k + 1 + R
//   consumers:  scales of k + R · fragments of k from LDS · multiply k
// Both then wait for each other: stage k % 2 has been read when K-block k + 2 is stored there.
template <class Kind_, class Shape_, int kNumStages, int kProducerWaves_>
class ProducerConsumer {
 public:
  using Kind = Kind_;
  using Shape = Shape_;
  static constexpr int kUnroll = kNumStages - 2;
  static constexpr int kLastKBlocks = 0;
  static constexpr bool kGoesOnToNextTile = false;
  static_assert(kUnroll >= 1, "two stages are in LDS, at least one is on its way in registers");

  struct Resources : PipelineResources<Shape> {
    static constexpr int kLdsStagesOfA = 2;
    static constexpr int kLdsStagesOfB = 2;
    static constexpr int kRegisterStages = kUnroll;
    static constexpr int kProducerWaves = kProducerWaves_;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    if (State::computes()) {
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
    if (State::computes()) {
      consume(state, stage, k_block);
    } else {
      produce(state, (stage + 1) % kUnroll, k_block + 1);
    }
    lds_barrier();
  }

  static DG_DEVICE void epilogue(State&, int) {}

 private:
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

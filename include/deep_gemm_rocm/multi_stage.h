// A schedule of the K loop: all waves do the same, in an order left to the compiler.
#pragma once

#include "deep_gemm_rocm/pipeline.h"

namespace deep_gemm_rocm {

// All waves load and compute. kNumStages K-blocks are held at once: up to two in LDS, the others on their way in
// registers. With one stage nothing overlaps; with two, loads overlap the computation; from three on, LDS is
// double-buffered as well and one barrier a K-block is enough. Waves with parts of K of their own need neither.
template <class Kind_, class Shape_, int kNumStages>
class MultiStage {
 public:
  using Kind = Kind_;
  using Shape = Shape_;
  static constexpr bool kWaveAlone = Shape::kWavesK > 1;
  static constexpr int kLdsStages = kNumStages < 3 || kWaveAlone ? 1 : 2;
  static constexpr int kUnroll = kNumStages > 1 ? kNumStages - kLdsStages : 1;
  static constexpr bool kEndsWithKBlock = false;
  static constexpr bool kGoesOnToNextTile = false;

  struct Resources : PipelineResources<Shape> {
    static constexpr int kLdsStagesOfA = kLdsStages;
    static constexpr int kLdsStagesOfB = kLdsStages;
    static constexpr int kRegisterStages = kUnroll;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  static DG_DEVICE void prologue(State& state) {
    if (!kPrefetch) return;
#pragma unroll
    for (int stage = 0; stage < kUnroll; ++stage) {
      load(state, stage, stage);
      state.load_fragments(stage, stage);
    }
  }

  template <class BetweenLoads>
  static DG_DEVICE void k_block(State& state, int stage, int k_block, const BetweenLoads&) {
    if (!kPrefetch) {
      load(state, stage, k_block);
      state.load_fragments(stage, k_block);
    }
    state.mma.start_k_block(state.scales, stage);
    state.store_tile(stage, k_block);
    if (kPrefetch) load(state, stage, k_block + kUnroll);
    barrier();
    // The unrolled loop may end with K-blocks past the last one. Only their computation is skipped: with the same loads
    // on every path the compiler can count those in flight.
    if (kUnroll == 1 || k_block < state.end_k_block) {
      state.read_fragments(k_block, stage);
      state.multiply();
    }
    if (kPrefetch) state.load_fragments(stage, k_block + kUnroll);
    if (kLdsStages == 1) barrier();
  }

  template <class Output>
  static DG_DEVICE void epilogue(State&, Output&, bool) {}

 private:
  static constexpr bool kPrefetch = kNumStages > 1;

  static DG_DEVICE void barrier() {
    if (kWaveAlone) {
      lds_barrier_of_wave();
    } else {
      lds_barrier();
    }
  }

  static DG_DEVICE void load(State& state, int stage, int k_block) {
    state.load_scales(stage);
    state.load_tile(stage, k_block);
  }
};

}  // namespace deep_gemm_rocm

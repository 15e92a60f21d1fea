// A schedule of the K loop: all waves do the same, in an order left to the compiler.
#pragma once

#include "deep_gemm_rocm/schedules/pipeline.h"

namespace deep_gemm_rocm {

// kNumStages K-blocks are held at once: up to two in LDS, the others in flight to registers. With one stage nothing
// overlaps; with two, loads overlap the computation; from three on, LDS is double-buffered as well and one barrier a
// K-block is enough.
template <class Kind, class Shape, int kNumStages>
class MultiStage : public ScheduleDefaults<Kind, Shape> {
 public:
  static constexpr int kLdsStages = kNumStages < 3 ? 1 : 2;
  static constexpr int kUnroll = kNumStages > 1 ? kNumStages - kLdsStages : 1;

  struct Resources : PipelineResources<Shape> {
    static constexpr int kLdsStagesOfA = kLdsStages;
    static constexpr int kLdsStagesOfB = kLdsStages;
    static constexpr int kRegisterStages = kUnroll;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    if (kPrefetch) state.load_tile(0, 0);
    begin_scales();
    if (!kPrefetch) return;
    state.load_scales(0);
#pragma unroll
    for (int stage = 1; stage < kUnroll; ++stage) load(state, stage, stage);
  }

  static DG_DEVICE void k_block(State& state, int stage, int k_block) {
    if (!kPrefetch) load(state, stage, k_block);
    state.mma.start_k_block(state.scales, stage);
    state.store_tile(stage, k_block);
    if (kPrefetch) load(state, stage, k_block + kUnroll);
    lds_barrier();
    // The unrolled loop may end with K-blocks past the last one. Only their computation is skipped: with the same loads
    // on every path, the compiler can count the loads in flight.
    if (kUnroll == 1 || k_block < state.end_k_block) {
      state.read_fragments(k_block);
      state.multiply();
    }
    if (kLdsStages == 1) lds_barrier();
  }

 private:
  static constexpr bool kPrefetch = kNumStages > 1;

  static DG_DEVICE void load(State& state, int stage, int k_block) {
    state.load_scales(stage);
    state.load_tile(stage, k_block);
  }
};

}  // namespace deep_gemm_rocm

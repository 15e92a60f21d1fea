// A schedule of the K loop for waves that share nothing: each has rows and columns, or a part of K, of its own.
#pragma once

#include "deep_gemm_rocm/schedules/pipeline.h"

namespace deep_gemm_rocm {

// Operands skip LDS, so there are no barriers: those of kNumStages K-blocks are in the registers from which MFMAs take
// them, or in flight to them.
template <class Kind, class Shape, int kNumStages>
class WavesAlone : public ScheduleDefaults<Kind, Shape> {
 public:
  static constexpr int kUnroll = kNumStages;
  static constexpr int kLastKBlocks = kNumStages;  // there is nothing left to load then

  struct Resources : PipelineResources<Shape> {
    static constexpr int kRegisterStages = kNumStages;
    static constexpr bool kSkipsLds = true;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    state.load_fragments(0, 0);
    asm volatile("" ::: "memory");  // otherwise the compiler lets these loads wait for the arguments of scales
    begin_scales();
    state.load_first_row_scales();
    state.load_scales(0);
#pragma unroll
    for (int stage = 1; stage < kNumStages; ++stage) {
      state.load_scales(stage);
      state.load_fragments(stage, stage);
    }
    state.store_first_row_scales();
  }

  // Loads each fragment of A again as soon as its last MFMA has been issued, so that loads never pause.
  static DG_DEVICE void k_block(State& state, int stage, int k_block) {
    if (stage == 0) state.load_row_scales(k_block);
    compute(state, stage, k_block, [&](int row) { state.load_fragment_of_a(stage, row, k_block + kNumStages); });
    state.load_scales(stage);
    state.load_fragments_of_b(stage, k_block + kNumStages);
    if (stage == kUnroll - 1) state.store_row_scales(k_block - stage);
  }

  static DG_DEVICE void epilogue(State& state, int first) {
    static_for<kNumStages>([&](auto stage) {
      if (first + stage >= state.end_k_block) return;
      compute(state, stage, first + stage, [](int) {});
      state.after_k_block(first + stage);
    });
  }

 private:
  template <class AfterRow>
  static DG_DEVICE void compute(State& state, int stage, int k_block, const AfterRow& after_row) {
    if constexpr (Kind::kWidensB) state.start_groups(stage);
    if constexpr (Kind::kHasRounds) {
      do {
        state.start_round();
        multiply(state, stage, k_block, [](int) {});
      } while (state.has_another_round());
      static_for<Shape::kFragsM>(after_row);
    } else {
      multiply(state, stage, k_block, after_row);
    }
  }

  template <class AfterRow>
  static DG_DEVICE void multiply(State& state, int stage, int k_block, const AfterRow& after_row) {
    state.mma.start_k_block(state.scales, stage);
    state.read_row_scales(k_block + 1);
    state.read_fragments(k_block, stage);
    state.multiply(after_row);
  }
};

}  // namespace deep_gemm_rocm

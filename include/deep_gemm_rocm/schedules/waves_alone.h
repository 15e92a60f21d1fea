// A schedule of the K loop for waves that share nothing: each has rows and columns, or a part of K, of its own.
#pragma once

#include "deep_gemm_rocm/schedules/pipeline.h"

namespace deep_gemm_rocm {

// Operands skip LDS, so there are no barriers. The operands of kNumStages K-blocks are in flight to registers, or in
// them; MFMAs take them from the same registers.
template <class Kind, class Shape, int kNumStages>
class WavesAlone : public ScheduleDefaults<Kind, Shape> {
 public:
  static constexpr int kUnroll = kNumStages;
  static constexpr int kLastKBlocks = kNumStages;  // there is nothing left to load then

  // Whether a wave widens B while it multiplies: the second half of a K-block during the first half of its MFMAs, and
  // the first half of the next K-block during the other half. The chains of all fragments alternate, so that half of
  // the MFMAs need only half of B. That gains nothing with a single fragment of A, which has few MFMAs. With many
  // fragments, or three K-blocks of four fragments of A, there aren't enough registers for all partial sums.
  static constexpr int kFragments = Shape::kFragsM * Shape::kFragsN;
  static constexpr int kMostFragments = Kind::kPromotesColumns ? 4 : Kind::kPromotes ? 12 : kFragments;
  static constexpr bool kWidensAhead = Kind::kWidensB && !Kind::kHasRounds && Shape::kFragsM > 1 &&
                                       !Kind::kHasShortGroups && kFragments <= kMostFragments &&
                                       (!Kind::kPromotes || kNumStages * Shape::kFragsM < 12);

  struct Resources : PipelineResources<Shape> {
    static constexpr int kRegisterStages = kNumStages;
    static constexpr bool kSkipsLds = true;
    static constexpr int kChains = kWidensAhead ? kFragments : PipelineResources<Shape>::kChains;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    state.load_first_values();
    asm volatile("" ::: "memory");  // otherwise the compiler delays these loads until the arguments of scales are there
    begin_scales();
    state.load_first_row_scales();
    state.load_first_groups();
    state.load_scales(0);
#pragma unroll
    for (int stage = 1; stage < kNumStages; ++stage) {
      // Keeps the stages' loads in order. In the K loop, the wait for a scale allows as many loads in flight as follow
      // the scale's load on every path, here and in the loop. Were it fewer here, the K loop would wait for more loads.
      // Where B is widened, the compiler's own order is better by up to 1.4%.
      if (!Kind::kWidensB) asm volatile("" ::: "memory");
      state.load_scales(stage);
      state.load_fragments(stage, stage);
    }
    state.store_first_row_scales();
    if constexpr (kWidensAhead) {
      state.start_groups(0);
      state.widen_half(0, 0);
    }
  }

  // Reloads each fragment of A as soon as its last MFMA has been issued, so that loads never pause.
  static DG_DEVICE void k_block(State& state, int stage, int k_block) {
    if (stage == 0) state.load_row_scales(k_block);
    const auto load_b = [&] {
      state.load_scales(stage);
      state.load_fragments_of_b(stage, k_block + kNumStages);
    };
    compute(state, stage, k_block, load_b,
            [&](int row) { state.load_fragment_of_a(stage, row, k_block + kNumStages); });
    if (stage == kUnroll - 1) state.store_row_scales(k_block - stage);
  }

  static DG_DEVICE void epilogue(State& state, int first) {
    static_for<kNumStages>([&](auto stage) {
      if (first + stage >= state.end_k_block) return;
      compute(state, stage, first + stage, [] {}, [](int) {});
      state.after_k_block(first + stage);
    });
  }

 private:
  // Calls after_b() when B's registers are free, and after_row(i) when those of A's fragment i are.
  template <class AfterB, class AfterRow>
  static DG_DEVICE void compute(State& state, int stage, int k_block, const AfterB& after_b,
                                const AfterRow& after_row) {
    if constexpr (kWidensAhead) {
      state.mma.start_k_block(state.scales, stage);
      state.read_row_scales(k_block + 1);
      state.read_fragments_of_a(stage);
      state.widen_half(stage, 1);
      state.multiply_half(0);
      after_b();
      const int next = (stage + 1) % kNumStages;
      state.start_groups(next);
      state.widen_half(next, 0);
      state.multiply_half(1);
      static_for<Shape::kFragsM>(after_row);
      state.mma.finish();
      return;
    }
    if constexpr (Kind::kWidensB) state.start_groups(stage);
    if constexpr (Kind::kHasRounds) {
      // One round is usual. A single loop over all of them takes up to 2% longer.
      state.start_round();
      multiply(state, stage, k_block, [](int) {});
      while (state.has_another_round()) {
        state.read_row_scales(k_block);  // the round before has replaced them by the next K-block's
        state.start_round();
        multiply(state, stage, k_block, [](int) {});
      }
      static_for<Shape::kFragsM>(after_row);
    } else {
      multiply(state, stage, k_block, after_row);
    }
    after_b();
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

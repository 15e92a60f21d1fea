// A schedule of the K loop: all waves do the same, in an order that is laid out by hand.
#pragma once

#include "deep_gemm_rocm/pipeline.h"

namespace deep_gemm_rocm {

// As MultiStage with two stages, but every memory operation has its place between MFMAs, and the compiler is kept from
// moving it: while K-block k is computed from registers, k + 1 goes into LDS and from there into registers, and the
// loads of k + 2 start.
//
// The timeline of a K-block has 32 ticks, with at most one LDS operation each: two waves on each SIMD then ask for no
// more than LDS delivers. W stands for the tile's transfers.
//   LDS:     last A fragment of k · barrier · W stores of k + 1 · barrier · B and the other A fragments of k + 1
//   memory:  scales of k + 1 · W loads of k + 2, each after the store that frees its registers
// A's fragments are replaced in place, once their last MFMA has been issued; B's are needed to the end, so they
// alternate between two sets.
template <class Kind_, class Shape_, int kNumStages>
class Pinned {
 public:
  using Kind = Kind_;
  using Shape = Shape_;
  static constexpr int kUnroll = 2;
  static constexpr int kLastKBlocks = 0;
  static constexpr bool kGoesOnToNextTile = false;

  struct Resources : PipelineResources<Shape> {
    static constexpr int kFragmentStages = 2;
    static constexpr bool kCarry = true;
  };
  using State = PipelineState<Kind, Shape, Resources>;
  static_assert(kNumStages == 2, "the pinned schedule has two stages: one in LDS, one on its way in registers");

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    state.load_tile(0, 0);
    begin_scales();
    state.load_scales(0);
#pragma unroll
    for (int i = 0; i < kTransfers; ++i) {
      state.store(0, i, 0);
      state.load(0, i, 1);
    }
    lds_barrier();
#pragma unroll
    for (int read = 0; read < kReadsOfNext; ++read) read_next(state, 0, read);
    start_k_block(state);
  }

  static DG_DEVICE void k_block(State& state, int parity, int k_block) {
    if (k_block >= state.end_k_block) return;
    state.scales.keep_in_scalar_registers();
    static_for<kSlots>([&](int slot) {
      state.mma.slot(slot, state.a, state.b[parity]);
      const int tick = slot / kSlotsPerTick;
      if (slot % kSlotsPerTick == 0) lds_tick(state, tick, 1 - parity);
      if (slot % kSlotsPerTick == kSlotsPerTick - 1) memory_tick(state, tick, k_block);
      __builtin_amdgcn_sched_barrier(0);
    });
    start_k_block(state);
  }

  static DG_DEVICE void epilogue(State& state, int) { state.mma.finish(); }

 private:
  static constexpr int kTicks = 32;
  static constexpr int kSlots = State::kSlots;
  static constexpr int kSlotsPerTick = kSlots / kTicks;
  static_assert(kSlots % kTicks == 0 && kSlots > 0, "the wave's tile is too small for the pinned schedule");

  static constexpr int kReads = State::kReads;
  static constexpr int kTransfers = State::kTransfers;
  static constexpr int kReadsOfB = Shape::kFragsN * kReads;
  static constexpr int kReadsOfNext = kReadsOfB + (Shape::kFragsM - 1) * kReads;

  static constexpr int kReadLastA = 0;
  static constexpr int kAllRead = kReadLastA + kReads + 2;  // two ticks for the reads to arrive
  static constexpr int kStore = kAllRead + 1;
  static constexpr int kAllStored = kStore + kTransfers + 1;
  static constexpr int kReadNext = kAllStored + 1;
  static constexpr int kEnd = kReadNext + kReadsOfNext;
  static_assert(kEnd <= kTicks, "the tile needs more LDS operations than the computation of a K-block hides");
  // A's fragment i is computed in the i-th of kFragsM equal parts of the K-block.
  static constexpr bool replaces_a_too_early() {
    for (int i = 0; i + 1 < Shape::kFragsM; ++i) {
      if (kReadNext + kReadsOfB + i * kReads < (i + 1) * kTicks / Shape::kFragsM) return true;
    }
    return false;
  }
  static_assert(!replaces_a_too_early(), "A's fragments must have been used when they are replaced");
  static_assert(State::kScaleLoads <= kStore, "scale loads must come before the tile loads, or wait for them");

  static DG_DEVICE void lds_tick(State& state, int tick, int next_b) {
    if (tick < kReadLastA + kReads) {
      state.read_a(Shape::kFragsM - 1, tick - kReadLastA, 0);
    } else if (tick == kAllRead || tick == kAllStored) {
      lds_barrier();
    } else if (tick >= kStore && tick < kStore + kTransfers) {
      state.store(0, tick - kStore, 0);
    } else if (tick >= kReadNext && tick < kEnd) {
      read_next(state, next_b, tick - kReadNext);
    }
  }

  static DG_DEVICE void memory_tick(State& state, int tick, int k_block) {
    if (tick < State::kScaleLoads) {
      state.scales.load(0, tick);
    } else if (tick >= kStore && tick < kStore + kTransfers) {
      state.load(0, tick - kStore, k_block + 2);
    }
  }

  static DG_DEVICE void read_next(State& state, int next_b, int read) {
    if (read < kReadsOfB) {
      state.read_b(next_b, read / kReads, read % kReads, 0);
    } else {
      state.read_a(read / kReads - Shape::kFragsN, read % kReads, 0);
    }
  }

  static DG_DEVICE void start_k_block(State& state) {
    state.mma.start_k_block(state.scales, 0);
  }
};

}  // namespace deep_gemm_rocm

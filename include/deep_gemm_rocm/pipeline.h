// The K loop and the schedules it takes: when to load, store into LDS, read fragments and compute.
#pragma once

#include "deep_gemm_rocm/promoted_mma.h"
#include "deep_gemm_rocm/scale_loader.h"
#include "deep_gemm_rocm/tile_loader.h"
#include "deep_gemm_rocm/tile_shape.h"

namespace deep_gemm_rocm {

struct TileOperands {
  OperandTile a, b;
  ScaleTile sfa, sfb;
};

// What every schedule works with: loaders, LDS, fragments and the wave's accumulators.
template <class Shape, int kRegisterStages, int kFragmentStages, int kChains, bool kCarry, bool kKTail>
struct PipelineState {
  using Mfma = typename Shape::Mfma;
  using LoaderA = TileLoader<Shape::kBlockM, Shape::kThreads, kRegisterStages, kKTail>;
  using LoaderB = TileLoader<Shape::kBlockN, Shape::kThreads, kRegisterStages, kKTail>;
  static constexpr int kTransfers = LoaderA::kPasses + LoaderB::kPasses;

  DG_DEVICE PipelineState(const TileOperands& operands, uint8_t* lds)
      : num_k_blocks(ceil_div(operands.a.k, kBlockKBytes)),
        loader_a(operands.a, [](int row) { return row; }),
        loader_b(operands.b, column_of_lds_row<Mfma, Shape::kJoined>),
        scales(operands.sfa, operands.a.rows, operands.sfb, num_k_blocks),
        lds_(lds),
        wave_m_(Shape::wave_m()),
        wave_n_(Shape::wave_n()) {}

  // Transfers 0, 1, … are the passes of A, then those of B.
  template <int kStage, int kTransfer>
  DG_DEVICE void load(int k_block) {
    if constexpr (kTransfer < LoaderA::kPasses) {
      loader_a.template load<kStage, kTransfer>(k_block);
    } else {
      loader_b.template load<kStage, kTransfer - LoaderA::kPasses>(k_block);
    }
  }

  template <int kStage, int kTransfer>
  DG_DEVICE void store(int lds_stage) {
    if constexpr (kTransfer < LoaderA::kPasses) {
      loader_a.template store<kStage, kTransfer>(lds_a(lds_stage));
    } else {
      loader_b.template store<kStage, kTransfer - LoaderA::kPasses>(lds_b(lds_stage));
    }
  }

  template <int kFragment, int kRead>
  DG_DEVICE void read_a(int lds_stage) {
    a[kFragment].template read<kRead>(lds_a(lds_stage), wave_m_ + kFragment * Mfma::kRows);
  }

  template <int kFragmentStage, int kFragment, int kRead>
  DG_DEVICE void read_b(int lds_stage) {
    b[kFragmentStage][kFragment].template read<kRead>(lds_b(lds_stage), wave_n_ + kFragment * Mfma::kRows);
  }

  const int num_k_blocks;
  LoaderA loader_a;
  LoaderB loader_b;
  ScaleLoader<Shape, kRegisterStages> scales;
  Fragment<Mfma> a[Shape::kFragsM];
  Fragment<Mfma> b[kFragmentStages][Shape::kFragsN];
  PromotedMma<Shape, kChains, kCarry> mma;

 private:
  DG_DEVICE uint8_t* lds_a(int stage) const { return lds_ + stage * Shape::kTileBytes; }
  DG_DEVICE uint8_t* lds_b(int stage) const { return lds_a(stage) + Shape::kBlockM * kBlockKBytes; }

  uint8_t* lds_;
  int wave_m_;
  int wave_n_;
};

// All waves load and compute. kNumStages K-blocks are held at once: up to two in LDS, the others on their way in
// registers. With one stage nothing overlaps; with two, loads overlap the computation; from three on, LDS is
// double-buffered as well and one barrier a K-block is enough.
template <class Shape_, int kNumStages, bool kKTail>
class MultiStage {
 public:
  using Shape = Shape_;
  static constexpr int kLdsStages = kNumStages < 3 ? 1 : 2;
  static constexpr int kLdsBytes = kLdsStages * Shape::kTileBytes;
  static constexpr int kUnroll = kNumStages > 1 ? kNumStages - kLdsStages : 1;

 private:
  static constexpr bool kPrefetch = kNumStages > 1;
  static constexpr int kChains = Shape::kFragsM * Shape::kFragsN % 2 == 0 ? 2 : 1;

 public:
  using State = PipelineState<Shape, kUnroll, 1, kChains, false, kKTail>;

  static DG_DEVICE void prologue(State& state) {
    if constexpr (kPrefetch) static_for<kUnroll>([&](auto stage) { load<stage>(state, stage); });
  }

  template <int kStage>
  static DG_DEVICE void k_block(State& state, int k_block) {
    const int lds_stage = k_block % kLdsStages;
    if constexpr (!kPrefetch) load<kStage>(state, k_block);
    state.mma.start_k_block([&](int i) { return state.scales.template product<kStage>(i); });
    static_for<State::kTransfers>([&](auto transfer) { state.template store<kStage, transfer>(lds_stage); });
    if constexpr (kPrefetch) load<kStage>(state, k_block + kUnroll);
    lds_barrier();
    using Fragment = Fragment<typename Shape::Mfma>;
    static_for<Fragment::kReads>([&](auto read) {
      static_for<Shape::kFragsM>([&](auto i) { state.template read_a<i, read>(lds_stage); });
      static_for<Shape::kFragsN>([&](auto j) { state.template read_b<0, j, read>(lds_stage); });
    });
    static_for<decltype(state.mma)::kSlots>([&](auto slot) { state.mma.template slot<slot>(state.a, state.b[0]); });
    state.mma.finish();
    if constexpr (kLdsStages == 1) lds_barrier();
  }

  static DG_DEVICE void epilogue(State&) {}

 private:
  template <int kStage>
  static DG_DEVICE void load(State& state, int k_block) {
    static_for<decltype(state.scales)::kLoads>([&](auto i) { state.scales.template load<kStage, i>(k_block); });
    static_for<State::kTransfers>([&](auto transfer) { state.template load<kStage, transfer>(k_block); });
  }
};

// As MultiStage with two stages, but every memory operation has its place between MFMAs, and the compiler is kept from
// moving it: while K-block k is computed from registers, k + 1 goes into LDS and from there into registers, and the loads
// of k + 2 start.
//
// The timeline of a K-block has 32 ticks, with at most one LDS operation each: two waves on each SIMD then ask for no more
// than LDS delivers. W stands for the tile's transfers.
//   LDS:     last A fragment of k · barrier · W stores of k + 1 · barrier · B and the other A fragments of k + 1
//   memory:  scales of k + 1 · W loads of k + 2, each after the store that frees its registers
// A's fragments are replaced in place, once their last MFMA has been issued; B's are needed to the end, so they alternate
// between two sets.
template <class Shape_, int kNumStages, bool kKTail>
class Pinned {
 public:
  using Shape = Shape_;
  using State = PipelineState<Shape, 1, 2, 1, true, kKTail>;
  static constexpr int kLdsBytes = Shape::kTileBytes;
  static constexpr int kUnroll = 2;
  static_assert(kNumStages == 2, "the pinned schedule has two stages: one in LDS, one on its way in registers");

  static DG_DEVICE void prologue(State& state) {
    load_scales(state, 0);
    load_tiles(state, 0);
    static_for<kTransfers>([&](auto transfer) { state.template store<0, transfer>(0); });
    load_tiles(state, 1);
    lds_barrier();
    static_for<kReadsOfNext>([&](auto read) { read_next<0, read>(state); });
    start_k_block(state);
  }

  template <int kParity>
  static DG_DEVICE void k_block(State& state, int k_block) {
    static_for<kSlots>([&](auto slot) {
      state.mma.template slot<slot>(state.a, state.b[kParity]);
      constexpr int tick = slot / kSlotsPerTick;
      if constexpr (slot % kSlotsPerTick == 0) lds_tick<1 - kParity, tick>(state);
      if constexpr (slot % kSlotsPerTick == kSlotsPerTick - 1) memory_tick<tick>(state, k_block);
      __builtin_amdgcn_sched_barrier(0);
    });
    start_k_block(state);
  }

  static DG_DEVICE void epilogue(State& state) { state.mma.finish(); }

 private:
  using Fragment = deep_gemm_rocm::Fragment<typename Shape::Mfma>;
  static constexpr int kTicks = 32;
  static constexpr int kSlots = decltype(State::mma)::kSlots;
  static constexpr int kSlotsPerTick = kSlots / kTicks;
  static_assert(kSlots % kTicks == 0 && kSlots > 0, "the wave's tile is too small for the pinned schedule");

  static constexpr int kTransfers = State::kTransfers;
  static constexpr int kReadsOfB = Shape::kFragsN * Fragment::kReads;
  static constexpr int kReadsOfNext = kReadsOfB + (Shape::kFragsM - 1) * Fragment::kReads;

  static constexpr int kReadLastA = 0;
  static constexpr int kAllRead = kReadLastA + Fragment::kReads + 2;  // two ticks for the reads to arrive
  static constexpr int kStore = kAllRead + 1;
  static constexpr int kAllStored = kStore + kTransfers + 1;
  static constexpr int kReadNext = kAllStored + 1;
  static constexpr int kEnd = kReadNext + kReadsOfNext;
  static_assert(kEnd <= kTicks, "the tile needs more LDS operations than the computation of a K-block hides");
  static_assert(kReadNext + kReadsOfB >= kTicks / Shape::kFragsM, "A's first fragment must be free when it is replaced");

  template <int kNextB, int kTick>
  static DG_DEVICE void lds_tick(State& state) {
    if constexpr (kTick < kReadLastA + Fragment::kReads) {
      state.template read_a<Shape::kFragsM - 1, kTick - kReadLastA>(0);
    } else if constexpr (kTick == kAllRead || kTick == kAllStored) {
      lds_barrier();
    } else if constexpr (kTick >= kStore && kTick < kStore + kTransfers) {
      state.template store<0, kTick - kStore>(0);
    } else if constexpr (kTick >= kReadNext && kTick < kEnd) {
      read_next<kNextB, kTick - kReadNext>(state);
    }
  }

  template <int kTick>
  static DG_DEVICE void memory_tick(State& state, int k_block) {
    if constexpr (kTick < kScaleLoads) {
      state.scales.template load<0, kTick>(k_block + 1);
    } else if constexpr (kTick >= kStore && kTick < kStore + kTransfers) {
      state.template load<0, kTick - kStore>(k_block + 2);
    }
  }

  template <int kNextB, int kRead>
  static DG_DEVICE void read_next(State& state) {
    constexpr int fragment = kRead / Fragment::kReads;
    if constexpr (kRead < kReadsOfB) {
      state.template read_b<kNextB, fragment, kRead % Fragment::kReads>(0);
    } else {
      state.template read_a<fragment - Shape::kFragsN, kRead % Fragment::kReads>(0);
    }
  }

  static constexpr int kScaleLoads = decltype(State::scales)::kLoads;
  static_assert(kScaleLoads <= kStore, "scale loads must not wait behind the tile loads they precede");

  static DG_DEVICE void load_scales(State& state, int k_block) {
    static_for<kScaleLoads>([&](auto i) { state.scales.template load<0, i>(k_block); });
  }
  static DG_DEVICE void load_tiles(State& state, int k_block) {
    static_for<kTransfers>([&](auto transfer) { state.template load<0, transfer>(k_block); });
  }
  static DG_DEVICE void start_k_block(State& state) {
    state.mma.start_k_block([&](int i) { return state.scales.template product<0>(i); });
  }
};

// Computes a tile's sum over K.
template <class Schedule>
DG_DEVICE void run_k_loop(typename Schedule::State& state) {
  if (state.num_k_blocks == 0) return;
  Schedule::prologue(state);
  for (int k_block = 0; k_block < state.num_k_blocks;) {
    static_for<Schedule::kUnroll>([&](auto stage) {
      if (k_block < state.num_k_blocks) Schedule::template k_block<stage>(state, k_block++);
    });
  }
  Schedule::epilogue(state);
}

}  // namespace deep_gemm_rocm

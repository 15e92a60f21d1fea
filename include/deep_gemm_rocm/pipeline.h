// The K loop and the schedules it takes: when to load, store into LDS, read fragments and compute.
#pragma once

#include "deep_gemm_rocm/conditional.h"
#include "deep_gemm_rocm/direct_mma.h"
#include "deep_gemm_rocm/gemm_kind.h"
#include "deep_gemm_rocm/promoted_mma.h"
#include "deep_gemm_rocm/scale_loader.h"
#include "deep_gemm_rocm/tile_loader.h"
#include "deep_gemm_rocm/transposing_tile_loader.h"
#include "deep_gemm_rocm/tile_shape.h"

namespace deep_gemm_rocm {

struct TileOperands {
  OperandTile a, b;
  ScaleTile sfa, sfb;
};

// What every schedule works with: loaders, LDS, fragments and the wave's accumulators.
template <class Kind, class Shape, int kRegisterStages, int kFragmentStages, int kChains, bool kCarry>
struct PipelineState {
  using Mfma = typename Shape::Mfma;
  template <class T, Major kMajor, int kRows, class Order>
  using Loader =
      Conditional<kMajor == Major::kK, TileLoader<Order, kRows, Shape::kThreads, kRegisterStages, Kind::kKTail>,
                  TransposingTileLoader<T, Order, kRows, Shape::kThreads, kRegisterStages>>;
  using LoaderA = Loader<typename Kind::A, Kind::kMajorA, Shape::kBlockM, RowsInOrder>;
  using LoaderB = Loader<typename Kind::B, Kind::kMajorB, Shape::kBlockN, RowsByLane<Mfma, Shape::kJoined>>;
  static constexpr bool kPerColumn = Kind::kScaling == Scaling::kVectors;
  static constexpr bool kPromoted = kPerColumn || Kind::kScaling == Scaling::kBlocks;
  using Scales = Conditional<kPromoted, ScaleLoader<Shape, kRegisterStages, kPerColumn>, NoScales>;
  using Mma =
      Conditional<kPromoted, PromotedMma<Shape, Scales, kChains, kCarry>, DirectMma<Shape, Scales, kChains>>;
  static constexpr int kTransfers = LoaderA::kPasses + LoaderB::kPasses;
  static constexpr int kScaleLoads = Scales::kLoads;
  static constexpr int kReads = Fragment<Mfma>::kReads;
  static constexpr int kSlots = Mma::kSlots;

  DG_DEVICE PipelineState(const TileOperands& operands, uint8_t* lds)
      : num_k_blocks(ceil_div(operands.a.k_bytes, kBlockKBytes)),
        loader_a(operands.a),
        loader_b(operands.b),
        scales(operands.sfa, operands.a.rows, operands.sfb, operands.b.rows, num_k_blocks),
        lds_(lds),
        wave_m_(Shape::wave_m()),
        wave_n_(Shape::wave_n()) {}

  // Transfers 0, 1, … are the passes of A, then those of B.
  DG_DEVICE void load(int stage, int transfer, int k_block) {
    if (transfer < LoaderA::kPasses) {
      loader_a.load(stage, transfer, k_block);
    } else {
      loader_b.load(stage, transfer - LoaderA::kPasses, k_block);
    }
  }

  DG_DEVICE void store(int stage, int transfer, int lds_stage) {
    if (transfer < LoaderA::kPasses) {
      loader_a.store(stage, transfer, lds_a(lds_stage));
    } else {
      loader_b.store(stage, transfer - LoaderA::kPasses, lds_b(lds_stage));
    }
  }

  DG_DEVICE void read_a(int fragment, int read, int lds_stage) {
    a[fragment].read(read, lds_a(lds_stage), wave_m_ + fragment * Mfma::kRows);
  }

  DG_DEVICE void read_b(int fragment_stage, int fragment, int read, int lds_stage) {
    b[fragment_stage][fragment].read(read, lds_b(lds_stage), wave_n_ + fragment * Mfma::kRows);
  }

  const int num_k_blocks;
  LoaderA loader_a;
  LoaderB loader_b;
  Scales scales;
  Fragment<Mfma> a[Shape::kFragsM];
  Fragment<Mfma> b[kFragmentStages][Shape::kFragsN];
  Mma mma;

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
template <class Kind_, class Shape_, int kNumStages>
class MultiStage {
 public:
  using Kind = Kind_;
  using Shape = Shape_;
  static constexpr int kLdsStages = kNumStages < 3 ? 1 : 2;
  static constexpr int kLdsBytes = kLdsStages * Shape::kTileBytes;
  static constexpr int kUnroll = kNumStages > 1 ? kNumStages - kLdsStages : 1;

 private:
  static constexpr bool kPrefetch = kNumStages > 1;
  static constexpr int kChains = Shape::kFragsM * Shape::kFragsN % 2 == 0 ? 2 : 1;

 public:
  using State = PipelineState<Kind, Shape, kUnroll, 1, kChains, false>;

  static DG_DEVICE void prologue(State& state) {
    if (!kPrefetch) return;
#pragma unroll
    for (int stage = 0; stage < kUnroll; ++stage) load(state, stage, stage);
  }

  static DG_DEVICE void k_block(State& state, int stage, int k_block) {
    const int lds_stage = k_block % kLdsStages;
    if (!kPrefetch) load(state, stage, k_block);
    state.mma.start_k_block(state.scales, stage);
#pragma unroll
    for (int i = 0; i < State::kTransfers; ++i) state.store(stage, i, lds_stage);
    if (kPrefetch) load(state, stage, k_block + kUnroll);
    lds_barrier();
    // The unrolled loop may end with K-blocks past the last one. Only their computation is skipped: with the same loads
    // on every path the compiler can count those in flight.
    if (kUnroll == 1 || k_block < state.num_k_blocks) compute(state, lds_stage);
    if (kLdsStages == 1) lds_barrier();
  }

  static DG_DEVICE void epilogue(State&) {}

 private:
  static DG_DEVICE void compute(State& state, int lds_stage) {
    // In the order in which the slots use them.
#pragma unroll
    for (int read = 0; read < State::kReads; ++read) state.read_a(0, read, lds_stage);
#pragma unroll
    for (int read = 0; read < Shape::kFragsN * State::kReads; ++read) {
      state.read_b(0, read / State::kReads, read % State::kReads, lds_stage);
    }
#pragma unroll
    for (int read = State::kReads; read < Shape::kFragsM * State::kReads; ++read) {
      state.read_a(read / State::kReads, read % State::kReads, lds_stage);
    }
    static_for<State::kSlots>([&](auto slot) {
      __builtin_amdgcn_sched_barrier(0);
      state.mma.slot(slot, state.a, state.b[0]);
    });
    state.mma.finish();
  }

  static DG_DEVICE void load(State& state, int stage, int k_block) {
#pragma unroll
    for (int i = 0; i < State::kScaleLoads; ++i) state.scales.load(stage, i, k_block);
#pragma unroll
    for (int i = 0; i < State::kTransfers; ++i) state.load(stage, i, k_block);
    // Loads return in order. Were the stages mixed, waiting for one would mean waiting for all.
    __builtin_amdgcn_sched_barrier(0);
  }
};

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
  using State = PipelineState<Kind, Shape, 1, 2, 2, true>;
  static constexpr int kLdsBytes = Shape::kTileBytes;
  static constexpr int kUnroll = 2;
  static_assert(kNumStages == 2, "the pinned schedule has two stages: one in LDS, one on its way in registers");

  static DG_DEVICE void prologue(State& state) {
#pragma unroll
    for (int i = 0; i < State::kScaleLoads; ++i) state.scales.load(0, i, 0);
#pragma unroll
    for (int i = 0; i < kTransfers; ++i) state.load(0, i, 0);
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
    if (k_block >= state.num_k_blocks) return;
    static_for<kSlots>([&](auto slot) {
      state.mma.slot(slot, state.a, state.b[parity]);
      const int tick = slot / kSlotsPerTick;
      if (slot % kSlotsPerTick == 0) lds_tick(state, tick, 1 - parity);
      if (slot % kSlotsPerTick == kSlotsPerTick - 1) memory_tick(state, tick, k_block);
      __builtin_amdgcn_sched_barrier(0);
    });
    start_k_block(state);
  }

  static DG_DEVICE void epilogue(State& state) { state.mma.finish(); }

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
      state.scales.load(0, tick, k_block + 1);
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

// Computes a tile's sum over K.
template <class Schedule>
DG_DEVICE void run_k_loop(typename Schedule::State& state) {
  if (state.num_k_blocks == 0) return;
  Schedule::prologue(state);
  for (int first = 0; first < state.num_k_blocks; first += Schedule::kUnroll) {
    static_for<Schedule::kUnroll>([&](auto stage) { Schedule::k_block(state, stage, first + stage); });
  }
  Schedule::epilogue(state);
}

}  // namespace deep_gemm_rocm

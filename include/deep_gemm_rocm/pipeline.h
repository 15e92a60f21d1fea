// The K loop, and what the schedules that it takes work with. A schedule says when to load, store into LDS, read
// fragments and compute; each has a header of its own.
#pragma once

#include "deep_gemm_rocm/batched_k_loader.h"
#include "deep_gemm_rocm/conditional.h"
#include "deep_gemm_rocm/direct_mma.h"
#include "deep_gemm_rocm/fragment_loader.h"
#include "deep_gemm_rocm/gemm_kind.h"
#include "deep_gemm_rocm/promoted_mma.h"
#include "deep_gemm_rocm/scale_loader.h"
#include "deep_gemm_rocm/tile_loader.h"
#include "deep_gemm_rocm/transposing_tile_loader.h"
#include "deep_gemm_rocm/tile_shape.h"

namespace deep_gemm_rocm {

struct TileOperands {
  OperandTile a, b;
};

struct TileScales {
  ScaleTile a, b;
};

// What a schedule asks of PipelineState. Schedules derive from it and name what they have otherwise.
template <class Shape>
struct PipelineResources {
  static constexpr int kLdsStagesOfA = 1;
  static constexpr int kLdsStagesOfB = 1;
  static constexpr int kRegisterStages = 1;  // K-blocks on their way in registers at once
  static constexpr int kChains = Shape::kFragsM * Shape::kFragsN % 2 == 0 ? 2 : 1;
  // An MFMA's result may be read passes + 3 instructions later (AMD's CDNA3 ISA guide, "Required independent
  // instructions"): at most 11. So what uses results trails the end of a chain by four slots, of two or more
  // instructions each.
  static constexpr int kResultSlots = 4;
  static constexpr int kProducerWaves = 0;   // that only load, for the others; without them, all load
  static constexpr int kPartsOfA = 1;        // of its rows; as many parts of the waves load one each
  static constexpr int kPartsOfB = 1;
  static constexpr bool kGoesOn = false;     // see TileLoader
  static constexpr bool kSkipsLds = false;   // each wave loads its fragments from memory
};

// What every schedule works with: loaders, LDS, fragments and the wave's accumulators.
template <class Kind, class Shape, class Resources>
class PipelineState {
  using Mfma = typename Shape::Mfma;
  static constexpr int kRegisterStages = Resources::kRegisterStages;
  static constexpr int kProducerThreads = Resources::kProducerWaves * kWaveSize;
  static constexpr int kLoadingThreads = kProducerThreads > 0 ? kProducerThreads : Shape::kThreads;
  static_assert(Shape::kThreads % kLoadingThreads == 0, "loaders number their threads modulo kLoadingThreads");
  static constexpr int kThreadsOfA = kLoadingThreads / Resources::kPartsOfA;
  static constexpr int kThreadsOfB = kLoadingThreads / Resources::kPartsOfB;
  static constexpr int kRowsOfA = Shape::kBlockM / Resources::kPartsOfA;
  static constexpr int kRowsOfB = Shape::kBlockN / Resources::kPartsOfB;
  // Parts have room in LDS for all that their loaders' passes store.
  static constexpr int kLdsRowsOfA =
      Resources::kPartsOfA == 1 ? kRowsOfA : round_up(kRowsOfA, rows_per_pass(kThreadsOfA));
  static constexpr int kLdsRowsOfB =
      Resources::kPartsOfB == 1 ? kRowsOfB : round_up(kRowsOfB, rows_per_pass(kThreadsOfB));

  template <class T, Major kMajor, int kRows, int kLdsRows, int kThreads, class Order>
  using GroupLoader =
      Conditional<kMajor == Major::kK,
                  TileLoader<Order, kRows, kLdsRows, kThreads, kRegisterStages, Kind::kKTail, Resources::kGoesOn>,
                  TransposingTileLoader<T, Order, kRows, kThreads, kRegisterStages>>;
  template <class T, Major kMajor, int kRows, int kLdsRows, int kThreads, class Order>
  using Loader = Conditional<Kind::kSumsBatch, BatchedKLoader<GroupLoader<T, kMajor, kRows, kLdsRows, kThreads, Order>>,
                             GroupLoader<T, kMajor, kRows, kLdsRows, kThreads, Order>>;
  template <class Order, class Chunks, int kFragments, int kRows>
  using LoaderOfFragments =
      FragmentLoader<Mfma, Order, Chunks, kFragments, kRows, kRegisterStages, Kind::kKTail>;
  static_assert(Kind::kWidensA == Kind::kSumsSquares, "only a loader that sums squares widens");
  static constexpr bool kSkipsLds = Resources::kSkipsLds;
  using LoaderAOfTiles =
      Conditional<Kind::kSumsSquares,
                  SquaringTileLoader<RowsInOrder, kRowsOfA, kThreadsOfA, kRegisterStages, Kind::kKTail, Widened>,
                  Loader<typename Kind::A, Kind::kMajorA, kRowsOfA, kLdsRowsOfA, kThreadsOfA, RowsInOrder>>;
  using LoaderA =
      Conditional<kSkipsLds, LoaderOfFragments<RowsInOrder, ChunksOfRows, Shape::kFragsM, Shape::kBlockM>,
                  LoaderAOfTiles>;
  using OrderOfB = RowsByLane<Mfma, Shape::kJoined, Shape::kParts>;
  static constexpr bool kShuffledB = Kind::kMajorB == Major::kShuffled;
  static constexpr bool kBSkipsLds = kSkipsLds || kShuffledB;
  using ChunksOfB = Conditional<kShuffledB, ShuffledChunks, ChunksOfRows>;
  using LoaderB =
      Conditional<kBSkipsLds, LoaderOfFragments<OrderOfB, ChunksOfB, Shape::kFragsN, Shape::kBlockN>,
                  Loader<typename Kind::B, Kind::kMajorB, kRowsOfB, kLdsRowsOfB, kThreadsOfB, OrderOfB>>;
  static constexpr bool kPerColumn = Kind::kScaling == Scaling::kVectors;
  static constexpr bool kPromoted = kPerColumn || Kind::kScaling == Scaling::kBlocks;
  using Scales = Conditional<kPromoted, ScaleLoader<Shape, kRegisterStages, kPerColumn>, NoScales>;
  static constexpr int kChains = Resources::kChains;
  static constexpr int kResultSlots = Resources::kResultSlots;
  using Mma = Conditional<kPromoted, PromotedMma<Shape, Scales, kChains, kResultSlots>,
                          DirectMma<Shape, Scales, kChains, kResultSlots>>;

  static constexpr int kBytesOfA = kSkipsLds ? 0 : Resources::kPartsOfA * kLdsRowsOfA * kBlockKBytes;
  static constexpr int kBytesOfB = kBSkipsLds ? 0 : Resources::kPartsOfB * kLdsRowsOfB * kBlockKBytes;

 public:
  static constexpr int kThreads = Shape::kThreads * Shape::kWavesK + kProducerThreads;
  static constexpr int kLdsBytes = Resources::kLdsStagesOfA * kBytesOfA + Resources::kLdsStagesOfB * kBytesOfB;
  static constexpr int kTransfersOfA = LoaderA::kPasses;
  static constexpr int kTransfers = kTransfersOfA + LoaderB::kPasses;
  static constexpr int kScaleLoads = Scales::kLoads;
  static constexpr int kReads = Fragment<Mfma>::kReads;
  static constexpr int kFragmentReads = (Shape::kFragsM + Shape::kFragsN) * kReads;
  static constexpr int kSlots = Mma::kSlots;

  DG_DEVICE explicit PipelineState(uint8_t* lds)
      : loader_a_(kSkipsLds ? Shape::wave_m() : loaded_part_of_a() * kRowsOfA),
        loader_b_(kBSkipsLds ? Shape::wave_n() : loaded_part_of_b() * kRowsOfB),
        lds_(lds),
        lds_part_of_a_(loaded_part_of_a() * first_row_offset(kLdsRowsOfA)),
        lds_part_of_b_(loaded_part_of_b() * first_row_offset(kLdsRowsOfB)),
        first_lds_row_of_a_(Shape::wave_m() / kRowsOfA * kLdsRowsOfA + Shape::wave_m() % kRowsOfA),
        first_lds_row_of_b_(Shape::wave_n() / kRowsOfB * kLdsRowsOfB + Shape::wave_n() % kRowsOfB) {}

  DG_DEVICE void begin(const TileOperands& tile) {
    begin_loads(tile);
    begin_sums(num_k_blocks(tile));
  }

  // From here on, loads are of the tile that comes after this one,
  DG_DEVICE void begin_loads(const TileOperands& next) {
    loader_a_.begin(next.a, end_k_block);
    loader_b_.begin(next.b, end_k_block);
  }

  // and loads of scales its.
  DG_DEVICE void begin_scales(const TileScales& next, const TileOperands& operands) {
    scales.begin(next.a, operands.a.rows, next.b, operands.b.rows, num_k_blocks(operands));
  }

  DG_DEVICE void begin_sums(int num_k_blocks) {
    first_k_block = end_k_block;
    end_k_block += num_k_blocks;
  }

  static DG_DEVICE int num_k_blocks(const TileOperands& tile) {
    return Kind::kSumsBatch ? tile.b.batch.num_blocks : ceil_div(tile.b.k_bytes, kBlockKBytes);
  }

  DG_DEVICE bool has_k_blocks() const { return first_k_block < end_k_block; }

  // Whether this wave does; otherwise it only loads.
  static DG_DEVICE bool computes() { return kProducerThreads == 0 || wave_id() < Shape::kThreads / kWaveSize; }

  // Transfers 0, 1, … are the passes of A, then those of B.
  DG_DEVICE void load(int stage, int transfer, int k_block) {
    if (transfer < kTransfersOfA) {
      loader_a_.load(stage, transfer, k_block);
    } else {
      loader_b_.load(stage, transfer - kTransfersOfA, k_block);
    }
  }

  // LDS holds as many of the last K-blocks as it has stages.
  DG_DEVICE void store(int stage, int transfer, int k_block) {
    if (transfer < kTransfersOfA) {
      loader_a_.store(stage, transfer, lds_a(k_block) + lds_part_of_a_);
    } else {
      loader_b_.store(stage, transfer - kTransfersOfA, lds_b(k_block) + lds_part_of_b_);
    }
  }

  DG_DEVICE void read_a(int fragment, int read, int k_block) {
    a[fragment].read(read, lds_a(k_block), first_lds_row_of_a_ + fragment * Mfma::kRows);
  }

  DG_DEVICE void read_b(int fragment, int read, int k_block) {
    b[fragment].read(read, lds_b(k_block), first_lds_row_of_b_ + fragment * Mfma::kRows);
  }

  // All fragments, in the order in which the slots use them; after the i-th of kFragmentReads, between(i). Those that
  // skip LDS are in registers, of this stage.
  template <class Between>
  DG_DEVICE void read_fragments(int k_block, int register_stage, const Between& between) {
    static_for<kFragmentReads>([&](int i) {
      constexpr int kPastB = (1 + Shape::kFragsN) * kReads;
      const int fragment = i < kPastB ? i / kReads - 1 : i / kReads - Shape::kFragsN;
      if (i < kReads || i >= kPastB) {
        const int fragment_of_a = i < kReads ? 0 : fragment;
        if constexpr (kSkipsLds) {
          a[fragment_of_a].set(i % kReads, loader_a_.operands(register_stage, fragment_of_a, i % kReads));
        } else {
          read_a(fragment_of_a, i % kReads, k_block);
        }
      } else if constexpr (kBSkipsLds) {
        b[fragment].set(i % kReads, loader_b_.operands(register_stage, fragment, i % kReads));
      } else {
        read_b(fragment, i % kReads, k_block);
      }
      between(i);
    });
  }

  DG_DEVICE void read_fragments(int k_block, int register_stage = 0) {
    read_fragments(k_block, register_stage, [](int) {});
  }

  // Multiplies and promotes a K-block whose fragments are read; after_row(i) follows the last MFMA of A's i-th.
  template <class AfterRow>
  DG_DEVICE void multiply(const AfterRow& after_row) {
    static_for<kSlots>([&](int slot) {
      __builtin_amdgcn_sched_barrier(0);
      mma.slot(slot, a, b);
      const int done = Mma::Order::completed_rows(slot + 1);
#pragma unroll
      for (int row = Mma::Order::completed_rows(slot); row < done; ++row) after_row(row);
    });
    mma.finish();
  }

  DG_DEVICE void multiply() {
    multiply([](int) {});
  }

  // Of the first K-block whose scales aren't loaded yet.
  DG_DEVICE void load_scales(int stage) {
#pragma unroll
    for (int i = 0; i < kScaleLoads; ++i) scales.load(stage, i);
  }

  DG_DEVICE void load_tile(int stage, int k_block) {
#pragma unroll
    for (int i = 0; i < kTransfers; ++i) load(stage, i, k_block);
    // Loads return in order. Were the stages mixed, waiting for one would mean waiting for all.
    __builtin_amdgcn_sched_barrier(0);
  }

  // Those that skip LDS.
  DG_DEVICE void load_fragments(int stage, int k_block) {
    load_fragments_of_b(stage, k_block);
    if constexpr (kSkipsLds) {
      __builtin_amdgcn_sched_barrier(0);
#pragma unroll
      for (int i = 0; i < Shape::kFragsM; ++i) load_fragment_of_a(stage, i, k_block);
      __builtin_amdgcn_sched_barrier(0);  // see load_tile()
    }
  }

  DG_DEVICE void load_fragment_of_a(int stage, int i, int k_block) { loader_a_.load_fragment(stage, i, k_block); }

  DG_DEVICE void load_fragments_of_b(int stage, int k_block) {
    if constexpr (kBSkipsLds) {
#pragma unroll
      for (int i = 0; i < Shape::kFragsN; ++i) loader_b_.load_fragment(stage, i, k_block);
    }
  }

  DG_DEVICE void store_tile(int stage, int k_block) {
#pragma unroll
    for (int i = 0; i < kTransfers; ++i) store(stage, i, k_block);
  }

  // Once all K-blocks have been stored.
  DG_DEVICE void store_square_sums(float* first, int rows) const { loader_a_.store_sums(first, rows); }

  // K-blocks are counted over all tiles.
  int first_k_block = 0;
  int end_k_block = 0;
  Scales scales;
  Fragment<Mfma> a[Shape::kFragsM];
  Fragment<Mfma> b[Shape::kFragsN];
  Mma mma;

 private:
  static DG_DEVICE int loaded_part_of_a() {
    return Resources::kPartsOfA == 1 ? 0 : wave_id() / (kThreadsOfA / kWaveSize);
  }
  static DG_DEVICE int loaded_part_of_b() {
    return Resources::kPartsOfB == 1 ? 0 : wave_id() / (kThreadsOfB / kWaveSize);
  }

  DG_DEVICE uint8_t* lds_a(unsigned k_block) const { return lds_ + k_block % Resources::kLdsStagesOfA * kBytesOfA; }
  DG_DEVICE uint8_t* lds_b(unsigned k_block) const {
    return lds_ + Resources::kLdsStagesOfA * kBytesOfA + k_block % Resources::kLdsStagesOfB * kBytesOfB;
  }

  LoaderA loader_a_;
  LoaderB loader_b_;
  uint8_t* lds_;
  int lds_part_of_a_;  // that the wave stores
  int lds_part_of_b_;
  int first_lds_row_of_a_;  // that the wave reads
  int first_lds_row_of_b_;
};

// Computes a tile's sum over K, once its first K-blocks are on their way. The last K-blocks, up to kLastKBlocks, are
// left to the epilogue of those schedules that compute them otherwise than those before.
template <class Schedule>
DG_DEVICE void run_k_loop(typename Schedule::State& state) {
  int first = state.first_k_block;
  for (; first < state.end_k_block - Schedule::kLastKBlocks; first += Schedule::kUnroll) {
    static_for<Schedule::kUnroll>([&](auto stage) { Schedule::k_block(state, stage, first + stage); });
  }
  Schedule::epilogue(state, first);
}

// The same for schedules that go on to the next tile. K-blocks call prepare_next(k_block), which finds that tile and
// sets `following_k_blocks`: all but the last, and but the first of so many that it is too early there. With that one
// totals begin, for to make them zero takes time between two tiles. `output` may store what is complete before all is.
template <class Schedule, class PrepareNext, class Output>
DG_DEVICE void run_k_loop(typename Schedule::State& state, const PrepareNext& prepare_next, Output& output,
                          const int& following_k_blocks) {
  const int last = state.end_k_block - 1;
  int k_block = state.first_k_block;
  if (k_block < last - Schedule::kLastLoads) {
    Schedule::template k_block_between_tiles<true>(state, k_block++, [] {});
  } else {
    state.mma = {};
  }
  for (; k_block < last; ++k_block) {
    Schedule::k_block_between_tiles(state, k_block, [&] { prepare_next(k_block); });
  }
  Schedule::last_k_block(state, last, output, following_k_blocks > 0);
}

}  // namespace deep_gemm_rocm

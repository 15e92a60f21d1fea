// The K loop, and the state of a wave that schedules work on. A schedule says when to load, store into LDS, read
// fragments and multiply; each has a header of its own.
#pragma once

#include "deep_gemm_rocm/arithmetic/direct_mma.h"
#include "deep_gemm_rocm/arithmetic/promoted_mma.h"
#include "deep_gemm_rocm/arithmetic/sum_of_k_parts.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/loading/operand.h"
#include "deep_gemm_rocm/loading/scale_loader.h"
#include "deep_gemm_rocm/tiles/gemm_kind.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"

namespace deep_gemm_rocm {

// Defaults of a schedule. Each derives its own from this, with what differs, and adds
//   State: its PipelineState;
//   kUnroll: K-blocks in one turn of the K loop;
//   prologue(state, begin_scales): starts the first loads, and calls begin_scales() after those of the operands;
//   k_block(state, stage, k_block): the rest of the work on one K-block.
template <class Kind_, class Shape_>
struct ScheduleDefaults {
  using Kind = Kind_;
  using Shape = Shape_;
  static constexpr int kLastKBlocks = 0;  // K-blocks at the end that epilogue() computes, not k_block()
  static constexpr bool kGoesOnToNextTile = false;  // whether a tile's last K-blocks load the next tile's first ones

  template <class State>
  static DG_DEVICE void epilogue(State&, int) {}
};

// How much of everything a schedule needs. Each derives its own from this.
template <class Shape>
struct PipelineResources {
  static constexpr int kLdsStagesOfA = 1;  // K-blocks in LDS at once
  static constexpr int kLdsStagesOfB = 1;
  static constexpr int kRegisterStages = 1;  // K-blocks in flight to registers at once
  static constexpr int kPartsOfA = 1;  // A's rows are divided into so many parts, each loaded by its share of the waves
  static constexpr int kPartsOfB = 1;
  static constexpr bool kGoesOn = false;    // see TileLoader
  static constexpr bool kSkipsLds = false;  // whether each wave loads its fragments from memory
  static constexpr int kChains = Shape::kFragsM * Shape::kFragsN % 2 == 0 ? 2 : 1;
  // An MFMA's result may be read passes + 3 instructions later (AMD's CDNA3 ISA guide, "Required independent
  // instructions"): at most 11. So promotion trails the end of a chain by four slots of two or more instructions each.
  static constexpr int kResultSlots = 4;
};

// A wave's operands, scales and accumulators.
template <class Kind, class Shape, class Resources>
class PipelineState {
  using Mfma = typename Shape::Mfma;
  static_assert(Kind::kWidensA == Kind::kSumsSquares, "only a loader that sums squares widens");

  template <class Operand>
  using StagedOperand =
      Conditional<Resources::kSkipsLds, OperandInRegisters<Kind, Operand>, OperandInLds<Kind, Operand>>;
  using StagedA = StagedOperand<OperandA<Kind, Shape, Resources>>;
  using StagedB = StagedOperand<OperandB<Kind, Shape, Resources>>;

  static constexpr ScalesOfB kScalesOfB = Kind::kPromotesColumns               ? ScalesOfB::kOfColumns
                                          : Kind::kScaling == Scaling::kGroups ? ScalesOfB::kIsSet
                                                                               : ScalesOfB::kOfWave;
  static constexpr bool kHasRowScales = Kind::kPromotes && Storage<typename Kind::A>::kIsFp8;
  // Scales go through LDS if more than four loads of them are in flight. With fewer, L1 still holds the line with a
  // row's scales when the next K-block loads the neighbouring one. With more than eight K-blocks in a turn of the K
  // loop, a chunk of scales has too few turns to load the next chunk in.
  static constexpr bool kRowScalesInLds = kHasRowScales && Resources::kSkipsLds && Shape::kHasLdsForRowScales &&
                                          Shape::kFragsM * Resources::kRegisterStages > 4 &&
                                          Resources::kRegisterStages <= 8;
  using LoadedRows = Conditional<kRowScalesInLds, RowScalesInLds<Shape, Resources::kRegisterStages, Kind::kGathersA>,
                                 RowScales<Shape, Resources::kRegisterStages, Kind::kGathersA>>;
  using Rows = Conditional<kHasRowScales, LoadedRows, RowsWithoutScales>;
  using LoadedScales = ScaleLoader<Shape, Rows, Resources::kRegisterStages, kScalesOfB, GroupsOfB<Kind>>;
  using Scales = Conditional<Kind::kPromotes, LoadedScales, NoScales>;
  using MmaOfPart = Conditional<Kind::kPromotes,
                                PromotedMma<Shape, Scales, Resources::kChains, Resources::kResultSlots>,
                                DirectMma<Shape, Scales, Resources::kChains, Resources::kResultSlots>>;
  using Mma = Conditional<(Shape::kPartsK > 1), SumOfKParts<MmaOfPart, Shape>, MmaOfPart>;

 public:
  // Whether sums may be NaN only because scales of groups are far from the usual reference, see FourBits<E5M2>.
  static constexpr bool kMayLackScales = Kind::kHasRounds && !Resources::kSkipsLds;
  static constexpr bool kSkipsLds = Resources::kSkipsLds;  // whether operands do; row scales may still go through LDS
  static constexpr int kLdsBytes =
      kSkipsLds ? kRowScalesInLds * Shape::kWaves * Shape::kLdsBytesOfWave : StagedA::kLdsBytes + StagedB::kLdsBytes;
  static constexpr int kTransfersOfA = StagedA::kPasses;
  static constexpr int kTransfers = kTransfersOfA + StagedB::kPasses;
  static constexpr int kReads = Fragment<Mfma>::kReads;
  static constexpr int kFragmentReads = (Shape::kFragsM + Shape::kFragsN) * kReads;
  static constexpr int kSlots = Mma::kSlots;

  DG_DEVICE explicit PipelineState(uint8_t* lds) : lds_(lds) {
    if constexpr (Kind::kHasReference) {
      scales.set_of_b(FourBits<E5M2>::scale_of_products(FourBits<E5M2>::kUsualReference));
    }
  }

  DG_DEVICE void begin(const TileOperands& tile) {
    begin_loads(tile);
    begin_sums(num_k_blocks(tile));
  }

  // From here on, loads of operands are the next tile's.
  DG_DEVICE void begin_loads(const TileOperands& next) {
    staged_a_.begin(next.a, end_k_block);
    staged_b_.begin(next.b, end_k_block);
  }

  // From here on, loads of scales are the next tile's.
  DG_DEVICE void begin_scales(const TileScales<typename GroupsOfB<Kind>::Scale>& next, const TileOperands& operands) {
    scales.begin(next.a, operands.a.rows, next.b, operands.b.rows, num_k_blocks(operands));
    if constexpr (Kind::kWidensB) staged_b_.loader().begin_scales(next.groups, operands.b.rows);
  }

  DG_DEVICE void begin_sums(int num_k_blocks) {
    first_k_block = end_k_block;
    end_k_block += num_k_blocks;
  }

  static DG_DEVICE int num_k_blocks(const TileOperands& tile) {
    if constexpr (Kind::kSumsBatch) return tile.b.batch.num_blocks;
    return ceil_div(Kind::kWidensA ? tile.b.k_bytes : tile.a.k_bytes, kBlockKBytes);
  }

  DG_DEVICE bool has_k_blocks() const { return first_k_block < end_k_block; }

  // Starts a load into registers. Transfers 0, 1, … are the passes of A, then those of B.
  DG_DEVICE void load(int stage, int transfer, int k_block) {
    if (transfer < kTransfersOfA) {
      staged_a_.load_values(stage, transfer, k_block);
    } else {
      load_of_b(stage, transfer - kTransfersOfA, k_block);
    }
  }

  // Stores what was loaded into LDS.
  DG_DEVICE void store(int stage, int transfer, int k_block) {
    if (transfer < kTransfersOfA) {
      staged_a_.store(stage, transfer, lds_of_a(), k_block);
    } else {
      staged_b_.store(stage, transfer - kTransfersOfA, lds_of_b(), k_block);
    }
  }

  // A widened B is stored in steps: all steps of the first pass, then those of the next.
  static constexpr int kStepsOfB = StagedB::kPasses * StagedB::kStoreSteps;
  DG_DEVICE void store_step_of_b(int stage, int step, int k_block) {
    const int pass = step / StagedB::kStoreSteps;
    staged_b_.store_step(stage, pass, lds_of_b(), k_block, step % StagedB::kStoreSteps);
  }

  DG_DEVICE void load_tile(int stage, int k_block) {
#pragma unroll
    for (int i = 0; i < kTransfers; ++i) load(stage, i, k_block);
    // Loads return in order. Were the stages mixed, waiting for one would mean waiting for all.
    __builtin_amdgcn_sched_barrier(0);
  }

  DG_DEVICE void store_tile(int stage, int k_block) {
#pragma unroll
    for (int i = 0; i < kTransfers; ++i) store(stage, i, k_block);
  }

  // Starts the loads of operands that skip LDS: all of them, one fragment of A, or all fragments of B.
  DG_DEVICE void load_fragments(int stage, int k_block) {
    load_fragments_of_b(stage, k_block);
    __builtin_amdgcn_sched_barrier(0);
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) load_fragment_of_a(stage, i, k_block);
    __builtin_amdgcn_sched_barrier(0);  // see load_tile()
  }

  DG_DEVICE void load_fragment_of_a(int stage, int i, int k_block) { staged_a_.load_values(stage, i, k_block); }

  DG_DEVICE void load_fragments_of_b(int stage, int k_block) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsN; ++i) load_of_b(stage, i, k_block);
  }

  // Starts a tile's first loads in two steps: values, and then the scales of groups, whose arguments arrive later.
  DG_DEVICE void load_first_values() {
    static_for<StagedB::kLoads>([&](int i) { staged_b_.load_values(0, i, first_k_block); });
    __builtin_amdgcn_sched_barrier(0);
    static_for<StagedA::kLoads>([&](int i) { staged_a_.load_values(0, i, first_k_block); });
    __builtin_amdgcn_sched_barrier(0);
  }
  DG_DEVICE void load_first_groups() {
    static_for<StagedB::kLoads>([&](int i) { load_group_scales(0, i, first_k_block); });
  }

  // Starts the loads of the scales of the next K-block.
  DG_DEVICE void load_scales(int stage) { scales.load(stage); }

  // With kRowScalesInLds, the scales of A's rows are loaded and stored into LDS in chunks: the first one in the
  // prologue, later ones piece by piece, loaded before a turn of the K loop and stored after it.
  DG_DEVICE void load_first_row_scales() {
    if constexpr (kRowScalesInLds) scales.load_first_rows();
  }
  DG_DEVICE void store_first_row_scales() {
    if constexpr (kRowScalesInLds) scales.rows().store_first(lds_ + wave_id() * Shape::kLdsBytesOfWave);
  }
  DG_DEVICE void load_row_scales(int k_block) {
    if constexpr (kRowScalesInLds) scales.rows().load_in_turn(k_block);
  }
  DG_DEVICE void store_row_scales(int k_block) {
    if constexpr (kRowScalesInLds) {
      mma.settle();  // else the compiler moves promotions past the branch, and keeps all partial sums until then
      scales.rows().store_in_turn(k_block);
    }
  }
  DG_DEVICE void read_row_scales(int k_block) {
    if constexpr (kRowScalesInLds) scales.rows().read(k_block);
  }

  // Reads all fragments in the order in which slots use them: A's first, all of B's, the rest of A's. Calls between(i)
  // after the i-th of kFragmentReads.
  template <class Between>
  DG_DEVICE void read_fragments(int k_block, int register_stage, const Between& between) {
    static_for<kFragmentReads>([&](int i) {
      constexpr int kPastB = (1 + Shape::kFragsN) * kReads;
      const int fragment = i < kPastB ? i / kReads - 1 : i / kReads - Shape::kFragsN;
      if (i < kReads || i >= kPastB) {
        const int fragment_of_a = i < kReads ? 0 : fragment;
        staged_a_.read(a[fragment_of_a], fragment_of_a, i % kReads, lds_of_a(), k_block, register_stage);
      } else {
        staged_b_.read(b[fragment], fragment, i % kReads, lds_of_b(), k_block, register_stage);
      }
      between(i);
    });
  }

  DG_DEVICE void read_fragments(int k_block, int register_stage = 0) {
    read_fragments(k_block, register_stage, [](int) {});
  }

  // Takes over the loaded groups of a K-block of B. The K-block is computed in rounds, each of which multiplies some of
  // its groups; see GroupedFragmentLoader.
  DG_DEVICE void start_groups(int stage) { staged_b_.loader().start_groups(stage); }
  DG_DEVICE void start_round() {
    scales.set_of_b(staged_b_.loader().start_round());
  }
  DG_DEVICE bool has_another_round() { return staged_b_.loader().has_another_round(); }

  // Multiplies and promotes a K-block whose fragments are read. after_row(i) follows the last MFMA of A's fragment i.
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

  // The same in halves, for operands in registers: widen_half() takes half of each fragment of B, and multiply_half()
  // the half of the MFMAs that needs it. During an MFMA the vector ALU has time for three instructions, which widen the
  // other half of B.
  DG_DEVICE void read_fragments_of_a(int stage) {
    static_for<Shape::kFragsM * kReads>(
        [&](int i) { staged_a_.read(a[i / kReads], i / kReads, i % kReads, nullptr, 0, stage); });
  }
  DG_DEVICE void widen_half(int stage, int half) {
    static_assert(kReads == 2);
    __builtin_amdgcn_sched_barrier(0);
    static_for<Shape::kFragsN>([&](int i) { staged_b_.read(b[i], i, half, nullptr, 0, stage); });
  }
  DG_DEVICE void multiply_half(int half) {
    static_for<kSlots / 2>([&](int slot) { mma.slot(half * (kSlots / 2) + slot, a, b); });
    vector_alu_between_mfmas<kSlots / 2, 3>();
    __builtin_amdgcn_sched_barrier(0);
  }

  // For SumOfKParts: called before a tile's first K-block, and after each K-block.
  DG_DEVICE void begin_parts() {
    if constexpr (Shape::kPartsK > 1) mma.begin_parts(first_k_block, end_k_block);
  }
  DG_DEVICE void after_k_block(int k_block) {
    if constexpr (Shape::kPartsK > 1) mma.after_k_block(k_block);
  }

  // Stores the sums of squares of A's rows, once all K-blocks have been stored into LDS.
  DG_DEVICE void store_square_sums(float* first, int rows) const { staged_a_.loader().store_sums(first, rows); }

  // The tile's K-blocks, counted over all tiles of the workgroup.
  int first_k_block = 0;
  int end_k_block = 0;
  Scales scales;
  Fragment<Mfma> a[Shape::kFragsM];
  Fragment<Mfma> b[Shape::kFragsN];
  Mma mma;

 private:
  DG_DEVICE void load_of_b(int stage, int i, int k_block) {
    staged_b_.load_values(stage, i, k_block);
    load_group_scales(stage, i, k_block);
  }
  DG_DEVICE void load_group_scales(int stage, int i, int k_block) {
    if constexpr (Kind::kWidensB) staged_b_.loader().load_scales(stage, i, k_block);
  }

  DG_DEVICE uint8_t* lds_of_a() const { return lds_; }
  DG_DEVICE uint8_t* lds_of_b() const { return lds_ + StagedA::kLdsBytes; }

  StagedA staged_a_;
  StagedB staged_b_;
  uint8_t* lds_;
};

// Computes a tile's sums over K, once its first K-blocks are in flight.
template <class Schedule>
DG_DEVICE void run_k_loop(typename Schedule::State& state) {
  int first = state.first_k_block;
  state.begin_parts();
  for (; first < state.end_k_block - Schedule::kLastKBlocks; first += Schedule::kUnroll) {
    static_for<Schedule::kUnroll>([&](auto stage) {
      Schedule::k_block(state, stage, first + stage);
      state.after_k_block(first + stage);
    });
  }
  Schedule::epilogue(state, first);
}

}  // namespace deep_gemm_rocm

// A schedule of the K loop: eight waves in two halves that take turns, one at memory, the other at the matrix cores.
#pragma once

#include "deep_gemm_rocm/pipeline.h"

namespace deep_gemm_rocm {

// Each SIMD has a wave of both halves. While one half multiplies, with priority, the other gets its next K-block ready;
// barriers separate these intervals, and the second half is one of them behind:
//
//   interval      0         1          2          3          4
//   first half    memory 0  compute 0  memory 1   compute 1  memory 2 …
//   second half   –         memory 0   compute 0  memory 1   compute 1 …
//
// The halves divide the longer side of the tile. So both need all rows of the operand of the other side, B say, which
// has two stages in LDS. Memory phase k stores the half's share of B's K-block k + 1, reads the fragments of K-block k
// (of small tiles first), and starts the loads of k + 2: what both halves store (in intervals 2k and 2k + 1) is read
// from interval 2k + 2 on, and replaces what was read until interval 2k - 1.
//
// A half arrives at the barrier behind its compute phase with one MFMA to go: while the other half starts, the matrix
// cores have that. It has the highest priority, or it would wait for all of the other half's.
//
// Of the other operand, A say, each half has rows of its own, and loads only these. So one stage is enough: once
// memory phase k has read it and started the loads of K-block k + 1, compute phase k stores these, behind most of its
// MFMAs: by then the loads have returned, and the other half has read its fragments and left LDS alone.
//
// From tile to tile this goes on without a break: loads of what is behind a tile's last K-block are the next tile's,
// and a half stores its results behind its last compute phase, before its next memory phase; most of them already
// between the last MFMAs, if they need no more than to be rounded (StreamedStore).
template <class Kind_, class Shape_, int kNumStages>
class PingPong {
 public:
  using Kind = Kind_;
  using Shape = Shape_;
  static constexpr int kUnroll = 1;
  static constexpr int kLastKBlocks = 0;
  static constexpr bool kGoesOnToNextTile = true;
  static constexpr bool kDividesN = Shape::kWavesByColumns;
  // The K-blocks, counted from the end, between whose loads all that are still to come become the next tile's.
  static constexpr int kLastLoads = 2;

  struct Resources : PipelineResources<Shape> {
    static constexpr int kLdsStagesOfA = kDividesN ? 2 : 1;
    static constexpr int kLdsStagesOfB = kDividesN ? 1 : 2;
    static constexpr int kPartsOfA = kDividesN ? 1 : 2;
    static constexpr int kPartsOfB = kDividesN ? 2 : 1;
    static constexpr int kResultSlots = 6;  // the first chains' slots are of one instruction each
    static constexpr bool kGoesOn = kGoesOnToNextTile;
  };
  using State = PipelineState<Kind, Shape, Resources>;

  static_assert(kNumStages == 3, "ping-pong has three stages: two in LDS, one on its way in registers");
  static_assert(State::kThreads == 8 * kWaveSize, "ping-pong takes eight waves, two for each SIMD");

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    const int first = state.first_k_block;
    state.load_tile(0, first);
    begin_scales();
    if (kLoadsScalesAhead) state.load_scales(0);
    state.store_tile(0, first);
    load_shared(state, first + 1);
    lds_barrier();
    if (is_second_half()) lds_barrier();
    begin_memory_phase(state, first);
    // The memory phase begins with what waits for these. Behind another tile it needn't wait for that one's stores, and
    // compilers only know if here, where there are none, nothing else is left on its way.
    if (!kMemoryIsLonger) wait_for_loads<kLoadsAhead>();
  }

  // Of a tile that no other follows.
  static DG_DEVICE void k_block(State& state, int, int k_block) { k_block_between_tiles(state, k_block, [] {}); }
  static DG_DEVICE void epilogue(State&, int) { leave(false); }

  // Of one that others may follow. Calls between_loads() where instructions take no time: the loads' queue is full.
  // With kIsFirst, totals begin with this K-block.
  template <bool kIsFirst = false, class BetweenLoads>
  static DG_DEVICE void k_block_between_tiles(State& state, int k_block, const BetweenLoads& between_loads) {
    memory_phase(state, k_block, between_loads);
    lds_barrier();
    compute_phase<kIsFirst>(state, k_block, [](int) {});
    begin_memory_phase(state, k_block + 1);
    state.mma.finish(kIsFirst);  // beside the other half's MFMAs
  }

  template <class Output>
  static DG_DEVICE void last_k_block(State& state, int last, Output& output, bool goes_on) {
    memory_phase(state, last, [&] { output.begin(); });
    lds_barrier();
    compute_phase(state, last, [&](int slot) { output.after_slot(state.mma, slot); });
    if (!Output::kStores) state.mma.settle();
    begin_memory_phase(state, last + 1);
    leave(goes_on);
    state.mma.finish();
  }

 private:
  // Those of single columns take too many registers to hold them twice.
  static constexpr bool kLoadsScalesAhead = Kind::kScaling != Scaling::kVectors;
  // Transfers of the operand of which halves have rows of their own, and of the one that they share.
  static constexpr int kFirstOwn = kDividesN ? State::kTransfersOfA : 0;
  static constexpr int kOwn = kDividesN ? State::kTransfers - State::kTransfersOfA : State::kTransfersOfA;
  static constexpr int kFirstShared = kDividesN ? 0 : State::kTransfersOfA;
  static constexpr int kShared = State::kTransfers - kOwn;

  static constexpr int kReadsPerLoad = State::kFragmentReads / kOwn;
  static_assert(kReadsPerLoad > 0, "too few reads to load a half's own rows between them");
  static constexpr int kBarrierSlot = State::kSlots - 1;
  // By then the other half has read its fragments from LDS. Every other slot promotes, and has no time for a store.
  static constexpr int kFirstStoreSlot = State::kSlots * 11 / 16 / 2 * 2;
  static constexpr int kSlotsPerStore = max((kBarrierSlot - kFirstStoreSlot) / kOwn / 2 * 2, 1);
  static_assert(kFirstStoreSlot + (kOwn - 1) * kSlotsPerStore < kBarrierSlot,
                "too few slots to store a half's own rows");

  // Of small tiles memory phases take longer than the other half's MFMAs. Then what waits for loads comes last in them.
  static constexpr bool kMemoryIsLonger = State::kSlots <= 32;
  static constexpr int kLoadsAhead = kMemoryIsLonger ? 0 : 1;  // of the half's own rows, before the memory phase

  static DG_DEVICE bool is_second_half() { return wave_id() >= 4; }

  // If the next K-block isn't that of a tile that has been loaded, the first half waits for the second.
  static DG_DEVICE void leave(bool goes_on) {
    if (!is_second_half() && !goes_on) lds_barrier();
    __builtin_amdgcn_s_setprio(3);  // what is left to store comes before the other half's results
  }

  // Starts the first load of the half's own rows of K-block k + 1, to keep the loads' queue busy from the beginning.
  static DG_DEVICE void begin_memory_phase(State& state, int k_block) {
    __builtin_amdgcn_s_setprio(0);
    if (kLoadsAhead > 0) state.load(0, kFirstOwn, k_block + 1);
    __builtin_amdgcn_sched_barrier(0);
  }

  // Stores first, before the other half stores into LDS as well; or last, to wait less for what was loaded. Calls
  // between_loads() behind the loads of the half's own rows of K-block k + 1, and before the others of k + 2.
  template <class BetweenLoads>
  static DG_DEVICE void memory_phase(State& state, int k_block, const BetweenLoads& between_loads) {
    if (!kLoadsScalesAhead) state.load_scales(0);
    if (!kMemoryIsLonger) store_shared(state, k_block + 1);
    state.read_fragments(k_block, 0, [&](int read) {
      __builtin_amdgcn_sched_barrier(0);
      const int load = read / kReadsPerLoad + kLoadsAhead;
      if (read % kReadsPerLoad == 0 && load < kOwn) {
        state.load(0, kFirstOwn + load, k_block + 1);
        __builtin_amdgcn_sched_barrier(0);
      }
    });
    if constexpr (kLoadsScalesAhead) {
      state.mma.start_k_block(state.scales, 0);
      state.load_scales(0);  // of the next K-block
      __builtin_amdgcn_sched_barrier(0);
    }
    between_loads();
    if (kMemoryIsLonger) store_shared(state, k_block + 1);
    load_shared(state, k_block + 2);
  }

  template <bool kIsFirst = false, class AfterSlot>
  static DG_DEVICE void compute_phase(State& state, int k_block, const AfterSlot& after_slot) {
    __builtin_amdgcn_s_setprio(1);
    if (!kLoadsScalesAhead) state.mma.start_k_block(state.scales, 0);
    static_for<State::kSlots>([&](int slot) {
      __builtin_amdgcn_sched_barrier(0);
      if (slot == kBarrierSlot - 1) {
        __builtin_amdgcn_s_setprio(2);
        wait_for_lds();  // or the barrier would, when no MFMA is left to run meanwhile
      }
      if (slot == kBarrierSlot) {
        lds_barrier();
        __builtin_amdgcn_sched_barrier(0);
      }
      state.mma.slot(slot, state.a, state.b, kIsFirst);
      const int since = slot - kFirstStoreSlot;
      if (since >= 0 && since % kSlotsPerStore == 0 && since / kSlotsPerStore < kOwn) {
        state.store(0, kFirstOwn + since / kSlotsPerStore, k_block + 1);
      }
      after_slot(slot);
    });
    __builtin_amdgcn_sched_barrier(0);
  }

  static DG_DEVICE void store_shared(State& state, int k_block) {
#pragma unroll
    for (int i = kFirstShared; i < kFirstShared + kShared; ++i) state.store(0, i, k_block);
  }

  static DG_DEVICE void load_shared(State& state, int k_block) {
#pragma unroll
    for (int i = kFirstShared; i < kFirstShared + kShared; ++i) state.load(0, i, k_block);
  }
};

}  // namespace deep_gemm_rocm

// A schedule of the K loop: eight waves in two halves that take turns, one at memory, the other at the matrix cores.
#pragma once

#include "deep_gemm_rocm/schedules/pipeline.h"

namespace deep_gemm_rocm {

// Each SIMD has a wave of both halves. While one half multiplies, with priority, the other gets its next K-block ready;
// barriers separate these intervals, and the second half is one interval behind:
//
//   interval      0         1          2          3          4
//   first half    memory 0  compute 0  memory 1   compute 1  memory 2 …
//   second half   –         memory 0   compute 0  memory 1   compute 1 …
//
// The halves divide the longer side of the tile, say its rows. Then both need all of B, the shared operand, which has
// two stages in LDS. Memory phase k stores the half's share of B's K-block k + 1, reads the fragments of K-block k
// (first, in small tiles), and starts the loads of k + 2. The stage that both halves store, in intervals 2k and 2k + 1,
// is read from interval 2k + 2 on; its last contents were read until interval 2k - 1.
//
// Each half has rows of A, the divided operand, of its own, and loads only these. One stage is enough: memory phase k
// reads it and starts the loads of K-block k + 1, and compute phase k stores these after most of its MFMAs. By then
// the loads have returned, and the other half has read its fragments and no longer uses LDS.
//
// A half arrives at the barrier after its compute phase with one MFMA to go, which keeps the matrix cores busy while
// the other half starts. It has the highest priority, or it would wait for all MFMAs of the other half.
//
// Tiles follow one another without a break: loads after a tile's last K-block are the next tile's. A half stores its
// results after its last compute phase, or between its last MFMAs (StreamedStore).
template <class Kind, class Shape, int kNumStages>
class PingPong : public ScheduleDefaults<Kind, Shape> {
 public:
  static constexpr int kUnroll = 1;
  static constexpr bool kGoesOnToNextTile = true;
  static constexpr bool kDividesN = Shape::kWavesByColumns;
  static constexpr int kLastLoads = 2;  // see overlapping_tiles.h

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
  static_assert(Shape::kThreads == 8 * kWaveSize, "ping-pong takes eight waves, two for each SIMD");

  template <class BeginScales>
  static DG_DEVICE void prologue(State& state, const BeginScales& begin_scales) {
    const int first = state.first_k_block;
    state.load_first_values();
    begin_scales();
    state.load_first_groups();
    state.load_scales(0);
    state.store_tile(0, first);
    load_shared(state, first + 1);
    lds_barrier();
    if (is_second_half()) lds_barrier();
    begin_memory_phase(state, first);
    // The memory phase begins with stores into LDS, which wait for the loads above. Waiting for them here, too, lets
    // the compiler see that the phase needn't wait for the stores of the tile before.
    if (!kMemoryIsLonger) wait_for_loads<kLoadsAhead>();
  }

  // A tile on its own, as in run_k_loop().
  static DG_DEVICE void k_block(State& state, int, int k_block) { k_block_between_tiles(state, k_block, [] {}); }
  static DG_DEVICE void epilogue(State&, int) { leave(false); }

  // A tile in a run of tiles, as in run_overlapping_k_loop(). Calls between_loads() where instructions take no time,
  // for the loads' queue is full. With kIsFirst, totals begin with this K-block.
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
    if (!Output::kStreams) state.mma.settle();
    begin_memory_phase(state, last + 1);
    leave(goes_on);
    state.mma.finish();
  }

 private:
  // Transfers of the half's own rows of the divided operand, and of the shared operand.
  static constexpr int kFirstOwn = kDividesN ? State::kTransfersOfA : 0;
  static constexpr int kOwn = kDividesN ? State::kTransfers - State::kTransfersOfA : State::kTransfersOfA;
  static constexpr int kFirstShared = kDividesN ? 0 : State::kTransfersOfA;
  static constexpr int kShared = State::kTransfers - kOwn;

  // Shared rows that are widened are stored in steps between reads: the vector ALU widens while LDS serves the reads.
  static constexpr bool kWidens = Kind::kWidensB;
  static constexpr int kReadsPerStep = State::kFragmentReads / State::kStepsOfB;
  static_assert(!kWidens || kReadsPerStep > 0, "too few reads to widen shared rows between them");

  static constexpr int kReadsPerLoad = State::kFragmentReads / kOwn;
  static_assert(kReadsPerLoad > 0, "too few reads to load a half's own rows between them");
  static constexpr int kBarrierSlot = State::kSlots - 1;
  // The other half has read its fragments from LDS before this slot. Stores take every other slot; the slots between
  // them promote.
  static constexpr int kFirstStoreSlot = State::kSlots * 11 / 16 / 2 * 2;
  static constexpr int kSlotsPerStore = max((kBarrierSlot - kFirstStoreSlot) / kOwn / 2 * 2, 1);
  static_assert(kFirstStoreSlot + (kOwn - 1) * kSlotsPerStore < kBarrierSlot,
                "too few slots to store a half's own rows");

  // In small tiles, memory phases take longer than the other half's MFMAs. Then stores, which wait for loads, come
  // last.
  static constexpr bool kMemoryIsLonger = State::kSlots <= 32;
  static constexpr int kLoadsAhead = kMemoryIsLonger ? 0 : 1;  // loads of own rows before the memory phase

  static DG_DEVICE bool is_second_half() { return wave_id() >= 4; }

  // The first half waits for the second at the end, unless the next tile goes on in the same intervals.
  static DG_DEVICE void leave(bool goes_on) {
    if (!is_second_half() && !goes_on) lds_barrier();
    __builtin_amdgcn_s_setprio(3);  // so that this half's last stores come before the other half's
  }

  // Starts the first load of own rows of K-block k + 1, to keep the loads' queue busy from the beginning.
  static DG_DEVICE void begin_memory_phase(State& state, int k_block) {
    __builtin_amdgcn_s_setprio(0);
    if (kLoadsAhead > 0) state.load(0, kFirstOwn, k_block + 1);
    __builtin_amdgcn_sched_barrier(0);
  }

  // Stores first, before the other half stores into LDS as well; or last, to wait less for loads. Calls between_loads()
  // between the loads of own rows of K-block k + 1 and those of shared rows of k + 2.
  template <class BetweenLoads>
  static DG_DEVICE void memory_phase(State& state, int k_block, const BetweenLoads& between_loads) {
    if (!kMemoryIsLonger && !kWidens) store_shared(state, k_block + 1);
    state.read_fragments(k_block, 0, [&](int read) {
      __builtin_amdgcn_sched_barrier(0);
      if constexpr (kWidens) {
        if (read % kReadsPerStep == 0 && read / kReadsPerStep < State::kStepsOfB) {
          state.store_step_of_b(0, read / kReadsPerStep, k_block + 1);
          __builtin_amdgcn_sched_barrier(0);
        }
      }
      const int load = read / kReadsPerLoad + kLoadsAhead;
      if (read % kReadsPerLoad == 0 && load < kOwn) {
        state.load(0, kFirstOwn + load, k_block + 1);
        __builtin_amdgcn_sched_barrier(0);
      }
    });
    state.mma.start_k_block(state.scales, 0);
    state.load_scales(0);  // of the next K-block
    __builtin_amdgcn_sched_barrier(0);
    between_loads();
    if (kMemoryIsLonger && !kWidens) store_shared(state, k_block + 1);
    load_shared(state, k_block + 2);
  }

  template <bool kIsFirst = false, class AfterSlot>
  static DG_DEVICE void compute_phase(State& state, int k_block, const AfterSlot& after_slot) {
    __builtin_amdgcn_s_setprio(1);
    static_for<State::kSlots>([&](int slot) {
      __builtin_amdgcn_sched_barrier(0);
      if (slot == kBarrierSlot - 1) {
        __builtin_amdgcn_s_setprio(2);
        wait_for_lds();  // otherwise the barrier waits, when no MFMA is left to run meanwhile
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

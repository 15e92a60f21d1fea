// Fragments of A and B in a wave's registers, and the order of the MFMAs that multiply them.
#pragma once

#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/hardware/mfma.h"
#include "deep_gemm_rocm/hardware/static_for.h"

namespace deep_gemm_rocm {

// A 16-byte chunk, which a lane reads from LDS at once: its operands of two consecutive MFMAs.
using MfmaOperands = Vector<MfmaOperand, kChunkBytes / sizeof(MfmaOperand)>;

template <class Mfma, KOrder kOrder = KOrder::kSpread>
DG_DEVICE MfmaOperands read_operands(const uint8_t* lds_tile, int first_row, int read) {
  const uint8_t* const chunk = lds_tile + read_offset<Mfma, kOrder>(lane_id(), read) + first_row_offset(first_row);
  return *reinterpret_cast<const MfmaOperands*>(chunk);
}

// Calls use(i, read(i)) for each i, and all_read() after the last read. Reads from LDS start kAhead turns before their
// use, which hides their latency in few registers.
template <int kCount, class Read, class Use, class AllRead>
DG_DEVICE void pipelined_reads(const Read& read, const Use& use, const AllRead& all_read) {
  constexpr int kAhead = 2;
  MfmaOperands operands[kAhead + 1];
  static_for<kCount + kAhead>([&](auto turn) {
    if constexpr (turn < kCount) operands[turn % (kAhead + 1)] = read(turn);
    if constexpr (turn == kCount) all_read();
    __builtin_amdgcn_sched_barrier(0);
    if constexpr (turn >= kAhead) use(turn - kAhead, operands[(turn - kAhead) % (kAhead + 1)]);
  });
}
template <int kCount, class Read, class Use>
DG_DEVICE void pipelined_reads(const Read& read, const Use& use) {
  pipelined_reads<kCount>(read, use, [] {});
}

// The K-block's 128 bytes of kRows rows of A or B, spread over the wave's lanes.
template <class Mfma>
class Fragment {
 public:
  static constexpr int kReads = fragment_reads<Mfma>();
  static constexpr int kMfmas = kReads * (kChunkBytes / sizeof(MfmaOperand));

  template <KOrder kOrder>
  DG_DEVICE void read(int read, const uint8_t* lds_tile, int first_row) {
    operands_[read] = read_operands<Mfma, kOrder>(lds_tile, first_row, read);
  }

  DG_DEVICE void set(int read, const MfmaOperands& operands) { operands_[read] = operands; }

  DG_DEVICE MfmaOperand operand(int mfma) const { return operands_[mfma / 2][mfma % 2]; }

 private:
  MfmaOperands operands_[kReads];
};

// The order in which a wave issues the MFMAs of a K-block. Each has a slot, and schedules put memory operations between
// slots. The MFMAs of one fragment are a chain, each adding to the result of the one before; kChains chains alternate.
// Results are used kResultSlots slots after the end of their chain. With kGroups groups in a K-block, a fragment's
// MFMAs are divided into kGroups chains, one for each group. Chains are ordered by fragment, row by row, then group.
template <class Shape, int kChains, int kResultSlots, int kGroups = 1>
struct MmaOrder {
  static constexpr int kFragments = Shape::kFragsM * Shape::kFragsN;
  static constexpr int kSums = kGroups * kFragments;  // one for each chain
  static constexpr int kChainMfmas = Fragment<typename Shape::Mfma>::kMfmas / kGroups;
  static constexpr int kTurnSlots = kChains * kChainMfmas;  // of kChains chains that alternate
  static constexpr int kSlots = kSums * kChainMfmas;
  static_assert(kSums % kChains == 0, "chains alternate in whole turns");

  static constexpr int sum(int slot) { return slot / kTurnSlots * kChains + slot % kChains; }
  static constexpr int fragment(int sum) { return sum / kGroups; }
  static constexpr int row(int sum) { return fragment(sum) / Shape::kFragsN; }
  static constexpr int column(int sum) { return fragment(sum) % Shape::kFragsN; }
  static constexpr int group(int sum) { return sum % kGroups; }
  static constexpr int in_chain(int slot) { return slot % kTurnSlots / kChains; }
  static constexpr int mfma(int slot) { return group(sum(slot)) * kChainMfmas + in_chain(slot); }

  // Rows of fragments whose MFMAs are among the first `slots`.
  static constexpr int completed_rows(int slots) { return row(slots / kTurnSlots * kChains); }

  static constexpr int kDelay = kChains * (kChainMfmas - 1) + kResultSlots;

  // How many of a lane's elements, fragment by fragment, can be used before `slot`. They become usable in pairs, at the
  // even rate at which chains produce them.
  static constexpr int completed(int slot) {
    const int turn = slot - kDelay;
    return turn < 0 ? 0 : min(turn, kSlots) * Shape::Mfma::kElements / kChainMfmas / 2 * 2;
  }
  // The most pairs that become usable in a slot.
  static constexpr int kMostPairs = ceil_div(Shape::Mfma::kElements, 2 * kChainMfmas);
};

}  // namespace deep_gemm_rocm

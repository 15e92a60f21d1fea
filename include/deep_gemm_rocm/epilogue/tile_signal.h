// Counts finished tiles, for a kernel on another stream that sends or uses results while the rest are computed.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"

namespace deep_gemm_rocm {

// Callers allocate a counter for each 64 rows, so no counter is for fewer rows.
constexpr int kLeastRowsOfSignal = 64;

// Adds a finished tile of masked groups to the counter of its rows, [num_groups, ⌈m / kRows⌉]. Once all tiles of its
// rows are added, the counter is kTiles times the number of tile columns: tiles below a group's last row, which don't
// exist, count with the tile that has it. All waves of the workgroup must take part.
//
// A consumer that has read this number with acquire semantics sees the results: each wave waits until its stores are in
// L2, and the release writes L2 back to where other XCDs see it.
template <class Shape, class Tile>
DG_DEVICE void signal_tile(const GemmArguments& args, const Tile& tile) {
  constexpr int kTiles = ceil_div(kLeastRowsOfSignal, Shape::kBlockM);
  constexpr int kRows = kTiles * Shape::kBlockM;
  wait_for_loads<0>();
  lds_barrier();
  if (thread_id() != 0) return;
  const int missing = kTiles - tile.m / Shape::kBlockM % kTiles;
  int* const counter = args.signals + static_cast<int64_t>(tile.group) * ceil_div(args.m, kRows) + tile.m / kRows;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  wait_for_loads<0>();  // the fence's write-back of L2 must be complete, for which the compiler doesn't wait
  __hip_atomic_fetch_add(counter, tile.stored_rows <= Shape::kBlockM ? missing : 1, __ATOMIC_RELAXED,
                         __HIP_MEMORY_SCOPE_AGENT);
}

}  // namespace deep_gemm_rocm

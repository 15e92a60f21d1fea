// The last round of a persistent kernel's tiles, which may leave most workgroups without one.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/tiles/argument_loads.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"

namespace deep_gemm_rocm {

template <class Schedule, class Tile>  // in gemm_tile.h
DG_DEVICE void compute_tile(const GemmArguments& args, const Tile& tile, uint8_t* lds);

// How many tiles are left in the round in which this workgroup has tile `index`.
DG_DEVICE int left_for_round(int index, int num_tiles) { return num_tiles - (index - workgroup_id()); }

// Workgroups compute the last round as they do all others.
struct LastRoundOfTiles {
  static DG_DEVICE bool is_shared(int, int) { return false; }
  template <class TileSource>
  static DG_DEVICE void compute_share(int, int, uint8_t*) {}
};

// If few enough tiles are left, kShares workgroups share the columns of each, and Schedule computes one share.
// Simulated, 4096x24576x1536 with 32 tiles of 128x256 after ten rounds takes 143.8 µs, and 148.8 with tiles of
// 256x128, which are not shared.
template <class Schedule, int kShares>
struct LastRoundOfShares {
  static constexpr int kLdsBytes = Schedule::State::kLdsBytes;

  static DG_DEVICE bool is_shared(int left, int num_workgroups) { return left > 0 && left * kShares <= num_workgroups; }

  template <class TileSource>
  static DG_DEVICE void compute_share(int left, int num_tiles, uint8_t* lds) {
    const unsigned share = workgroup_id();
    if (share >= left * kShares) return;
    const GemmArguments& args = gemm_arguments();
    load_arguments_of_tile<TileSource>(args);
    auto tile = reload_tiles<TileSource>(args).tile(num_tiles - left + share / kShares, num_tiles);
    tile.n += share % kShares * Schedule::Shape::kOutputN;
    if (tile.n < args.n) compute_tile<Schedule>(args, tile, lds);
  }
};

}  // namespace deep_gemm_rocm

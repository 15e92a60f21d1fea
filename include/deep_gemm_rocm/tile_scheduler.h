// Which output tile a workgroup computes. Plain constexpr functions: tests run them on the host.
#pragma once

#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

constexpr int kNumXcds = 8;

struct TileIndex {
  int m, n;
};

// Hardware deals workgroups round-robin to the XCDs, each of which has an L2 of its own. Within each window of
// kNumXcds * chunk tiles, this gives every XCD a contiguous run of tiles, so that neighbours share an L2.
constexpr int xcd_contiguous(int workgroup, int num_tiles, int chunk) {
  const int window_tiles = kNumXcds * chunk;
  const int first = workgroup / window_tiles * window_tiles;
  const int in_window = workgroup - first;
  const int size = min(window_tiles, num_tiles - first);
  const int xcd = in_window % kNumXcds;
  return first + xcd * (size / kNumXcds) + min(xcd, size % kNumXcds) + in_window / kNumXcds;
}

// Walks the tiles in bands of `group_m` tile rows, m first: a run of tiles then forms a near-square block, which loads
// the fewest rows of A and B.
constexpr TileIndex grouped_tile(int tile, int tiles_m, int tiles_n, int group_m) {
  const int band_tiles = group_m * tiles_n;
  const int first_m = tile / band_tiles * group_m;
  const int rows = min(group_m, tiles_m - first_m);
  const int in_band = tile % band_tiles;
  return {first_m + in_band % rows, in_band / rows};
}

}  // namespace deep_gemm_rocm

// Which output tile a workgroup computes. Plain constexpr functions: tests run them on the host.
#pragma once

#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

struct TileIndex {
  int m, n;
};

// xcd_contiguous() for a workgroup whose place in its window is known.
template <int kNumXcds>
constexpr int xcd_contiguous_in_window(unsigned in_window, unsigned workgroup, unsigned num_tiles,
                                       unsigned window_tiles) {
  const unsigned first = workgroup - in_window;
  const unsigned size = min(window_tiles, num_tiles - first);
  const unsigned xcd = in_window % kNumXcds;
  return first + xcd * (size / kNumXcds) + min(xcd, size % kNumXcds) + in_window / kNumXcds;
}

// Hardware deals workgroups round-robin to the XCDs, each of which has an L2 of its own. Within each window of
// kNumXcds * chunk tiles, this gives every XCD a contiguous run of tiles, so that neighbours share an L2. Every tile is
// taken once for any kNumXcds; if the device has another number of XCDs, neighbours only share less.
template <int kNumXcds>
constexpr int xcd_contiguous(int workgroup, int num_tiles, int chunk) {
  const unsigned window_tiles = kNumXcds * chunk;
  return xcd_contiguous_in_window<kNumXcds>(workgroup % window_tiles, workgroup, num_tiles, window_tiles);
}

// The order of a GEMM's tiles: runs of kChunk tiles on each XCD.
template <int kNumXcds, int kChunk>
struct RunsOfXcds {
  static constexpr int position(int workgroup, int num_tiles) {
    return xcd_contiguous<kNumXcds>(workgroup, num_tiles, kChunk);
  }
};

// A divisor's reciprocal for quotient(), computed on the host.
constexpr unsigned reciprocal(unsigned divisor) { return 0xFFFFFFFF / divisor; }

// n / divisor in a few scalar instructions. reciprocal · divisor >= 2^32 - divisor, so the estimate is at most one too
// small.
constexpr unsigned quotient(unsigned n, unsigned divisor, unsigned reciprocal) {
  const unsigned estimate = static_cast<uint64_t>(n) * reciprocal >> 32;
  return estimate + (n - estimate * divisor >= divisor ? 1 : 0);
}

// Walks the tiles in bands of `group_m` tile rows, m first: a run of tiles then forms a near-square block, which loads
// the fewest rows of A and B. `band_reciprocal` is the reciprocal of the number of tiles in a whole band.
[[gnu::always_inline]] constexpr TileIndex grouped_tile(unsigned tile, int tiles_m, int tiles_n, int group_m,
                                                        unsigned band_reciprocal) {
  const unsigned band_tiles = group_m * tiles_n;
  const unsigned band = quotient(tile, band_tiles, band_reciprocal);
  const unsigned in_band = tile - band * band_tiles;
  const unsigned first_m = band * group_m;
  const unsigned rows = min<unsigned>(tiles_m - first_m, group_m);
  // Divisions are slow, and branches too; most bands are full, or there is one row.
  const unsigned full = group_m;
  unsigned n = rows == 1 ? in_band : in_band / full;
  if (__builtin_expect(rows != full && rows != 1, false)) n = in_band / rows;
  return {static_cast<int>(first_m + in_band - n * rows), static_cast<int>(n)};
}

}  // namespace deep_gemm_rocm

// The slow path for four-bit values whose scales are too far from the usual reference. Where a workgroup widens B to
// FP8 for all its waves, such values become NaN, see four_bits.h. Once a wave finds a NaN among its sums, it stores no
// more results. When the workgroup has computed all its tiles, the wave computes its part of them again, from that tile
// on and without the other waves: in rounds, which take any scales. Doing so at once would be simpler, but the K loop
// has no registers left for it.
#pragma once

#include "deep_gemm_rocm/epilogue/result_store.h"
#include "deep_gemm_rocm/hardware/wave.h"
#include "deep_gemm_rocm/schedules/waves_alone.h"
#include "deep_gemm_rocm/tiles/argument_loads.h"
#include "deep_gemm_rocm/tiles/tile_operands.h"

namespace deep_gemm_rocm {

template <class Shape, class Mma>
DG_DEVICE bool has_nans(const Mma& mma) {
  bool found = false;
#pragma unroll
  for (int m = 0; m < Shape::kFragsM; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kFragsN; ++n) {
#pragma unroll
      for (int e = 0; e < Shape::Mfma::kElements; e += 2) {
        found |= __builtin_isunordered(mma.total(m, n, e), mma.total(m, n, e + 1));
      }
    }
  }
  return ballot(found) != 0;
}

// The rows of a tile from `first` on.
template <class Whole>
struct RowsOfTile : Tile {
  const Whole& whole;
  int first;

  DG_DEVICE RowsOfTile(const Whole& tile, int first)
      : Tile{tile.group, tile.m + first, tile.n, tile.rows - first, tile.stored_rows - first},
        whole(tile),
        first(first) {}

  DG_DEVICE int group_of_operands() const { return whole.group_of_operands(); }
  DG_DEVICE PartOfK part_of_k(const GemmArguments& args) const { return whole.part_of_k(args); }
  DG_DEVICE float result(int row, float sum) const { return whole.result(first + row, sum); }
};

// Computes and stores the wave's part of a tile, a row of fragments at a time.
template <class Kind, class Shape, class Whole>
DG_DEVICE void compute_wave_alone(const GemmArguments& args, const Whole& tile) {
  constexpr int kRows = Shape::Mfma::kRows;
  constexpr int kWavesM = Shape::kBlockM / Shape::kWaveM;
  using Part = TileShape<typename Shape::Mfma, kWavesM * kRows, Shape::kBlockN, kWavesM, Shape::kWavesN, Shape::kParts>;
  using Schedule = WavesAlone<Kind, Part, 1>;
#pragma unroll 1
  for (int row = 0; row < Shape::kWaveM; row += kRows) {
    const RowsOfTile<Whole> rows(tile, Shape::wave_m() - Part::wave_m() + row);
    if (rows.stored_rows <= 0) return;
    typename Schedule::State state(nullptr);
    const TileOperands operands = tile_operands<Kind, Part>(args, rows);
    state.begin(operands);
    if (rows.rows > 0 && state.has_k_blocks()) {
      Schedule::prologue(state, [&] { state.begin_scales(tile_scales<Kind, Part>(args, rows), operands); });
      run_k_loop<Schedule>(state);
    }
    store_results<Kind, Part>(args, rows, state.mma, nullptr);
  }
}

template <class Schedule, class TileSource>
class TilesAgain {
  using Kind = typename Schedule::Kind;
  using Shape = typename Schedule::Shape;
  static constexpr bool kMayLackScales = Schedule::State::kMayLackScales;
  static_assert(!kMayLackScales || !Kind::kSignals, "others would wait for results that come later");

 public:
  // Whether sums of tile `index` may be stored.
  template <class Mma>
  DG_DEVICE bool may_store(const Mma& mma, int index) {
    if constexpr (kMayLackScales) {
      if (first_ == kNone && has_nans<Shape>(mma)) first_ = index;
    }
    return first_ == kNone;
  }

  // Computes what wasn't stored, of every `step`-th tile.
  DG_DEVICE void compute(int step) const {
    if constexpr (kMayLackScales) {
      if (first_ == kNone) return;
      const GemmArguments& args = gemm_arguments();
      const TileSource source = reload_tiles<TileSource>(args);
      const int num_tiles = source.num_tiles();
#pragma unroll 1
      for (int index = first_; index < num_tiles; index += step) {
        compute_wave_alone<Kind, Shape>(args, source.tile(index, num_tiles));
      }
    }
  }

 private:
  static constexpr int kNone = -1;
  int first_ = kNone;
};

}  // namespace deep_gemm_rocm

// The tiles of a workgroup, each from its operands to its results.
#pragma once

#include "deep_gemm_rocm/epilogue/result_store.h"
#include "deep_gemm_rocm/epilogue/sum_over_waves.h"
#include "deep_gemm_rocm/epilogue/tile_signal.h"
#include "deep_gemm_rocm/schedules/pipeline.h"
#include "deep_gemm_rocm/tiles/argument_loads.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/overlapping_tiles.h"
#include "deep_gemm_rocm/tiles/tile_operands.h"
#include "deep_gemm_rocm/tiles/tile_source.h"
#include "deep_gemm_rocm/tiles/tiles_again.h"

namespace deep_gemm_rocm {

// Threads of a workgroup, and bytes of its LDS.
template <class Schedule>
constexpr int kThreads = Schedule::Shape::kThreads * Schedule::Shape::kWavesK;
template <class Schedule>
constexpr int kLdsBytes = max(Schedule::State::kLdsBytes, SumOverWaves<typename Schedule::Shape>::kLdsBytes);

template <class Schedule, class Tile, class MayStore>
DG_DEVICE void store_tile(const GemmArguments& args, const Tile& tile, const typename Schedule::State& state,
                          uint8_t* lds, const MayStore& may_store) {
  using Shape = typename Schedule::Shape;
  using Kind = typename Schedule::Kind;
  static_assert(!Kind::kQuantised || Shape::kOutputN == kScaleBlockN, "a scale's columns must lie within one tile");
  static_assert(!Kind::kQuantised || Shape::kWavesN == 1 || !Schedule::State::kSkipsLds,
                "waves tell one another a row's largest magnitude in LDS");

  if constexpr (Kind::kSumsSquares) {
    float* const sums = args.square_sums.data + tile.group * args.square_sums.group_stride + tile.m;
    if (tile.n == 0) state.store_square_sums(sums, tile.stored_rows);
  }
  if (may_store(state.mma)) store_results<Kind, Shape>(args, tile, state.mma, lds);
}

// Computes one tile: loads its first K-blocks, runs the K loop, stores if may_store(sums).
template <class Schedule, class Tile, class MayStore>
DG_DEVICE void compute_tile(const GemmArguments& args, const Tile& tile, uint8_t* lds, const MayStore& may_store) {
  using Kind = typename Schedule::Kind;
  using Shape = typename Schedule::Shape;
  if (tile.stored_rows <= 0) return;
  typename Schedule::State state(lds);
  const TileOperands operands = tile_operands<Kind, Shape>(args, tile);
  state.begin(operands);
  if (tile.rows > 0 && state.has_k_blocks()) {
    Schedule::prologue(state, [&] {
      const GemmArguments later = with_arguments_of_scales<Kind>(args);
      state.begin_scales(tile_scales<Kind, Shape>(later, tile), operands);
    });
    run_k_loop<Schedule>(state);
  }
  store_tile<Schedule>(gemm_arguments(), tile, state, lds, may_store);
  if constexpr (Kind::kSignals) signal_tile<Shape>(gemm_arguments(), tile);
}

// Computes tile `index` and every `step`-th one after it. Arguments and layout are read again for each tile, so that
// the K loop needn't keep them in registers.
template <class Schedule, class TileSource, class First, class Layout>
DG_DEVICE void compute_tiles_one_by_one(First first, Layout layout, int index, int step, uint8_t* lds) {
  TilesAgain<Schedule, TileSource> again;
  for (;; index += step, first = first.reloaded(gemm_arguments()), layout = TileSource::load_layout(first)) {
    const GemmArguments args = first.with(gemm_arguments());
    load_arguments_of_tile<TileSource>(args);
    const TileSource source(args, layout);
    const int num_tiles = source.num_tiles();
    if (index >= num_tiles) break;
    __builtin_amdgcn_sched_barrier(0);  // the arguments of scales are in flight while the tile is found
    compute_tile<Schedule>(args, source.tile(index, num_tiles), lds,
                           [&](const auto& mma) { return again.may_store(mma, index); });
    if (index + step >= num_tiles) break;  // last tile of the workgroup: don't load arguments for a next one
    // The next tile overwrites what slower waves still read, if waves share LDS.
    if constexpr (!Schedule::State::kSkipsLds || Schedule::Shape::kWavesK > 1) lds_barrier();
  }
  again.compute(step);
}

// Computes the tiles of a persistent workgroup: the one of its number, and each as many tiles further on as there are
// workgroups.
template <class Schedule, class TileSource, class First, class Layout>
DG_DEVICE void compute_tiles(const First& first, const Layout& layout, uint8_t* lds) {
  using Kind = typename Schedule::Kind;
  // Tiles don't overlap where the epilogue needs what the next tile takes: quantising needs LDS, and scales of single
  // columns the registers. Nor with signals, which wait for the tile's stores.
  constexpr bool kOverlap = Schedule::kGoesOnToNextTile && !Kind::kQuantised && !Kind::kSumsSquares &&
                            !Kind::kSumsBatch && !Kind::kPromotesColumns && !Kind::kGathersA &&
                            !Kind::kSignals;
  const int index = workgroup_id();
  const int step = first.num_workgroups;
  if constexpr (kOverlap) {
    compute_tiles_overlapping<Schedule, TileSource>(first, layout, index, step, lds);
  } else {
    compute_tiles_one_by_one<Schedule, TileSource>(first, layout, index, step, lds);
  }
}

// The rows and columns that a workgroup loads over all its tiles, as an estimate of its time.
template <class TileSource>
DG_DEVICE int loaded_rows(const TileSource& source, int num_workgroups) {
  using Shape = typename TileSource::Shape;
  const unsigned rounds = ceil_div(source.num_tiles(), num_workgroups);
  return rounds * (Shape::kBlockM + Shape::kBlockN);
}

// Chooses between two sizes of tiles where only the device knows how many rows there are.
template <class TileSource, class OtherTileSource, class First, class Layout>
DG_DEVICE bool loads_less(const First& first, const Layout& layout) {
  const GemmArguments args = first.with(gemm_arguments());
  load_arguments_of_tile<TileSource>(args);
  const int num_workgroups = first.num_workgroups;
  return loaded_rows(TileSource(args, layout), num_workgroups) <
         loaded_rows(OtherTileSource(args, layout), num_workgroups);
}

}  // namespace deep_gemm_rocm

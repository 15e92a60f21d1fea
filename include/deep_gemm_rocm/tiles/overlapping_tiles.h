// Tiles of a persistent workgroup that overlap: the last K-blocks of one load the first K-blocks of the next, so that
// the matrix cores go on without a break. Simulated, 4096x7168x2048 takes 57.2 µs so and 63.8 without, and
// 4096x32768x512 77.5 and 110.7. For schedules with
//   kLastLoads: the K-blocks, counted from the end, between whose loads the next tile's begin;
//   k_block_between_tiles<kIsFirst>(state, k_block, between_loads), last_k_block(state, k_block, output, goes_on).
#pragma once

#include "deep_gemm_rocm/epilogue/result_store.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/tiles/argument_loads.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/tile_operands.h"
#include "deep_gemm_rocm/tiles/tiles_again.h"

namespace deep_gemm_rocm {

// Computes a tile's sums over K. Totals begin with the first K-block if the tile has enough of them, which saves the
// time of setting them to zero between two tiles. The K-blocks after that, but for the last one, call
// prepare_next(k_block). `output` may store results before all of them are complete.
template <class Schedule, class PrepareNext, class Output>
DG_DEVICE void run_overlapping_k_loop(typename Schedule::State& state, const PrepareNext& prepare_next, Output& output,
                                      const int& next_k_blocks) {
  const int last = state.end_k_block - 1;
  int k_block = state.first_k_block;
  if (k_block < last - Schedule::kLastLoads) {
    state.begin_parts();
    Schedule::template k_block_between_tiles<true>(state, k_block, [] {});
    state.after_k_block(k_block++);
  } else {
    state.mma = {};
    state.begin_parts();
  }
  for (; k_block < last; ++k_block) {
    Schedule::k_block_between_tiles(state, k_block, [&] { prepare_next(k_block); });
    state.after_k_block(k_block);
  }
  Schedule::last_k_block(state, last, output, next_k_blocks > 0);
}

// A run of tiles that overlap, after the prologue of the first one.
template <class Schedule, class TileSource, class First, class Tile>
struct TileRun {
  using Kind = typename Schedule::Kind;
  using Shape = typename Schedule::Shape;
  using State = typename Schedule::State;
  using StreamedTile = typename Tile::Streamed;
  using Output = ResultStore<Kind, Shape, StreamedTile>;

  const First& first;
  int step;
  int num_tiles;
  uint8_t* lds;
  TilesAgain<Schedule, TileSource>& again;

  // Computes `tile`, of number `index`, and those that follow; both are then the last one's.
  DG_DEVICE void compute(State& state, Tile& tile, int& index) {
    while (true) {
      auto next = tile;
      int next_k_blocks = 0;  // 0 while there is no next tile that can be loaded
      const int loads_at = state.end_k_block - Schedule::kLastLoads;
      const int finds_at = max(state.first_k_block, loads_at - 1);  // late, for the registers that it takes
      const auto prepare_next = [&](int k_block) {
        if (k_block < finds_at) return;
        if (k_block == finds_at) next_k_blocks = find(state, index + step, next);
        if (k_block == loads_at && next_k_blocks > 0) begin_loads(state, next);
        wait_for_arguments();  // otherwise the compiler waits in every K-block
      };
      Output output(tile.streamed(), tile.is_streamed());
      run_overlapping_k_loop<Schedule>(state, prepare_next, output, next_k_blocks);
      if (!output.finish(state.mma) && again.may_store(state.mma, index)) store_rest(state, tile, index);
      if (next_k_blocks == 0) break;
      state.begin_sums(next_k_blocks);
      tile = next;
      index += step;
    }
  }

  // Finds tile `index`. Returns its number of K-blocks, or 0 if it can't overlap the current tile, for which both must
  // have two K-blocks.
  DG_DEVICE int find(const State& state, int index, Tile& tile) const {
    asm volatile("" : "+s"(index));  // keeps the compiler from finding the tile before the K loop
    const GemmArguments& args = arguments_of_next_tile<Schedule, TileSource>(first);
    load_arguments_of_tile<TileSource>(args);
    // If there is no such tile, finds the last one instead of branching: a branch would take longer than it saves.
    tile = reload_tiles<TileSource>(args).tile(min(index, num_tiles - 1), num_tiles);
    const int k_blocks = State::num_k_blocks(tile_operands<Kind, Shape>(args, tile));
    const bool can_be_loaded = min(k_blocks, state.end_k_block - state.first_k_block) > 1;
    return ((index < num_tiles) & (tile.rows > 0) & can_be_loaded) ? k_blocks : 0;
  }

  // From here on, loads are those of the next tile.
  DG_DEVICE void begin_loads(State& state, const Tile& next) const {
    const GemmArguments& args = arguments_of_next_tile<Schedule, TileSource>(first);
    load_arguments_of_operands<Schedule, TileSource>(args);
    const TileOperands operands = tile_operands<Kind, Shape>(args, next);
    state.begin_loads(operands);
    state.begin_scales(tile_scales<Kind, Shape>(args, next), operands);
  }

  // Stores what wasn't stored during the K loop.
  DG_DEVICE void store_rest(State& state, const Tile& tile, int index) const {
    state.mma.settle();
    if constexpr (Output::kStreams && !kIsSame<StreamedTile, Tile>) {
      // Finds the tile again rather than hold all of it in registers during the K loop.
      const GemmArguments& args = gemm_arguments();
      Output::store_rest(reload_tiles<TileSource>(args).tile(index, num_tiles), state.mma, lds);
    } else {
      Output::store_rest(tile, state.mma, lds);
    }
  }
};

// Computes tile `index` and every `step`-th one after it, in runs that overlap.
template <class Schedule, class TileSource, class First, class Layout>
DG_DEVICE void compute_tiles_overlapping(First first, Layout layout, int index, int step, uint8_t* lds) {
  using Kind = typename Schedule::Kind;
  using Shape = typename Schedule::Shape;
  TilesAgain<Schedule, TileSource> again;
  for (;; index += step, first = first.reloaded(gemm_arguments()), layout = TileSource::load_layout(first)) {
    const GemmArguments args = first.with(gemm_arguments());
    load_arguments_of_tile<TileSource>(args);
    const TileSource source(args, layout);
    const int num_tiles = source.num_tiles();
    if (index >= num_tiles) break;

    auto tile = source.tile(index, num_tiles);
    using Run = TileRun<Schedule, TileSource, First, decltype(tile)>;
    typename Schedule::State state(lds);
    const TileOperands operands = tile_operands<Kind, Shape>(args, tile);
    state.begin(operands);
    if (tile.rows <= 0 || !state.has_k_blocks()) {
      if (tile.stored_rows > 0) Run::Output::store_without_sums(tile, state.mma, lds);
      continue;
    }
    Schedule::prologue(state, [&] { state.begin_scales(tile_scales<Kind, Shape>(gemm_arguments(), tile), operands); });
    Run{first, step, num_tiles, lds, again}.compute(state, tile, index);

    if (index + step >= num_tiles) break;  // last tile of the workgroup: don't load arguments for a next one
    lds_barrier();  // the next tile overwrites what slower waves still read
  }
  again.compute(step);
}

}  // namespace deep_gemm_rocm

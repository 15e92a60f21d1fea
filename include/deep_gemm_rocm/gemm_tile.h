// Computes the tiles of a GEMM, wherever a tile source finds them.
#pragma once

#include "deep_gemm_rocm/epilogue.h"
#include "deep_gemm_rocm/gemm_arguments.h"
#include "deep_gemm_rocm/pipeline.h"
#include "deep_gemm_rocm/streamed_store.h"
#include "deep_gemm_rocm/sum_over_waves.h"
#include "deep_gemm_rocm/tile_source.h"

namespace deep_gemm_rocm {

// Where a tile is. Indices are unsigned: their products with strides of 64 bits then take half the instructions, all of
// which come before a workgroup's first load.
template <class T, Major kMajor>
DG_DEVICE OperandTile operand_tile(const Matrix& matrix, unsigned group, unsigned first_row, int rows, int64_t all_rows,
                                   const PartOfK& k) {
  constexpr bool kIsKMajor = kMajor != Major::kRows;
  const int64_t stride = kIsKMajor && k.packed ? k.k : matrix.stride;
  const int64_t stride_k = kMajor == Major::kRows       ? stride
                           : kMajor == Major::kShuffled ? kShuffledRows
                           : k.packed                   ? all_rows
                                                        : 1;
  const int64_t first = first_row * (kIsKMajor ? stride : 1) + static_cast<unsigned>(k.first_k) * stride_k;
  const auto* data = static_cast<const uint8_t*>(matrix.data);
  constexpr int64_t kBytes = sizeof(T);
  return {data + (group * matrix.group_stride + first) * kBytes, rows, k.k * static_cast<int>(kBytes),
          stride * kBytes, all_rows * (kIsKMajor ? stride : 1) * kBytes};
}

// What a wave multiplies of a tile's K.
template <class Kind, class Shape>
DG_DEVICE PartOfK part_of_wave(const PartOfK& k) {
  if constexpr (Shape::kWavesK == 1) return k;
  constexpr int kBlockK = kBlockKBytes / sizeof(typename Kind::B);
  return share_of_k<kBlockK>(k, Shape::kWavesK, Shape::wave_k());
}

// The scales of an operand each of whose parts has `rows` rows of them.
DG_DEVICE ScaleTile scale_tile(const Scales& scales, unsigned group, unsigned first_row, int64_t rows,
                               unsigned first_k_block) {
  return {scales.data + group * scales.group_stride + first_row * scales.row_stride +
              first_k_block * scales.k_block_stride,
          scales.row_stride, scales.k_block_stride, rows * scales.row_stride};
}

template <class Tile>
DG_DEVICE ScaleTile scales_of_a(const GemmArguments& args, const Tile& tile, const PartOfK& k) {
  return scale_tile(args.sfa, tile.group_of_operands(), tile.m, 0, k.first_k_block);
}

template <class Kind, class Shape, class Tile>
DG_DEVICE ScaleTile scales_of_b(const GemmArguments& args, const Tile& tile, const PartOfK& k) {
  constexpr bool kBlocks = Kind::kScaling == Scaling::kBlocks;
  const unsigned column = min(tile.n + Shape::wave_column(), args.n - 1);
  const int row = kBlocks ? column / kScaleBlockN : tile.n;
  const int rows = kBlocks ? args.n / kScaleBlockN : args.n;
  ScaleTile scales = scale_tile(args.sfb, tile.group_of_operands(), row, rows, k.first_k_block);
  if (kBlocks) scales.first_column = column % kScaleBlockN;
  return scales;
}

template <class TileSource>
constexpr bool kIsDense = false;
template <class Shape, class Order, int kBand>
constexpr bool kIsDense<DenseTiles<Shape, Order, kBand>> = true;

// Whether what tells where tiles are stays in scalar registers, so that nobody waits for it between tiles. Groups,
// results that take more than rounding, and waves of many columns need these registers.
template <class Schedule, class TileSource>
constexpr bool kKeepsArguments = kIsDense<TileSource> && Schedule::Shape::kWaveN <= 64 &&
                                 kStreamsResults<typename Schedule::Kind, typename Schedule::Shape>;

// The arguments, after the first tile.
template <class Schedule, class TileSource, class First>
DG_DEVICE decltype(auto) arguments_again(const First& first) {
  if constexpr (kKeepsArguments<Schedule, TileSource>) {
    return first.with(gemm_arguments());
  } else {
    return gemm_arguments();
  }
}

// Have the compiler load arguments here, all that finding a tile takes, or its operands: so it waits for them once, and
// not for one after the other.
template <class TileSource>
DG_DEVICE void load_arguments_of_tile(const GemmArguments& args) {
  if constexpr (TileSource::kReadsLayout) {
    asm volatile("" ::"s"(args.m), "s"(args.n), "s"(args.k), "s"(args.band_reciprocal), "s"(args.grouped_layout),
                 "s"(args.num_groups));
  } else {
    asm volatile("" ::"s"(args.m), "s"(args.n), "s"(args.k), "s"(args.band_reciprocal));
  }
}
template <class Schedule, class TileSource>
DG_DEVICE void load_arguments_of_operands(const GemmArguments& args) {
  constexpr bool kHasScales = Schedule::Kind::kScaling != Scaling::kNone;
  if constexpr (!kKeepsArguments<Schedule, TileSource> && kHasScales) {
    asm volatile("" ::"s"(args.n), "s"(args.k), "s"(args.a.data), "s"(args.a.stride), "s"(args.b.data),
                 "s"(args.b.stride), "s"(args.sfa.data), "s"(args.sfa.row_stride), "s"(args.sfa.k_block_stride),
                 "s"(args.sfb.data), "s"(args.sfb.row_stride), "s"(args.sfb.k_block_stride));
  } else if constexpr (!kKeepsArguments<Schedule, TileSource>) {
    asm volatile("" ::"s"(args.n), "s"(args.k), "s"(args.a.data), "s"(args.a.stride), "s"(args.b.data),
                 "s"(args.b.stride));
  } else if constexpr (kHasScales) {
    asm volatile("" ::"s"(args.sfa.data), "s"(args.sfa.row_stride), "s"(args.sfa.k_block_stride), "s"(args.sfb.data),
                 "s"(args.sfb.row_stride), "s"(args.sfb.k_block_stride));
  }
}

template <class TileSource>
DG_DEVICE TileSource tiles_again(const GemmArguments& args) {
  return TileSource(args, TileSource::load_layout(args));
}

template <class Kind, class Shape, class Tile>
DG_DEVICE TileOperands tile_operands(const GemmArguments& args, const Tile& tile) {
  const int group = tile.group_of_operands();
  const PartOfK k = part_of_wave<Kind, Shape>(tile.part_of_k(args));
  TileOperands operands{
      operand_tile<typename Kind::A, Kind::kMajorA>(args.a, group, tile.m, tile.rows, args.m, k),
      operand_tile<typename Kind::B, Kind::kMajorB>(args.b, group, tile.n, args.n - tile.n, args.n, k),
  };
  if constexpr (Kind::kSumsBatch) {
    operands.a.batch = {args.a.group_stride * int64_t{sizeof(typename Kind::A)}, tile.first_block, tile.num_blocks};
    operands.b.batch = {args.b.group_stride * int64_t{sizeof(typename Kind::B)}, tile.first_block, tile.num_blocks};
  }
  return operands;
}

template <class Kind, class Shape, class Tile>
DG_DEVICE TileScales tile_scales(const GemmArguments& args, const Tile& tile) {
  const PartOfK k = part_of_wave<Kind, Shape>(tile.part_of_k(args));
  return {scales_of_a(args, tile, k), scales_of_b<Kind, Shape>(args, tile, k)};
}

template <class Kind, class Shape, class Tile>
DG_DEVICE Epilogue<Kind, Shape> epilogue_of(const GemmArguments& args, const Tile& tile) {
  using D = typename Kind::D;
  const int rows = tile.stored_rows;
  const int columns = args.n - tile.n;
  const PartOfK k = tile.part_of_k(args);
  return Epilogue<Kind, Shape>({
      args,
      output_tile<D>(args.d, tile.group, tile.m, tile.n, rows, columns),
      output_tile<D>(args.c, tile.group, tile.m, tile.n, rows, columns),
      OutputColumns<Kind>(args, tile.n),
      output_tile<typename Kind::Bias>(args.bias, tile.group, 0, tile.n, rows, columns),
      args.n,
      scales_of_a(args, tile, k),
      scales_of_b<Kind, Shape>(args, tile, k),
      scale_tile(args.sfd, tile.group, tile.m, 0, tile.n / kScaleBlockN),
  });
}

// Of LDS that a workgroup needs.
template <class Schedule>
constexpr int kLdsBytes = max(Schedule::State::kLdsBytes, SumOverWaves<typename Schedule::Shape>::kLdsBytes);

template <class Schedule, class Tile>
DG_DEVICE void store_tile(const GemmArguments& args, const Tile& tile, const typename Schedule::State& state,
                          uint8_t* lds) {
  using Shape = typename Schedule::Shape;
  using Kind = typename Schedule::Kind;
  static_assert(!Kind::kQuantised || Shape::kOutputN == kScaleBlockN, "a scale's columns must lie within one tile");
  static_assert(!Kind::kQuantised || Shape::kWavesN == 1 || Schedule::State::kLdsBytes > 0,
                "waves tell one another a row's largest magnitude in LDS");

  if constexpr (Kind::kSumsSquares) {
    float* const sums = args.square_sums.data + tile.group * args.square_sums.group_stride + tile.m;
    if (tile.n == 0) state.store_square_sums(sums, tile.stored_rows);
  }
  if (!Schedule::State::computes()) return;

  if constexpr (Shape::kWavesK == 1) {
    epilogue_of<Kind, Shape>(args, tile).store(state.mma, tile, lds);
  } else {
    using SumOverParts = SumOverWaves<Shape>;
    const auto epilogue = epilogue_of<Kind, typename SumOverParts::Shape>(args, tile);
    __builtin_amdgcn_sched_barrier(0);  // its arguments are loaded while waves exchange their sums
    const SumOverParts sums(state.mma, lds);
    if (sums.has_sums()) epilogue.store(sums, tile, lds);
  }
}

template <class Schedule, class Tile>
DG_DEVICE void compute_tile(const GemmArguments& args, const Tile& tile, uint8_t* lds) {
  using Kind = typename Schedule::Kind;
  using Shape = typename Schedule::Shape;
  if (tile.stored_rows <= 0) return;
  typename Schedule::State state(lds);
  const TileOperands operands = tile_operands<Kind, Shape>(args, tile);
  state.begin(operands);
  const bool multiplies = tile.rows > 0 && state.has_k_blocks();
  if (multiplies) {
    Schedule::prologue(state, [&] { state.begin_scales(tile_scales<Kind, Shape>(args, tile), operands); });
    run_k_loop<Schedule>(state);
  }
  store_tile<Schedule>(gemm_arguments(), tile, state, lds);
}

template <class Schedule, class TileSource, class First, class Layout>
DG_DEVICE void compute_tiles_one_by_one(First first, Layout layout, int index, int step, uint8_t* lds) {
  for (;; index += step, first = first.again(gemm_arguments()), layout = TileSource::load_layout(first)) {
    const GemmArguments args = first.with(gemm_arguments());
    load_arguments_of_tile<TileSource>(args);
    const TileSource source(args, layout);
    const int num_tiles = source.num_tiles();
    if (index >= num_tiles) return;
    __builtin_amdgcn_sched_barrier(0);  // arguments that scales take are on their way while the tile is found
    compute_tile<Schedule>(args, source.tile(index, num_tiles), lds);
    if (index + step >= num_tiles) return;  // for most there is no next one, whose arguments would take time
    if constexpr (kLdsBytes<Schedule> > 0) lds_barrier();  // the next tile overwrites what slower waves still read
  }
}

// The last round of tiles, if workgroups compute them as they do all others.
struct LastRoundOfTiles {
  static DG_DEVICE bool is_shared(int, int) { return false; }
  template <class TileSource>
  static DG_DEVICE void compute_share(int, int, uint8_t*) {}
};

// A last round of tiles for so few of the workgroups that kShares of them can share the columns of each tile. Schedule
// computes what one of them has.
template <class Schedule, int kShares>
struct LastRoundOfShares {
  static constexpr int kLdsBytes = Schedule::State::kLdsBytes;

  // Of tiles that are left for a round, and workgroups.
  static DG_DEVICE bool is_shared(int left, int num_workgroups) { return left > 0 && left * kShares <= num_workgroups; }

  template <class TileSource>
  static DG_DEVICE void compute_share(int left, int num_tiles, uint8_t* lds) {
    const unsigned share = workgroup_id();
    if (share >= left * kShares) return;
    const GemmArguments& args = gemm_arguments();  // again, for the registers that it takes
    load_arguments_of_tile<TileSource>(args);
    auto tile = tiles_again<TileSource>(args).tile(num_tiles - left + share / kShares, num_tiles);
    tile.n += share % kShares * Schedule::Shape::kOutputN;
    if (tile.n < args.n) compute_tile<Schedule>(args, tile, lds);
  }
};

// How many tiles are left when workgroups compute tile `index` and those beside it.
DG_DEVICE int left_for_round(int index, int num_tiles) { return num_tiles - (index - workgroup_id()); }

// How many K-blocks tile `index` has, if it can be loaded by the last K-blocks of the current one, else 0: both must
// have two.
template <class Schedule, class TileSource, class LastRound, class First, class Tile>
DG_DEVICE int find_following(const First& first, const typename Schedule::State& state, int index, int step,
                             int num_tiles, Tile& tile) {
  asm volatile("" : "+s"(index));  // here, and not before the K loop
  const GemmArguments& args = arguments_again<Schedule, TileSource>(first);
  load_arguments_of_tile<TileSource>(args);
  // Branches take longer than what they would leave out.
  tile = tiles_again<TileSource>(args).tile(min(index, num_tiles - 1), num_tiles);
  const auto operands = tile_operands<typename Schedule::Kind, typename Schedule::Shape>(args, tile);
  const int k_blocks = state.num_k_blocks(operands);
  const bool exists = (index < num_tiles) & !LastRound::is_shared(left_for_round(index, num_tiles), step);
  const bool can_be_loaded = min(k_blocks, state.end_k_block - state.first_k_block) > 1;
  return (exists & (tile.rows > 0) & can_be_loaded) ? k_blocks : 0;
}

// The last K-blocks of a tile load the first ones of the next.
template <class Schedule, class TileSource, class LastRound, class First, class Layout>
DG_DEVICE void compute_tiles_overlapping(First first, Layout layout, int index, int step, uint8_t* lds) {
  using Kind = typename Schedule::Kind;
  using Shape = typename Schedule::Shape;
  for (;; index += step, first = first.again(gemm_arguments()), layout = TileSource::load_layout(first)) {
    const GemmArguments args = first.with(gemm_arguments());
    load_arguments_of_tile<TileSource>(args);
    const TileSource source(args, layout);
    const int num_tiles = source.num_tiles();
    const int left = left_for_round(index, num_tiles);
    if (LastRound::is_shared(left, step)) return LastRound::template compute_share<TileSource>(left, num_tiles, lds);
    if (index >= num_tiles) return;
    auto tile = source.tile(index, num_tiles);
    using StreamedTile = typename decltype(tile)::Streamed;
    using Output =
        Conditional<kStreamsResults<Kind, Shape>, StreamedStore<Kind, Shape, StreamedTile>, NoStreamedStore>;
    typename Schedule::State state(lds);
    const TileOperands operands = tile_operands<Kind, Shape>(args, tile);
    state.begin(operands);
    if (tile.rows <= 0 || !state.has_k_blocks()) {
      if (tile.stored_rows > 0) {
        if constexpr (Output::kStores) {
          Output::store_without_sums(tile);
        } else {
          store_tile<Schedule>(gemm_arguments(), tile, state, lds);
        }
      }
      continue;
    }
    Schedule::prologue(state, [&] { state.begin_scales(tile_scales<Kind, Shape>(gemm_arguments(), tile), operands); });
    while (true) {
      auto following = tile;
      int following_k_blocks = 0;
      // Late, for the registers that it takes.
      const int goes_on_at = state.end_k_block - Schedule::kLastLoads;
      const int finds_at = max(state.first_k_block, goes_on_at - 1);
      const auto prepare = [&](int k_block) {
        if (k_block < finds_at) return;
        if (k_block == finds_at) {
          following_k_blocks =
              find_following<Schedule, TileSource, LastRound>(first, state, index + step, step, num_tiles, following);
        }
        if (k_block == goes_on_at && following_k_blocks > 0) {
          const GemmArguments& again = arguments_again<Schedule, TileSource>(first);
          load_arguments_of_operands<Schedule, TileSource>(again);
          const TileOperands next = tile_operands<Kind, Shape>(again, following);
          state.begin_loads(next);
          state.begin_scales(tile_scales<Kind, Shape>(again, following), next);
        }
        wait_for_arguments();  // or the compiler would wait in every K-block
      };
      Output output(tile.streamed(), tile.is_streamed());
      run_k_loop<Schedule>(state, prepare, output, following_k_blocks);
      if (!output.finish(state.mma)) {
        state.mma.settle();
        const GemmArguments& again = gemm_arguments();
        if constexpr (Output::kStores) {
          // What isn't streamed of a tile is found again, for the registers that it took.
          constexpr bool kIsWhole = kIsSame<StreamedTile, decltype(tile)>;
          Output::store_elements(kIsWhole ? tile : tiles_again<TileSource>(again).tile(index, num_tiles), state.mma);
        } else {
          store_tile<Schedule>(again, tile, state, lds);
        }
      }
      if (following_k_blocks == 0) break;
      state.begin_sums(following_k_blocks);
      tile = following;
      index += step;
    }
    const int next = index + step;  // for most there is none, whose arguments would take time
    if (next >= num_tiles && !LastRound::is_shared(left_for_round(next, num_tiles), step)) return;
    lds_barrier();  // the next tile overwrites what slower waves still read
  }
}

// The tile that has the workgroup's number, and each as many tiles further on as there are workgroups.
template <class Schedule, class TileSource, class LastRound, class First, class Layout>
DG_DEVICE void compute_tiles(const First& first, const Layout& layout, uint8_t* lds) {
  using Kind = typename Schedule::Kind;
  // Quantising needs LDS, which then holds the next tile; scales of single columns take the registers.
  constexpr bool kOverlap = Schedule::kGoesOnToNextTile && !Kind::kQuantised && !Kind::kSumsSquares &&
                            !Kind::kSumsBatch && Kind::kScaling != Scaling::kVectors;
  const int index = workgroup_id();
  const int step = first.num_workgroups;
  if constexpr (kOverlap) {
    compute_tiles_overlapping<Schedule, TileSource, LastRound>(first, layout, index, step, lds);
  } else {
    compute_tiles_one_by_one<Schedule, TileSource>(first, layout, index, step, lds);
  }
}

// Rows and columns of the tiles that a workgroup computes, which is what it waits for.
template <class TileSource>
DG_DEVICE int taken_in(const TileSource& source, int num_workgroups) {
  using Shape = typename TileSource::Shape;
  const unsigned rounds = ceil_div(source.num_tiles(), num_workgroups);
  return rounds * (Shape::kBlockM + Shape::kBlockN);
}

// Of two kinds of tiles, where only the device knows how many rows there are.
template <class TileSource, class OtherTileSource, class First, class Layout>
DG_DEVICE bool takes_in_less(const First& first, const Layout& layout) {
  const GemmArguments args = first.with(gemm_arguments());
  load_arguments_of_tile<TileSource>(args);
  const int num_workgroups = first.num_workgroups;
  return taken_in(TileSource(args, layout), num_workgroups) < taken_in(OtherTileSource(args, layout), num_workgroups);
}

}  // namespace deep_gemm_rocm

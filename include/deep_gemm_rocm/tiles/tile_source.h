// Tile sources find the tiles of output that a workgroup computes: which group they belong to, where they are, and
// which of their rows count. There is one for each kind of problem, with
//   kReadsLayout: whether tiles depend on grouped_layout;
//   load_layout(args): the part of grouped_layout that is loaded once for all tiles, for the constructor;
//   max_tiles(args): an upper bound of the number of tiles, on the host;
//   num_tiles(): the number of tiles;
//   tile(index, num_tiles): a tile, as a struct derived from Tile with result(row, sum), the value stored in a row
//     of the tile whose sum over K is `sum`.
// Layouts are read on the device only. Nothing outside the tensors is read or written, whatever layouts hold.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/tile_scheduler.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// For tile sources that load nothing in advance.
struct NoLayout {};
struct TilesWithoutLayout {
  template <class Arguments>
  static DG_DEVICE NoLayout load_layout(const Arguments&) {
    return {};
  }
};

// grouped_layout with a number for each group.
template <class Arguments>
DG_DEVICE Buffer layout_of_groups(const Arguments& args) {
  return {args.grouped_layout, args.num_groups * static_cast<unsigned>(sizeof(int))};
}

// A part of K.
struct PartOfK {
  int k;  // its size
  int first_k;
  int first_k_block;  // of its scales
  int packed;         // whether rows that are contiguous along K consist of this part only
};

struct Tile {
  int group;
  int m, n;         // the first row and column
  int rows;         // rows that are multiplied, from m on; may exceed the tile
  int stored_rows;  // rows that may be written, from m on; may exceed the tile

  // Whether all stored_rows are stored as streamed() says.
  DG_DEVICE bool is_streamed() const { return true; }
  DG_DEVICE int group_of_operands() const { return group; }
  DG_DEVICE PartOfK part_of_k(const GemmArguments& args) const { return {args.k, 0, 0, false}; }
};

struct TileOfResults : Tile {
  using Streamed = TileOfResults;
  DG_DEVICE const Streamed& streamed() const { return *this; }
  DG_DEVICE float result(int, float sum) const { return sum; }
};

// A tile of a group. Its rows after the group's last one are padding, which is written as zero.
struct TileWithTail : Tile {
  using Streamed = TileWithTail;
  DG_DEVICE const Streamed& streamed() const { return *this; }
  DG_DEVICE float result(int row, float sum) const { return row < rows ? sum : 0; }
};

// A tile over a part of K, of operands that all groups share.
struct TileOfK : TileOfResults {
  PartOfK part;

  DG_DEVICE int group_of_operands() const { return 0; }
  DG_DEVICE PartOfK part_of_k(const GemmArguments&) const { return part; }
};

// A dense problem.
template <class Shape, class Order, int kBand>
class DenseTiles : public TilesWithoutLayout {
 public:
  static constexpr bool kReadsLayout = false;
  static int64_t max_tiles(const GemmArguments& args) {
    return static_cast<int64_t>(ceil_div(args.m, Shape::kBlockM)) * ceil_div(args.n, Shape::kOutputN);
  }

  DG_DEVICE explicit DenseTiles(const GemmArguments& args, NoLayout = {})
      : args_(args), tiles_m_(ceil_div(args.m, Shape::kBlockM)), tiles_n_(ceil_div(args.n, Shape::kOutputN)) {}

  DG_DEVICE int num_tiles() const { return tiles_m_ * tiles_n_; }

  DG_DEVICE TileOfResults tile(int index, int num_tiles) const {
    return tile_at(Order::position(index, num_tiles));
  }

  // `position` counts tiles in the order in which they share operands.
  DG_DEVICE TileOfResults tile_at(int position) const {
    const TileIndex tile = grouped_tile(position, tiles_m_, tiles_n_, kBand, args_.band_reciprocal);
    // Divisions are done in VGPRs; uniform() moves the results to SGPRs.
    const int m = uniform(tile.m) * Shape::kBlockM;
    return {{0, m, uniform(tile.n) * Shape::kOutputN, args_.m - m, args_.m - m}};
  }

 private:
  const GemmArguments& args_;
  int tiles_m_, tiles_n_;
};

// One bit for each row of a tile.
template <int kRows>
struct RowSet {
  uint64_t words[ceil_div(kRows, kWaveSize)];

  DG_DEVICE bool contains(int row) const {
    static_assert(kRows <= 2 * kWaveSize);
    const uint64_t word = kRows <= kWaveSize || row < kWaveSize ? words[0] : words[ceil_div(kRows, kWaveSize) - 1];
    return word >> (row % kWaveSize) & 1;
  }
};

// A tile each of whose rows has an id: the tile's group, or padding, which becomes zero. Rows of other groups, or of
// groups that don't exist, break the layout's contract. They become NaN, so that it shows. In nearly all
// tiles the group's rows come first and the rest is padding; then the sets aren't needed to stream the tile, and take
// no registers while it is computed.
template <int kRows>
struct TileOfIds : TileWithTail {
  RowSet<kRows> members, padding;
  bool has_members_first;

  DG_DEVICE bool is_streamed() const { return has_members_first; }

  DG_DEVICE float result(int row, float sum) const {
    return members.contains(row) ? sum : padding.contains(row) ? 0 : __builtin_nanf("");
  }
};

// The rows of groups follow one another; grouped_layout [m] has each row's group, or a negative number for padding.
// Groups start at multiples of the alignment, which is a multiple of the tile's rows, so a tile has one group.
template <class Shape, class Order, int kBand>
class ContiguousTiles : public TilesWithoutLayout {
  using Dense = DenseTiles<Shape, Order, kBand>;
  static constexpr int kRows = Shape::kBlockM;

 public:
  static constexpr bool kReadsLayout = true;
  static int64_t max_tiles(const GemmArguments& args) { return Dense::max_tiles(args); }

  DG_DEVICE explicit ContiguousTiles(const GemmArguments& args, NoLayout = {}) : args_(args), dense_(args) {}

  DG_DEVICE int num_tiles() const { return dense_.num_tiles(); }

  DG_DEVICE TileOfIds<kRows> tile(int index, int num_tiles) const {
    TileOfIds<kRows> tile{{dense_.tile(index, num_tiles)}, {}, {}, false};
    const int existing = min(tile.stored_rows, kRows);
    const Buffer ids{args_.grouped_layout + tile.m, existing * static_cast<unsigned>(sizeof(int))};
    tile.group = -1;
    tile.rows = 0;
    int num_members = 0;
    int num_known = 0;  // members and padding
#pragma unroll
    for (int word = 0; word < ceil_div(kRows, kWaveSize); ++word) {
      const int row = word * kWaveSize + lane_id();
      const int id = ids.load<int>(row * sizeof(int));
      const bool exists = row < existing;
      const uint64_t named = ballot(exists && id >= 0 && id < args_.num_groups);
      if (tile.group < 0 && named) tile.group = read_lane(id, lowest_bit(named));
      const uint64_t members = ballot(exists && id >= 0 && id == tile.group);
      if (members) tile.rows = word * kWaveSize + highest_bit(members) + 1;
      tile.members.words[word] = members;
      const uint64_t padding = ballot(exists && id < 0);
      tile.padding.words[word] = padding;
      num_members += count_bits(members);
      num_known += count_bits(members | padding);
    }
    tile.has_members_first = num_members == tile.rows && num_known == existing;
    tile.group = tile.rows > 0 ? tile.group : 0;
    return tile;
  }

 private:
  const GemmArguments& args_;
  Dense dense_;
};

// A group's rows. Those from `end` to `padded_end` are padding that becomes zero.
struct RowRange {
  int begin, end, padded_end;
};

// Each group has m rows; grouped_layout [num_groups] has the number of rows that count. Others aren't read or written.
struct MaskedRows {
  static int64_t max_tile_rows(const GemmArguments& args, int block_m) {
    return static_cast<int64_t>(args.num_groups) * ceil_div(args.m, block_m);
  }

  using OfLayout = int;
  static DG_DEVICE OfLayout load(const Buffer& layout, int group) { return layout.load<int>(group * sizeof(int)); }
  static DG_DEVICE OfLayout load_after(OfLayout, const Buffer& layout, int group) { return load(layout, group); }

  static DG_DEVICE RowRange of_group(const GemmArguments& args, OfLayout named) {
    const int rows = min(max(named, 0), args.m);
    return {0, rows, rows};
  }
};

// The rows of groups follow one another; grouped_layout [num_groups] has the end of each group, and the next group
// starts at the next multiple of the alignment.
struct PsumRows {
  static int64_t max_tile_rows(const GemmArguments& args, int block_m) {
    return static_cast<int64_t>(args.num_groups) + ceil_div(args.m, block_m);
  }

  struct OfLayout {
    int end_before, end;
  };
  static DG_DEVICE OfLayout load(const Buffer& layout, int group) {
    return {layout.load<int>(group > 0 ? (group - 1) * sizeof(int) : kOutOfBounds),
            layout.load<int>(group * sizeof(int))};
  }
  static DG_DEVICE OfLayout load_after(const OfLayout& before, const Buffer& layout, int group) {
    return {before.end, layout.load<int>(group * sizeof(int))};
  }

  static DG_DEVICE RowRange of_group(const GemmArguments& args, OfLayout named) {
    const int begin = aligned(named.end_before, args);
    const int end = min(max(named.end, begin), args.m);
    return {begin, end, args.write_padding ? aligned(end, args) : end};
  }

 private:
  static DG_DEVICE int aligned(int row, const GemmArguments& args) {
    const int within = min(max(row, 0), args.m);
    if (args.alignment == 1) return within;  // saves a division, which is slow
    const int last = within % args.alignment;
    return last == 0 ? within : min(args.m - within, args.alignment - last) + within;
  }
};

// Groups with as many tiles as their rows need. A tile's group is found by a prefix sum over the lanes' groups. Where
// there are more groups than lanes, a lane has several, and those of the lane that is found are dealt to all lanes.
template <class Rows, class Shape_, class Order, int kBand>
class RaggedTiles {
  // Groups that a lane handles. One with large tiles: they take so long that finding them doesn't matter, and leave no
  // SGPRs for more.
  static constexpr int kMostOfLane = Shape_::kBlockM <= 32 ? 8 : 1;

 public:
  using Shape = Shape_;
  static constexpr bool kReadsLayout = true;
  static int64_t max_tiles(const GemmArguments& args) {
    return Rows::max_tile_rows(args, Shape::kBlockM) * ceil_div(args.n, Shape::kOutputN);
  }

  // The layout of the first group of each lane.
  template <class Arguments>
  static DG_DEVICE typename Rows::OfLayout load_layout(const Arguments& args) {
    return Rows::load(layout_of_groups(args), lane_id() * groups_of_lane(args));
  }

  DG_DEVICE RaggedTiles(const GemmArguments& args, typename Rows::OfLayout of_first_groups)
      : args_(args),
        tiles_n_(ceil_div(args.n, Shape::kOutputN)),
        of_lane_(groups_of_lane(args)),
        first_groups_(groups_from(0, of_lane_, of_first_groups)) {}

  DG_DEVICE int num_tiles() const {
    int tile_rows = last(first_groups_.tiles_up_to);
    for (int first = kWaveSize * of_lane_; first < args_.num_groups; first += kWaveSize * of_lane_) {
      tile_rows += last(groups_from(first, of_lane_).tiles_up_to);
    }
    return tile_rows * tiles_n_;
  }

  DG_DEVICE TileWithTail tile(int index, int num_tiles) const {
    int position = Order::position(index, num_tiles);
    int first = 0;
    Groups groups = first_groups_;
    while (position >= last(groups.tiles_up_to) * tiles_n_) {
      position -= last(groups.tiles_up_to) * tiles_n_;
      first += kWaveSize * of_lane_;
      groups = groups_from(first, of_lane_);
    }
    int lane = take_lane(groups, position);
    if (of_lane_ > 1) {
      first += lane * of_lane_;
      groups = groups_from(first, 1);
      lane = take_lane(groups, position);
    }
    const int tiles_m = read_lane(groups.tiles, lane);
    const TileIndex tile = grouped_tile(position, tiles_m, tiles_n_, kBand, args_.band_reciprocal);
    const int m = read_lane(groups.rows.begin, lane) + uniform(tile.m) * Shape::kBlockM;
    return {{first + lane, m, uniform(tile.n) * Shape::kOutputN, read_lane(groups.rows.end, lane) - m,
             read_lane(groups.rows.padded_end, lane) - m}};
  }

 private:
  // The groups of a lane: the rows of the first one, the tile rows of all, and those of all lanes up to it.
  struct Groups {
    RowRange rows;
    int tiles, tiles_up_to;
  };

  template <class Arguments>
  static DG_DEVICE int groups_of_lane(const Arguments& args) {
    return kMostOfLane > 1 ? min(ceil_div(args.num_groups, kWaveSize), kMostOfLane) : 1;
  }

  static DG_DEVICE int last(int value) { return read_lane(value, kWaveSize - 1); }

  DG_DEVICE Groups groups_from(int first, int of_lane) const {
    return groups_from(first, of_lane, Rows::load(layout_of_groups(args_), first + lane_id() * of_lane));
  }

  DG_DEVICE Groups groups_from(int first, int of_lane, typename Rows::OfLayout of_first) const {
    const int group = first + lane_id() * of_lane;
    typename Rows::OfLayout of_groups[kMostOfLane] = {of_first};
    static_for<kMostOfLane - 1>([&](auto i) {
      if (i + 1 >= of_lane) return;
      of_groups[i + 1] = Rows::load_after(of_groups[i], layout_of_groups(args_), group + i + 1);
    });
    const RowRange rows = Rows::of_group(args_, of_first);
    int tiles = tile_rows(group, rows);
    static_for<kMostOfLane - 1>([&](auto i) {
      if (i + 1 < of_lane) tiles += tile_rows(group + i + 1, Rows::of_group(args_, of_groups[i + 1]));
    });
    return {rows, tiles, inclusive_sum(tiles)};
  }

  DG_DEVICE int tile_rows(int group, const RowRange& rows) const {
    return group < args_.num_groups ? ceil_div(rows.padded_end - rows.begin, Shape::kBlockM) : 0;
  }

  // The lane in whose groups a position is, which is counted from their first tile afterwards.
  DG_DEVICE int take_lane(const Groups& groups, int& position) const {
    const int lane = lowest_bit(ballot(groups.tiles_up_to * tiles_n_ > position));
    position -= read_lane(groups.tiles_up_to - groups.tiles, lane) * tiles_n_;
    return lane;
  }

  const GemmArguments& args_;
  int tiles_n_;
  int of_lane_;
  Groups first_groups_;
};

// Groups of the same size.
template <class Shape, class Order, int kBand>
class BatchedTiles : public TilesWithoutLayout {
  using Dense = DenseTiles<Shape, Order, kBand>;

 public:
  static constexpr bool kReadsLayout = false;
  static int64_t max_tiles(const GemmArguments& args) { return args.num_groups * Dense::max_tiles(args); }

  DG_DEVICE explicit BatchedTiles(const GemmArguments& args, NoLayout = {}) : args_(args), dense_(args) {}

  DG_DEVICE int num_tiles() const { return args_.num_groups * dense_.num_tiles(); }

  DG_DEVICE TileOfResults tile(int index, int num_tiles) const {
    const unsigned position = Order::position(index, num_tiles);
    const unsigned of_group = dense_.num_tiles();
    const int group = uniform(position / of_group);  // see tile_at()
    TileOfResults tile = dense_.tile_at(position - group * of_group);
    tile.group = group;
    return tile;
  }

 protected:
  const GemmArguments& args_;

 private:
  Dense dense_;
};

// A tile of the sum of a batch's products, over a part of the K-blocks of all groups.
struct TileOfBatch : TileOfResults {
  int first_block;
  int num_blocks;

  DG_DEVICE int group_of_operands() const { return 0; }
};

struct Share {
  int first, size;
};

// Share number `part` when `total` items are dealt evenly to `parts`.
DG_DEVICE Share share_of(unsigned total, unsigned parts, int part) {
  const int size = total / parts;
  const int left_over = total % parts;
  return {part * size + min(part, left_over), size + (part < left_over ? 1 : 0)};
}

// Split-K: part number `part` of K, whose blocks of kBlockK elements are dealt evenly to `parts`.
template <int kBlockK>
DG_DEVICE PartOfK share_of_k(const PartOfK& k, int parts, int part) {
  const Share blocks = share_of(ceil_div(k.k, kBlockK), parts, part);
  const int first_k = min(blocks.first * kBlockK, k.k);
  return {min(blocks.size * kBlockK, k.k - first_k), k.first_k + first_k, k.first_k_block + blocks.first, k.packed};
}

// A dense problem with split-K: each group stands for a part of K, and has a partial sum of its own.
template <class Element, class Shape, class Order, int kBand>
class SplitKTiles : public BatchedTiles<Shape, Order, kBand> {
  using Batched = BatchedTiles<Shape, Order, kBand>;
  using Batched::args_;
  static constexpr int kBlockK = kBlockKBytes / sizeof(Element);

 public:
  using Batched::Batched;

  DG_DEVICE TileOfK tile(int index, int num_tiles) const {
    const TileOfResults tile = Batched::tile(index, num_tiles);
    return {tile, share_of_k<kBlockK>(tile.part_of_k(args_), args_.num_groups, tile.group)};
  }
};

// A sum over a batch with split-K: all K-blocks of the batch are dealt to the groups, each with a partial sum of its
// own.
template <class Element, class Shape, class Order, int kBand>
class SummedTiles : public BatchedTiles<Shape, Order, kBand> {
  using Batched = BatchedTiles<Shape, Order, kBand>;
  using Batched::args_;
  static constexpr int kBlockK = kBlockKBytes / sizeof(Element);

 public:
  using Batched::Batched;

  DG_DEVICE TileOfBatch tile(int index, int num_tiles) const {
    const TileOfResults tile = Batched::tile(index, num_tiles);
    const Share blocks = share_of(args_.num_summed * ceil_div(args_.k, kBlockK), args_.num_groups, tile.group);
    return {tile, blocks.first, blocks.size};
  }
};

// Groups whose parts of K are one after another; grouped_layout [num_groups] has the size of each part.
template <class Shape, class Order, int kBand>
class KGroupedTiles : public TilesWithoutLayout {
  using Batched = BatchedTiles<Shape, Order, kBand>;

 public:
  static constexpr bool kReadsLayout = true;
  static int64_t max_tiles(const GemmArguments& args) { return Batched::max_tiles(args); }

  DG_DEVICE explicit KGroupedTiles(const GemmArguments& args, NoLayout = {})
      : args_(args),
        batched_(args),
        layout_(layout_of_groups(args)) {}

  DG_DEVICE int num_tiles() const { return batched_.num_tiles(); }

  DG_DEVICE TileOfK tile(int index, int num_tiles) const {
    const TileOfResults tile = batched_.tile(index, num_tiles);
    int first_k = 0;
    int first_k_block = 0;
    for (int first = 0; first < tile.group; first += kWaveSize) {
      const int other = first + lane_id();
      const int k = other < tile.group ? k_of(other) : 0;
      first_k += read_lane(inclusive_sum(k), kWaveSize - 1);
      first_k_block += read_lane(inclusive_sum(ceil_div(k, kScaleBlockK)), kWaveSize - 1);
    }
    first_k = min(first_k, args_.k);
    const int k = min(uniform(k_of(tile.group)), args_.k - first_k);
    return {tile, {k, first_k, first_k_block, true}};
  }

 private:
  DG_DEVICE int k_of(int group) const { return min(max(layout_.load<int>(group * sizeof(int)), 0), args_.k); }

  const GemmArguments& args_;
  Batched batched_;
  Buffer layout_;
};

}  // namespace deep_gemm_rocm

// The queries that a workgroup computes, and the keys that they see.
#pragma once

#include "deep_gemm_rocm/attention/attention_arguments.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/tiles/tile_scheduler.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// The tokens of one sequence: `count` of them, from index `first` of the tensor on.
struct Tokens {
  int first, count;
};

// A tile of queries of one sequence and head. first_query is counted from the sequence's first query.
struct QueryTile {
  int sequence, head, first_query;
  Tokens queries, keys;
};

// The keys from `begin` up to, not including, `end`.
struct KeyRange {
  int begin, end;
};

// The keys that each query of a sequence sees.
struct Visibility {
  int offset;  // from a query to the key that is aligned with it
  int left, right;
  int keys;

  DG_DEVICE Visibility(const AttentionArguments& args, const QueryTile& tile)
      : offset(tile.keys.count - tile.queries.count),
        left(args.window_left),
        right(args.window_right),
        keys(tile.keys.count) {}

  DG_DEVICE KeyRange of_query(int query) const {
    return {max(query + offset - left, 0), min(query + offset + right + 1, keys)};
  }
  // The keys that any of `count` queries sees, and those that all of them see.
  DG_DEVICE KeyRange of_any(int query, int count) const {
    if (count <= 0) return {0, 0};
    return {of_query(query).begin, of_query(query + count - 1).end};
  }
  DG_DEVICE KeyRange of_all(int query, int count) const {
    return {of_query(query + count - 1).begin, of_query(query).end};
  }
};

// The order in which workgroups take the tiles of all heads and sequences. Tiles with the most keys under a causal mask
// come first, so that the short ones balance the load at the end. Among tiles with equally many keys, heads that share
// keys follow each other on an XCD and share its L2.
//
// Heads of padded sequences are taken in groups, so that tiles that share keys run at about the same time. A group has
// about two tiles for each CU, enough for its short tiles to even out its long ones.
template <int kBlockQ, int kNumXcds>
class QueryTiles {
  static constexpr int kGroupTiles = 64;  // of an XCD

 public:
  static int64_t max_tiles(const AttentionArguments& args) {
    const int64_t batch = args.batch;
    const int64_t tiles = args.cu_seqlens_q ? args.tokens_q / kBlockQ + batch
                                            : ceil_div(args.tokens_q, kBlockQ) * batch;
    return tiles * args.heads;
  }

  DG_DEVICE explicit QueryTiles(const AttentionArguments& args) : args_(args) {}

  // Finds tile `index`; false if there are fewer tiles.
  DG_DEVICE bool find(int index, QueryTile& tile) const {
    return args_.cu_seqlens_q ? find_packed(index, tile) : find_padded(index, tile);
  }

 private:
  DG_DEVICE bool find_padded(int index, QueryTile& tile) const {
    const int sequence_heads = args_.batch * args_.heads;
    const int tiles = ceil_div(args_.tokens_q, kBlockQ);
    if (index >= tiles * sequence_heads) return false;
    const int group_heads = ceil_div(kGroupTiles, tiles) * kNumXcds;
    const int group = index / (group_heads * tiles);
    const int in_group = index - group * group_heads * tiles;
    const int heads = min(group_heads, sequence_heads - group * group_heads);
    const int sequence_head = group * group_heads + on_one_xcd(in_group % heads, heads);
    tile = {sequence_head / args_.heads,
            sequence_head % args_.heads,
            (tiles - 1 - in_group / heads) * kBlockQ,
            {0, args_.tokens_q},
            keys_of(sequence_head / args_.heads)};
    return true;
  }

  // Packed sequences differ in their number of tiles. A prefix sum over 64 sequences at a time finds a tile's sequence.
  DG_DEVICE bool find_packed(int index, QueryTile& tile) const {
    const int wanted = index / args_.heads;
    for (int first = 0, before = 0; first < args_.batch; first += kWaveSize) {
      const int tiles = tiles_of_sequence(first + lane_id());
      const int up_to = before + inclusive_sum(tiles);
      if (const uint64_t behind = ballot(up_to > wanted)) {
        const int lane = lowest_bit(behind);
        const int after = read_lane(up_to, lane) - 1 - wanted;
        const int sequence = first + lane;
        tile = {sequence, on_one_xcd(index % args_.heads, args_.heads), after * kBlockQ,
                uniform(tokens(args_.cu_seqlens_q, sequence, args_.tokens_q)),
                keys_of(sequence)};
        return true;
      }
      before = read_lane(up_to, kWaveSize - 1);
    }
    return false;
  }

  DG_DEVICE Tokens keys_of(int sequence) const {
    if (args_.block_table != nullptr) {
      const Buffer lengths{args_.context_lens, args_.batch * static_cast<unsigned>(sizeof(int))};
      return uniform({0, min(max(lengths.load<int>(sequence * sizeof(int)), 0), args_.tokens_k)});
    }
    if (args_.cu_seqlens_k == nullptr) return {0, args_.tokens_k};
    return uniform(tokens(args_.cu_seqlens_k, sequence, args_.tokens_k));
  }

  static DG_DEVICE int on_one_xcd(int head, int heads) {
    return xcd_contiguous<kNumXcds>(head, heads, max(heads / kNumXcds, 1));
  }

  static DG_DEVICE Tokens uniform(const Tokens& tokens) {
    return {deep_gemm_rocm::uniform(tokens.first), deep_gemm_rocm::uniform(tokens.count)};
  }

  DG_DEVICE int tiles_of_sequence(int sequence) const {
    return sequence < args_.batch ? ceil_div(tokens(args_.cu_seqlens_q, sequence, args_.tokens_q).count, kBlockQ) : 0;
  }

  // A sequence's tokens, clamped to the tensor, whatever cu_seqlens holds.
  DG_DEVICE Tokens tokens(const int* cu_seqlens, int sequence, int all) const {
    const Buffer ends{cu_seqlens, (args_.batch + 1) * static_cast<unsigned>(sizeof(int))};
    const int begin = min(max(ends.load<int>(sequence * sizeof(int)), 0), all);
    const int end = min(ends.load<int>((sequence + 1) * sizeof(int)), all);
    return {begin, max(end - begin, 0)};
  }

  const AttentionArguments& args_;
};

}  // namespace deep_gemm_rocm

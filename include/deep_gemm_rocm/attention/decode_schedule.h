// Which keys a workgroup of a decode kernel works on (split-K over the keys). There are two ways to deal them:
//
// With num_splits > 0, each sequence's keys are split into num_splits equal parts, so that a sequence's result doesn't
// depend on the other sequences. If split_keys > 0, sequences whose parts would have fewer keys than that get fewer
// parts.
//
// With num_splits = 0, the blocks of keys of all sequences and heads are laid end to end on a line, and the line is cut
// into pieces of equal length, one for each workgroup. So all workgroups have equal work, however long the sequences
// are. A piece may have the end of one sequence and the beginning of the next.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/attention/decode_arguments.h"
#include "deep_gemm_rocm/attention/paged_cache.h"
#include "deep_gemm_rocm/tiles/tile_scheduler.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Some blocks of keys of one sequence and head, and the queries that see them.
struct DecodeTile {
  int sequence, kv_head, first_row;
  int tokens;              // of the sequence
  int begin, end;          // blocks of keys
  bool is_first, is_last;  // among the tiles of its sequence and head; if both, the tile's result is the output
  int part;                // otherwise, the number of its partial result

  DG_DEVICE bool has_all_blocks() const { return is_first && is_last; }
};

template <class Shape, int kNumXcds>
class DecodeSchedule {
  // Blocks that are added to each sequence's length on the line, to account for its prologue and epilogue. So an empty
  // sequence has a length, too, and hence a workgroup that writes its zeros.
  static constexpr int kBlocksToBegin = Shape::kBlocksToBegin;
  static_assert(kBlocksToBegin > 0);
  static constexpr int kLeastKeys = 64;  // of a piece; with fewer, combining costs more than splitting gains
  static_assert(kLeastKeys >= Shape::kBlockK, "no piece has a length of 0, which stands for an unknown one");

 public:
  // Starts the load of the sequence lengths and doesn't wait for it, so that it overlaps the loads of the arguments.
  DG_DEVICE DecodeSchedule(const FirstDecodeArguments& first, unsigned workgroup)
      : num_splits_(first.num_splits), num_pieces_(first.num_pieces), deal_reciprocal_(first.deal_reciprocal) {
    // Workgroups that read the same keys are neighbours on one XCD and share its L2.
    const unsigned row_tiles = first.row_tiles;
    const unsigned window_tiles = kNumXcds * row_tiles;
    const unsigned window = quotient(workgroup, row_tiles, first.row_tiles_reciprocal) / kNumXcds;
    const unsigned position = xcd_contiguous_in_window<kNumXcds>(workgroup - window * window_tiles, workgroup,
                                                                 row_tiles * num_pieces_, window_tiles);
    piece_ = quotient(position, row_tiles, first.row_tiles_reciprocal);
    first_row_ = (position - piece_ * row_tiles) * Shape::kRows;
    if (num_splits_ > 0) {
      // Ordered by split: the first splits of all sequences come first. The last ones, which short sequences don't
      // have, then don't delay the others.
      const unsigned sequence_heads = first.batch * first.kv_heads;
      split_ = quotient(piece_, sequence_heads, deal_reciprocal_);
      sequence_head_ = piece_ - split_ * sequence_heads;
      sequence_ = quotient(sequence_head_, first.kv_heads, first.kv_heads_reciprocal);
    }
    if constexpr (!Shape::kHasChosenTokens) {
      const Buffer lengths{first.context_lens, static_cast<unsigned>(first.batch * sizeof(int))};
      of_lane_.tokens = lengths.load<int>((num_splits_ > 0 ? sequence_ : lane_id()) * sizeof(int));
    }
  }

  // The next tile of the workgroup; false after the last one.
  DG_DEVICE bool next(DecodeTile& tile) {
    // Arguments are read again here, so that they take no registers while a tile is computed.
    const auto& args = decode_arguments();
    if (num_splits_ == 0) {
      if (piece_length_ == 0) cut_line(args);
      return next_on_line(args, tile);
    }
    if (position_ > 0) return false;
    position_ = 1;
    return find_split(args, tile);
  }

  // Stores the part's number for the combining kernel, if it is the first or last one of its sequence and head. Only
  // the decode kernel knows these numbers, once it has cut the line.
  static DG_DEVICE void store_ends(const DecodeTile& tile) {
    const auto& args = decode_arguments();
    if (args.parts == nullptr || tile.first_row > 0 || thread_id() > 0) return;
    Parts& parts = args.parts[tile.sequence * args.kv_heads + tile.kv_head];
    if (tile.is_first) parts.first = tile.part;
    if (tile.is_last) parts.last = tile.part;
  }

 private:
  struct BlockRange {
    int begin, end;
  };

  // The number of keys of a sequence; each lane may ask for another sequence.
  static DG_DEVICE int context(const DecodeArguments& args, int sequence) {
    int tokens = count(args, args.context_lens, args.sequences_of_length, args.most_tokens, sequence);
    if constexpr (Shape::kHasExtraTokens) {
      const ExtraTokens& extra = args.extra;
      tokens += count(args, extra.lengths, extra.sequences_of_length, extra.most_tokens, sequence);
    }
    return tokens;
  }

  // The same for the sequence whose length the constructor has loaded.
  DG_DEVICE int loaded_context(const DecodeArguments& args, int sequence) const {
    return Shape::kHasChosenTokens ? context(args, sequence) : existing_tokens(of_lane_.tokens, args.most_tokens);
  }

  static DG_DEVICE int count(const DecodeArguments& args, const int* lengths, int sequences_of_length, int most_tokens,
                             int sequence) {
    if (Shape::kHasChosenTokens && lengths == nullptr) return most_tokens;
    if (!Shape::kHasChosenTokens) sequences_of_length = 1;
    const unsigned entries = length_of_sequence(args.batch, sequences_of_length);
    const Buffer contexts{lengths, entries * static_cast<unsigned>(sizeof(int))};
    const int length = length_of_sequence(sequence, sequences_of_length);
    return existing_tokens(contexts.load<int>(length * sizeof(int)), most_tokens);
  }

  // The blocks of keys that any of the sequence's queries sees.
  static DG_DEVICE BlockRange blocks_seen(const DecodeArguments& args, int context) {
    const int begin = max(context - args.tokens_q - args.window_left, 0) / Shape::kBlockK;
    return {begin, max(ceil_div(context, Shape::kBlockK), begin)};
  }

  // Each lane holds one of 64 neighbouring sequences: its tokens, its length on the line for one head of keys, and where
  // that ends if the sequence of lane 0 begins at 0.
  struct SequenceOfLane {
    int tokens, length, end;
  };
  static DG_DEVICE SequenceOfLane sequence_of_lane(const DecodeArguments& args, int sequence, int tokens) {
    const BlockRange seen = blocks_seen(args, tokens);
    const int length = sequence < args.batch ? kBlocksToBegin + seen.end - seen.begin : 0;
    return {tokens, length, inclusive_sum(length)};
  }
  DG_DEVICE void know_sequences_from(const DecodeArguments& args, int first) {
    const int sequence = first + lane_id_computed_here();
    of_lane_ = sequence_of_lane(args, sequence, context(args, sequence));
  }

  // Computes the length of a piece. Afterwards of_lane_ holds the last 64 sequences.
  DG_DEVICE void cut_line(const DecodeArguments& args) {
    of_lane_ = sequence_of_lane(args, lane_id(), loaded_context(args, lane_id()));
    unsigned length = read_lane(of_lane_.end, kWaveSize - 1);
    for (int first = kWaveSize; first < args.batch; first += kWaveSize) {
      know_sequences_from(args, first);
      length += read_lane(of_lane_.end, kWaveSize - 1);
    }
    const int equal = quotient(length * args.kv_heads + num_pieces_ - 1, num_pieces_, deal_reciprocal_);
    piece_length_ = max(equal, kLeastKeys / Shape::kBlockK);
    position_ = piece_ * piece_length_;
  }

  // A sequence and its place on the line: it takes `length` for each head of keys, and its last head ends at `end`.
  struct SequenceOnLine {
    int number, tokens, length, end;
  };

  // Finds the sequence at position_: the first one that ends after it. Looks at 64 at a time; false after the last one.
  DG_DEVICE bool find_sequence(const DecodeArguments& args, SequenceOnLine& found) {
    for (; first_sequence_ < args.batch; first_sequence_ += kWaveSize) {
      if (args.batch > kWaveSize) know_sequences_from(args, first_sequence_);
      const int ends = first_position_ + of_lane_.end * args.kv_heads;
      if (const uint64_t behind = ballot(ends > position_)) {
        const int lane = lowest_bit(behind);
        found = {first_sequence_ + lane, read_lane(of_lane_.tokens, lane), read_lane(of_lane_.length, lane),
                 read_lane(ends, lane)};
        return true;
      }
      first_position_ = read_lane(ends, kWaveSize - 1);
    }
    return false;
  }

  // The tile at position_. It ends where its sequence's head of keys ends, or the workgroup's piece.
  DG_DEVICE bool next_on_line(const DecodeArguments& args, DecodeTile& tile) {
    const int end = (piece_ + 1) * piece_length_;
    SequenceOnLine sequence;
    if (position_ >= end || !find_sequence(args, sequence)) return false;
    const int sequence_begin = sequence.end - sequence.length * args.kv_heads;
    tile.sequence = sequence.number;
    tile.tokens = sequence.tokens;
    tile.kv_head = Shape::kHasOneKvHead ? 0 : uniform((position_ - sequence_begin) / sequence.length);
    tile.first_row = first_row_;
    const int head_begin = sequence_begin + tile.kv_head * sequence.length;
    const int head_end = head_begin + sequence.length;
    const int tile_end = min(end, head_end);
    const BlockRange seen = blocks_seen(args, tile.tokens);
    tile.begin = seen.begin + max(position_ - head_begin - kBlocksToBegin, 0);
    tile.end = seen.begin + max(tile_end - head_begin - kBlocksToBegin, 0);
    const int sequence_head = tile.sequence * args.kv_heads + tile.kv_head;
    // Unique: from one tile on the line to the next, the piece or the sequence_head goes up by one, or both do.
    tile.part = piece_ + sequence_head;
    tile.is_first = position_ == head_begin;
    tile.is_last = tile_end == head_end;
    position_ = tile_end;
    return true;
  }

  // The tile of the workgroup's split; false if its sequence has fewer splits.
  DG_DEVICE bool find_split(const DecodeArguments& args, DecodeTile& tile) const {
    const int part = sequence_head_ * num_splits_ + split_;
    const int tokens = uniform(loaded_context(args, sequence_));
    const BlockRange seen = blocks_seen(args, tokens);
    const int all_blocks = seen.end - seen.begin;
    int splits = num_splits_;
    if (args.split_keys > 0) {
      splits = max(min(splits, Shape::kSplitsOfFewKeys + all_blocks / (args.split_keys / Shape::kBlockK)), 1);
      if (split_ >= splits) return false;
    }
    const int blocks = all_blocks / splits;
    const int left_over = all_blocks % splits;  // the first splits have one of these each
    const auto first_of_split = [&](int split) { return seen.begin + split * blocks + min(split, left_over); };
    tile = {sequence_,
            sequence_head_ - sequence_ * args.kv_heads,
            first_row_,
            tokens,
            first_of_split(split_),
            first_of_split(split_ + 1),
            split_ == 0,
            split_ == splits - 1,
            part};
    return true;
  }

  int num_splits_, num_pieces_;
  unsigned deal_reciprocal_;
  int first_row_;
  int piece_;
  int split_ = 0, sequence_head_ = 0, sequence_ = 0;  // with num_splits
  int piece_length_ = 0;
  int position_ = 0;
  SequenceOfLane of_lane_ = {};
  int first_sequence_ = 0;  // the first of the 64 sequences among which position_ is
  int first_position_ = 0;  // where it begins on the line
};

DG_DEVICE float lse_of(float log2_sum, float lse_scale, float lse_of_none) {
  return log2_sum == -kInfinity ? lse_of_none : log2_sum * lse_scale;
}
DG_DEVICE float lse_of(const DecodeArguments& args, float log2_sum) {
  return lse_of(log2_sum, args.lse_scale, args.lse_of_none);
}

DG_DEVICE Parts parts_of(const FirstCombineArguments& first, int sequence_head) {
  if (first.fixed_parts == 0) return first.parts[sequence_head];
  const int part = sequence_head * first.fixed_parts;
  return {part, part + first.fixed_parts - 1};
}

// The row of split_out of a part's result for one of the queries that share a head of keys.
DG_DEVICE int64_t row_of_part(const DecodeArguments& args, int part, int row) {
  return static_cast<int64_t>(part) * (args.tokens_q * args.group) + row;
}

}  // namespace deep_gemm_rocm

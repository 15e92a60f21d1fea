// The keys that a workgroup of a decode kernel works on.
//
// With num_splits > 0, each sequence's keys are split into as many equal parts, so that a result depends only on its
// own sequence. If split_keys > 0, there are fewer parts where these would have fewer keys. With 0, the blocks of all
// sequences and heads of keys are one after another on a line, which is cut into pieces of the same length: all
// workgroups have equal work, however long the sequences are. A piece may have the end of one sequence and the
// beginning of the next.
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
  int tokens;           // of the sequence
  int begin, end;       // blocks
  bool has_all_blocks;  // whether its result is the output
  int part;             // else the number of its partial result
};

template <class Shape, int kNumXcds>
class DecodeSchedule {
  // Added to a sequence's blocks on the line, for the time that it takes to begin and end it. So an empty sequence has
  // a length, too, and a workgroup that writes its zeros.
  static constexpr int kBlocksToBegin = Shape::kBlocksToBegin;
  static_assert(kBlocksToBegin > 0);
  static constexpr int kLeastKeys = 64;  // of a piece; with fewer, combining parts takes longer than is gained

 public:
  DG_DEVICE DecodeSchedule(const DecodeArguments& args, int workgroup) {
    const int row_tiles = ceil_div(args.tokens_q * args.group, Shape::kRows);
    // Workgroups of the same keys follow each other on an XCD.
    const int position = xcd_contiguous<kNumXcds>(workgroup, row_tiles * args.num_pieces, row_tiles);
    first_row_ = position % row_tiles * Shape::kRows;
    piece_ = position / row_tiles;
    if (args.num_splits == 0) {
      piece_length_ = max(ceil_div(length_of_all(args), args.num_pieces), kLeastKeys / Shape::kBlockK);
      position_ = piece_ * piece_length_;
    }
  }

  // The next tile of the workgroup; false after the last one.
  DG_DEVICE bool next(DecodeTile& tile) {
    // Read again, so that they take no registers while a tile is computed.
    const auto& args = kernel_arguments<DecodeArguments>();
    if (args.num_splits == 0) return next_on_line(args, tile);
    if (position_ > 0) return false;
    position_ = 1;
    return find_split(args, tile);
  }

 private:
  struct BlockRange {
    int begin, end;
  };

  static DG_DEVICE int context(const DecodeArguments& args, int sequence) {
    const ExtraTokens& extra = args.extra;
    const int tokens = count(args, args.context_lens, args.sequences_of_length, args.most_tokens, sequence);
    if (extra.most_tokens == 0) return tokens;
    return tokens + count(args, extra.lengths, extra.sequences_of_length, extra.most_tokens, sequence);
  }

  static DG_DEVICE int count(const DecodeArguments& args, const int* lengths, int sequences_of_length, int most_tokens,
                             int sequence) {
    if (lengths == nullptr) return most_tokens;
    const unsigned entries = length_of_sequence(args.batch, sequences_of_length);
    const Buffer contexts{lengths, entries * static_cast<unsigned>(sizeof(int))};
    const int length = length_of_sequence(sequence, sequences_of_length);
    return existing_tokens(contexts.load<int>(length * sizeof(int)), most_tokens);
  }

  // The blocks that the sequence's last queries see.
  static DG_DEVICE BlockRange blocks_seen(const DecodeArguments& args, int context) {
    const int begin = max(context - args.tokens_q - args.window_left, 0) / Shape::kBlockK;
    return {begin, max(ceil_div(context, Shape::kBlockK), begin)};
  }

  // The sequence that each lane knows: its tokens, and its length on the line for one head of keys.
  struct SequenceOfLane {
    int tokens, length;
  };
  static DG_DEVICE SequenceOfLane sequence_of_lane(const DecodeArguments& args, int first_sequence) {
    const int sequence = first_sequence + lane_id();
    const int tokens = context(args, sequence);
    const BlockRange seen = blocks_seen(args, tokens);
    return {tokens, sequence < args.batch ? kBlocksToBegin + seen.end - seen.begin : 0};
  }

  // Also keeps the sequences of the lanes if they are all.
  DG_DEVICE int length_of_all(const DecodeArguments& args) {
    int length = 0;
    for (int first = 0; first < args.batch; first += kWaveSize) {
      of_lane_ = sequence_of_lane(args, first);
      length += of_lane_.length;
    }
    return read_lane(inclusive_sum(length), kWaveSize - 1) * args.kv_heads;
  }

  // A sequence, and where it is on the line: `length` for each head of keys, up to `end`.
  struct SequenceOnLine {
    int number, tokens, length, end;
  };

  // Finds the first sequence that ends after the position, 64 at a time; false after the last one.
  DG_DEVICE bool find_sequence(const DecodeArguments& args, SequenceOnLine& found) {
    for (; first_sequence_ < args.batch; first_sequence_ += kWaveSize) {
      if (args.batch > kWaveSize) of_lane_ = sequence_of_lane(args, first_sequence_);
      const int ends = first_position_ + inclusive_sum(of_lane_.length * args.kv_heads);
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

  // The tile at the position: up to the end of its sequence's head of keys, or of the workgroup's piece.
  DG_DEVICE bool next_on_line(const DecodeArguments& args, DecodeTile& tile) {
    const int end = (piece_ + 1) * piece_length_;
    SequenceOnLine sequence;
    if (position_ >= end || !find_sequence(args, sequence)) return false;
    const int sequence_begin = sequence.end - sequence.length * args.kv_heads;
    tile.sequence = sequence.number;
    tile.tokens = sequence.tokens;
    tile.kv_head = uniform((position_ - sequence_begin) / sequence.length);
    tile.first_row = first_row_;
    const int head_begin = sequence_begin + tile.kv_head * sequence.length;
    const int head_end = head_begin + sequence.length;
    const int tile_end = min(end, head_end);
    const BlockRange seen = blocks_seen(args, tile.tokens);
    tile.begin = seen.begin + max(position_ - head_begin - kBlocksToBegin, 0);
    tile.end = seen.begin + max(tile_end - head_begin - kBlocksToBegin, 0);
    const int sequence_head = tile.sequence * args.kv_heads + tile.kv_head;
    // Unique: from one tile to the next either the piece or the sequence and head goes up by one.
    tile.part = piece_ + sequence_head;
    tile.has_all_blocks = position_ == head_begin && tile_end == head_end;
    if (position_ == head_begin && first_row_ == 0 && thread_id() == 0) {
      const int last_piece = (head_end - 1) / piece_length_;
      args.parts[sequence_head] = {tile.part, last_piece - piece_ + 1};
    }
    position_ = tile_end;
    return true;
  }

  // The tile of the workgroup's split; false if its sequence has fewer splits.
  DG_DEVICE bool find_split(const DecodeArguments& args, DecodeTile& tile) const {
    // The first splits of all sequences come first, so that those which only some have don't keep others waiting.
    const int sequence_heads = args.batch * args.kv_heads;
    const int split = piece_ / sequence_heads;
    const int sequence_head = piece_ - split * sequence_heads;
    const int part = sequence_head * args.num_splits + split;
    const int sequence = sequence_head / args.kv_heads;
    const int tokens = uniform(context(args, sequence));
    const BlockRange seen = blocks_seen(args, tokens);
    const int all_blocks = seen.end - seen.begin;
    int splits = args.num_splits;
    if (args.split_keys > 0) {
      splits = max(min(splits, Shape::kSplitsOfFewKeys + all_blocks / (args.split_keys / Shape::kBlockK)), 1);
      if (split >= splits) return false;
      if (split == 0 && first_row_ == 0 && thread_id() == 0) args.parts[sequence_head] = {part, splits};
    }
    const int blocks = all_blocks / splits;
    const int left_over = all_blocks % splits;  // the first splits have one of these each
    const auto first_of_split = [&](int split) { return seen.begin + split * blocks + min(split, left_over); };
    tile = {sequence,
            sequence_head % args.kv_heads,
            first_row_,
            tokens,
            first_of_split(split),
            first_of_split(split + 1),
            splits == 1,
            part};
    return true;
  }

  int first_row_;
  int piece_;
  int piece_length_ = 0;
  int position_ = 0;
  SequenceOfLane of_lane_ = {};
  int first_sequence_ = 0;  // of the 64 sequences in which the position is
  int first_position_ = 0;  // where they begin
};

DG_DEVICE float lse_of(float log2_sum, float lse_scale, float lse_of_none) {
  return log2_sum == -kInfinity ? lse_of_none : log2_sum * lse_scale;
}
DG_DEVICE float lse_of(const DecodeArguments& args, float log2_sum) {
  return lse_of(log2_sum, args.lse_scale, args.lse_of_none);
}

DG_DEVICE Parts parts_of(const DecodeArguments& args, int sequence_head) {
  if (args.num_splits > 0 && args.split_keys == 0) return {sequence_head * args.num_splits, args.num_splits};
  return args.parts[sequence_head];
}

// The row of split_out of a part's result for one of the queries that share a head of keys.
DG_DEVICE int64_t row_of_part(const DecodeArguments& args, int part, int row) {
  return static_cast<int64_t>(part) * (args.tokens_q * args.group) + row;
}

}  // namespace deep_gemm_rocm

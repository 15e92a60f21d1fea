// Which keys a workgroup of a decode kernel works on.
//
// Either each sequence's keys are split into `num_splits` equal parts, so that a result depends on nothing but its own
// sequence. Or, if that is 0, the blocks of all sequences and heads of keys lie behind one another on a line, which is
// cut into pieces of the same length: all workgroups have as much to do, however long the sequences are. A piece may
// then hold the end of one sequence and the beginning of the next one.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/decode_arguments.h"
#include "deep_gemm_rocm/paged_cache.h"
#include "deep_gemm_rocm/tile_scheduler.h"
#include "deep_gemm_rocm/wave.h"

namespace deep_gemm_rocm {

// Some blocks of keys of one sequence and head, and the queries that see them.
struct DecodeTile {
  int sequence, kv_head, first_row;
  int begin, end;       // blocks
  bool has_all_blocks;  // then what it computes is the output
  int part;             // else where it goes among the parts that are put together afterwards
};

template <class Shape, int kNumXcds>
class DecodeSchedule {
  // A sequence's length on the line is that of its blocks and this, for what it takes to begin and end it. Hence an
  // empty one has a length, too, and someone who writes zeros for it.
  static constexpr int kBlocksToBegin = Shape::kBlocksToBegin;
  static_assert(kBlocksToBegin > 0);
  static constexpr int kLeastKeys = 128;  // of a piece: fewer are not worth what it takes to put parts together

 public:
  DG_DEVICE DecodeSchedule(const DecodeArguments& args, int workgroup) {
    const int row_tiles = ceil_div(args.tokens_q * (args.heads / args.kv_heads), Shape::kRows);
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
    // Read again, so that a workgroup doesn't keep in registers all along what is only needed here.
    const auto& args = kernel_arguments<DecodeArguments>();
    if (args.num_splits > 0) {
      if (position_ > 0) return false;
      position_ = 1;
      tile = tile_of_split(args);
      return true;
    }
    const int end = (piece_ + 1) * piece_length_;
    if (position_ >= end) return false;
    // Of 64 sequences at a time, the first one that ends behind the position.
    uint64_t behind = 0;
    int length = 0;
    int ends = 0;
    for (; first_sequence_ < args.batch; first_sequence_ += kWaveSize) {
      length = length_of_lane(args, first_sequence_);
      ends = first_position_ + inclusive_sum(length * args.kv_heads);
      behind = ballot(ends > position_);
      if (behind != 0) break;
      first_position_ = read_lane(ends, kWaveSize - 1);
    }
    if (behind == 0) return false;
    const int lane = lowest_bit(behind);
    tile.sequence = first_sequence_ + lane;
    tile.first_row = first_row_;
    length = read_lane(length, lane);
    const int sequence_begin = read_lane(ends, lane) - length * args.kv_heads;
    tile.kv_head = uniform((position_ - sequence_begin) / length);
    const int head_begin = sequence_begin + tile.kv_head * length;
    const int head_end = head_begin + length;
    const int tile_end = min(end, head_end);
    const BlockRange seen = blocks_seen(args, context(args, tile.sequence));
    tile.begin = seen.begin + max(position_ - head_begin - kBlocksToBegin, 0);
    tile.end = seen.begin + max(tile_end - head_begin - kBlocksToBegin, 0);
    const int sequence_head = tile.sequence * args.kv_heads + tile.kv_head;
    // From one tile to the next either the piece or the sequence and head is another one.
    tile.part = piece_ + sequence_head;
    tile.has_all_blocks = position_ == head_begin && tile_end == head_end;
    if (position_ == head_begin && first_row_ == 0 && thread_id() == 0) {
      const int last_piece = (head_end - 1) / piece_length_;
      args.parts[sequence_head] = {tile.part, last_piece - piece_ + 1};
    }
    position_ = tile_end;
    return true;
  }

 private:
  struct BlockRange {
    int begin, end;
  };

  static DG_DEVICE int context(const DecodeArguments& args, int sequence) {
    const Buffer contexts{args.context_lens, args.batch * static_cast<unsigned>(sizeof(int))};
    return existing_tokens(args, contexts.load<int>(sequence * sizeof(int)));
  }

  // That the sequence's last queries see.
  static DG_DEVICE BlockRange blocks_seen(const DecodeArguments& args, int context) {
    const int begin = max(context - args.tokens_q - args.window_left, 0) / Shape::kBlockK;
    return {begin, max(ceil_div(context, Shape::kBlockK), begin)};
  }

  // On the line, of one head of a lane's own sequence.
  static DG_DEVICE int length_of_lane(const DecodeArguments& args, int first_sequence) {
    const int sequence = first_sequence + lane_id();
    const BlockRange seen = blocks_seen(args, context(args, sequence));
    return sequence < args.batch ? kBlocksToBegin + seen.end - seen.begin : 0;
  }

  static DG_DEVICE int length_of_all(const DecodeArguments& args) {
    int length = 0;
    for (int first = 0; first < args.batch; first += kWaveSize) length += length_of_lane(args, first);
    return read_lane(inclusive_sum(length), kWaveSize - 1) * args.kv_heads;
  }

  DG_DEVICE DecodeTile tile_of_split(const DecodeArguments& args) const {
    const int sequence_head = piece_ / args.num_splits;
    const int split = piece_ % args.num_splits;
    const int sequence = sequence_head / args.kv_heads;
    const BlockRange seen = blocks_seen(args, uniform(context(args, sequence)));
    const int blocks = (seen.end - seen.begin) / args.num_splits;
    const int left_over = (seen.end - seen.begin) % args.num_splits;  // the first splits have one of these each
    const auto first_of_split = [&](int split) { return seen.begin + split * blocks + min(split, left_over); };
    return {sequence, sequence_head % args.kv_heads, first_row_, first_of_split(split), first_of_split(split + 1),
            args.num_splits == 1, piece_};
  }

  int first_row_;
  int piece_;
  int piece_length_ = 0;
  int position_ = 0;
  int first_sequence_ = 0;  // of the 64 in which the position is, and where they begin
  int first_position_ = 0;
};

DG_DEVICE Parts parts_of(const DecodeArguments& args, int sequence_head) {
  if (args.num_splits > 0) return {sequence_head * args.num_splits, args.num_splits};
  return args.parts[sequence_head];
}

// Where a part's result for one of the queries that share a head of keys is, in rows of split_out.
DG_DEVICE int64_t row_of_part(const DecodeArguments& args, int part, int row) {
  return static_cast<int64_t>(part) * (args.tokens_q * (args.heads / args.kv_heads)) + row;
}

}  // namespace deep_gemm_rocm

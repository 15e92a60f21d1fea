// Loads the scales of A's rows into the lanes that hold these rows' sums.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"

namespace deep_gemm_rocm {

// Scales, one for each K-block and row (or 128 rows), or for each of a K-block's groups. Strides are in elements and
// may have any order.
template <class T>
struct ScaleTileOf {
  const T* first_row;
  int64_t row_stride;
  int64_t k_block_stride;
  int64_t part_stride;   // from one part of the operand to the next, see activation.h
  int first_column = 0;  // where the wave's columns begin among those that share the first row of scales
  const int* row_indices = nullptr;  // for gathered rows, each row's place after the first
  int k_blocks_before = 0;  // of other tiles, with the same scales as the first one of this tile

  // Byte offset of a row's scale, out of bounds unless the row is one of `rows`.
  DG_DEVICE unsigned row_offset(int row, int rows) const {
    return row < rows ? row * static_cast<unsigned>(row_stride) * sizeof(T) : kOutOfBounds;
  }

  // The same for gathered rows.
  DG_DEVICE unsigned gathered_row_offset(int row, int rows) const {
    const Buffer indices{row_indices, rows * static_cast<unsigned>(sizeof(int))};
    const int in_memory = indices.load<int>(row * static_cast<unsigned>(sizeof(int)));
    return row < rows ? in_memory * static_cast<unsigned>(row_stride) * sizeof(T) : kOutOfBounds;
  }

  // Byte offsets of the scales of the rows that a lane holds.
  template <class Shape, bool kGathers>
  DG_DEVICE void find_rows(unsigned (&offsets)[Shape::kFragsM], int rows) const {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane_id(), i);
      offsets[i] = kGathers ? gathered_row_offset(row, rows) : row_offset(row, rows);
    }
  }
};
using ScaleTile = ScaleTileOf<float>;

// Scales that are loaded from memory into registers: one for each of the lane's rows and each K-block in flight.
template <class Shape, int kRegisterStages, bool kGathers>
class RowScales {
 public:
  static constexpr bool kRowsVary = kGathers;  // from tile to tile

  DG_DEVICE void begin(const ScaleTile& tile, int rows) { tile.find_rows<Shape, kGathers>(offset_, rows); }

  // Starts the loads of a K-block, which `buffer` begins with.
  DG_DEVICE void load(int stage, const Buffer& buffer) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) staged_[stage][i] = buffer.load<float>(offset_[i]);
  }

  DG_DEVICE float of_row(int stage, int i) const { return staged_[stage][i]; }

 private:
  unsigned offset_[Shape::kFragsM];
  float staged_[kRegisterStages][Shape::kFragsM];
};

// For an A without scales.
struct RowsWithoutScales {
  static constexpr bool kRowsVary = false;
  DG_DEVICE void begin(const ScaleTile&, int) {}
  DG_DEVICE void load(int, const Buffer&) {}
  DG_DEVICE float of_row(int, int) const { return 1; }
};

// Scales that go through LDS, a chunk of 16 K-blocks at a time, for waves that don't use LDS for their operands.
//
// If a row's scales are contiguous, neighbouring K-blocks have theirs in one cache line, which vector L1 has evicted
// before the next K-block loads from it. So a line is loaded only once: each lane group loads a row's scales of four
// K-blocks of the chunk. While a wave multiplies a chunk, each turn of its K loop brings another part of the next chunk
// into LDS.
template <class Shape, int kTurn, bool kGathers>
class RowScalesInLds {
  using Mfma = typename Shape::Mfma;
  static constexpr int kOfLane = 4;  // K-blocks
  using Scales = Vector<float, kOfLane>;
  static constexpr int kChunk = kOfLane * Mfma::kLaneGroups;  // K-blocks
  static_assert(2 * kTurn <= kChunk, "a chunk has a turn that loads, and one that doesn't");
  // All turns but the last of a chunk may load. What they loaded is in LDS before the next chunk's scales are read.
  static constexpr int kFragsPerTurn = ceil_div(Shape::kFragsM, kChunk / kTurn - 1);
  static constexpr int kLoadingTurns = ceil_div(Shape::kFragsM, kFragsPerTurn);

 public:
  static constexpr bool kRowsVary = kGathers;

  DG_DEVICE void begin(const ScaleTile& tile, int rows) {
    tile.find_rows<Shape, kGathers>(offset_, rows);
    rows_ = min(rows, Shape::kBlockM);
    const unsigned first = first_of_lane() * static_cast<unsigned>(tile.k_block_stride) * sizeof(float);
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) offset_[i] += first;
  }

  // Starts the loads of a tile's first chunk.
  DG_DEVICE void load_first(const ScaleTile& tile, int num_k_blocks) {
    tile_ = tile;
    num_k_blocks_ = left_k_blocks_ = num_k_blocks;
    load_chunk(first_, offset_);
    next_chunk();
  }

  // Stores it into the wave's part of LDS, and reads the first K-block's scales.
  DG_DEVICE void store_first(uint8_t* lds) {
    lds_ = reinterpret_cast<float*>(lds);
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) store(i, 0, first_[i]);
    read(0);
  }

  // Before and after a turn of the K loop that begins with `k_block`.
  DG_DEVICE void load_in_turn(int k_block) {
    const int turn = static_cast<unsigned>(k_block) % kChunk / kTurn;
    first_in_turn_ = left_k_blocks_ > 0 && turn < kLoadingTurns ? turn * kFragsPerTurn : kNone;
    if (first_in_turn_ == kNone) return;
    unsigned offsets[kFragsPerTurn];
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      unsigned offset = offset_[i];
      asm volatile("" : "+v"(offset));  // otherwise the compiler indexes the offsets, and keeps them in scratch memory
      if (i / kFragsPerTurn <= turn) offsets[i % kFragsPerTurn] = offset;
    }
    load_chunk(in_turn_, offsets);
  }
  DG_DEVICE void store_in_turn(int k_block) {
    if (first_in_turn_ == kNone) return;
#pragma unroll
    for (int i = 0; i < kFragsPerTurn; ++i) {
      const int fragment = first_in_turn_ + i;
      const bool exists = Shape::kFragsM % kFragsPerTurn == 0 || fragment < Shape::kFragsM;
      if (exists) store(fragment, k_block / kChunk + 1, in_turn_[i]);
    }
    if (first_in_turn_ == (kLoadingTurns - 1) * kFragsPerTurn) next_chunk();
  }

  // Starts to read the scales of a K-block; after the last one, those of the last one again.
  DG_DEVICE void read(int k_block) {
    const unsigned k = min(k_block, num_k_blocks_ - 1);
    const float* const first = lds_ + k % (2 * kChunk) * Mfma::kRows + lane_id() % Mfma::kRows;
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) read_[i] = first[i * kFragmentSize];
  }

  DG_DEVICE void load(int, const Buffer&) {}
  DG_DEVICE float of_row(int, int i) const { return read_[i]; }

 private:
  static constexpr int kNone = -1;
  static constexpr int kFragmentSize = 2 * kChunk * Mfma::kRows;  // LDS has [fragment][two chunks' K-blocks][row]
  static_assert(Shape::kFragsM * kFragmentSize * int{sizeof(float)} <= Shape::kLdsBytesOfWave);

  static DG_DEVICE int first_of_lane() { return lane_id() / Mfma::kRows * kOfLane; }  // of a chunk's K-blocks

  DG_DEVICE void store(int fragment, unsigned chunk, const Scales& scales) const {
    float* const first = lds_ + fragment * kFragmentSize + chunk % 2 * kChunk * Mfma::kRows;
#pragma unroll
    for (int k = 0; k < kOfLane; ++k) {
      first[(first_of_lane() + k) * Mfma::kRows + lane_id() % Mfma::kRows] = scales[k];
    }
  }

  DG_DEVICE void next_chunk() {
    tile_.first_row += kChunk * tile_.k_block_stride;
    left_k_blocks_ -= kChunk;
  }

  // Loads scales of the next chunk from the lanes' offsets in it.
  template <int kCount>
  DG_DEVICE void load_chunk(Scales (&scales)[kCount], const unsigned (&offsets)[kCount]) const {
    if (!kGathers && tile_.k_block_stride == 1) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) scales[i] = from_k_block(0).template load<Scales>(offsets[i]);
    } else {
#pragma unroll
      for (int k = 0; k < kOfLane; ++k) {
        const Buffer buffer = from_k_block(k);
        const bool exists = !kGathers || first_of_lane() + k < left_k_blocks_;
#pragma unroll
        for (int i = 0; i < kCount; ++i) scales[i][k] = buffer.load<float>(exists ? offsets[i] : kOutOfBounds);
      }
    }
  }

  // The next chunk from a K-block on, to the last scale of the tile. Gathered rows may be anywhere.
  DG_DEVICE Buffer from_k_block(int k) const {
    const int stride = static_cast<int>(tile_.k_block_stride);
    const int last = (rows_ - 1) * static_cast<int>(tile_.row_stride) + (min(left_k_blocks_, kChunk) - 1 - k) * stride;
    const unsigned bytes = kGathers ? kOutOfBounds : max(last + 1, 0) * sizeof(float);
    return {tile_.first_row + k * tile_.k_block_stride, bytes};
  }

  ScaleTile tile_;  // from the chunk on that is loaded next
  int left_k_blocks_;
  int num_k_blocks_;
  int rows_ = 0;
  int first_in_turn_ = kNone;  // the first fragment whose scales are under way
  float* lds_;
  unsigned offset_[Shape::kFragsM];
  Scales first_[Shape::kFragsM];
  Scales in_turn_[kFragsPerTurn];
  float read_[Shape::kFragsM];
};

}  // namespace deep_gemm_rocm

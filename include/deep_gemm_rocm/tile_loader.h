// Moves one operand's tile, a K-block at a time, from global memory through registers into LDS.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/lds_layout.h"
#include "deep_gemm_rocm/wave.h"

namespace deep_gemm_rocm {

// What of a batch's K is multiplied, in K-blocks of all its groups.
struct BatchOfK {
  int64_t group_stride_bytes;
  int first_block;
  int num_blocks;
};

// A tile of an operand, read from its first row's first k on. `stride_bytes` is the distance of rows or, if these are
// contiguous, of two k; `part_bytes` that of the parts from each of which there are `rows`.
struct OperandTile {
  const uint8_t* first;
  int rows;
  int k_bytes;
  int64_t stride_bytes;
  int64_t part_bytes;
  BatchOfK batch{};  // see BatchedKLoader; `first` is in its first group
};

// How 16 bytes of LDS lie in memory: as they are,
struct AsTheyAre {
  using Loaded = Chunk;
  static DG_DEVICE Chunk chunk(const Loaded& loaded) { return loaded; }
};

// or as bf16 of which fp32 are made.
struct Widened {
  using Loaded = Vector<unsigned, 2>;
  static DG_DEVICE Chunk chunk(const Loaded& loaded) {
    constexpr unsigned kHighHalf = 0xffff0000;
    return {loaded[0] << 16, loaded[0] & kHighHalf, loaded[1] << 16, loaded[1] & kHighHalf};
  }
};

// Of an operand whose rows are contiguous along K. Rows past `rows` and what is past `k_bytes` of a row read as zeros.
// kRegisterStages K-blocks can be on their way in registers at once. Order is one of lds_layout.h. kThreads threads
// load together: thread i of the workgroup is number i % kThreads of them. LDS has room for kLdsRows; if that is for
// whole passes, what is behind the tile's rows is stored too, as zeros. kGoesOn: begin() is called again while the tile
// before is multiplied.
template <class Order, int kTileRows, int kLdsRows, int kThreads, int kRegisterStages, bool kKTail,
          bool kGoesOn = false, class Form = AsTheyAre>
class TileLoader {
  static constexpr int kRowsPerPass = rows_per_pass(kThreads);
  static_assert(kRowsPerPass % kChunksPerRow == 0, "the LDS layout must repeat from pass to pass");
  using Loaded = typename Form::Loaded;
  static constexpr int kLoadedBytes = sizeof(Loaded);

 public:
  static constexpr int kPasses = ceil_div(kTileRows, kRowsPerPass);

  // Loads kTileRows of a tile's rows, from `first_row` on, which is the same for the whole wave.
  DG_DEVICE explicit TileLoader(int first_row) : first_row_(first_row) {}

  // From here on, loads are this tile's, whose K-blocks are counted from `first_k_block` on.
  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) {
    const Buffer buffer{tile.first, buffer_bytes(tile, first_row_)};
    // Most tiles are: then they have the same rows, as strides only differ where they are K.
    const bool is_like_before = buffer.bytes == buffer_.bytes && tile.k_bytes == k_bytes_;
    buffer_ = buffer;
    k_bytes_ = tile.k_bytes;
    first_k_block_ = first_k_block;
    if (is_like_before) return;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = first_row_ + Order::of_lds_row(lds_row(pass));
      const int in_part = Order::row_in_part(row);
      offset_[pass] =
          in_part < tile.rows ? in_part * static_cast<unsigned>(tile.stride_bytes) +
                                    Order::part(row) * static_cast<unsigned>(tile.part_bytes) + chunk_k()
                              : kOutOfBounds;
    }
  }

  // Goes on to another tile of the same strides, and of no rows that the first one had not.
  DG_DEVICE void move_to(const OperandTile& tile) {
    buffer_ = Buffer{tile.first, buffer_bytes(tile, first_row_)}.only_if(tile.rows > 0);
  }

  // Starts one pass of the load of `k_block`; past the last K-block this loads zeros and costs no memory traffic.
  DG_DEVICE void load(int stage, int pass, int k_block) {
    const int first_k = (k_block - first_k_block_) * kChunksPerRow * kLoadedBytes;
    unsigned offset = offset_[pass];
    if (kKTail) offset = first_k + chunk_k() < k_bytes_ ? offset : kOutOfBounds;
    const Buffer buffer = kGoesOn ? buffer_.in_scalar_registers() : buffer_;
    staged_[stage][pass] = buffer.only_if(first_k < k_bytes_).template load<Loaded>(offset, first_k);
  }

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) const {
    if (kLdsRows % kRowsPerPass == 0 || lds_row(pass) < kTileRows) {
      uint8_t* const chunk = lds_tile + store_offset(thread()) + first_row_offset(pass * kRowsPerPass);
      *reinterpret_cast<Chunk*>(chunk) = loaded_chunk(stage, pass);
    }
  }

 protected:
  DG_DEVICE Chunk loaded_chunk(int stage, int pass) const { return Form::chunk(staged_[stage][pass]); }

  static DG_DEVICE int thread() { return thread_id() % kThreads; }
  static DG_DEVICE int lds_row(int pass) { return thread_row(thread()) + pass * kRowsPerPass; }
  static DG_DEVICE int chunk_k() { return thread_chunk(thread()) * kLoadedBytes; }

 private:
  static DG_DEVICE unsigned buffer_bytes(const OperandTile& tile, int first_row) {
    const int rows = min(tile.rows, Order::row_in_part(first_row + kTileRows - 1) + 1);
    return static_cast<unsigned>((Order::kParts - 1) * tile.part_bytes + (rows - 1) * tile.stride_bytes + tile.k_bytes);
  }

  int first_row_;
  int first_k_block_;
  int k_bytes_ = 0;
  Buffer buffer_{};
  unsigned offset_[kPasses];
  Loaded staged_[kRegisterStages][kPasses];
};

// As TileLoader, for rows of fp32 or what is made into it, of which it also adds up the squares.
template <class Order, int kTileRows, int kThreads, int kRegisterStages, bool kKTail, class Form>
class SquaringTileLoader
    : public TileLoader<Order, kTileRows, kTileRows, kThreads, kRegisterStages, kKTail, false, Form> {
  using Base = TileLoader<Order, kTileRows, kTileRows, kThreads, kRegisterStages, kKTail, false, Form>;

 public:
  DG_DEVICE explicit SquaringTileLoader(int first_row) : Base(first_row), sums_{} {}

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) {
    Base::store(stage, pass, lds_tile);
    const auto values = __builtin_bit_cast(Vector<float, 4>, Base::loaded_chunk(stage, pass));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[pass] = __builtin_fmaf(values[i], values[i], sums_[pass]);
  }

  // Stores a sum for each of `rows` rows of the tile, once all K-blocks have been stored.
  DG_DEVICE void store_sums(float* first, int rows) const {
    const Buffer buffer{first, min(rows, kTileRows) * static_cast<unsigned>(sizeof(float))};
#pragma unroll
    for (int pass = 0; pass < Base::kPasses; ++pass) {
      const float sum = sum_over_neighbours<kChunksPerRow>(sums_[pass]);
      const unsigned row = Order::of_lds_row(Base::lds_row(pass));
      buffer.store(sum, thread_chunk(Base::thread()) == 0 ? row * static_cast<unsigned>(sizeof(float)) : kOutOfBounds);
    }
  }

 private:
  float sums_[Base::kPasses];
};

}  // namespace deep_gemm_rocm

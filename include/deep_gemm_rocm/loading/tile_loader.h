// Moves one operand's tile, a K-block at a time, from global memory through registers into LDS.
#pragma once

#include "deep_gemm_rocm/arithmetic/widening.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// The part of a batch's K that a tile sums over, in K-blocks counted over all its groups.
struct BatchOfK {
  int64_t group_stride_bytes;
  int first_block;
  int num_blocks;
};

// Scales of groups of values along K, of a tile's rows.
struct GroupScales {
  const uint8_t* first;  // of the tile's first row, for the operand's first k
  unsigned row_bytes;    // from a row to the next
  unsigned step_bytes;   // from the scales of GroupScale::kStepK of K to the next
  unsigned part_bytes;   // from a part of the operand to the next
  int first_k_block;     // of the tile, from the operand's first k

  // The byte offset of a value's scale; out of bounds behind the `rows` of each part of the operand.
  template <class Order, class Stored, class Scale>
  DG_DEVICE unsigned offset(int tile_row, unsigned k, int rows) const {
    const int row = Order::row_in_part(tile_row);
    const unsigned existing = row * row_bytes + Order::part(tile_row) * part_bytes + k_offset<Stored, Scale>(k);
    return row < rows ? existing : kOutOfBounds;
  }
  template <class Stored, class Scale>
  DG_DEVICE unsigned k_offset(unsigned k) const {
    return k / Scale::kStepK * step_bytes + k % Scale::kStepK / Scale::kValues * static_cast<unsigned>(sizeof(Stored));
  }
};

// A tile of an operand in memory.
struct OperandTile {
  const uint8_t* first;  // the first row's first k; of a batch, in its first group
  int rows;              // of each part of the operand, see activation.h
  int k_bytes;
  int64_t stride_bytes;  // from a row to the next or, if rows are contiguous, from a k to the next
  int64_t part_bytes;    // from a part to the next
  BatchOfK batch{};      // for BatchedKLoader
  const int* row_indices = nullptr;  // for gathered rows, each row's place after `first`
};

// The place of a row of a tile after its first one.
template <class Order>
DG_DEVICE unsigned row_in_memory(const OperandTile& tile, int row) {
  if constexpr (!Order::kGathers) return row;
  const Buffer indices{tile.row_indices, tile.rows * static_cast<unsigned>(sizeof(int))};
  return indices.load<int>(row * static_cast<unsigned>(sizeof(int)));
}

struct TileOperands {
  OperandTile a, b;
};

// Form: LDS holds the bytes of memory as they are.
struct AsTheyAre {
  static constexpr int kBytes = kChunkBytes;  // of memory for a chunk
  static constexpr int kChunks = 1;           // that a thread loads at once
  using Loaded = Chunk;
  static DG_DEVICE Chunk chunk(const Loaded& loaded) { return loaded; }
};

// Form: bf16 in memory is widened to fp32 in LDS.
struct Widened {
  static constexpr int kChunks = 1;
  using Loaded = Vector<unsigned, 2>;
  static DG_DEVICE Chunk chunk(const Loaded& loaded) {
    constexpr unsigned kHighHalf = 0xffff0000;
    return {loaded[0] << 16, loaded[0] & kHighHalf, loaded[1] << 16, loaded[1] & kHighHalf};
  }
};

// Form: FP8 in memory is widened to bf16 in LDS.
struct WidenedFp8 {
  static constexpr int kChunks = 1;
  using Loaded = HalfChunk;
  static DG_DEVICE Chunk chunk(const Loaded& loaded) { return widened_bf16(loaded); }
};

// Loads an operand that is contiguous along K. Rows past `rows`, and bytes past `k_bytes` of a row, read as zeros.
//   Order: the order of rows in LDS, see lds_layout.h.
//   kLdsRows: rows that LDS has room for. If these are whole passes, rows after the tile's are stored too, as zeros.
//   kThreads: threads that load together. Thread i of the workgroup is number i % kThreads of them.
//   kRegisterStages: K-blocks that can be in flight to registers at once.
//   kGoesOn: whether begin() is called for the next tile while the tile before is still multiplied.
//   Form: how values are converted on their way to LDS.
//   kKOrder: how its K-blocks will be read, see lds_layout.h.
template <class Order_, int kTileRows, int kLdsRows, int kThreads, int kRegisterStages_, bool kKTail_,
          bool kGoesOn_ = false, class Form_ = AsTheyAre, KOrder kKOrder = KOrder::kSpread>
class TileLoader {
 public:
  using Order = Order_;
  using Form = Form_;
  static constexpr int kRegisterStages = kRegisterStages_;
  static constexpr bool kKTail = kKTail_;
  static constexpr bool kGoesOn = kGoesOn_;

 private:
  static constexpr int kRowsPerPass = rows_per_pass(kThreads, Form::kChunks);
  static_assert(kRowsPerPass % kChunksPerRow == 0, "the LDS layout must repeat from pass to pass");
  using Loaded = typename Form::Loaded;
  static constexpr int kLoadedBytes = sizeof(Loaded);

 public:
  static constexpr int kPasses = ceil_div(kTileRows, kRowsPerPass);
  static constexpr int kStoreSteps = 1;

  // Loads kTileRows of a tile's rows, from `first_row` on, which is uniform.
  DG_DEVICE explicit TileLoader(int first_row) : first_row_(first_row) {}

  // Switches to another tile, whose K-blocks are counted from `first_k_block` on.
  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) {
    const Buffer buffer{tile.first, buffer_bytes(tile, first_row_)};
    // True for most tiles. Their offsets are the same, for strides only differ where they are K.
    const bool is_like_before = buffer.bytes == buffer_.bytes && tile.k_bytes == k_bytes_;
    buffer_ = buffer;
    k_bytes_ = tile.k_bytes;
    first_k_block_ = first_k_block;
    if (!Order::kGathers && is_like_before) return;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = first_row_ + Order::of_lds_row(lds_row(pass));
      const int in_part = Order::row_in_part(row);
      offset_[pass] =
          in_part < tile.rows ? row_in_memory<Order>(tile, in_part) * static_cast<unsigned>(tile.stride_bytes) +
                                    Order::part(row) * static_cast<unsigned>(tile.part_bytes) + chunk_k()
                              : kOutOfBounds;
    }
  }

  // Switches to a tile with the same strides and no more rows than the one before, at little cost.
  DG_DEVICE void move_to(const OperandTile& tile) {
    buffer_ = Buffer{tile.first, buffer_bytes(tile, first_row_)}.only_if(tile.rows > 0);
  }

  // Starts one pass of the load of `k_block`. Past the last K-block it loads zeros without memory traffic.
  DG_DEVICE void load(int stage, int pass, int k_block) {
    const int first_k = (k_block - first_k_block_) * kBlockBytes;
    unsigned offset = offset_[pass];
    if (kKTail) offset = first_k + chunk_k() < k_bytes_ ? offset : kOutOfBounds;
    const Buffer buffer = kGoesOn ? buffer_.in_scalar_registers() : buffer_;
    const Buffer existing = buffer.only_if(first_k < k_bytes_);
    // Only gathered tiles gain by it, and it makes LLVM 22 loop over the lanes of others; see Buffer.
    staged_[stage][pass] =
        (Order::kGathers ? existing.with_scalar_size() : existing).template load<Loaded>(offset, first_k);
  }

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) const {
    if (stores(pass)) store_chunk(loaded_chunk(stage, pass), lds_tile, pass);
  }

 protected:
  static constexpr int kBlockBytes = kChunksPerRow / Form::kChunks * kLoadedBytes;  // of a K-block, in memory

  DG_DEVICE Chunk loaded_chunk(int stage, int pass) const { return Form::chunk(staged_[stage][pass]); }

  static DG_DEVICE bool stores(int pass) { return kLdsRows % kRowsPerPass == 0 || lds_row(pass) < kTileRows; }
  // Stores the i-th of the thread's chunks of a pass.
  static DG_DEVICE void store_chunk(const Chunk& chunk, uint8_t* lds_tile, int pass, int i = 0) {
    uint8_t* const first = lds_tile + first_row_offset(pass * kRowsPerPass);
    if constexpr (kKOrder == KOrder::kInOrder) {
      const auto halves = __builtin_bit_cast(Vector<uint64_t, 2>, chunk);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint64_t*>(first + half_store_offset(thread(), Form::kChunks, i, half)) = halves[half];
      }
    } else {
      *reinterpret_cast<Chunk*>(first + (store_offset(thread(), Form::kChunks) ^ i * kChunkBytes)) = chunk;
    }
  }

  static DG_DEVICE int thread() { return thread_id() % kThreads; }
  static DG_DEVICE int lds_row(int pass) { return thread_row(thread(), Form::kChunks) + pass * kRowsPerPass; }
  static DG_DEVICE int chunk_k() { return thread_chunk(thread(), Form::kChunks) / Form::kChunks * kLoadedBytes; }

  Loaded staged_[kRegisterStages][kPasses];
  int first_row_;
  int first_k_block_;
  int k_bytes_ = 0;

 private:
  static DG_DEVICE unsigned buffer_bytes(const OperandTile& tile, int first_row) {
    if constexpr (Order::kGathers) return kOutOfBounds;
    const int rows = min(tile.rows, Order::row_in_part(first_row + kTileRows - 1) + 1);
    return static_cast<unsigned>((Order::kParts - 1) * tile.part_bytes + (rows - 1) * tile.stride_bytes + tile.k_bytes);
  }

  Buffer buffer_{};
  unsigned offset_[kPasses];
};

// A TileLoader for rows that are fp32 in LDS, whose squares it adds up, too.
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

  // Stores the sums of the tile's first `rows` rows. All K-blocks must have been stored into LDS.
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

// Moves a tile of an operand whose rows are contiguous in memory, as TileLoader does one that is contiguous along K: a
// lane loads 4 bytes, of neighbouring rows, for each k of a 16-byte chunk, and transposes them in registers into one
// chunk for each of these rows.
#pragma once

#include "deep_gemm_rocm/arithmetic/widening.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/loading/tile_loader.h"

namespace deep_gemm_rocm {

// One column of 16 words of 4 elements, or of 8 words of 2.
template <int kElementBytes>
DG_DEVICE Chunk column_chunk(const unsigned* rows, int column);

// v_perm_b32 picks bytes: selector 0 to 3 from its second operand, 4 to 7 from the first.
constexpr unsigned kLowHalves = 0x05040100;
constexpr unsigned kHighHalves = 0x07060302;

template <>
DG_DEVICE Chunk column_chunk<2>(const unsigned* rows, int column) {
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    chunk[i] = __builtin_amdgcn_perm(rows[2 * i + 1], rows[2 * i], column == 0 ? kLowHalves : kHighHalves);
  }
  return chunk;
}

template <>
DG_DEVICE Chunk column_chunk<1>(const unsigned* rows, int column) {
  constexpr unsigned kInterleaved[] = {0x05010400, 0x07030602};  // bytes 0 and 1, or 2 and 3, of both
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned* four = rows + 4 * i;
    const unsigned first = __builtin_amdgcn_perm(four[1], four[0], kInterleaved[column / 2]);
    const unsigned second = __builtin_amdgcn_perm(four[3], four[2], kInterleaved[column / 2]);
    chunk[i] = __builtin_amdgcn_perm(second, first, column % 2 == 0 ? kLowHalves : kHighHalves);
  }
  return chunk;
}

// A lane stores a chunk into a row of LDS at once, or half of one where FP8 is widened to T = bf16.
template <class T, class Stored>
using ColumnPart = Conditional<kIsSame<T, Stored>, Chunk, HalfChunk>;

// One column of the words of Stored that it is made of.
template <class T, class Stored>
DG_DEVICE ColumnPart<T, Stored> column_part(const unsigned* rows, int column) {
  if constexpr (kIsSame<T, Stored>) {
    return column_chunk<sizeof(T)>(rows, column);
  } else {
    return widened_bf16_column<HalfChunk>(rows, column);
  }
}

// A wave covers 64 rows and kUnitRows parts of them. Eight neighbouring lanes store parts in different banks, and lanes
// that load the same k cover 64 or 128 contiguous bytes. Rows and K past the operand's end read as zeros. Operands have
// a multiple of kUnitRows rows.
template <class T, class Order, int kTileRows, int kThreads, int kRegisterStages, class Stored = T>
class TransposingTileLoader {
 protected:
  using Part = ColumnPart<T, Stored>;
  static constexpr int kUnitRows = sizeof(unsigned) / sizeof(Stored);  // rows that a lane loads together
  static constexpr int kUnitLoads = sizeof(Part) / sizeof(T);          // values of K in a part
  static constexpr int kPartBytes = sizeof(Part);
  static constexpr int kWavesPerRows = kBlockKBytes / kPartBytes / kUnitRows;  // waves that cover all parts of 64 rows
  static constexpr int kWaves = kThreads / kWaveSize;
  static constexpr int kWaveRows = kWaveSize;

 private:
  static constexpr int kPartsOfChunk = kChunkBytes / kPartBytes;
  static constexpr int kElementBytes = sizeof(Stored);
  static constexpr int kBlockK = kBlockKBytes / sizeof(T);
  static constexpr int kUnits = ceil_div(kTileRows, kWaveRows) * kWavesPerRows;

 public:
  static constexpr int kPasses = ceil_div(kUnits, kWaves);
  static constexpr int kStoreSteps = 1;

  DG_DEVICE explicit TransposingTileLoader(int first_row) : first_row_(first_row) {}

  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) {
    tile_ = tile;
    first_k_block_ = first_k_block;
  }

  DG_DEVICE void move_to(const OperandTile& tile) { tile_ = tile; }

  // Whether the wave has anything to load in a pass.
  static DG_DEVICE bool takes_part(int pass) { return (pass + 1) * kWaves <= kUnits || wave_unit(pass) < kUnits; }

  DG_DEVICE void load(int stage, int pass, int k_block) {
    const int first_k = (k_block - first_k_block_) * kBlockK;
    const int ks = min(tile_.k_bytes / kElementBytes - first_k, kBlockK);
    const int tile_row = first_row_ + row(pass);
    const int in_part = Order::row_in_part(tile_row);
    const int rows = min(tile_.rows, Order::row_in_part(first_row_ + kTileRows - 1) + 1);
    const Buffer buffer{tile_.first + first_k * tile_.stride_bytes,
                        static_cast<unsigned>((Order::kParts - 1) * tile_.part_bytes + (ks - 1) * tile_.stride_bytes +
                                              rows * kElementBytes)};
    const unsigned stride = tile_.stride_bytes;
    const unsigned offset = Order::part(tile_row) * static_cast<unsigned>(tile_.part_bytes) +
                            first_k_of_part(pass) * stride + in_part * kElementBytes;
    const unsigned first = in_part < rows ? offset : kOutOfBounds;
#pragma unroll
    for (int i = 0; i < kUnitLoads; ++i) {
      staged_[stage][pass][i] = buffer.only_if(ks > 0 && rows > 0).template load<unsigned>(first + i * stride);
    }
  }

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) const {
    store_columns(pass, lds_tile, [&](int i) { return column_part<T, Stored>(staged_[stage][pass], i); });
  }

 protected:
  template <class Column>
  static DG_DEVICE void store_columns(int pass, uint8_t* lds_tile, Column column) {
    if (row(pass) >= kTileRows) return;
#pragma unroll
    for (int i = 0; i < kUnitRows; ++i) {
      uint8_t* const chunk = lds_tile + lds_offset(Order::lds_row_of(row(pass) + i), part(pass) / kPartsOfChunk);
      *reinterpret_cast<Part*>(chunk + part(pass) % kPartsOfChunk * kPartBytes) = column(i);
    }
  }

  static DG_DEVICE int row(int pass) {
    const int unit = lane_id() % kNeighbours + lane_id() / 8 * kNeighbours;
    return wave_unit(pass) / kWavesPerRows * kWaveRows + unit * kUnitRows;
  }

  // The first value of K of the lane's part of its rows.
  static DG_DEVICE int first_k_of_part(int pass) { return part(pass) * kUnitLoads; }

  unsigned staged_[kRegisterStages][kPasses][kUnitLoads];

 private:
  static constexpr int kNeighbours = 8 / kUnitRows;  // units of rows in eight neighbouring lanes

  static DG_DEVICE int part(int pass) {
    return wave_unit(pass) % kWavesPerRows * kUnitRows + lane_id() / kNeighbours % kUnitRows;
  }

  static DG_DEVICE int wave_unit(int pass) { return pass * kWaves + static_cast<unsigned>(wave_id()) % kWaves; }

  OperandTile tile_;
  int first_row_;
  int first_k_block_;
};

}  // namespace deep_gemm_rocm

// Scales a wave's accumulators where that was left to do, adds c, rounds and stores.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/output_columns.h"
#include "deep_gemm_rocm/scale_loader.h"
#include "deep_gemm_rocm/static_for.h"

namespace deep_gemm_rocm {

// An output (or what is added to it) from the tile's first element on, of which `rows` x `columns` exist.
template <class T>
struct OutputTile {
  T* first;
  int rows;
  int columns;
  int64_t row_stride;
};

// What of an OutputTile a tile of kBlockM x kBlockN elements reaches, as vectors of kVector columns.
template <class T, class Columns, int kBlockM, int kBlockN, int kVector>
class OutputBuffer {
 public:
  using Values = Vector<T, kVector>;

  DG_DEVICE OutputBuffer(const OutputTile<T>& tile, const Columns& columns)
      : tile_(tile),
        columns_(columns),
        buffer_{tile.first, static_cast<unsigned>(((min(tile.rows, kBlockM) - 1) * tile.row_stride +
                                                   columns.position(min(tile.columns, kBlockN) - 1) + 1) * sizeof(T))},
        aligned_(tile.columns % kVector == 0 && columns.template keep_vectors<kVector>() && tile.row_stride % kVector == 0 &&
                 reinterpret_cast<uint64_t>(tile.first) % sizeof(Values) == 0) {}

  // Both take a vector at once if all vectors are aligned, else element by element.
  DG_DEVICE Values load(int row, int column) const {
    if (aligned_) return buffer_.template load<Values>(offset(row, column));
    Values values;
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[e] = buffer_.template load<T>(offset(row, column + e));
    return values;
  }

  DG_DEVICE void store(const Values& values, bool stored, int row, int column) const {
    if (aligned_) {
      buffer_.store(values, stored ? offset(row, column) : kOutOfBounds);
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        buffer_.template store<T>(values[e], stored ? offset(row, column + e) : kOutOfBounds);
      }
    }
  }

 private:
  DG_DEVICE unsigned offset(int row, int column) const {
    return row < tile_.rows && column < tile_.columns
               ? (row * static_cast<int>(tile_.row_stride) + columns_.position(column)) * static_cast<unsigned>(sizeof(T))
               : kOutOfBounds;
  }

  OutputTile<T> tile_;
  Columns columns_;
  Buffer buffer_;
  bool aligned_;
};

template <class Shape, class D, class Columns, bool kAccumulate, bool kScaledRows>
class Epilogue {
  using Mfma = typename Shape::Mfma;
  static constexpr int kVector = min<int>(Shape::kRun, sizeof(Chunk) / sizeof(D));
  using Output = OutputBuffer<D, Columns, Shape::kBlockM, Shape::kBlockN, kVector>;

 public:
  // `c` is read if kAccumulate, the scales of the tile's rows and columns if kScaledRows.
  DG_DEVICE Epilogue(const OutputTile<D>& d, const OutputTile<D>& c, const Columns& position, const ScaleTile& sfa,
                     const ScaleTile& sfb)
      : d_(d, position), c_(c, position), sfa_(sfa), sfb_(sfb), rows_(d.rows), columns_(d.columns) {}

  // Stores 16 bytes a lane (8 where a lane holds only four consecutive columns of two bytes) if the output is aligned to
  // them. Of the tile's rows, `tile` says which are stored and what is in them.
  template <class Mma, class Tile>
  DG_DEVICE void store(const Mma& mma, const Tile& tile) const {
    const int lane = lane_id_computed_here();
    float column_scales[kScaledRows ? Shape::kLaneColumns : 1];
#pragma unroll
    for (int i = 0; kScaledRows && i < Shape::kLaneColumns; ++i) {
      column_scales[i] = scale(sfb_, Shape::lane_column(lane, i), columns_);
    }
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane, i);
      const float row_scale = kScaledRows ? scale(sfa_, row, rows_) : 1;
#pragma unroll
      for (int first = 0; first < Shape::kLaneColumns; first += kVector) {
        const int column = Shape::lane_column(lane, first);
        typename Output::Values added{};
        if constexpr (kAccumulate) added = c_.load(row, column);
        typename Output::Values values;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          float sum = mma.total(i, (first + e) / Mfma::kElements, (first + e) % Mfma::kElements);
          if constexpr (kScaledRows) sum *= row_scale * column_scales[first + e];
          float result = tile.result(row, sum);
          if constexpr (kAccumulate) result += static_cast<float>(added[e]);
          values[e] = static_cast<D>(result);
        }
        d_.store(values, tile.is_stored(row), row, column);
      }
    }
  }

 private:
  static DG_DEVICE float scale(const ScaleTile& scales, int row, int rows) {
    return Buffer{scales.first_row, kOutOfBounds}.load<float>(scales.row_offset(row, rows));
  }

  Output d_;
  Output c_;
  ScaleTile sfa_;
  ScaleTile sfb_;
  int rows_;
  int columns_;
};

}  // namespace deep_gemm_rocm

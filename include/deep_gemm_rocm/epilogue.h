// Rounds a wave's accumulators and stores them.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/static_for.h"

namespace deep_gemm_rocm {

// The output from the tile's first element on, of which `rows` x `columns` exist.
struct OutputTile {
  __bf16* first;
  int rows;
  int columns;
  int64_t row_stride;
};

template <class Shape>
class Epilogue {
  using Mfma = typename Shape::Mfma;
  static constexpr int kRun = Mfma::kElements * Shape::kJoined;  // consecutive columns of a lane
  static constexpr int kVector = min(kRun, 8);

 public:
  DG_DEVICE explicit Epilogue(const OutputTile& out)
      : out_(out),
        buffer_{out.first, static_cast<unsigned>(((min(out.rows, Shape::kBlockM) - 1) * out.row_stride +
                                                  min(out.columns, Shape::kBlockN)) * sizeof(__bf16))},
        first_row_(Shape::wave_m() + lane_id() % Mfma::kRows),
        first_column_(Shape::wave_n() + lane_id() / Mfma::kRows * kRun) {}

  // Stores 16 bytes a lane (8 where a lane holds only four consecutive columns) if the output is aligned to them, else
  // element by element. Of the tile's rows, `tile` says which are stored and what is in them.
  template <class Mma, class Tile>
  DG_DEVICE void store(const Mma& mma, const Tile& tile) const {
    const bool aligned = out_.columns % kVector == 0 && out_.row_stride % kVector == 0 &&
                         reinterpret_cast<uint64_t>(out_.first) % sizeof(Vector<__bf16, kVector>) == 0;
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
#pragma unroll
      for (int first = 0; first < Shape::kWaveN / Mfma::kLaneGroups; first += kVector) {
        const int row = first_row_ + i * Mfma::kRows;
        const bool stored = row < out_.rows && tile.is_stored(row);
        const int column = first_column_ + first / kRun * kRun * Mfma::kLaneGroups + first % kRun;
        Vector<__bf16, kVector> values;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          const float sum = mma.total(i, (first + e) / Mfma::kElements, (first + e) % Mfma::kElements);
          values[e] = static_cast<__bf16>(tile.result(row, sum));
        }
        if (aligned) {
          buffer_.store(values, offset(stored, row, column));
        } else {
#pragma unroll
          for (int e = 0; e < kVector; ++e) buffer_.store<__bf16>(values[e], offset(stored, row, column + e));
        }
      }
    }
  }

 private:
  DG_DEVICE unsigned offset(bool stored, int row, int column) const {
    return stored && column < out_.columns
               ? (row * static_cast<int>(out_.row_stride) + column) * static_cast<unsigned>(sizeof(__bf16))
               : kOutOfBounds;
  }

  OutputTile out_;
  Buffer buffer_;
  int first_row_;
  int first_column_;
};

}  // namespace deep_gemm_rocm

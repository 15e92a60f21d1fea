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
  // element by element.
  template <class Mma>
  DG_DEVICE void store(const Mma& mma) const {
    const bool aligned = out_.columns % kVector == 0 && out_.row_stride % kVector == 0 &&
                         reinterpret_cast<uint64_t>(out_.first) % sizeof(Vector<__bf16, kVector>) == 0;
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
#pragma unroll
      for (int first = 0; first < Shape::kWaveN / Mfma::kLaneGroups; first += kVector) {
        const int row = i * Mfma::kRows;
        const int column = first / kRun * kRun * Mfma::kLaneGroups + first % kRun;
        Vector<__bf16, kVector> values;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          values[e] = static_cast<__bf16>(mma.total(i, (first + e) / Mfma::kElements, (first + e) % Mfma::kElements));
        }
        if (aligned) {
          buffer_.store(values, offset(row, column));
        } else {
#pragma unroll
          for (int e = 0; e < kVector; ++e) buffer_.store<__bf16>(values[e], offset(row, column + e));
        }
      }
    }
  }

 private:
  DG_DEVICE unsigned offset(int wave_row, int wave_column) const {
    const int row = first_row_ + wave_row;
    const int column = first_column_ + wave_column;
    const bool inside = row < out_.rows && column < out_.columns;
    return inside ? (row * static_cast<int>(out_.row_stride) + column) * static_cast<unsigned>(sizeof(__bf16))
                  : kOutOfBounds;
  }

  OutputTile out_;
  Buffer buffer_;
  int first_row_;
  int first_column_;
};

}  // namespace deep_gemm_rocm

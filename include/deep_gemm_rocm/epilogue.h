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
  static constexpr int kVectorsPerRow = Shape::kWaveN / (Mfma::kLaneGroups * kVector);

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
    Vector<__bf16, kVector> rounded[Shape::kFragsM][kVectorsPerRow];
    static_for<Shape::kFragsM>([&](auto i) {
      static_for<kVectorsPerRow>([&](auto vector) { rounded[i][vector] = round<i, vector>(mma); });
    });
    const bool aligned = out_.columns % kVector == 0 && out_.row_stride % kVector == 0 &&
                         reinterpret_cast<uint64_t>(out_.first) % sizeof(rounded[0][0]) == 0;
    static_for<Shape::kFragsM>([&](auto i) {
      static_for<kVectorsPerRow>([&](auto vector) {
        constexpr int first = vector * kVector;
        constexpr int column = first / kRun * kRun * Mfma::kLaneGroups + first % kRun;
        if (aligned) {
          buffer_.store(rounded[i][vector], offset(i * Mfma::kRows, column));
        } else {
          static_for<kVector>([&](auto element) {
            buffer_.store(rounded[i][vector][element.value], offset(i * Mfma::kRows, column + element));
          });
        }
      });
    });
  }

 private:
  template <int kFragmentM, int kIndex, class Mma>
  static DG_DEVICE Vector<__bf16, kVector> round(const Mma& mma) {
    Vector<__bf16, kVector> values;
    static_for<kVector>([&](auto index) {
      constexpr int element = kIndex * kVector + index;
      values[index.value] =
          static_cast<__bf16>(mma.total(kFragmentM, element / Mfma::kElements, element % Mfma::kElements));
    });
    return values;
  }

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

// A workgroup's part of a matrix in global memory, which each lane reads and writes some neighbouring columns at a time.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// A matrix of any strides, which are in elements.
struct StridedMatrix {
  void* data;
  int64_t row_stride;
  int64_t column_stride;
  int64_t has_vectors;  // whether rows consist of vectors, and are aligned to them if the matrix is; see launch/cast.py
};

template <class T, int kVector = 8>
class MatrixTile {
 public:
  static constexpr int kMostRows = 128;
  using Values = Vector<T, kVector>;

  // The tile starts at (row, column) and has so many rows, up to kMostRows, and columns, at least one of each.
  DG_DEVICE MatrixTile(const StridedMatrix& matrix, int row, int column, int rows, int columns)
      : matrix_(matrix),
        first_(static_cast<T*>(matrix.data) + row * matrix.row_stride + column * matrix.column_stride),
        rows_(rows),
        columns_(columns) {
    constexpr int kAlignment = min<int>(sizeof(Values), kChunkBytes);
    has_vectors_ = matrix.has_vectors && reinterpret_cast<uint64_t>(first_) % kAlignment == 0;
    const int elements = (rows - 1) * static_cast<int>(matrix.row_stride) + columns;
    buffer_ = {first_, elements * static_cast<unsigned>(sizeof(T))};  // only used with vectors and for contiguous rows
  }

  // Whether vectors are loaded and stored at once; otherwise element by element.
  DG_DEVICE bool has_vectors() const { return has_vectors_; }

  // Zeros outside of the tile.
  DG_DEVICE Values load_vector(int row, int column) const {
    const unsigned at = offset(row, column);
    if constexpr (kParts == 1) {
      return buffer_.template load<Values>(at);
    } else {
      return __builtin_shufflevector(buffer_.template load<Part>(at), buffer_.template load<Part>(at + kChunkBytes), 0,
                                     1, 2, 3, 4, 5, 6, 7);
    }
  }

  // The same for any strides, without branches, so that all loads are in flight at once.
  DG_DEVICE Values load_elements(int row, int column) const {
    Values values;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const bool inside = row < rows_ && column + i < columns_;
      const int64_t at = row * matrix_.row_stride + (column + i) * matrix_.column_stride;
      const T value = *(const Global<T>*)(first_ + (inside ? at : 0));
      values[i] = inside ? value : T();
    }
    return values;
  }

  // To a matrix whose columns are neighbours.
  DG_DEVICE void store(const Values& values, int row, int column) const {
    if (has_vectors_) {
      store_vector(values, offset(row, column));
      return;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      buffer_.store(values[i], offset(row, column + i));
    }
  }

 private:
  // Vectors longer than 16 bytes take several loads or stores.
  static constexpr int kParts = max<int>(sizeof(Values) / kChunkBytes, 1);
  using Part = Vector<T, kVector / kParts>;

  DG_DEVICE void store_vector(const Values& values, unsigned at) const {
    if constexpr (kParts == 1) {
      buffer_.store(values, at);
    } else {
      buffer_.store(__builtin_shufflevector(values, values, 0, 1, 2, 3), at);
      buffer_.store(__builtin_shufflevector(values, values, 4, 5, 6, 7), at + kChunkBytes);
    }
  }

  DG_DEVICE unsigned offset(int row, int column) const {
    const unsigned at = (row * static_cast<int>(matrix_.row_stride) + column) * static_cast<unsigned>(sizeof(T));
    return row < rows_ && column < columns_ ? at : kOutOfBounds;
  }

  StridedMatrix matrix_;
  T* first_;
  int rows_;
  int columns_;
  bool has_vectors_;
  Buffer buffer_;
};

}  // namespace deep_gemm_rocm

// A workgroup's part of a matrix in global memory, which each lane reads and writes some neighbouring columns at a
// time.
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

  // On the host, before a launch: clears has_vectors if the matrix of any group isn't aligned.
  void check_alignment(int64_t group_bytes = 0, int bytes = kChunkBytes) {
    has_vectors &= (reinterpret_cast<int64_t>(data) | group_bytes) % bytes == 0;
  }
};

constexpr int kMostTileRows = 128;

// Tells the compiler that the row stride fits into 32 bits, as it does where rows consist of vectors, and in new
// tensors.
DG_DEVICE StridedMatrix with_short_rows(const StridedMatrix& matrix) {
  __builtin_assume(static_cast<uint64_t>(matrix.row_stride) <= 0xFFFFFFFF);
  return matrix;
}

template <class T, int kVector>
class MatrixTile {
 public:
  using Values = Vector<T, kVector>;

  // The tile starts at (row, column). `rows` is at most kMostTileRows, and below one means none; `columns` is at least
  // 1.
  DG_DEVICE MatrixTile(const StridedMatrix& matrix, int row, int column, int rows, int columns)
      : matrix_(matrix),
        first_row_(static_cast<T*>(matrix.data) + static_cast<unsigned>(row) * matrix.row_stride),
        column_(column),
        rows_(rows),
        columns_(columns) {
    // Only valid if neighbouring columns are contiguous, as for load_vector() and store().
    const int elements = rows > 0 ? (rows - 1) * static_cast<int>(matrix.row_stride) + columns : 0;
    buffer_ = Buffer{first_row_ + column, elements * static_cast<unsigned>(sizeof(T))}.in_scalar_registers();
  }

  // Zeros outside of the tile.
  DG_DEVICE Values load_vector(int row, int column) const {
    const unsigned at = offset(row, column);
    Values values;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto loaded = buffer_.template load<Part>(at + part * kChunkBytes);
#pragma unroll
      for (int i = 0; i < kPartValues; ++i) values[part * kPartValues + i] = loaded[i];
    }
    return values;
  }

  // The same for any strides, without branches, so that all loads are in flight at once.
  DG_DEVICE Values load_elements(int row, int column) const {
    Values values;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int64_t at = row * matrix_.row_stride + (column_ + column + i) * matrix_.column_stride;
      const int64_t first = column_ * matrix_.column_stride;
      values[i] = *(const Global<T>*)(first_row_ + (is_inside(row, column + i) ? at : first));
    }
    asm volatile("" : "+v"(row));  // so that compilers don't keep all conditions until values are there
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = is_inside(row, column + i) ? values[i] : T();
    return values;
  }

  // Stores to a matrix whose columns are contiguous.
  DG_DEVICE void store(const Values& values, int row, int column) const {
    store(values, row, column, offset(row, column));
  }

  // The same where offset() was computed before.
  DG_DEVICE void store(const Values& values, int row, int column, unsigned vector_offset) const {
    if (matrix_.has_vectors) {
      store_vector(values, vector_offset);
      return;
    }
    asm volatile("" : "+v"(column));  // so that not all columns are computed before the branch
#pragma unroll
    for (int i = 0; i < kVector; ++i) buffer_.store(values[i], offset(row, column + i));
  }

  // In bytes; out of bounds outside of the tile.
  DG_DEVICE unsigned offset(int row, int column) const {
    const unsigned at = (row * static_cast<int>(matrix_.row_stride) + column) * static_cast<unsigned>(sizeof(T));
    return is_inside(row, column) ? at : kOutOfBounds;
  }

  // Computes where the tile is here, rather than where it is stored.
  DG_DEVICE void compute_here() { buffer_.compute_here(); }

 private:
  // Vectors longer than 16 bytes take several loads or stores.
  static constexpr int kParts = max<int>(sizeof(Values) / kChunkBytes, 1);
  static constexpr int kPartValues = kVector / kParts;
  using Part = Vector<T, kPartValues>;

  DG_DEVICE void store_vector(const Values& values, unsigned at) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Part stored;
#pragma unroll
      for (int i = 0; i < kPartValues; ++i) stored[i] = values[part * kPartValues + i];
      buffer_.store(stored, at + part * kChunkBytes);
    }
  }

  DG_DEVICE bool is_inside(int row, int column) const { return row < rows_ && column < columns_; }

  StridedMatrix matrix_;
  T* first_row_;
  int column_;
  int rows_;
  int columns_;
  Buffer buffer_;
};

}  // namespace deep_gemm_rocm

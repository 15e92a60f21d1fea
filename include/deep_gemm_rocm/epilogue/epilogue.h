// From a wave's sums over K to results in memory: scales of rows, bias, activation, c, rounding or quantising, store.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/gemm_kind.h"
#include "deep_gemm_rocm/epilogue/output_columns.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/loading/scale_loader.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// An output (or c, which is added to it) from the tile's first element on, of which `rows` x `columns` exist.
template <class T>
struct OutputTile {
  T* first;
  int rows;
  int columns;
  int64_t row_stride;
};

template <class T>
DG_DEVICE OutputTile<T> output_tile(const Matrix& matrix, unsigned group, unsigned m, unsigned n, int rows,
                                    int columns) {
  auto* first = static_cast<T*>(matrix.data) + group * matrix.group_stride + m * matrix.stride + n;
  return {first, rows, columns, matrix.stride};
}

// A tile of kBlockM x kBlockN elements of an output, accessed in vectors of kVector columns.
template <class T, class Columns, int kBlockM, int kBlockN, int kVector_>
class OutputBuffer {
 public:
  static constexpr int kVector = kVector_;
  using Element = typename Storage<T>::Type;
  using Values = Vector<Element, kVector>;

  DG_DEVICE OutputBuffer(const OutputTile<T>& tile, const Columns& columns)
      : tile_(tile),
        columns_(columns),
        buffer_{tile.first, static_cast<unsigned>(((min(tile.rows, kBlockM) - 1) * tile.row_stride +
                                                   columns.position(min(tile.columns, kBlockN) - 1) + 1) * sizeof(T))},
        aligned_((tile.columns | tile.row_stride) % kVector == 0 && columns.template keep_vectors<kVector>() &&
                 reinterpret_cast<uint64_t>(tile.first) % sizeof(Values) == 0) {}

  // Whether all vectors are aligned. Otherwise they are loaded and stored element by element.
  DG_DEVICE bool is_aligned() const { return aligned_; }

  // Whether adding offset_of_rows() to an offset makes it out of bounds where the row doesn't exist: rows don't
  // overlap, and no offset wraps around.
  DG_DEVICE bool has_rows_in_order() const {
    return tile_.row_stride >= min(tile_.columns, kBlockN) &&
           tile_.row_stride < static_cast<int64_t>(kOutOfBounds / (kBlockM * sizeof(T)));
  }

  DG_DEVICE Values load(int row, int column) const {
    if (aligned_) return buffer_.template load<Values>(offset(row, column));
    Values values;
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[e] = buffer_.template load<Element>(offset(row, column + e));
    return values;
  }

  DG_DEVICE void store_vector(const Values& values, int row, int column) const {
    buffer_.store(values, offset(row, column));
  }

  DG_DEVICE void store(const Values& values, int row, int column) const {
    if (aligned_) {
      store_vector(values, row, column);
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e) store_element(values[e], row, column + e);
    }
  }

  DG_DEVICE void store_element(Element value, int row, int column) const {
    buffer_.template store<Element>(value, offset(row, column));
  }

  DG_DEVICE const Buffer& buffer() const { return buffer_; }

  DG_DEVICE unsigned offset_of_rows(int rows) const {
    return rows * static_cast<int>(tile_.row_stride) * static_cast<unsigned>(sizeof(T));
  }

  DG_DEVICE unsigned offset(int row, int column) const {
    return row < tile_.rows && column < tile_.columns
               ? (row * static_cast<int>(tile_.row_stride) + columns_.position(column)) *
                     static_cast<unsigned>(sizeof(T))
               : kOutOfBounds;
  }

 private:
  OutputTile<T> tile_;
  Columns columns_;
  Buffer buffer_;
  bool aligned_;
};

template <class Kind>
using OutputColumns = Conditional<Kind::kSkipsHeadMid, ColumnsOfHeads, ColumnsInOrder>;

template <class Kind, class Shape>
using OutputOf = OutputBuffer<typename Kind::D, OutputColumns<Kind>, Shape::kBlockM, Shape::kOutputN,
                              min<int>(Shape::kRun, sizeof(Chunk) / sizeof(typename Kind::D))>;

// The tensors of an epilogue. `bias` starts with the tile's first column, and its next part is `bias_part` further on.
template <class Kind>
struct EpilogueTiles {
  OutputTile<typename Kind::D> d, c;
  OutputColumns<Kind> columns;
  OutputTile<typename Kind::Bias> bias;
  int64_t bias_part;
  ScaleTile sfa, sfb, sfd;
  GateArguments gate;
};

// The scale of 128 columns of a quantised row, as per_token_cast_to_fp8() in api/casts.py computes it: the largest
// magnitude divided by the format's largest number, and at least the smallest normal number, for a row of zeros. A NaN
// makes the whole row NaN.
template <class D>
DG_DEVICE float scale_of_largest(float largest) {
  constexpr float kLeastScale = __FLT_MIN__;
  const float exact_scale = largest / Storage<D>::kMax;
  return exact_scale < kLeastScale ? kLeastScale : exact_scale;
}

template <class Kind, class Shape>
class Epilogue {
  using D = typename Kind::D;
  using Mfma = typename Shape::Mfma;
  using Activation = typename Kind::Activation;
  static constexpr int kParts = Shape::kParts;
  static constexpr int kColumns = Shape::kLaneColumns;
  using Output = OutputOf<Kind, Shape>;
  static constexpr int kVector = Output::kVector;
  static constexpr bool kScaledRows = Kind::kScaling == Scaling::kRows;

 public:
  DG_DEVICE explicit Epilogue(const EpilogueTiles<Kind>& tiles)
      : tiles_(tiles), d_(tiles.d, tiles.columns), c_(tiles.c, tiles.columns) {}

  // Each lane stores 16 bytes at once if the output is aligned to that, or less if it holds fewer consecutive columns.
  // `lds` is the workgroup's, and free by now.
  template <class Mma, class Tile>
  DG_DEVICE void store(const Mma& mma, const Tile& tile, uint8_t* lds) const {
    const int lane = lane_id_computed_here();
    float results[Shape::kFragsM][kColumns];
    compute_results(mma, tile, lane, results);
    if constexpr (Kind::kQuantised) quantise(lane, lds, results);
    const bool are_numbers = NumberRounding<D>::kTakesNans || !may_have_nans(results);
    if (are_numbers && d_.is_aligned()) {
      store_rows<true>(lane, results);
    } else {
      store_rows<false>(lane, results);
    }
  }

 private:
  // Scale and bias of each sum that a lane holds in a row.
  struct ColumnOperands {
    float scale[kScaledRows ? Shape::kLaneSums : 1];
    float bias[Kind::kHasBias ? Shape::kLaneSums : 1];
  };

  DG_DEVICE ColumnOperands load_column_operands(int lane) const {
    ColumnOperands operands;
#pragma unroll
    for (int sum = 0; sum < Shape::kLaneSums; ++sum) {
      const int part = Shape::part_of_sum(sum);
      const int column = Shape::lane_column(lane, Shape::column_of_sum(sum));
      if constexpr (kScaledRows) {
        const Buffer scales{tiles_.sfb.first_row + part * tiles_.sfb.part_stride, kOutOfBounds};
        operands.scale[sum] = scales.load<float>(tiles_.sfb.row_offset(column, tiles_.d.columns));
      }
      if constexpr (Kind::kHasBias) {
        using Bias = typename Kind::Bias;
        const Buffer bias{tiles_.bias.first + part * tiles_.bias_part,
                          tiles_.bias.columns * static_cast<unsigned>(sizeof(Bias))};
        operands.bias[sum] = static_cast<float>(bias.load<Bias>(column * static_cast<unsigned>(sizeof(Bias))));
      }
    }
    return operands;
  }

  DG_DEVICE float scale_of_row(int row) const {
    if constexpr (!kScaledRows) return 1;
    const unsigned offset = Kind::kGathersA ? tiles_.sfa.gathered_row_offset(row, tiles_.d.rows)
                                            : tiles_.sfa.row_offset(row, tiles_.d.rows);
    return Buffer{tiles_.sfa.first_row, kOutOfBounds}.load<float>(offset);
  }

  // The result in row `row`, the lane's i-th, and the lane's output column `column`.
  template <class Mma, class Tile>
  DG_DEVICE float result(const Mma& mma, const Tile& tile, int i, int row, float row_scale,
                         const ColumnOperands& of_columns, int column) const {
    float sums[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int sum = Shape::sum_of(column, part);
      sums[part] = mma.total(i, sum / Mfma::kElements, sum % Mfma::kElements);
      if constexpr (kScaledRows) sums[part] *= row_scale * of_columns.scale[sum];
      if constexpr (Kind::kHasBias) sums[part] += of_columns.bias[sum];
    }
    return tile.result(row, Activation::apply(sums, tiles_.gate));
  }

  template <class Mma, class Tile>
  DG_DEVICE void compute_results(const Mma& mma, const Tile& tile, int lane,
                                 float (&results)[Shape::kFragsM][kColumns]) const {
    const ColumnOperands of_columns = load_column_operands(lane);
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane, i);
      const float row_scale = scale_of_row(row);
#pragma unroll
      for (int first = 0; first < kColumns; first += kVector) {
        typename Output::Values added{};
        if constexpr (Kind::kAccumulate) added = c_.load(row, Shape::lane_column(lane, first));
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          results[i][first + e] = result(mma, tile, i, row, row_scale, of_columns, first + e);
          if constexpr (Kind::kAccumulate) results[i][first + e] += static_cast<float>(added[e]);
        }
      }
    }
  }

  // With kAlignedNumbers, vectors are aligned and results aren't NaN unless NumberRounding takes that.
  template <bool kAlignedNumbers>
  DG_DEVICE void store_rows(int lane, const float (&results)[Shape::kFragsM][kColumns]) const {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane, i);
#pragma unroll
      for (int first = 0; first < kColumns; first += kVector) {
        const int column = Shape::lane_column(lane, first);
        if constexpr (kAlignedNumbers) {
          const auto rounded = NumberRounding<D>::template rounded<kVector>(results[i] + first);
          d_.store_vector(rounded, row, column);
        } else {
          const auto rounded = Storage<D>::template rounded<kVector>(results[i] + first);
          d_.store(rounded, row, column);
        }
      }
    }
  }

  // Stores a scale for each row of the tile, and divides the row by it.
  DG_DEVICE void quantise(int lane, uint8_t* lds, float (&results)[Shape::kFragsM][kColumns]) const {
    float largest[Shape::kFragsM];
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      largest[i] = 0;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) largest[i] = larger_magnitude(largest[i], results[i][column]);
    }
    largest_of_tile_rows(largest, lane, lds);
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane, i);
      const float scale = scale_of_largest<D>(largest[i]);
      const float inverse = 1 / scale;
      const bool is_first_lane = Shape::lane_column(lane, 0) == 0;
      const unsigned scale_offset = is_first_lane ? tiles_.sfd.row_offset(row, tiles_.d.rows) : kOutOfBounds;
      Buffer{tiles_.sfd.first_row, kOutOfBounds}.store(scale, scale_offset);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) results[i][column] *= inverse;
    }
  }

  // Compares bits of magnitudes as integers, so that NaN is the largest.
  static DG_DEVICE float larger_magnitude(float largest, float value) {
    const unsigned magnitude = __builtin_bit_cast(unsigned, value) & 0x7FFFFFFF;
    return __builtin_bit_cast(float, max(__builtin_bit_cast(unsigned, largest), magnitude));
  }

  // Takes the largest magnitudes of a lane's columns, and replaces them by those of all columns of the tile.
  static DG_DEVICE void largest_of_tile_rows(float (&largest)[Shape::kFragsM], int lane, uint8_t* lds) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
#pragma unroll
      for (int distance = Mfma::kRows; distance < kWaveSize; distance *= 2) {
        largest[i] = larger_magnitude(largest[i], exchange(largest[i], lane ^ distance));
      }
    }
    if constexpr (Shape::kWavesN == 1) return;
    auto* const of_waves = reinterpret_cast<float*>(lds);  // [kWavesN][kBlockM]
    lds_barrier();
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int wave_column = Shape::wave_n() / Shape::kWaveN;
      if (lane < Mfma::kRows) of_waves[wave_column * Shape::kBlockM + Shape::lane_row(lane, i)] = largest[i];
    }
    lds_barrier();
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
#pragma unroll
      for (int wave = 0; wave < Shape::kWavesN; ++wave) {
        largest[i] = larger_magnitude(largest[i], of_waves[wave * Shape::kBlockM + Shape::lane_row(lane, i)]);
      }
    }
  }

  EpilogueTiles<Kind> tiles_;
  Output d_;
  Output c_;
};

}  // namespace deep_gemm_rocm

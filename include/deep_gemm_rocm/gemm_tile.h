// Computes one tile of a GEMM, wherever a tile source found it.
#pragma once

#include "deep_gemm_rocm/epilogue.h"
#include "deep_gemm_rocm/gemm_arguments.h"
#include "deep_gemm_rocm/pipeline.h"
#include "deep_gemm_rocm/tile_source.h"

namespace deep_gemm_rocm {

// One scale of b for 128 columns, so a wave's columns must lie within one such block.
constexpr int kScaleBlockN = 128;

template <class T, Major kMajor>
DG_DEVICE OperandTile operand_tile(const Matrix& matrix, int64_t group, int64_t first_row, int rows, int64_t all_rows,
                                   const PartOfK& part) {
  const int64_t stride = kMajor == Major::kK && part.packed ? part.k : matrix.stride;
  const int64_t first = kMajor == Major::kK ? part.first_k * (part.packed ? all_rows : 1) + first_row * stride
                                            : part.first_k * stride + first_row;
  const auto* data = static_cast<const uint8_t*>(matrix.data);
  constexpr int64_t kBytes = sizeof(T);
  return {data + (group * matrix.group_stride + first) * kBytes, rows, part.k * static_cast<int>(kBytes),
          stride * kBytes};
}

DG_DEVICE ScaleTile scale_tile(const Scales& scales, int64_t group, int64_t first_row, int64_t first_k_block) {
  return {scales.data + group * scales.group_stride + first_row * scales.row_stride +
              first_k_block * scales.k_block_stride,
          scales.row_stride, scales.k_block_stride};
}

template <class T>
DG_DEVICE OutputTile<T> output_tile(const Matrix& matrix, int64_t group, int64_t m, int64_t n, int rows, int columns) {
  auto* first = static_cast<T*>(matrix.data) + group * matrix.group_stride + m * matrix.stride + n;
  return {first, rows, columns, matrix.stride};
}

template <class Schedule, class Tile>
DG_DEVICE void compute_tile(const GemmArguments& args, const Tile& tile, uint8_t* lds) {
  using Shape = typename Schedule::Shape;
  using Kind = typename Schedule::Kind;
  using D = typename Kind::D;
  static_assert(kScaleBlockN % Shape::kWaveN == 0 && Shape::kBlockN % Shape::kWaveN == 0);

  if (tile.stored_rows <= 0) return;
  const int64_t n = tile.n;
  const int columns = args.n - tile.n;
  const int64_t scale_n = Kind::kScaling == Scaling::kBlocks
                              ? min<int64_t>(n + Shape::wave_n(), args.n - 1) / kScaleBlockN
                              : n;
  const PartOfK part = tile.part_of_k(args);
  const ScaleTile sfa = scale_tile(args.sfa, tile.group, tile.m, part.first_k_block);
  const ScaleTile sfb = scale_tile(args.sfb, tile.group, scale_n, part.first_k_block);

  typename Schedule::State state(
      {
          operand_tile<typename Kind::A, Kind::kMajorA>(args.a, tile.group, tile.m, tile.rows, args.m, part),
          operand_tile<typename Kind::B, Kind::kMajorB>(args.b, tile.group, n, columns, args.n, part),
          sfa,
          sfb,
      },
      lds);
  if (tile.rows > 0) run_k_loop<Schedule>(state);
  if constexpr (Kind::kSumsSquares) {
    float* const sums = args.square_sums.data + tile.group * args.square_sums.group_stride + tile.m;
    if (tile.n == 0) state.store_square_sums(sums, tile.stored_rows);
  }

  const auto d = output_tile<D>(args.d, tile.group, tile.m, n, tile.stored_rows, columns);
  const auto c = output_tile<D>(args.c, tile.group, tile.m, n, tile.stored_rows, columns);
  using Columns = Conditional<Kind::kSkipsHeadMid, ColumnsOfHeads, ColumnsInOrder>;
  const Epilogue<Shape, D, Columns, Kind::kAccumulate, Kind::kScaling == Scaling::kRows> epilogue(
      d, c, Columns(args, tile.n), sfa, sfb);
  epilogue.store(state.mma, tile);
}

}  // namespace deep_gemm_rocm

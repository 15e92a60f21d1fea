// Computes one tile of a GEMM, wherever a tile source found it.
#pragma once

#include "deep_gemm_rocm/epilogue.h"
#include "deep_gemm_rocm/gemm_arguments.h"
#include "deep_gemm_rocm/pipeline.h"
#include "deep_gemm_rocm/tile_source.h"

namespace deep_gemm_rocm {

// One scale of b for 128 columns, so a wave's columns must lie within one such block. One of d, too.
constexpr int kScaleBlockN = 128;

template <class T, Major kMajor>
DG_DEVICE OperandTile operand_tile(const Matrix& matrix, int64_t group, int64_t first_row, int rows, int64_t all_rows,
                                   const PartOfK& k) {
  constexpr bool kIsKMajor = kMajor != Major::kRows;
  const int64_t stride = kIsKMajor && k.packed ? k.k : matrix.stride;
  const int64_t stride_k = kMajor == Major::kRows       ? stride
                           : kMajor == Major::kShuffled ? kShuffledRows
                           : k.packed                   ? all_rows
                                                        : 1;
  const int64_t first = first_row * (kIsKMajor ? stride : 1) + k.first_k * stride_k;
  const auto* data = static_cast<const uint8_t*>(matrix.data);
  constexpr int64_t kBytes = sizeof(T);
  return {data + (group * matrix.group_stride + first) * kBytes, rows, k.k * static_cast<int>(kBytes),
          stride * kBytes, all_rows * (kIsKMajor ? stride : 1) * kBytes};
}

// The scales of an operand each of whose parts has `rows` rows of them.
DG_DEVICE ScaleTile scale_tile(const Scales& scales, int64_t group, int64_t first_row, int64_t rows,
                               int64_t first_k_block) {
  return {scales.data + group * scales.group_stride + first_row * scales.row_stride +
              first_k_block * scales.k_block_stride,
          scales.row_stride, scales.k_block_stride, rows * scales.row_stride};
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
  static_assert(!Kind::kQuantised || Shape::kOutputN == kScaleBlockN, "a scale's columns must lie within one tile");

  if (tile.stored_rows <= 0) return;
  const int64_t n = tile.n;
  const int columns = args.n - tile.n;
  const int b_rows_of_scale = Kind::kScaling == Scaling::kBlocks ? kScaleBlockN : 1;
  const int64_t scale_n =
      Kind::kScaling == Scaling::kBlocks ? min<int64_t>(n + Shape::wave_column(), args.n - 1) / kScaleBlockN : n;
  const PartOfK k = tile.part_of_k(args);
  const ScaleTile sfa = scale_tile(args.sfa, tile.group, tile.m, 0, k.first_k_block);
  const ScaleTile sfb = scale_tile(args.sfb, tile.group, scale_n, args.n / b_rows_of_scale, k.first_k_block);

  const int group = Kind::kSumsBatch ? 0 : tile.group;
  TileOperands operands{
      operand_tile<typename Kind::A, Kind::kMajorA>(args.a, group, tile.m, tile.rows, args.m, k),
      operand_tile<typename Kind::B, Kind::kMajorB>(args.b, group, n, columns, args.n, k),
      sfa,
      sfb,
  };
  if constexpr (Kind::kSumsBatch) {
    operands.a.batch = {args.a.group_stride * int64_t{sizeof(typename Kind::A)}, tile.first_block, tile.num_blocks};
    operands.b.batch = {args.b.group_stride * int64_t{sizeof(typename Kind::B)}, tile.first_block, tile.num_blocks};
  }
  typename Schedule::State state(operands, lds);
  if (tile.rows > 0) run_k_loop<Schedule>(state);
  if constexpr (Kind::kSumsSquares) {
    float* const sums = args.square_sums.data + tile.group * args.square_sums.group_stride + tile.m;
    if (tile.n == 0) state.store_square_sums(sums, tile.stored_rows);
  }
  if (!Schedule::State::computes()) return;

  const int rows = tile.stored_rows;
  const Epilogue<Kind, Shape> epilogue({
      output_tile<D>(args.d, tile.group, tile.m, n, rows, columns),
      output_tile<D>(args.c, tile.group, tile.m, n, rows, columns),
      OutputColumns<Kind>(args, tile.n),
      output_tile<typename Kind::Bias>(args.bias, tile.group, 0, n, rows, columns),
      args.n,
      sfa,
      sfb,
      scale_tile(args.sfd, tile.group, tile.m, 0, n / kScaleBlockN),
  });
  epilogue.store(state.mma, tile, lds);
}

}  // namespace deep_gemm_rocm

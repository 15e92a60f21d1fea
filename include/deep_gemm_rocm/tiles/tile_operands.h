// Where a tile's operands and scales are in memory.
#pragma once

#include "deep_gemm_rocm/loading/fragment_loader.h"
#include "deep_gemm_rocm/loading/scale_loader.h"
#include "deep_gemm_rocm/loading/tile_loader.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/gemm_kind.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"
#include "deep_gemm_rocm/tiles/tile_source.h"

namespace deep_gemm_rocm {

// Indices are unsigned: multiplying them by 64-bit strides then takes half the instructions, all of which delay a
// workgroup's first load.
template <class T, Major kMajor>
DG_DEVICE OperandTile operand_tile(const Matrix& matrix, unsigned group, unsigned first_row, int rows, int64_t all_rows,
                                   const PartOfK& k) {
  constexpr bool kIsKMajor = kMajor == Major::kK;
  constexpr unsigned kValues = kHasFourBits<T> ? 2 : 1;  // in an element of the tensor
  const int64_t stride = kIsKMajor && k.packed ? k.k : matrix.stride;
  const int64_t stride_k = !kIsKMajor ? stride : k.packed ? all_rows : 1;
  const int64_t first = first_row * (kIsKMajor ? stride : 1) + static_cast<unsigned>(k.first_k) / kValues * stride_k;
  const auto* data = static_cast<const uint8_t*>(matrix.data);
  constexpr int64_t kBytes = sizeof(T);
  return {data + (group * matrix.group_stride + first) * kBytes, rows,
          static_cast<int>(k.k / kValues) * static_cast<int>(kBytes), stride * kBytes,
          all_rows * (kIsKMajor ? stride : 1) * kBytes};
}

// The part of a tile's K that a wave multiplies.
template <class Kind, class Shape>
DG_DEVICE PartOfK part_of_wave(const PartOfK& k) {
  if constexpr (Shape::kWavesK == 1) return k;
  constexpr int kBlockK = kBlockKBytes / sizeof(typename Kind::MultipliedB);
  return share_of_k<kBlockK>(k, Shape::kWavesK, Shape::wave_k());
}

// A tile's scales of an operand whose parts have `rows` rows of scales each.
template <class T = float>
DG_DEVICE ScaleTileOf<T> scale_tile(const Scales& scales, unsigned group, unsigned first_row, int64_t rows,
                                    unsigned first_k_block) {
  return {reinterpret_cast<const T*>(scales.data) + group * scales.group_stride + first_row * scales.row_stride +
              first_k_block * scales.k_block_stride,
          scales.row_stride, scales.k_block_stride, rows * scales.row_stride};
}

template <class Kind, class Tile>
DG_DEVICE ScaleTile scales_of_a(const GemmArguments& args, const Tile& tile, const PartOfK& k) {
  const int first_row = Kind::kGathersA ? 0 : tile.m;
  ScaleTile scales = scale_tile(args.sfa, tile.group_of_operands(), first_row, 0, k.first_k_block);
  if constexpr (Kind::kGathersA) scales.row_indices = args.row_indices + tile.m;
  return scales;
}

// The scales of a B of integers.
template <class Kind, class Tile>
DG_DEVICE ScaleTileOf<typename GroupsOfB<Kind>::Scale> scales_of_integers(const GemmArguments& args, const Tile& tile,
                                                                         const PartOfK& k) {
  using Groups = GroupsOfB<Kind>;
  Scales rows = args.sfb;
  rows.k_block_stride = args.sfb.k_block_stride * Kind::ScaleOfB::kValues / kScaleBlockK * Groups::kOfKBlock;
  const unsigned first_k_block = k.first_k_block, k_blocks = Groups::kKBlocks;
  auto scales = scale_tile<typename Groups::Scale>(rows, tile.group_of_operands(), tile.n, args.n,
                                                   first_k_block / k_blocks);
  scales.k_blocks_before = first_k_block % k_blocks;
  return scales;
}

template <class Kind, class Shape, class Tile>
DG_DEVICE ScaleTile scales_of_b(const GemmArguments& args, const Tile& tile, const PartOfK& k) {
  constexpr bool kBlocks = Kind::kScaling == Scaling::kBlocks;
  const unsigned column = min(tile.n + Shape::wave_column(), args.n - 1);
  const int row = kBlocks ? column / kScaleBlockN : tile.n;
  const int rows = kBlocks ? args.n / kScaleBlockN : args.n;
  ScaleTile scales = scale_tile(args.sfb, tile.group_of_operands(), row, rows, k.first_k_block);
  if (kBlocks) scales.first_column = column % kScaleBlockN;
  return scales;
}

// The scales of groups of values of B, if it has four bits.
template <class Kind, class Tile>
DG_DEVICE GroupScales scales_of_groups(const GemmArguments& args, const Tile& tile, const PartOfK& k) {
  if constexpr (!Kind::kWidensB) return {};
  const Scales& scales = args.sfb;
  const auto* data = reinterpret_cast<const uint8_t*>(scales.data);
  const unsigned group = tile.group_of_operands(), first_row = tile.n;
  using Scale = typename Kind::ScaleOfB;
  constexpr unsigned kBytes = sizeof(typename Scale::T), kSteps = kScaleBlockK / Scale::kStepK;
  return {data + (group * scales.group_stride + first_row * scales.row_stride) * kBytes,
          static_cast<unsigned>(scales.row_stride) * kBytes,
          static_cast<unsigned>(scales.k_block_stride) / kSteps * kBytes,
          static_cast<unsigned>(args.n * scales.row_stride) * kBytes, k.first_k_block};
}

template <class Kind, class Shape, class Tile>
DG_DEVICE TileOperands tile_operands(const GemmArguments& args, const Tile& tile) {
  const int group = tile.group_of_operands();
  const PartOfK k = part_of_wave<Kind, Shape>(tile.part_of_k(args));
  TileOperands operands{
      operand_tile<typename Kind::A, Kind::kMajorA>(args.a, group, Kind::kGathersA ? 0 : tile.m, tile.rows, args.m, k),
      operand_tile<typename Kind::B, Kind::kMajorB>(args.b, group, tile.n, args.n - tile.n, args.n, k),
  };
  if constexpr (Kind::kSumsBatch) {
    operands.a.batch = {args.a.group_stride * int64_t{sizeof(typename Kind::A)}, tile.first_block, tile.num_blocks};
    operands.b.batch = {args.b.group_stride * int64_t{sizeof(typename Kind::B)}, tile.first_block, tile.num_blocks};
  }
  if constexpr (Kind::kGathersA) operands.a.row_indices = args.row_indices + tile.m;
  return operands;
}

template <class Kind, class Shape, class Tile>
DG_DEVICE TileScales<typename GroupsOfB<Kind>::Scale> tile_scales(const GemmArguments& args, const Tile& tile) {
  const PartOfK k = part_of_wave<Kind, Shape>(tile.part_of_k(args));
  const ScaleTile a = scales_of_a<Kind>(args, tile, k);
  const GroupScales groups = scales_of_groups<Kind>(args, tile, k);
  if constexpr (Kind::kKeepsIntegers) {
    return {a, scales_of_integers<Kind>(args, tile, k), groups};
  } else {
    return {a, scales_of_b<Kind, Shape>(args, tile, k), groups};
  }
}

}  // namespace deep_gemm_rocm

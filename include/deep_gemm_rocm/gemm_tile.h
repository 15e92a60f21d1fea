// Computes one tile of a GEMM, wherever a tile source found it.
#pragma once

#include "deep_gemm_rocm/epilogue.h"
#include "deep_gemm_rocm/gemm_arguments.h"
#include "deep_gemm_rocm/pipeline.h"

namespace deep_gemm_rocm {

// One scale of b for 128 columns, so a wave's columns must lie within one such block.
constexpr int kScaleBlockN = 128;

template <class Schedule, class Tile>
DG_DEVICE void compute_tile(const GemmArguments& args, const Tile& tile, uint8_t* lds) {
  using Shape = typename Schedule::Shape;
  static_assert(kScaleBlockN % Shape::kWaveN == 0 && Shape::kBlockN % Shape::kWaveN == 0);

  if (tile.stored_rows <= 0) return;
  const int64_t group = tile.group;
  const int64_t m = tile.m;
  const int64_t n = tile.n;
  const int columns = args.n - tile.n;
  const int64_t scale_n = min<int64_t>(n + Shape::wave_n(), args.n - 1) / kScaleBlockN;
  const auto* a = static_cast<const uint8_t*>(args.a.data) + group * args.a.group_stride + m * args.a.row_stride;
  const auto* b = static_cast<const uint8_t*>(args.b.data) + group * args.b.group_stride + n * args.b.row_stride;
  auto* d = static_cast<__bf16*>(args.d.data) + group * args.d.group_stride + m * args.d.row_stride + n;
  const float* sfa = args.sfa.data + group * args.sfa.group_stride + m * args.sfa.row_stride;
  const float* sfb = args.sfb.data + group * args.sfb.group_stride + scale_n * args.sfb.row_stride;

  typename Schedule::State state(
      {
          {a, tile.rows, args.k, args.a.row_stride},
          {b, columns, args.k, args.b.row_stride},
          {sfa, args.sfa.row_stride, args.sfa.k_block_stride},
          {sfb, args.sfb.row_stride, args.sfb.k_block_stride},
      },
      lds);
  if (tile.rows > 0) run_k_loop<Schedule>(state);
  Epilogue<Shape>({d, tile.stored_rows, columns, args.d.row_stride}).store(state.mma, tile);
}

}  // namespace deep_gemm_rocm

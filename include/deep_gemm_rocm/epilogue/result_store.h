// How the results of a tile get from accumulators to memory: by the epilogue, when all sums are complete, or while the
// last MFMAs run. This header decides which, for schedules that go on to the next tile.
#pragma once

#include "deep_gemm_rocm/epilogue/epilogue.h"
#include "deep_gemm_rocm/epilogue/streamed_store.h"
#include "deep_gemm_rocm/epilogue/sum_over_waves.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/tile_operands.h"

namespace deep_gemm_rocm {

template <class Kind, class Shape, class Tile>
DG_DEVICE Epilogue<Kind, Shape> epilogue_of(const GemmArguments& args, const Tile& tile) {
  using D = typename Kind::D;
  const int rows = tile.stored_rows;
  const int columns = args.n - tile.n;
  const PartOfK k = tile.part_of_k(args);
  return Epilogue<Kind, Shape>({
      output_tile<D>(args.d, tile.group, tile.m, tile.n, rows, columns),
      output_tile<D>(args.c, tile.group, tile.m, tile.n, rows, columns),
      OutputColumns<Kind>(args, tile.n),
      output_tile<typename Kind::Bias>(args.bias, tile.group, 0, tile.n, rows, columns),
      args.n,
      scales_of_a<Kind>(args, tile, k),
      scales_of_b<Kind, Shape>(args, tile, k),
      scale_tile(args.sfd, tile.group, tile.m, 0, tile.n / kScaleBlockN),
      args.gate,
  });
}

// Loads the output's arguments, and brings the epilogue's other ones into the scalar cache. Waves call it before they
// exchange their sums, so that the first ones wait for it while the last one still multiplies.
template <class Kind>
DG_DEVICE void load_arguments_of_results(const GemmArguments& args) {
  const int64_t stride_c = Kind::kAccumulate ? args.c.stride : args.d.stride;
  const int64_t stride_sfa = Kind::kScaling == Scaling::kRows ? args.sfa.row_stride : args.d.stride;
  asm volatile("" ::"s"(args.d.data), "s"(args.d.stride), "s"(args.n), "s"(stride_c), "s"(stride_sfa));
}

// Stores a tile whose sums, of this wave's part of K, are complete.
template <class Kind, class Shape, class Mma, class Tile>
DG_DEVICE void store_results(const GemmArguments& args, const Tile& tile, const Mma& mma, uint8_t* lds) {
  if constexpr (Shape::kWavesK == 1) {
    epilogue_of<Kind, Shape>(args, tile).store(mma, tile, lds);
  } else {
    using SumOverParts = SumOverWaves<Shape>;
    load_arguments_of_results<Kind>(args);
    SumOverParts sums(lds);
    sums.exchange(mma);
    if (!sums.has_sums()) return;
    sums.load_last_columns();
    const auto epilogue = epilogue_of<Kind, typename SumOverParts::Shape>(args, tile);
    sums.add_last_columns();
    epilogue.store(sums, tile, lds);
  }
}

// Stores nothing during the K loop, and everything in the epilogue. Same interface as StreamedStore.
template <class Kind, class Shape, class Tile>
struct StoreAtEnd {
  static constexpr bool kStreams = false;

  DG_DEVICE StoreAtEnd(const Tile&, bool) {}
  DG_DEVICE void begin() {}
  template <class Mma>
  DG_DEVICE void after_slot(const Mma&, int) {}
  template <class Mma>
  DG_DEVICE bool finish(const Mma&) {
    return false;
  }

  template <class AnyTile, class Mma>
  static DG_DEVICE void store_rest(const AnyTile& tile, const Mma& mma, uint8_t* lds) {
    store_results<Kind, Shape>(gemm_arguments(), tile, mma, lds);
  }
  template <class AnyTile, class Mma>
  static DG_DEVICE void store_without_sums(const AnyTile& tile, const Mma& mma, uint8_t* lds) {
    store_rest(tile, mma, lds);
  }
};

// Whether results are streamed: only where they are the sums themselves, rounded to 16 bits. With 32 bits, a row's
// vectors would take twice the registers, and there is no rounding to hide.
template <class Kind, class Shape>
constexpr bool kStreamsResults = sizeof(typename Kind::D) == 2 && !Kind::kAccumulate && !Kind::kHasBias &&
                                 !Kind::kSkipsHeadMid && Shape::kParts == 1 &&
                                 (Kind::kScaling == Scaling::kNone || Kind::kScaling == Scaling::kBlocks ||
                                  Kind::kScaling == Scaling::kGroups);

template <class Kind, class Shape, class Tile>
using ResultStore =
    Conditional<kStreamsResults<Kind, Shape>, StreamedStore<Kind, Shape, Tile>, StoreAtEnd<Kind, Shape, Tile>>;

}  // namespace deep_gemm_rocm

// When a kernel loads its arguments. Kernels would be right without any of this; it saves scalar loads whose latency
// nothing hides, and scalar registers, which are short beside a K loop.
//
// The arguments that the first loads of operands need come first, one by one, so that the hardware preloads them into
// scalar registers (LLVM AMDGPU usage, "Preloaded Kernel Arguments", up to 14 dwords; clang 20 and later). Together
// with the loads below that makes a small GEMM's first load leave 0.35 µs after the launch instead of 1.1, simulated.
// All arguments follow as one structure, which is read again for later tiles.
#pragma once

#include "deep_gemm_rocm/epilogue/result_store.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/tiles/tile_source.h"

namespace deep_gemm_rocm {

// Loads all arguments that are needed to find a tile, here and at once. Otherwise the compiler loads each of them where
// it is used, and the wave waits for one after the other.
template <class TileSource>
DG_DEVICE void load_arguments_of_tile(const GemmArguments& args) {
  if constexpr (TileSource::kReadsLayout) {
    asm volatile("" ::"s"(args.m), "s"(args.n), "s"(args.k), "s"(args.band_reciprocal), "s"(args.grouped_layout),
                 "s"(args.num_groups));
  } else {
    asm volatile("" ::"s"(args.m), "s"(args.n), "s"(args.k), "s"(args.band_reciprocal));
  }
}

// The same arguments, but the compiler can't use those of scales before this point. Otherwise it would compute
// addresses of scales ahead of the first loads of operands, and delay these.
template <class Kind>
DG_DEVICE GemmArguments with_arguments_of_scales(GemmArguments args) {
  if constexpr (Kind::kWidensB) {
    asm volatile(""
                 : "+s"(args.sfa.row_stride), "+s"(args.sfa.k_block_stride), "+s"(args.sfb.row_stride),
                   "+s"(args.sfb.k_block_stride));
  }
  return args;
}

// The tile source, from arguments that are loaded again.
template <class TileSource>
DG_DEVICE TileSource reload_tiles(const GemmArguments& args) {
  return TileSource(args, TileSource::load_layout(args));
}

template <class TileSource>
constexpr bool kIsDense = false;
template <class Shape, class Order, int kBand>
constexpr bool kIsDense<DenseTiles<Shape, Order, kBand>> = true;

// Whether the first arguments stay in scalar registers after the first tile, so that no wave waits for them between
// overlapping tiles: 4096x32768x512 takes 77.5 µs so, simulated, and 79.0 otherwise. Groups, results that take more
// than rounding, and waves of many columns need the registers.
template <class Schedule, class TileSource>
constexpr bool kKeepsArguments = kIsDense<TileSource> && Schedule::Shape::kWaveN <= 64 &&
                                 kStreamsResults<typename Schedule::Kind, typename Schedule::Shape>;

// The arguments for the workgroup's second and later tiles.
template <class Schedule, class TileSource, class First>
DG_DEVICE decltype(auto) arguments_of_next_tile(const First& first) {
  if constexpr (kKeepsArguments<Schedule, TileSource>) {
    return first.with(gemm_arguments());
  } else {
    return gemm_arguments();
  }
}

// Loads all arguments for the operands and scales of such a tile at once, like load_arguments_of_tile().
template <class Schedule, class TileSource>
DG_DEVICE void load_arguments_of_operands(const GemmArguments& args) {
  constexpr bool kHasScales = Schedule::Kind::kScaling != Scaling::kNone;
  if constexpr (!kKeepsArguments<Schedule, TileSource> && kHasScales) {
    asm volatile("" ::"s"(args.n), "s"(args.k), "s"(args.a.data), "s"(args.a.stride), "s"(args.b.data),
                 "s"(args.b.stride), "s"(args.sfa.data), "s"(args.sfa.row_stride), "s"(args.sfa.k_block_stride),
                 "s"(args.sfb.data), "s"(args.sfb.row_stride), "s"(args.sfb.k_block_stride));
  } else if constexpr (!kKeepsArguments<Schedule, TileSource>) {
    asm volatile("" ::"s"(args.n), "s"(args.k), "s"(args.a.data), "s"(args.a.stride), "s"(args.b.data),
                 "s"(args.b.stride));
  } else if constexpr (kHasScales) {
    asm volatile("" ::"s"(args.sfa.data), "s"(args.sfa.row_stride), "s"(args.sfa.k_block_stride), "s"(args.sfb.data),
                 "s"(args.sfb.row_stride), "s"(args.sfb.k_block_stride));
  }
}

}  // namespace deep_gemm_rocm

// Sorts the tokens' choices of experts and quantises the tokens in one launch: other workgroups do.
#pragma once

#include "deep_gemm_rocm/quantise/cast_tile.h"
#include "deep_gemm_rocm/routing/sort_by_expert.h"

namespace deep_gemm_rocm {

struct SortAndCastArguments {
  SortArguments sort;
  CastArguments cast;
};

}  // namespace deep_gemm_rocm

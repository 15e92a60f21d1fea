// One launch sorts the tokens' choices of experts in some workgroups, and quantises the tokens in the others.
#pragma once

#include "deep_gemm_rocm/quantise/cast_tile.h"
#include "deep_gemm_rocm/routing/sort_by_expert.h"

namespace deep_gemm_rocm {

struct SortAndCastArguments {
  SortArguments sort;
  CastArguments cast;
};

}  // namespace deep_gemm_rocm

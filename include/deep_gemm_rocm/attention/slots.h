// Slots of a paged cache: page number · page + offset.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

constexpr int kAppendedTokens = 4;  // of a workgroup that writes a cache

// A token's slot, of int64_t or int.
DG_DEVICE int64_t slot_of(const void* slots, bool are_wide, int token) {
  return are_wide ? static_cast<const int64_t*>(slots)[token] : static_cast<const int*>(slots)[token];
}

}  // namespace deep_gemm_rocm

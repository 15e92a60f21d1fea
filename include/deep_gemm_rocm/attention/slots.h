// Slots of a paged cache: slot = page · tokens of a page + position in the page.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr int kAppendedTokens = 4;  // that a workgroup writes to a cache, one in each wave

// A token's slot. Slots are int64_t if they are wide, else int.
DG_DEVICE int64_t slot_of(const void* slots, bool are_wide, int token) {
  return are_wide ? static_cast<const int64_t*>(slots)[token] : static_cast<const int*>(slots)[token];
}

// The token that a wave writes, and where.
struct AppendedToken {
  int token, page, in_page;
  bool exists;  // whether there is such a token, and its slot is in the cache
};

template <class Arguments>
DG_DEVICE AppendedToken appended_token(const Arguments& args, int workgroup) {
  const int token = workgroup * kAppendedTokens + wave_id();
  if (token >= args.tokens) return {};
  const int64_t slot = slot_of(args.slots, args.has_wide_slots, token);
  const auto number = static_cast<unsigned>(slot);
  return {token, static_cast<int>(number / args.page_size), static_cast<int>(number % args.page_size),
          slot >= 0 && slot < args.num_slots};
}

}  // namespace deep_gemm_rocm

// How many tokens a page has.
#pragma once

#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// A power of two, given at run time as an argument.
class PowerOfTwo {
 public:
  DG_DEVICE explicit PowerOfTwo(int shift) : shift_(shift) {}

  DG_DEVICE int page_of(int token) const { return token >> shift_; }
  DG_DEVICE int in_page(int token) const { return token & ((1 << shift_) - 1); }
  DG_DEVICE int slot(int page, int in_page) const { return page << shift_ | in_page; }

 private:
  int shift_;
};

// Any number, compiled in, so that the compiler divides by multiplying. Tokens aren't negative.
template <int kTokens>
class CompiledIn {
 public:
  DG_DEVICE explicit CompiledIn(int) {}

  DG_DEVICE int page_of(int token) const { return static_cast<unsigned>(token) / kTokens; }
  DG_DEVICE int in_page(int token) const { return static_cast<unsigned>(token) % kTokens; }
  DG_DEVICE int slot(int page, int in_page) const { return page * kTokens + in_page; }
};

// The class for a kernel's template argument page_size, which is 0 for powers of two.
template <int kTokens>
using PagesOf = Conditional<kTokens == 0, PowerOfTwo, CompiledIn<kTokens>>;

}  // namespace deep_gemm_rocm

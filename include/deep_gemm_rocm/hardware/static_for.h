// Loops over compile-time indices. `#pragma unroll` gives up on long bodies, and then register arrays land in scratch.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

template <int kValue>
struct Index {
  static constexpr int value = kValue;
  constexpr operator int() const { return kValue; }
};

template <int... kIndices>
struct Indices {};

template <class, int... kIndices>
using MakeIndices = Indices<kIndices...>;

template <class Body, int... kIndices>
DG_DEVICE void for_each_index(Indices<kIndices...>, Body&& body) {
  (body(Index<kIndices>{}), ...);
}

// Calls body(Index<0>{}), body(Index<1>{}), … body(Index<kCount - 1>{}). A body takes auto if it needs the index as a
// constant expression, and otherwise int: then it is instantiated once, which compiles much faster.
template <int kCount, class Body>
DG_DEVICE void static_for(Body&& body) {
  for_each_index(__make_integer_seq<MakeIndices, int, kCount>{}, body);
}

}  // namespace deep_gemm_rocm

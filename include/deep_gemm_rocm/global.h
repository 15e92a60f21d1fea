// Global memory by 64-bit addresses, for what no buffer of 2 GiB reaches. The compiler is told that it is not LDS.
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"

namespace deep_gemm_rocm {

template <class T>
using Global = __attribute__((address_space(1))) T;

template <class T>
DG_DEVICE T load_global(const uint8_t* address) {
  return *(const Global<T>*)address;
}

}  // namespace deep_gemm_rocm

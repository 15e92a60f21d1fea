// Global memory by 64-bit addresses, for tensors beyond the 2 GiB of a buffer. The address space tells the compiler
// that it is not LDS.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

template <class T>
using Global = __attribute__((address_space(1))) T;

template <class T>
DG_DEVICE T load_global(const uint8_t* address) {
  return *(const Global<T>*)address;
}

}  // namespace deep_gemm_rocm

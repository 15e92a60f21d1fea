// assert(), abort() and trap() on the device end the kernel with an error. The simulator names the line.
#pragma once

#include "qualifiers.h"

extern "C" {
__device__ __attribute__((noinline, weak)) void __assert_fail(const char*, const char*, unsigned, const char*) {
  __builtin_trap();
}
}
__HIP_INLINE_DEVICE__ void abort() { __builtin_trap(); }
__HIP_INLINE_DEVICE__ void __trap() { __builtin_trap(); }

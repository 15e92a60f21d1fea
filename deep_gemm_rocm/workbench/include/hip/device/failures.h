// assert(), abort() and trap() on the device end the kernel with an error. The simulator names the line.
#pragma once

#include "host_calls.h"

namespace __hip_host {

__HIP_INLINE_DEVICE__ u64 append(u64 message, const char* text, bool is_last) {
  u64 bytes = 1;
  while (text[bytes - 1]) ++bytes;
  return __ockl_printf_append_string_n(message, text, bytes, is_last);
}

__device__ __attribute__((noinline, weak)) void print_assertion(const char* assertion, const char* file, unsigned line,
                                                                const char* function) {
  constexpr u64 to_stderr = 1;
  u64 message = append(__ockl_printf_begin(to_stderr), "%s:%u: %s: Device-side assertion `%s' failed.\n", false);
  message = append(message, file, false);
  message = __ockl_printf_append_args(message, 1, line, 0, 0, 0, 0, 0, 0, false);
  append(append(message, function, false), assertion, true);
}

}  // namespace __hip_host

extern "C" {
// Inline, so that the trap has the line of the assertion.
inline __HIP_DEVICE__ void __assert_fail(const char* assertion, const char* file, unsigned line,
                                         const char* function) {
  __hip_host::print_assertion(assertion, file, line, function);
  __builtin_trap();
}
}
__HIP_INLINE_DEVICE__ void abort() { __builtin_trap(); }
__HIP_INLINE_DEVICE__ void __trap() { __builtin_trap(); }

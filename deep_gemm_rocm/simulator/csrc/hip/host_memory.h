// Whether the host may read or write an address range: the runtime asks before it follows a caller's pointer, so that
// a wild one becomes a HIP error instead of a crash.
#pragma once

#include <cstddef>
#include <cstring>

#include "status.h"

bool is_mapped(const void* address, size_t size);
bool is_readable(const void* address, size_t size);
bool is_writable(void* address, size_t size);

// Copies from a caller's pointer; `what` names it in the error.
inline void read_from_host(void* destination, const void* source, size_t size, const char* what) {
  if (!is_readable(source, size)) {
    fail(hipErrorInvalidValue, "%s at %p: %zu bytes there can't be read", what, source, size);
  }
  std::memcpy(destination, source, size);
}

#pragma once

#include <cstddef>

// hipLimitStackSize: bytes of stack a thread has beyond what its kernel's descriptor states.
size_t stack_limit();

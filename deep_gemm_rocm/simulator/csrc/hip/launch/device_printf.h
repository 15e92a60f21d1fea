#pragma once

#include <cstdint>
#include <vector>

// Prints what a kernel passed to printf: 0 for stdout or 1 for stderr, the format, and the arguments. Strings are in
// place, padded to eight bytes; a number takes eight. Returns the number of characters, as printf does.
int print_message(const std::vector<uint64_t>& message);

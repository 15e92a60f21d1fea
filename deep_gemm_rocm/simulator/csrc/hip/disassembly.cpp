// An addition to the HIP API: gfx942 machine code as text.

#include <cstddef>

#include "abi.h"
#include "engine_library.h"

// One line for each instruction: offset, mnemonic, operands. Returns the length of the whole text; at most `capacity`
// bytes, the final zero included, are written. 0 where there is no engine.
HIP_API size_t dgSimDisassemble(const void* code, size_t bytes, char* text, size_t capacity) {
  try {
    return engine().disassemble(code, bytes, text, capacity);
  } catch (...) {
    return 0;
  }
}

// Additions to the HIP API: what a code object contains, as text. A function that gives text returns the length of the
// whole of it and writes at most `capacity` bytes, the final zero included; 0 where there is nothing to tell.

#include <cstddef>
#include <cstdio>
#include <string>

#include "abi.h"
#include "engine_library.h"
#include "module.h"

namespace {

size_t give(const std::string& text, char* out, size_t capacity) {
  if (capacity > 0) std::snprintf(out, capacity, "%s", text.c_str());
  return text.size();
}

}  // namespace

// gfx942 machine code: one line for each instruction with offset, mnemonic and operands.
HIP_API size_t dgSimDisassemble(const void* code, size_t bytes, char* text, size_t capacity) {
  try {
    return engine().disassemble(code, bytes, text, capacity);
  } catch (...) {
    return 0;
  }
}

// Every gfx942 opcode: one line for each with encoding family, number, mnemonic, status and what is approximate in it.
HIP_API size_t dgSimOpcodes(char* text, size_t capacity) {
  try {
    return engine().list_opcodes(text, capacity);
  } catch (...) {
    return 0;
  }
}

// The arguments that a caller of the kernel gives: one line for each, its size in bytes and whether it is a pointer.
HIP_API size_t dgSimKernelArguments(hipFunction_t function, char* text, size_t capacity) {
  try {
    std::string lines;
    for (const KernelArgument& argument : function_of(function)->kernel->arguments) {
      if (argument.is_hidden()) continue;
      const char* kind = argument.kind == ArgumentKind::by_value ? "value" : "pointer";
      lines += std::to_string(argument.size) + " " + kind + "\n";
    }
    return give(lines, text, capacity);
  } catch (...) {
    return 0;
  }
}

// The executable segment that holds the kernel, and the offset of the kernel's first instruction in it. False where the
// function is unknown.
HIP_API bool dgSimKernelCode(hipFunction_t function, const void** code, size_t* bytes, size_t* entry) {
  try {
    const mi300x::Kernel& kernel = function_of(function)->kernel->descriptor;
    *code = reinterpret_cast<const void*>(kernel.code_begin);
    *bytes = kernel.code_end - kernel.code_begin;
    *entry = kernel.entry - kernel.code_begin;
    return true;
  } catch (...) {
    return false;
  }
}

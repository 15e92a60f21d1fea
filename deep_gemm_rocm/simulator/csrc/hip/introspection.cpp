// Additions to the HIP API that describe code objects and opcodes as text. Each returns the length of the whole text
// and writes at most `capacity` bytes including the final zero; 0 where there is no text or an argument is invalid.

#include <cstddef>
#include <string>

#include "base/abi.h"
#include "base/host_memory.h"
#include "launch/engine_library.h"
#include "modules/module.h"

// gfx942 machine code: one line for each instruction with offset, mnemonic and operands.
HIP_API size_t dgSimDisassemble(const void* code, size_t bytes, Out<char> text, size_t capacity) {
  return answer([&] {
    require_readable(code, bytes, 1, "the code");
    allow(text, "the text", capacity);
    return engine().disassemble(code, bytes, text.address(), text ? capacity : 0);
  });
}

// Every gfx942 opcode: one line for each, with encoding family, number, mnemonic, status and how it is approximate.
HIP_API size_t dgSimOpcodes(Out<char> text, size_t capacity) {
  return answer([&] {
    allow(text, "the text", capacity);
    return engine().list_opcodes(text.address(), text ? capacity : 0);
  });
}

// The arguments that a caller of the kernel gives: one line for each, its size in bytes, whether it is a pointer, and
// its name where the code object has it.
HIP_API size_t dgSimKernelArguments(hipFunction_t function, Out<char> text, size_t capacity) {
  return answer([&] {
    std::string lines;
    for (const KernelArgument& argument : function_of(function)->kernel->arguments) {
      if (argument.is_hidden()) continue;
      const char* kind = argument.kind == ArgumentKind::by_value ? "value" : "pointer";
      lines += std::to_string(argument.size) + " " + kind + " " + argument.name + "\n";
    }
    give_text(text, capacity, lines, "the text");
    return lines.size();
  });
}

// The executable segment that holds the kernel, and the offset of the kernel's first instruction in it. False where the
// function is unknown.
HIP_API bool dgSimKernelCode(hipFunction_t function, Out<const void*> code, Out<size_t> bytes, Out<size_t> entry) {
  return answer([&] {
    require(code, "the code");
    require(bytes, "the bytes");
    require(entry, "the entry");
    const mi300x::Kernel& kernel = function_of(function)->kernel->descriptor;
    code.give(reinterpret_cast<const void*>(kernel.code_begin));
    bytes.give(kernel.code_end - kernel.code_begin);
    entry.give(kernel.entry - kernel.code_begin);
    return true;
  });
}

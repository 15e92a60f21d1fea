// Instructions as text.
#pragma once

#include <cstdint>
#include <string>

#include "instruction.h"

namespace mi300x {

// Mnemonic, operands and memory modifiers in the style of LLVM.
std::string disassemble(const Instruction& instruction);

// The same with the raw words, for error messages.
std::string describe(const Instruction& instruction);

// -0x40: an offset in the code.
std::string signed_hexadecimal(int64_t value);

// s[4:5], vcc, m0: scalar registers as LLVM writes them.
std::string scalar_name(int index, int dwords);

}  // namespace mi300x

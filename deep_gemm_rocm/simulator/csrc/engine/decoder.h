// Machine code to instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "instruction.h"

namespace mi300x {

// Takes the instruction at words[0] apart; `available` is the number of dwords that may be read and `position` its
// index in the code (branches are relative to it). An unknown encoding gives Op::unknown.
Instruction parse(const uint32_t* words, size_t available, size_t position);

// Parses an instruction and binds it to its handler. What is illegal or not implemented gets a handler that reports it
// when it is executed.
Instruction decode(const uint32_t* words, size_t available, size_t position);

// False where executing it only reports that it is illegal or not implemented; its operands may be out of all bounds
// then.
bool is_executable(const Instruction& instruction);

// Every dword of a code segment as if an instruction began there, followed by one that reports running off the end.
std::vector<Instruction> decode_all(const uint32_t* words, size_t count);

// A line for each opcode of each encoding: family, number, mnemonic, status (exact, approximate or missing) and, of
// approximate ones, the difference.
std::string list_opcodes();

// The mnemonic, operands and raw words, for error messages.
std::string describe(const Instruction& instruction);

// -0x40: an offset in the code.
std::string signed_hexadecimal(int64_t value);

// s[4:5], vcc, m0: scalar registers as LLVM writes them.
std::string scalar_name(int index, int dwords);

// Mnemonic and operands in the style of LLVM, without modifiers.
std::string disassemble(const Instruction& instruction);

}  // namespace mi300x

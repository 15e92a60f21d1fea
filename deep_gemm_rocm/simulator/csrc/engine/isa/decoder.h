// Machine code to instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "instruction.h"

namespace mi300x {

// Takes the instruction at words[0] apart; `available` is the number of dwords that may be read and `position` its
// index in the code (branches are relative to it). An unknown encoding gives Op::unknown.
Instruction parse(const uint32_t* words, size_t available, size_t position);

// Parses an instruction and binds it to its handler. What is illegal or not implemented gets a handler that reports it
// when it is executed.
Instruction decode(const uint32_t* words, size_t available, size_t position);

// False where executing the instruction only reports that it is illegal or not implemented. Its operands may then name
// registers that don't exist.
bool is_executable(const Instruction& instruction);

// Every dword of a code segment as if an instruction began there, followed by one that reports running off the end.
std::vector<Instruction> decode_all(const uint32_t* words, size_t count);

}  // namespace mi300x

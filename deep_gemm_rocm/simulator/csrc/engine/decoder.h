// Machine code to instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "instruction.h"

namespace mi300x {

// Decodes the instruction at words[0]; `available` is the number of dwords that may be read and `position` its index in
// the code (branches are relative to it). What can't be decoded or isn't implemented gets a handler that reports it
// when it is executed.
Instruction decode(const uint32_t* words, size_t available, size_t position);

// Every dword of a code segment as if an instruction began there, followed by one that reports running off the end.
std::vector<Instruction> decode_all(const uint32_t* words, size_t count);

// The mnemonic and the raw words, for error messages.
std::string describe(const Instruction& instruction);

}  // namespace mi300x

// The registers and the memory that an instruction reads and writes. The sanitizer, the timing model and the counters
// use it; execution doesn't.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "opcodes.h"

namespace mi300x {

// All registers have one numbering: the rows of the vector register file, then the SGPRs.
constexpr int first_scalar = register_rows;
constexpr int register_count = first_scalar + scalar_count;

struct RegisterRange {
  uint16_t first = 0;
  uint16_t count = 0;

  bool is_vector() const { return first < first_scalar; }
  bool operator==(const RegisterRange& other) const { return first == other.first && count == other.count; }
};

constexpr RegisterRange scalar_range(int index, int count) {
  return {uint16_t(first_scalar + index), uint16_t(count)};
}

// v7, a0, s12, vcc, exec or m0, for a register's number.
std::string register_name(int number);

// Register ranges in the order of the encoding.
template <int capacity>
class RangeList {
 public:
  void push_back(const RegisterRange& range) { ranges_[size_++] = range; }
  const RegisterRange* begin() const { return ranges_; }
  const RegisterRange* end() const { return ranges_ + size_; }
  const RegisterRange& operator[](size_t i) const { return ranges_[i]; }
  size_t size() const { return size_; }

 private:
  RegisterRange ranges_[capacity];
  uint8_t size_ = 0;
};

// A memory access of each active lane, or of a scalar instruction.
struct MemoryAccess {
  uint8_t parts = 0;  // 2 for DS_READ2 and its like, 0 where the instruction touches no memory
  uint8_t bytes = 0;  // of each part
  bool reads = false;
  bool writes = false;
  bool overwrites = false;     // the old value doesn't matter
  bool high_half = false;      // stores a byte or short from the upper half of the register
  bool atomic = false;         // read-modify-write, or coherent over the device (SC1)
  bool compares = false;       // an atomic that only writes where it finds the expected value
  uint32_t offsets[2] = {0, 0};  // LDS: offset of each part
};

// How many registers there are, or how many an instruction wants: one more than the last that it names. SGPRs from
// FLAT_SCRATCH on exist in any case.
struct RegisterCounts {
  int vectors = 0, accumulators = 0, scalars = 0;

  bool cover(const RegisterCounts& wanted) const {
    return wanted.vectors <= vectors && wanted.accumulators <= accumulators && wanted.scalars <= scalars;
  }
};

struct Effects {
  Unit unit = Unit::other;
  Derivation derivation = Derivation::all_operands;
  uint32_t traits = 0;         // of the opcode
  RangeList<6> reads;          // memory instructions: the addresses come first
  RangeList<3> writes;
  uint8_t address_count = 0;   // the first ranges of `reads`: those that tell where memory is accessed
  bool is_load = false;        // writes registers when its data arrive
  bool is_store = false;       // takes `reads` that aren't addresses to memory
  bool to_lds = false;         // a load whose data go to LDS
  bool is_partial = false;     // vector: writes 16 or 8 bits of its destination
  uint8_t passes = 0;          // matrix: four clocks each
  bool is_xdl = false;         // matrix: runs on the matrix core proper, not as F32 or F64 multiply-adds
  bool is_f64 = false;         // matrix
  MemoryAccess memory;
  RegisterCounts registers;    // that the instruction wants

  bool has(uint32_t any_of) const { return (traits & any_of) != 0; }
};

Effects effects_of(const Instruction& inst);

}  // namespace mi300x

// What an instruction touches, apart from what it computes: registers, memory, and the unit that runs it. The
// sanitizer and the timing model ask for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "wave.h"

namespace mi300x {

// The sanitizer numbers all registers in one row: those of the vector register file by their row, then the SGPRs.
constexpr int first_scalar = register_rows;
constexpr int scalar_count = sizeof(Wave::sgpr) / sizeof(uint32_t);
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

// v7, a0, s12, vcc, exec, m0: a register by its number among all registers.
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

enum class Unit : uint8_t { other, scalar, scalar_memory, vector, transcendental, matrix, lds, vector_memory, flat };

// How the definedness of a result follows from that of the operands.
enum class Derivation : uint8_t {
  all_operands,      // lane by lane, from all dwords of all operands
  loaded,            // from the memory that was read
  low_dwords_first,  // dword i from the dwords up to i: sums, left shifts and moves of 64 bits
  packed_pairs,      // two f32 lanes, each from the dword that op_sel or op_sel_hi selects
  packed_move,       // V_PK_MOV_B32
  select,            // V_CNDMASK: from the operand that the mask selects
  carry,             // from two operands and the carry-in mask
  matrix,            // all lanes from all lanes
  crossing,          // of the lanes that they come from
  read_lane,
  write_lane,
  bit_move,  // scalar lane masks, bit by bit
  bit_and,
  bit_or,
  bit_and_not,
  bit_not_and,
};

// The bytes that an instruction touches, in each active lane if it is a vector instruction.
struct MemoryAccess {
  uint8_t parts = 0;  // of one access: 2 for DS_READ2 and its like, 0 where the instruction touches no memory
  uint8_t bytes = 0;  // of each part
  bool reads = false;
  bool writes = false;
  bool overwrites = false;     // LDS: what was there before doesn't matter
  bool high_half = false;      // stores: of a byte or short from the upper half of the register
  bool atomic = false;         // read-modify-write, or coherent over the device (SC1)
  bool compares = false;       // an atomic that only writes where it finds the expected value
  uint32_t offsets[2] = {0, 0};  // DS: of each part
};

struct Effects {
  Unit unit = Unit::other;
  Derivation derivation = Derivation::all_operands;
  RangeList<6> reads;          // what memory instructions read begins with the addresses
  RangeList<3> writes;
  uint8_t address_count = 0;   // ranges of `reads` that tell where memory is accessed
  bool is_load = false;        // writes registers when its data arrive
  bool is_store = false;       // takes `reads` that aren't addresses to memory
  bool to_lds = false;         // a load whose data go to LDS
  bool combines_exec = false;  // scalar: with EXEC, which gets the result; saves_exec: the destination what EXEC was
  bool saves_exec = false;
  bool keeps_scc = false;      // scalar: leaves SCC as it is
  bool is_partial = false;     // vector: writes 16 or 8 bits of its destination
  bool is_dot = false;
  uint8_t passes = 0;          // matrix: four clocks each
  bool is_xdl = false;         // matrix: runs on the matrix core proper, not as F32 or F64 multiply-adds
  bool is_f64 = false;         // matrix
  MemoryAccess memory;
};

Effects effects_of(const Instruction& inst);

// Passes of a matrix instruction (LLVM, SISchedule.td for gfx940, and AMD's matrix instruction calculator).
int matrix_passes(const char* mnemonic);

}  // namespace mi300x

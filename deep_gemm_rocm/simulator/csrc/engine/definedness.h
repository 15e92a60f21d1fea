// Which lanes of the vector registers and which bits of the scalar ones hold what the program has written. Scalar
// registers are followed bit by bit, because compilers build lane masks on top of undefined ones and then keep only
// the bits that they have set.
//
// Structures are copied with their padding. A dword of a wide load that nothing has written, beside one that something
// has, is a gap: moves and selects pass it on, and it may be stored beside defined dwords.
#pragma once

#include <array>

#include "effects.h"

namespace mi300x {

// What a load has read, by the dwords of its result: in which lanes it was written memory.
struct Loaded {
  std::array<uint64_t, 4> lanes{~0ull, ~0ull, ~0ull, ~0ull};
  uint64_t scalars = ~0ull;  // of a scalar load: a bit each dword

  void lose(uint32_t dword, int lane) { lanes[dword] &= ~(1ull << lane); }
  uint64_t in_all() const { return lanes[0] & lanes[1] & lanes[2] & lanes[3]; }
  bool is_complete() const { return (in_all() & scalars) == ~0ull; }
};

class Definedness {
 public:
  // Of a wave that is about to start: `scalars` SGPRs from s0 on hold launch state.
  void start(const Wave& wave, const Kernel& kernel, int scalars);

  bool is_defined(const RegisterRange& range, uint64_t lanes) const;
  // Of the given lanes of a vector register, those that aren't defined.
  uint64_t undefined_lanes(int row, uint64_t lanes) const { return lanes & ~rows_[size_t(row)]; }
  // Of a vector register, the lanes that hold a gap, among those that aren't defined.
  uint64_t gaps(int row) const { return gaps_[size_t(row)]; }
  bool scc_is_defined() const { return scc_; }

  // What the instruction is about to define.
  void execute(Wave& wave, const Instruction& inst, const Effects& effects, const Loaded& loaded);

 private:
  uint64_t result_lanes(Wave& wave, const Instruction& inst, const Effects& effects, int row) const;
  uint64_t result_gaps(Wave& wave, const Instruction& inst, const Effects& effects, int row) const;
  uint64_t lanes_of(const Operand& operand, int dword) const;
  uint64_t crossed_lanes(Wave& wave, const Instruction& inst) const;
  uint64_t gaps_of(const Operand& operand, int dword) const;
  uint64_t bits_of(const Operand& operand) const;
  uint64_t pair(int index) const { return scalars_[size_t(index)] | uint64_t(scalars_[size_t(index) + 1]) << 32; }
  void define_scalar(const RegisterRange& range, uint64_t bits);
  void define_loaded_scalars(const RegisterRange& range, uint64_t dwords);
  void execute_bitwise(const Wave& wave, const Instruction& inst, const Effects& effects);
  bool all_is_defined(const RangeList<6>& ranges) const;
  void define_all(const Effects& effects, uint64_t lanes);
  void write_results(Wave& wave, const Instruction& inst, const Effects& effects, const Loaded& loaded);

  std::array<uint64_t, register_rows> rows_{}, gaps_{};  // a bit a lane
  std::array<uint32_t, scalar_count> scalars_;           // a bit a bit
  std::array<bool, scalar_count> scalar_gaps_;
  bool scc_ = false;
};

}  // namespace mi300x

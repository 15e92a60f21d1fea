// Tracks which lanes of vector registers and which bits of scalar registers are defined, that is, hold values that the
// program has written. Scalar registers are tracked bit by bit, because compilers build lane masks on top of undefined
// ones and then keep only the bits that they have set.
//
// Structures are copied with their padding. An unwritten dword of a wide load that also has written ones is a gap:
// moves and selects pass it on, and it may be stored beside defined dwords.
#pragma once

#include <array>

#include "../execution/wave.h"
#include "../isa/effects.h"

namespace mi300x {

// For each dword of a load's result, the lanes that read written memory.
struct Loaded {
  std::array<uint64_t, 4> lanes{~0ull, ~0ull, ~0ull, ~0ull};
  uint64_t scalars = ~0ull;  // scalar loads: a bit for each dword

  void lose(uint32_t dword, int lane) { lanes[dword] &= ~(1ull << lane); }
  uint64_t in_all() const { return lanes[0] & lanes[1] & lanes[2] & lanes[3]; }
  bool is_complete() const { return (in_all() & scalars) == ~0ull; }
};

class Definedness {
 public:
  // Resets the state for a wave that is about to start with launch state in `scalars` SGPRs from s0 on.
  void start(const Wave& wave, const Kernel& kernel, int scalars);

  bool is_defined(const RegisterRange& range, uint64_t lanes) const;
  // The given lanes of a vector register that aren't defined.
  uint64_t undefined_lanes(int row, uint64_t lanes) const { return lanes & ~rows_[size_t(row)]; }
  // The lanes of a vector register that hold a gap, if they aren't defined.
  uint64_t gaps(int row) const { return gaps_[size_t(row)]; }
  bool scc_is_defined() const { return scc_; }

  // Records the results of the instruction that is about to execute.
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

  std::array<uint64_t, register_rows> rows_{}, gaps_{};  // a bit for each lane
  std::array<uint32_t, scalar_count> scalars_;           // a bit for each bit
  std::array<bool, scalar_count> scalar_gaps_;
  bool scc_ = false;
};

}  // namespace mi300x

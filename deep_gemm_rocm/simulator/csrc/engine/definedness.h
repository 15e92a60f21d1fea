// Which lanes of the vector registers and which bits of the scalar ones hold what the program has written. Scalar
// registers are followed bit by bit, because compilers build lane masks on top of undefined ones and then keep only
// the bits that they have set.
#pragma once

#include <array>

#include "effects.h"

namespace mi300x {

class Definedness {
 public:
  // Of a wave that is about to start: `scalars` SGPRs from s0 on hold launch state.
  void start(const Wave& wave, int scalars);

  bool is_defined(const RegisterRange& range, uint64_t lanes) const;
  // Of the given lanes of a vector register, those that aren't defined.
  uint64_t undefined_lanes(int row, uint64_t lanes) const { return lanes & ~rows_[size_t(row)]; }
  bool scc_is_defined() const { return scc_; }

  // What the instruction is about to define; `loaded` lanes have read defined memory only, dwords for a scalar load.
  void execute(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t loaded);

 private:
  uint64_t result_lanes(Wave& wave, const Instruction& inst, const Effects& effects, int row) const;
  uint64_t lanes_of(const Operand& operand, int dword) const;
  uint64_t bits_of(const Operand& operand) const;
  uint64_t pair(int index) const { return scalars_[size_t(index)] | uint64_t(scalars_[size_t(index) + 1]) << 32; }
  void define_scalar(const RegisterRange& range, uint64_t bits);
  void define_loaded_scalars(const RegisterRange& range, uint64_t dwords);
  void execute_bitwise(const Wave& wave, const Instruction& inst, const Effects& effects);
  bool all_is_defined(const RangeList<6>& ranges) const;
  void define_all(const Effects& effects, uint64_t lanes);
  void write_results(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t loaded);

  std::array<uint64_t, register_rows> rows_;     // a bit a lane
  std::array<uint32_t, scalar_count> scalars_;  // a bit a bit
  bool scc_ = false;
};

}  // namespace mi300x

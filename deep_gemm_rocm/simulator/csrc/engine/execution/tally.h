// Counts how often each instruction was executed. Counts include instructions that were skipped because no wanted
// result depends on them.
#pragma once

#include <cstdint>
#include <vector>

#include "../isa/opcodes.h"

namespace mi300x {

class Tally {
 public:
  // `needed` says for each dword of the code whether the instruction there has to be executed.
  Tally(const std::vector<Instruction>& code, const std::vector<uint8_t>& needed)
      : code_(code), next_(code.size()), begun_(code.size()) {
    for (size_t pc = code.size(); pc-- > 0;) {
      const size_t after = pc + code[pc].size;
      next_[pc] = uint32_t(needed[pc] || after >= code.size() ? pc : next_[after]);
    }
  }

  // Counts the instructions from `pc` to the first one that has to be executed, which is returned.
  size_t count(size_t pc) {
    ++begun_[pc];
    return next_[pc];
  }

  // Adds the count of the instruction at each dword.
  void add_to(std::vector<uint64_t>& executed) const {
    for (size_t first = 0; first < begun_.size(); ++first) {
      if (begun_[first] == 0) continue;
      for (size_t pc = first; pc <= next_[first]; pc += code_[pc].size) executed[pc] += begun_[first];
    }
  }

 private:
  const std::vector<Instruction>& code_;
  std::vector<uint32_t> next_;
  std::vector<uint64_t> begun_;  // for each dword, how often execution came to it other than from the one before it
};

}  // namespace mi300x

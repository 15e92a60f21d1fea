// The steps of a wave in order: functional execution records them, the timing model consumes them.
#pragma once

#include <cstdint>
#include <vector>

#include "../execution/wave.h"
#include "../isa/effects.h"
#include "address_space.h"
#include "memory_system.h"

namespace mi300x::timing {

struct Step {
  uint32_t pc = 0;           // index of the instruction in the code
  uint16_t lines = 0;        // cache lines that it touches: the next ones in the trace's list
  uint16_t bank_clocks = 0;  // LDS: clocks on the banks, conflicts included
  uint16_t conflicts = 0;    // LDS: clocks lost to bank conflicts
  uint16_t bytes = 0;        // stores: bytes of each line
};

// A queue of steps, empty most of the time.
class Trace {
 public:
  // `scratch` is the address of the wave's scratch in the memory system.
  Trace(const AddressSpace& addresses, uint64_t scratch) : addresses_(&addresses), scratch_(scratch) {}

  bool empty() const { return next_ == steps_.size(); }
  const Step& front() const { return steps_[next_]; }
  const uint64_t* lines() const { return lines_.data() + next_line_; }
  void pop() {
    next_line_ += steps_[next_++].lines;
    if (empty()) clear();
  }
  void clear() {
    steps_.clear();
    lines_.clear();
    next_ = next_line_ = 0;
  }

  // Records the instruction that the wave is about to execute.
  void record(Wave& wave, const Instruction& inst, const Effects& effects);

 private:
  void add_line(uint64_t line) {
    if (lines_.size() == first_ || lines_.back() != line) lines_.push_back(line);
  }
  void add_bytes(uint64_t place, uint32_t bytes, uint64_t of_line = line_bytes);
  void add_memory(uint64_t address, uint32_t bytes, uint64_t of_line = line_bytes) {
    add_bytes(addresses_->place_of(address, recent_), bytes, of_line);
  }
  void add_scratch(uint32_t offset, int lane, uint32_t bytes);
  void record_vector_memory(Wave& wave, const Instruction& inst, const Effects& effects, Step& step);
  void record_scalar_memory(Wave& wave, const Instruction& inst, const Effects& effects);

  const AddressSpace* addresses_;
  AddressSpace::Block recent_;
  uint64_t scratch_;
  std::vector<Step> steps_;
  std::vector<uint64_t> lines_;
  size_t next_ = 0, next_line_ = 0;
  size_t first_ = 0;  // first line of the step that is being recorded
};

}  // namespace mi300x::timing

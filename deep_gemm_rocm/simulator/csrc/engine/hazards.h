// Wait states that the hardware doesn't insert by itself (LLVM, GCNHazardRecognizer.cpp, the rules for gfx940).
#pragma once

#include <array>
#include <string>

#include "effects.h"

namespace mi300x {

class HazardRules {
 public:
  void start();

  // A description of the rule that the instruction breaks, empty where it keeps them all.
  std::string broken_by(const Instruction& inst, const Effects& effects) const;
  void issue(const Instruction& inst, const Effects& effects);

 private:
  // What later instructions must know of one that was issued.
  struct Event {
    Op op = Op::unknown;
    Unit unit = Unit::other;
    bool is_xdl = false, is_f64 = false, is_dot = false, is_partial = false;
    uint8_t passes = 0;
    RegisterRange written;     // its first destination
    uint64_t sequence = 0;     // instructions of the wave before it
    uint64_t time = 0;         // wait states before it
    int hardware_register = 0;  // of S_SETREG
  };
  struct Requirement;

  // Each instruction is a wait state at least, and no rule needs more than 19 of them.
  static constexpr size_t window = 32;
  using Sequences = std::array<uint64_t, register_count>;

  bool is_recent(uint64_t sequence) const { return sequence != 0 && sequence + window > sequence_; }
  const Event& event(uint64_t sequence) const { return events_[sequence % window]; }
  std::string check(const Requirement& requirement, const Event& event, int number) const;
  std::string check_read(const RegisterRange& range, int index, const Instruction& inst, const Effects& effects) const;
  std::string check_write(const RegisterRange& range, const Instruction& inst, const Effects& effects) const;
  std::string check_state(const Instruction& inst, const Effects& effects) const;
  static int needed_for_matrix_read(const Event& event, const RegisterRange& range, bool as_c, const Instruction& inst,
                                    const Effects& effects);

  std::array<Event, window> events_;
  Sequences writers_{}, readers_as_c_{}, stores_{};  // the last instruction that wrote, read as C or stored a register
  uint64_t last_setreg_ = 0, last_f64_matrix_ = 0;
  uint64_t sequence_ = 1;
  uint64_t time_ = 1;
};

}  // namespace mi300x

// Wait states that the hardware doesn't insert by itself (LLVM, GCNHazardRecognizer.cpp, the rules for gfx940).
//
// Whether an instruction keeps the rules depends only on the few instructions issued before it. So each path to an
// instruction is checked once, and its hash is remembered.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "../isa/effects.h"

namespace mi300x {

// The hashes of paths that keep the rules: the last two for each instruction. Waves share them.
class KnownPaths {
 public:
  explicit KnownPaths(size_t instructions) : paths_(2 * instructions) {}
  bool contain(uint64_t pc, uint64_t path) const { return paths_[index(pc, path)] == path; }
  void insert(uint64_t pc, uint64_t path) { paths_[index(pc, path)] = path; }

 private:
  static size_t index(uint64_t pc, uint64_t path) { return 2 * pc + (path >> 63); }
  std::vector<uint64_t> paths_;
};

class HazardRules {
 public:
  // `as_llvm` adds the rule that LLVM keeps and AMD's own assembly doesn't.
  explicit HazardRules(bool as_llvm) : as_llvm_(as_llvm) {}
  void start();

  // A description of the rule that the instruction breaks, empty where it keeps them all.
  std::string issue(const Instruction& inst, const Effects& effects, uint64_t pc, KnownPaths& known) {
    extend_path((pc + 1) * path_factor);
    if (known.contain(pc, path_)) {
      step(0) = {&inst, &effects};
      ++unseen_;
      return std::string();
    }
    std::string broken = look_at(inst, effects);
    if (broken.empty()) known.insert(pc, path_);
    return broken;
  }
  // The same for an instruction whose registers were shifted at run time (GPR indexing).
  std::string issue_changed(const Instruction& inst, const Effects& effects) {
    extend_path(++changed_ * ~path_factor);
    return look_at(inst, effects);
  }

 private:
  // An issued instruction, as far as later ones must know about it.
  struct Event {
    Op op = Op::unknown;
    Unit unit = Unit::other;
    bool is_xdl = false, is_f64 = false, is_dot = false, is_partial = false;
    uint8_t passes = 0;
    RegisterRange written;     // the first destination
    uint64_t sequence = 0;     // instructions of the wave before this one
    uint64_t time = 0;         // wait states before this one
    int hardware_register = 0;  // S_SETREG: the register written
  };
  struct Requirement;

  // Each instruction counts at least one wait state, and no rule needs more than 19.
  static constexpr size_t window = 32;
  using Sequences = std::array<uint64_t, register_count>;

  // The last instructions. The last `unseen_` of them were on known paths, so see() hasn't recorded them yet.
  struct Step {
    const Instruction* inst;
    const Effects* effects;
  };
  static constexpr uint64_t path_factor = 0x9E3779B97F4A7C15;
  static constexpr uint64_t power(uint64_t base, size_t n) { return n == 0 ? 1 : base * power(base, n - 1); }
  Step& step(size_t back) { return steps_[(issued_ - 1 - back) % window]; }
  void extend_path(uint64_t instruction) {
    uint64_t& place = hashed_[issued_++ % window];
    path_ = (path_ - place * power(path_factor, window - 1)) * path_factor + instruction;
    place = instruction;
  }

  std::string look_at(const Instruction& inst, const Effects& effects);
  std::string broken_by(const Instruction& inst, const Effects& effects) const;
  void see(const Instruction& inst, const Effects& effects);

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

  std::array<Step, window> steps_;
  std::array<uint64_t, window> hashed_{};
  uint64_t path_ = 0;
  size_t issued_ = 0, unseen_ = 0;
  uint64_t changed_ = 0;
  bool as_llvm_;
};

}  // namespace mi300x

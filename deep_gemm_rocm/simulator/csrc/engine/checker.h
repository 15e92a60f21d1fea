// The sanitizer (DG_SIM_SANITIZE=1): reports what a program only gets away with by luck.
//
// It watches the waves of one workgroup from outside. Before an instruction executes it looks at the registers, LDS
// bytes and counters that the instruction is about to use; it never changes what the program computes.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "effects.h"
#include "wave.h"

namespace mi300x {

// What instructions of a wave still have under way, and which registers wait for them (S_WAITCNT).
class WaitCounters {
 public:
  enum Counter { vmcnt, lgkmcnt };

  WaitCounters() : pending_{std::vector<uint8_t>(register_rows + 160), std::vector<uint8_t>(register_rows + 160)} {}

  void issue(const Effects& effects, std::vector<uint32_t> lds_bytes);
  void wait(uint16_t simm16);

  // The name of the counter that a register still waits for, null where there is none. A load may follow another one
  // to the same register on the same counter.
  const char* blocking(const RegisterRange& range, bool is_write, Unit unit) const;

  // LDS bytes that writes and loads to LDS may still change.
  std::vector<uint32_t> unfinished_lds_bytes() const;

 private:
  struct Operation {
    std::vector<RegisterRange> registers;
    std::vector<uint32_t> lds_bytes;
    bool in_order;  // scalar loads return in any order
  };
  void push(Counter counter, Operation operation);
  void retire(Counter counter, size_t keep);

  std::deque<Operation> queues_[2];
  std::vector<uint8_t> pending_[2];  // operations that will write each register: rows, then SGPRs
};

// Wait states that the hardware doesn't insert by itself (LLVM, GCNHazardRecognizer.cpp, the gfx940 rules).
class HazardRules {
 public:
  HazardRules() : writers_(register_rows + 160), readers_as_c_(register_rows), stores_(register_rows) {}

  // A description of the rule that the instruction breaks, empty where it keeps them all.
  std::string broken_by(const Instruction& inst, const Effects& effects) const;
  void issue(const Instruction& inst, const Effects& effects);

 private:
  struct Event {
    Unit unit = Unit::other;
    bool is_xdl = false, is_f64 = false, partial = false;
    uint8_t passes = 0;
    RegisterRange range{};
    uint64_t time = 0;  // in wait states; 0: none yet
  };
  std::string check(const char* what, const Event& event, int needed) const;
  std::string check_read(const RegisterRange& range, int index, const Instruction& inst, const Effects& effects) const;
  std::string check_write(const RegisterRange& range, const Effects& effects) const;
  int needed_for_matrix_read(const Event& event, const RegisterRange& range, bool as_c, const Effects& effects) const;

  std::vector<Event> writers_;  // rows, then SGPRs
  std::vector<Event> readers_as_c_, stores_;
  uint64_t time_ = 100;
};

// Which lanes of the vector registers and which bits of the scalar ones hold what the program has written. Scalar
// registers are followed bit by bit, because compilers build lane masks on top of undefined ones and then keep only
// the bits that they have set.
class Definedness {
 public:
  Definedness() : rows_(register_rows), scalars_(160) {}

  void start(const Wave& wave, int scalars);
  bool is_defined(const RegisterRange& range, uint64_t lanes) const;
  bool scc_is_defined() const { return scc_; }
  void execute(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t loaded_lanes);

 private:
  uint64_t result_lanes(Wave& wave, const Instruction& inst, const Effects& effects, int row) const;
  uint64_t lanes_of(const Operand& operand, int dword) const;
  uint64_t bits_of(const Operand& operand) const;
  uint64_t pair(int index) const { return scalars_[size_t(index)] | uint64_t(scalars_[size_t(index) + 1]) << 32; }
  void define_scalar(const RegisterRange& range, uint64_t bits);
  bool execute_bitwise(const Wave& wave, const Instruction& inst);

  std::vector<uint64_t> rows_;     // a bit a lane
  std::vector<uint32_t> scalars_;  // a bit a bit
  bool scc_ = false;
};

// Who touched each byte of LDS since the last barrier.
class LdsWatch {
 public:
  LdsWatch() : bytes_(lds_capacity) {}

  void start_workgroup();
  void open_barrier() { ++epoch_; }
  // A wave other than this one that has touched the byte in a conflicting way since the last barrier, or -1.
  int conflicting_wave(uint32_t byte, uint32_t wave, bool writes, bool atomic) const;
  void touch(uint32_t byte, uint32_t wave, bool writes, bool atomic);
  // A write that its wave hasn't waited for at a barrier counts as one after the barrier too.
  void carry_over(uint32_t byte, uint32_t wave);
  bool is_defined(uint32_t byte) const { return bytes_[byte].defined; }

 private:
  struct Byte {
    uint32_t write_epoch = 0, read_epoch = 0;
    uint16_t readers = 0;
    uint8_t writer = 0;
    bool defined = false, atomic = false;
  };
  std::vector<Byte> bytes_;
  uint32_t epoch_ = 1;
};

class Checker {
 public:
  explicit Checker(uint32_t waves) : waves_(waves) {}

  // After the waves have been given their launch state; `scalars` SGPRs from s0 on belong to it.
  void start_workgroup(const std::vector<std::unique_ptr<Wave>>& waves, int scalars);

  // Fails the wave where the instruction must not run in its present state; otherwise keeps what it will change.
  void before(Wave& wave, const Instruction& inst, const Effects& effects);
  void open_barrier() { lds_.open_barrier(); }

 private:
  struct PerWave {
    WaitCounters counters;
    HazardRules hazards;
    Definedness definedness;
  };
  bool check_counters(Wave& wave, const Effects& effects);
  bool check_definedness(Wave& wave, const Instruction& inst, const Effects& effects);
  bool check_lds(Wave& wave, const Instruction& inst, const Effects& effects);
  void reach_barrier(Wave& wave);

  std::vector<PerWave> waves_;
  LdsWatch lds_;
};

}  // namespace mi300x

// Machine state: a wave of 64 lanes and its workgroup.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../engine.h"
#include "../../hardware_limits.h"
#include "../isa/instruction.h"
#include "../matrix/mfma_operand_cache.h"
#include "memory.h"

namespace mi300x {

constexpr int lanes = device::kWaveSize;
constexpr uint32_t lds_capacity = device::kLdsBytes;

// MODE register (CDNA3 ISA, "Wavefront state: MODE").
struct Mode {
  static constexpr uint32_t indexes_registers = 1u << 27;  // GPR_IDX_EN: M0 shifts the registers that M0[15:12] selects
  static constexpr uint32_t skips_vector = 1u << 28;       // VSKIP

  uint32_t bits = 0;
  int round_f32() const { return bits & 3; }
  int round_f16_f64() const { return (bits >> 2) & 3; }
  bool flushes_f32_inputs() const { return !(bits & 0x10); }
  bool flushes_f32_results() const { return !(bits & 0x20); }
  bool flushes_f16_f64_inputs() const { return !(bits & 0x40); }
  bool flushes_f16_f64_results() const { return !(bits & 0x80); }
  bool dx10_clamp() const { return bits & 0x100; }
  bool ieee() const { return bits & 0x200; }
};

struct Workgroup {
  Dim3 id;
  uint32_t flat_id = 0;
  std::vector<uint8_t> lds = std::vector<uint8_t>(lds_capacity);
  uint32_t lds_bytes = 0;  // allocated for this dispatch
  MatrixOperandCache matrix_operands;
};

class Wave {
 public:
  // postponed: failed by using LDS that nothing has written, unless another wave is about to write it.
  enum class State : uint8_t { running, at_barrier, ended, failed, postponed };

  Wave() : registers_(new (std::align_val_t(64)) uint32_t[register_rows * lanes]) {}

  uint32_t* row(int index) { return registers_.get() + index * lanes; }

  uint64_t exec() const { return pair(sgpr_exec); }
  void set_exec(uint64_t value) { set_pair(sgpr_exec, value); }
  uint64_t vcc() const { return pair(sgpr_vcc); }
  void set_vcc(uint64_t value) { set_pair(sgpr_vcc, value); }
  uint32_t m0() const { return sgpr[sgpr_m0]; }

  uint64_t pair(int index) const { return sgpr[index] | uint64_t(sgpr[index + 1]) << 32; }
  void set_pair(int index, uint64_t value) {
    sgpr[index] = uint32_t(value);
    sgpr[index + 1] = uint32_t(value >> 32);
  }

  // Value of a scalar operand, 32 or 64 bits wide.
  uint64_t read_scalar(const Operand& operand) const {
    if (operand.kind == Operand::Kind::constant) return operand.constant;
    switch (operand.special) {
      case Operand::Special::none: break;
      case Operand::Special::vccz: return vcc() == 0;
      case Operand::Special::execz: return exec() == 0;
      case Operand::Special::scc: return scc;
    }
    return operand.dwords >= 2 ? pair(operand.index) : sgpr[operand.index];
  }
  void write_scalar(const Operand& operand, uint64_t value) {
    sgpr[operand.index] = uint32_t(value);
    if (operand.dwords >= 2) sgpr[operand.index + 1] = uint32_t(value >> 32);
  }

  uint64_t address_of(uint64_t pc_index) const { return code_begin + 4 * pc_index; }

  // Jumps to an address. Fails the wave where that is outside the code of the kernel.
  void jump(uint64_t address);

  // Ends the wave, and with it the dispatch, with a message. Launch::report adds kernel, offset and workgroup.
  // `address` is that of the memory at fault, `other_offset` that of the other access of a race; see Outcome.
  void fail(Outcome::Status status, std::string message, uint64_t address = 0,
            uint64_t other_offset = Outcome::nowhere);

  alignas(64) uint32_t sgpr[scalar_count] = {};
  bool scc = false;
  State state = State::running;
  Mode mode;
  uint64_t pc = 0;  // index in dwords of the next instruction
  uint64_t code_begin = 0;
  uint64_t code_dwords = 0;
  uint64_t instructions = 0;  // executed so far
  uint64_t turn_end = 0;      // the number of instructions at which its turn ends
  bool sleeps = false;        // its turn ended with S_SLEEP
  const uint64_t* clock = &instructions;  // what S_MEMTIME reads: simulated clocks where there is a timing model
  uint32_t index_in_group = 0;
  Workgroup* group = nullptr;
  Memory* memory = nullptr;
  Host* host = nullptr;  // of the dispatch
  uint8_t* scratch = nullptr;  // [lane][scratch_bytes]
  uint32_t scratch_bytes = 0;  // a lane
  uint32_t trap_status = 0;
  Outcome::Status failure = Outcome::Status::ok;
  std::string message;
  uint64_t failed_address = 0;
  uint64_t failed_other_offset = Outcome::nowhere;

 private:
  struct AlignedDelete {
    void operator()(uint32_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  std::unique_ptr<uint32_t[], AlignedDelete> registers_;
};

// Handlers that prepare the operands of an SDWA or DPP form in temporary rows, then run the instruction itself.
void run_sdwa(Wave& wave, const Instruction& inst);
void run_dpp(Wave& wave, const Instruction& inst);

// Set the host's floating-point control register to the MODE register's rounding and denormal handling of f32, f64 or
// f16. The engine runs under the f32 setting; handlers of other types switch where they differ. f16 is computed in f32
// and uses only the rounding.
void apply_mode(const Mode& mode);
void apply_mode_f64(const Mode& mode);
void apply_mode_f16(const Mode& mode);

// Multiplying by these makes the host flush subnormals as the mode says.
extern const float one_f32;
extern const double one_f64;

}  // namespace mi300x

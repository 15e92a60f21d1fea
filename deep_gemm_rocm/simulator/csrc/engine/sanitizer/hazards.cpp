#include "hazards.h"

#include <algorithm>

namespace mi300x {
namespace {

bool is_memory(Unit unit) { return unit == Unit::lds || unit == Unit::vector_memory || unit == Unit::flat; }
bool is_vector_alu(Unit unit) { return unit == Unit::vector || unit == Unit::transcendental; }
bool is_setreg(Op op) { return op == Op::s_setreg_b32 || op == Op::s_setreg_imm32_b32; }
bool is_fmas(Op op) { return op == Op::v_div_fmas_f32 || op == Op::v_div_fmas_f64; }
bool is_fma_f64(Op op) { return op == Op::v_fma_f64 || op == Op::v_fmac_f64; }
bool is_lane_read(Op op) { return op == Op::v_readlane_b32 || op == Op::v_readfirstlane_b32; }
bool selects_lane(Op op) { return op == Op::v_readlane_b32 || op == Op::v_writelane_b32; }
bool is_operand(const RegisterRange& range, const Operand& operand) {
  if (operand.kind == Operand::Kind::vector) return range.first == operand.index;
  return operand.kind == Operand::Kind::scalar && range.first == first_scalar + operand.index;
}
int hardware_register(const Instruction& inst) { return inst.imm & 63; }

// Instructions that use M0 soon after they are issued.
bool uses_m0_early(const Instruction& inst, const Effects& effects) {
  switch (inst.op) {
    case Op::s_movrels_b32: case Op::s_movrels_b64: case Op::s_movreld_b32: case Op::s_movreld_b64:
    case Op::ds_read_addtid_b32: case Op::ds_write_addtid_b32: case Op::s_sendmsg: case Op::s_sendmsghalt: return true;
    default: return effects.to_lds;
  }
}

}  // namespace

struct HazardRules::Requirement {
  int states = 0;
  const char* what = "";

  void raise(int more, const char* description) {
    if (more > states) states = more, what = description;
  }
};

void HazardRules::start() {
  sequence_ += window;  // earlier instructions aren't recent any more
  hashed_.fill(0);
  path_ = issued_ = unseen_ = 0;
}

std::string HazardRules::look_at(const Instruction& inst, const Effects& effects) {
  if (unseen_ >= window) {
    sequence_ += window;
    unseen_ = window - 1;
  }
  for (; unseen_ != 0; --unseen_) see(*step(unseen_).inst, *step(unseen_).effects);
  std::string broken = broken_by(inst, effects);
  see(inst, effects);
  return broken;
}

std::string HazardRules::check(const Requirement& requirement, const Event& event, int number) const {
  const int between = int(time_ - event.time) - 1;
  if (between >= requirement.states) return "";
  return std::string(requirement.what) + (number < 0 ? "" : " " + register_name(number)) + " needs " +
         std::to_string(requirement.states) + " wait states between, and has " + std::to_string(between);
}

int HazardRules::needed_for_matrix_read(const Event& event, const RegisterRange& range, bool as_c,
                                        const Instruction& inst, const Effects& effects) {
  const bool large_f64 = event.is_f64 && event.passes == 8;
  if (!as_c) {
    if (event.is_f64) return large_f64 ? 11 : 6;
    return event.passes + (event.is_xdl ? 3 : 2);
  }
  if (event.written == range) {
    if (event.is_f64) return !large_f64 && inst.op == event.op ? 4 : 0;
    return event.passes == 2 ? 2 : 0;
  }
  if (effects.is_xdl && !event.is_xdl) return 0;
  if (event.is_f64) return large_f64 ? 9 : 4;
  return event.passes + (event.is_xdl ? 1 : 0);
}

std::string HazardRules::check_read(const RegisterRange& range, int index, const Instruction& inst,
                                    const Effects& effects) const {
  const bool reads_valu = is_vector_alu(effects.unit);
  for (int number = range.first; number < range.first + range.count; ++number) {
    if (!is_recent(writers_[size_t(number)])) continue;
    const Event& writer = event(writers_[size_t(number)]);
    Requirement requirement;
    if (writer.unit == Unit::matrix) {
      if (effects.unit == Unit::matrix)
        requirement.raise(needed_for_matrix_read(writer, range, index == 2, inst, effects),
                          "a matrix instruction that reads the matrix result");
      else if (writer.is_f64)
        requirement.raise(writer.passes == 8 ? (is_memory(effects.unit) ? 18 : 11) : (is_memory(effects.unit) ? 9 : 6),
                          "reading the F64 matrix result");
      else
        requirement.raise(writer.passes + (writer.is_xdl ? 3 : 2), "reading the matrix result");
    } else if (is_vector_alu(writer.unit) && range.is_vector()) {
      if (effects.unit == Unit::matrix && !writer.is_dot)
        requirement.raise(2, "a matrix instruction that reads the VALU result");
      if (writer.unit == Unit::transcendental && effects.unit == Unit::vector)
        requirement.raise(1, "reading the transcendental result");
      if (writer.is_partial && reads_valu) requirement.raise(1, "reading the partly written");
      if (inst.dpp) requirement.raise(2, "a DPP instruction that reads the VALU result");
      if (is_lane_read(inst.op)) requirement.raise(1, "a lane read of the VALU result");
      const bool accumulates = inst.op == writer.op && is_operand(range, inst.src[2]) &&
                               !is_operand(range, inst.src[0]) && !is_operand(range, inst.src[1]);
      if (writer.is_dot && (reads_valu || is_memory(effects.unit)) && !accumulates)
        requirement.raise(3, "reading the dot product");
    } else if (is_vector_alu(writer.unit) && number >= first_scalar + sgpr_exec) {
      if (inst.dpp) requirement.raise(5, "a DPP instruction after a VALU write of");
    } else if (is_vector_alu(writer.unit)) {
      if (is_memory(effects.unit)) requirement.raise(5, "a memory instruction that reads the VALU result");
      // LLVM inserts two states (VALUWriteSGPRVALURead). Tensile's kernels don't, and are right on the chip.
      if (reads_valu && as_llvm_) requirement.raise(2, "LLVM would wait here: reading the VALU result");
      if (selects_lane(inst.op) && is_operand(range, inst.src[1]))
        requirement.raise(4, "a lane selection by the VALU result");
      if (is_fmas(inst.op)) requirement.raise(4, "v_div_fmas after a VALU write of");
    }
    if (requirement.states == 0) continue;
    if (std::string broken = check(requirement, writer, number); !broken.empty()) return broken;
  }
  return "";
}

std::string HazardRules::check_write(const RegisterRange& range, const Instruction& inst,
                                     const Effects& effects) const {
  const bool is_matrix = effects.unit == Unit::matrix, is_valu = is_vector_alu(effects.unit);
  for (int number = range.first; range.is_vector() && number < range.first + range.count; ++number) {
    const auto find = [&](const Sequences& sequences, bool applies) {
      return applies && is_recent(sequences[size_t(number)]) ? &event(sequences[size_t(number)]) : nullptr;
    };
    std::string broken;
    if (const Event* writer = find(writers_, !is_matrix)) {
      Requirement requirement;
      if (writer->unit == Unit::matrix)
        requirement.raise(
            writer->is_f64 ? (writer->passes == 8 ? 11 : 6) : writer->passes + (writer->is_xdl ? 3 : 2),
            "overwriting the matrix result");
      if (writer->is_dot && writer->op != inst.op) requirement.raise(3, "overwriting the dot product");
      if (inst.dpp && is_vector_alu(writer->unit)) requirement.raise(2, "a DPP instruction that keeps lanes of");
      broken = check(requirement, *writer, number);
    }
    if (!broken.empty()) return broken;
    if (const Event* reader = find(readers_as_c_, !is_matrix))
      broken = check({reader->passes - 1, "overwriting a matrix instruction's C in"}, *reader, number);
    if (!broken.empty()) return broken;
    if (const Event* store = find(stores_, is_matrix || is_valu))
      broken = check({2, "overwriting the data of a wide store in"}, *store, number);
    if (!broken.empty()) return broken;
  }
  return "";
}

// Rules about EXEC, M0, the F64 unit and hardware registers rather than operands.
std::string HazardRules::check_state(const Instruction& inst, const Effects& effects) const {
  const auto last_write = [&](int sgpr, auto is_writer) {
    const uint64_t sequence = writers_[size_t(first_scalar + sgpr)];
    return is_recent(sequence) && is_writer(event(sequence).unit) ? &event(sequence) : nullptr;
  };
  if (const Event* write = last_write(sgpr_exec, is_vector_alu)) {
    Requirement requirement;
    if (effects.unit == Unit::matrix || is_lane_read(inst.op) || inst.op == Op::v_writelane_b32)
      requirement.raise(4, "a lane access or matrix instruction after a VALU write of exec");
    if (effects.unit == Unit::vector_memory || effects.unit == Unit::flat)
      requirement.raise(5, "a memory instruction after a VALU write of exec");
    if (std::string broken = check(requirement, *write, -1); !broken.empty()) return broken;
  }
  if (uses_m0_early(inst, effects)) {
    if (const Event* write = last_write(sgpr_m0, [](Unit unit) { return unit == Unit::scalar; }))
      if (std::string broken = check({1, "using m0 after a scalar write of it"}, *write, -1); !broken.empty())
        return broken;
  }
  if (is_fma_f64(inst.op) && is_recent(last_f64_matrix_)) {
    if (std::string broken =
            check({2, "an F64 multiply-add after an F64 matrix instruction"}, event(last_f64_matrix_), -1);
        !broken.empty())
      return broken;
  }
  if ((is_setreg(inst.op) || inst.op == Op::s_getreg_b32) && is_recent(last_setreg_)) {
    const Event& setreg = event(last_setreg_);
    if (setreg.hardware_register == hardware_register(inst))
      return check({2, "reading or writing a hardware register after s_setreg"}, setreg, -1);
  }
  return "";
}

std::string HazardRules::broken_by(const Instruction& inst, const Effects& effects) const {
  if (std::string broken = check_state(inst, effects); !broken.empty()) return broken;
  if (effects.unit == Unit::scalar || effects.unit == Unit::other || effects.unit == Unit::scalar_memory) return "";
  for (size_t i = 0; i < effects.reads.size(); ++i)
    if (std::string broken = check_read(effects.reads[i], int(i), inst, effects); !broken.empty()) return broken;
  for (const RegisterRange& range : effects.writes)
    if (std::string broken = check_write(range, inst, effects); !broken.empty()) return broken;
  return "";
}

void HazardRules::see(const Instruction& inst, const Effects& effects) {
  const auto keep = [&](Sequences& sequences, const RegisterRange& range) {
    std::fill_n(sequences.begin() + range.first, range.count, sequence_);
  };
  Event& event = events_[sequence_ % window];
  event.op = inst.op;
  event.unit = effects.unit;
  event.is_xdl = effects.is_xdl;
  event.is_f64 = effects.is_f64;
  event.is_dot = effects.has(trait::dot);
  event.is_partial = effects.is_partial;
  event.passes = effects.passes;
  event.written = effects.writes.size() ? effects.writes[0] : RegisterRange();
  event.time = time_;
  for (const RegisterRange& range : effects.writes) keep(writers_, range);
  if (effects.is_xdl && effects.reads.size() > 2) keep(readers_as_c_, effects.reads[2]);
  if (effects.is_f64) last_f64_matrix_ = sequence_;
  if (is_setreg(inst.op)) {
    event.hardware_register = hardware_register(inst);
    last_setreg_ = sequence_;
  }
  // Stores of more than 8 bytes read their data late, buffer stores only without an SGPR offset.
  const bool buffer_with_offset = inst.family == Family::MUBUF && inst.src[2].kind == Operand::Kind::scalar;
  if (effects.is_store && (effects.unit == Unit::vector_memory || effects.unit == Unit::flat) && !buffer_with_offset) {
    const RegisterRange& data = effects.reads[effects.reads.size() - 1];
    if (data.is_vector() && data.count > 2) keep(stores_, data);
  }
  time_ += inst.op == Op::s_nop ? uint64_t(inst.imm & 15) + 1 : 1;
  ++sequence_;
}

}  // namespace mi300x

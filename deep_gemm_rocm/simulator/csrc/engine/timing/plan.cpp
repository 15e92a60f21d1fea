#include "plan.h"

namespace mi300x::timing {
namespace {

Plan::Kind kind_of_program(Op op, const Effects& effects) {
  switch (op) {
    case Op::s_waitcnt: return Plan::Kind::wait;
    case Op::s_barrier: return Plan::Kind::barrier;
    case Op::s_sleep: return Plan::Kind::sleep;
    case Op::s_setprio: return Plan::Kind::priority;
    case Op::s_endpgm: case Op::s_endpgm_saved: return Plan::Kind::end;
    default: return effects.has(trait::branch) ? Plan::Kind::branch : Plan::Kind::nop;
  }
}

Plan::Kind kind_of(const Instruction& inst, const Effects& effects) {
  switch (effects.unit) {
    case Unit::other: return kind_of_program(inst.op, effects);
    case Unit::scalar: return effects.has(trait::branch) ? Plan::Kind::branch : Plan::Kind::scalar;
    case Unit::scalar_memory: return Plan::Kind::scalar_memory;
    case Unit::vector: case Unit::transcendental: return Plan::Kind::vector;
    case Unit::matrix: return Plan::Kind::matrix;
    case Unit::lds: return Plan::Kind::lds;
    case Unit::vector_memory: case Unit::flat: return Plan::Kind::vector_memory;
  }
  return Plan::Kind::nop;
}

Plan::Operands matrix_operands(Op op) {
  switch (matrix_shape(op)->type) {
    case MatrixType::fp8: return Plan::Operands::fp8;
    case MatrixType::i8: return Plan::Operands::i8;
    case MatrixType::f16: return Plan::Operands::f16;
    default: return Plan::Operands::others;
  }
}

double vector_clocks(const Instruction& inst, const Effects& effects, const Constants& constants) {
  if (effects.unit == Unit::transcendental) return constants.alu_transcendental_clocks;
  switch (inst.op) {
    case Op::v_mul_lo_u32: case Op::v_mul_hi_u32: case Op::v_mul_hi_i32: case Op::v_mad_u64_u32: case Op::v_mad_i64_i32:
      return constants.alu_multiply_clocks;
    default: return constants.alu_vector_clocks;
  }
}

}  // namespace

std::vector<Plan> plans_of(const std::vector<Instruction>& code, const Effects* effects, const Constants& constants) {
  std::vector<Plan> plans(code.size());
  for (size_t i = 0; i < code.size(); ++i) {
    const Instruction& inst = code[i];
    Plan& plan = plans[i];
    plan.effects = &effects[i];
    plan.kind = kind_of(inst, effects[i]);
    plan.passes = effects[i].passes;
    if (plan.kind == Plan::Kind::matrix) plan.operands = matrix_operands(inst.op);
    plan.argument = uint16_t(inst.imm);
    plan.clocks = uint16_t(plan.kind == Plan::Kind::matrix ? constants.matrix_clocks_per_pass * plan.passes
                                                            : vector_clocks(inst, effects[i], constants));
    const MemoryAccess& memory = effects[i].memory;
    plan.dwords = uint8_t((memory.bytes + 3) / 4 * memory.parts);
    plan.bypasses_l1 = inst.mem.sc1;
    plan.l1_port_bytes = effects[i].to_lds ? constants.l1_to_lds_bytes : constants.l1_port_bytes;
  }
  return plans;
}

}  // namespace mi300x::timing

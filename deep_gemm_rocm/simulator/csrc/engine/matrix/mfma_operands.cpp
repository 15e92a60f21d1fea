// Takes the operands of matrix instructions from the wave's registers, and binds the instructions.

#include "../execution/wave.h"
#include "../isa/opcodes.h"
#include "mfma.h"

namespace mi300x {
namespace {

bool is_f64(const Instruction& inst) { return matrix_shape(inst.op)->type == MatrixType::f64; }

// A constant C has the same value in every element.
const uint32_t* c_registers(Wave& wave, const Instruction& inst, uint32_t* buffer) {
  const Operand& operand = inst.src[2];
  if (operand.kind == Operand::Kind::vector) return wave.row(operand.index);
  const uint64_t value = wave.read_scalar(operand);
  const bool doubles = is_f64(inst);
  for (int row = 0; row < operand.dwords; ++row) {
    const uint32_t dword = doubles && row % 2 ? uint32_t(value >> 32) : uint32_t(value);
    for (int l = 0; l < lanes; ++l) buffer[row * lanes + l] = dword;
  }
  return buffer;
}

MatrixOperands operands_of(Wave& wave, const Instruction& inst) {
  MatrixOperands operands;
  operands.d = wave.row(inst.dst.index);
  operands.a = wave.row(inst.src[0].index);
  operands.b = wave.row(inst.src[1].index);
  operands.cbsz = inst.vop.cbsz;
  operands.abid = inst.vop.abid;
  return operands;
}

void run_dense(Wave& wave, const Instruction& inst) {
  alignas(64) uint32_t buffer[32 * lanes];
  MatrixOperands operands = operands_of(wave, inst);
  operands.c = c_registers(wave, inst, buffer);
  operands.blgp = inst.vop.blgp;
  operands.a_register = inst.src[0].index;
  operands.b_register = inst.src[1].index;
  operands.cache = &wave.group->matrix_operands;
  inst.matrix(operands);
}

// V_SMFMAC accumulates into D; the third source holds the indices.
void run_sparse(Wave& wave, const Instruction& inst) {
  MatrixOperands operands = operands_of(wave, inst);
  operands.c = operands.d;
  operands.index = wave.row(inst.src[2].index);
  inst.matrix(operands);
}

void bind_matrix(Instruction& inst) {
  const bool registers = inst.src[0].kind == Operand::Kind::vector && inst.src[1].kind == Operand::Kind::vector;
  if (!registers) return;
  inst.matrix = find_matrix_instruction(inst.op);
  resolve_constant(inst.src[2], is_f64(inst) ? ConstantType::f64 : ConstantType::f32, inst.literal);
  inst.handler = matrix_shape(inst.op)->sparse ? run_sparse : run_dense;
}

const bool registered = [] {
  for (size_t i = 0; i < size_t(Op::count); ++i) {
    const Op op = Op(i);
    if (find_matrix_instruction(op) == nullptr) continue;
    Semantics(op, bind_matrix);
    const MatrixShape& shape = *matrix_shape(op);
    if (shape.sparse && shape.type != MatrixType::i8)
      Approximate({op}, "the sum is rounded as a dense instruction's would be; the chip's order is not published");
  }
  return true;
}();

}  // namespace
}  // namespace mi300x

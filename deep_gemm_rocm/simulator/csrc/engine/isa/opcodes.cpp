#include "opcodes.h"

#include <array>
#include <cstdio>
#include <vector>

namespace mi300x {
namespace {

using namespace trait;

// Row 0 stands for unknown opcodes.
const Opcode rows[] = {
    {Family::SOPP, 0, Op::unknown, 0, 0, 0, 0, 0, Unit::other, Derivation::all_operands, 0, none},
#define OPCODE(family, number, name, dst, src0, src1, src2, sdst, unit, derivation, bytes, traits) \
  {Family::family, number, Op::name, dst, src0, src1, src2, sdst, Unit::unit, Derivation::derivation, bytes, traits},
#include "opcodes.inc"
};

const MatrixShape shapes[] = {
#define MATRIX(name, m, n, k, blocks, passes, type, sparse) \
  {Op::name, m, n, k, blocks, passes, MatrixType::type, sparse},
#include "opcodes.inc"
};

const char* const family_names[] = {"SOP2", "SOPK", "SOP1", "SOPC", "SOPP", "SMEM", "VOP1", "VOP2", "VOPC",
                                    "VOP3", "VOP3P", "DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF", "MTBUF"};
constexpr size_t family_count = size_t(Family::MTBUF) + 1;
static_assert(sizeof family_names / sizeof family_names[0] == family_count);
constexpr size_t most_opcodes = 1024;

std::vector<uint16_t> index_rows() {
  std::vector<uint16_t> index(family_count * most_opcodes);
  for (size_t i = 1; i < std::size(rows); ++i)
    index[size_t(rows[i].family) * most_opcodes + rows[i].number] = uint16_t(i);
  return index;
}

std::array<const MatrixShape*, size_t(Op::count)> index_shapes() {
  std::array<const MatrixShape*, size_t(Op::count)> index{};
  for (const MatrixShape& shape : shapes) index[size_t(shape.op)] = &shape;
  return index;
}

std::string status_of(Op op) {
  if (Semantics::find(op) == nullptr) return "missing";
  const char* difference = Approximate::find(op);
  return difference ? std::string("approximate ") + difference : "exact";
}

}  // namespace

const char* mnemonic(Op op) {
  static const char* const names[] = {
      "unknown",
#define MNEMONIC(name) #name,
#include "opcodes.inc"
  };
  return names[size_t(op)];
}

uint16_t find_row(Family family, uint32_t number) {
  static const std::vector<uint16_t> index = index_rows();
  return index[size_t(family) * most_opcodes + number];
}

const Opcode& opcode_of(const Instruction& inst) { return rows[inst.row]; }

const MatrixShape* matrix_shape(Op op) {
  static const auto index = index_shapes();
  return index[size_t(op)];
}

std::string list_opcodes() {
  std::string lines;
  for (size_t i = 1; i < std::size(rows); ++i) {
    char start[96];
    snprintf(start, sizeof start, "%s 0x%x %s ", family_names[size_t(rows[i].family)], unsigned(rows[i].number),
             mnemonic(rows[i].op));
    lines += start + status_of(rows[i].op) + '\n';
  }
  return lines;
}

}  // namespace mi300x

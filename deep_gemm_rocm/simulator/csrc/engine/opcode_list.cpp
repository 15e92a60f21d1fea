// Which opcodes the engine executes, and how faithfully.

#include <cstdio>

#include "decoder.h"

namespace mi300x {
namespace {

struct Row {
  const char* family;
  int number;
  Op op;
};

const Row rows[] = {
#define MNEMONIC(name)
#define OPCODE(family, number, name, ...) {#family, number, Op::name},
#include "opcodes.inc"
#undef MNEMONIC
#undef OPCODE
};

std::string status_of(Op op) {
  if (Semantics::find(op) == nullptr) return "missing";
  const char* difference = Approximate::find(op);
  return difference ? std::string("approximate ") + difference : "exact";
}

}  // namespace

std::string list_opcodes() {
  std::string lines;
  for (const Row& row : rows) {
    char start[96];
    snprintf(start, sizeof start, "%s 0x%x %s ", row.family, row.number, mnemonic(row.op));
    lines += start + status_of(row.op) + '\n';
  }
  return lines;
}

}  // namespace mi300x

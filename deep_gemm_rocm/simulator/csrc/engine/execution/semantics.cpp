// The table from opcodes to their implementation, and the constants that operands can encode.

#include <array>

#include "float_formats.h"
#include "memory.h"
#include "wave.h"

namespace mi300x {
namespace {

std::array<Binder, size_t(Op::count)>& binders() {
  static std::array<Binder, size_t(Op::count)> table{};
  return table;
}

std::array<const char*, size_t(Op::count)>& differences() {
  static std::array<const char*, size_t(Op::count)> table{};
  return table;
}

struct FloatConstant {
  double value;
  uint16_t half;
};

// Encodings 240..248 (CDNA3 ISA, table of operand encodings); the last is 1 / (2 * pi).
constexpr FloatConstant float_constants[] = {{0.5, 0x3800},  {-0.5, 0xB800}, {1.0, 0x3C00},
                                             {-1.0, 0xBC00}, {2.0, 0x4000},  {-2.0, 0xC000},
                                             {4.0, 0x4400},  {-4.0, 0xC400}, {0.15915494309189532, 0x3118}};

uint64_t float_constant(int code, ConstantType type) {
  const FloatConstant& constant = float_constants[code - 240];
  switch (type) {
    case ConstantType::f16: return constant.half;
    case ConstantType::b32: case ConstantType::f32: return bit_cast<uint32_t>(float(constant.value));
    default: return bit_cast<uint64_t>(constant.value);
  }
}

bool is_wide(ConstantType type) {
  return type == ConstantType::b64 || type == ConstantType::i64 || type == ConstantType::f64;
}

uint64_t literal_bits(uint32_t literal, ConstantType type) {
  switch (type) {
    case ConstantType::f64: return uint64_t(literal) << 32;
    case ConstantType::i64: return uint64_t(int64_t(int32_t(literal)));
    default: return literal;
  }
}

uint64_t aperture(int code) {
  switch (code) {
    case 235: return shared_aperture;
    case 236: return shared_aperture + aperture_bytes - 1;
    case 237: return private_aperture;
    default: return private_aperture + aperture_bytes - 1;
  }
}

}  // namespace

Semantics::Semantics(Op op, Binder binder) { binders()[size_t(op)] = binder; }
Binder Semantics::find(Op op) { return binders()[size_t(op)]; }

Approximate::Approximate(std::initializer_list<Op> ops, const char* difference) {
  for (Op op : ops) differences()[size_t(op)] = difference;
}
const char* Approximate::find(Op op) { return differences()[size_t(op)]; }

void resolve_constant(Operand& operand, ConstantType type, uint32_t literal) {
  if (operand.kind != Operand::Kind::constant) return;
  const int code = operand.index;
  if (code == 255) {
    operand.constant = literal_bits(literal, type);
  } else if (code >= 240) {
    operand.constant = float_constant(code, type);
  } else if (code >= 235) {
    operand.constant = is_wide(type) ? aperture(code) : aperture(code) >> 32;
  } else {
    const int64_t value = code <= 192 ? code - 128 : 192 - code;
    operand.constant = is_wide(type) ? uint64_t(value) : uint32_t(value);
  }
}

}  // namespace mi300x

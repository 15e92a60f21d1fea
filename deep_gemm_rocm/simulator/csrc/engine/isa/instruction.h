// A decoded gfx942 instruction, which the decoder makes from machine code and a handler executes.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace mi300x {

class Wave;
struct MatrixOperands;

// A field of a machine word.
inline uint32_t bits(uint32_t word, int high, int low) { return (word >> low) & ((1u << (high - low + 1)) - 1); }

enum class Family : uint8_t {
  SOP2, SOPK, SOP1, SOPC, SOPP, SMEM, VOP1, VOP2, VOPC, VOP3, VOP3P, DS, FLAT, GLOBAL, SCRATCH, MUBUF, MTBUF
};

enum class Op : uint16_t {
  unknown,
#define MNEMONIC(name) name,
#include "opcodes.inc"
  count
};

const char* mnemonic(Op op);

// Rows of the vector register file of a wave. v0..v255 come first, a0..a255 follow; the last rows are the
// simulator's own, for operands that SDWA and DPP permute before an instruction reads them.
constexpr int accumulator_row = 256;
constexpr int temporary_row = 512;
constexpr int register_rows = 520;

// Scalar registers by their operand encoding (CDNA3 ISA, "SGPR, VGPR, and special register encodings").
constexpr int sgpr_flat_scratch = 102;
constexpr int sgpr_vcc = 106;
constexpr int sgpr_m0 = 124;
constexpr int sgpr_exec = 126;
// There are 128 encodings. The rest is room for operands of 16 dwords that begin at the last of them.
constexpr int scalar_count = 144;

struct Operand {
  enum class Kind : uint8_t { none, vector, scalar, constant };
  // Operands that read a status bit.
  enum class Special : uint8_t { none, vccz, execz, scc };

  Kind kind = Kind::none;
  uint8_t dwords = 0;  // as LLVM prints the operand; 0 where the encoding has no such operand
  bool neg = false;
  bool abs = false;
  Special special = Special::none;
  uint16_t index = 0;     // vector: row; scalar: number of the SGPR; constant: the operand encoding
  uint64_t constant = 0;  // constant: its bits in the type that the instruction reads
};

// Fields of vector instructions.
struct VectorModifiers {
  bool clamp = false;
  uint8_t omod = 0;       // 0, *2, *4, /2
  uint8_t op_sel = 0;     // bit 3 selects the destination half (VOP3)
  uint8_t op_sel_hi = 0;  // VOP3P
  uint8_t neg_hi = 0;     // VOP3P
  uint8_t cbsz = 0, abid = 0, blgp = 0;
  uint32_t sdwa_dpp = 0;  // the second word of an SDWA or DPP form
};

// Fields of memory instructions.
struct MemoryModifiers {
  bool sc0 = false, sc1 = false, nt = false;
  bool offen = false, idxen = false, lds = false, gds = false;
  uint8_t offset0 = 0, offset1 = 0;  // DS
  uint8_t format = 0;                // MTBUF: dfmt | nfmt << 4
};

struct Instruction;
using Handler = void (*)(Wave&, const Instruction&);
using MatrixInstruction = void (*)(const MatrixOperands&);

struct Instruction {
  Handler handler = nullptr;  // never null once decoded
  Handler inner = nullptr;    // SDWA and DPP: the instruction itself, once the operands are prepared
  MatrixInstruction matrix = nullptr;
  Operand src[3];
  Operand dst;
  Operand sdst;
  uint32_t word[2] = {0, 0};
  uint32_t literal = 0;
  int32_t imm = 0;  // simm16, branch target in dwords from the start of the code, or memory offset
  Op op = Op::unknown;
  Family family = Family::SOPP;
  uint8_t size = 1;  // in dwords
  bool dpp = false;
  bool sdwa = false;
  uint16_t row = 0;  // of the opcode table
  VectorModifiers vop;
  MemoryModifiers mem;
};

// A binder completes a decoded instruction: it chooses the handler and gives constants the bits of their type.
using Binder = void (*)(Instruction&);

// Registers the binder of an opcode; null where the opcode isn't implemented. Filled while the library is loaded.
struct Semantics {
  Semantics(Op op, Binder binder);
  static Binder find(Op op);
};

// Registers how the semantics of some opcodes differ from the chip's.
struct Approximate {
  Approximate(std::initializer_list<Op> ops, const char* difference);
  static const char* find(Op op);  // null where nothing is known to differ
};

// The bits of an inline constant or literal as an operand of a type.
enum class ConstantType : uint8_t { b32, b64, i64, f16, f32, f64 };
void resolve_constant(Operand& operand, ConstantType type, uint32_t literal);

}  // namespace mi300x

#include "decoder.h"

#include "../execution/wave.h"
#include "opcodes.h"

namespace mi300x {
namespace {

bool bit(uint32_t word, int position) { return (word >> position) & 1; }

int32_t sign_extend(uint32_t value, int width) { return int32_t(value << (32 - width)) >> (32 - width); }

// Pairs of SGPRs begin at even numbers, larger groups at multiples of four: the low bits don't count.
Operand scalar(uint32_t index, uint8_t dwords) {
  Operand operand;
  operand.kind = dwords ? Operand::Kind::scalar : Operand::Kind::none;
  operand.index = uint16_t(index & (dwords > 2 ? ~3u : dwords == 2 ? ~1u : ~0u));
  operand.dwords = dwords;
  return operand;
}

Operand vector(uint32_t index, uint8_t dwords, bool accumulator = false) {
  Operand operand;
  operand.kind = dwords ? Operand::Kind::vector : Operand::Kind::none;
  operand.index = uint16_t(index + (accumulator ? accumulator_row : 0));
  operand.dwords = dwords;
  return operand;
}

// CDNA3 ISA, table of operand encodings: SGPRs, constants and VGPRs in 9 bits.
Operand source(uint32_t code, uint8_t dwords) {
  if (dwords == 0) return {};
  if (code >= 256) return vector(code - 256, dwords);
  if (code < 128) return scalar(code, dwords);
  Operand operand = scalar(code, dwords);
  operand.index = uint16_t(code);
  switch (code) {
    case 251: operand.special = Operand::Special::vccz; return operand;
    case 252: operand.special = Operand::Special::execz; return operand;
    case 253: operand.special = Operand::Special::scc; return operand;
    default: operand.kind = Operand::Kind::constant; return operand;
  }
}

bool names_constant(uint32_t code) {
  return (code >= 128 && code <= 208) || (code >= 235 && code <= 238) || (code >= 240 && code <= 248) || code == 255;
}

bool source_is_valid(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::none: return true;
    case Operand::Kind::scalar:
      return operand.special != Operand::Special::none || operand.index + operand.dwords <= 128;
    case Operand::Kind::vector: return operand.index % accumulator_row + operand.dwords <= accumulator_row;
    case Operand::Kind::constant: return names_constant(operand.index);
  }
  return false;
}

void take_literal(Instruction& inst, const uint32_t* words, size_t available) {
  if (inst.size < available) inst.literal = words[inst.size];
  inst.size += 1;
}

bool wants_literal(const Instruction& inst) {
  for (const Operand& operand : inst.src)
    if (operand.kind == Operand::Kind::constant && operand.index == 255) return true;
  return false;
}

const Opcode& set_opcode(Instruction& inst, Family family, uint32_t number) {
  inst.family = family;
  inst.row = find_row(family, number);
  const Opcode& opcode = opcode_of(inst);
  inst.op = opcode.op;
  return opcode;
}

void decode_scalar(Instruction& inst, uint32_t word, size_t position) {
  inst.imm = int16_t(word);
  const uint32_t prefix = bits(word, 31, 23);
  if (prefix == 0x17F) {
    set_opcode(inst, Family::SOPP, bits(word, 22, 16));
  } else if (prefix == 0x17E) {
    const Opcode& opcode = set_opcode(inst, Family::SOPC, bits(word, 22, 16));
    inst.src[0] = source(bits(word, 7, 0), opcode.src0);
    inst.src[1] = source(bits(word, 15, 8), opcode.src1);
  } else if (prefix == 0x17D) {
    const Opcode& opcode = set_opcode(inst, Family::SOP1, bits(word, 15, 8));
    inst.dst = scalar(bits(word, 22, 16), opcode.dst);
    inst.src[0] = source(bits(word, 7, 0), opcode.src0);
  } else if (bits(word, 31, 28) == 0xB) {
    const Opcode& opcode = set_opcode(inst, Family::SOPK, bits(word, 27, 23));
    inst.dst = scalar(bits(word, 22, 16), opcode.dst);
  } else {
    const Opcode& opcode = set_opcode(inst, Family::SOP2, bits(word, 29, 23));
    inst.dst = scalar(bits(word, 22, 16), opcode.dst);
    inst.src[0] = source(bits(word, 7, 0), opcode.src0);
    inst.src[1] = source(bits(word, 15, 8), opcode.src1);
  }
  switch (inst.op) {
    case Op::s_branch: case Op::s_cbranch_scc0: case Op::s_cbranch_scc1: case Op::s_cbranch_vccz:
    case Op::s_cbranch_vccnz: case Op::s_cbranch_execz: case Op::s_cbranch_execnz: case Op::s_call_b64:
    case Op::s_cbranch_i_fork:
      inst.imm += int32_t(position) + 1;
      break;
    default: break;
  }
}

void decode_sdwa(Instruction& inst, uint32_t control) {
  inst.sdwa = true;
  inst.vop.sdwa_dpp = control;
  inst.src[0] = bit(control, 23) ? source(bits(control, 7, 0), inst.src[0].dwords)
                                 : vector(bits(control, 7, 0), inst.src[0].dwords);
  inst.src[0].neg = bit(control, 20);
  inst.src[0].abs = bit(control, 21);
  if (inst.src[1].kind != Operand::Kind::none) {
    if (bit(control, 31)) inst.src[1] = source(inst.src[1].index, inst.src[1].dwords);
    inst.src[1].neg = bit(control, 28);
    inst.src[1].abs = bit(control, 29);
  }
  if (inst.family == Family::VOPC) {
    if (bit(control, 15)) inst.sdst = scalar(bits(control, 14, 8), 2);
  } else {
    inst.vop.clamp = bit(control, 13);
    inst.vop.omod = uint8_t(bits(control, 15, 14));
  }
}

void decode_dpp(Instruction& inst, uint32_t control) {
  inst.dpp = true;
  inst.vop.sdwa_dpp = control;
  inst.src[0] = vector(bits(control, 7, 0), inst.src[0].dwords);
  inst.src[0].neg = bit(control, 20);
  inst.src[0].abs = bit(control, 21);
  inst.src[1].neg = bit(control, 22);
  inst.src[1].abs = bit(control, 23);
}

void decode_vector32(Instruction& inst, uint32_t word, const uint32_t* words, size_t available) {
  const uint32_t prefix = bits(word, 31, 25);
  const Opcode& opcode = prefix == 0x3F   ? set_opcode(inst, Family::VOP1, bits(word, 16, 9))
                         : prefix == 0x3E ? set_opcode(inst, Family::VOPC, bits(word, 24, 17))
                                          : set_opcode(inst, Family::VOP2, bits(word, 30, 25));
  const uint32_t src0 = bits(word, 8, 0);
  const bool extended = src0 == 249 || src0 == 250;
  inst.src[0] = extended ? vector(0, opcode.src0) : source(src0, opcode.src0);
  if (inst.family != Family::VOP1) inst.src[1] = vector(bits(word, 16, 9), opcode.src1);
  if (inst.family == Family::VOPC) {
    inst.sdst = scalar(sgpr_vcc, 2);
  } else if (inst.op == Op::v_readfirstlane_b32) {
    inst.dst = scalar(bits(word, 24, 17), opcode.dst);
  } else {
    inst.dst = vector(bits(word, 24, 17), opcode.dst);
  }
  if (inst.op == Op::v_accvgpr_mov_b32) {
    inst.dst.index += accumulator_row;
    if (inst.src[0].kind == Operand::Kind::vector) inst.src[0].index += accumulator_row;
  }
  if (extended) {
    const uint32_t control = available > 1 ? words[1] : 0;
    inst.size = 2;
    src0 == 249 ? decode_sdwa(inst, control) : decode_dpp(inst, control);
  }
}

// In the carry-out and division-scale forms, bits 8..14 hold an SGPR instead of modifiers.
bool has_scalar_destination(const Opcode& opcode) { return opcode.sdst != 0; }

void decode_vop3(Instruction& inst, uint32_t word, uint32_t next) {
  const Opcode& opcode = set_opcode(inst, Family::VOP3, bits(word, 25, 16));
  inst.size = 2;
  const uint32_t codes[3] = {bits(next, 8, 0), bits(next, 17, 9), bits(next, 26, 18)};
  const uint8_t widths[3] = {opcode.src0, opcode.src1, opcode.src2};
  for (int i = 0; i < 3; ++i) {
    inst.src[i] = source(codes[i], widths[i]);
    inst.src[i].neg = bit(next, 29 + i);
  }
  inst.vop.omod = uint8_t(bits(next, 28, 27));
  inst.vop.clamp = bit(word, 15);
  if (has_scalar_destination(opcode)) {
    inst.sdst = scalar(bits(word, 14, 8), opcode.sdst);
  } else {
    for (int i = 0; i < 3; ++i) inst.src[i].abs = bit(word, 8 + i);
    inst.vop.op_sel = uint8_t(bits(word, 14, 11));
  }
  // Compares (opcodes below 0x100) and the lane reads write SGPRs.
  const uint32_t dst = bits(word, 7, 0);
  if (bits(word, 25, 16) < 0x100) {
    inst.sdst = scalar(dst, 2);
  } else if (inst.op == Op::v_readlane_b32 || inst.op == Op::v_readfirstlane_b32) {
    inst.dst = scalar(dst, opcode.dst);
  } else {
    inst.dst = vector(dst, opcode.dst);
  }
}

// V_MFMA_*_XF32 and what follows it are encoded as VOP3P-MAI.
constexpr uint32_t first_matrix_opcode = 0x3E;

void decode_vop3p(Instruction& inst, uint32_t word, uint32_t next) {
  const Opcode& opcode = set_opcode(inst, Family::VOP3P, bits(word, 22, 16));
  inst.size = 2;
  const bool matrix = bits(word, 22, 16) >= first_matrix_opcode;
  const uint32_t codes[3] = {bits(next, 8, 0), bits(next, 17, 9), bits(next, 26, 18)};
  const uint8_t widths[3] = {opcode.src0, opcode.src1, opcode.src2};
  for (int i = 0; i < 3; ++i) {
    inst.src[i] = source(codes[i], widths[i]);
    if (!matrix) inst.src[i].neg = bit(next, 29 + i);
  }
  inst.dst = vector(bits(word, 7, 0), opcode.dst, matrix && bit(word, 15));
  if (!matrix) {
    inst.vop.neg_hi = uint8_t(bits(word, 10, 8));
    inst.vop.op_sel = uint8_t(bits(word, 13, 11));
    inst.vop.op_sel_hi = uint8_t(bits(next, 28, 27) | bits(word, 14, 14) << 2);
    inst.vop.clamp = bit(word, 15);
    return;
  }
  inst.vop.cbsz = uint8_t(bits(word, 10, 8));
  inst.vop.abid = uint8_t(bits(word, 14, 11));
  inst.vop.blgp = uint8_t(bits(next, 31, 29));
  const bool in_accumulator[3] = {bit(next, 27), bit(next, 28), bit(word, 15)};
  for (int i = 0; i < 3; ++i)
    if (inst.src[i].kind == Operand::Kind::vector && in_accumulator[i]) inst.src[i].index += accumulator_row;
  // The opcode of these two tells which operand is an accumulator; the acc bits don't count.
  if (inst.op == Op::v_accvgpr_read_b32) inst.src[0] = vector(codes[0] % 256, 1, true);
  if (inst.op == Op::v_accvgpr_write_b32) {
    inst.src[0] = source(codes[0], 1);
    inst.dst = vector(bits(word, 7, 0), 1, true);
  }
  // V_SMFMAC's third source holds the indices: acc_cd doesn't apply to it.
  if (inst.op >= Op::v_smfmac_f32_16x16x32_bf16 && inst.op <= Op::v_smfmac_i32_32x32x32_i8)
    inst.src[2] = source(codes[2], widths[2]);
}

void decode_smem(Instruction& inst, uint32_t word, uint32_t next) {
  const Opcode& opcode = set_opcode(inst, Family::SMEM, bits(word, 25, 18));
  inst.size = 2;
  inst.dst = scalar(bits(word, 12, 6), opcode.dst);
  inst.src[0] = scalar(bits(word, 5, 0) * 2, opcode.src0);
  if (opcode.src0 == 0) return;  // cache control and clocks have no address
  inst.mem.sc0 = bit(word, 16);  // GLC: atomics return the value before
  const bool has_imm = bit(word, 17), has_soffset = bit(word, 14);
  if (has_imm) inst.imm = sign_extend(bits(next, 20, 0), 21);
  if (has_soffset) {
    inst.src[1] = source(bits(next, 31, 25), 1);
  } else if (!has_imm) {
    inst.src[1] = source(bits(next, 6, 0), 1);
  }
}

void decode_ds(Instruction& inst, uint32_t word, uint32_t next) {
  const Opcode& opcode = set_opcode(inst, Family::DS, bits(word, 24, 17));
  inst.size = 2;
  const bool accumulator = bit(word, 25);
  inst.dst = vector(bits(next, 31, 24), opcode.dst, accumulator);
  inst.src[0] = vector(bits(next, 7, 0), opcode.src0);
  inst.src[1] = vector(bits(next, 15, 8), opcode.src1, accumulator);
  inst.src[2] = vector(bits(next, 23, 16), opcode.src2, accumulator);
  inst.imm = int32_t(bits(word, 15, 0));
  inst.mem.offset0 = uint8_t(bits(word, 7, 0));
  inst.mem.offset1 = uint8_t(bits(word, 15, 8));
  inst.mem.gds = bit(word, 16);
}

constexpr uint32_t first_flat_atomic = 0x40;

void decode_flat(Instruction& inst, uint32_t word, uint32_t next) {
  const uint32_t segment = bits(word, 15, 14);
  const Family family = segment == 0 ? Family::FLAT : segment == 1 ? Family::SCRATCH : Family::GLOBAL;
  const Opcode& opcode = set_opcode(inst, family, bits(word, 24, 18));
  inst.size = 2;
  inst.mem.sc0 = bit(word, 16);
  inst.mem.nt = bit(word, 17);
  inst.mem.sc1 = bit(word, 25);
  const bool accumulator = bit(next, 23);
  const uint32_t saddr = bits(next, 22, 16);
  const bool has_saddr = family != Family::FLAT && saddr != 0x7F;
  // Atomics return a value only with SC0.
  const bool returns = bits(word, 24, 18) < first_flat_atomic || inst.mem.sc0;
  inst.dst = vector(bits(next, 31, 24), returns ? opcode.dst : 0, accumulator);
  inst.src[1] = vector(bits(next, 15, 8), opcode.src1, accumulator);
  inst.imm = family == Family::FLAT ? int32_t(bits(word, 11, 0)) : sign_extend(bits(word, 12, 0), 13);
  // src[0] is the address in VGPRs, src[2] the one in SGPRs (CDNA3 ISA, "Flat, global and scratch addressing").
  if (family == Family::SCRATCH) {
    const bool has_vaddr = bit(word, 13);  // SVE
    if (has_saddr) inst.src[2] = source(saddr, 1);
    if (has_vaddr) inst.src[0] = vector(bits(next, 7, 0), 1);
  } else {
    inst.src[0] = vector(bits(next, 7, 0), has_saddr ? 1 : 2);
    if (has_saddr) inst.src[2] = source(saddr, 2);
  }
}

void decode_buffer(Instruction& inst, uint32_t word, uint32_t next, Family family) {
  const Opcode& opcode = set_opcode(inst, family, family == Family::MUBUF ? bits(word, 24, 18) : bits(word, 18, 15));
  inst.size = 2;
  inst.mem.sc0 = bit(word, 14);
  inst.mem.sc1 = family == Family::MUBUF ? bit(word, 15) : bit(next, 21);
  inst.mem.nt = family == Family::MUBUF ? bit(word, 17) : bit(next, 22);
  if (opcode.src0 == 0) return;  // cache control has no operands
  inst.imm = int32_t(bits(word, 11, 0));
  inst.mem.offen = bit(word, 12);
  inst.mem.idxen = bit(word, 13);
  if (family == Family::MUBUF) inst.mem.lds = bit(word, 16);
  else inst.mem.format = uint8_t(bits(word, 22, 19) | bits(word, 25, 23) << 4);
  const bool accumulator = bit(next, 23);
  inst.dst = vector(bits(next, 15, 8), inst.mem.lds ? 0 : opcode.dst, accumulator);
  inst.src[0] = vector(bits(next, 7, 0), uint8_t(inst.mem.offen + inst.mem.idxen));
  inst.src[1] = scalar(bits(next, 20, 16) * 4, 4);
  inst.src[2] = source(bits(next, 31, 24), 1);
}

void report_illegal(Wave& wave, const Instruction&) {
  wave.fail(Outcome::Status::illegal_instruction, "illegal instruction");
}

void report_missing(Wave& wave, const Instruction&) {
  wave.fail(Outcome::Status::illegal_instruction, "instruction not implemented in the simulator");
}

void report_end_of_code(Wave& wave, const Instruction&) {
  wave.fail(Outcome::Status::illegal_instruction, "execution ran past the end of the code");
}

bool operands_are_valid(const Instruction& inst) {
  for (const Operand& operand : inst.src)
    if (!source_is_valid(operand)) return false;
  return source_is_valid(inst.dst) && source_is_valid(inst.sdst);
}

bool can_load_to_lds(Op op) {
  switch (op) {
    case Op::buffer_load_ubyte: case Op::buffer_load_sbyte: case Op::buffer_load_ushort: case Op::buffer_load_sshort:
    case Op::buffer_load_dword: case Op::buffer_load_format_x:
      return true;
    default: return false;
  }
}

// SDWA selects a part of a dword, so no source may have two. V_SWAP writes its source.
bool form_is_valid(const Instruction& inst) {
  if (inst.mem.lds) return can_load_to_lds(inst.op);
  if (inst.op == Op::v_swap_b32) return inst.src[0].kind == Operand::Kind::vector && !inst.sdwa && !inst.dpp;
  return !inst.sdwa || (inst.src[0].dwords <= 1 && inst.src[1].dwords <= 1);
}

void parse_fields(Instruction& inst, const uint32_t* words, size_t available, size_t position) {
  const uint32_t word = words[0], next = available > 1 ? words[1] : 0;
  switch (bits(word, 31, 26)) {
    case 0x30: return decode_smem(inst, word, next);
    case 0x34: {
      const bool packed = bits(word, 25, 23) == 7;
      return packed ? decode_vop3p(inst, word, next) : decode_vop3(inst, word, next);
    }
    case 0x36: return decode_ds(inst, word, next);
    case 0x37: return decode_flat(inst, word, next);
    case 0x38: return decode_buffer(inst, word, next, Family::MUBUF);
    case 0x3A: return decode_buffer(inst, word, next, Family::MTBUF);
    default: break;
  }
  if (!bit(word, 31)) {
    decode_vector32(inst, word, words, available);
  } else if (bits(word, 31, 30) == 2) {
    decode_scalar(inst, word, position);
  }
}

bool has_mandatory_literal(Op op) {
  return op == Op::v_fmamk_f32 || op == Op::v_fmaak_f32 || op == Op::v_madmk_f16 || op == Op::v_madak_f16 ||
         op == Op::s_setreg_imm32_b32;
}

}  // namespace

Instruction parse(const uint32_t* words, size_t available, size_t position) {
  Instruction inst;
  parse_fields(inst, words, available, position);
  if (wants_literal(inst) || has_mandatory_literal(inst.op)) take_literal(inst, words, available);
  inst.word[0] = words[0];
  inst.word[1] = inst.size > 1 && available > 1 ? words[1] : 0;
  return inst;
}

Instruction decode(const uint32_t* words, size_t available, size_t position) {
  Instruction inst = parse(words, available, position);
  if (inst.op == Op::unknown || inst.size > available || !operands_are_valid(inst) || !form_is_valid(inst)) {
    inst.handler = report_illegal;
    return inst;
  }
  if (Binder bind = Semantics::find(inst.op)) bind(inst);
  if (inst.handler == nullptr) {
    inst.handler = report_missing;
  } else if (inst.dpp || inst.sdwa) {
    inst.inner = inst.handler;
    inst.handler = inst.dpp ? run_dpp : run_sdwa;
  }
  return inst;
}

bool is_executable(const Instruction& inst) {
  return inst.handler != report_illegal && inst.handler != report_missing && inst.handler != report_end_of_code;
}

std::vector<Instruction> decode_all(const uint32_t* words, size_t count) {
  std::vector<Instruction> code;
  code.reserve(count + 1);
  for (size_t i = 0; i < count; ++i) code.push_back(decode(words + i, count - i, i));
  Instruction end;
  end.handler = report_end_of_code;
  code.push_back(end);
  return code;
}

}  // namespace mi300x

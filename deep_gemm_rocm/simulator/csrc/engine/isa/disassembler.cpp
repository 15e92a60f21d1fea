#include "disassembler.h"

#include <cstdio>

#include "opcodes.h"

namespace mi300x {
namespace {

std::string range(const char* prefix, int first, int count) {
  if (count == 1) return prefix + std::to_string(first);
  return std::string(prefix) + '[' + std::to_string(first) + ':' + std::to_string(first + count - 1) + ']';
}

std::string constant(int code, uint32_t literal) {
  static const char* const floats[] = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494"};
  static const char* const apertures[] = {"src_shared_base", "src_shared_limit", "src_private_base",
                                          "src_private_limit"};
  char text[16];
  snprintf(text, sizeof text, "0x%x", literal);
  if (code == 255) return text;
  if (code > 248 || code == 239 || (code > 208 && code < 235)) return "invalid_operand_" + std::to_string(code);
  if (code >= 240) return floats[code - 240];
  if (code >= 235) return apertures[code - 235];
  return std::to_string(code <= 192 ? code - 128 : 192 - code);
}

std::string text_of(const Operand& operand, uint32_t literal) {
  switch (operand.special) {
    case Operand::Special::vccz: return "src_vccz";
    case Operand::Special::execz: return "src_execz";
    case Operand::Special::scc: return "src_scc";
    case Operand::Special::none: break;
  }
  switch (operand.kind) {
    case Operand::Kind::vector:
      return operand.index < accumulator_row ? range("v", operand.index, operand.dwords)
                                             : range("a", operand.index - accumulator_row, operand.dwords);
    case Operand::Kind::scalar: return scalar_name(operand.index, operand.dwords);
    case Operand::Kind::constant: return constant(operand.index, literal);
    case Operand::Kind::none: break;
  }
  return "";
}

uint32_t simm16(const Instruction& inst) { return inst.word[0] & 0xFFFF; }

// ---- Scalar instructions with an immediate ----

// A counter with all bits set isn't waited for and isn't printed, unless that holds for all of them.
std::string wait_counters(uint32_t bits) {
  const uint32_t vmcnt = (bits & 15) | (bits >> 14 & 3) << 4, expcnt = bits >> 4 & 7, lgkmcnt = bits >> 8 & 15;
  const bool all = vmcnt == 63 && expcnt == 7 && lgkmcnt == 15;
  std::string text;
  const auto append = [&](const char* name, uint32_t count, uint32_t most) {
    if (all || count != most) text += (text.empty() ? "" : " ") + std::string(name) + '(' + std::to_string(count) + ')';
  };
  append("vmcnt", vmcnt, 63);
  append("expcnt", expcnt, 7);
  append("lgkmcnt", lgkmcnt, 15);
  return text;
}

std::string hardware_register(uint32_t bits) {
  static const char* const names[] = {"0", "HW_REG_MODE", "HW_REG_STATUS", "HW_REG_TRAPSTS", "HW_REG_HW_ID",
                                      "HW_REG_GPR_ALLOC", "HW_REG_LDS_ALLOC", "HW_REG_IB_STS"};
  const uint32_t number = bits & 63, offset = bits >> 6 & 31, width = (bits >> 11 & 31) + 1;
  std::string text = "hwreg(" + (number < 8 ? names[number] : number == 20 ? "HW_REG_XCC_ID" : std::to_string(number));
  if (offset != 0 || width != 32) text += ", " + std::to_string(offset) + ", " + std::to_string(width);
  return text + ')';
}

std::string program_immediate(const Instruction& inst) {
  switch (inst.op) {
    case Op::s_waitcnt: return wait_counters(simm16(inst));
    case Op::s_barrier: case Op::s_wakeup: case Op::s_icache_inv: case Op::s_set_gpr_idx_off: case Op::s_ttracedata:
    case Op::s_endpgm_saved: return "";
    case Op::s_endpgm: return simm16(inst) == 0 ? "" : std::to_string(simm16(inst));
    default: return std::to_string(simm16(inst));
  }
}

std::string constant_immediate(const Instruction& inst) {
  switch (inst.op) {
    case Op::s_getreg_b32: case Op::s_setreg_b32: case Op::s_setreg_imm32_b32: return hardware_register(simm16(inst));
    case Op::s_call_b64: case Op::s_cbranch_i_fork: return std::to_string(simm16(inst));
    default: return signed_hexadecimal(simm16(inst));
  }
}

bool sets_hardware_register(Op op) { return op == Op::s_setreg_b32 || op == Op::s_setreg_imm32_b32; }

// ---- Memory instructions ----

std::string scalar_memory_offset(const Instruction& inst) {
  if (inst.src[0].dwords == 0) return "";
  const bool has_imm = inst.word[0] >> 17 & 1;
  std::string text;
  if (inst.src[1].dwords == 0) text = ", " + signed_hexadecimal(inst.imm);
  else if (has_imm) text = " offset:" + signed_hexadecimal(inst.imm);
  return text + (inst.mem.sc0 ? " glc" : "");
}

std::string decimal_offset(int32_t offset, const char* name = "offset") {
  return offset == 0 ? "" : ' ' + std::string(name) + ':' + std::to_string(offset);
}

std::string lds_offset(const Instruction& inst) {
  const bool is_pair = opcode_of(inst).has(trait::pair);
  const std::string text = is_pair ? decimal_offset(inst.mem.offset0, "offset0") +
                                         decimal_offset(inst.mem.offset1, "offset1")
                                   : decimal_offset(inst.imm);
  return text + (inst.mem.gds ? " gds" : "");
}

std::string buffer_format(uint8_t format) {
  static const char* const data[16] = {"INVALID", "8", "16", "8_8", "32", "16_16", "10_11_11", "11_11_10",
                                       "10_10_10_2", "2_10_10_10", "8_8_8_8", "32_32", "16_16_16_16", "32_32_32",
                                       "32_32_32_32", "RESERVED_15"};
  static const char* const number[8] = {"UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "RESERVED_6", "FLOAT"};
  const int data_format = format & 15, number_format = format >> 4;
  if (data_format == 1 && number_format == 0) return "";  // what assemblers assume
  std::string text;
  if (data_format != 1) text = std::string("BUF_DATA_FORMAT_") + data[data_format];
  if (number_format != 0) text += (text.empty() ? "" : ",") + std::string("BUF_NUM_FORMAT_") + number[number_format];
  return " format:[" + text + ']';
}

std::string cache_policy(const Instruction& inst) {
  return std::string(inst.mem.sc0 ? " sc0" : "") + (inst.mem.nt ? " nt" : "") + (inst.mem.sc1 ? " sc1" : "");
}

// Offsets and modifiers behind the operands.
std::string memory_modifiers(const Instruction& inst) {
  switch (inst.family) {
    case Family::SMEM: return scalar_memory_offset(inst);
    case Family::DS: return lds_offset(inst);
    case Family::FLAT: case Family::GLOBAL: case Family::SCRATCH: return decimal_offset(inst.imm) + cache_policy(inst);
    case Family::MUBUF: case Family::MTBUF: {
      std::string text = inst.family == Family::MTBUF ? buffer_format(inst.mem.format) : "";
      if (inst.mem.idxen) text += " idxen";
      if (inst.mem.offen) text += " offen";
      return text + decimal_offset(inst.imm) + cache_policy(inst) + (inst.mem.lds ? " lds" : "");
    }
    default: return "";
  }
}

// True where an address operand is left out: LLVM writes "off" in its place.
bool is_off(const Instruction& inst, int source) {
  if (inst.src[source].kind != Operand::Kind::none) return false;
  switch (inst.family) {
    case Family::GLOBAL: return source == 2;
    case Family::SCRATCH: return source != 1;
    case Family::MUBUF: case Family::MTBUF: return source == 0 && inst.src[1].kind != Operand::Kind::none;
    default: return false;
  }
}

}  // namespace

std::string signed_hexadecimal(int64_t value) {
  char text[24];
  const uint64_t magnitude = value < 0 ? 0 - uint64_t(value) : uint64_t(value);
  snprintf(text, sizeof text, "%s0x%llx", value < 0 ? "-" : "", static_cast<unsigned long long>(magnitude));
  return text;
}

std::string scalar_name(int index, int dwords) {
  const char* const pair = dwords == 2 ? "" : index % 2 ? "_hi" : "_lo";
  if (index >= 126) return std::string("exec") + pair;
  if (index == 124) return "m0";
  if (index >= 108) return range("ttmp", index - 108, dwords);
  if (index >= 106) return std::string("vcc") + pair;
  if (index >= 104) return std::string("xnack_mask") + pair;
  if (index >= sgpr_flat_scratch) return std::string("flat_scratch") + pair;
  return range("s", index, dwords);
}

std::string disassemble(const Instruction& inst) {
  std::string text = mnemonic(inst.op);
  const char* separator = " ";
  const auto append = [&](const std::string& operand) {
    if (operand.empty()) return;
    text += separator + operand;
    separator = ", ";
  };
  if (sets_hardware_register(inst.op)) append(constant_immediate(inst));
  append(text_of(inst.dst, inst.literal));
  append(text_of(inst.sdst, inst.literal));
  for (int i = 0; i < 3; ++i) append(is_off(inst, i) ? "off" : text_of(inst.src[i], inst.literal));
  if (inst.op == Op::s_setreg_imm32_b32) append(signed_hexadecimal(inst.literal));
  else if (inst.family == Family::SOPP) append(program_immediate(inst));
  else if (inst.family == Family::SOPK && !sets_hardware_register(inst.op)) append(constant_immediate(inst));
  return text + memory_modifiers(inst);
}

std::string describe(const Instruction& inst) {
  char words[32];
  snprintf(words, sizeof words, inst.size > 1 ? " (0x%08x 0x%08x)" : " (0x%08x)", inst.word[0], inst.word[1]);
  return disassemble(inst) + words;
}

}  // namespace mi300x

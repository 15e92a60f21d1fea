// Instructions as text.

#include <cstdio>

#include "decoder.h"

namespace mi300x {
namespace {

std::string range(const char* prefix, int first, int count) {
  if (count == 1) return prefix + std::to_string(first);
  return std::string(prefix) + '[' + std::to_string(first) + ':' + std::to_string(first + count - 1) + ']';
}

std::string constant(int code, uint32_t literal) {
  static const char* const floats[] = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494"};
  static const char* const apertures[] = {"src_shared_base", "src_shared_limit", "src_private_base", "src_private_limit"};
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

bool takes_immediate(const Instruction& inst) { return inst.family == Family::SOPP || inst.family == Family::SOPK; }

}  // namespace

std::string scalar_name(int index, int dwords) {
  const char* const pair = dwords == 2 ? "" : index % 2 ? "_hi" : "_lo";
  if (index >= 126) return std::string("exec") + pair;
  if (index == 124) return "m0";
  if (index >= 108) return range("ttmp", index - 108, dwords);
  if (index >= 106) return std::string("vcc") + pair;
  if (index >= 104) return std::string("xnack_mask") + pair;
  if (index >= 102) return std::string("flat_scratch") + pair;
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
  append(text_of(inst.dst, inst.literal));
  append(text_of(inst.sdst, inst.literal));
  for (const Operand& operand : inst.src) append(text_of(operand, inst.literal));
  if (takes_immediate(inst)) append(std::to_string(inst.imm));
  return text;
}

std::string describe(const Instruction& inst) {
  char words[32];
  snprintf(words, sizeof words, inst.size > 1 ? " (0x%08x 0x%08x)" : " (0x%08x)", inst.word[0], inst.word[1]);
  return disassemble(inst) + words;
}

}  // namespace mi300x

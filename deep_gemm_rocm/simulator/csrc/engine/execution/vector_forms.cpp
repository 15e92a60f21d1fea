// SDWA and DPP forms: rearrange the sources into temporary rows, then run the instruction itself on these.

#include "lane_crossing.h"
#include "lanes.h"

namespace mi300x {
namespace {

// ---- SDWA: a byte, a word or the whole dword of each source, and of the destination ----

enum Selection { byte_0, byte_1, byte_2, byte_3, word_0, word_1, dword };

uint32_t selected(uint32_t value, uint32_t selection, bool sign_extend) {
  if (selection >= dword) return value;
  const int width = selection <= byte_3 ? 8 : 16;
  const int shift = selection <= byte_3 ? 8 * int(selection) : 16 * int(selection - word_0);
  const uint32_t field = value << (32 - width - shift);
  return sign_extend ? uint32_t(int32_t(field) >> (32 - width)) : field >> (32 - width);
}

void select_source(Wave& wave, Operand& operand, int temporary, uint32_t selection, bool sign_extend) {
  alignas(64) Lanes<uint32_t> buffer;
  const uint32_t* source = load_source(wave, operand, false, buffer);
  uint32_t* row = wave.row(temporary);
  for (int l = 0; l < lanes; ++l) row[l] = selected(source[l], selection, sign_extend);
  operand.kind = Operand::Kind::vector;
  operand.index = uint16_t(temporary);
}

// Treatment of the destination bits that aren't selected.
enum Unused { pad_zero, sign_extended, preserved };

uint32_t merged(uint32_t old, uint32_t value, uint32_t selection, uint32_t unused) {
  if (selection >= dword) return value;
  const int width = selection <= byte_3 ? 8 : 16;
  const int shift = selection <= byte_3 ? 8 * int(selection) : 16 * int(selection - word_0);
  const uint32_t mask = ((1u << width) - 1) << shift;
  const uint32_t placed = value << shift & mask;
  if (unused == preserved) return (old & ~mask) | placed;
  if (unused == sign_extended) {
    const uint32_t above = shift + width >= 32 ? 0 : ~0u << (shift + width);
    return placed | (value >> (width - 1) & 1 ? above : 0);
  }
  return placed;
}

}  // namespace

void run_sdwa(Wave& wave, const Instruction& inst) {
  const uint32_t control = inst.vop.sdwa_dpp;
  Instruction plain = inst;
  select_source(wave, plain.src[0], temporary_row, bits(control, 18, 16), control >> 19 & 1);
  if (inst.src[1].kind != Operand::Kind::none)
    select_source(wave, plain.src[1], temporary_row + 1, bits(control, 26, 24), control >> 27 & 1);
  if (inst.dst.kind != Operand::Kind::vector || inst.family == Family::VOPC || inst.dst.dwords != 1) {
    inst.inner(wave, plain);
    return;
  }
  const uint64_t exec = wave.exec();
  const uint32_t selection = bits(control, 10, 8), unused = bits(control, 12, 11);
  uint32_t* result = wave.row(temporary_row + 2);
  uint32_t* destination = wave.row(inst.dst.index);
  memcpy(result, destination, sizeof(Lanes<uint32_t>));
  plain.dst.index = uint16_t(temporary_row + 2);
  inst.inner(wave, plain);
  for (int l = 0; l < lanes; ++l)
    if (exec >> l & 1) destination[l] = merged(destination[l], result[l], selection, unused);
}

void run_dpp(Wave& wave, const Instruction& inst) {
  const uint64_t exec = wave.exec();
  const DppMove move = dpp_move(wave, inst);
  for (int dword = 0; dword < inst.src[0].dwords; ++dword) {
    const uint32_t* from = wave.row(inst.src[0].index + dword);
    uint32_t* to = wave.row(temporary_row + dword);
    for (int l = 0; l < lanes; ++l) to[l] = from[move.source[l]];
    for (uint64_t invalid = ~move.valid; invalid != 0; invalid &= invalid - 1) to[__builtin_ctzll(invalid)] = 0;
  }
  Instruction plain = inst;
  plain.src[0].index = temporary_row;
  const uint64_t active = exec & move.written;
  wave.set_exec(active);
  inst.inner(wave, plain);
  if (wave.exec() == active) wave.set_exec(exec);  // V_CMPX has set it to its own result
}

}  // namespace mi300x

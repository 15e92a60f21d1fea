// SDWA and DPP forms: the sources are rearranged into temporary rows, then the instruction itself runs on those.

#include <vector>

#include "lanes.h"

namespace mi300x {
namespace {

uint32_t bits(uint32_t word, int high, int low) { return (word >> low) & ((1u << (high - low + 1)) - 1); }

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

// What becomes of the bits of the destination that weren't selected.
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

// ---- DPP: lane l of the first source comes from another lane ----

constexpr int invalid_lane = -1;

int dpp_source_lane(uint32_t control, int lane) {
  const int row = lane & ~15, position = lane & 15, amount = int(control & 15);
  if (control <= 0x0FF) return (lane & ~3) | int(control >> (2 * (lane & 3)) & 3);                   // quad_perm
  if (control <= 0x10F) return position + amount < 16 ? lane + amount : invalid_lane;                // row_shl
  if (control <= 0x11F) return position - amount >= 0 ? lane - amount : invalid_lane;                // row_shr
  if (control <= 0x12F) return row | ((position - amount) & 15);                                     // row_ror
  switch (control) {
    case 0x130: return lane + 1 < lanes ? lane + 1 : invalid_lane;  // wave_shl:1
    case 0x134: return (lane + 1) % lanes;                          // wave_rol:1
    case 0x138: return lane - 1;                                    // wave_shr:1
    case 0x13C: return (lane + lanes - 1) % lanes;                  // wave_ror:1
    case 0x140: return row | (15 - position);                       // row_mirror
    case 0x141: return (lane & ~7) | (7 - (lane & 7));              // row_half_mirror
    case 0x142: return row > 0 ? row - 1 : invalid_lane;            // row_bcast:15
    case 0x143: return row >= 32 ? 31 : invalid_lane;               // row_bcast:31
    default: break;
  }
  if (control >= 0x150 && control <= 0x15F) return row | amount;  // row_newbcast
  return invalid_lane;
}

// The source lanes of one DPP control; invalid ones are 0.
struct DppSources {
  uint8_t lane[lanes] = {};
  uint64_t valid = 0;

  explicit DppSources(uint32_t control) {
    for (int l = 0; l < lanes; ++l) {
      const int source = dpp_source_lane(control, l);
      if (source == invalid_lane) continue;
      lane[l] = uint8_t(source);
      valid |= 1ull << l;
    }
  }
};

const DppSources& dpp_sources(uint32_t control) {
  static const std::vector<DppSources> all = [] {
    std::vector<DppSources> sources;
    for (uint32_t i = 0; i < 512; ++i) sources.emplace_back(i);
    return sources;
  }();
  return all[control];
}

// Lanes of the enabled banks, 4 lanes each, of the enabled rows.
uint64_t dpp_enabled_lanes(uint32_t row_mask, uint32_t bank_mask) {
  uint64_t row = 0, enabled = 0;
  for (int i = 0; i < 4; ++i) row |= bank_mask >> i & 1 ? 0xFull << 4 * i : 0;
  for (int i = 0; i < 4; ++i) enabled |= row_mask >> i & 1 ? row << 16 * i : 0;
  return enabled;
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
  const uint32_t control = inst.vop.sdwa_dpp;
  const bool zero_fill = control >> 19 & 1;  // bound_ctrl:0 in assembly
  const uint32_t bank_mask = bits(control, 27, 24), row_mask = bits(control, 31, 28);
  const uint64_t exec = wave.exec();
  const DppSources& sources = dpp_sources(bits(control, 16, 8));
  uint64_t valid = sources.valid;
  if (exec != ~0ull)
    for (int l = 0; l < lanes; ++l) valid &= ~(uint64_t(~exec >> sources.lane[l] & 1) << l);
  for (int dword = 0; dword < inst.src[0].dwords; ++dword) {
    const uint32_t* from = wave.row(inst.src[0].index + dword);
    uint32_t* to = wave.row(temporary_row + dword);
    for (int l = 0; l < lanes; ++l) to[l] = from[sources.lane[l]];
    for (uint64_t invalid = ~valid; invalid != 0; invalid &= invalid - 1) to[__builtin_ctzll(invalid)] = 0;
  }
  const uint64_t writes = dpp_enabled_lanes(row_mask, bank_mask) & (zero_fill ? ~0ull : valid);
  Instruction plain = inst;
  plain.src[0].index = temporary_row;
  const uint64_t active = exec & writes;
  wave.set_exec(active);
  inst.inner(wave, plain);
  if (wave.exec() == active) wave.set_exec(exec);  // V_CMPX has set it to its own result
}

}  // namespace mi300x

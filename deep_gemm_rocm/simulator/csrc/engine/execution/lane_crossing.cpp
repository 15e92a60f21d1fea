#include "lane_crossing.h"

#include <algorithm>
#include <vector>

namespace mi300x {
namespace {

// CDNA3 ISA, DS_SWIZZLE_B32: the offset selects among four patterns.
int swizzled_lane(uint32_t offset, int lane) {
  const int group = lane & ~31, position = lane & 31;
  if (offset >= 0xE000) {  // FFT: lanes in bit-reversed order within groups, if the mask has the upper bits
    const int mask = offset & 31;
    int reversed = 0;
    for (int i = 0; i < 5; ++i) reversed |= (position >> i & 1) << (4 - i);
    return group | reversed >> __builtin_popcount(uint32_t(mask)) | (position & mask);
  }
  if (offset >= 0xC000) {  // rotate within groups that the mask leaves together
    const int mask = offset & 31, amount = int(offset >> 5 & 31);
    const int rotated = offset >> 10 & 1 ? position - amount : position + amount;
    return group | (position & mask) | (rotated & ~mask & 31);
  }
  if (offset & 0x8000) return (lane & ~3) | int(offset >> (2 * (lane & 3)) & 3);  // permutation of quads
  const int and_mask = offset & 31, or_mask = offset >> 5 & 31, xor_mask = offset >> 10 & 31;
  return group | (((position & and_mask) | or_mask) ^ xor_mask);
}

int dpp_source_lane(uint32_t control, int lane) {
  const int row = lane & ~15, position = lane & 15, amount = int(control & 15);
  if (control <= 0x0FF) return (lane & ~3) | int(control >> (2 * (lane & 3)) & 3);                   // quad_perm
  if (control <= 0x10F) return position + amount < 16 ? lane + amount : no_lane;                // row_shl
  if (control <= 0x11F) return position - amount >= 0 ? lane - amount : no_lane;                // row_shr
  if (control <= 0x12F) return row | ((position - amount) & 15);                                     // row_ror
  switch (control) {
    case 0x130: return lane + 1 < lanes ? lane + 1 : no_lane;  // wave_shl:1
    case 0x134: return (lane + 1) % lanes;                          // wave_rol:1
    case 0x138: return lane - 1;                                    // wave_shr:1
    case 0x13C: return (lane + lanes - 1) % lanes;                  // wave_ror:1
    case 0x140: return row | (15 - position);                       // row_mirror
    case 0x141: return (lane & ~7) | (7 - (lane & 7));              // row_half_mirror
    case 0x142: return row > 0 ? row - 1 : no_lane;            // row_bcast:15
    case 0x143: return row >= 32 ? 31 : no_lane;               // row_bcast:31
    default: break;
  }
  if (control >= 0x150 && control <= 0x15F) return row | amount;  // row_newbcast
  return no_lane;
}

// The source lanes of one DPP control; invalid ones are 0.
struct DppSources {
  uint8_t lane[lanes] = {};
  uint64_t valid = 0;

  explicit DppSources(uint32_t control) {
    for (int l = 0; l < lanes; ++l) {
      const int source = dpp_source_lane(control, l);
      if (source == no_lane) continue;
      lane[l] = uint8_t(source);
      valid |= 1ull << l;
    }
  }
};

const std::vector<DppSources> dpp_sources = [] {
  std::vector<DppSources> sources;
  for (uint32_t i = 0; i < 512; ++i) sources.emplace_back(i);
  return sources;
}();

// Lanes of the enabled banks, 4 lanes each, of the enabled rows.
uint64_t dpp_enabled_lanes(uint32_t row_mask, uint32_t bank_mask) {
  uint64_t row = 0, enabled = 0;
  for (int i = 0; i < 4; ++i) row |= bank_mask >> i & 1 ? 0xFull << 4 * i : 0;
  for (int i = 0; i < 4; ++i) enabled |= row_mask >> i & 1 ? row << 16 * i : 0;
  return enabled;
}

}  // namespace

const Operand& crossing_data(const Instruction& inst) { return inst.src[inst.op == Op::ds_swizzle_b32 ? 0 : 1]; }

void crossing_sources(Wave& wave, const Instruction& inst, int (&sources)[lanes]) {
  const uint64_t exec = wave.exec();
  const uint32_t* address = wave.row(inst.src[0].index);
  const uint32_t offset = uint32_t(inst.imm);
  const auto lane_at = [&](int lane) { return int((address[lane] + offset) / 4 % lanes); };
  if (inst.op == Op::ds_permute_b32) {
    std::fill_n(sources, lanes, no_lane);
    for (int lane = 0; lane < lanes; ++lane)
      if (exec >> lane & 1) sources[lane_at(lane)] = lane;
    return;
  }
  if (inst.op == Op::ds_swizzle_b32)
    for (int lane = 0; lane < lanes; ++lane) sources[lane] = swizzled_lane(offset, lane);
  else
    for (int lane = 0; lane < lanes; ++lane) sources[lane] = lane_at(lane);
  if (exec == ~0ull) return;
  for (int& source : sources)
    if (!(exec >> source & 1)) source = no_lane;
}

DppMove dpp_move(const Wave& wave, const Instruction& inst) {
  const uint32_t control = inst.vop.sdwa_dpp;
  const bool zero_fill = control >> 19 & 1;  // bound_ctrl:0 in assembly
  const uint64_t exec = wave.exec();
  const DppSources& sources = dpp_sources[bits(control, 16, 8)];
  uint64_t valid = sources.valid;
  if (exec != ~0ull)
    for (int l = 0; l < lanes; ++l) valid &= ~(uint64_t(~exec >> sources.lane[l] & 1) << l);
  const uint64_t enabled = dpp_enabled_lanes(bits(control, 31, 28), bits(control, 27, 24));
  return {sources.lane, valid, enabled & (zero_fill ? ~0ull : valid)};
}

}  // namespace mi300x

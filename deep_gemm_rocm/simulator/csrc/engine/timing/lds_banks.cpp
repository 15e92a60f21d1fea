#include "lds_banks.h"

#include <algorithm>

namespace mi300x::timing {
namespace {

constexpr uint32_t banks = 32;

constexpr uint8_t read_b128_order[32] = {0, 1, 2,  3,  20, 21, 22, 23, 4,  5,  6,  7,  16, 17, 18, 19,
                                         8, 9, 10, 11, 28, 29, 30, 31, 12, 13, 14, 15, 24, 25, 26, 27};

// The lane at a position in the order in which lanes are grouped.
int lane_at(int position, bool reads_b128) {
  return reads_b128 ? (position & 32) + read_b128_order[position & 31] : position;
}

// Counts the clocks of a group of lanes: the largest number of different dwords in one bank. Atomics on the same dword
// are serialized.
class Group {
 public:
  explicit Group(bool atomic) : atomic_(atomic) {}

  void want(uint32_t dword) {
    const uint32_t bank = dword % banks;
    for (uint32_t i = 0; i < counts_[bank] && !atomic_; ++i)
      if (wanted_[bank][i] == dword) return;
    wanted_[bank][counts_[bank]++ % lanes] = dword;
    most_ = std::max<uint32_t>(most_, counts_[bank]);
  }
  uint32_t clocks() const { return most_; }

 private:
  bool atomic_;
  uint32_t most_ = 0;
  uint8_t counts_[banks] = {};
  uint32_t wanted_[banks][lanes];
};

// A fast test for the usual case: all lanes of each group are aligned and use different banks. `shift` is log2 of the
// bytes of a lane.
bool without_conflicts(const uint32_t* base, uint32_t offset, int shift, int group_lanes, bool reads_b128) {
  const uint32_t slots = 128u >> shift;
  for (int first = 0; first < lanes; first += group_lanes) {
    uint32_t wanted = 0, misaligned = 0;
    for (int position = first; position < first + group_lanes; ++position) {
      const uint32_t address = base[lane_at(position, reads_b128)] + offset;
      wanted |= 1u << (address >> shift & (slots - 1));
      misaligned |= address & ((1u << shift) - 1);
    }
    if (misaligned != 0 || __builtin_popcount(wanted) != group_lanes) return false;
  }
  return true;
}

}  // namespace

BankClocks bank_clocks(Wave& wave, const Instruction& inst, const MemoryAccess& access) {
  BankClocks result;
  if (access.parts == 0 || access.bytes == 0) return result;
  const uint32_t* base = wave.row(inst.src[0].index);
  const uint64_t exec = wave.exec();
  const int dwords = std::max(1, access.bytes / 4);
  const int group_lanes = dwords == 1 ? 32 : dwords == 2 ? 16 : 8;
  const bool reads_b128 = dwords == 4 && !access.writes;
  for (int part = 0; part < access.parts; ++part) {
    const int shift = __builtin_ctz(unsigned(4 * dwords));
    if (exec == ~0ull && access.bytes == 1 << shift && access.bytes >= 4 && !access.atomic &&
        without_conflicts(base, access.offsets[part], shift, group_lanes, reads_b128)) {
      result.all += uint32_t(lanes / group_lanes);
      continue;
    }
    for (int first = 0; first < lanes; first += group_lanes) {
      Group group(access.atomic);
      for (int position = first; position < first + group_lanes; ++position) {
        const int lane = lane_at(position, reads_b128);
        if (!(exec >> lane & 1)) continue;
        const uint32_t dword = (base[lane] + access.offsets[part]) / 4;
        for (int i = 0; i < dwords; ++i) group.want(dword + uint32_t(i));
      }
      result.all += std::max(1u, group.clocks());
      result.conflicts += group.clocks() > 1 ? group.clocks() - 1 : 0;
    }
  }
  return result;
}

}  // namespace mi300x::timing

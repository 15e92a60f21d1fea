#include "address_space.h"

#include <algorithm>
#include <cstring>

namespace mi300x::timing {
namespace {

// An allocation has pages of its own.
constexpr uint64_t page_bytes = 4096;
// Where a launch has its arguments and its code: beyond all allocations, each launch in the same place.
constexpr uint64_t launch_space = 1ull << 52;

uint64_t pages(uint64_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

}  // namespace

// What the arguments point to comes first, in their order: where the host has it makes no difference then.
void AddressSpace::enter(const Launch& launch) {
  const Dispatch& dispatch = launch.dispatch;
  const auto known = launch.memory.begin() + long(dispatch.memory_count);
  for (uint32_t offset = 0; offset + 8 <= dispatch.kernel->kernarg_bytes; offset += 8) {
    uint64_t address;
    memcpy(&address, static_cast<const uint8_t*>(dispatch.kernarg) + offset, sizeof address);
    const auto after = std::upper_bound(launch.memory.begin(), known, address,
                                        [](uint64_t value, const MemoryRange& range) { return value < range.begin; });
    if (after != launch.memory.begin() && address < (after - 1)->end) place(*(after - 1));
  }
  blocks_.clear();
  for (auto range = launch.memory.begin(); range != known; ++range) {
    place(*range);
    blocks_.push_back(placed_[range->begin]);
  }
  uint64_t own = launch_space;
  for (auto range = known; range != launch.memory.end(); ++range) {
    blocks_.push_back({range->begin, range->end, own});
    own += pages(range->end - range->begin);
  }
  std::sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.begin < b.begin; });
}

void AddressSpace::place(const MemoryRange& range) {
  auto other = placed_.upper_bound(range.begin);
  if (other != placed_.begin()) --other;
  if (other != placed_.end() && other->second.begin == range.begin && other->second.end == range.end) return;
  // The host has given the memory of what overlaps to others.
  while (other != placed_.end() && other->second.begin < range.end)
    other = other->second.end > range.begin ? placed_.erase(other) : std::next(other);
  placed_[range.begin] = {range.begin, range.end, next_};
  next_ += pages(range.end - range.begin);
}

bool AddressSpace::find(uint64_t address, Block& found) const {
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), address,
                                      [](uint64_t value, const Block& block) { return value < block.begin; });
  if (after == blocks_.begin() || !(after - 1)->holds(address)) return false;
  found = *(after - 1);
  return true;
}

}  // namespace mi300x::timing

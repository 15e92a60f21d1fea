#include "address_space.h"

#include <algorithm>
#include <cstring>

namespace mi300x::timing {
namespace {

constexpr uint64_t page_bytes = 4096;  // allocations don't share pages
// Arguments and code of a launch: beyond all allocations, at the same place for each launch.
constexpr uint64_t launch_space = 1ull << 52;

uint64_t pages(uint64_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

}  // namespace

// Memory that arguments point to is placed first, in their order, so that its place doesn't depend on host addresses.
void AddressSpace::enter(const Launch& launch) {
  const Dispatch& dispatch = launch.dispatch;
  const auto known = launch.memory.begin() + long(dispatch.memory_count);
  for (uint32_t offset = 0; offset + 8 <= dispatch.kernel->kernarg_bytes; offset += 8) {
    uint64_t address;
    memcpy(&address, static_cast<const uint8_t*>(dispatch.kernarg) + offset, sizeof address);
    const MemoryRange* first = launch.memory.data();
    if (const MemoryRange* range = find_range(first, first + dispatch.memory_count, address)) place(*range);
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
  // Earlier ranges that overlap were freed: the host has reused their memory.
  while (other != placed_.end() && other->second.begin < range.end)
    other = other->second.end > range.begin ? placed_.erase(other) : std::next(other);
  placed_[range.begin] = {range.begin, range.end, next_};
  next_ += pages(range.end - range.begin);
}

bool AddressSpace::find(uint64_t address, Block& found) const {
  const Block* block = find_range(blocks_.data(), blocks_.data() + blocks_.size(), address);
  if (block == nullptr) return false;
  found = *block;
  return true;
}

}  // namespace mi300x::timing

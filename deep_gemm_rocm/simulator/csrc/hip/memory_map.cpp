#include "memory_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "device.h"
#include "status.h"

namespace {

bool is_allocation(MemoryKind kind) {
  return kind == MemoryKind::device || kind == MemoryKind::host || kind == MemoryKind::managed;
}

uint64_t page_size() {
  static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// An allocation is followed by a page that is in no range, so that an access just past its end is seen.
uint64_t mapped_bytes(uint64_t size) { return (size + page_size() - 1) / page_size() * page_size() + page_size(); }

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

MemoryMap& MemoryMap::instance() {
  static MemoryMap& map = *new MemoryMap;
  return map;
}

void* MemoryMap::allocate(size_t size, MemoryKind kind, unsigned flags) {
  {
    std::lock_guard lock(mutex_);
    if (size > device::kMemoryBytes - allocated_) {
      fail(hipErrorOutOfMemory, "%zu bytes asked for, %llu of the device's %llu free", size,
           static_cast<unsigned long long>(device::kMemoryBytes - allocated_),
           static_cast<unsigned long long>(device::kMemoryBytes));
    }
    allocated_ += size;
  }
  void* pointer =
      mmap(nullptr, mapped_bytes(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::lock_guard lock(mutex_);
  if (pointer == MAP_FAILED) {
    allocated_ -= size;
    fail(hipErrorOutOfMemory, "the host has no address space for %zu bytes", size);
  }
  insert({address_of(pointer), address_of(pointer) + size, kind, flags});
  return pointer;
}

void MemoryMap::release(void* pointer) {
  std::unique_lock idle(in_use_);
  std::lock_guard lock(mutex_);
  const auto [first, last] = blocks_.equal_range(address_of(pointer));
  const auto found = std::find_if(first, last, [](const auto& entry) { return is_allocation(entry.second.kind); });
  if (found == last) fail(hipErrorInvalidValue, "%p is not the beginning of an allocation", pointer);
  unmap(found);
}

void MemoryMap::release_all() {
  std::unique_lock idle(in_use_);
  std::lock_guard lock(mutex_);
  for (auto entry = blocks_.begin(); entry != blocks_.end();) {
    const MemoryKind kind = entry->second.kind;
    entry = kind == MemoryKind::device || kind == MemoryKind::host ? unmap(entry) : std::next(entry);
  }
}

void MemoryMap::add(uint64_t begin, uint64_t size, MemoryKind kind, unsigned flags) {
  std::lock_guard lock(mutex_);
  insert({begin, begin + size, kind, flags});
}

bool MemoryMap::remove(uint64_t begin, MemoryKind kind) {
  std::unique_lock idle(in_use_);
  std::lock_guard lock(mutex_);
  const auto [first, last] = blocks_.equal_range(begin);
  const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second.kind == kind; });
  if (found == last) return false;
  blocks_.erase(found);
  ranges_.reset();
  return true;
}

std::optional<MemoryBlock> MemoryMap::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  // Registered ranges may contain one another, so an earlier beginning can still hold the address.
  for (auto after = blocks_.upper_bound(address); after != blocks_.begin();) {
    --after;
    if (address < after->second.end) return after->second;
  }
  return std::nullopt;
}

bool MemoryMap::covers(uint64_t address, uint64_t size) const {
  std::shared_ptr<const MemoryRanges> all;
  {
    std::lock_guard lock(mutex_);
    all = ranges();
  }
  const auto after = std::upper_bound(all->begin(), all->end(), address,
                                      [](uint64_t value, const auto& range) { return value < range.begin; });
  if (after == all->begin()) return false;
  const mi300x::MemoryRange& range = *std::prev(after);
  return address <= range.end && size <= range.end - address;
}

uint64_t MemoryMap::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return allocated_;
}

MemoryMap::Lease MemoryMap::lease() const {
  std::shared_lock in_use(in_use_);
  std::lock_guard lock(mutex_);
  return {std::move(in_use), ranges()};
}

void MemoryMap::insert(const MemoryBlock& block) {
  blocks_.emplace(block.begin, block);
  ranges_.reset();
}

MemoryMap::Blocks::iterator MemoryMap::unmap(Blocks::iterator allocation) {
  const MemoryBlock block = allocation->second;
  munmap(reinterpret_cast<void*>(block.begin), mapped_bytes(block.size()));
  allocated_ -= block.size();
  ranges_.reset();
  return blocks_.erase(allocation);
}

// Merges blocks that overlap or touch: neighbouring registrations are often parts of one buffer. Allocations never
// touch, for a page lies between them.
std::shared_ptr<const MemoryRanges> MemoryMap::ranges() const {
  if (!ranges_) {
    auto merged = std::make_shared<MemoryRanges>();
    for (const auto& [begin, block] : blocks_) {
      if (!merged->empty() && begin <= merged->back().end) {
        merged->back().end = std::max(merged->back().end, block.end);
      } else {
        merged->push_back({begin, block.end});
      }
    }
    ranges_ = std::move(merged);
  }
  return ranges_;
}

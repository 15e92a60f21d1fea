#include "memory_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "../base/fork.h"
#include "../base/status.h"
#include "../device/device.h"

namespace {

bool is_allocation(MemoryKind kind) {
  return kind == MemoryKind::device || kind == MemoryKind::host || kind == MemoryKind::managed;
}

uint64_t page_size() {
  static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// An allocation is followed by a page that is in no range, so that an access just past its end is found.
uint64_t mapped_bytes(uint64_t size) { return (size + page_size() - 1) / page_size() * page_size() + page_size(); }

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

void* map_anonymous(uint64_t size) {
  return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

uint64_t bitmap_bytes(uint64_t size) { return size / 8 + 1; }

bool bit_of(const uint8_t* bits, uint64_t i) { return __atomic_load_n(bits + i / 8, __ATOMIC_RELAXED) >> i % 8 & 1; }
void set_bit(uint8_t* bits, uint64_t i) { __atomic_fetch_or(bits + i / 8, uint8_t(1u << i % 8), __ATOMIC_RELAXED); }

void set_bits(uint8_t* bits, uint64_t begin, uint64_t end) {
  for (; begin < end && begin % 8 != 0; ++begin) set_bit(bits, begin);
  for (; end > begin && end % 8 != 0; --end) set_bit(bits, end - 1);
  if (begin < end) std::memset(bits + begin / 8, 0xFF, (end - begin) / 8);
}

// Whether launches keep track of what they write.
bool is_sanitizing() {
  const char* sanitize = std::getenv("DG_SIM_SANITIZE");
  const char* timing = std::getenv("DG_SIM_TIMING");  // may skip stores that don't influence the time
  const bool is_on = sanitize && (std::strcmp(sanitize, "1") == 0 || std::strcmp(sanitize, "2") == 0);
  return is_on && !(timing && std::strcmp(timing, "1") == 0);
}

// Limits of freed allocations whose address space is kept: in bytes, and in number, because the kernel limits mappings.
constexpr uint64_t kMostQuarantinedBytes = 1ull << 42;
constexpr size_t kMostQuarantined = 1024;

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
  void* pointer = map_anonymous(mapped_bytes(size));
  // The host writes to its own allocations unseen.
  const bool tracked = kind == MemoryKind::device && is_sanitizing();
  void* bits = tracked && pointer != MAP_FAILED ? map_anonymous(bitmap_bytes(size)) : nullptr;
  std::lock_guard lock(mutex_);
  if (pointer == MAP_FAILED || bits == MAP_FAILED) {
    if (pointer != MAP_FAILED) munmap(pointer, mapped_bytes(size));
    allocated_ -= size;
    fail(hipErrorOutOfMemory, "the host has no address space for %zu bytes", size);
  }
  tracked_ += bits != nullptr;
  insert({address_of(pointer), address_of(pointer) + size, kind, flags, static_cast<uint8_t*>(bits), current_call()});
  return pointer;
}

void MemoryMap::release(void* pointer) {
  const auto idle = once_idle();
  std::lock_guard lock(mutex_);
  const auto [first, last] = blocks_.equal_range(address_of(pointer));
  const auto found = std::find_if(first, last, [](const auto& entry) { return is_allocation(entry.second.kind); });
  if (found == last) fail(hipErrorInvalidValue, "%p is not the beginning of an allocation", pointer);
  unmap(found);
}

void MemoryMap::release_all() {
  const auto idle = once_idle();
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
  const auto idle = once_idle();
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

std::optional<FreedBlock> MemoryMap::find_freed(uint64_t address) const {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(freed_.begin(), freed_.end(), [&](const FreedBlock& block) {
    return address >= block.begin && address < block.end;
  });
  return found == freed_.end() ? std::nullopt : std::optional(*found);
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

MemoryBlock* MemoryMap::tracked_block(uint64_t address, uint64_t size) {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  MemoryBlock& block = std::prev(after)->second;
  return block.written && address < block.end && size <= block.end - address ? &block : nullptr;
}

void MemoryMap::note_write(uint64_t address, uint64_t size) {
  std::lock_guard lock(mutex_);
  if (const MemoryBlock* block = tracked_block(address, size))
    set_bits(block->written, address - block->begin, address - block->begin + size);
}

void MemoryMap::note_copy(uint64_t address, uint64_t source, uint64_t size) {
  std::lock_guard lock(mutex_);
  const MemoryBlock* to = tracked_block(address, size);
  const MemoryBlock* from = tracked_block(source, size);
  if (!to) return;
  const uint64_t begin = address - to->begin;
  if (!from) return set_bits(to->written, begin, begin + size);
  for (uint64_t i = 0; i < size; ++i) {
    if (bit_of(from->written, source - from->begin + i)) set_bit(to->written, begin + i);
  }
}

void MemoryMap::forget_writes() {
  if (tracked_ == 0 || is_sanitizing()) return;
  const auto idle = once_idle();
  std::lock_guard lock(mutex_);
  for (auto& [begin, block] : blocks_) {
    if (!block.written) continue;
    munmap(block.written, bitmap_bytes(block.size()));
    block.written = nullptr;
    --tracked_;
    ranges_.reset();
  }
}

MemoryMap::Lease MemoryMap::lease() const {
  auto in_use = [&] {
    const MayFork may_fork;
    return std::shared_lock(in_use_);
  }();
  std::lock_guard lock(mutex_);
  return {std::move(in_use), ranges()};
}

// Other threads' dispatches don't run in a forked child.
void MemoryMap::forget_other_threads() { new (&in_use_) std::shared_mutex; }

std::unique_lock<std::shared_mutex> MemoryMap::once_idle() {
  const MayFork may_fork;
  return std::unique_lock(in_use_);
}

void MemoryMap::insert(const MemoryBlock& block) {
  blocks_.emplace(block.begin, block);
  ranges_.reset();
}

MemoryMap::Blocks::iterator MemoryMap::unmap(Blocks::iterator allocation) {
  const MemoryBlock block = allocation->second;
  if (block.written) {
    munmap(block.written, bitmap_bytes(block.size()));
    --tracked_;
  }
  quarantine(block);
  allocated_ -= block.size();
  ranges_.reset();
  return blocks_.erase(allocation);
}

void MemoryMap::quarantine(const MemoryBlock& block) {
  const uint64_t size = mapped_bytes(block.size());
  void* const address = reinterpret_cast<void*>(block.begin);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(address, size, PROT_NONE, flags, -1, 0) == MAP_FAILED) {
    munmap(address, size);
    return;
  }
  freed_.push_back({block.begin, block.end, block.begin + size, block.allocated_by, current_call()});
  freed_bytes_ += size;
  while (freed_.size() > kMostQuarantined || freed_bytes_ > kMostQuarantinedBytes) {
    const FreedBlock oldest = freed_.front();
    munmap(reinterpret_cast<void*>(oldest.begin), oldest.mapped_end - oldest.begin);
    freed_bytes_ -= oldest.mapped_end - oldest.begin;
    freed_.pop_front();
  }
}

// Merges blocks that overlap or touch: neighbouring registrations are often parts of one buffer. An allocation whose
// writes are tracked stays by itself where it only touches what others have mapped beside it.
std::shared_ptr<const MemoryRanges> MemoryMap::ranges() const {
  if (!ranges_) {
    auto merged = std::make_shared<MemoryRanges>();
    for (const auto& [begin, block] : blocks_) {
      const bool overlaps = !merged->empty() && begin < merged->back().end;
      const bool touches = !merged->empty() && begin == merged->back().end;
      if (overlaps || (touches && !block.written && !merged->back().written)) {
        merged->back().end = std::max(merged->back().end, block.end);
        merged->back().written = nullptr;
      } else {
        merged->push_back({begin, block.end, block.written});
      }
    }
    ranges_ = std::move(merged);
  }
  return ranges_;
}

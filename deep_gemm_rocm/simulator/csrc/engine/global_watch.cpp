#include "global_watch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

namespace mi300x {
namespace {

// Pages are held for a few dozen instructions.
class PageLock {
 public:
  explicit PageLock(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  ~PageLock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& flag_;
};

}  // namespace


GlobalWatch::GlobalWatch(const MemoryRange* ranges, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const size_t pages = (ranges[i].end - ranges[i].begin / 4 * 4 + page_bytes - 1) / page_bytes;
    // Memory straight from the system, which is zero and takes no room until it is touched.
    void* zeroed = calloc(pages, sizeof(std::atomic<Page*>));
    if (zeroed == nullptr && pages != 0) throw std::bad_alloc();
    ranges_.push_back({ranges[i], static_cast<std::atomic<Page*>*>(zeroed), pages});
  }
}

GlobalWatch::~GlobalWatch() {
  for (const Range& range : ranges_) {
    for (size_t i = 0; i < range.page_count; ++i) delete range.pages[i].load();
    free(range.pages);
  }
}

void GlobalWatch::release(Visitor& visitor) {
  std::lock_guard<std::mutex> lock(releases_mutex_);
  releases_[visitor.workgroup].push_back(++clock_);
  ++visitor.releases;
}

const GlobalWatch::Range* GlobalWatch::range_of(uint64_t address) const {
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                     [](uint64_t value, const Range& range) { return value < range.memory.begin; });
  if (next == ranges_.begin()) return nullptr;
  const Range& range = *(next - 1);
  return address < range.memory.end ? &range : nullptr;
}

GlobalWatch::Page& GlobalWatch::page_of(const Range& range, uint64_t offset) const {
  std::atomic<Page*>& slot = range.pages[offset / page_bytes];
  if (Page* page = slot.load(std::memory_order_acquire)) return *page;
  auto* fresh = new Page;
  Page* other = nullptr;
  if (slot.compare_exchange_strong(other, fresh)) return *fresh;
  delete fresh;
  return *other;
}

bool GlobalWatch::is_ordered(const Access& earlier, const Visitor& visitor) const {
  std::lock_guard<std::mutex> lock(releases_mutex_);
  const auto found = releases_.find(earlier.workgroup_plus_1 - 1);
  return found != releases_.end() && earlier.releases < found->second.size() &&
         found->second[earlier.releases] <= visitor.acquired;
}

bool GlobalWatch::conflicts(const Access& earlier, const Access& now, const Visitor& visitor) const {
  if (earlier.workgroup_plus_1 == 0 || earlier.workgroup_plus_1 == now.workgroup_plus_1) return false;
  return (earlier.bytes & now.bytes) != 0 && !(earlier.atomic && now.atomic) && !is_ordered(earlier, visitor);
}

// The bytes of a dword whose stored value is the one that they were given before; `data` has the first of `bytes`.
uint32_t GlobalWatch::bytes_alike(const Page& page, uint64_t position, uint32_t bytes, const uint8_t* data) {
  if (data == nullptr || page.stored == nullptr) return 0;
  uint32_t alike = 0;
  for (uint32_t i = 0; i < 4; ++i)
    if (bytes >> i & 1) alike |= uint32_t(page.stored[position + i] == *data++) << i;
  return alike;
}

void GlobalWatch::keep_data(Page& page, uint64_t position, const uint8_t* data, uint64_t bytes) {
  if (page.stored == nullptr) page.stored = std::make_unique<uint8_t[]>(page_bytes);
  memcpy(page.stored.get() + position, data, bytes);
}

// False, with the conflict described, where the access races.
bool GlobalWatch::visit(Cell& cell, const Access& now, const Span& span, uint32_t alike, const Visitor& visitor,
                        Conflict& conflict) const {
  constexpr uint32_t whole_dword = 15;
  const bool may_miss_it = span.may_overfetch && cell.writer.bytes != whole_dword;
  const bool before_swap = !span.writes && cell.writer.compares;
  const auto report = [&](const Access& earlier, bool was_write) {
    conflict.found = true;
    conflict.workgroup = earlier.workgroup_plus_1 - 1;
    conflict.was_write = was_write;
    return false;
  };
  const auto keep = [&](Access& mark) {
    const uint32_t before = mark.is_like(now) ? mark.bytes : 0;
    mark = now;
    mark.bytes = (now.bytes | before) & whole_dword;
  };
  Access harmful = now;
  if (!cell.writer.atomic) harmful.bytes = now.bytes & ~alike & whole_dword;
  if (!may_miss_it && !before_swap && conflicts(cell.writer, harmful, visitor)) return report(cell.writer, true);
  if (!span.writes) {
    if (span.may_overfetch) return true;  // no telling which bytes the program reads
    if (cell.readers[0].workgroup_plus_1 != now.workgroup_plus_1) std::swap(cell.readers[0], cell.readers[1]);
    keep(cell.readers[0]);
    return true;
  }
  for (const Access& reader : cell.readers)
    if (!now.compares && conflicts(reader, now, visitor)) return report(reader, false);
  keep(cell.writer);
  return true;
}

// Whether the page can do without cells with this access too.
bool GlobalWatch::is_sole(Page& page, const Access& now) {
  if (page.cells != nullptr) return false;
  if (page.sole.workgroup_plus_1 == 0) page.sole = now;
  if (page.sole.is_like(now)) return true;
  make_cells(page);
  return false;
}

void GlobalWatch::mark(uint64_t* bits, uint64_t begin, uint64_t end) {
  while (begin < end) {
    const uint64_t count = std::min(end - begin, 64 - begin % 64);
    bits[begin / 64] |= (~0ull >> (64 - count)) << begin % 64;
    begin += count;
  }
}

void GlobalWatch::make_cells(Page& page) {
  page.cells = std::make_unique<Cell[]>(page_cells);
  const auto describe = [&](Access& access, const uint64_t* bits, uint64_t cell) {
    const uint64_t bytes = bits[cell / 16] >> 4 * (cell % 16) & 15;
    if (bytes == 0) return;
    access = page.sole;
    access.bytes = bytes & 15;
  };
  for (uint64_t i = 0; i < page_cells; ++i) {
    describe(page.cells[i].writer, page.written, i);
    describe(page.cells[i].readers[0], page.read, i);
  }
}

GlobalWatch::Conflict GlobalWatch::access(const Visitor& visitor, const Span& span) {
  Conflict conflict;
  const Range* range = range_of(span.address);
  if (range == nullptr) return conflict;
  const uint64_t base = range->memory.begin / 4 * 4;
  const uint64_t end = std::min(span.address + span.bytes, range->memory.end);
  Access now;
  now.workgroup_plus_1 = visitor.workgroup + 1;
  now.releases = visitor.releases & ((1u << 26) - 1);
  now.atomic = span.atomic;
  now.compares = span.compares;
  for (uint64_t address = span.address / 4 * 4; address < end;) {
    Page& page = page_of(*range, address - base);
    const uint64_t page_end = std::min(end, base + ((address - base) / page_bytes + 1) * page_bytes);
    const PageLock lock(page.lock);
    const uint64_t begin = std::max(address, span.address), position = (begin - base) % page_bytes;
    const uint8_t* data = span.data == nullptr ? nullptr : span.data + (begin - span.address);
    const bool is_alone = is_sole(page, now);
    if (is_alone && !span.may_overfetch)
      mark(span.writes ? page.written : page.read, position, position + (page_end - begin));
    for (; !is_alone && address < page_end; address += 4) {
      const uint32_t before_span = address < span.address ? uint32_t(span.address - address) : 0;
      const uint32_t after_span = address + 4 > end ? uint32_t(address + 4 - end) : 0;
      now.bytes = (15u << before_span) & (15u >> after_span) & 15u;
      const uint64_t dword = (address - base) % page_bytes;
      const uint8_t* stored = data == nullptr ? nullptr : data + (std::max(address, begin) - begin);
      const uint32_t alike = bytes_alike(page, dword, now.bytes, stored);
      if (visit(page.cells[dword / 4], now, span, alike, visitor, conflict)) continue;
      conflict.address = address;
      return conflict;
    }
    if (data != nullptr) keep_data(page, position, data, page_end - begin);
    address = page_end;
  }
  return conflict;
}

}  // namespace mi300x

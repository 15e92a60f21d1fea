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
    ranges_.push_back({ranges[i], static_cast<std::atomic<Page*>*>(zeroed)});
  }
}

GlobalWatch::~GlobalWatch() {
  for (const Range& range : ranges_) free(range.pages);
}

void GlobalWatch::release(Visitor& visitor) {
  std::lock_guard<std::mutex> lock(releases_mutex_);
  releases_[visitor.workgroup].push_back(++clock_);
  ++visitor.releases;
}

GlobalWatch::Page& GlobalWatch::page_of(const Range& range, uint64_t offset) {
  std::atomic<Page*>& slot = range.pages[offset / page_bytes];
  if (Page* page = slot.load(std::memory_order_acquire)) return *page;
  auto* fresh = arena_.make<Page>();
  Page* other = nullptr;
  return slot.compare_exchange_strong(other, fresh) ? *fresh : *other;
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

// The bytes of a dword that a store leaves as the last plain store left them. `data` begins with the first of `bytes`.
uint32_t GlobalWatch::bytes_alike(const Page& page, uint64_t position, uint32_t bytes, const uint8_t* data) {
  if (data == nullptr || page.stored == nullptr) return 0;
  uint32_t alike = 0;
  for (uint32_t i = 0; i < 4; ++i)
    if (bytes >> i & 1) alike |= uint32_t(page.stored[position + i] == *data++) << i;
  return alike;
}

void GlobalWatch::keep_data(Page& page, uint64_t position, const uint8_t* data, uint64_t bytes) {
  if (page.stored == nullptr) page.stored = arena_.make<uint8_t>(page_bytes);
  memcpy(page.stored + position, data, bytes);
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
    conflict.site = earlier.site;
    return false;
  };
  const auto keep = [&](Access& mark) {
    const uint32_t before = mark.is_like(now) ? mark.bytes : 0;
    const bool has_several = (before & ~now.bytes) != 0 && mark.site != now.site;
    mark = now;
    if (has_several) mark.site = unknown_site;
    mark.bytes = (now.bytes | before) & whole_dword;
  };
  Access harmful = now;
  if (!cell.writer.atomic) harmful.bytes = now.bytes & ~alike & whole_dword;
  if (!may_miss_it && !before_swap && conflicts(cell.writer, harmful, visitor)) return report(cell.writer, true);
  if (!span.writes) {
    if (span.may_overfetch) return true;  // the bytes that the program uses aren't known
    if (cell.readers[0].workgroup_plus_1 != now.workgroup_plus_1) std::swap(cell.readers[0], cell.readers[1]);
    keep(cell.readers[0]);
    return true;
  }
  for (const Access& reader : cell.readers)
    if (!now.compares && conflicts(reader, now, visitor)) return report(reader, false);
  keep(cell.writer);
  return true;
}

template <class F>
void GlobalWatch::Page::for_each_share(F f) {
  f(first);
  if (others == nullptr) return;
  for (size_t i = 0; i < further_shares && others[i].by.workgroup_plus_1 != 0; ++i) f(others[i]);
}

// True where the share can be dropped: it has only reads, and two other workgroups have read the same bytes, so that
// any later writer conflicts with one of these.
bool GlobalWatch::is_known_without(Page& page, const Share& share) {
  if (share.written != Bytes()) return false;
  const auto counts = [&](const Share& other) {
    return other.by.workgroup_plus_1 != share.by.workgroup_plus_1 && other.by.atomic == share.by.atomic;
  };
  Bytes twice{};
  page.for_each_share([&](const Share& one) {
    page.for_each_share([&](const Share& other) {
      if (one.by.workgroup_plus_1 >= other.by.workgroup_plus_1 || !counts(one) || !counts(other)) return;
      for (size_t i = 0; i < twice.size(); ++i) twice[i] |= one.read[i] & other.read[i];
    });
  });
  for (size_t i = 0; i < twice.size(); ++i)
    if (share.read[i] & ~twice[i]) return false;
  return true;
}

// The share for an access; null where the page has no room for another one.
GlobalWatch::Share* GlobalWatch::share_of(Page& page, const Access& now) {
  if (page.first.by.workgroup_plus_1 == 0) page.first.by = now;
  if (page.first.by.is_like(now)) return &page.first;
  if (page.others == nullptr) page.others = arena_.make<Share>(further_shares);
  for (size_t i = 0; i < further_shares; ++i) {
    Share& share = page.others[i];
    if (share.by.workgroup_plus_1 == 0) share.by = now;
    if (share.by.is_like(now)) return &share;
  }
  Share* free_share = nullptr;
  page.for_each_share([&](Share& share) {
    if (free_share == nullptr && is_known_without(page, share)) free_share = &share;
  });
  if (free_share == nullptr) return nullptr;
  *free_share = Share();
  free_share->by = now;
  return free_share;
}

// Records the access in a share. False where it conflicts or there is no room: the page then needs cells.
bool GlobalWatch::can_share(Page& page, const Access& now, const Span& span, const Bytes& bytes) {
  if (page.cells != nullptr) return false;
  bool overlaps = false;
  page.for_each_share([&](const Share& other) {
    if (other.by.workgroup_plus_1 == now.workgroup_plus_1 || (other.by.atomic && now.atomic)) return;
    for (size_t i = 0; i < bytes.size(); ++i)
      overlaps |= (bytes[i] & (other.written[i] | (span.writes ? other.read[i] : 0))) != 0;
  });
  if (overlaps) return false;
  if (span.may_overfetch) return true;
  Share* share = share_of(page, now);
  if (share == nullptr) return false;
  Bytes& touched = span.writes ? share->written : share->read;
  for (size_t i = 0; i < bytes.size(); ++i) touched[i] |= bytes[i];
  (span.writes ? share->written_by : share->read_by).add(span.site);
  return true;
}

GlobalWatch::Bytes GlobalWatch::bytes_between(uint64_t begin, uint64_t end) {
  Bytes bytes{};
  while (begin < end) {
    const uint64_t count = std::min(end - begin, 64 - begin % 64);
    bytes[begin / 64] |= (~0ull >> (64 - count)) << begin % 64;
    begin += count;
  }
  return bytes;
}

void GlobalWatch::make_cells(Page& page) {
  page.cells = arena_.make<Cell>(page_cells);
  page.for_each_share([&](const Share& share) {
    for (uint64_t i = 0; i < page_cells; ++i) {
      Cell& cell = page.cells[i];
      const auto describe = [&](Access& access, const Bytes& touched, const Sites& sites) {
        const uint64_t bytes = touched[i / 16] >> 4 * (i % 16) & 15;
        if (bytes == 0) return false;
        access = share.by;
        access.bytes = bytes & 15;
        access.site = sites.only;
        return true;
      };
      describe(cell.writer, share.written, share.written_by);
      Access reader;
      if (!describe(reader, share.read, share.read_by)) continue;
      if (cell.readers[0].workgroup_plus_1 != reader.workgroup_plus_1) std::swap(cell.readers[0], cell.readers[1]);
      cell.readers[0] = reader;
    }
  });
}

GlobalWatch::Conflict GlobalWatch::access(const Visitor& visitor, const Span& span) {
  Conflict conflict;
  const Range* range = find_range(ranges_.data(), ranges_.data() + ranges_.size(), span.address);
  if (range == nullptr) return conflict;
  const uint64_t base = range->begin / 4 * 4;
  const uint64_t end = std::min(span.address + span.bytes, range->end);
  Access now;
  now.workgroup_plus_1 = visitor.workgroup + 1;
  now.releases = visitor.releases & ((1u << 26) - 1);
  now.atomic = span.atomic;
  now.compares = span.compares;
  now.site = span.site;
  for (uint64_t address = span.address / 4 * 4; address < end;) {
    Page& page = page_of(*range, address - base);
    const uint64_t page_end = std::min(end, base + ((address - base) / page_bytes + 1) * page_bytes);
    const PageLock lock(page.lock);
    const uint64_t begin = std::max(address, span.address), position = (begin - base) % page_bytes;
    const uint8_t* data = span.data == nullptr ? nullptr : span.data + (begin - span.address);
    const bool has_share = can_share(page, now, span, bytes_between(position, position + (page_end - begin)));
    if (!has_share && page.cells == nullptr) make_cells(page);
    for (; !has_share && address < page_end; address += 4) {
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

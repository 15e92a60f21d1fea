#include "host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace {

// Linux 5.14; C libraries that are older don't name them.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

struct Pages {
  void* begin;
  size_t size;
  bool valid;
};

Pages pages_around(const void* address, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address) & ~(page - 1);
  uintptr_t end;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(address), size, &end)) return {nullptr, 0, false};
  if (__builtin_add_overflow(end, page - 1, &end)) return {nullptr, 0, false};
  return {reinterpret_cast<void*>(begin), (end & ~(page - 1)) - begin, true};
}

// Faults the pages in as an access would, but reports an error where the access would raise a signal.
bool populate(const void* address, size_t size, int how) {
  static const bool kernel_can = [] {
    static char probe;
    const Pages pages = pages_around(&probe, 1);
    return madvise(pages.begin, pages.size, kPopulateRead) == 0;
  }();
  if (!kernel_can) return is_mapped(address, size);
  const Pages pages = pages_around(address, size);
  return pages.valid && madvise(pages.begin, pages.size, how) == 0;
}

}  // namespace

bool is_mapped(const void* address, size_t size) {
  const Pages pages = pages_around(address, size);
  return address && pages.valid && msync(pages.begin, pages.size, MS_ASYNC) == 0;
}

bool is_readable(const void* address, size_t size) {
  return size == 0 || (address && populate(address, size, kPopulateRead));
}

bool is_writable(void* address, size_t size) {
  return size == 0 || (address && populate(address, size, kPopulateWrite));
}

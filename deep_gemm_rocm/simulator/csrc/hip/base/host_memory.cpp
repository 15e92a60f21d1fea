#include "host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <mutex>

namespace {

// Linux 5.14. Older C libraries don't define them.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

uintptr_t page_size() {
  static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

struct Pages {
  uintptr_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
  void* address() const { return reinterpret_cast<void*>(begin); }
  bool contain(const Pages& other) const { return begin <= other.begin && other.end <= end; }
};

// Empty where the range runs past the end of the address space.
Pages pages_around(const void* address, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  uintptr_t end;
  if (__builtin_add_overflow(begin, size, &end) || __builtin_add_overflow(end, page_size() - 1, &end)) return {};
  return {begin & ~(page_size() - 1), end & ~(page_size() - 1)};
}

// Caches the pages that the thread's current API call has found usable: many pointers lead to the same pages, and each
// probe is a system call.
struct Probed {
  Pages readable, writable;
};
thread_local Probed probed;

// Faults the pages in as an access would, but reports an error where the access would raise a signal. Older kernels
// only tell whether they are mapped.
bool populate(const Pages& pages, int how) {
  static const bool kernel_can = [] {
    static char probe;
    const Pages own = pages_around(&probe, 1);
    return madvise(own.address(), own.size(), kPopulateRead) == 0;
  }();
  if (!kernel_can) return msync(pages.address(), pages.size(), MS_ASYNC) == 0;
  return madvise(pages.address(), pages.size(), how) == 0;
}

bool probe(const void* address, size_t size, int how, Pages& known) {
  if (size == 0) return true;
  const Pages pages = pages_around(address, size);
  if (!address || pages.size() == 0) return false;
  if (known.contain(pages)) return true;
  if (!populate(pages, how)) return false;
  known = pages;
  return true;
}

std::vector<Pages> executable_pages() {
  std::vector<Pages> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin, end;
    char executable;
    if (std::sscanf(line.c_str(), "%lx-%lx %*c%*c%c", &begin, &end, &executable) == 3 && executable == 'x') {
      found.push_back({begin, end});
    }
  }
  return found;
}

// Asks the operating system only for addresses outside known code, because that is slow.
bool is_code(uintptr_t address) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::vector<Pages>;
  const auto holds = [&](const Pages& pages) { return pages.begin <= address && address < pages.end; };
  std::lock_guard lock(mutex);
  if (std::any_of(known.begin(), known.end(), holds)) return true;
  known = executable_pages();
  return std::any_of(known.begin(), known.end(), holds);
}

[[noreturn]] void refuse(const char* what, const void* pointer, size_t count, size_t element_size, const char* verb) {
  if (!pointer) fail(hipErrorInvalidValue, "%s is null", what);
  if (element_size == 1 || count == 1) {
    fail(hipErrorInvalidValue, "%s: %zu bytes at %p can't be %s", what, count * element_size, pointer, verb);
  }
  fail(hipErrorInvalidValue, "%s: %zu x %zu bytes at %p can't be %s", what, count, element_size, pointer, verb);
}

}  // namespace

void forget_probes() { probed = {}; }

bool is_mapped(const void* address, size_t size) {
  const Pages pages = pages_around(address, size);
  return address && pages.size() > 0 && msync(pages.address(), pages.size(), MS_ASYNC) == 0;
}

bool is_readable(const void* address, size_t size) { return probe(address, size, kPopulateRead, probed.readable); }

bool is_writable(void* address, size_t size) { return probe(address, size, kPopulateWrite, probed.writable); }

void require_readable(const void* pointer, size_t count, size_t element_size, const char* what) {
  size_t bytes;
  if (pointer && !__builtin_mul_overflow(count, element_size, &bytes) && is_readable(pointer, bytes)) return;
  refuse(what, pointer, count, element_size, "read");
}

void require_writable(void* pointer, size_t count, size_t element_size, const char* what) {
  size_t bytes;
  if (pointer && !__builtin_mul_overflow(count, element_size, &bytes) && is_writable(pointer, bytes)) return;
  refuse(what, pointer, count, element_size, "written");
}

void require_callable(const void* function, const char* what) {
  if (!function) fail(hipErrorInvalidValue, "%s is null", what);
  if (!is_code(reinterpret_cast<uintptr_t>(function))) fail(hipErrorInvalidValue, "%s: no code at %p", what, function);
}

void give_text(Out<char> out, size_t capacity, const std::string& text, const char* what) {
  if (capacity == 0) return;
  const size_t length = std::min(text.size(), capacity - 1);
  require(out, what, length + 1);
  std::memcpy(out.address(), text.data(), length);
  out.address()[length] = '\0';
}

std::string Text::read(const char* what) const {
  require_readable(pointer_, 1, 1, what);
  for (const char* at = pointer_;;) {
    const size_t rest = page_size() - reinterpret_cast<uintptr_t>(at) % page_size();
    require_readable(at, rest, 1, what);
    if (const void* end = std::memchr(at, '\0', rest)) return std::string(pointer_, static_cast<const char*>(end));
    at += rest;
  }
}

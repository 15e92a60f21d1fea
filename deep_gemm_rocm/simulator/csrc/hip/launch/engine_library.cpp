#include "engine_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "../base/status.h"

namespace {

std::atomic<mi300x::Engine*> opened{nullptr};

// The features that the processor and the operating system support, by Linux's names. (__builtin_cpu_supports needs a
// part of the compiler's run-time library that not every compiler has.)
std::set<std::string> cpu_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

// The highest level that the host has; its libraries are named after the compilers' -march (x86-64 psABI,
// "Micro-Architecture Levels").
std::string level() {
  const std::set<std::string> flags = cpu_flags();
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return flags.count(name) > 0; });
  };
  const bool v3 = has({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"});
  const bool v4 = v3 && has({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
  const std::string best = v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : "x86-64";
  const char* forced = std::getenv("DG_SIM_ENGINE");
  if (!forced || !*forced) return best;
  const std::string name = forced;
  if (name == "x86-64" || (name == "x86-64-v3" && v3) || (name == "x86-64-v4" && v4)) return name;
  fail(hipErrorSharedObjectInitFailed,
       "DG_SIM_ENGINE=%s: it must be x86-64, x86-64-v3 or x86-64-v4, and this host has %s", forced, best.c_str());
}

std::string own_folder() {
  Dl_info info;
  if (dladdr(&opened, &info) == 0) fail(hipErrorSharedObjectInitFailed, "can't find this library's own path");
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

mi300x::Engine* open_engine() {
  const std::string path = own_folder() + "/libmi300x_" + level() + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(hipErrorSharedObjectInitFailed, "the engine can't be opened: %s", dlerror());
  const auto entry = reinterpret_cast<mi300x::Engine* (*)()>(dlsym(library, "mi300x_engine"));
  if (!entry) fail(hipErrorSharedObjectInitFailed, "%s has no mi300x_engine", path.c_str());
  return entry();
}

}  // namespace

mi300x::Engine& engine() {
  if (mi300x::Engine* ready = opened.load(std::memory_order_acquire)) return *ready;
  static auto& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  if (!opened.load(std::memory_order_relaxed)) opened.store(open_engine(), std::memory_order_release);
  return *opened;
}

void engine_before_fork() {
  if (mi300x::Engine* ready = opened.load(std::memory_order_acquire)) ready->before_fork();
}

void engine_after_fork(bool in_child) {
  if (mi300x::Engine* ready = opened.load(std::memory_order_acquire)) ready->after_fork(in_child);
}

void forget_code(uint64_t begin, uint64_t end) {
  if (mi300x::Engine* ready = opened.load(std::memory_order_acquire)) ready->forget_code(begin, end);
}

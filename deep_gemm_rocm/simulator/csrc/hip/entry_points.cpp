// Looks up HIP functions by name.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "base/abi.h"
#include "base/host_memory.h"
#include "base/status.h"

namespace {

enum hipDriverProcAddressQueryResult : int { kFound = 0, kNotFound = 1 };

constexpr uint64_t kPerThreadStream = 2;  // the flag HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
constexpr int kVersion6 = 60000000;
constexpr int kOldestPlainVersion = 600;  // some clients give HIP 6 as 600

// Functions that the headers rename from a version on.
std::string versioned(const std::string& name, int version) {
  const bool changed = name == "hipGetDeviceProperties" || name == "hipChooseDevice";
  const bool is_six = version >= kVersion6 || (version >= kOldestPlainVersion && version < 1000);
  return changed && is_six ? name + "R0600" : name;
}

// Looks in this library only, since the process may have loaded another HIP library.
void* find(const std::string& name) {
  static void* const self = [] {
    Dl_info info = {};
    dladdr(reinterpret_cast<void*>(&versioned), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return name.rfind("hip", 0) == 0 && self ? dlsym(self, name.c_str()) : nullptr;
}

}  // namespace

HIP_API hipError_t hipGetProcAddress(Text symbol, Out<void*> function, int version, uint64_t flags, Out<int> status) {
  return api(__func__, [&] {
    require(function, "the output pointer");
    allow(status, "the status");
    const std::string name = versioned(symbol.read("the name"), version);
    void* found = flags & kPerThreadStream ? find(name + "_spt") : nullptr;
    if (!found) found = find(name);
    function.give(found);
    status.give_if_wanted(found ? kFound : kNotFound);
    if (!found) fail(hipErrorInvalidValue, "HIP has no function %.100s", name.c_str());
  });
}

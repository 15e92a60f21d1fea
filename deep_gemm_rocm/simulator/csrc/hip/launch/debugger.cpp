#include "debugger.h"

#include <cstring>
#include <optional>

#include "../base/abi.h"
#include "../base/fork.h"
#include "../base/host_memory.h"
#include "../base/status.h"

namespace {

// Called where the wave stops; 0 ends the launch. It may change `stops` below.
using StopCallback = int (*)(const mi300x::StoppedWave*);

class CallbackDebugger final : public mi300x::Debugger {
 public:
  CallbackDebugger(StopCallback callback, mi300x::Dim3 workgroup, uint32_t wave, const uint8_t* stops, size_t count)
      : callback_(callback), workgroup_(workgroup), wave_(wave), stops_(stops), count_(count) {}

  mi300x::Dim3 workgroup() const override { return workgroup_; }
  uint32_t wave() const override { return wave_; }
  bool wants(uint64_t offset) const override {
    return stops_[0] || (offset / 4 + 1 < count_ && stops_[offset / 4 + 1]);
  }
  bool stop(const mi300x::StoppedWave& wave) override { return callback_(&wave) != 0; }

 private:
  const StopCallback callback_;
  const mi300x::Dim3 workgroup_;
  const uint32_t wave_;
  const uint8_t* const stops_;
  const size_t count_;
};

// Without a destructor: HIP is called from static destructors too.
thread_local CallbackDebugger* debugger = nullptr;

}  // namespace

mi300x::Debugger* thread_debugger() { return debugger; }

// Calls `callback` in the launches that this thread makes, before instructions of one wave and where it fails. Of the
// `bytes` of `stops`, which must stay valid, the first one stops the wave before each instruction, the others before
// the dword of the code to which they belong. Without a callback, launches aren't debugged any more. False where an
// argument is invalid.
HIP_API bool dgSimDebugWave(int (*callback)(const mi300x::StoppedWave*), uint32_t x, uint32_t y, uint32_t z,
                            uint32_t wave, In<uint8_t> stops, size_t bytes) {
  return answer([&] {
    delete debugger;
    debugger = nullptr;
    if (!callback) return true;
    require_callable(reinterpret_cast<const void*>(callback), "the callback");
    require_readable(stops.address(), bytes, 1, "the stops");
    if (bytes == 0) fail(hipErrorInvalidValue, "no stops");
    debugger = new CallbackDebugger(callback, {x, y, z}, wave, stops.address(), bytes);
    return true;
  });
}

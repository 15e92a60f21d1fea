#include "records.h"

#include <atomic>
#include <mutex>
#include <string>

#include "../base/abi.h"
#include "../base/fork.h"
#include "../base/host_memory.h"
#include "engine_library.h"

namespace {

class Collection final : public mi300x::RecordSink {
 public:
  void add(const char* json, size_t bytes) override {
    const NoFork no_fork;
    std::lock_guard lock(mutex_);
    lines_.append(json, bytes) += '\n';
  }

  // Copies the records and forgets them, if there is room for all of them.
  size_t take(Out<char> text, size_t capacity) {
    return answer([&] {
      std::lock_guard lock(mutex_);
      const size_t size = lines_.size();
      if (capacity <= size) return size;
      give_text(text, capacity, lines_, "the text");
      lines_.clear();
      return size;
    });
  }

  std::atomic<bool> wanted{false};

 private:
  std::mutex mutex_;
  std::string lines_;
};

struct Records {
  Collection profiles, counters, trace;
  std::mutex mutex;
  mi300x::TracedWave traced;
};

// Never destroyed: static destructors of the host program may still launch kernels.
Records& records() {
  static auto& instance = *new Records;
  return instance;
}

}  // namespace

void attach_sinks(mi300x::Dispatch& dispatch) {
  Records& all = records();
  if (all.profiles.wanted) dispatch.profile = &all.profiles;
  if (all.counters.wanted) dispatch.counters = &all.counters;
  if (!all.trace.wanted) return;
  dispatch.trace = &all.trace;
  std::lock_guard lock(all.mutex);
  dispatch.traced = all.traced;
}

// Additions to the HIP API that start or stop recording, or return the records so far, one JSON object on each line.
// The latter return the length of the text; they copy and forget it where `capacity` is larger.

HIP_API void dgSimCollectProfiles(int on) { records().profiles.wanted = on != 0; }
HIP_API size_t dgSimTakeProfiles(Out<char> text, size_t capacity) { return records().profiles.take(text, capacity); }

// Empties the caches that the timing model keeps from launch to launch.
HIP_API void dgSimEmptyCaches() {
  const NoFork no_fork;
  try {
    engine().empty_caches();
  } catch (...) {
    // The first launch says why there is no engine.
  }
}

HIP_API void dgSimCollectCounters(int on) { records().counters.wanted = on != 0; }
HIP_API size_t dgSimTakeCounters(Out<char> text, size_t capacity) { return records().counters.take(text, capacity); }

// Traces instructions `first` to `first + count` of one wave of each launch. A count of 0 stops tracing.
HIP_API void dgSimTraceWave(uint32_t x, uint32_t y, uint32_t z, uint32_t wave, uint64_t first, uint64_t count) {
  const NoFork no_fork;
  Records& all = records();
  std::lock_guard lock(all.mutex);
  all.traced = {{x, y, z}, wave, first, count};
  all.trace.wanted = count != 0;
}
HIP_API size_t dgSimTakeTrace(Out<char> text, size_t capacity) { return records().trace.take(text, capacity); }

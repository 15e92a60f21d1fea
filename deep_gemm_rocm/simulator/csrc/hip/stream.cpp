// Streams and events. Work runs when it is given, in the caller's thread, so a stream is an empty queue at all times
// and an event is complete once it is recorded.
#include "stream.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include "status.h"

namespace {

// hipStreamLegacy and hipStreamPerThread are these values, not objects.
bool is_special(hipStream_t stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

}  // namespace

struct Stream {
  unsigned flags;
  int priority;
};

struct Event {
  unsigned flags;
  bool recorded = false;
};

namespace {

constexpr unsigned kEventDisableTiming = 2;

// The living objects behind a kind of handle. A handle is only looked up here, never followed before it was found.
template <class Object>
class Handles {
 public:
  explicit Handles(const char* kind) : kind_(kind) {}

  Object* create(const Object& object) {
    auto owned = std::make_unique<Object>(object);
    Object* handle = owned.get();
    std::lock_guard lock(mutex_);
    objects_.emplace(handle, std::move(owned));
    return handle;
  }

  void destroy(Object* handle) {
    std::lock_guard lock(mutex_);
    if (objects_.erase(handle) == 0) refuse(handle);
  }

  // Calls use(object) while the object can't be destroyed.
  template <class Use>
  auto with(Object* handle, Use&& use) {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) refuse(handle);
    return use(*found->second);
  }

 private:
  [[noreturn]] void refuse(const Object* handle) const {
    fail(hipErrorInvalidHandle, "%p is not %s", static_cast<const void*>(handle), kind_);
  }

  const char* kind_;
  std::mutex mutex_;
  std::unordered_map<Object*, std::unique_ptr<Object>> objects_;
};

// Never destroyed: static destructors of the host program may still call HIP.
Handles<Stream>& streams() {
  static auto& handles = *new Handles<Stream>("a stream");
  return handles;
}

Handles<Event>& events() {
  static auto& handles = *new Handles<Event>("an event");
  return handles;
}

void create_stream(hipStream_t* stream, unsigned flags, int priority) {
  require(stream, "the output pointer");
  if (flags > 1) fail(hipErrorInvalidValue, "stream flags must be 0 or hipStreamNonBlocking (1), not %#x", flags);
  *stream = streams().create({flags, priority});
}

Stream properties_of(hipStream_t stream) {
  if (is_special(stream)) return {0, 0};
  return streams().with(stream, [](const Stream& found) { return found; });
}

void create_event(hipEvent_t* event, unsigned flags) {
  require(event, "the output pointer");
  *event = events().create({flags});
}

bool timed_and_recorded(hipEvent_t event) {
  return events().with(event, [](const Event& found) {
    if (found.flags & kEventDisableTiming) fail(hipErrorInvalidHandle, "the event was created without timing");
    return found.recorded;
  });
}

}  // namespace

void require_stream(hipStream_t stream) { properties_of(stream); }

void record_event(hipEvent_t event, hipStream_t stream) {
  require_stream(stream);
  if (event) events().with(event, [](Event& found) { found.recorded = true; });
}

HIP_API hipError_t hipStreamCreate(hipStream_t* stream) {
  return api(__func__, [&] { create_stream(stream, 0, 0); });
}

HIP_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return api(__func__, [&] { create_stream(stream, flags, 0); });
}

HIP_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
  return api(__func__, [&] { create_stream(stream, flags, priority); });
}

HIP_API hipError_t hipStreamDestroy(hipStream_t stream) {
  return api(__func__, [&] { streams().destroy(stream); });
}

HIP_API hipError_t hipStreamQuery(hipStream_t stream) {
  return api(__func__, [&] { require_stream(stream); });
}

HIP_API hipError_t hipStreamSynchronize(hipStream_t stream) {
  return api(__func__, [&] { require_stream(stream); });
}

HIP_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  return api(__func__, [&] {
    require_stream(stream);
    events().with(event, [](const Event&) {});
  });
}

HIP_API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
  return api(__func__, [&] {
    require(flags, "flags");
    *flags = properties_of(stream).flags;
  });
}

HIP_API hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  return api(__func__, [&] {
    require(priority, "priority");
    *priority = properties_of(stream).priority;
  });
}

HIP_API hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* number) {
  return api(__func__, [&] {
    require(number, "device");
    require_stream(stream);
    *number = 0;
  });
}

HIP_API int hipGetStreamDeviceId(hipStream_t) { return 0; }

HIP_API hipError_t hipStreamAddCallback(hipStream_t stream, void (*callback)(hipStream_t, hipError_t, void*),
                                        void* user_data, unsigned flags) {
  return api(__func__, [&] {
    require_stream(stream);
    if (!callback) fail(hipErrorInvalidValue, "the callback is null");
    if (flags != 0) fail(hipErrorInvalidValue, "flags must be 0, not %u", flags);
    callback(stream, hipSuccess, user_data);
  });
}

HIP_API hipError_t hipLaunchHostFunc(hipStream_t stream, void (*function)(void*), void* user_data) {
  return api(__func__, [&] {
    require_stream(stream);
    if (!function) fail(hipErrorInvalidValue, "the function is null");
    function(user_data);
  });
}

HIP_API hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  return api(__func__, [&] {
    require(status, "the status");
    require_stream(stream);
    *status = hipStreamCaptureStatusNone;
  });
}

HIP_API hipError_t hipStreamGetCaptureInfo(hipStream_t stream, hipStreamCaptureStatus* status,
                                           unsigned long long* id) {
  return api(__func__, [&] {
    require(status, "the status");
    require_stream(stream);
    *status = hipStreamCaptureStatusNone;
    if (id) *id = 0;
  });
}

HIP_API hipError_t hipEventCreate(hipEvent_t* event) {
  return api(__func__, [&] { create_event(event, 0); });
}

HIP_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return api(__func__, [&] { create_event(event, flags); });
}

HIP_API hipError_t hipEventDestroy(hipEvent_t event) {
  return api(__func__, [&] { events().destroy(event); });
}

HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return api(__func__, [&] {
    require(event, "event");
    record_event(event, stream);
  });
}

HIP_API hipError_t hipEventQuery(hipEvent_t event) {
  return api(__func__, [&] { events().with(event, [](const Event&) {}); });
}

HIP_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return api(__func__, [&] { events().with(event, [](const Event&) {}); });
}

// Simulated device time. There is no timing model, so that clock stands still and the answer is always 0 ms: the time
// that the simulation took on the host would look like a measurement of an MI300X and be off by orders of magnitude.
HIP_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return api(__func__, [&] {
    require(milliseconds, "milliseconds");
    if (!timed_and_recorded(start)) fail(hipErrorInvalidHandle, "the start event was never recorded");
    if (!timed_and_recorded(stop)) fail(hipErrorInvalidHandle, "the stop event was never recorded");
    *milliseconds = 0;
  });
}

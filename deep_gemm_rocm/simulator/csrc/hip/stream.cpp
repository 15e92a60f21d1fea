// Streams and events. Work runs when it is given, in the caller's thread, so a stream is an empty queue at all times
// and an event is complete once it is recorded.
#include "stream.h"

#include <atomic>
#include <memory>

#include "handles.h"
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
  explicit Event(unsigned flags) : flags(flags) {}

  const unsigned flags;
  std::atomic<bool> recorded{false};
  std::atomic<double> time{0};  // of the device's clock, in nanoseconds
};

namespace {

constexpr unsigned kEventDisableTiming = 2;

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
  *stream = streams().add(std::make_shared<Stream>(Stream{flags, priority}));
}

std::atomic<double> device_clock{0};

Stream properties_of(hipStream_t stream) { return is_special(stream) ? Stream{0, 0} : *streams().get(stream); }

void create_event(hipEvent_t* event, unsigned flags) {
  require(event, "the output pointer");
  *event = events().add(std::make_shared<Event>(flags));
}

double recorded_time(hipEvent_t event, const char* name) {
  const auto found = events().get(event);
  if (found->flags & kEventDisableTiming) fail(hipErrorInvalidHandle, "the %s event was created without timing", name);
  if (!found->recorded) fail(hipErrorInvalidHandle, "the %s event was never recorded", name);
  return found->time;
}

}  // namespace

void require_stream(hipStream_t stream) { properties_of(stream); }

void record_event(hipEvent_t event, hipStream_t stream) {
  require_stream(stream);
  if (!event) return;
  const auto found = events().get(event);
  found->time = device_clock.load();
  found->recorded = true;
}

void advance_device_clock(double nanoseconds) {
  for (double now = device_clock; !device_clock.compare_exchange_weak(now, now + nanoseconds);) {
  }
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
  return api(__func__, [&] { streams().remove(stream); });
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
    events().get(event);
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

HIP_API hipError_t hipStreamGetCaptureInfo(hipStream_t stream, hipStreamCaptureStatus* status, unsigned long long* id) {
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
  return api(__func__, [&] { events().remove(event); });
}

HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return api(__func__, [&] {
    require(event, "event");
    record_event(event, stream);
  });
}

HIP_API hipError_t hipEventQuery(hipEvent_t event) {
  return api(__func__, [&] { events().get(event); });
}

HIP_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return api(__func__, [&] { events().get(event); });
}

// Simulated device time (DG_SIM_TIMING=1). Without the timing model that clock stands still and the answer is always
// 0 ms: the time that the simulation took on the host would look like a measurement of an MI300X and be off by orders of
// magnitude.
HIP_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return api(__func__, [&] {
    require(milliseconds, "milliseconds");
    const double begin = recorded_time(start, "start");
    *milliseconds = static_cast<float>((recorded_time(stop, "stop") - begin) * 1e-6);
  });
}

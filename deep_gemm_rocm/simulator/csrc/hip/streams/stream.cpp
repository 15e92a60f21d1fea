#include "stream.h"

#include "../base/handles.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "capture.h"

namespace {

// HIP's two special handles, which are no pointers.
const auto kStreamLegacy = reinterpret_cast<hipStream_t>(1);
const auto kStreamPerThread = reinterpret_cast<hipStream_t>(2);

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

void create_stream(Out<hipStream_t> stream, unsigned flags, int priority) {
  require(stream, "the output pointer");
  if (flags > 1) fail(hipErrorInvalidValue, "stream flags must be 0 or hipStreamNonBlocking (1), not %#x", flags);
  auto fresh = std::make_shared<Stream>();
  fresh->flags = flags;
  fresh->priority = priority;
  stream.give(streams().add(std::move(fresh)));
}

std::atomic<double> device_clock{0};

void create_event(Out<hipEvent_t> event, unsigned flags) {
  require(event, "the output pointer");
  event.give(events().add(std::make_shared<Event>(flags)));
}

double recorded_time(hipEvent_t event, const char* name) {
  const auto found = events().get(event);
  require_not_captured(*found);
  if (found->flags & kEventDisableTiming) fail(hipErrorInvalidHandle, "the %s event was created without timing", name);
  if (!found->recorded) fail(hipErrorInvalidHandle, "the %s event was never recorded", name);
  return found->time;
}

}  // namespace

std::shared_ptr<Stream> stream_of(hipStream_t stream) {
  if (!stream || stream == kStreamLegacy) return nullptr;
  if (stream != kStreamPerThread) return streams().get(stream);
  thread_local const auto own = std::make_shared<Stream>();
  return own;
}

std::shared_ptr<Event> event_of(hipEvent_t event) { return events().get(event); }

void require_stream(hipStream_t stream) { stream_of(stream); }

void submit(hipStream_t stream, Work work) {
  if (!capture_work(stream_of(stream).get(), work)) run(work);
}

void record_event(hipEvent_t event, hipStream_t stream) {
  const auto target = stream_of(stream);
  if (!event) return;
  const auto found = events().get(event);
  if (!capture_record(target.get(), *found)) RecordWork{event}.run();
}

void RecordWork::run() const {
  const auto found = events().get(event);
  found->time = device_clock.load();
  found->recorded = true;
}

void advance_device_clock(double nanoseconds) {
  for (double now = device_clock; !device_clock.compare_exchange_weak(now, now + nanoseconds);) {
  }
}

HIP_API hipError_t hipStreamCreate(Out<hipStream_t> stream) {
  return api(__func__, [&] { create_stream(stream, 0, 0); });
}

HIP_API hipError_t hipStreamCreateWithFlags(Out<hipStream_t> stream, unsigned flags) {
  return api(__func__, [&] { create_stream(stream, flags, 0); });
}

HIP_API hipError_t hipStreamCreateWithPriority(Out<hipStream_t> stream, unsigned flags, int priority) {
  return api(__func__, [&] { create_stream(stream, flags, priority); });
}

HIP_API hipError_t hipStreamDestroy(hipStream_t stream) {
  return api(__func__, [&] { abandon_capture(*streams().remove(stream)); });
}

HIP_API hipError_t hipStreamQuery(hipStream_t stream) {
  return api(__func__, [&] { require_not_capturing(stream); });
}

HIP_API hipError_t hipStreamSynchronize(hipStream_t stream) {
  return api(__func__, [&] { require_not_capturing(stream); });
}

HIP_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  return api(__func__, [&] {
    const auto target = stream_of(stream);
    capture_wait(target.get(), *events().get(event));
  });
}

HIP_API hipError_t hipStreamGetFlags(hipStream_t stream, Out<unsigned> flags) {
  return api_giving(__func__, flags, "flags", [&] {
    const auto found = stream_of(stream);
    return found ? found->flags : 0;
  });
}

HIP_API hipError_t hipStreamGetPriority(hipStream_t stream, Out<int> priority) {
  return api_giving(__func__, priority, "priority", [&] {
    const auto found = stream_of(stream);
    return found ? found->priority : 0;
  });
}

HIP_API hipError_t hipStreamGetDevice(hipStream_t stream, Out<hipDevice_t> number) {
  return api_giving(__func__, number, "device", [&] {
    require_stream(stream);
    return 0;
  });
}

HIP_API hipError_t hipStreamGetId(hipStream_t stream, Out<unsigned long long> id) {
  return api_giving(__func__, id, "id", [&] {
    require_stream(stream);
    return reinterpret_cast<unsigned long long>(stream);
  });
}

HIP_API int hipGetStreamDeviceId(hipStream_t) { return 0; }

HIP_API hipError_t hipStreamAddCallback(hipStream_t stream, void (*callback)(hipStream_t, hipError_t, void*),
                                        void* user_data, unsigned flags) {
  return api(__func__, [&] {
    require_not_capturing(stream);
    require_callable(reinterpret_cast<const void*>(callback), "the callback");
    if (flags != 0) fail(hipErrorInvalidValue, "flags must be 0, not %u", flags);
    const MayFork may_fork;
    callback(stream, hipSuccess, user_data);
  });
}

HIP_API hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* user_data) {
  return api(__func__, [&] {
    require_callable(reinterpret_cast<const void*>(function), "the function");
    submit(stream, HostWork{function, user_data});
  });
}

HIP_API hipError_t hipEventCreate(Out<hipEvent_t> event) {
  return api(__func__, [&] { create_event(event, 0); });
}

HIP_API hipError_t hipEventCreateWithFlags(Out<hipEvent_t> event, unsigned flags) {
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

// The flag hipEventRecordExternal (1) makes a node of the record where the stream captures.
HIP_API hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream, unsigned flags) {
  return api(__func__, [&] {
    if (flags > 1) fail(hipErrorInvalidValue, "flags must be 0 or hipEventRecordExternal (1), not %#x", flags);
    events().get(event);
    flags == 1 ? submit(stream, RecordWork{event}) : record_event(event, stream);
  });
}

HIP_API hipError_t hipEventQuery(hipEvent_t event) {
  return api(__func__, [&] { require_not_captured(*events().get(event)); });
}

HIP_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return api(__func__, [&] { require_not_captured(*events().get(event)); });
}

// Simulated device time (DG_SIM_TIMING=1), always 0 ms without the timing model. The host's time would look like a
// measurement of an MI300X but be off by orders of magnitude.
HIP_API hipError_t hipEventElapsedTime(Out<float> milliseconds, hipEvent_t start, hipEvent_t stop) {
  return api_giving(__func__, milliseconds, "milliseconds", [&] {
    const double begin = recorded_time(start, "start");
    return static_cast<float>((recorded_time(stop, "stop") - begin) * 1e-6);
  });
}

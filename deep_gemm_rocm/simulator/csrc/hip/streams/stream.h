// Streams and events. Work runs when it is given, in the caller's thread, so a stream is an empty queue at all times
// and an event is complete once it is recorded; only a stream that captures keeps its work, in a graph.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "../base/abi.h"
#include "work.h"

struct Capture;

constexpr unsigned kStreamNonBlocking = 1;

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  std::shared_ptr<Capture> capture;  // null where the stream captures nothing
  std::vector<hipGraphNode_t> last;  // nodes that the next one depends on
};

struct Event {
  explicit Event(unsigned flags) : flags(flags) {}

  const unsigned flags;
  std::atomic<bool> recorded{false};
  std::atomic<double> time{0};  // of the device's clock, in nanoseconds
  std::shared_ptr<Capture> capture;  // set if it was last recorded in a capturing stream
  std::vector<hipGraphNode_t> last;  // that stream's `last` when the event was recorded
};

// The stream behind a handle; null for the legacy stream, which has no object. Fails with hipErrorInvalidHandle.
std::shared_ptr<Stream> stream_of(hipStream_t stream);
std::shared_ptr<Event> event_of(hipEvent_t event);

// Fails with hipErrorInvalidHandle unless the stream is null, one of HIP's two special handles, or a living stream.
void require_stream(hipStream_t stream);

// Runs the work, or adds it to the graph that the stream captures.
void submit(hipStream_t stream, Work work);

// Does what hipEventRecord does. A null event is ignored.
void record_event(hipEvent_t event, hipStream_t stream);

// Advances the simulated device's clock, which events record, by the time of a kernel. Without the timing model that
// time is 0.
void advance_device_clock(double nanoseconds);

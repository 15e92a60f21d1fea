#include "capture.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "../base/host_memory.h"
#include "../base/status.h"
#include "graph.h"

struct Capture {
  unsigned long long id = 0;
  hipStreamCaptureMode mode = hipStreamCaptureModeGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  bool keeps_graph = false;  // the program owns the graph
  bool is_valid = true;
  bool has_ended = false;
  std::vector<Stream*> streams;  // streams that have joined the capture

  bool is_blocking() const {
    return std::any_of(streams.begin(), streams.end(),
                       [](const Stream* s) { return !(s->flags & kStreamNonBlocking); });
  }
};

namespace {

// All captures in progress. The mutex guards their state, including that of streams and events that take part.
struct Captures {
  std::recursive_mutex mutex;
  std::atomic<size_t> count{0};
  std::set<std::shared_ptr<Capture>> active;
  unsigned long long last_id = 0;
};

// Never destroyed: static destructors of the host program may still call HIP.
Captures& captures() {
  static auto& all = *new Captures;
  return all;
}

thread_local hipStreamCaptureMode thread_mode = hipStreamCaptureModeGlobal;

void require_mode(int mode) {
  if (mode < hipStreamCaptureModeGlobal || mode > hipStreamCaptureModeRelaxed) {
    fail(hipErrorInvalidValue, "%d is not a hipStreamCaptureMode", mode);
  }
}

void require_valid(const Capture& capture) {
  if (!capture.is_valid) fail(hipErrorStreamCaptureInvalidated, "an earlier error has ended the stream's capture");
}

void forbid_legacy_stream() {
  for (const auto& capture : captures().active) {
    if (!capture->is_blocking()) continue;
    capture->is_valid = false;
    fail(hipErrorStreamCaptureImplicit, "the legacy stream would wait for a stream that is capturing");
  }
}

// Refuses a call that would wait for work that is only captured.
bool forbids_unsafe_calls(const Capture& capture) {
  if (thread_mode == hipStreamCaptureModeRelaxed || capture.mode == hipStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return thread_mode == hipStreamCaptureModeGlobal && capture.mode == hipStreamCaptureModeGlobal;
}

void begin(hipStream_t handle, hipStreamCaptureMode mode, std::shared_ptr<Graph> graph, bool keeps_graph,
           std::vector<hipGraphNode_t> dependencies) {
  require_mode(mode);
  const auto stream = stream_of(handle);
  if (!stream) fail(hipErrorStreamCaptureUnsupported, "the legacy stream can't capture");
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  if (stream->capture) fail(hipErrorIllegalState, "the stream is capturing already");
  auto capture = std::make_shared<Capture>();
  capture->id = ++all.last_id;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->graph = std::move(graph);
  capture->keeps_graph = keeps_graph;
  capture->streams = {stream.get()};
  stream->capture = capture;
  stream->last = std::move(dependencies);
  all.active.insert(std::move(capture));
  ++all.count;
}

void end(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture.reset();
    stream->last.clear();
  }
  capture->streams.clear();
  capture->has_ended = true;
  captures().count -= captures().active.erase(capture);
}

// Ends a capture without a result.
void drop(const std::shared_ptr<Capture>& capture) {
  end(capture);
  if (!capture->keeps_graph) forget_graph(*capture->graph);
}

// True where the origin's next node would depend on all nodes that other streams have added.
bool is_joined(const Capture& capture) {
  std::set<const GraphNode*> before;
  std::vector<GraphNode*> open = capture.origin->last;
  while (!open.empty()) {
    GraphNode* node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const Stream* stream : capture.streams) {
    for (const GraphNode* node : stream->last) {
      if (!before.count(node)) return false;
    }
  }
  return true;
}

void add_dependencies(Stream& stream, const std::vector<hipGraphNode_t>& nodes) {
  for (GraphNode* node : nodes) {
    if (std::find(stream.last.begin(), stream.last.end(), node) == stream.last.end()) stream.last.push_back(node);
  }
}

// The capture status of a stream. Fails for the legacy stream while it would wait for a capture.
std::shared_ptr<Capture> capture_of(const std::shared_ptr<Stream>& stream) {
  if (stream) return stream->capture;
  for (const auto& capture : captures().active) {
    if (capture->is_blocking()) {
      fail(hipErrorStreamCaptureImplicit, "the legacy stream would wait for a stream that is capturing");
    }
  }
  return nullptr;
}

hipStreamCaptureStatus status_of(const std::shared_ptr<Capture>& capture) {
  if (!capture) return hipStreamCaptureStatusNone;
  return capture->is_valid ? hipStreamCaptureStatusActive : hipStreamCaptureStatusInvalidated;
}

}  // namespace

bool capture_work(Stream* stream, Work& work) {
  if (captures().count == 0) return false;
  std::lock_guard lock(captures().mutex);
  if (!stream) forbid_legacy_stream();
  if (!stream || !stream->capture) return false;
  require_valid(*stream->capture);
  stream->last = {stream->capture->graph->add(std::move(work), stream->last)};
  return true;
}

bool is_capturing(Stream* stream) {
  std::lock_guard lock(captures().mutex);
  return stream && stream->capture;
}

bool capture_record(Stream* stream, Event& event) {
  std::lock_guard lock(captures().mutex);
  event.capture.reset();
  event.last.clear();
  if (!stream) forbid_legacy_stream();
  if (!stream || !stream->capture) return false;
  require_valid(*stream->capture);
  event.capture = stream->capture;
  event.last = stream->last;
  return true;
}

bool capture_wait(Stream* stream, Event& event) {
  std::lock_guard lock(captures().mutex);
  if (!stream) forbid_legacy_stream();
  if (!event.capture) {
    if (!stream || !stream->capture) return false;
    require_valid(*stream->capture);
    stream->capture->is_valid = false;
    fail(hipErrorStreamCaptureIsolation, "the event was not recorded in the capture");
  }
  if (event.capture->has_ended) {
    if (stream && stream->capture) stream->capture->is_valid = false;
    fail(hipErrorCapturedEvent, "the event was last recorded in a capture that has ended");
  }
  require_valid(*event.capture);
  if (!stream) fail(hipErrorStreamCaptureImplicit, "the legacy stream can't capture");
  if (!stream->capture) {
    stream->capture = event.capture;
    event.capture->streams.push_back(stream);
  } else if (stream->capture != event.capture) {
    stream->capture->is_valid = event.capture->is_valid = false;
    fail(hipErrorStreamCaptureMerge, "the event was recorded in another capture");
  }
  add_dependencies(*stream, event.last);
  return true;
}

void require_not_capturing(hipStream_t handle) {
  const auto stream = stream_of(handle);
  if (captures().count == 0) return;
  std::lock_guard lock(captures().mutex);
  if (!stream) return forbid_legacy_stream();
  if (!stream->capture) return;
  require_valid(*stream->capture);
  stream->capture->is_valid = false;
  fail(hipErrorStreamCaptureUnsupported, "the stream is capturing: there is nothing to wait for, and the call can't be "
                                         "part of a graph");
}

void require_not_captured(const Event& event) {
  std::lock_guard lock(captures().mutex);
  if (!event.capture) return;
  event.capture->is_valid = false;
  fail(hipErrorCapturedEvent, "the event was last recorded in a capturing stream");
}

void forbid_unsafe_call_while_capturing() {
  if (captures().count == 0) return;
  std::lock_guard lock(captures().mutex);
  for (const auto& capture : captures().active) {
    if (!forbids_unsafe_calls(*capture)) continue;
    capture->is_valid = false;
    fail(hipErrorStreamCaptureUnsupported, "a stream is capturing: the call may wait for the device");
  }
}

void forbid_device_wait_while_capturing() {
  if (captures().count == 0) return;
  std::lock_guard lock(captures().mutex);
  for (const auto& capture : captures().active) capture->is_valid = false;
  fail(hipErrorStreamCaptureUnsupported, "a stream is capturing: the call waits for the device");
}

void require_not_captured_into(const Graph& graph) {
  std::lock_guard lock(captures().mutex);
  for (const auto& capture : captures().active) {
    if (capture->graph.get() == &graph) fail(hipErrorIllegalState, "a stream captures into the graph");
  }
}

void abandon_capture(Stream& stream) {
  std::lock_guard lock(captures().mutex);
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return;
  capture->is_valid = false;
  if (capture->origin == &stream) return drop(capture);
  auto& streams = capture->streams;
  streams.erase(std::remove(streams.begin(), streams.end(), &stream), streams.end());
}

void forget_captures_of_other_threads() {
  Captures& all = captures();
  new (&all.mutex) std::recursive_mutex;  // a user object's destructor may have run under it
  const std::set<std::shared_ptr<Capture>> active = all.active;
  for (const auto& capture : active) {
    if (capture->mode == hipStreamCaptureModeRelaxed || capture->thread == std::this_thread::get_id()) continue;
    new std::shared_ptr<Graph>(capture->graph);  // never destroyed: that would call the program in the midst of a fork
    end(capture);
  }
}

HIP_API hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  return api(__func__, [&] { begin(stream, mode, std::make_shared<Graph>(), false, {}); });
}

HIP_API hipError_t hipStreamBeginCaptureToGraph(hipStream_t stream, hipGraph_t graph,
                                                In<hipGraphNode_t> dependencies, const void*, size_t count,
                                                hipStreamCaptureMode mode) {
  return api(__func__, [&] {
    const auto found = graph_of(graph);
    begin(stream, mode, found, true, nodes_of(found.get(), dependencies, count));
  });
}

HIP_API hipError_t hipStreamEndCapture(hipStream_t handle, Out<hipGraph_t> graph) {
  return api(__func__, [&] {
    require(graph, "the output pointer");
    graph.give(nullptr);
    const auto stream = stream_of(handle);
    std::lock_guard lock(captures().mutex);
    const std::shared_ptr<Capture> capture = stream ? stream->capture : nullptr;
    if (!capture) fail(hipErrorIllegalState, "the stream captures nothing");
    if (capture->origin != stream.get()) {
      fail(hipErrorStreamCaptureUnmatched, "the capture began in another stream");
    }
    if (capture->mode != hipStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
      fail(hipErrorStreamCaptureWrongThread, "the capture began in another thread");
    }
    if (!capture->is_valid) {
      drop(capture);
      require_valid(*capture);
    }
    if (!is_joined(*capture)) {
      drop(capture);
      fail(hipErrorStreamCaptureUnjoined, "work of another stream was captured that the stream has not waited for");
    }
    end(capture);
    graph.give(handle_of(capture->graph));
  });
}

HIP_API hipError_t hipStreamIsCapturing(hipStream_t stream, Out<hipStreamCaptureStatus> status) {
  return api_giving(__func__, status, "the status", [&] {
    const auto found = stream_of(stream);
    std::lock_guard lock(captures().mutex);
    return status_of(capture_of(found));
  });
}

HIP_API hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, Out<hipStreamCaptureStatus> status,
                                              Out<unsigned long long> id, Out<hipGraph_t> graph,
                                              Out<const hipGraphNode_t*> dependencies, Out<size_t> count) {
  return api(__func__, [&] {
    require(status, "the status");
    allow(id, "the id");
    allow(graph, "the graph");
    allow(dependencies, "the dependencies");
    allow(count, "the count");
    const auto found = stream_of(stream);
    std::lock_guard lock(captures().mutex);
    const auto capture = capture_of(found);
    const hipStreamCaptureStatus now = status_of(capture);
    status.give(now);
    if (now != hipStreamCaptureStatusActive) return;
    id.give_if_wanted(capture->id);
    graph.give_if_wanted(handle_of(capture->graph));
    dependencies.give_if_wanted(found->last.data());
    count.give_if_wanted(found->last.size());
  });
}

HIP_API hipError_t hipStreamGetCaptureInfo(hipStream_t stream, Out<hipStreamCaptureStatus> status,
                                           Out<unsigned long long> id) {
  return hipStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}

HIP_API hipError_t hipStreamUpdateCaptureDependencies(hipStream_t stream, In<hipGraphNode_t> dependencies, size_t count,
                                                      unsigned flags) {
  return api(__func__, [&] {
    const auto found = stream_of(stream);
    std::lock_guard lock(captures().mutex);
    if (!found || !found->capture) fail(hipErrorIllegalState, "the stream captures nothing");
    require_valid(*found->capture);
    const std::vector<GraphNode*> nodes = nodes_of(found->capture->graph.get(), dependencies, count);
    if (flags != hipStreamAddCaptureDependencies && flags != hipStreamSetCaptureDependencies) {
      fail(hipErrorInvalidValue, "flags must be hipStreamAddCaptureDependencies or hipStreamSetCaptureDependencies");
    }
    if (flags == hipStreamSetCaptureDependencies) found->last.clear();
    add_dependencies(*found, nodes);
  });
}

HIP_API hipError_t hipThreadExchangeStreamCaptureMode(InOut<hipStreamCaptureMode> mode) {
  return api(__func__, [&] {
    require(mode, "the mode");
    const hipStreamCaptureMode wanted = mode.read("the mode");
    require_mode(wanted);
    mode.give(thread_mode);
    thread_mode = wanted;
  });
}

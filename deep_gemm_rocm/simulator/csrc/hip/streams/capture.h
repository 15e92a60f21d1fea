// Stream capture: work that is submitted to a capturing stream goes into a graph instead of running.
#pragma once

#include "stream.h"

// Adds the work to the stream's capture; false where the stream isn't capturing. Fails where the work may not be
// submitted now: hipErrorStreamCaptureInvalidated, or hipErrorStreamCaptureImplicit for the legacy stream while a
// stream captures that it would wait for.
bool capture_work(Stream* stream, Work& work);

bool is_capturing(Stream* stream);

// The same for hipEventRecord and hipStreamWaitEvent.
bool capture_record(Stream* stream, Event& event);
bool capture_wait(Stream* stream, Event& event);

// For calls that wait for a stream, ask for its state or can't be part of a graph: fails with
// hipErrorStreamCaptureUnsupported and ends the capture.
void require_not_capturing(hipStream_t stream);
// For calls that wait for an event or ask for its state: fails with hipErrorCapturedEvent.
void require_not_captured(const Event& event);
// For calls that may wait for the whole device (hipMalloc, hipFree, hipDeviceSynchronize): fails with
// hipErrorStreamCaptureUnsupported while a capture forbids them in this thread (hipThreadExchangeStreamCaptureMode).
void forbid_unsafe_call_while_capturing();

// For calls that wait for the whole device: fails likewise while anything is captured.
void forbid_device_wait_while_capturing();

// Fails with hipErrorIllegalState while a stream captures into the graph.
void require_not_captured_into(const Graph& graph);

// For a forked child: ends captures that only other threads could have ended.
void forget_captures_of_other_threads();

// Called before a capturing stream is destroyed.
void abandon_capture(Stream& stream);

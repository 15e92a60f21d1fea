// Stream capture: what is submitted to a capturing stream becomes a graph instead of running.
#pragma once

#include "stream.h"

// The stream's capture takes the work; false where it captures nothing. Fails where the work may not be submitted now:
// hipErrorStreamCaptureInvalidated, or hipErrorStreamCaptureImplicit for the legacy stream while a stream captures that
// it would wait for.
bool capture_work(Stream* stream, Work& work);

bool is_capturing(Stream* stream);

// Of hipEventRecord and hipStreamWaitEvent, with the same results.
bool capture_record(Stream* stream, Event& event);
bool capture_wait(Stream* stream, Event& event);

// Calls that wait for a stream, ask for its state or can't be part of a graph: hipErrorStreamCaptureUnsupported, which
// ends the capture.
void require_not_capturing(hipStream_t stream);
// Those that wait for an event or ask for its state: hipErrorCapturedEvent.
void require_not_captured(const Event& event);
// Those that may wait for the whole device (hipMalloc, hipFree, hipDeviceSynchronize): hipErrorStreamCaptureUnsupported
// while a capture is under way that forbids them in this thread (hipThreadExchangeStreamCaptureMode).
void forbid_unsafe_call_while_capturing();

// Those that wait for the whole device: the same while anything is captured.
void forbid_device_wait_while_capturing();

// Fails with hipErrorIllegalState while a stream captures into the graph.
void require_not_captured_into(const Graph& graph);

// In a forked child: captures that only other threads could have ended are over.
void forget_captures_of_other_threads();

// A stream that captures is about to be destroyed.
void abandon_capture(Stream& stream);

#pragma once

#include "abi.h"

// Fails with hipErrorInvalidHandle unless the stream is null, one of HIP's two special handles, or a living stream.
void require_stream(hipStream_t stream);

// As hipEventRecord does; a null event is none.
void record_event(hipEvent_t event, hipStream_t stream);

// The simulated device's clock, which events record: a kernel has taken so long. It stands still where there is no
// timing model.
void advance_device_clock(double nanoseconds);

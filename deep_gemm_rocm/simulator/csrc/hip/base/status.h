// HIP error codes, and how a failure inside the runtime becomes one: code that finds a fault calls fail(), and every
// API function runs its body through api(), which turns the failure into the thread's last error and message.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "fork.h"

// name, value, description: the codes of HIP 6 (hip_runtime_api.h, hipError_t).
#define HIP_ERRORS(X)                                                                                \
  X(hipSuccess, 0, "no error")                                                                       \
  X(hipErrorInvalidValue, 1, "an argument has an invalid value")                                     \
  X(hipErrorOutOfMemory, 2, "out of memory")                                                         \
  X(hipErrorNotInitialized, 3, "the runtime is not initialized")                                     \
  X(hipErrorDeinitialized, 4, "the runtime was shut down")                                           \
  X(hipErrorProfilerDisabled, 5, "the profiler is disabled")                                         \
  X(hipErrorProfilerNotInitialized, 6, "the profiler is not initialized")                            \
  X(hipErrorProfilerAlreadyStarted, 7, "the profiler was started before")                            \
  X(hipErrorProfilerAlreadyStopped, 8, "the profiler was stopped before")                            \
  X(hipErrorInvalidConfiguration, 9, "invalid launch configuration")                                 \
  X(hipErrorInvalidPitchValue, 12, "invalid pitch")                                                  \
  X(hipErrorInvalidSymbol, 13, "invalid device symbol")                                              \
  X(hipErrorInvalidDevicePointer, 17, "invalid device pointer")                                      \
  X(hipErrorInvalidMemcpyDirection, 21, "invalid direction of a copy")                               \
  X(hipErrorInsufficientDriver, 35, "the driver is too old for this runtime")                        \
  X(hipErrorMissingConfiguration, 52, "a kernel was called without a launch configuration")          \
  X(hipErrorPriorLaunchFailure, 53, "an earlier launch failed")                                      \
  X(hipErrorInvalidDeviceFunction, 98, "invalid device function")                                    \
  X(hipErrorNoDevice, 100, "no device found")                                                        \
  X(hipErrorInvalidDevice, 101, "invalid device number")                                             \
  X(hipErrorInvalidImage, 200, "invalid code object")                                                \
  X(hipErrorInvalidContext, 201, "invalid context")                                                  \
  X(hipErrorContextAlreadyCurrent, 202, "the context is current already")                            \
  X(hipErrorMapFailed, 205, "mapping failed")                                                        \
  X(hipErrorUnmapFailed, 206, "unmapping failed")                                                    \
  X(hipErrorArrayIsMapped, 207, "the array is mapped")                                               \
  X(hipErrorAlreadyMapped, 208, "the resource is mapped already")                                    \
  X(hipErrorNoBinaryForGpu, 209, "no code object fits this device")                                  \
  X(hipErrorAlreadyAcquired, 210, "the resource is acquired already")                                \
  X(hipErrorNotMapped, 211, "the resource is not mapped")                                            \
  X(hipErrorNotMappedAsArray, 212, "the resource is not mapped as an array")                         \
  X(hipErrorNotMappedAsPointer, 213, "the resource is not mapped as a pointer")                      \
  X(hipErrorECCNotCorrectable, 214, "uncorrectable ECC error")                                       \
  X(hipErrorUnsupportedLimit, 215, "the device has no such limit")                                   \
  X(hipErrorContextAlreadyInUse, 216, "the context is in use")                                       \
  X(hipErrorPeerAccessUnsupported, 217, "no access between these devices")                           \
  X(hipErrorInvalidKernelFile, 218, "invalid kernel file")                                           \
  X(hipErrorInvalidGraphicsContext, 219, "invalid graphics context")                                 \
  X(hipErrorInvalidSource, 300, "invalid source")                                                    \
  X(hipErrorFileNotFound, 301, "file not found")                                                     \
  X(hipErrorSharedObjectSymbolNotFound, 302, "symbol of a shared object not found")                  \
  X(hipErrorSharedObjectInitFailed, 303, "initialization of a shared object failed")                 \
  X(hipErrorOperatingSystem, 304, "a call of the operating system failed")                           \
  X(hipErrorInvalidHandle, 400, "invalid handle")                                                    \
  X(hipErrorIllegalState, 401, "the resource is in the wrong state")                                 \
  X(hipErrorNotFound, 500, "name not found")                                                         \
  X(hipErrorNotReady, 600, "not ready")                                                              \
  X(hipErrorIllegalAddress, 700, "illegal memory access on the device")                              \
  X(hipErrorLaunchOutOfResources, 701, "the launch needs too many resources")                        \
  X(hipErrorLaunchTimeOut, 702, "the launch timed out")                                              \
  X(hipErrorPeerAccessAlreadyEnabled, 704, "peer access is enabled already")                         \
  X(hipErrorPeerAccessNotEnabled, 705, "peer access is not enabled")                                 \
  X(hipErrorSetOnActiveProcess, 708, "the device is active")                                         \
  X(hipErrorContextIsDestroyed, 709, "the context was destroyed")                                    \
  X(hipErrorAssert, 710, "an assertion failed on the device")                                        \
  X(hipErrorHostMemoryAlreadyRegistered, 712, "the host memory is registered already")               \
  X(hipErrorHostMemoryNotRegistered, 713, "the host memory is not registered")                       \
  X(hipErrorLaunchFailure, 719, "the kernel failed on the device")                                   \
  X(hipErrorCooperativeLaunchTooLarge, 720, "too many blocks for a cooperative launch")              \
  X(hipErrorNotSupported, 801, "not supported")                                                      \
  X(hipErrorStreamCaptureUnsupported, 900, "not permitted while the stream is capturing")            \
  X(hipErrorStreamCaptureInvalidated, 901, "the capture was invalidated by an earlier error")        \
  X(hipErrorStreamCaptureMerge, 902, "would merge two captures")                                     \
  X(hipErrorStreamCaptureUnmatched, 903, "the capture did not begin in this stream")                 \
  X(hipErrorStreamCaptureUnjoined, 904, "the capture has work that was not joined")                  \
  X(hipErrorStreamCaptureIsolation, 905, "would depend on work outside of the capture")              \
  X(hipErrorStreamCaptureImplicit, 906, "would make the legacy stream depend on a capturing stream") \
  X(hipErrorCapturedEvent, 907, "the event was last recorded in a capturing stream")                 \
  X(hipErrorStreamCaptureWrongThread, 908, "the capture began in another thread")                    \
  X(hipErrorGraphExecUpdateFailure, 910, "the graph could not be updated")                           \
  X(hipErrorInvalidChannelDescriptor, 911, "invalid channel descriptor")                             \
  X(hipErrorInvalidTexture, 912, "invalid texture")                                                  \
  X(hipErrorUnknown, 999, "unknown error")                                                           \
  X(hipErrorRuntimeMemory, 1052, "a memory call of the runtime failed")                              \
  X(hipErrorRuntimeOther, 1053, "a call of the runtime failed")

enum hipError_t : int {
#define HIP_ERROR_ENUMERATOR(name, value, description) name = value,
  HIP_ERRORS(HIP_ERROR_ENUMERATOR)
#undef HIP_ERROR_ENUMERATOR
};

struct Failure {
  hipError_t status;
  std::string message;
};

[[noreturn]] void fail(hipError_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Sets the thread's last error, as every HIP call does, and returns it. A failure also sets the message and, where
// AMD_LOG_LEVEL is 1 or more as for AMD's own runtime, prints it; a name that wasn't found from 3 on.
hipError_t set_last_error(hipError_t status) noexcept;
hipError_t set_last_error(hipError_t status, const char* function, const char* message) noexcept;

// The HIP function that the thread is in, or was in last.
void enter_call(const char* function) noexcept;
const char* current_call() noexcept;

// Forgets which pages of the caller's memory are usable (host_memory.h).
void forget_probes();

template <class Body>
hipError_t api(const char* function, Body&& body) noexcept {
  const NoFork no_fork;
  enter_call(function);
  forget_probes();
  try {
    body();
    return set_last_error(hipSuccess);
  } catch (const Failure& failure) {
    return set_last_error(failure.status, function, failure.message.c_str());
  } catch (const std::bad_alloc&) {
    return set_last_error(hipErrorOutOfMemory, function, "the host is out of memory");
  } catch (const std::exception& error) {
    return set_last_error(hipErrorUnknown, function, error.what());
  }
}

// The result of an addition to the HIP API, which leaves the last error alone: 0 or false where it fails.
template <class Body>
auto answer(Body&& body) noexcept -> decltype(body()) {
  const NoFork no_fork;
  forget_probes();
  try {
    return body();
  } catch (...) {
    return {};
  }
}

// The most common check: an output or input pointer that must not be null.
inline void require(const void* pointer, const char* name) {
  if (!pointer) fail(hipErrorInvalidValue, "%s is null", name);
}

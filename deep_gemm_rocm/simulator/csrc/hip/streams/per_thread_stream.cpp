// The _spt calls of programs compiled with -fgpu-default-stream=per-thread, where a null stream means the thread's own.
// Streams don't differ here, so each one jumps to the plain call with its parameters unchanged.
#include "../base/abi.h"

// clang-format off
#define PER_THREAD_STREAM_CALLS(X)                                                                                    \
  X(hipEventRecord) X(hipGetProcAddress) X(hipGraphLaunch) X(hipLaunchCooperativeKernel) X(hipLaunchHostFunc)         \
  X(hipLaunchKernel) X(hipMemcpy) X(hipMemcpy2D) X(hipMemcpy2DAsync) X(hipMemcpy3D) X(hipMemcpy3DAsync)               \
  X(hipMemcpyAsync) X(hipMemcpyFromSymbol) X(hipMemcpyFromSymbolAsync) X(hipMemcpyToSymbol) X(hipMemcpyToSymbolAsync) \
  X(hipMemset) X(hipMemset2D) X(hipMemset2DAsync) X(hipMemset3D) X(hipMemset3DAsync) X(hipMemsetAsync)                \
  X(hipStreamAddCallback) X(hipStreamBeginCapture) X(hipStreamEndCapture) X(hipStreamGetCaptureInfo)                  \
  X(hipStreamGetCaptureInfo_v2) X(hipStreamGetFlags) X(hipStreamGetPriority) X(hipStreamIsCapturing)                  \
  X(hipStreamQuery) X(hipStreamSynchronize) X(hipStreamWaitEvent)
// clang-format on

#define HIP_FORWARD(name) \
  HIP_API __attribute__((naked)) void name##_spt() { asm("jmp " #name "@PLT"); }
PER_THREAD_STREAM_CALLS(HIP_FORWARD)

// Contexts, which HIP keeps only for programs ported from CUDA's driver API. The device has just its primary context.
#include "../base/abi.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "../streams/capture.h"
#include "device.h"

struct Context {};

namespace {

Context primary;

void require_context(hipCtx_t context) {
  if (context && context != &primary) {
    fail(hipErrorInvalidContext, "%p is not a context", static_cast<const void*>(context));
  }
}

}  // namespace

HIP_API hipError_t hipCtxCreate(Out<hipCtx_t> context, unsigned, hipDevice_t number) {
  return api_giving(__func__, context, "the output pointer", [&] {
    require_device(number);
    return &primary;
  });
}

HIP_API hipError_t hipCtxDestroy(hipCtx_t context) {
  return api(__func__, [&] { require_context(context); });
}

HIP_API hipError_t hipCtxPushCurrent(hipCtx_t context) {
  return api(__func__, [&] { require_context(context); });
}

HIP_API hipError_t hipCtxPopCurrent(Out<hipCtx_t> context) {
  return api(__func__, [&] {
    context.give_if_wanted(&primary);
  });
}

HIP_API hipError_t hipCtxSetCurrent(hipCtx_t context) {
  return api(__func__, [&] { require_context(context); });
}

HIP_API hipError_t hipCtxGetCurrent(Out<hipCtx_t> context) {
  return api_giving(__func__, context, "the output pointer", [&] { return &primary; });
}

HIP_API hipError_t hipCtxGetDevice(Out<hipDevice_t> number) {
  return api_giving(__func__, number, "device", [&] { return 0; });
}

HIP_API hipError_t hipCtxGetFlags(Out<unsigned> flags) {
  return api_giving(__func__, flags, "flags", [&] { return 0; });
}

HIP_API hipError_t hipCtxSynchronize() {
  return api(__func__, [] { forbid_device_wait_while_capturing(); });
}

HIP_API hipError_t hipDevicePrimaryCtxRetain(Out<hipCtx_t> context, hipDevice_t number) {
  return api_giving(__func__, context, "the output pointer", [&] {
    require_device(number);
    return &primary;
  });
}

HIP_API hipError_t hipDevicePrimaryCtxRelease(hipDevice_t number) {
  return api(__func__, [&] { require_device(number); });
}

HIP_API hipError_t hipDevicePrimaryCtxGetState(hipDevice_t number, Out<unsigned> flags, Out<int> active) {
  return api(__func__, [&] {
    allow(flags, "flags");
    allow(active, "active");
    require_device(number);
    flags.give_if_wanted(0);
    active.give_if_wanted(1);
  });
}

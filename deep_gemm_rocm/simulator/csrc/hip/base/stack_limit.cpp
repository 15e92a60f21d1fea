#include "stack_limit.h"

#include <atomic>

#include "abi.h"
#include "host_memory.h"
#include "status.h"

namespace {

constexpr size_t kDefaultStack = 1024;
constexpr size_t kMaxStack = (128 << 10) - 16;  // HIP's documented limit

std::atomic<size_t> stack{kDefaultStack};

}  // namespace

size_t stack_limit() { return stack; }

HIP_API hipError_t hipDeviceGetLimit(Out<size_t> value, hipLimit_t limit) {
  return api_giving(__func__, value, "value", [&] {
    if (limit != hipLimitStackSize) {
      fail(hipErrorUnsupportedLimit, "limit %d: only hipLimitStackSize has a meaning here", static_cast<int>(limit));
    }
    return stack.load();
  });
}

HIP_API hipError_t hipDeviceSetLimit(hipLimit_t limit, size_t value) {
  return api(__func__, [&] {
    if (limit != hipLimitStackSize) {
      fail(hipErrorUnsupportedLimit, "limit %d: only hipLimitStackSize has a meaning here", static_cast<int>(limit));
    }
    if (value > kMaxStack) {
      fail(hipErrorInvalidValue, "a stack of %zu bytes, at most %zu are possible", value, kMaxStack);
    }
    stack = value;
  });
}

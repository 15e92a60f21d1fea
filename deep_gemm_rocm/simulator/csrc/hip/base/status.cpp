#include "status.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "abi.h"
#include "host_memory.h"

namespace {

// Plain data: HIP is called from static destructors too, when a thread's std::string is gone.
thread_local hipError_t last_error = hipSuccess;
thread_local char last_message[4096] = "";
thread_local const char* entered_call = "a HIP function";

// Programs look up names to find out whether they exist, so a failed look-up is only printed from level 3 on.
bool is_printed(hipError_t status) {
  static const int log_level = [] {
    const char* level = std::getenv("AMD_LOG_LEVEL");
    return level ? std::atoi(level) : 0;
  }();
  return log_level >= (status == hipErrorNotFound ? 3 : 1);
}

const char* name_of(hipError_t status) {
  switch (status) {
#define HIP_ERROR_NAME(name, value, description) \
  case name: return #name;
    HIP_ERRORS(HIP_ERROR_NAME)
#undef HIP_ERROR_NAME
  }
  return nullptr;
}

const char* description_of(hipError_t status) {
  switch (status) {
#define HIP_ERROR_DESCRIPTION(name, value, description) \
  case name: return description;
    HIP_ERRORS(HIP_ERROR_DESCRIPTION)
#undef HIP_ERROR_DESCRIPTION
  }
  return nullptr;
}

// Names in messages come from untrusted files, and clients decode messages as text.
void make_printable(char* text) {
  for (; *text; ++text) {
    if (*text < ' ' || *text > '~') *text = '?';
  }
}

hipError_t take_last_error() {
  hipError_t status = last_error;
  last_error = hipSuccess;
  return status;
}

}  // namespace

void fail(hipError_t status, const char* format, ...) {
  char message[sizeof last_message];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  throw Failure{status, message};
}

void enter_call(const char* function) noexcept { entered_call = function; }
const char* current_call() noexcept { return entered_call; }

hipError_t set_last_error(hipError_t status) noexcept { return last_error = status; }

hipError_t set_last_error(hipError_t status, const char* function, const char* message) noexcept {
  std::snprintf(last_message, sizeof last_message, "%s: %s", function, message);
  make_printable(last_message);
  if (is_printed(status)) std::fprintf(stderr, "simulated MI300X: %s: %s\n", name_of(status), last_message);
  return last_error = status;
}

// The message of the thread's last failed HIP call; empty where none failed. Valid until the thread's next failure.
HIP_API const char* dgSimLastMessage() { return last_message; }

// In HIP 6 the last error is that of the last call, not the first failure since it was read.
HIP_API hipError_t hipGetLastError() { return take_last_error(); }
HIP_API hipError_t hipExtGetLastError() { return take_last_error(); }
HIP_API hipError_t hipPeekAtLastError() { return last_error; }

HIP_API const char* hipGetErrorName(hipError_t status) {
  const char* name = name_of(status);
  return name ? name : "hipErrorUnknown";
}

HIP_API const char* hipGetErrorString(hipError_t status) {
  const char* description = description_of(status);
  return description ? description : "unknown error";
}

HIP_API hipError_t hipDrvGetErrorName(hipError_t status, Out<const char*> text) {
  return api(__func__, [&] {
    require(text, "the output pointer");
    const char* name = name_of(status);
    text.give(name);
    if (!name) fail(hipErrorInvalidValue, "%d is not a HIP error", static_cast<int>(status));
  });
}

HIP_API hipError_t hipDrvGetErrorString(hipError_t status, Out<const char*> text) {
  return api(__func__, [&] {
    require(text, "the output pointer");
    const char* description = description_of(status);
    text.give(description);
    if (!description) fail(hipErrorInvalidValue, "%d is not a HIP error", static_cast<int>(status));
  });
}

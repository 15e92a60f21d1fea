#include "host_calls.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "../base/fork.h"
#include "device_printf.h"

namespace {

enum Service : uint32_t { kCallFunction = 1, kPrintf = 2, kAllocate = 3 };

// The first value of a lane in a part of a message: flags, the number of values that follow, the message's number.
constexpr uint64_t kBegins = 1, kEnds = 2;
constexpr int kCountShift = 5, kNumberShift = 8;
constexpr uint64_t kCountMask = 7;

}  // namespace

HostCalls::HostCalls() {
  // Pages that no kernel touches take no memory.
  void* const memory =
      mmap(nullptr, sizeof(Buffer), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  buffer_.reset(new (memory) Buffer);
  Buffer& buffer = *buffer_;
  buffer.headers = buffer.header;
  buffer.payloads = buffer.payload;
  buffer.doorbell = &buffer.signal;
  buffer.signal.mailbox = reinterpret_cast<uint64_t>(&buffer.mailbox);
  buffer.index_mask = packets - 1;
  for (uint64_t i = 0; i < packets; ++i) buffer.header[i].next = i + 1 < packets ? packets + i + 1 : 0;
  buffer.free = packets;
}

void HostCalls::Freed::operator()(Buffer* buffer) const { munmap(buffer, sizeof *buffer); }

mi300x::MemoryRange HostCalls::memory() const { return {address(), address() + sizeof(Buffer)}; }

std::string HostCalls::answer_interrupt() {
  const NoFork no_fork;
  std::lock_guard lock(mutex_);
  Buffer& buffer = *buffer_;
  std::string mistake;
  uint64_t answered = 0;
  for (uint64_t ready = __atomic_exchange_n(&buffer.ready, 0, __ATOMIC_ACQUIRE); ready != 0; ++answered) {
    if (answered == packets) return "the kernel's list of requests to the host is a loop";
    const uint64_t index = ready & (packets - 1);
    Header& header = buffer.header[index];
    ready = header.next;
    std::string failure = answer_packet(header, buffer.payload[index]);
    if (mistake.empty()) mistake = std::move(failure);
    __atomic_store_n(&header.control, 0, __ATOMIC_RELEASE);
  }
  early_answers_ += int64_t(answered) - 1;
  if (mistake.empty() || (answered == 1 && early_answers_ == 0)) return mistake;
  return mistake + " (this wave asked for it, or another one at the same time)";
}

std::string HostCalls::answer_packet(const Header& header, Payload& payload) {
  for (uint64_t lane = 0; lane < lanes; ++lane) {
    if (!(header.active_lanes >> lane & 1)) continue;
    std::string mistake = answer(header.service, payload.lane[lane]);
    if (!mistake.empty()) return mistake;
  }
  return "";
}

std::string HostCalls::answer(uint32_t service, uint64_t* values) {
  switch (service) {
    case kPrintf: answer_message(values); return "";
    case kAllocate: return "the kernel calls malloc or free, which the simulated MI300X does not offer";
    case kCallFunction: return "the kernel calls a function of the host, which the simulated MI300X does not offer";
    default: return "the kernel asks the host for service " + std::to_string(service) + ", which does not exist";
  }
}

void HostCalls::answer_message(uint64_t* values) {
  const uint64_t descriptor = values[0];
  const uint64_t number = descriptor & kBegins ? next_message_++ : descriptor >> kNumberShift;
  std::vector<uint64_t>& message = messages_[number];
  message.insert(message.end(), values + 1, values + 1 + (descriptor >> kCountShift & kCountMask));
  if (descriptor & kEnds) {
    values[0] = uint64_t(int64_t(print_message(message)));
    messages_.erase(number);
  } else {
    values[0] = number << kNumberShift;
  }
  values[1] = 0;
}

// Device printf: clang turns it into calls of the functions below, which ROCm has in its device libraries. They ask the
// host by ROCm's protocol ("hostcall"): the wave takes a packet from a stack of free ones, fills it, pushes it on the
// stack of ready ones, interrupts the host, and waits for its answer in the packet.
#pragma once

#include "qualifiers.h"

namespace __hip_host {

using u64 = unsigned long;

struct Header {
  u64 next;
  u64 active_lanes;
  unsigned service;
  unsigned control;  // bit 0: waits for the host
};

struct Signal {
  u64 kind;
  u64 value;
  u64* mailbox;
  unsigned event;
};

struct Buffer {
  Header* headers;
  u64 (*payloads)[64][8];
  Signal* doorbell;
  u64 free;
  u64 ready;
  u64 index_mask;
};

__HIP_INLINE_DEVICE__ u64 broadcast_first(u64 value) {
  const unsigned low = __builtin_amdgcn_readfirstlane(static_cast<unsigned>(value));
  const unsigned high = __builtin_amdgcn_readfirstlane(static_cast<unsigned>(value >> 32));
  return static_cast<u64>(high) << 32 | low;
}

__HIP_INLINE_DEVICE__ u64 pop(Buffer* buffer, u64* stack) {
  u64 top = __hip_atomic_load(stack, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
  for (;;) {
    const u64 next = __hip_atomic_load(&buffer->headers[top & buffer->index_mask].next, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_SYSTEM);
    if (__hip_atomic_compare_exchange_strong(stack, &top, next, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE,
                                             __HIP_MEMORY_SCOPE_SYSTEM)) {
      return top;
    }
    __builtin_amdgcn_s_sleep(1);
  }
}

__HIP_INLINE_DEVICE__ void push(Buffer* buffer, u64* stack, u64 packet) {
  u64 top = __hip_atomic_load(stack, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  for (;;) {
    __hip_atomic_store(&buffer->headers[packet & buffer->index_mask].next, top, __ATOMIC_RELAXED,
                       __HIP_MEMORY_SCOPE_SYSTEM);
    if (__hip_atomic_compare_exchange_strong(stack, &top, packet, __ATOMIC_RELEASE, __ATOMIC_RELAXED,
                                             __HIP_MEMORY_SCOPE_SYSTEM)) {
      return;
    }
    __builtin_amdgcn_s_sleep(1);
  }
}

__HIP_INLINE_DEVICE__ void interrupt_host(Signal* signal) {
  __hip_atomic_fetch_add(&signal->value, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(signal->mailbox, static_cast<u64>(signal->event), __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
  __builtin_amdgcn_s_sendmsg(1, __builtin_amdgcn_readfirstlane(signal->event));
}

// One call for all active lanes; each has its own values and its own answer.
__device__ __attribute__((noinline, weak)) u64 call(unsigned service, u64 v0, u64 v1, u64 v2, u64 v3, u64 v4, u64 v5,
                                                    u64 v6, u64 v7) {
  // hidden_hostcall_buffer of code object version 5.
  Buffer* const buffer = *(Buffer* const*)((const char*)__builtin_amdgcn_implicitarg_ptr() + 80);
  const unsigned lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  const u64 active = __builtin_amdgcn_read_exec();
  const bool leads = lane == __builtin_amdgcn_readfirstlane(lane);
  u64 packet = 0;
  if (leads) packet = pop(buffer, &buffer->free);
  packet = broadcast_first(packet);
  Header* const header = buffer->headers + (packet & buffer->index_mask);
  u64* const values = buffer->payloads[packet & buffer->index_mask][lane];
  if (leads) {
    header->service = service;
    header->active_lanes = active;
    header->control = 1;
  }
  values[0] = v0, values[1] = v1, values[2] = v2, values[3] = v3;
  values[4] = v4, values[5] = v5, values[6] = v6, values[7] = v7;
  if (leads) {
    push(buffer, &buffer->ready, packet);
    interrupt_host(buffer->doorbell);
  }
  for (;;) {
    unsigned waits = 0;
    if (leads) waits = __hip_atomic_load(&header->control, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM) & 1;
    if (__builtin_amdgcn_readfirstlane(waits) == 0) break;
    __builtin_amdgcn_s_sleep(1);
  }
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");  // for all lanes
  const u64 answer = values[0];
  // The bits above the index change, so that a wave which still holds the old reference can't mistake it.
  if (leads) push(buffer, &buffer->free, packet + buffer->index_mask + 1);
  return answer;
}

constexpr unsigned printing = 2;     // the service
constexpr u64 begins = 1, ends = 2;  // flags of a part of a message
constexpr int count_shift = 5;       // where it has the number of its values
__HIP_INLINE_DEVICE__ u64 with_count(u64 descriptor, u64 count) {
  return (descriptor & ~(7ul << count_shift)) | count << count_shift;
}

}  // namespace __hip_host

extern "C" {
__device__ int printf(const char* format, ...);

__device__ __attribute__((weak)) unsigned long __ockl_printf_begin(unsigned long stream) {
  using namespace __hip_host;
  return call(printing, with_count(begins, 1), stream, 0, 0, 0, 0, 0, 0);
}
__device__ __attribute__((weak)) unsigned long __ockl_printf_append_args(
    unsigned long message, unsigned count, unsigned long v0, unsigned long v1, unsigned long v2, unsigned long v3,
    unsigned long v4, unsigned long v5, unsigned long v6, unsigned is_last) {
  using namespace __hip_host;
  return call(printing, with_count(message, count) | (is_last ? ends : 0), v0, v1, v2, v3, v4, v5, v6);
}
// `bytes` counts the zero at the end. A null pointer prints nothing.
__device__ __attribute__((weak)) unsigned long __ockl_printf_append_string_n(unsigned long message, const char* text,
                                                                             unsigned long bytes, unsigned is_last) {
  using namespace __hip_host;
  if (!text) bytes = 0;
  do {
    u64 values[7] = {};
    const unsigned part = bytes < sizeof values ? static_cast<unsigned>(bytes) : sizeof values;
#pragma unroll
    for (unsigned i = 0; i < sizeof values; ++i) {
      if (i < part) values[i / 8] |= static_cast<u64>(static_cast<unsigned char>(text[i])) << i % 8 * 8;
    }
    bytes -= part;
    text += part;
    const u64 count = part == 0 ? 1 : (part + 7) / 8;
    message = call(printing, with_count(message, count) | (is_last && bytes == 0 ? ends : 0), values[0], values[1],
                   values[2], values[3], values[4], values[5], values[6]);
  } while (bytes != 0);
  return message;
}
}

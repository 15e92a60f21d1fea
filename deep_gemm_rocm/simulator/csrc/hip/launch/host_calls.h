// Requests of running kernels to the host, by the protocol of ROCm's device libraries ("hostcall"): a wave takes a
// packet from a stack of free ones, writes a service and eight values for each lane into it, pushes it on the stack of
// ready ones, interrupts the host, and waits until the host has answered in the packet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../../engine.h"

class HostCalls final : public mi300x::Host {
 public:
  HostCalls();

  // The buffer that kernels know by hidden_hostcall_buffer.
  uint64_t address() const { return reinterpret_cast<uint64_t>(buffer_.get()); }

  mi300x::MemoryRange memory() const override;
  std::string answer_interrupt() override;

 private:
  static constexpr uint64_t lanes = 64;
  static constexpr uint64_t values_of_lane = 8;

  struct Header {
    uint64_t next;
    uint64_t active_lanes;
    uint32_t service;
    uint32_t control;  // bit 0: waits for the host
  };
  struct Payload {
    uint64_t lane[lanes][values_of_lane];
  };
  // An AMD signal of HSA. Its mailbox makes the device interrupt the host after it changed the value.
  struct Signal {
    int64_t kind = 1;
    int64_t value = 0;
    uint64_t mailbox = 0;
    uint32_t event = 1;
    uint32_t reserved = 0;
    uint64_t others[4] = {};
  };
  // At least one packet for each wave that can be resident on the chip. References to packets are indices with a tag
  // in the bits above, which changes whenever the packet is freed; 0 is none.
  static constexpr uint64_t packets = 1 << 14;
  struct Buffer {
    Header* headers;
    Payload* payloads;
    Signal* doorbell;
    uint64_t free;
    uint64_t ready;
    uint64_t index_mask;
    uint64_t reserved[2];
    Signal signal;
    uint64_t mailbox;
    Header header[packets];
    Payload payload[packets];
  };
  struct Freed {
    void operator()(Buffer* buffer) const;
  };

  std::string answer_packet(const Header& header, Payload& payload);
  std::string answer(uint32_t service, uint64_t* values);
  void answer_message(uint64_t* values);

  std::unique_ptr<Buffer, Freed> buffer_;
  std::mutex mutex_;
  // Messages that came in part, by their number.
  std::map<uint64_t, std::vector<uint64_t>> messages_;
  uint64_t next_message_ = 1;
  int64_t early_answers_ = 0;  // to waves that had yet to interrupt, because another one did so first
};

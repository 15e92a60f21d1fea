// Who touched each byte of LDS since the last barrier, and which bytes hold what the program has written.
#pragma once

#include <vector>

#include "wave.h"

namespace mi300x {

class LdsWatch {
 public:
  LdsWatch() : writes_(lds_capacity), reads_(lds_capacity), defined_(lds_capacity) {}

  void start_workgroup(uint32_t lds_bytes);
  void open_barrier();

  // The first byte of the range that another wave has touched in a conflicting way since the last barrier, or that a
  // load to LDS has still to write.
  struct Conflict {
    enum class Kind { none, race, unfinished_load } kind = Kind::none;
    uint32_t byte = 0;
    uint32_t wave = 0;
    explicit operator bool() const { return kind != Kind::none; }
  };
  Conflict find_conflict(uint32_t begin, uint32_t bytes, uint32_t wave, bool writes, bool atomic) const {
    if (!conflicts(begin, bytes, wave, writes, atomic)) return {};
    return describe_conflict(begin, wave, writes, atomic);
  }

  void read(uint32_t begin, uint32_t bytes, uint32_t wave);
  void write(uint32_t begin, uint32_t bytes, uint32_t wave, bool atomic);
  void define(uint32_t begin, uint32_t bytes);
  bool is_defined(uint32_t begin, uint32_t bytes) const;

  // A load to LDS writes at any time from here until its wave has waited for it.
  void begin_load(uint32_t begin, uint32_t bytes, uint32_t wave);
  void end_load(uint32_t begin, uint32_t bytes, uint32_t wave);

 private:
  // Marks hold the epoch in which they were made in their upper half. Below it, one for a write has the wave and how it
  // writes, and one for reads has a bit for each wave.
  static constexpr uint32_t wave_mask = 15, atomic_bit = 16, unfinished_bit = 32;
  static constexpr uint32_t several_bit = 64;  // atomics of several waves
  static constexpr uint32_t last_epoch = 0xFFFF;

  bool is_current(uint32_t mark) const { return mark >> 16 == epoch_; }
  bool is_foreign(uint32_t write, uint32_t wave) const {
    return is_current(write) && ((write ^ wave) & (wave_mask | several_bit)) != 0;
  }
  bool conflicts(uint32_t begin, uint32_t bytes, uint32_t wave, bool writes, bool atomic) const;
  Conflict describe_conflict(uint32_t begin, uint32_t wave, bool writes, bool atomic) const;

  std::vector<uint32_t> writes_, reads_;
  std::vector<uint8_t> defined_;
  uint32_t epoch_ = 1;
};

}  // namespace mi300x

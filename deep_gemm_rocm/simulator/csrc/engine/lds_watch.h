// Who touched each byte of LDS since the last barrier, and which bytes hold what the program has written. Waves that
// store the same value to the same place don't race: the order makes no difference, and compilers let waves do the same
// work. Nor do a plain read and a compare-and-swap: that is how loops of compare-and-swap begin.
#pragma once

#include <cstring>
#include <vector>

#include "wave.h"

namespace mi300x {

class LdsWatch {
 public:
  LdsWatch() : writes_(lds_capacity), reads_(lds_capacity), writers_(lds_capacity), defined_(lds_capacity) {}

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
  struct Access {
    uint32_t begin, bytes, wave;
    bool writes, atomic, compares;
  };
  // `alike()`: which of the bytes hold already what a plain store gives them, a bit each.
  template <class Alike>
  Conflict find_conflict(const Access& access, Alike alike) const {
    if (!may_conflict(access)) return {};
    return first_conflict(access, alike());
  }

  void read(uint32_t begin, uint32_t bytes, uint32_t wave);
  void write(uint32_t begin, uint32_t bytes, uint32_t wave, bool atomic, bool compares);
  void define(uint32_t begin, uint32_t bytes, bool defined = true);
  // False where nothing has written any of the bytes, a dword or part of one. Structures are loaded with their padding,
  // so a part is enough.
  bool has_data(uint32_t begin, uint32_t bytes) const {
    uint32_t marks = 0;
    if (bytes == 4) memcpy(&marks, &defined_[begin], 4);
    else memcpy(&marks, &defined_[begin], bytes);
    return marks != 0;
  }

  // A load to LDS writes at any time from here until its wave has waited for it.
  void begin_load(uint32_t begin, uint32_t bytes, uint32_t wave);
  void end_load(uint32_t begin, uint32_t bytes, uint32_t wave);

 private:
  // Marks hold the epoch in which they were made in their upper half. Below it, one for a write has the wave and how it
  // writes, and one for reads has a bit for each wave.
  static constexpr uint32_t wave_mask = 15, atomic_bit = 16, unfinished_bit = 32;
  static constexpr uint32_t several_bit = 64;  // several waves: atomics, or stores of the same value
  static constexpr uint32_t compares_bit = 128;
  static constexpr uint32_t last_epoch = 0xFFFF;

  bool is_current(uint32_t mark) const { return mark >> 16 == epoch_; }
  bool is_foreign(uint32_t write, uint32_t wave) const {
    return is_current(write) && ((write ^ wave) & (wave_mask | several_bit)) != 0;
  }
  // The waves that have stored the value that the byte holds.
  uint32_t writers_of(uint32_t byte) const {
    return writes_[byte] & several_bit ? writers_[byte] : 1u << (writes_[byte] & wave_mask);
  }
  bool may_conflict(const Access& access) const;
  Conflict first_conflict(const Access& access, uint32_t alike) const;

  std::vector<uint32_t> writes_, reads_;
  std::vector<uint16_t> writers_;  // where a mark says that there are several
  std::vector<uint8_t> defined_;
  uint32_t epoch_ = 1;
};

}  // namespace mi300x

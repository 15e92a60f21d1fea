// Who touched each byte of LDS since the last barrier, and which bytes hold what the program has written. As long as all
// accesses are to whole dwords, a mark stands for four bytes, which leaves less to look through.
//
// Waves that store the same value to the same place don't race: the order makes no difference, and compilers let waves
// do the same work. Nor do a plain read and a compare-and-swap: that is how loops of compare-and-swap begin.
#pragma once

#include <vector>

#include "wave.h"

namespace mi300x {

class LdsWatch {
 public:
  LdsWatch() : writes_(lds_capacity), reads_(lds_capacity), writers_(lds_capacity), defined_(lds_capacity) {}

  void start_workgroup(uint32_t lds_bytes);
  void open_barrier();

  // What an instruction of a wave does with `bytes` at each of some places.
  struct Access {
    uint32_t bytes, wave;
    bool writes, atomic, compares;
  };
  using Places = std::vector<uint32_t>;

  // Whether first_conflict() is worth asking for any of the places from number `first` on. To be called before anything
  // else is done with these places.
  bool may_conflict(const Access& access, const Places& begins, size_t first);

  // The first byte at a place that another wave has touched in a conflicting way since the last barrier, or that a load
  // to LDS has still to write. `alike`: which of the bytes hold already what a plain store gives them, a bit each.
  struct Conflict {
    enum class Kind { none, race, unfinished_load } kind = Kind::none;
    uint32_t byte = 0;
    uint32_t wave = 0;
    explicit operator bool() const { return kind != Kind::none; }
  };
  Conflict first_conflict(const Access& access, uint32_t begin, uint32_t alike) const;

  void record(const Access& access, const Places& begins, size_t first = 0);
  void define(uint32_t begin, uint32_t bytes, bool defined = true);
  // False where nothing has written any of the bytes, a dword or part of one. Structures are loaded with their padding,
  // so a part is enough.
  bool has_data(uint32_t begin, uint32_t bytes) const {
    uint32_t marks = 0;
    for (uint32_t i = 0; i < marks_in(bytes); ++i) marks |= defined_[mark_of(begin) + i];
    return marks != 0;
  }

  // A load to LDS writes at any time from here until its wave has waited for it.
  void begin_load(uint32_t bytes, uint32_t wave, const Places& begins);
  void end_load(uint32_t bytes, uint32_t wave, const Places& begins) {
    record({bytes, wave, true, false, false}, begins);
  }

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
  // The waves that have stored the value that is there.
  uint32_t writers_of(uint32_t mark) const {
    return writes_[mark] & several_bit ? writers_[mark] : 1u << (writes_[mark] & wave_mask);
  }
  void join(uint32_t mark, uint32_t wave);

  uint32_t mark_of(uint32_t byte) const { return byte >> bytes_log2_; }
  uint32_t marks_in(uint32_t bytes) const { return bytes >> bytes_log2_; }
  void mark_single_bytes();

  std::vector<uint32_t> writes_, reads_;
  std::vector<uint16_t> writers_;  // where a mark says that there are several
  std::vector<uint8_t> defined_;
  uint32_t bytes_log2_ = 2;  // that share a mark
  uint32_t epoch_ = 1;
};

}  // namespace mi300x

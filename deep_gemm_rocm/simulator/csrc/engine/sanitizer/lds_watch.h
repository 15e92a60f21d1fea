// Tracks which waves touched each byte of LDS since the last barrier, and which bytes were written. While all accesses
// are to whole dwords, one mark stands for four bytes, which is faster.
//
// Waves that store the same value to the same place don't race: the order makes no difference, and compilers let waves
// do the same work. It does make one to a wave that has read the place before. A plain read doesn't race with a
// compare-and-swap either: compare-and-swap loops begin with one.
#pragma once

#include <memory>
#include <vector>

#include "../execution/wave.h"

namespace mi300x {

class LdsWatch {
 public:
  explicit LdsWatch(uint32_t waves)
      : writes_(lds_capacity),
        reads_(lds_capacity),
        writers_(lds_capacity),
        defined_(lds_capacity),
        waves_(waves),
        write_sites_(new uint32_t[lds_capacity]),
        read_sites_(new uint32_t[size_t(lds_capacity) * waves]) {}

  void start_workgroup(uint32_t lds_bytes);
  void open_barrier();

  // How an instruction of a wave accesses `bytes` bytes at each of some places.
  struct Access {
    uint32_t bytes, wave;
    bool writes, atomic, compares;
    uint32_t site;  // the instruction's index
  };
  using Places = std::vector<uint32_t>;

  // A fast test of all places from number `first` on: false where first_conflict() would find nothing. Must come before
  // first_conflict() and record().
  bool may_conflict(const Access& access, const Places& begins, size_t first);

  // The first byte at a place that another wave has touched in a conflicting way since the last barrier, or that a load
  // to LDS has yet to write. `alike` has a bit for each byte that a plain store would leave as it is.
  struct Conflict {
    enum class Kind { none, race, unfinished_load } kind = Kind::none;
    uint32_t byte = 0;
    uint32_t wave = 0;       // of the other access
    uint32_t site = 0;       // the instruction that made it
    bool was_write = false;
    explicit operator bool() const { return kind != Kind::none; }
  };
  Conflict first_conflict(const Access& access, uint32_t begin, uint32_t alike) const;

  void record(const Access& access, const Places& begins, size_t first = 0);
  void define(uint32_t begin, uint32_t bytes, bool defined = true);
  // True where any of the bytes (a dword or part of one) was written. One is enough, since structures are loaded with
  // their padding.
  bool has_data(uint32_t begin, uint32_t bytes) const {
    uint32_t marks = 0;
    for (uint32_t i = 0; i < marks_in(bytes); ++i) marks |= defined_[mark_of(begin) + i];
    return marks != 0;
  }

  // A load to LDS writes at any time from here until its wave has waited for it.
  void begin_load(const Access& access, const Places& begins);
  void end_load(uint32_t bytes, uint32_t wave, uint32_t site, const Places& begins) {
    record({bytes, wave, true, false, false, site}, begins);
  }

 private:
  // The upper half of a mark is the epoch (barrier count) in which it was made. The lower half of a write mark holds
  // the wave and the kind of write; that of a read mark holds a bit for each wave.
  static constexpr uint32_t wave_mask = 15, atomic_bit = 16, unfinished_bit = 32;
  static constexpr uint32_t several_bit = 64;  // several waves: atomics, or stores of the same value
  static constexpr uint32_t compares_bit = 128;
  static constexpr uint32_t read_before_bit = 256;  // the first wave that wrote had read the byte before
  static constexpr uint32_t last_epoch = 0xFFFF;

  bool is_current(uint32_t mark) const { return mark >> 16 == epoch_; }
  bool is_foreign(uint32_t write, uint32_t wave) const {
    return is_current(write) && ((write ^ wave) & (wave_mask | several_bit)) != 0;
  }
  // The mark's read_before_bit after a write of the wave.
  uint32_t read_before(uint32_t write, uint32_t read, uint32_t wave) const {
    if (is_current(write)) return write & read_before_bit;
    return is_current(read) && (read >> wave & 1) ? read_before_bit : 0;
  }
  // The waves that have stored the current value.
  uint32_t writers_of(uint32_t mark) const {
    return writes_[mark] & several_bit ? writers_[mark] : 1u << (writes_[mark] & wave_mask);
  }
  void join(uint32_t mark, uint32_t wave);

  uint32_t mark_of(uint32_t byte) const { return byte >> bytes_log2_; }
  uint32_t marks_in(uint32_t bytes) const { return bytes >> bytes_log2_; }
  void mark_single_bytes();

  std::vector<uint32_t> writes_, reads_;
  std::vector<uint16_t> writers_;  // valid where a mark has several_bit
  std::vector<uint8_t> defined_;
  // The last instruction that wrote under a mark, and the last of each wave that read; valid where the marks are.
  const uint32_t waves_;
  std::unique_ptr<uint32_t[]> write_sites_, read_sites_;
  uint32_t* read_sites_of(uint32_t wave) const { return read_sites_.get() + size_t(wave) * lds_capacity; }
  uint32_t bytes_log2_ = 2;  // log2 of the bytes that share a mark
  uint32_t epoch_ = 1;
};

}  // namespace mi300x

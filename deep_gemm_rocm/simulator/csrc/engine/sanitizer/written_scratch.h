// Tracks which bytes of a wave's scratch the program has written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../execution/wave.h"

namespace mi300x {

class WrittenScratch {
 public:
  explicit WrittenScratch(uint32_t bytes_of_lane)
      : bytes_of_lane_(bytes_of_lane), marks_(size_t(bytes_of_lane) * lanes) {}

  // Forgets all writes.
  void start() {
    if (++written_ != 0) return;
    std::fill(marks_.begin(), marks_.end(), 0);
    written_ = 1;
  }

  bool holds(uint64_t offset, uint32_t bytes) const {
    return offset <= bytes_of_lane_ && bytes <= bytes_of_lane_ - offset;
  }

  // True where any of the bytes (a dword or part of one) was written. One is enough, since structures are loaded with
  // their padding.
  bool has_data(int lane, uint64_t offset, uint32_t bytes) const {
    const uint8_t* marks = marks_.data() + lane * uint64_t(bytes_of_lane_) + offset;
    return std::any_of(marks, marks + bytes, [&](uint8_t mark) { return mark == written_; });
  }

  void note_write(int lane, uint64_t offset, uint32_t bytes, bool defined) {
    std::fill_n(marks_.begin() + ptrdiff_t(lane * uint64_t(bytes_of_lane_) + offset), bytes, defined ? written_ : 0);
  }

 private:
  uint32_t bytes_of_lane_;
  std::vector<uint8_t> marks_;  // [lane][bytes_of_lane], `written_` where something is written
  uint8_t written_ = 0;
};

}  // namespace mi300x

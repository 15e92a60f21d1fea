// Which lines a cache holds: set-associative, the least recently used line leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mi300x::timing {

class Cache {
 public:
  Cache(double bytes, double line_bytes, double ways)
      : ways_(size_t(ways)), sets_(size_t(bytes / line_bytes / ways)), lines_(ways_ * sets_) {}

  struct Result {
    bool hit = false;
    bool evicted_dirty = false;
    uint64_t evicted = 0;     // the line that left, where it was dirty
    double* ready = nullptr;  // when the line's data arrive; null where it isn't kept
  };

  // Looks a line up, by its number, and makes it the most recent one of its set. A miss brings it in where `allocate`
  // says so.
  Result access(uint64_t line, bool dirty = false, bool allocate = true) {
    Line* set = &lines_[set_of(line) * ways_];
    size_t place = 0;
    while (place < ways_ && set[place].tag != line + 1) ++place;
    Result result;
    result.hit = place < ways_;
    if (!result.hit) {
      if (!allocate) return result;
      place = ways_ - 1;
      result.evicted_dirty = set[place].dirty;
      result.evicted = set[place].tag - 1;
      set[place] = {line + 1, false, 0};
    }
    Line found = set[place];
    found.dirty |= dirty;
    for (; place > 0; --place) set[place] = set[place - 1];
    set[0] = found;
    result.ready = &set[0].ready;
    return result;
  }

  // Sets when the data of a line arrive, if the line is still there.
  void set_ready(uint64_t line, double time) {
    Line* set = &lines_[set_of(line) * ways_];
    for (size_t place = 0; place < ways_; ++place)
      if (set[place].tag == line + 1) set[place].ready = time;
  }

  // When the data of a line arrive; 0 where it isn't there.
  double ready(uint64_t line) const {
    const Line* set = &lines_[set_of(line) * ways_];
    for (size_t place = 0; place < ways_; ++place)
      if (set[place].tag == line + 1) return set[place].ready;
    return 0;
  }

  void clear() { lines_.assign(lines_.size(), Line()); }

  // Calls f with each dirty line, which is clean afterwards.
  template <class F>
  void write_back(F f) {
    for (Line& line : lines_) {
      if (line.dirty) f(line.tag - 1);
      line.dirty = false;
    }
  }

 private:
  struct Line {
    uint64_t tag : 63;  // number of the line plus 1; 0 where there is none
    uint64_t dirty : 1;
    double ready;
    Line(uint64_t t = 0, bool d = false, double r = 0) : tag(t), dirty(d), ready(r) {}
  };

  // Folded so that power-of-two strides spread over the sets.
  size_t set_of(uint64_t line) const { return size_t(line ^ line >> 13 ^ line >> 27) % sets_; }

  size_t ways_, sets_;
  std::vector<Line> lines_;
};

}  // namespace mi300x::timing

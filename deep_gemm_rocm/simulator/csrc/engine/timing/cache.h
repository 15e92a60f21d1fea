// The tags of a set-associative cache with LRU replacement.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mi300x::timing {

class Cache {
 public:
  Cache(double bytes, double line_bytes, double ways)
      : ways_(size_t(ways)),
        sets_(size_t(bytes / line_bytes / ways)),
        tags_(ways_ * sets_),
        used_(ways_ * sets_),
        ready_(ways_ * sets_),
        dirty_(ways_ * sets_) {}

  struct Result {
    bool hit = false;
    bool evicted_dirty = false;
    uint64_t evicted = 0;     // the evicted line, where it was dirty
    double* ready = nullptr;  // when the line's data arrive
  };

  // Looks up a line by its number and makes it the most recent one of its set. A miss brings it in.
  Result access(uint64_t line, bool dirty = false) {
    const size_t set = set_of(line) * ways_;
    size_t place = find(set, line);
    Result result;
    result.hit = place != nowhere;
    if (!result.hit) {
      place = least_recent(set);
      result.evicted_dirty = dirty_[place];
      result.evicted = tags_[place] - 1;
      tags_[place] = line + 1;
      dirty_[place] = false;
      ready_[place] = 0;
    }
    if (++accesses_ == 0) std::fill(used_.begin(), used_.end(), 0);
    used_[place] = accesses_;
    dirty_[place] |= dirty;
    result.ready = &ready_[place];
    return result;
  }

  // When the data of a line arrive; null where it isn't there.
  double* ready(uint64_t line) {
    const size_t place = find(set_of(line) * ways_, line);
    return place == nowhere ? nullptr : &ready_[place];
  }

  void clear() {
    std::fill(tags_.begin(), tags_.end(), 0);
    std::fill(used_.begin(), used_.end(), 0);
    std::fill(dirty_.begin(), dirty_.end(), 0);
  }

  // Calls f with each dirty line and marks it clean.
  template <class F>
  void write_back(F f) {
    for (size_t place = 0; place < tags_.size(); ++place) {
      if (dirty_[place]) f(tags_[place] - 1);
      dirty_[place] = false;
    }
  }

 private:
  static constexpr size_t nowhere = ~size_t(0);

  // Searches without an early end, so that the compiler compares several ways at once.
  size_t find(size_t set, uint64_t line) const {
    const uint64_t *tags = &tags_[set], tag = line + 1;
    uint64_t found = 0;
    for (uint64_t way = 0; way < ways_; ++way) found = tags[way] == tag ? way + 1 : found;
    return found == 0 ? nowhere : set + found - 1;
  }
  size_t least_recent(size_t set) const {
    const uint32_t* used = &used_[set];
    uint32_t least = ~0u, found = 0;
    for (size_t way = 0; way < ways_; ++way) least = std::min(least, used[way]);
    for (uint32_t way = 0; way < ways_; ++way) found = used[way] == least ? way : found;
    return set + found;
  }

  // Folded so that power-of-two strides spread over the sets.
  size_t set_of(uint64_t line) const { return size_t(line ^ line >> 13 ^ line >> 27) % sets_; }

  size_t ways_, sets_;
  uint32_t accesses_ = 0;
  // One element for each way of each set.
  std::vector<uint64_t> tags_;  // number of the line plus 1; 0 where there is none
  std::vector<uint32_t> used_;  // number of the access that used it last
  std::vector<double> ready_;   // when its data arrive
  std::vector<uint8_t> dirty_;
};

}  // namespace mi300x::timing

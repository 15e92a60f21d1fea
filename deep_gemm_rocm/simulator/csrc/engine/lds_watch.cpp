#include "lds_watch.h"

#include <algorithm>

namespace mi300x {

void LdsWatch::start_workgroup(uint32_t lds_bytes) {
  open_barrier();  // marks of the workgroup before don't count
  std::fill_n(defined_.begin(), lds_bytes, 0);
  for (uint32_t byte = 0; byte < lds_bytes; ++byte) writes_[byte] &= ~unfinished_bit;
}

void LdsWatch::open_barrier() {
  if (epoch_ == last_epoch) {
    for (uint32_t& mark : writes_) mark &= unfinished_bit | wave_mask;
    std::fill(reads_.begin(), reads_.end(), 0);
    epoch_ = 0;
  }
  ++epoch_;
}

LdsWatch::Conflict LdsWatch::find_conflict(uint32_t begin, uint32_t bytes, uint32_t wave, bool writes,
                                           bool atomic) const {
  const uint32_t own_bit = 1u << wave;
  uint32_t found = 0;
  for (uint32_t byte = begin; byte < begin + bytes; ++byte) {
    const uint32_t mark = writes_[byte], others = reads_[byte] & 0xFFFF & ~own_bit;
    const bool both_atomic = atomic && (mark & atomic_bit);
    found |= uint32_t(is_foreign(mark, wave) && !both_atomic) | (mark & unfinished_bit);
    found |= uint32_t(writes && is_current(reads_[byte]) && others != 0);
  }
  if (found == 0) return {};
  for (uint32_t byte = begin;; ++byte) {
    const uint32_t mark = writes_[byte], others = reads_[byte] & 0xFFFF & ~own_bit;
    if (mark & unfinished_bit) return {Conflict::Kind::unfinished_load, byte, mark & wave_mask};
    if (is_foreign(mark, wave) && !(atomic && (mark & atomic_bit)))
      return {Conflict::Kind::race, byte, mark & wave_mask};
    if (writes && is_current(reads_[byte]) && others != 0)
      return {Conflict::Kind::race, byte, uint32_t(__builtin_ctz(others))};
  }
}

void LdsWatch::read(uint32_t begin, uint32_t bytes, uint32_t wave) {
  for (uint32_t byte = begin; byte < begin + bytes; ++byte)
    reads_[byte] = (is_current(reads_[byte]) ? reads_[byte] : epoch_ << 16) | 1u << wave;
}

void LdsWatch::write(uint32_t begin, uint32_t bytes, uint32_t wave, bool atomic) {
  const uint32_t mark = epoch_ << 16 | wave | (atomic ? atomic_bit : 0);
  for (uint32_t byte = begin; byte < begin + bytes; ++byte)
    writes_[byte] = mark | (atomic && is_foreign(writes_[byte], wave) ? several_bit : 0);
}

void LdsWatch::define(uint32_t begin, uint32_t bytes) { std::fill_n(defined_.begin() + begin, bytes, 1); }

bool LdsWatch::is_defined(uint32_t begin, uint32_t bytes) const {
  uint8_t all = 1;
  for (uint32_t byte = begin; byte < begin + bytes; ++byte) all &= defined_[byte];
  return all;
}

void LdsWatch::begin_load(uint32_t begin, uint32_t bytes, uint32_t wave) {
  std::fill_n(writes_.begin() + begin, bytes, epoch_ << 16 | wave | unfinished_bit);
}

void LdsWatch::end_load(uint32_t begin, uint32_t bytes, uint32_t wave) { write(begin, bytes, wave, false); }

}  // namespace mi300x

#include "lds_watch.h"

#include <algorithm>
#include <type_traits>

namespace mi300x {
namespace {

// Calls f(count) with the usual counts as compile-time constants, so that the loops vectorise.
template <class F>
void with_constant(uint32_t count, F f) {
  switch (count) {
    case 1: return f(std::integral_constant<uint32_t, 1>());
    case 2: return f(std::integral_constant<uint32_t, 2>());
    case 4: return f(std::integral_constant<uint32_t, 4>());
    case 8: return f(std::integral_constant<uint32_t, 8>());
    case 16: return f(std::integral_constant<uint32_t, 16>());
    default: return f(count);
  }
}

}  // namespace

void LdsWatch::start_workgroup(uint32_t lds_bytes) {
  open_barrier();  // invalidates the previous workgroup's marks
  const uint32_t marks = marks_in(lds_bytes + 3);
  std::fill_n(defined_.begin(), marks, 0);
  for (uint32_t i = 0; i < marks; ++i) writes_[i] &= ~unfinished_bit;
}

void LdsWatch::open_barrier() {
  if (epoch_ == last_epoch) {
    for (uint32_t& mark : writes_) mark &= unfinished_bit | wave_mask;
    std::fill(reads_.begin(), reads_.end(), 0);
    epoch_ = 0;
  }
  ++epoch_;
}

// From here on each byte has its own marks, in later workgroups too: they will access single bytes as well.
void LdsWatch::mark_single_bytes() {
  const auto spread = [](auto& marks) {
    for (size_t byte = lds_capacity; byte-- > 0;) marks[byte] = marks[byte / 4];
  };
  spread(writes_);
  spread(reads_);
  spread(writers_);
  spread(defined_);
  spread(write_sites_);
  for (uint32_t wave = 0; wave < waves_; ++wave) {
    uint32_t* sites = read_sites_of(wave);
    spread(sites);
  }
  bytes_log2_ = 0;
}

bool LdsWatch::may_conflict(const Access& access, const Places& begins, size_t first) {
  uint32_t places = access.bytes;
  for (size_t place = first; place < begins.size(); ++place) places |= begins[place];
  if (places % 4 != 0 && bytes_log2_ != 0) mark_single_bytes();
  // No branches, and invariants in local variables, so that the compiler vectorises the loops.
  const uint32_t epoch = epoch_, wave = access.wave, others = 0xFFFF & ~(1u << wave);
  const uint32_t harmless = access.atomic ? atomic_bit : access.writes ? 0 : compares_bit;
  const bool writes = access.writes && !access.compares;
  uint32_t found = 0;
  with_constant(marks_in(access.bytes), [&](auto count) {
    for (size_t place = first; place < begins.size(); ++place) {
      const uint32_t* written = writes_.data() + mark_of(begins[place]);
      const uint32_t* read = reads_.data() + mark_of(begins[place]);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t mark = written[i], foreign = (mark ^ wave) & (wave_mask | several_bit);
        const uint32_t counts = mark >> 16 == epoch && (mark & harmless) == 0 ? ~0u : 0;
        found |= (foreign & counts) | (mark & unfinished_bit);
      }
      if (!writes) continue;
      for (uint32_t i = 0; i < count; ++i) found |= read[i] & (read[i] >> 16 == epoch ? others : 0);
    }
  });
  return found != 0;
}

LdsWatch::Conflict LdsWatch::first_conflict(const Access& access, uint32_t begin, uint32_t alike) const {
  const uint32_t self = 1u << access.wave, bytes = 1u << bytes_log2_, all = (1u << bytes) - 1;
  for (uint32_t i = 0; i < access.bytes; i += bytes) {
    const uint32_t place = mark_of(begin + i), mark = writes_[place], differ = ~(alike >> i) & all;
    const uint32_t byte = begin + i + (differ ? uint32_t(__builtin_ctz(differ)) : 0);
    if (mark & unfinished_bit)
      return {Conflict::Kind::unfinished_load, byte, mark & wave_mask, write_sites_[place], true};
    const bool repeats = differ == 0 && is_current(mark) && !(mark & atomic_bit);
    const bool reads_own = !access.writes && !(mark & atomic_bit) && writers_of(place) & self;
    const bool both_atomic = access.atomic && mark & atomic_bit;
    const bool before_swap = !access.writes && mark & compares_bit;
    if (is_foreign(mark, access.wave) && !repeats && !reads_own && !both_atomic && !before_swap)
      return {Conflict::Kind::race, byte, mark & wave_mask, write_sites_[place], true};
    if (!access.writes || access.compares || !is_current(reads_[place])) continue;
    const uint32_t unharmed = repeats && !(mark & read_before_bit) ? writers_of(place) : 0;
    const uint32_t readers = reads_[place] & 0xFFFF & ~self & ~unharmed;
    if (readers == 0) continue;
    const auto reader = uint32_t(__builtin_ctz(readers));
    return {Conflict::Kind::race, byte, reader, read_sites_of(reader)[place], false};
  }
  return {};
}

void LdsWatch::record(const Access& access, const Places& begins, size_t first) {
  const uint32_t wave = access.wave, epoch = epoch_;
  const uint32_t written = epoch << 16 | wave | (access.atomic ? atomic_bit : 0) | (access.compares ? compares_bit : 0);
  with_constant(marks_in(access.bytes), [&](auto count) {
    for (size_t place = first; place < begins.size(); ++place) {
      const uint32_t mark = mark_of(begins[place]);
      uint32_t *write = writes_.data() + mark, *read = reads_.data() + mark;
      uint32_t* const sites = (access.writes ? write_sites_.get() : read_sites_of(wave)) + mark;
      for (uint32_t i = 0; i < count; ++i) sites[i] = access.site;
      if (!access.writes) {
        for (uint32_t i = 0; i < count; ++i) read[i] = (read[i] >> 16 == epoch ? read[i] : epoch << 16) | 1u << wave;
        continue;
      }
      uint32_t joined = 0;
      for (uint32_t i = 0; i < count; ++i) joined |= is_foreign(write[i], wave);
      for (uint32_t i = 0; i < count && joined; ++i) join(mark_of(begins[place]) + i, wave);
      for (uint32_t i = 0; i < count; ++i)
        write[i] = written | read_before(write[i], read[i], wave) | (joined ? write[i] & several_bit : 0);
    }
  });
}

// Adds the wave to those that have written under the mark.
void LdsWatch::join(uint32_t mark, uint32_t wave) {
  uint32_t& write = writes_[mark];
  const bool joins = is_foreign(write, wave);
  if (joins) writers_[mark] = uint16_t(writers_of(mark) | 1u << wave);
  write = joins ? write | several_bit : write & ~several_bit;
}

void LdsWatch::define(uint32_t begin, uint32_t bytes, bool defined) {
  std::fill_n(defined_.begin() + mark_of(begin), marks_in(bytes), defined);
}

void LdsWatch::begin_load(const Access& access, const Places& begins) {
  for (uint32_t begin : begins) {
    const uint32_t mark = mark_of(begin), marks = marks_in(access.bytes);
    std::fill_n(writes_.begin() + mark, marks, epoch_ << 16 | access.wave | unfinished_bit);
    std::fill_n(write_sites_.get() + mark, marks, access.site);
  }
}

}  // namespace mi300x

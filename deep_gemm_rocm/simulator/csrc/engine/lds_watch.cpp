#include "lds_watch.h"

#include <algorithm>
#include <type_traits>

namespace mi300x {
namespace {

// Calls f with the number, as a constant for the usual ones, which the compiler makes vector code for.
template <class F>
void with_constant(uint32_t bytes, F f) {
  switch (bytes) {
    case 4: return f(std::integral_constant<uint32_t, 4>());
    case 8: return f(std::integral_constant<uint32_t, 8>());
    case 16: return f(std::integral_constant<uint32_t, 16>());
    default: return f(bytes);
  }
}

}  // namespace

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

bool LdsWatch::may_conflict(const Access& access) const {
  // Without branches and with all that doesn't change in local variables, for the compiler to vectorise.
  const uint32_t *written = writes_.data() + access.begin, *read = reads_.data() + access.begin;
  const uint32_t epoch = epoch_, wave = access.wave, others = 0xFFFF & ~(1u << wave);
  const uint32_t harmless = access.atomic ? atomic_bit : access.writes ? 0 : compares_bit;
  const bool writes = access.writes && !access.compares;
  uint32_t found = 0;
  with_constant(access.bytes, [&](auto count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t mark = written[i], foreign = (mark ^ wave) & (wave_mask | several_bit);
      const uint32_t counts = mark >> 16 == epoch && (mark & harmless) == 0 ? ~0u : 0;
      found |= (foreign & counts) | (mark & unfinished_bit);
    }
    if (!writes) return;
    for (uint32_t i = 0; i < count; ++i) found |= read[i] & (read[i] >> 16 == epoch ? others : 0);
  });
  return found != 0;
}

LdsWatch::Conflict LdsWatch::first_conflict(const Access& access, uint32_t alike) const {
  const uint32_t self = 1u << access.wave;
  for (uint32_t i = 0; i < access.bytes; ++i) {
    const uint32_t byte = access.begin + i, mark = writes_[byte];
    if (mark & unfinished_bit) return {Conflict::Kind::unfinished_load, byte, mark & wave_mask};
    const bool repeats = alike >> i & 1 && is_current(mark) && !(mark & atomic_bit);
    const bool reads_own = !access.writes && !(mark & atomic_bit) && writers_of(byte) & self;
    const bool both_atomic = access.atomic && mark & atomic_bit;
    const bool before_swap = !access.writes && mark & compares_bit;
    if (is_foreign(mark, access.wave) && !repeats && !reads_own && !both_atomic && !before_swap)
      return {Conflict::Kind::race, byte, mark & wave_mask};
    if (!access.writes || access.compares || !is_current(reads_[byte])) continue;
    const uint32_t readers = reads_[byte] & 0xFFFF & ~self & ~(repeats ? writers_of(byte) : 0);
    if (readers != 0) return {Conflict::Kind::race, byte, uint32_t(__builtin_ctz(readers))};
  }
  return {};
}

void LdsWatch::read(uint32_t begin, uint32_t bytes, uint32_t wave) {
  uint32_t* read = reads_.data() + begin;
  const uint32_t epoch = epoch_, own_bit = 1u << wave;
  with_constant(bytes, [&](auto count) {
    for (uint32_t i = 0; i < count; ++i) read[i] = (read[i] >> 16 == epoch ? read[i] : epoch << 16) | own_bit;
  });
}

void LdsWatch::write(uint32_t begin, uint32_t bytes, uint32_t wave, bool atomic, bool compares) {
  const uint32_t mark = epoch_ << 16 | wave | (atomic ? atomic_bit : 0) | (compares ? compares_bit : 0);
  for (uint32_t byte = begin; byte < begin + bytes; ++byte) {
    const bool joins = is_foreign(writes_[byte], wave);
    if (joins) writers_[byte] = uint16_t(writers_of(byte) | 1u << wave);
    writes_[byte] = mark | (joins ? several_bit : 0);
  }
}

void LdsWatch::define(uint32_t begin, uint32_t bytes, bool defined) {
  std::fill_n(defined_.begin() + begin, bytes, defined);
}

void LdsWatch::begin_load(uint32_t begin, uint32_t bytes, uint32_t wave) {
  std::fill_n(writes_.begin() + begin, bytes, epoch_ << 16 | wave | unfinished_bit);
}

void LdsWatch::end_load(uint32_t begin, uint32_t bytes, uint32_t wave) { write(begin, bytes, wave, false, false); }

}  // namespace mi300x

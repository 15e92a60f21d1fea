// LDS instructions (CDNA3 ISA, "Data share operations").

#include <algorithm>
#include <cstdio>

#include "atomics.h"
#include "lane_crossing.h"
#include "lane_transfer.h"
#include "lanes.h"

namespace mi300x {
namespace {

void fail_access(Wave& wave, int lane, uint32_t position, uint32_t bytes) {
  char text[160];
  snprintf(text, sizeof text, "lane %d accesses %u bytes of LDS at 0x%x, but the workgroup has 0x%x bytes", lane, bytes,
           position, wave.group->lds_bytes);
  wave.fail(Outcome::Status::memory_fault, text);
}

// The address of a lane's access. Fails the wave and returns null outside the LDS of the workgroup. Sums wrap around:
// LLVM emits negative addresses with an offset (GCNSubtarget::hasUsableDSOffset).
inline uint8_t* resolve(Wave& wave, int lane, uint32_t address, uint32_t offset, uint32_t bytes) {
  const uint32_t position = address + offset;
  if (uint64_t(position) + bytes <= wave.group->lds_bytes) return wave.group->lds.data() + position;
  fail_access(wave, lane, position, bytes);
  return nullptr;
}

template <class Value>
constexpr int dwords_of = (sizeof(Value) + 3) / 4;

template <class Value>
Value read_data(Wave& wave, const Operand& operand, int lane) {
  const uint32_t* rows = wave.row(operand.index);
  uint32_t dwords[dwords_of<Value>];
  for (int i = 0; i < dwords_of<Value>; ++i) dwords[i] = rows[i * lanes + lane];
  Value value;
  memcpy(&value, dwords, sizeof value);
  return value;
}
template <class Value>
void write_data(Wave& wave, const Operand& operand, int lane, Value value, int first_dword = 0) {
  uint32_t* rows = wave.row(operand.index + first_dword);
  uint32_t dwords[dwords_of<Value>] = {};
  memcpy(dwords, &value, sizeof value);
  for (int i = 0; i < dwords_of<Value>; ++i) rows[i * lanes + lane] = dwords[i];
}

// Fails the wave and returns false unless the accesses of all active lanes at an offset are inside the LDS.
bool check(Wave& wave, const uint32_t* addresses, uint32_t offset, uint32_t bytes) {
  if (wave.exec() == ~0ull) {
    uint32_t highest = 0;
    for (int l = 0; l < lanes; ++l) highest = std::max(highest, addresses[l]);
    if (uint64_t(highest) + offset + bytes <= wave.group->lds_bytes) return true;
  }
  return for_active_lanes(wave,
                          [&](int lane) { return resolve(wave, lane, addresses[lane], offset, bytes) != nullptr; });
}

// ---- Plain loads and stores ----

template <int dwords>
void load_dwords_at(Wave& wave, const uint32_t* addresses, uint32_t offset, uint32_t* rows) {
  if (!check(wave, addresses, offset, 4 * dwords)) return;
  const uint8_t* lds = wave.group->lds.data();
  gather<dwords>(wave.exec(), [&](int lane) { return lds + uint32_t(addresses[lane] + offset); }, rows);
}
template <int dwords>
void store_dwords_at(Wave& wave, const uint32_t* addresses, uint32_t offset, const uint32_t* rows) {
  if (!check(wave, addresses, offset, 4 * dwords)) return;
  uint8_t* lds = wave.group->lds.data();
  scatter<dwords>(wave.exec(), rows, [&](int lane) { return lds + uint32_t(addresses[lane] + offset); });
}

template <int dwords>
void load_dwords(Wave& wave, const Instruction& inst) {
  load_dwords_at<dwords>(wave, wave.row(inst.src[0].index), uint32_t(inst.imm), wave.row(inst.dst.index));
}
template <int dwords>
void store_dwords(Wave& wave, const Instruction& inst) {
  store_dwords_at<dwords>(wave, wave.row(inst.src[0].index), uint32_t(inst.imm), wave.row(inst.src[1].index));
}

// Two accesses at offsets that count elements (or 64 elements).
template <int dwords, int stride>
void load_two(Wave& wave, const Instruction& inst) {
  alignas(64) uint32_t addresses[lanes];
  memcpy(addresses, wave.row(inst.src[0].index), sizeof addresses);  // the first destination may overlap the address
  constexpr uint32_t unit = stride * 4 * dwords;
  load_dwords_at<dwords>(wave, addresses, inst.mem.offset0 * unit, wave.row(inst.dst.index));
  load_dwords_at<dwords>(wave, addresses, inst.mem.offset1 * unit, wave.row(inst.dst.index + dwords));
}
template <int dwords, int stride>
void store_two(Wave& wave, const Instruction& inst) {
  const uint32_t* addresses = wave.row(inst.src[0].index);
  constexpr uint32_t unit = stride * 4 * dwords;
  store_dwords_at<dwords>(wave, addresses, inst.mem.offset0 * unit, wave.row(inst.src[1].index));
  store_dwords_at<dwords>(wave, addresses, inst.mem.offset1 * unit, wave.row(inst.src[2].index));
}

// Loads a byte or short into each lane, as convert(value). The destination may overlap the addresses.
template <class Value, class Convert>
void load_narrow_as(Wave& wave, const Instruction& inst, Convert convert) {
  const uint32_t* addresses = wave.row(inst.src[0].index);
  uint32_t* row = wave.row(inst.dst.index);
  for_active_lanes(wave, [&](int lane) {
    const uint8_t* memory = resolve(wave, lane, addresses[lane], uint32_t(inst.imm), sizeof(Value));
    if (memory == nullptr) return false;
    Value value;
    memcpy(&value, memory, sizeof value);
    row[lane] = convert(value);
    return true;
  });
}

template <class Value>
void load_narrow(Wave& wave, const Instruction& inst) {
  load_narrow_as<Value>(wave, inst, [](Value value) { return uint32_t(int32_t(value)); });  // extended by its sign
}

// Loads of one half of the register; the other half becomes zero, as in vector memory.
template <class Value, bool high>
void load_half(Wave& wave, const Instruction& inst) {
  load_narrow_as<Value>(wave, inst, [](Value value) {
    const uint32_t half = uint16_t(int16_t(value));
    return high ? half << 16 : half;
  });
}

template <class Value, int shift>
void store_narrow(Wave& wave, const Instruction& inst) {
  const uint32_t *addresses = wave.row(inst.src[0].index), *row = wave.row(inst.src[1].index);
  for_active_lanes(wave, [&](int lane) {
    uint8_t* memory = resolve(wave, lane, addresses[lane], uint32_t(inst.imm), sizeof(Value));
    if (memory == nullptr) return false;
    const Value value = Value(row[lane] >> shift);
    memcpy(memory, &value, sizeof value);
    return true;
  });
}

#define LDS(name, ...) const Semantics name##_semantics(Op::name, bind_handler<__VA_ARGS__, ConstantType::b32>);
LDS(ds_read_b32, load_dwords<1>)
LDS(ds_read_b64, load_dwords<2>)
LDS(ds_read_b96, load_dwords<3>)
LDS(ds_read_b128, load_dwords<4>)
LDS(ds_read_i8, load_narrow<int8_t>)
LDS(ds_read_u8, load_narrow<uint8_t>)
LDS(ds_read_i16, load_narrow<int16_t>)
LDS(ds_read_u16, load_narrow<uint16_t>)
LDS(ds_read_u8_d16, load_half<uint8_t, false>)
LDS(ds_read_u8_d16_hi, load_half<uint8_t, true>)
LDS(ds_read_i8_d16, load_half<int8_t, false>)
LDS(ds_read_i8_d16_hi, load_half<int8_t, true>)
LDS(ds_read_u16_d16, load_half<uint16_t, false>)
LDS(ds_read_u16_d16_hi, load_half<uint16_t, true>)
LDS(ds_read2_b32, load_two<1, 1>)
LDS(ds_read2st64_b32, load_two<1, 64>)
LDS(ds_read2_b64, load_two<2, 1>)
LDS(ds_read2st64_b64, load_two<2, 64>)
LDS(ds_write_b8, store_narrow<uint8_t, 0>)
LDS(ds_write_b16, store_narrow<uint16_t, 0>)
LDS(ds_write_b8_d16_hi, store_narrow<uint8_t, 16>)
LDS(ds_write_b16_d16_hi, store_narrow<uint16_t, 16>)
LDS(ds_write_b32, store_dwords<1>)
LDS(ds_write_b64, store_dwords<2>)
LDS(ds_write_b96, store_dwords<3>)
LDS(ds_write_b128, store_dwords<4>)
LDS(ds_write2_b32, store_two<1, 1>)
LDS(ds_write2st64_b32, store_two<1, 64>)
LDS(ds_write2_b64, store_two<2, 1>)
LDS(ds_write2st64_b64, store_two<2, 64>)

// Addresses made of M0 and the lane's number.
uint32_t lane_address(const Wave& wave, int lane) { return (wave.m0() & 0xFFFF) + 4 * uint32_t(lane); }
void load_by_lane(Wave& wave, const Instruction& inst) {
  for_active_lanes(wave, [&](int lane) {
    const uint8_t* memory = resolve(wave, lane, lane_address(wave, lane), uint32_t(inst.imm), 4);
    if (memory != nullptr) memcpy(&wave.row(inst.dst.index)[lane], memory, 4);
    return memory != nullptr;
  });
}
void store_by_lane(Wave& wave, const Instruction& inst) {
  for_active_lanes(wave, [&](int lane) {
    uint8_t* memory = resolve(wave, lane, lane_address(wave, lane), uint32_t(inst.imm), 4);
    if (memory != nullptr) memcpy(memory, &wave.row(inst.src[1].index)[lane], 4);
    return memory != nullptr;
  });
}
LDS(ds_read_addtid_b32, load_by_lane)
LDS(ds_write_addtid_b32, store_by_lane)

// ---- Read-modify-write. One host thread runs a workgroup, so lanes take turns by themselves. ----

template <class Value, class Update>
void update(Wave& wave, const Instruction& inst, Update update_value) {
  const bool returns = inst.dst.dwords != 0;
  const MemoryEnvironment environment(wave, sizeof(Value) == 4);  // sums of f64 keep subnormals in every mode
  alignas(64) uint32_t addresses[lanes];
  memcpy(addresses, wave.row(inst.src[0].index), sizeof addresses);
  for_active_lanes(wave, [&](int lane) {
    uint8_t* memory = resolve(wave, lane, addresses[lane], uint32_t(inst.imm), sizeof(Value));
    if (memory == nullptr) return false;
    Value old;
    memcpy(&old, memory, sizeof old);
    const Value value = update_value(old, lane);
    memcpy(memory, &value, sizeof value);
    if (returns) write_data(wave, inst.dst, lane, old);
    return true;
  });
}

template <class Value, Value (*f)(Value, Value)>
void update_with(Wave& wave, const Instruction& inst) {
  update<Value>(wave, inst, [&](Value old, int lane) { return f(old, read_data<Value>(wave, inst.src[1], lane)); });
}
template <class Value, Value (*f)(Value old, Value first, Value second)>
void update_with_two(Wave& wave, const Instruction& inst) {
  update<Value>(wave, inst, [&](Value old, int lane) {
    return f(old, read_data<Value>(wave, inst.src[1], lane), read_data<Value>(wave, inst.src[2], lane));
  });
}
template <class T> T compare_store(T old, T compare, T value) { return old == compare ? value : old; }
template <class T> T masked_or(T old, T mask, T value) { return (old & ~mask) | value; }
uint32_t wrap(uint32_t old, uint32_t limit, uint32_t value) { return old >= limit ? old - limit : old + value; }
// The bit 31 of each half of the data says whether that half is exchanged.
uint64_t conditional_exchange(uint64_t old, uint64_t data) {
  const uint32_t low = uint32_t(data), high = uint32_t(data >> 32);
  const uint64_t new_low = low >> 31 ? low & 0x7FFFFFFF : uint32_t(old);
  const uint64_t new_high = high >> 31 ? high & 0x7FFFFFFF : uint32_t(old >> 32);
  return new_low | new_high << 32;
}

#define LDS_UPDATE(name, returning, ...) LDS(name, __VA_ARGS__) LDS(returning, __VA_ARGS__)
#define LDS_INTEGER(bits, U, I)                                                                             \
  LDS_UPDATE(ds_add_u##bits, ds_add_rtn_u##bits, update_with<U, atomic::add<U>>)                            \
  LDS_UPDATE(ds_sub_u##bits, ds_sub_rtn_u##bits, update_with<U, atomic::subtract<U>>)                       \
  LDS_UPDATE(ds_rsub_u##bits, ds_rsub_rtn_u##bits, update_with<U, atomic::subtract_reversed<U>>)            \
  LDS_UPDATE(ds_inc_u##bits, ds_inc_rtn_u##bits, update_with<U, atomic::increment<U>>)                      \
  LDS_UPDATE(ds_dec_u##bits, ds_dec_rtn_u##bits, update_with<U, atomic::decrement<U>>)                      \
  LDS_UPDATE(ds_min_i##bits, ds_min_rtn_i##bits, update_with<I, atomic::minimum<I>>)                        \
  LDS_UPDATE(ds_max_i##bits, ds_max_rtn_i##bits, update_with<I, atomic::maximum<I>>)                        \
  LDS_UPDATE(ds_min_u##bits, ds_min_rtn_u##bits, update_with<U, atomic::minimum<U>>)                        \
  LDS_UPDATE(ds_max_u##bits, ds_max_rtn_u##bits, update_with<U, atomic::maximum<U>>)                        \
  LDS_UPDATE(ds_and_b##bits, ds_and_rtn_b##bits, update_with<U, atomic::bit_and<U>>)                        \
  LDS_UPDATE(ds_or_b##bits, ds_or_rtn_b##bits, update_with<U, atomic::bit_or<U>>)                           \
  LDS_UPDATE(ds_xor_b##bits, ds_xor_rtn_b##bits, update_with<U, atomic::bit_xor<U>>)                        \
  LDS_UPDATE(ds_mskor_b##bits, ds_mskor_rtn_b##bits, update_with_two<U, masked_or<U>>)                      \
  LDS_UPDATE(ds_cmpst_b##bits, ds_cmpst_rtn_b##bits, update_with_two<U, compare_store<U>>)                  \
  LDS(ds_wrxchg_rtn_b##bits, update_with<U, atomic::exchange<U>>)
LDS_INTEGER(32, uint32_t, int32_t)
LDS_INTEGER(64, uint64_t, int64_t)
LDS_UPDATE(ds_cmpst_f32, ds_cmpst_rtn_f32, update_with_two<float, compare_store<float>>)
LDS_UPDATE(ds_cmpst_f64, ds_cmpst_rtn_f64, update_with_two<double, compare_store<double>>)
LDS_UPDATE(ds_min_f32, ds_min_rtn_f32, update_with<float, lesser<float>>)
LDS_UPDATE(ds_max_f32, ds_max_rtn_f32, update_with<float, greater<float>>)
LDS_UPDATE(ds_min_f64, ds_min_rtn_f64, update_with<double, lesser<double>>)
LDS_UPDATE(ds_max_f64, ds_max_rtn_f64, update_with<double, greater<double>>)
LDS_UPDATE(ds_add_f32, ds_add_rtn_f32, update_with<float, atomic::add<float>>)
LDS_UPDATE(ds_add_f64, ds_add_rtn_f64, update_with<double, atomic::add<double>>)
LDS_UPDATE(ds_pk_add_f16, ds_pk_add_rtn_f16, update_with<uint32_t, atomic::add_f16_pair>)
LDS_UPDATE(ds_pk_add_bf16, ds_pk_add_rtn_bf16, update_with<uint32_t, atomic::add_bf16_pair>)
LDS(ds_wrap_rtn_b32, update_with_two<uint32_t, wrap>)
LDS(ds_condxchg32_rtn_b64, update_with<uint64_t, conditional_exchange>)

template <class Value, int stride>
void exchange_two(Wave& wave, const Instruction& inst) {
  alignas(64) uint32_t addresses[lanes];
  memcpy(addresses, wave.row(inst.src[0].index), sizeof addresses);
  const uint32_t offsets[2] = {inst.mem.offset0 * stride * uint32_t(sizeof(Value)),
                               inst.mem.offset1 * stride * uint32_t(sizeof(Value))};
  for_active_lanes(wave, [&](int lane) {
    const Value values[2] = {read_data<Value>(wave, inst.src[1], lane), read_data<Value>(wave, inst.src[2], lane)};
    for (int i = 0; i < 2; ++i) {
      uint8_t* memory = resolve(wave, lane, addresses[lane], offsets[i], sizeof(Value));
      if (memory == nullptr) return false;
      Value old;
      memcpy(&old, memory, sizeof old);
      memcpy(memory, &values[i], sizeof old);
      write_data(wave, inst.dst, lane, old, i * int(sizeof(Value) / 4));
    }
    return true;
  });
}
LDS(ds_wrxchg2_rtn_b32, exchange_two<uint32_t, 1>)
LDS(ds_wrxchg2st64_rtn_b32, exchange_two<uint32_t, 64>)
LDS(ds_wrxchg2_rtn_b64, exchange_two<uint64_t, 1>)
LDS(ds_wrxchg2st64_rtn_b64, exchange_two<uint64_t, 64>)

// One counter for the wave, moved by the number of active lanes; every lane gets the value before.
template <int direction>
void count_lanes(Wave& wave, const Instruction& inst) {
  if (wave.exec() == 0) return;
  uint8_t* memory = resolve(wave, 0, wave.m0() & 0xFFFF, uint32_t(inst.imm), 4);
  if (memory == nullptr) return;
  uint32_t old;
  memcpy(&old, memory, 4);
  const uint32_t value = old + uint32_t(direction * __builtin_popcountll(wave.exec()));
  memcpy(memory, &value, 4);
  for_active_lanes(wave, [&](int lane) {
    wave.row(inst.dst.index)[lane] = old;
    return true;
  });
}
LDS(ds_append, count_lanes<1>)
LDS(ds_consume, count_lanes<-1>)

// ---- Moves across lanes ----

void exchange_lanes(Wave& wave, const Instruction& inst) {
  alignas(64) uint32_t results[lanes];
  int sources[lanes];
  crossing_sources(wave, inst, sources);
  const uint32_t* data = wave.row(crossing_data(inst).index);
  for (int l = 0; l < lanes; ++l) results[l] = data[sources[l] & (lanes - 1)] & (sources[l] == no_lane ? 0 : ~0u);
  store_row(wave.row(inst.dst.index), results, wave.exec());
}
void do_nothing(Wave&, const Instruction&) {}
LDS(ds_permute_b32, exchange_lanes)
LDS(ds_bpermute_b32, exchange_lanes)
LDS(ds_swizzle_b32, exchange_lanes)
LDS(ds_nop, do_nothing)

}  // namespace
}  // namespace mi300x

// Flat, global, scratch and buffer instructions (CDNA3 ISA, "Vector memory operations" and "Flat memory instructions").

#include <cstdio>

#include "addresses.h"
#include "atomics.h"
#include "lane_transfer.h"
#include "lanes.h"

namespace mi300x {
namespace {

// The address of each active lane. It is null for a buffer access out of range, which reads zeros and writes nothing.
struct Access {
  uint8_t* memory[lanes];
};

constexpr char outside_lds[] = "outside the LDS that the kernel was given";

bool fail_access(Wave& wave, const char* where, int lane, uint64_t address, uint32_t bytes) {
  char text[192];
  snprintf(text, sizeof text, "lane %d accesses %u bytes at 0x%llx, %s", lane, bytes,
           static_cast<unsigned long long>(address), where);
  wave.fail(Outcome::Status::memory_fault, text, where == outside_lds ? 0 : address);
  return false;
}

bool fail_global(Wave& wave, int lane, uint64_t address, uint32_t bytes) {
  return fail_access(wave, where_outside(address), lane, address, bytes);
}

bool check_global(Wave& wave, const uint64_t* addresses, uint32_t bytes) {
  uint64_t lowest = ~0ull, highest = 0;
  for_active_lanes(wave, [&](int lane) {
    lowest = std::min(lowest, addresses[lane]);
    highest = std::max(highest, addresses[lane]);
    return true;
  });
  if (wave.exec() == 0) return true;
  if (highest <= ~0ull - bytes && wave.memory->contains(lowest, highest - lowest + bytes)) return true;
  return for_active_lanes(wave, [&](int lane) {
    return wave.memory->contains(addresses[lane], bytes) || fail_global(wave, lane, addresses[lane], bytes);
  });
}

// ---- Addresses ----

bool resolve_global(Wave& wave, const Instruction& inst, uint32_t bytes, Access& access) {
  auto* addresses = reinterpret_cast<uint64_t*>(access.memory);
  global_addresses(wave, inst, addresses);
  return check_global(wave, addresses, bytes);
}

bool scratch_position(Wave& wave, int lane, uint64_t offset, uint32_t bytes, uint8_t*& memory) {
  if (offset > wave.scratch_bytes || bytes > wave.scratch_bytes - offset)
    return fail_access(wave, "outside the scratch that the kernel was given", lane, offset, bytes);
  memory = wave.scratch + uint64_t(lane) * wave.scratch_bytes + offset;
  return true;
}

bool resolve_scratch(Wave& wave, const Instruction& inst, uint32_t bytes, Access& access) {
  return for_active_lanes(wave, [&](int lane) {
    return scratch_position(wave, lane, scratch_offset(wave, inst, lane), bytes, access.memory[lane]);
  });
}

bool resolve_flat(Wave& wave, const Instruction& inst, uint32_t bytes, Access& access) {
  uint64_t addresses[lanes];
  global_addresses(wave, inst, addresses);
  return for_active_lanes(wave, [&](int lane) {
    const uint64_t address = addresses[lane];
    if (in_aperture(address, shared_aperture)) {
      const uint64_t offset = address - shared_aperture;
      if (offset + bytes > wave.group->lds_bytes) return fail_access(wave, outside_lds, lane, offset, bytes);
      access.memory[lane] = wave.group->lds.data() + offset;
      return true;
    }
    if (in_aperture(address, private_aperture))
      return scratch_position(wave, lane, address - private_aperture, bytes, access.memory[lane]);
    access.memory[lane] = reinterpret_cast<uint8_t*>(address);
    return wave.memory->contains(address, bytes) || fail_global(wave, lane, address, bytes);
  });
}

bool check_buffer(Wave& wave, int lane, uint64_t address, uint32_t bytes) {
  return wave.memory->contains(address, bytes) || fail_global(wave, lane, address, bytes);
}

// Resolves accesses of bytes, shorts and atomics, which are in range as a whole or not at all.
bool resolve_buffer(Wave& wave, const Instruction& inst, uint32_t bytes, Access& access) {
  const BufferOperands operands(wave, inst);
  return for_active_lanes(wave, [&](int lane) {
    const BufferPosition position = operands.position(lane);
    const bool valid = position.in_bounds >= bytes;
    access.memory[lane] = valid ? reinterpret_cast<uint8_t*>(position.address) : nullptr;
    return !valid || check_buffer(wave, lane, position.address, bytes);
  });
}

bool resolve(Wave& wave, const Instruction& inst, uint32_t bytes, Access& access) {
  switch (inst.family) {
    case Family::GLOBAL: return resolve_global(wave, inst, bytes, access);
    case Family::SCRATCH: return resolve_scratch(wave, inst, bytes, access);
    case Family::FLAT: return resolve_flat(wave, inst, bytes, access);
    default: return resolve_buffer(wave, inst, bytes, access);
  }
}

// Buffer instructions hold their data where the others hold their destination.
const Operand& store_data(const Instruction& inst) { return inst.family == Family::MUBUF ? inst.dst : inst.src[1]; }

// ---- Loads and stores of whole dwords ----

template <int dwords>
void load_dwords(Wave& wave, const Instruction& inst) {
  Access access;
  if (!resolve(wave, inst, 4 * dwords, access)) return;
  gather<dwords>(wave.exec(), [&](int lane) { return access.memory[lane]; }, wave.row(inst.dst.index));
}
template <int dwords>
void store_dwords(Wave& wave, const Instruction& inst) {
  Access access;
  if (!resolve(wave, inst, 4 * dwords, access)) return;
  scatter<dwords>(wave.exec(), wave.row(store_data(inst).index), [&](int lane) { return access.memory[lane]; });
}

// Buffer accesses of several dwords check each dword against the bounds by itself.
uint32_t dwords_in_bounds(const BufferPosition& position, uint32_t dwords) {
  return uint32_t(std::min<uint64_t>(position.in_bounds / 4, dwords));
}

constexpr uint32_t no_offsets[lanes] = {};

// The accesses of one instruction to a buffer, with the checks that all lanes share made once.
class BufferAccess {
 public:
  BufferAccess(Wave& wave, const Instruction& inst)
      : wave_(wave),
        operands_(wave, inst),
        base_(operands_.resource.base + operands_.scalar_offset + operands_.imm),
        offsets_(operands_.offset ? operands_.offset : no_offsets),
        raw_(!operands_.resource.adds_lane && operands_.index == nullptr) {}

  // Sets the address and the number of dwords in bounds; false where the memory isn't the kernel's own.
  bool resolve(int lane, uint32_t dwords, uint8_t*& address, uint32_t& valid) const {
    const BufferPosition position = operands_.position(lane);
    valid = dwords_in_bounds(position, dwords);
    address = reinterpret_cast<uint8_t*>(position.address);
    return valid == 0 || check_buffer(wave_, lane, position.address, 4 * valid);
  }

  // A common answer for all 64 lanes of a raw buffer. `inside` means inside the buffer and the kernel's memory.
  enum class Range { mixed, inside, outside };
  Range common_range(uint32_t bytes) const {
    if (!raw_ || wave_.exec() != ~0ull) return Range::mixed;
    uint32_t lowest = ~0u, highest = 0;
    for (int l = 0; l < lanes; ++l) lowest = std::min(lowest, offsets_[l]);
    for (int l = 0; l < lanes; ++l) highest = std::max(highest, offsets_[l]);
    const uint64_t records = operands_.resource.records, constant = operands_.imm + operands_.scalar_offset;
    if (highest > ~0u - operands_.imm) return Range::mixed;  // the sum wraps around
    if (lowest + constant >= records) return Range::outside;
    if (highest + constant + bytes > records) return Range::mixed;
    return wave_.memory->contains(base_ + lowest, highest - lowest + bytes) ? Range::inside : Range::mixed;
  }

  // Valid where common_range() is `inside`.
  uint8_t* unchecked(int lane) const { return reinterpret_cast<uint8_t*>(base_) + offsets_[lane]; }

 private:
  Wave& wave_;
  const BufferOperands operands_;
  const uint64_t base_;
  const uint32_t* const offsets_;
  const bool raw_;
};

template <int dwords>
void load_buffer_dwords(Wave& wave, const Instruction& inst) {
  const BufferAccess access(wave, inst);
  uint32_t* rows = wave.row(inst.dst.index);
  switch (access.common_range(4 * dwords)) {
    case BufferAccess::Range::outside: memset(rows, 0, dwords * lanes * sizeof *rows); return;
    case BufferAccess::Range::inside:
      return gather<dwords>(~0ull, [&](int lane) { return access.unchecked(lane); }, rows);
    case BufferAccess::Range::mixed: break;
  }
  // A failed access loads nothing.
  alignas(64) uint32_t results[dwords][lanes];
  const bool valid = for_active_lanes(wave, [&](int lane) {
    uint8_t* address;
    uint32_t valid, value[dwords] = {};
    if (!access.resolve(lane, dwords, address, valid)) return false;
    if (valid > 0) memcpy(value, address, 4 * valid);
    for (int i = 0; i < dwords; ++i) results[i][lane] = value[i];
    return true;
  });
  for (int i = 0; valid && i < dwords; ++i) store_row(rows + i * lanes, results[i], wave.exec());
}
template <int dwords>
void store_buffer_dwords(Wave& wave, const Instruction& inst) {
  const BufferAccess access(wave, inst);
  const uint32_t* rows = wave.row(inst.dst.index);
  switch (access.common_range(4 * dwords)) {
    case BufferAccess::Range::outside: return;
    case BufferAccess::Range::inside:
      return scatter<dwords>(~0ull, rows, [&](int lane) { return access.unchecked(lane); });
    case BufferAccess::Range::mixed: break;
  }
  for_active_lanes(wave, [&](int lane) {
    uint8_t* address;
    uint32_t valid, value[dwords];
    if (!access.resolve(lane, dwords, address, valid)) return false;
    for (int i = 0; i < dwords; ++i) value[i] = rows[i * lanes + lane];
    if (valid > 0) memcpy(address, value, 4 * valid);
    return true;
  });
}

// ---- Loads and stores of bytes and shorts ----

template <class Value>
Value read_or_zero(const uint8_t* memory) {
  Value value = 0;
  if (memory != nullptr) memcpy(&value, memory, sizeof value);
  return value;
}
template <class Value>
void load_narrow(Wave& wave, const Instruction& inst) {
  Access access;
  if (!resolve(wave, inst, sizeof(Value), access)) return;
  for_active_lanes(wave, [&](int lane) {
    wave.row(inst.dst.index)[lane] = uint32_t(int32_t(read_or_zero<Value>(access.memory[lane])));
    return true;
  });
}
// With SRAM ECC, which the MI300X has on, the other half of the register becomes zero (CDNA3 ISA, "16-bit memory
// operations"); LLVM doesn't expect it to stay either.
template <class Value, bool high>
void load_half(Wave& wave, const Instruction& inst) {
  Access access;
  if (!resolve(wave, inst, sizeof(Value), access)) return;
  uint32_t* row = wave.row(inst.dst.index);
  for_active_lanes(wave, [&](int lane) {
    const uint32_t half = uint16_t(int16_t(read_or_zero<Value>(access.memory[lane])));
    row[lane] = high ? half << 16 : half;
    return true;
  });
}
template <class Value, int shift>
void store_narrow(Wave& wave, const Instruction& inst) {
  Access access;
  if (!resolve(wave, inst, sizeof(Value), access)) return;
  const uint32_t* row = wave.row(store_data(inst).index);
  for_active_lanes(wave, [&](int lane) {
    const Value value = Value(row[lane] >> shift);
    if (access.memory[lane] != nullptr) memcpy(access.memory[lane], &value, sizeof value);
    return true;
  });
}

// ---- Loads that go to LDS: lane l writes the dword at M0 + offset + 4 * l ----

template <class Value>
void load_to_lds(Wave& wave, const Instruction& inst) {
  Access access;
  if (!resolve(wave, inst, sizeof(Value), access)) return;
  const uint32_t base = (wave.m0() & 0xFFFF) + uint32_t(inst.imm);
  for_active_lanes(wave, [&](int lane) {
    const uint32_t position = base + 4 * uint32_t(lane);
    if (uint64_t(position) + 4 > wave.group->lds_bytes) return fail_access(wave, outside_lds, lane, position, 4);
    const uint32_t value = uint32_t(int32_t(read_or_zero<Value>(access.memory[lane])));
    memcpy(wave.group->lds.data() + position, &value, 4);
    return true;
  });
}

// ---- Atomics ----

template <class Value>
Value read_data(Wave& wave, const Operand& operand, int lane, int first_dword = 0) {
  uint32_t dwords[sizeof(Value) / 4];
  for (size_t i = 0; i < sizeof(Value) / 4; ++i) dwords[i] = wave.row(operand.index + first_dword + int(i))[lane];
  Value value;
  memcpy(&value, dwords, sizeof value);
  return value;
}

template <class Value, class Update>
void update(Wave& wave, const Instruction& inst, Update new_value) {
  using Bits = BitsOf<Value>;
  Access access;
  if (!resolve(wave, inst, sizeof(Value), access)) return;
  // LLVM: memory keeps the subnormals of f32, too (memory-atomic-fadd-f32-denormal-support).
  const MemoryEnvironment environment(wave, false);
  for_active_lanes(wave, [&](int lane) {
    Bits old = 0;  // what a buffer atomic out of range returns
    if (access.memory[lane] != nullptr) {
      if (reinterpret_cast<uint64_t>(access.memory[lane]) % sizeof(Value) != 0) {
        wave.fail(Outcome::Status::memory_fault,
                  "lane " + std::to_string(lane) + " makes an atomic access to an unaligned address");
        return false;
      }
      auto* target = reinterpret_cast<Bits*>(access.memory[lane]);
      old = __atomic_load_n(target, __ATOMIC_SEQ_CST);
      while (!__atomic_compare_exchange_n(target, &old, bit_cast<Bits>(new_value(bit_cast<Value>(old), lane)), false,
                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      }
    }
    if (inst.mem.sc0) {  // return the value before
      uint32_t dwords[sizeof(Value) / 4];
      memcpy(dwords, &old, sizeof old);
      for (size_t i = 0; i < sizeof(Value) / 4; ++i) wave.row(inst.dst.index + int(i))[lane] = dwords[i];
    }
    return true;
  });
}
template <class Value, Value (*f)(Value, Value)>
void update_with(Wave& wave, const Instruction& inst) {
  update<Value>(wave, inst,
                [&](Value old, int lane) { return f(old, read_data<Value>(wave, store_data(inst), lane)); });
}
// The data are the new value, then the one to compare with.
template <class Value>
void compare_and_swap(Wave& wave, const Instruction& inst) {
  const Operand& data = store_data(inst);
  update<Value>(wave, inst, [&](Value old, int lane) {
    return old == read_data<Value>(wave, data, lane, sizeof(Value) / 4) ? read_data<Value>(wave, data, lane) : old;
  });
}

// ---- Opcodes ----

#define MEMORY(name, ...) const Semantics name##_semantics(Op::name, bind_handler<__VA_ARGS__, ConstantType::b32>);

#define NARROW(family)                                                 \
  MEMORY(family##_load_ubyte, load_narrow<uint8_t>)                    \
  MEMORY(family##_load_sbyte, load_narrow<int8_t>)                     \
  MEMORY(family##_load_ushort, load_narrow<uint16_t>)                  \
  MEMORY(family##_load_sshort, load_narrow<int16_t>)                   \
  MEMORY(family##_load_ubyte_d16, load_half<uint8_t, false>)           \
  MEMORY(family##_load_ubyte_d16_hi, load_half<uint8_t, true>)         \
  MEMORY(family##_load_sbyte_d16, load_half<int8_t, false>)            \
  MEMORY(family##_load_sbyte_d16_hi, load_half<int8_t, true>)          \
  MEMORY(family##_load_short_d16, load_half<uint16_t, false>)          \
  MEMORY(family##_load_short_d16_hi, load_half<uint16_t, true>)        \
  MEMORY(family##_store_byte, store_narrow<uint8_t, 0>)                \
  MEMORY(family##_store_byte_d16_hi, store_narrow<uint8_t, 16>)        \
  MEMORY(family##_store_short, store_narrow<uint16_t, 0>)              \
  MEMORY(family##_store_short_d16_hi, store_narrow<uint16_t, 16>)

#define DWORDS(family, load, store)           \
  MEMORY(family##_load_dwordx2, load<2>)      \
  MEMORY(family##_load_dwordx3, load<3>)      \
  MEMORY(family##_load_dwordx4, load<4>)      \
  MEMORY(family##_store_dword, store<1>)      \
  MEMORY(family##_store_dwordx2, store<2>)    \
  MEMORY(family##_store_dwordx3, store<3>)    \
  MEMORY(family##_store_dwordx4, store<4>)

NARROW(flat)
NARROW(global)
NARROW(scratch)
MEMORY(flat_load_dword, load_dwords<1>)
MEMORY(global_load_dword, load_dwords<1>)
MEMORY(scratch_load_dword, load_dwords<1>)
DWORDS(flat, load_dwords, store_dwords)
DWORDS(global, load_dwords, store_dwords)
DWORDS(scratch, load_dwords, store_dwords)

// Buffer loads have a bit that sends them to LDS.
template <Handler to_registers, Handler to_lds>
void bind_buffer_load(Instruction& inst) {
  for (Operand& operand : inst.src) resolve_constant(operand, ConstantType::b32, inst.literal);
  inst.handler = inst.mem.lds ? to_lds : to_registers;
}
#define BUFFER_LOAD(name, to_registers, to_lds) \
  const Semantics name##_semantics(Op::name, bind_buffer_load<to_registers, to_lds>);
BUFFER_LOAD(buffer_load_ubyte, load_narrow<uint8_t>, load_to_lds<uint8_t>)
BUFFER_LOAD(buffer_load_sbyte, load_narrow<int8_t>, load_to_lds<int8_t>)
BUFFER_LOAD(buffer_load_ushort, load_narrow<uint16_t>, load_to_lds<uint16_t>)
BUFFER_LOAD(buffer_load_sshort, load_narrow<int16_t>, load_to_lds<int16_t>)
BUFFER_LOAD(buffer_load_dword, load_buffer_dwords<1>, load_to_lds<uint32_t>)
MEMORY(buffer_load_ubyte_d16, load_half<uint8_t, false>)
MEMORY(buffer_load_ubyte_d16_hi, load_half<uint8_t, true>)
MEMORY(buffer_load_sbyte_d16, load_half<int8_t, false>)
MEMORY(buffer_load_sbyte_d16_hi, load_half<int8_t, true>)
MEMORY(buffer_load_short_d16, load_half<uint16_t, false>)
MEMORY(buffer_load_short_d16_hi, load_half<uint16_t, true>)
MEMORY(buffer_store_byte, store_narrow<uint8_t, 0>)
MEMORY(buffer_store_byte_d16_hi, store_narrow<uint8_t, 16>)
MEMORY(buffer_store_short, store_narrow<uint16_t, 0>)
MEMORY(buffer_store_short_d16_hi, store_narrow<uint16_t, 16>)
DWORDS(buffer, load_buffer_dwords, store_buffer_dwords)

MEMORY(global_load_lds_ubyte, load_to_lds<uint8_t>)
MEMORY(global_load_lds_sbyte, load_to_lds<int8_t>)
MEMORY(global_load_lds_ushort, load_to_lds<uint16_t>)
MEMORY(global_load_lds_sshort, load_to_lds<int16_t>)
MEMORY(global_load_lds_dword, load_to_lds<uint32_t>)
MEMORY(scratch_load_lds_ubyte, load_to_lds<uint8_t>)
MEMORY(scratch_load_lds_sbyte, load_to_lds<int8_t>)
MEMORY(scratch_load_lds_ushort, load_to_lds<uint16_t>)
MEMORY(scratch_load_lds_sshort, load_to_lds<int16_t>)
MEMORY(scratch_load_lds_dword, load_to_lds<uint32_t>)

#define ATOMICS_INTEGER(family, suffix, U, I)                                             \
  MEMORY(family##_atomic_swap##suffix, update_with<U, atomic::exchange<U>>)               \
  MEMORY(family##_atomic_cmpswap##suffix, compare_and_swap<U>)                            \
  MEMORY(family##_atomic_add##suffix, update_with<U, atomic::add<U>>)                     \
  MEMORY(family##_atomic_sub##suffix, update_with<U, atomic::subtract<U>>)                \
  MEMORY(family##_atomic_smin##suffix, update_with<I, atomic::minimum<I>>)                \
  MEMORY(family##_atomic_umin##suffix, update_with<U, atomic::minimum<U>>)                \
  MEMORY(family##_atomic_smax##suffix, update_with<I, atomic::maximum<I>>)                \
  MEMORY(family##_atomic_umax##suffix, update_with<U, atomic::maximum<U>>)                \
  MEMORY(family##_atomic_and##suffix, update_with<U, atomic::bit_and<U>>)                 \
  MEMORY(family##_atomic_or##suffix, update_with<U, atomic::bit_or<U>>)                   \
  MEMORY(family##_atomic_xor##suffix, update_with<U, atomic::bit_xor<U>>)                 \
  MEMORY(family##_atomic_inc##suffix, update_with<U, atomic::increment<U>>)               \
  MEMORY(family##_atomic_dec##suffix, update_with<U, atomic::decrement<U>>)
#define ATOMICS(family)                                                          \
  ATOMICS_INTEGER(family, , uint32_t, int32_t)                                   \
  ATOMICS_INTEGER(family, _x2, uint64_t, int64_t)                                \
  MEMORY(family##_atomic_add_f32, update_with<float, atomic::add<float>>)        \
  MEMORY(family##_atomic_pk_add_f16, update_with<uint32_t, atomic::add_f16_pair>) \
  MEMORY(family##_atomic_add_f64, update_with<double, atomic::add<double>>)      \
  MEMORY(family##_atomic_min_f64, update_with<double, lesser<double>>)      \
  MEMORY(family##_atomic_max_f64, update_with<double, greater<double>>)
ATOMICS(flat)
ATOMICS(global)
ATOMICS(buffer)
MEMORY(flat_atomic_pk_add_bf16, update_with<uint32_t, atomic::add_bf16_pair>)
MEMORY(global_atomic_pk_add_bf16, update_with<uint32_t, atomic::add_bf16_pair>)

// Memory operations are visible at once, so there is nothing to write back or invalidate.
void do_nothing(Wave&, const Instruction&) {}
MEMORY(buffer_wbl2, do_nothing)
MEMORY(buffer_inv, do_nothing)
MEMORY(buffer_wbinvl1, do_nothing)
MEMORY(buffer_wbinvl1_vol, do_nothing)

}  // namespace
}  // namespace mi300x

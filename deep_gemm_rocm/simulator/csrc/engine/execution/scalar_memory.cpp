// Scalar memory instructions (CDNA3 ISA, "Scalar memory operations").

#include <cstdio>
#include <cstring>

#include "addresses.h"
#include "atomics.h"
#include "lanes.h"

namespace mi300x {
namespace {

bool check(Wave& wave, const char* what, uint64_t address, uint32_t bytes) {
  if (wave.memory->contains(address, bytes)) return true;
  char text[192];
  snprintf(text, sizeof text, "%s of %u bytes at 0x%llx, %s", what, bytes,
           static_cast<unsigned long long>(address), where_outside(address));
  wave.fail(Outcome::Status::memory_fault, text, address);
  return false;
}

// The two lowest bits of addresses are ignored.
void load(Wave& wave, const Instruction& inst) {
  const uint64_t address = scalar_address(wave, inst) & ~3ull;
  const uint32_t bytes = 4 * inst.dst.dwords;
  if (check(wave, "scalar load", address, bytes))
    memcpy(&wave.sgpr[inst.dst.index], reinterpret_cast<const void*>(address), bytes);
}

void store(Wave& wave, const Instruction& inst) {
  const uint64_t address = scalar_address(wave, inst) & ~3ull;
  const uint32_t bytes = 4 * inst.dst.dwords;
  if (check(wave, "scalar store", address, bytes))
    memcpy(reinterpret_cast<void*>(address), &wave.sgpr[inst.dst.index], bytes);
}

// Each dword is checked against the buffer's size by itself; beyond it reads give zero and writes are dropped.
void load_buffer(Wave& wave, const Instruction& inst) {
  const ScalarBuffer buffer(wave, inst);
  const uint64_t offset = scalar_offset(wave, inst) & ~3ull;
  for (uint32_t dword = 0; dword < inst.dst.dwords; ++dword) {
    const uint64_t position = offset + 4 * dword;
    uint32_t value = 0;
    if (buffer.holds(position, 4)) {
      if (!check(wave, "scalar buffer load", buffer.base + position, 4)) return;
      memcpy(&value, reinterpret_cast<const void*>(buffer.base + position), 4);
    }
    wave.sgpr[inst.dst.index + dword] = value;
  }
}

void store_buffer(Wave& wave, const Instruction& inst) {
  const ScalarBuffer buffer(wave, inst);
  const uint64_t offset = scalar_offset(wave, inst) & ~3ull;
  for (uint32_t dword = 0; dword < inst.dst.dwords; ++dword) {
    const uint64_t position = offset + 4 * dword;
    if (!buffer.holds(position, 4)) continue;
    if (!check(wave, "scalar buffer store", buffer.base + position, 4)) return;
    memcpy(reinterpret_cast<void*>(buffer.base + position), &wave.sgpr[inst.dst.index + dword], 4);
  }
}

// ---- Atomics: the data are in the SGPRs that GLC returns the value before to ----

// Null where a buffer access is out of range (dropped, reads zero) or the access failed.
template <class Bits>
Bits* atomic_target(Wave& wave, const Instruction& inst) {
  uint64_t address;
  if (inst.src[0].dwords == 4) {
    const ScalarBuffer buffer(wave, inst);
    const uint64_t offset = scalar_offset(wave, inst) & ~3ull;
    if (!buffer.holds(offset, sizeof(Bits))) return nullptr;
    address = buffer.base + offset;
  } else {
    address = scalar_address(wave, inst) & ~3ull;
  }
  if (!check(wave, "scalar atomic", address, sizeof(Bits))) return nullptr;
  if (address % sizeof(Bits) != 0) {
    wave.fail(Outcome::Status::memory_fault, "a scalar atomic access to an unaligned address");
    return nullptr;
  }
  return reinterpret_cast<Bits*>(address);
}

template <class Value>
Value read_data(const Wave& wave, int index) {
  Value value;
  memcpy(&value, &wave.sgpr[index], sizeof value);
  return value;
}

template <class Value, class Update>
void update(Wave& wave, const Instruction& inst, Update new_value) {
  using Bits = BitsOf<Value>;
  Bits old = 0;
  if (Bits* target = atomic_target<Bits>(wave, inst)) {
    old = __atomic_load_n(target, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(target, &old, bit_cast<Bits>(new_value(bit_cast<Value>(old))), false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }
  if (inst.mem.sc0) memcpy(&wave.sgpr[inst.dst.index], &old, sizeof old);
}
template <class Value, Value (*f)(Value, Value)>
void update_with(Wave& wave, const Instruction& inst) {
  const Value data = read_data<Value>(wave, inst.dst.index);
  update<Value>(wave, inst, [&](Value old) { return f(old, data); });
}
// The data are the new value, then the one to compare with.
template <class Value>
void compare_and_swap(Wave& wave, const Instruction& inst) {
  const Value data = read_data<Value>(wave, inst.dst.index);
  const Value expected = read_data<Value>(wave, inst.dst.index + int(sizeof(Value) / 4));
  update<Value>(wave, inst, [&](Value old) { return old == expected ? data : old; });
}

// ---- Opcodes ----

#define SCALAR_MEMORY(name, ...) \
  const Semantics name##_semantics(Op::name, bind_handler<__VA_ARGS__, ConstantType::b32>);

SCALAR_MEMORY(s_load_dword, load)
SCALAR_MEMORY(s_load_dwordx2, load)
SCALAR_MEMORY(s_load_dwordx4, load)
SCALAR_MEMORY(s_load_dwordx8, load)
SCALAR_MEMORY(s_load_dwordx16, load)
SCALAR_MEMORY(s_store_dword, store)
SCALAR_MEMORY(s_store_dwordx2, store)
SCALAR_MEMORY(s_store_dwordx4, store)
SCALAR_MEMORY(s_scratch_load_dword, load)
SCALAR_MEMORY(s_scratch_load_dwordx2, load)
SCALAR_MEMORY(s_scratch_load_dwordx4, load)
SCALAR_MEMORY(s_scratch_store_dword, store)
SCALAR_MEMORY(s_scratch_store_dwordx2, store)
SCALAR_MEMORY(s_scratch_store_dwordx4, store)
SCALAR_MEMORY(s_buffer_load_dword, load_buffer)
SCALAR_MEMORY(s_buffer_load_dwordx2, load_buffer)
SCALAR_MEMORY(s_buffer_load_dwordx4, load_buffer)
SCALAR_MEMORY(s_buffer_load_dwordx8, load_buffer)
SCALAR_MEMORY(s_buffer_load_dwordx16, load_buffer)
SCALAR_MEMORY(s_buffer_store_dword, store_buffer)
SCALAR_MEMORY(s_buffer_store_dwordx2, store_buffer)
SCALAR_MEMORY(s_buffer_store_dwordx4, store_buffer)

#define ATOMICS(family, suffix, U, I)                                             \
  SCALAR_MEMORY(family##_swap##suffix, update_with<U, atomic::exchange<U>>)       \
  SCALAR_MEMORY(family##_cmpswap##suffix, compare_and_swap<U>)                    \
  SCALAR_MEMORY(family##_add##suffix, update_with<U, atomic::add<U>>)             \
  SCALAR_MEMORY(family##_sub##suffix, update_with<U, atomic::subtract<U>>)        \
  SCALAR_MEMORY(family##_smin##suffix, update_with<I, atomic::minimum<I>>)        \
  SCALAR_MEMORY(family##_umin##suffix, update_with<U, atomic::minimum<U>>)        \
  SCALAR_MEMORY(family##_smax##suffix, update_with<I, atomic::maximum<I>>)        \
  SCALAR_MEMORY(family##_umax##suffix, update_with<U, atomic::maximum<U>>)        \
  SCALAR_MEMORY(family##_and##suffix, update_with<U, atomic::bit_and<U>>)         \
  SCALAR_MEMORY(family##_or##suffix, update_with<U, atomic::bit_or<U>>)           \
  SCALAR_MEMORY(family##_xor##suffix, update_with<U, atomic::bit_xor<U>>)         \
  SCALAR_MEMORY(family##_inc##suffix, update_with<U, atomic::increment<U>>)       \
  SCALAR_MEMORY(family##_dec##suffix, update_with<U, atomic::decrement<U>>)
ATOMICS(s_atomic, , uint32_t, int32_t)
ATOMICS(s_atomic, _x2, uint64_t, int64_t)
ATOMICS(s_buffer_atomic, , uint32_t, int32_t)
ATOMICS(s_buffer_atomic, _x2, uint64_t, int64_t)

// The scalar cache isn't simulated: writes are in memory at once.
void do_nothing(Wave&, const Instruction&) {}
SCALAR_MEMORY(s_dcache_inv, do_nothing)
SCALAR_MEMORY(s_dcache_inv_vol, do_nothing)
SCALAR_MEMORY(s_dcache_wb, do_nothing)
SCALAR_MEMORY(s_dcache_wb_vol, do_nothing)
SCALAR_MEMORY(s_dcache_discard, do_nothing)
SCALAR_MEMORY(s_dcache_discard_x2, do_nothing)
SCALAR_MEMORY(s_atc_probe, do_nothing)
SCALAR_MEMORY(s_atc_probe_buffer, do_nothing)

void read_clock(Wave& wave, const Instruction& inst) { wave.write_scalar(inst.dst, *wave.clock); }
// S_MEMREALTIME counts at 100 MHz, the core clock at 2100 MHz.
void read_real_time(Wave& wave, const Instruction& inst) { wave.write_scalar(inst.dst, *wave.clock / 21); }
SCALAR_MEMORY(s_memtime, read_clock)
SCALAR_MEMORY(s_memrealtime, read_real_time)
const Approximate clocks({Op::s_memtime, Op::s_memrealtime}, "counts the wave's instructions unless DG_SIM_TIMING=1");

}  // namespace
}  // namespace mi300x

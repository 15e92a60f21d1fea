// Buffer instructions that convert between registers and a data format in memory (CDNA3 ISA, "Buffer data").

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "addresses.h"
#include "lanes.h"

namespace mi300x {
namespace {

constexpr int most_components = 4;

// Bits of each component, lowest first; names of formats have the highest first.
struct DataFormat {
  int count = 0;
  int widths[most_components] = {};

  int position(int component) const {
    int bits = 0;
    for (int i = 0; i < component; ++i) bits += widths[i];
    return bits;
  }
  uint32_t bytes() const { return uint32_t(position(most_components)) / 8; }
};
const DataFormat data_formats[16] = {{},                      // invalid
                                     {1, {8}},                //
                                     {1, {16}},               //
                                     {2, {8, 8}},             //
                                     {1, {32}},               //
                                     {2, {16, 16}},           //
                                     {3, {11, 11, 10}},       // 10_11_11
                                     {3, {10, 11, 11}},       // 11_11_10
                                     {4, {2, 10, 10, 10}},    // 10_10_10_2
                                     {4, {10, 10, 10, 2}},    // 2_10_10_10
                                     {4, {8, 8, 8, 8}},       //
                                     {2, {32, 32}},           //
                                     {4, {16, 16, 16, 16}},   //
                                     {3, {32, 32, 32}},       //
                                     {4, {32, 32, 32, 32}},   //
                                     {}};                     // reserved

enum class NumberFormat : uint8_t { unorm, snorm, uscaled, sscaled, uint, sint, reserved, floating };
bool is_integer(NumberFormat format) { return format == NumberFormat::uint || format == NumberFormat::sint; }

// The selector of a register's component: 0 and 1 are constants, 4 to 7 are the components in memory.
constexpr int first_component = 4;

struct Format {
  const DataFormat& data;
  NumberFormat number;
  int select[most_components];

  // MTBUF instructions contain the format; for MUBUF it is in the resource.
  Format(const Wave& wave, const Instruction& inst) : Format(inst, wave.sgpr[inst.src[1].index + 3]) {}

 private:
  Format(const Instruction& inst, uint32_t word)
      : data(data_formats[inst.family == Family::MTBUF ? inst.mem.format & 15 : word >> 15 & 15]),
        number(NumberFormat(inst.family == Family::MTBUF ? inst.mem.format >> 4 : word >> 12 & 7)) {
    for (int i = 0; i < most_components; ++i)
      select[i] = inst.family == Family::MTBUF ? first_component + i : int(word >> (3 * i) & 7);
  }
};

// ---- Floats of 11 and 10 bits: no sign, 5 bits of exponent as f16 has them ----

float from_small_float(uint32_t code, int width) { return f16_to_f32(uint16_t(code << (15 - width))); }
uint32_t to_small_float(float value, int width) {
  if (value != value) return (1u << width) - 1;
  return f32_to_f16_toward_zero(std::max(value, 0.0f)) >> (15 - width);
}

// ---- One component: its bits in memory, and its value in a register ----

int32_t sign_extended(uint32_t code, int width) { return int32_t(code << (32 - width)) >> (32 - width); }

// Converts a component to its register value. 32-bit components stay as they are.
uint32_t decoded(uint32_t code, int width, NumberFormat format) {
  if (width == 32) return code;
  const double highest = double((1u << width) - 1), highest_signed = double((1u << (width - 1)) - 1);
  const double number = sign_extended(code, width);
  const auto f32 = [](double value) { return bit_cast<uint32_t>(float(value)); };
  switch (format) {
    case NumberFormat::unorm: return f32(code / highest);
    case NumberFormat::snorm: return f32(std::max(number / highest_signed, -1.0));
    case NumberFormat::uscaled: return f32(code);
    case NumberFormat::sscaled: return f32(number);
    case NumberFormat::sint: return uint32_t(sign_extended(code, width));
    case NumberFormat::floating: return f32(width == 16 ? f16_to_f32(uint16_t(code)) : from_small_float(code, width));
    default: return code;
  }
}

uint32_t encoded(uint32_t value, int width, NumberFormat format) {
  if (width == 32) return value;
  const uint32_t mask = (1u << width) - 1;
  const double highest = mask, highest_signed = mask >> 1;
  const float number = bit_cast<float>(value);
  const auto rounded = [&](double low, double high, double scale) {
    return number != number ? 0u : uint32_t(int32_t(std::nearbyint(std::clamp(number * scale, low, high)))) & mask;
  };
  switch (format) {
    case NumberFormat::unorm: return rounded(0, highest, highest);
    case NumberFormat::snorm: return rounded(-highest_signed, highest_signed, highest_signed);
    case NumberFormat::uscaled: return rounded(0, highest, 1);
    case NumberFormat::sscaled: return rounded(-highest_signed - 1, highest_signed, 1);
    case NumberFormat::sint:
      return uint32_t(std::clamp(int32_t(value), -int32_t(mask >> 1) - 1, int32_t(mask >> 1))) & mask;
    case NumberFormat::floating: return width == 16 ? f32_to_f16(number) : to_small_float(number, width);
    default: return std::min(value, mask);
  }
}

// ---- 16-bit registers ----

uint16_t narrowed(uint32_t value, NumberFormat format) {
  return is_integer(format) ? uint16_t(value) : f32_to_f16(bit_cast<float>(value));
}
uint32_t widened(uint16_t value, NumberFormat format) {
  if (format == NumberFormat::sint) return uint32_t(int32_t(int16_t(value)));
  return is_integer(format) ? value : bit_cast<uint32_t>(f16_to_f32(value));
}

// ---- A lane's element in memory ----

uint32_t component_at(const uint8_t* memory, const DataFormat& data, int component) {
  const int position = data.position(component), width = data.widths[component];
  uint64_t bits = 0;
  memcpy(&bits, memory + position / 8, size_t(position % 8 + width + 7) / 8);
  return uint32_t(bits >> (position % 8) & ((1ull << width) - 1));
}

void put_component(uint8_t* memory, const DataFormat& data, int component, uint32_t code) {
  const int position = data.position(component);
  uint64_t bits = 0;
  const size_t bytes = size_t(position % 8 + data.widths[component] + 7) / 8;
  memcpy(&bits, memory + position / 8, bytes);
  bits |= uint64_t(code) << (position % 8);
  memcpy(memory + position / 8, &bits, bytes);
}

// The address of each lane's element, null where it isn't entirely within the buffer.
bool resolve(Wave& wave, const Instruction& inst, uint32_t bytes, uint8_t* (&elements)[lanes]) {
  const BufferOperands operands(wave, inst);
  return for_active_lanes(wave, [&](int lane) {
    const BufferPosition position = operands.position(lane);
    elements[lane] = bytes != 0 && position.in_bounds >= bytes ? reinterpret_cast<uint8_t*>(position.address) : nullptr;
    if (elements[lane] == nullptr || wave.memory->contains(position.address, bytes)) return true;
    char text[192];
    snprintf(text, sizeof text, "lane %d accesses %u bytes at 0x%llx, %s", lane,
             bytes, static_cast<unsigned long long>(position.address), where_outside(position.address));
    wave.fail(Outcome::Status::memory_fault, text, position.address);
    return false;
  });
}

uint32_t loaded(const uint8_t* element, const Format& format, int select) {
  if (select == 1) return is_integer(format.number) ? 1 : bit_cast<uint32_t>(1.0f);
  const int component = select - first_component;
  if (element == nullptr || component < 0 || component >= format.data.count) return 0;
  return decoded(component_at(element, format.data, component), format.data.widths[component], format.number);
}

// How registers hold the components.
enum class Registers { whole, pairs_of_halves, high_half };

template <int count, Registers registers>
void load(Wave& wave, const Instruction& inst) {
  const Format format(wave, inst);
  uint8_t* elements[lanes];
  if (!resolve(wave, inst, format.data.bytes(), elements)) return;
  const MemoryEnvironment environment(wave, false);
  for_active_lanes(wave, [&](int lane) {
    for (int i = 0; i < count; ++i) {
      const uint32_t value = loaded(elements[lane], format, format.select[i]);
      if (registers == Registers::whole) {
        wave.row(inst.dst.index + i)[lane] = value;
        continue;
      }
      const uint32_t half = narrowed(value, format.number);
      uint32_t& row = wave.row(inst.dst.index + i / 2)[lane];
      row = registers == Registers::high_half ? half << 16 : i % 2 ? row | half << 16 : half;
    }
    return true;
  });
}

template <int count, Registers registers>
void store(Wave& wave, const Instruction& inst) {
  const Format format(wave, inst);
  uint8_t* elements[lanes];
  if (!resolve(wave, inst, format.data.bytes(), elements)) return;
  const MemoryEnvironment environment(wave, false);
  for_active_lanes(wave, [&](int lane) {
    if (elements[lane] == nullptr) return true;
    uint8_t element[16] = {};
    for (int i = 0; i < count; ++i) {
      const int component = format.select[i] - first_component;
      if (component < 0 || component >= format.data.count) continue;
      uint32_t value = wave.row(inst.dst.index + (registers == Registers::whole ? i : i / 2))[lane];
      if (registers != Registers::whole)
        value = widened(uint16_t(registers == Registers::high_half || i % 2 ? value >> 16 : value), format.number);
      put_component(element, format.data, component, encoded(value, format.data.widths[component], format.number));
    }
    memcpy(elements[lane], element, format.data.bytes());
    return true;
  });
}

// The first component to LDS, at M0 + offset + 4 * lane.
void load_to_lds(Wave& wave, const Instruction& inst) {
  const Format format(wave, inst);
  uint8_t* elements[lanes];
  if (!resolve(wave, inst, format.data.bytes(), elements)) return;
  const MemoryEnvironment environment(wave, false);
  const uint32_t base = (wave.m0() & 0xFFFF) + uint32_t(inst.imm);
  for_active_lanes(wave, [&](int lane) {
    const uint32_t position = base + 4 * uint32_t(lane), value = loaded(elements[lane], format, format.select[0]);
    if (uint64_t(position) + 4 > wave.group->lds_bytes) {
      wave.fail(Outcome::Status::memory_fault, "lane " + std::to_string(lane) + " loads to LDS byte " +
                                                   std::to_string(position) + ", outside the LDS of the kernel");
      return false;
    }
    memcpy(wave.group->lds.data() + position, &value, 4);
    return true;
  });
}
void bind_load_x(Instruction& inst) {
  inst.mem.lds ? bind_handler<load_to_lds, ConstantType::b32>(inst)
               : bind_handler<load<1, Registers::whole>, ConstantType::b32>(inst);
}

#define TYPED(name, ...) const Semantics name##_semantics(Op::name, bind_handler<__VA_ARGS__, ConstantType::b32>);
#define TYPED_FAMILY(family)                                                           \
  TYPED(family##_load_format_xy, load<2, Registers::whole>)                            \
  TYPED(family##_load_format_xyz, load<3, Registers::whole>)                           \
  TYPED(family##_load_format_xyzw, load<4, Registers::whole>)                          \
  TYPED(family##_store_format_x, store<1, Registers::whole>)                           \
  TYPED(family##_store_format_xy, store<2, Registers::whole>)                          \
  TYPED(family##_store_format_xyz, store<3, Registers::whole>)                         \
  TYPED(family##_store_format_xyzw, store<4, Registers::whole>)                        \
  TYPED(family##_load_format_d16_x, load<1, Registers::pairs_of_halves>)               \
  TYPED(family##_load_format_d16_xy, load<2, Registers::pairs_of_halves>)              \
  TYPED(family##_load_format_d16_xyz, load<3, Registers::pairs_of_halves>)             \
  TYPED(family##_load_format_d16_xyzw, load<4, Registers::pairs_of_halves>)            \
  TYPED(family##_store_format_d16_x, store<1, Registers::pairs_of_halves>)             \
  TYPED(family##_store_format_d16_xy, store<2, Registers::pairs_of_halves>)            \
  TYPED(family##_store_format_d16_xyz, store<3, Registers::pairs_of_halves>)           \
  TYPED(family##_store_format_d16_xyzw, store<4, Registers::pairs_of_halves>)          \
  const Approximate family##_conversions(                                              \
      {Op::family##_store_format_x, Op::family##_store_format_xy, Op::family##_store_format_xyz,             \
       Op::family##_store_format_xyzw, Op::family##_store_format_d16_x, Op::family##_store_format_d16_xy,    \
       Op::family##_store_format_d16_xyz, Op::family##_store_format_d16_xyzw},                               \
      "how stores round and clamp isn't documented, nor what components become that they don't carry (zero here)");
TYPED_FAMILY(buffer)
TYPED_FAMILY(tbuffer)
const Semantics buffer_load_x(Op::buffer_load_format_x, bind_load_x);
TYPED(tbuffer_load_format_x, load<1, Registers::whole>)
TYPED(buffer_load_format_d16_hi_x, load<1, Registers::high_half>)
TYPED(buffer_store_format_d16_hi_x, store<1, Registers::high_half>)

}  // namespace

uint32_t element_bytes(const Wave& wave, const Instruction& inst) { return Format(wave, inst).data.bytes(); }

}  // namespace mi300x

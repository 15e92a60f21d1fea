#include "trace.h"

#include <algorithm>

#include "../execution/addresses.h"
#include "lds_banks.h"
#include "memory_system.h"

namespace mi300x::timing {

void Trace::add_bytes(uint64_t place, uint32_t bytes, uint64_t of_line) {
  add_line(place / of_line);
  if ((place % of_line) + bytes > of_line) add_line(place / of_line + 1);
}

// A dword of all lanes is contiguous (LLVM AMDGPU usage, "Private segment": swizzled by lane).
void Trace::add_scratch(uint32_t offset, int lane, uint32_t bytes) {
  add_bytes(scratch_ + uint64_t(offset / 4) * 4 * lanes + 4 * uint64_t(lane), bytes);
}

void Trace::record_vector_memory(Wave& wave, const Instruction& inst, const Effects& effects, Step& step) {
  const uint32_t bytes = effects.memory.bytes;
  const uint64_t exec = wave.exec();
  uint32_t active = 0;
  const auto for_each_lane = [&](auto f) {
    for (uint64_t rest = exec; rest != 0; rest &= rest - 1, ++active) f(__builtin_ctzll(rest));
  };
  switch (inst.family) {
    case Family::GLOBAL: case Family::FLAT: {
      uint64_t addresses[lanes];
      global_addresses(wave, inst, addresses);
      for_each_lane([&](int lane) {
        const uint64_t address = addresses[lane];
        if (in_aperture(address, shared_aperture)) return;
        if (in_aperture(address, private_aperture))
          return add_scratch(uint32_t(address - private_aperture), lane, bytes);
        add_memory(address, bytes);
      });
      break;
    }
    case Family::SCRATCH:
      for (uint32_t dword = 0; dword < std::max(1u, bytes / 4); ++dword)
        for_each_lane([&](int lane) {
          add_scratch(scratch_offset(wave, inst, lane) + 4 * dword, lane, std::min(bytes, 4u));
        });
      active /= std::max(1u, bytes / 4);
      break;
    default: {
      const BufferOperands operands(wave, inst);
      for_each_lane([&](int lane) {
        const BufferPosition position = operands.position(lane);
        if (position.in_bounds != 0) add_memory(position.address, bytes);
      });
    }
  }
  const auto begin = lines_.begin() + long(first_);
  if (!std::is_sorted(begin, lines_.end())) {
    std::sort(begin, lines_.end());
    lines_.erase(std::unique(begin, lines_.end()), lines_.end());
  }
  const size_t count = lines_.size() - first_;
  if (count != 0) step.bytes = uint16_t(std::min<uint64_t>(line_bytes, (active * bytes + count - 1) / count));
}

void Trace::record_scalar_memory(Wave& wave, const Instruction& inst, const Effects& effects) {
  const uint32_t bytes = 4 * inst.dst.dwords;
  if (bytes == 0 || !(effects.is_load || effects.is_store) || inst.src[0].dwords < 2) return;
  if (inst.src[0].dwords != 4) return add_memory(scalar_address(wave, inst) & ~3ull, bytes, scalar_line_bytes);
  const ScalarBuffer buffer(wave, inst);
  const uint64_t offset = scalar_offset(wave, inst) & ~3ull;
  if (buffer.holds(offset, 4)) add_memory(buffer.base + offset, bytes, scalar_line_bytes);
}

void Trace::record(Wave& wave, const Instruction& inst, const Effects& effects) {
  Step step;
  step.pc = uint32_t(wave.pc);
  first_ = lines_.size();
  if (effects.unit == Unit::lds) {
    const BankClocks clocks = bank_clocks(wave, inst, effects.memory);
    step.bank_clocks = uint16_t(clocks.all);
    step.conflicts = uint16_t(clocks.conflicts);
  } else if (effects.unit == Unit::vector_memory || effects.unit == Unit::flat) {
    if (effects.memory.parts != 0) record_vector_memory(wave, inst, effects, step);
  } else if (effects.unit == Unit::scalar_memory) {
    record_scalar_memory(wave, inst, effects);
  }
  step.lines = uint16_t(lines_.size() - first_);
  steps_.push_back(step);
}

}  // namespace mi300x::timing

// Caches operands of matrix instructions after conversion: most of them are multiplied several times.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace mi300x {

class MatrixOperandCache {
 public:
  enum class Side { a, b };

  // The converted operand, valid until the next call for the same side. Slots are chosen by register number, since
  // waves of a workgroup often have the same operand in the same registers; an entry is reused where the bits are the
  // same.
  template <class Operand>
  const Operand& get(Side side, int first_register, const uint32_t* registers) {
    static_assert(sizeof(Operand) <= sizeof Slot::operand && alignof(Operand) <= alignof(Slot));
    static_assert(std::is_trivially_destructible_v<Operand>);
    constexpr size_t bytes = Operand::kRegisters * 64 * sizeof(uint32_t);
    static_assert(bytes <= sizeof Slot::registers);
    if (slots_ == nullptr) slots_ = std::make_unique<Slot[]>(2 * kSlots);
    Slot& slot = slots_[static_cast<int>(side) * kSlots + first_register / Operand::kRegisters % kSlots];
    if (slot.type != &type_of<Operand> || std::memcmp(slot.registers, registers, bytes) != 0) {
      std::memcpy(slot.registers, registers, bytes);
      new (slot.operand) Operand(registers);
      slot.type = &type_of<Operand>;
    }
    return *std::launder(reinterpret_cast<const Operand*>(slot.operand));
  }

 private:
  static constexpr int kSlots = 32;

  template <class Operand>
  inline static char type_of = 0;

  struct alignas(64) Slot {
    uint32_t registers[2 * 64];
    unsigned char operand[3072];
    const void* type = nullptr;
  };

  std::unique_ptr<Slot[]> slots_;
};

}  // namespace mi300x

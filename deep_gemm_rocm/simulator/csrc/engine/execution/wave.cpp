#include "wave.h"

#include <xmmintrin.h>

namespace mi300x {
namespace {

// MXCSR: rounding control, flush-to-zero, denormals-are-zero; exceptions stay masked.
uint32_t host_control(int rounding, bool flush_inputs, bool flush_results) {
  constexpr uint32_t masked = 0x1F80, to_zero_inputs = 1u << 6, to_zero_results = 1u << 15;
  constexpr uint32_t directions[4] = {0, 2, 1, 3};  // nearest, up, down, toward zero
  return masked | directions[rounding] << 13 | (flush_inputs ? to_zero_inputs : 0) |
         (flush_results ? to_zero_results : 0);
}

}  // namespace

const float one_f32 = 1;
const double one_f64 = 1;

void apply_mode(const Mode& mode) {
  _mm_setcsr(host_control(mode.round_f32(), mode.flushes_f32_inputs(), mode.flushes_f32_results()));
}
void apply_mode_f64(const Mode& mode) {
  _mm_setcsr(host_control(mode.round_f16_f64(), mode.flushes_f16_f64_inputs(), mode.flushes_f16_f64_results()));
}
void apply_mode_f16(const Mode& mode) {
  _mm_setcsr(host_control(mode.round_f16_f64(), mode.flushes_f32_inputs(), mode.flushes_f32_results()));
}

void Wave::jump(uint64_t address) {
  const uint64_t index = (address - code_begin) / 4;
  if (address < code_begin || address % 4 != 0 || index >= code_dwords)
    return fail(Outcome::Status::illegal_instruction, "jump to an address outside the code of the kernel");
  pc = index;
}

void Wave::fail(Outcome::Status status, std::string text, uint64_t address, uint64_t other_offset) {
  if (state == State::failed) return;
  state = State::failed;
  failure = status;
  message = std::move(text);
  failed_address = address;
  failed_other_offset = other_offset;
}

}  // namespace mi300x

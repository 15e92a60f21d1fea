// Moves, selections and instructions that reach across lanes.

#include "lanes.h"

namespace mi300x {
namespace {

VECTOR(v_mov_b32, uint32_t, (uint32_t a), return a)
VECTOR(v_mov_b64, uint64_t, (uint64_t a), return a)
VECTOR(v_accvgpr_mov_b32, uint32_t, (uint32_t a), return a)
VECTOR(v_accvgpr_read_b32, uint32_t, (uint32_t a), return a)
VECTOR(v_accvgpr_write_b32, uint32_t, (uint32_t a), return a)

VECTOR_STATE(v_nop, b32) {}
VECTOR_STATE(v_clrexcp, b32) {}

VECTOR_STATE(v_swap_b32, b32) {
  alignas(64) Lanes<uint32_t> saved;
  uint32_t *a = wave.row(inst.dst.index), *b = wave.row(inst.src[0].index);
  memcpy(saved, a, sizeof saved);
  store_row(a, b, wave.exec());
  store_row(b, saved, wave.exec());
}

// S1 where the mask bit is set, else S0. The sources are floats to their modifiers, bits to everything else.
VECTOR_STATE(v_cndmask_b32, f32) {
  alignas(64) Lanes<float> buffer_a, buffer_b;
  alignas(64) Lanes<uint32_t> results;
  const auto* a = reinterpret_cast<const uint32_t*>(load_source(wave, inst.src[0], false, buffer_a));
  const auto* b = reinterpret_cast<const uint32_t*>(load_source(wave, inst.src[1], false, buffer_b));
  const uint64_t mask = inst.family == Family::VOP3 ? wave.read_scalar(inst.src[2]) : wave.vcc();
  for (int l = 0; l < lanes; ++l) results[l] = mask >> l & 1 ? b[l] : a[l];
  store_row(wave.row(inst.dst.index), results, wave.exec());
}

uint32_t lane_of(Wave& wave, const Operand& operand, uint32_t lane) {
  if (operand.kind == Operand::Kind::vector) return wave.row(operand.index)[lane];
  return uint32_t(wave.read_scalar(operand));
}
VECTOR_STATE(v_readfirstlane_b32, b32) {
  const uint32_t first = wave.exec() ? uint32_t(__builtin_ctzll(wave.exec())) : 0;
  wave.write_scalar(inst.dst, lane_of(wave, inst.src[0], first));
}
VECTOR_STATE(v_readlane_b32, b32) {
  wave.write_scalar(inst.dst, lane_of(wave, inst.src[0], uint32_t(wave.read_scalar(inst.src[1])) % lanes));
}
VECTOR_STATE(v_writelane_b32, b32) {
  wave.row(inst.dst.index)[uint32_t(wave.read_scalar(inst.src[1])) % lanes] = uint32_t(wave.read_scalar(inst.src[0]));
}

// Counts the bits of S0 that belong to lanes below: of the lower or the upper half of the wave.
void count_lower_lanes(Wave& wave, const Instruction& inst, int first_lane) {
  alignas(64) Lanes<uint32_t> buffer_a, buffer_b, results;
  const uint32_t* a = load_source(wave, inst.src[0], false, buffer_a);
  const uint32_t* b = load_source(wave, inst.src[1], false, buffer_b);
  for (int l = 0; l < lanes; ++l) {
    const int below = l - first_lane;
    const uint32_t mask = below <= 0 ? 0 : below >= 32 ? ~0u : (1u << below) - 1;
    results[l] = uint32_t(__builtin_popcount(a[l] & mask)) + b[l];
  }
  store_row(wave.row(inst.dst.index), results, wave.exec());
}
VECTOR_STATE(v_mbcnt_lo_u32_b32, b32) { count_lower_lanes(wave, inst, 0); }
VECTOR_STATE(v_mbcnt_hi_u32_b32, b32) { count_lower_lanes(wave, inst, 32); }

}  // namespace
}  // namespace mi300x

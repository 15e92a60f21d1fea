// Packed instructions (VOP3P), mixed-precision FMAs and dot products.

#include <algorithm>
#include <limits>

#include "half_arithmetic.h"
#include "lanes.h"

namespace mi300x {
namespace {

// ---- Two 16-bit operations a lane: op_sel picks the half of a source for the low result, op_sel_hi for the high ----

template <auto f, class Signature>
struct PackedOperation;

template <auto f, class T, class... Sources>
struct PackedOperation<f, T (*)(Sources...)> {
  static void run(Wave& wave, const Instruction& inst) { run(wave, inst, std::index_sequence_for<Sources...>()); }

  static void bind(Instruction& inst) {
    for (Operand& operand : inst.src) resolve_constant(operand, constant_type<T>(), inst.literal);
    inst.handler = run;
  }

 private:
  template <size_t... index>
  static void run(Wave& wave, const Instruction& inst, std::index_sequence<index...>) {
    const F16Environment environment(wave);
    alignas(64) Lanes<uint32_t> results;
    Lanes<T> low, high;
    compute(wave, inst, low, load_half<Sources>(wave, inst, index, false).lanes...);
    compute(wave, inst, high, load_half<Sources>(wave, inst, index, true).lanes...);
    const auto* low_bits = reinterpret_cast<const uint16_t*>(low);
    const auto* high_bits = reinterpret_cast<const uint16_t*>(high);
    for (int l = 0; l < lanes; ++l) results[l] = low_bits[l] | uint32_t(high_bits[l]) << 16;
    store_row(wave.row(inst.dst.index), results, wave.exec());
  }

  template <class S>
  struct Loaded {
    alignas(64) Lanes<S> lanes;
  };

  template <class S>
  static Loaded<S> load_half(Wave& wave, const Instruction& inst, size_t index, bool high) {
    Operand operand = inst.src[index];
    if (high) operand.neg = inst.vop.neg_hi >> index & 1;
    const bool upper = (high ? inst.vop.op_sel_hi : inst.vop.op_sel) >> index & 1;
    Loaded<S> loaded;
    const S* source = load_source<S>(wave, operand, upper, loaded.lanes);
    if (source != loaded.lanes) memcpy(loaded.lanes, source, sizeof loaded.lanes);
    if constexpr (std::is_same_v<S, Half>) flush_halves(loaded.lanes, wave.mode.flushes_f16_f64_inputs());
    return loaded;
  }

  template <class... S>
  static void compute(Wave& wave, const Instruction& inst, Lanes<T>& results, const S&... sources) {
    for (int l = 0; l < lanes; ++l) results[l] = f(sources[l]...);
    apply_output_modifiers(wave, inst, results);
    if constexpr (std::is_same_v<T, Half>) flush_halves(results, wave.mode.flushes_f16_f64_results());
  }
};

template <auto f>
void bind_packed(Instruction& inst) {
  PackedOperation<f, decltype(f)>::bind(inst);
}
template <auto plain, auto clamping>
void bind_packed_clampable(Instruction& inst) {
  inst.vop.clamp ? bind_packed<clamping>(inst) : bind_packed<plain>(inst);
}

#define PACKED(name, T, parameters, ...)          \
  inline T name##_half parameters { __VA_ARGS__; } \
  const Semantics name##_semantics(Op::name, bind_packed<name##_half>);

template <class Int>
Int saturated(int64_t value) {
  return Int(std::clamp<int64_t>(value, std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max()));
}
#define PACKED_CLAMPABLE(name, T, parameters, expression)                           \
  inline T name##_half parameters { return T(expression); }                         \
  inline T name##_clamped parameters { return saturated<T>(expression); }           \
  const Semantics name##_semantics(Op::name, bind_packed_clampable<name##_half, name##_clamped>);

PACKED(v_pk_add_f16, Half, (Half a, Half b), return sum_of(a, b))
PACKED(v_pk_mul_f16, Half, (Half a, Half b), return product_of(a, b))
PACKED(v_pk_fma_f16, Half, (Half a, Half b, Half c), return fused(a, b, c))
PACKED(v_pk_min_f16, Half, (Half a, Half b), return minimum(a, b))
PACKED(v_pk_max_f16, Half, (Half a, Half b), return maximum(a, b))
PACKED(v_pk_mul_lo_u16, uint16_t, (uint16_t a, uint16_t b), return uint16_t(uint32_t(a) * b))
PACKED(v_pk_lshlrev_b16, uint16_t, (uint16_t a, uint16_t b), return uint16_t(b << (a & 15)))
PACKED(v_pk_lshrrev_b16, uint16_t, (uint16_t a, uint16_t b), return uint16_t(b >> (a & 15)))
PACKED(v_pk_ashrrev_i16, int16_t, (int16_t a, int16_t b), return int16_t(b >> (a & 15)))
PACKED(v_pk_max_i16, int16_t, (int16_t a, int16_t b), return std::max(a, b))
PACKED(v_pk_min_i16, int16_t, (int16_t a, int16_t b), return std::min(a, b))
PACKED(v_pk_max_u16, uint16_t, (uint16_t a, uint16_t b), return std::max(a, b))
PACKED(v_pk_min_u16, uint16_t, (uint16_t a, uint16_t b), return std::min(a, b))
PACKED_CLAMPABLE(v_pk_add_i16, int16_t, (int16_t a, int16_t b), int64_t(a) + b)
PACKED_CLAMPABLE(v_pk_sub_i16, int16_t, (int16_t a, int16_t b), int64_t(a) - b)
PACKED_CLAMPABLE(v_pk_add_u16, uint16_t, (uint16_t a, uint16_t b), int64_t(a) + b)
PACKED_CLAMPABLE(v_pk_sub_u16, uint16_t, (uint16_t a, uint16_t b), int64_t(a) - b)
PACKED_CLAMPABLE(v_pk_mad_i16, int16_t, (int16_t a, int16_t b, int16_t c), int64_t(a) * b + c)
PACKED_CLAMPABLE(v_pk_mad_u16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), int64_t(a) * b + c)

void bind_pk_fmac(Instruction& inst) {
  inst.src[2] = inst.dst;
  inst.vop.op_sel_hi = 7;
  bind_packed<v_pk_fma_f16_half>(inst);
}
const Semantics pk_fmac(Op::v_pk_fmac_f16, bind_pk_fmac);

// ---- Two f32 operations a lane: sources are register pairs, op_sel and op_sel_hi pick a register of the pair ----

// A scalar or constant source gives the same dword to both results unless it is an SGPR pair.
const float* load_pair_element(Wave& wave, const Instruction& inst, int index, bool high, Lanes<float>& buffer) {
  Operand operand = inst.src[index];
  const bool second = (high ? inst.vop.op_sel_hi : inst.vop.op_sel) >> index & 1;
  if (operand.kind != Operand::Kind::constant) operand.index += second;
  operand.dwords = 1;
  if (high) operand.neg = inst.vop.neg_hi >> index & 1;
  return load_source(wave, operand, false, buffer);
}

template <class F>
void run_pairs(Wave& wave, const Instruction& inst, int sources, F f) {
  alignas(64) Lanes<float> buffers[3], results[2];
  for (int half = 0; half < 2; ++half) {
    const float* source[3] = {buffers[0], buffers[0], buffers[0]};
    for (int i = 0; i < sources; ++i) source[i] = load_pair_element(wave, inst, i, half == 1, buffers[i]);
    const float *a = source[0], *b = source[1], *c = source[2];
    for (int l = 0; l < lanes; ++l) results[half][l] = f(a[l], b[l], c[l]);
    apply_output_modifiers(wave, inst, results[half]);
  }
  for (int half = 0; half < 2; ++half)
    store_row(wave.row(inst.dst.index + half), reinterpret_cast<const uint32_t*>(results[half]), wave.exec());
}
VECTOR_STATE(v_pk_fma_f32, f32) {
  run_pairs(wave, inst, 3, [](float a, float b, float c) { return fused_sum(a, b, c); });
}
VECTOR_STATE(v_pk_mul_f32, f32) {
  run_pairs(wave, inst, 2, [](float a, float b, float) { return product_of(a, b); });
}
VECTOR_STATE(v_pk_add_f32, f32) {
  run_pairs(wave, inst, 2, [](float a, float b, float) { return sum_of(a, b); });
}
// The low result comes from S0, the high one from S1.
VECTOR_STATE(v_pk_mov_b32, b32) {
  alignas(64) Lanes<float> buffers[2];
  alignas(64) Lanes<uint32_t> results[2];
  for (int half = 0; half < 2; ++half) {
    Operand operand = inst.src[half];
    if (operand.kind != Operand::Kind::constant) operand.index += inst.vop.op_sel >> half & 1;
    operand.dwords = 1;
    memcpy(results[half], load_source(wave, operand, false, buffers[half]), sizeof results[half]);
  }
  for (int half = 0; half < 2; ++half) store_row(wave.row(inst.dst.index + half), results[half], wave.exec());
}

// ---- Mixed precision: op_sel_hi says that a source is f16, op_sel which half of it; neg_hi holds the abs flags ----

void load_mixed(Wave& wave, const Instruction& inst, int index, Lanes<float>& values) {
  Operand operand = inst.src[index];
  operand.abs = inst.vop.neg_hi >> index & 1;
  if (inst.vop.op_sel_hi >> index & 1) {
    Lanes<Half> buffer;
    resolve_constant(operand, ConstantType::f16, inst.literal);
    load_source(wave, operand, inst.vop.op_sel >> index & 1, buffer);
    flush_halves(buffer, wave.mode.flushes_f16_f64_inputs());
    for (int l = 0; l < lanes; ++l) values[l] = buffer[l];
  } else {
    alignas(64) Lanes<float> buffer;
    memcpy(values, load_source(wave, operand, false, buffer), sizeof values);
  }
}
void fused_mixed(Wave& wave, const Instruction& inst, Lanes<float>& results) {
  alignas(64) Lanes<float> a, b, c;
  load_mixed(wave, inst, 0, a);
  load_mixed(wave, inst, 1, b);
  load_mixed(wave, inst, 2, c);
  for (int l = 0; l < lanes; ++l) results[l] = fused_sum(a[l], b[l], c[l]);
}
VECTOR_STATE(v_fma_mix_f32, f32) {
  alignas(64) Lanes<float> results;
  fused_mixed(wave, inst, results);
  apply_output_modifiers(wave, inst, results);
  store_result<float>(wave, inst.dst, results, HalfResult::clears_upper, false);
}
void store_mixed_half(Wave& wave, const Instruction& inst, bool high) {
  alignas(64) Lanes<float> results;
  Lanes<Half> halves;
  fused_mixed(wave, inst, results);
  const F16Environment environment(wave);
  for (int l = 0; l < lanes; ++l) halves[l] = Half::from(results[l]);
  apply_output_modifiers(wave, inst, halves);
  flush_halves(halves, wave.mode.flushes_f16_f64_results());
  store_result<Half>(wave, inst.dst, halves, HalfResult::keeps_other, high);
}
VECTOR_STATE(v_fma_mixlo_f16, f32) { store_mixed_half(wave, inst, false); }
VECTOR_STATE(v_fma_mixhi_f16, f32) { store_mixed_half(wave, inst, true); }

// ---- Dot products over the packed elements of a dword ----

template <class Element, int bits>
Element element(uint32_t packed, int index) {
  const int left = 32 - bits * (index + 1);
  if constexpr (std::is_signed_v<Element>) return Element(int32_t(packed << left) >> (32 - bits));
  else return Element(packed << left >> (32 - bits));
}
template <class Element, int bits>
int64_t dot(uint32_t a, uint32_t b, int64_t sum) {
  for (int i = 0; i < 32 / bits; ++i) sum += int64_t(element<Element, bits>(a, i)) * element<Element, bits>(b, i);
  return sum;
}
float half_dot(uint32_t a, uint32_t b, float sum) {
  const float low = product_of(f16_to_f32(uint16_t(a)), f16_to_f32(uint16_t(b)));
  const float high = product_of(f16_to_f32(uint16_t(a >> 16)), f16_to_f32(uint16_t(b >> 16)));
  return sum_of(sum_of(low, high), sum);
}

template <class Result, class Element, int bits, bool clamping>
Result dot_lane(uint32_t a, uint32_t b, Result c) {
  const int64_t sum = dot<Element, bits>(a, b, c);
  return clamping ? saturated<Result>(sum) : Result(sum);
}
template <class Result, class Element, int bits>
void bind_dot(Instruction& inst) {
  inst.vop.op_sel = 0;
  inst.vop.clamp ? bind_lanes<dot_lane<Result, Element, bits, true>>(inst)
                 : bind_lanes<dot_lane<Result, Element, bits, false>>(inst);
}
template <class Result, class Element, int bits>
void bind_accumulating_dot(Instruction& inst) {
  inst.src[2] = inst.dst;
  bind_dot<Result, Element, bits>(inst);
}
const Semantics dot2_i32_i16(Op::v_dot2_i32_i16, bind_dot<int32_t, int16_t, 16>);
const Semantics dot2_u32_u16(Op::v_dot2_u32_u16, bind_dot<uint32_t, uint16_t, 16>);
const Semantics dot4_i32_i8(Op::v_dot4_i32_i8, bind_dot<int32_t, int8_t, 8>);
const Semantics dot4_u32_u8(Op::v_dot4_u32_u8, bind_dot<uint32_t, uint8_t, 8>);
const Semantics dot8_i32_i4(Op::v_dot8_i32_i4, bind_dot<int32_t, int8_t, 4>);
const Semantics dot8_u32_u4(Op::v_dot8_u32_u4, bind_dot<uint32_t, uint8_t, 4>);
const Semantics dot2c_i32_i16(Op::v_dot2c_i32_i16, bind_accumulating_dot<int32_t, int16_t, 16>);
const Semantics dot4c_i32_i8(Op::v_dot4c_i32_i8, bind_accumulating_dot<int32_t, int8_t, 8>);
const Semantics dot8c_i32_i4(Op::v_dot8c_i32_i4, bind_accumulating_dot<int32_t, int8_t, 4>);
VECTOR(v_dot2_f32_f16, float, (uint32_t a, uint32_t b, float c), return half_dot(a, b, c))
VECTOR_ACCUMULATE(v_dot2c_f32_f16, float, (uint32_t a, uint32_t b, float d), return half_dot(a, b, d))

const Approximate half_dots({Op::v_dot2_f32_f16, Op::v_dot2c_f32_f16},
                            "two products and two sums, each rounded to f32; the chip's roundings are not published");

}  // namespace
}  // namespace mi300x

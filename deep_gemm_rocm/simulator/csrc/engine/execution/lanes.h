// How a vector instruction that is one function of its operands runs over the 64 lanes of a wave.
#pragma once

#include <type_traits>
#include <utility>

#include "float_formats.h"
#include "wave.h"

namespace mi300x {

// A 16-bit float in a lane. A type of its own, so that loads, constants and modifiers treat it as a float.
struct Half {
  uint16_t bits;
  operator float() const { return f16_to_f32(bits); }
  static Half from(float value) { return {f32_to_f16(value)}; }
};

// A 16-bit float whose subnormals no mode flushes.
struct PlainHalf {
  uint16_t bits;
};

template <class T>
constexpr ConstantType constant_type() {
  if constexpr (std::is_same_v<T, float>) return ConstantType::f32;
  else if constexpr (std::is_same_v<T, double>) return ConstantType::f64;
  else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, PlainHalf>) return ConstantType::f16;
  else if constexpr (std::is_same_v<T, int64_t>) return ConstantType::i64;
  else if constexpr (sizeof(T) == 8) return ConstantType::b64;
  else return ConstantType::b32;
}

template <class T>
constexpr bool is_float = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, Half> ||
                          std::is_same_v<T, PlainHalf>;

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

template <class T>
using Lanes = T[lanes];

// Calls f with each active lane until it returns false.
template <class F>
inline bool for_active_lanes(const Wave& wave, F f) {
  const uint64_t exec = wave.exec();
  if (exec == ~0ull) {
    for (int lane = 0; lane < lanes; ++lane)
      if (!f(lane)) return false;
    return true;
  }
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1)
    if (!f(__builtin_ctzll(rest))) return false;
  return true;
}

// The lanes of a source operand: the register row itself, or `buffer` where they must be converted. `high` takes the
// upper half of 16-bit operands.
template <class T>
const T* load_source(Wave& wave, const Operand& operand, bool high, Lanes<T>& buffer) {
  using Bits = BitsOf<T>;
  Bits* bits = reinterpret_cast<Bits*>(buffer);
  if (operand.kind != Operand::Kind::vector) {
    const uint64_t value = wave.read_scalar(operand);
    const Bits lane = sizeof(T) == 2 && high ? Bits(value >> 16) : Bits(value);
    for (int l = 0; l < lanes; ++l) bits[l] = lane;
  } else {
    const uint32_t* row = wave.row(operand.index);
    if constexpr (sizeof(T) == 4) {
      if (!operand.neg && !operand.abs) return reinterpret_cast<const T*>(row);
      for (int l = 0; l < lanes; ++l) bits[l] = row[l];
    } else if constexpr (sizeof(T) == 8) {
      for (int l = 0; l < lanes; ++l) bits[l] = row[l] | uint64_t(row[lanes + l]) << 32;
    } else {
      const int shift = high ? 16 : 0;
      for (int l = 0; l < lanes; ++l) bits[l] = Bits(row[l] >> shift);
    }
  }
  if constexpr (is_float<T>) {
    constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1));
    if (operand.abs)
      for (int l = 0; l < lanes; ++l) bits[l] &= Bits(~sign);
    if (operand.neg)
      for (int l = 0; l < lanes; ++l) bits[l] ^= sign;
  }
  return buffer;
}

inline void store_row(uint32_t* row, const uint32_t* values, uint64_t exec) {
  if (exec == ~0ull) {
    memcpy(row, values, lanes * sizeof(uint32_t));
    return;
  }
  for (int l = 0; l < lanes; ++l) row[l] = exec >> l & 1 ? values[l] : row[l];
}

// VOP3 forms of 16-bit instructions that take op_sel write one half and keep the other; the others clear the upper
// half, but keep the lower one if op_sel makes them write the upper.
enum class HalfResult { clears_upper, keeps_other };

template <class T>
void store_result(Wave& wave, const Operand& operand, const Lanes<T>& values, HalfResult half, bool high) {
  const uint64_t exec = wave.exec();
  uint32_t* row = wave.row(operand.index);
  if constexpr (sizeof(T) == 4) {
    store_row(row, reinterpret_cast<const uint32_t*>(values), exec);
  } else if constexpr (sizeof(T) == 8) {
    const uint64_t* bits = reinterpret_cast<const uint64_t*>(values);
    alignas(64) Lanes<uint32_t> low, upper;
    for (int l = 0; l < lanes; ++l) low[l] = uint32_t(bits[l]);
    for (int l = 0; l < lanes; ++l) upper[l] = uint32_t(bits[l] >> 32);
    store_row(row, low, exec);
    store_row(row + lanes, upper, exec);
  } else {
    const uint16_t* bits = reinterpret_cast<const uint16_t*>(values);
    alignas(64) Lanes<uint32_t> merged;
    const uint32_t kept = high ? 0xFFFF : half == HalfResult::clears_upper ? 0 : 0xFFFF0000;
    const int shift = high ? 16 : 0;
    for (int l = 0; l < lanes; ++l) merged[l] = (row[l] & kept) | uint32_t(bits[l]) << shift;
    store_row(row, merged, exec);
  }
}

template <class T>
T clamped(T value, bool dx10) {
  if constexpr (std::is_same_v<T, Half>) {
    return Half::from(clamped(float(value), dx10));
  } else {
    if (value != value) return dx10 ? T(0) : value;
    return value < T(0) ? T(0) : value > T(1) ? T(1) : value;
  }
}

template <class T>
T scaled(T value, int omod) {
  constexpr float factors[4] = {1.0f, 2.0f, 4.0f, 0.5f};
  if constexpr (std::is_same_v<T, Half>) {
    const Half result = Half::from(float(value) * factors[omod]);
    return result.bits & 0x7C00 ? result : Half{0};
  } else {
    const T result = value * T(factors[omod]);
    return std::fabs(result) < std::numeric_limits<T>::min() ? T(0) : result;
  }
}

// CDNA3 ISA, "Output modifiers": they are ignored where the mode is IEEE or keeps subnormal results. Otherwise
// subnormals and -0 become +0.
template <class T>
bool scales_results(const Mode& mode) {
  return !mode.ieee() && (std::is_same_v<T, float> ? mode.flushes_f32_results() : mode.flushes_f16_f64_results());
}

template <class T>
void apply_output_modifiers(const Wave& wave, const Instruction& inst, Lanes<T>& values) {
  if constexpr (is_float<T>) {
    if (inst.vop.omod && scales_results<T>(wave.mode))
      for (int l = 0; l < lanes; ++l) values[l] = scaled(values[l], inst.vop.omod);
    if (inst.vop.clamp)
      for (int l = 0; l < lanes; ++l) values[l] = clamped(values[l], wave.mode.dx10_clamp());
  }
}

inline uint64_t mask_of(const Lanes<bool>& values) {
  // Multiplying 8 lanes of one byte each gathers their bits in the highest byte; no other partial sum reaches it.
  constexpr uint64_t gathers_bits = 0x0102040810204080;
  uint64_t mask = 0;
  for (int l = 0; l < lanes; l += 8) {
    uint64_t bytes;
    memcpy(&bytes, values + l, sizeof bytes);
    mask |= bytes * gathers_bits >> 56 << l;
  }
  return mask;
}

// Switches to the rounding and denormal handling of f64 during an instruction, where it differs from f32's.
class F64Environment {
 public:
  explicit F64Environment(const Wave& wave)
      : wave_(wave), differs_((wave.mode.bits & 0x33) != (wave.mode.bits >> 2 & 0x33)) {
    if (differs_) apply_mode_f64(wave.mode);
  }
  ~F64Environment() {
    if (differs_) apply_mode(wave_.mode);
  }

 private:
  const Wave& wave_;
  const bool differs_;
};
class F16Environment {
 public:
  explicit F16Environment(const Wave& wave)
      : wave_(wave), differs_(wave.mode.round_f32() != wave.mode.round_f16_f64()) {
    if (differs_) apply_mode_f16(wave.mode);
  }
  ~F16Environment() {
    if (differs_) apply_mode(wave_.mode);
  }

 private:
  const Wave& wave_;
  const bool differs_;
};
// Memory and LDS round to nearest even in every mode (CDNA3 ISA, "Rounding of float atomics"). Subnormals stay, unless
// the unit heeds the mode's handling of those of f32.
class MemoryEnvironment {
 public:
  MemoryEnvironment(const Wave& wave, bool heeds_mode) : wave_(wave) {
    const uint32_t subnormals = heeds_mode ? wave.mode.bits & keep_subnormals : keep_subnormals;
    differs_ = (wave.mode.bits & (rounding | keep_subnormals)) != subnormals;
    if (differs_) apply_mode(Mode{subnormals});
  }
  ~MemoryEnvironment() {
    if (differs_) apply_mode(wave_.mode);
  }

 private:
  static constexpr uint32_t rounding = 0x3, keep_subnormals = 0x30;  // MODE's fields for f32

  const Wave& wave_;
  bool differs_;
};
// Flushes f16 subnormals, which the host doesn't, since they are normal in f32.
inline void flush_halves(Half* values, bool flushes) {
  if (!flushes) return;
  for (int l = 0; l < lanes; ++l) values[l].bits &= values[l].bits & 0x7C00 ? 0xFFFF : 0x8000;
}

struct NoEnvironment {
  explicit NoEnvironment(const Wave&) {}
};
template <class Float>
using EnvironmentOf =
    std::conditional_t<std::is_same_v<Float, double>, F64Environment,
                       std::conditional_t<std::is_same_v<Float, Half>, F16Environment, NoEnvironment>>;

// Lets the compiler vectorise the next loop although its pointers may alias.
#ifdef __clang__
#define INDEPENDENT_LANES _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT_LANES _Pragma("GCC ivdep")
#endif

template <auto f, HalfResult half, class Signature>
struct LaneOperation;

template <auto f, HalfResult half, class Result, class... Sources>
struct LaneOperation<f, half, Result (*)(Sources...)> {
  static constexpr bool uses_f64 = (std::is_same_v<Sources, double> || ...) || std::is_same_v<Result, double>;

  static constexpr bool uses_f16 = (std::is_same_v<Sources, Half> || ...) || std::is_same_v<Result, Half>;

  static void run(Wave& wave, const Instruction& inst) { run(wave, inst, std::index_sequence_for<Sources...>()); }

  static void bind(Instruction& inst) {
    bind_constants(inst, std::index_sequence_for<Sources...>());
    inst.handler = run;
  }

 private:
  template <size_t... index>
  static void bind_constants(Instruction& inst, std::index_sequence<index...>) {
    (resolve_constant(inst.src[index], constant_type<Sources>(), inst.literal), ...);
  }

  template <size_t... index>
  static void run(Wave& wave, const Instruction& inst, std::index_sequence<index...>) {
    using F16OrNone = std::conditional_t<uses_f16, F16Environment, NoEnvironment>;
    const std::conditional_t<uses_f64, F64Environment, F16OrNone> environment(wave);
    Buffers<Sources...> buffers;
    compute(wave, inst, load_source<Sources>(wave, inst.src[index], inst.vop.op_sel >> index & 1,
                                             buffers.template get<index>())...);
  }

  static void compute(Wave& wave, const Instruction& inst, const Sources*... sources) {
    (flush_source(wave, sources), ...);
    if constexpr (sizeof(Result) == 4) {
      if (wave.exec() == ~0ull && !inst.vop.omod && !inst.vop.clamp) {
        // Results may overwrite sources, but only those of the same lane.
        Result* results = reinterpret_cast<Result*>(wave.row(inst.dst.index));
        INDEPENDENT_LANES
        for (int l = 0; l < lanes; ++l) results[l] = f(sources[l]...);
        return;
      }
    }
    alignas(64) Lanes<Result> results;
    for (int l = 0; l < lanes; ++l) results[l] = f(sources[l]...);
    if constexpr (std::is_same_v<Result, bool>) {
      wave.write_scalar(inst.sdst, mask_of(results) & wave.exec());
    } else {
      apply_output_modifiers(wave, inst, results);
      if constexpr (std::is_same_v<Result, Half>) flush_halves(results, wave.mode.flushes_f16_f64_results());
      store_result<Result>(wave, inst.dst, results, half, inst.vop.op_sel >> 3 & 1);
    }
  }

  // Halves are in a buffer, never in the registers themselves.
  template <class Source>
  static void flush_source(const Wave& wave, const Source* source) {
    if constexpr (std::is_same_v<Source, Half>)
      flush_halves(const_cast<Half*>(source), wave.mode.flushes_f16_f64_inputs());
  }

  template <class... T>
  struct Buffers;
  template <class First, class... Rest>
  struct Buffers<First, Rest...> {
    alignas(64) Lanes<First> first;
    Buffers<Rest...> rest;
    template <size_t i>
    auto& get() {
      if constexpr (i == 0) return first;
      else return rest.template get<i - 1>();
    }
  };
  template <class Last>
  struct Buffers<Last> {
    alignas(64) Lanes<Last> first;
    template <size_t>
    auto& get() { return first; }
  };
};

template <auto f, HalfResult half = HalfResult::clears_upper>
void bind_lanes(Instruction& inst) {
  LaneOperation<f, half, decltype(f)>::bind(inst);
}

// The destination is also the last source (V_FMAC and its like).
template <auto f, int source>
void bind_accumulating(Instruction& inst) {
  inst.src[source] = inst.dst;
  bind_lanes<f>(inst);
}

// V_FMAMK and its like: the literal is the factor. V_FMAAK: it is the addend.
inline Operand literal_operand(const Instruction& inst) {
  Operand operand;
  operand.kind = Operand::Kind::constant;
  operand.dwords = 1;
  operand.constant = inst.literal;
  operand.index = 255;
  return operand;
}
template <auto f>
void bind_literal_factor(Instruction& inst) {
  inst.src[2] = inst.src[1];
  inst.src[1] = literal_operand(inst);
  bind_lanes<f>(inst);
}
template <auto f>
void bind_literal_addend(Instruction& inst) {
  inst.src[2] = literal_operand(inst);
  bind_lanes<f>(inst);
}

// Defines a vector instruction by its function of one lane, e.g. VECTOR(v_add_f32, float, (float a, float b), return a
// + b)
#define VECTOR(name, result, parameters, ...)        \
  inline result name##_lane parameters { __VA_ARGS__; } \
  const Semantics name##_semantics(Op::name, bind_lanes<name##_lane>);

// A 16-bit instruction whose op_sel picks the half that is written.
#define VECTOR_OP_SEL(name, result, parameters, ...)  \
  inline result name##_lane parameters { __VA_ARGS__; } \
  const Semantics name##_semantics(Op::name, bind_lanes<name##_lane, HalfResult::keeps_other>);

// Two sources and the destination as the third one.
#define VECTOR_ACCUMULATE(name, result, parameters, ...) \
  inline result name##_lane parameters { __VA_ARGS__; }    \
  const Semantics name##_semantics(Op::name, bind_accumulating<name##_lane, 2>);

// Defines an instruction that isn't a function of one lane, by a body with `wave` and `inst`.
#define VECTOR_STATE(name, type)                                                        \
  void name##_run(Wave& wave, const Instruction& inst);                                 \
  const Semantics name##_semantics(Op::name, bind_handler<name##_run, ConstantType::type>); \
  void name##_run([[maybe_unused]] Wave& wave, [[maybe_unused]] const Instruction& inst)

template <Handler handler, ConstantType type>
void bind_handler(Instruction& inst) {
  for (Operand& operand : inst.src) resolve_constant(operand, type, inst.literal);
  inst.handler = handler;
}

}  // namespace mi300x

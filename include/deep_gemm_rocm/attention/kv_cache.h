// Writes keys and values of new tokens to a paged cache. A wave writes a token, each lane 8 elements of a head at a
// time. For an FP8 cache they are divided by descale factors. These are given, or computed for each token and head: the
// largest magnitude divided by the largest FP8 number.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/decode_arguments.h"
#include "deep_gemm_rocm/attention/slots.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"
#include "deep_gemm_rocm/quantise/magnitude.h"

namespace deep_gemm_rocm {

// Keys or values. Strides are in elements.
struct AppendedHeads {
  HeadsTensor tokens;  // [tokens, heads, width]
  PagedTensor cache;
  PagedTensor descale;  // fp32, the factors of FP8 elements; null if they are 1
  int width;
};

// AppendKvArguments in launch/kv_cache.py is the same.
struct AppendKvArguments {
  AppendedHeads k, v;
  const void* slots;  // int or int64_t [tokens]; a token whose slot isn't in the cache is not written
  int64_t num_slots;
  int tokens, heads, page_size;
  int has_wide_slots;  // whether slots are int64_t
};

constexpr int kAppendedVector = 8;

// Divided by the descale, clamped and rounded.
template <class T>
DG_DEVICE Vector<uint8_t, kAppendedVector> quantised_vector(const Vector<T, kAppendedVector>& values, float descale) {
  constexpr float kMax = Storage<E4M3>::kMax;
  float scaled[kAppendedVector];
#pragma unroll
  for (int i = 0; i < kAppendedVector; ++i) scaled[i] = clamped(static_cast<float>(values[i]) / descale, kMax);
  return Storage<E4M3>::rounded<kAppendedVector>(scaled);
}

// The keys or the values of a token.
template <class T, class Cache>
class HeadsAppender {
  using Values = Vector<T, kAppendedVector>;
  using Stored = Vector<Conditional<kIsSame<Cache, E4M3>, uint8_t, T>, kAppendedVector>;

 public:
  DG_DEVICE HeadsAppender(const AppendedHeads& of, int heads, const AppendedToken& to)
      : of_(of), to_(to), heads_(heads), vectors_(of.width / kAppendedVector) {}

  // Writes an FP8 cache with the given factors, and any other cache as it is.
  DG_DEVICE void append() const {
    for (int i = lane_id(); i < heads_ * vectors_; i += kWaveSize) {
      const int head = i / vectors_;
      const int vector = i % vectors_;
      if constexpr (kIsSame<Cache, E4M3>) {
        const float descale = of_.descale.data == nullptr ? 1 : *factor_of(head);
        store(head, vector, quantised_vector<T>(load(head, vector), descale));
      } else {
        store(head, vector, load(head, vector));
      }
    }
  }

  // Computes and stores a factor for each head. A head takes a power of two of neighbouring lanes.
  DG_DEVICE void append_with_factors() const {
    const int lanes = 1 << (32 - __builtin_clz(vectors_ - 1));
    const int vector = lane_id() % lanes;
    for (int first = 0; first < heads_; first += kWaveSize / lanes) {
      const int head = first + lane_id() / lanes;
      const bool exists = head < heads_ && vector < vectors_;
      const Values values = exists ? load(head, vector) : Values{};
      const float factor = factor_for(largest_over_lanes(values, lanes));
      if (!exists) continue;
      store(head, vector, quantised_vector<T>(values, factor));
      if (vector == 0) *factor_of(head) = factor;
    }
  }

 private:
  DG_DEVICE Values load(int head, int vector) const {
    const int64_t value = of_.tokens.offset(0, to_.token, head) + vector * kAppendedVector;
    return load_global<Values>(static_cast<const uint8_t*>(of_.tokens.data) + value * static_cast<int64_t>(sizeof(T)));
  }

  DG_DEVICE void store(int head, int vector, const Stored& values) const {
    const int64_t value = place_of(of_.cache, head) + vector * kAppendedVector;
    auto* const cache = static_cast<uint8_t*>(const_cast<void*>(of_.cache.data));
    *(Global<Stored>*)(cache + value * static_cast<int64_t>(sizeof(values[0]))) = values;
  }

  DG_DEVICE Global<float>* factor_of(int head) const {
    return (Global<float>*)(static_cast<const float*>(of_.descale.data) + place_of(of_.descale, head));
  }

  DG_DEVICE int64_t place_of(const PagedTensor& tensor, int head) const {
    return to_.page * tensor.page_stride + to_.in_page * tensor.token_stride + head * tensor.head_stride;
  }

  static DG_DEVICE unsigned largest_over_lanes(const Values& values, int lanes) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kAppendedVector; ++i) largest = max(largest, magnitude_of(static_cast<float>(values[i])));
    for (int distance = 1; distance < lanes; distance *= 2) {
      largest = max(largest, static_cast<unsigned>(exchange(static_cast<int>(largest), lane_id() ^ distance)));
    }
    return largest;
  }

  // At least the smallest normal number, so that zeros aren't divided by zero. NaN and infinity stay.
  static DG_DEVICE float factor_for(unsigned magnitude) {
    const float factor = __builtin_bit_cast(float, magnitude) / Storage<E4M3>::kMax;
    return factor < __FLT_MIN__ ? __FLT_MIN__ : factor;
  }

  const AppendedHeads& of_;
  const AppendedToken& to_;
  int heads_;
  int vectors_;  // of a head
};

template <class T, class Cache, bool kFactorsOfTokens>
DG_DEVICE void append_kv_token(const AppendKvArguments& args, int workgroup) {
  const AppendedToken to = appended_token(args, workgroup);
  if (!to.exists) return;
  const HeadsAppender<T, Cache> keys(args.k, args.heads, to);
  const HeadsAppender<T, Cache> values(args.v, args.heads, to);
  if constexpr (kFactorsOfTokens) {
    keys.append_with_factors();
    values.append_with_factors();
  } else {
    keys.append();
    values.append();
  }
}

}  // namespace deep_gemm_rocm

// Writes keys and values of tokens to a paged cache. A wave writes a token, each lane 8 values of a head at a time.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/decode_arguments.h"
#include "deep_gemm_rocm/attention/slots.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Keys or values. Strides are in elements.
struct AppendedHeads {
  HeadsTensor tokens;  // [tokens, heads, width]
  PagedTensor cache;
  const float* descale;  // what FP8 values are multiplied with, of each head; or null
  int64_t descale_stride;
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

// Divided by the descale and rounded. What is too large becomes the largest number; NaN stays.
template <class T>
DG_DEVICE Vector<uint8_t, kAppendedVector> quantised_vector(const Vector<T, kAppendedVector>& values, float descale) {
  constexpr float kMax = Storage<E4M3>::kMax;
  float scaled[kAppendedVector];
#pragma unroll
  for (int i = 0; i < kAppendedVector; ++i) {
    const float quotient = static_cast<float>(values[i]) / descale;
    scaled[i] = __builtin_isnan(quotient) ? quotient : __builtin_amdgcn_fmed3f(quotient, -kMax, kMax);
  }
  return Storage<E4M3>::rounded<kAppendedVector>(scaled);
}

template <class T, class Cache>
DG_DEVICE void append_heads(const AppendedHeads& of, int heads, int token, int page, int in_page) {
  using Values = Vector<T, kAppendedVector>;
  using Stored = Vector<Conditional<kIsSame<Cache, E4M3>, uint8_t, T>, kAppendedVector>;
  const int vectors = of.width / kAppendedVector;  // of a head
  for (int i = lane_id(); i < heads * vectors; i += kWaveSize) {
    const int head = i / vectors;
    const int value = i % vectors * kAppendedVector;
    const T* const from = static_cast<const T*>(of.tokens.data) + of.tokens.offset(0, token, head) + value;
    const auto values = load_global<Values>(reinterpret_cast<const uint8_t*>(from));
    const int64_t place =
        page * of.cache.page_stride + in_page * of.cache.token_stride + head * of.cache.head_stride + value;
    auto* const to = const_cast<uint8_t*>(static_cast<const uint8_t*>(of.cache.data)) + place * sizeof(Stored) / kAppendedVector;
    if constexpr (kIsSame<Cache, E4M3>) {
      const float descale = of.descale == nullptr ? 1 : of.descale[head * of.descale_stride];
      *(Global<Stored>*)to = quantised_vector<T>(values, descale);
    } else {
      *(Global<Stored>*)to = values;
    }
  }
}

template <class T, class Cache>
DG_DEVICE void append_kv_token(const AppendKvArguments& args, int workgroup) {
  const int token = workgroup * kAppendedTokens + wave_id();
  if (token >= args.tokens) return;
  const int64_t slot = slot_of(args.slots, args.has_wide_slots, token);
  if (slot < 0 || slot >= args.num_slots) return;
  const int page = static_cast<unsigned>(slot) / args.page_size;
  const int in_page = static_cast<unsigned>(slot) % args.page_size;
  append_heads<T, Cache>(args.k, args.heads, token, page, in_page);
  append_heads<T, Cache>(args.v, args.heads, token, page, in_page);
}

}  // namespace deep_gemm_rocm

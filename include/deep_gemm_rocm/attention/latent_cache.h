// Writes new tokens to DeepSeek's latent (MLA) cache, which holds a token's latent vector and its rotary part.
//
// A wave writes a token. Each lane takes 16 bytes of the latent vector and quantises them for FP8 caches. The first
// lanes also take 16 bytes of the rotary part each.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/latent_layout.h"
#include "deep_gemm_rocm/attention/slots.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Strides are in elements of their tensor. AppendLatentArguments in launch/latent_cache.py is the same.
struct AppendLatentArguments {
  const void* latent;  // bf16 [tokens, width of the layout]
  const void* rotary;  // bf16 [tokens, 64]
  uint8_t* cache;
  const void* slots;   // int or int64_t [tokens]; a token whose slot isn't in the cache is not written
  int64_t latent_stride, rotary_stride;
  int64_t page_bytes;  // from page to page
  int64_t num_slots;
  int tokens, page_size;
  int has_wide_slots;  // whether slots are int64_t
  int is_ocp;          // whether FP8 is OCP's e4m3fn rather than e4m3fnuz
  const float* descale;  // the one factor of FP8 layouts without scales of their own; null if it is 1
};

constexpr int kRotaryLanes = 64 / kLatentVector;
// Lanes that share a scale.
template <class Layout>
constexpr int kScaledLanes = Layout::kScaledValues / kLatentVector;

// The scale that kLanes neighbouring lanes share: their largest magnitude divided by the largest FP8 number.
template <int kLanes>
DG_DEVICE float latent_scale(const Chunk& values, float fp8_max) {
  constexpr unsigned kMagnitude = 0x7fff;
  constexpr float kSmallestNormal = 0x1p-126f;
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, max(values[i] & kMagnitude, values[i] >> 16 & kMagnitude));
  // bf16 magnitudes are compared as integers, so that NaN is the largest. fp32 holds integers of 15 bits exactly.
  const auto of_lanes = static_cast<unsigned>(max_over_neighbours<kLanes>(static_cast<float>(largest)));
  const float scale = __builtin_bit_cast(float, of_lanes << 16) / fp8_max;
  return scale < kSmallestNormal ? kSmallestNormal : scale;
}

// The least power of two that isn't below `scale`, as e8m0; 255, which is NaN, for infinity and NaN.
DG_DEVICE unsigned power_of_two_above(float scale) {
  const unsigned bits = __builtin_bit_cast(unsigned, scale);
  return min((bits + 0x7fffff) >> 23, 255u);
}

using LatentBytes = Vector<uint8_t, kLatentVector>;

DG_DEVICE float latent_value(const Chunk& values, int i) {
  const unsigned word = values[i / 2];
  return __builtin_bit_cast(float, i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

// Divides by the scale and rounds. OCP's e4m3fn has the bytes that e4m3fnuz has for half the number.
DG_DEVICE LatentBytes quantised_latent(const Chunk& values, float scale, bool is_ocp) {
  float scaled[kLatentVector];
#pragma unroll
  for (int i = 0; i < kLatentVector; ++i) scaled[i] = latent_value(values, i) / scale * (is_ocp ? 0.5f : 1);
  return Storage<E4M3>::rounded<kLatentVector>(scaled);
}

// As quantised_latent(), but saturates: with a given scale, values may be beyond FP8's range.
DG_DEVICE LatentBytes saturated_latent(const Chunk& values, float scale, bool is_ocp) {
  constexpr uint8_t kNan = 0x80, kOcpNan = 0x7f;
  const float factor = is_ocp ? 0.5f : 1;
  const float most = is_ocp ? 224.0f : 240.0f;
  float scaled[kLatentVector];
#pragma unroll
  for (int i = 0; i < kLatentVector; ++i) scaled[i] = clamped(latent_value(values, i) / scale * factor, most);
  LatentBytes bytes = Storage<E4M3>::rounded<kLatentVector>(scaled);
#pragma unroll
  for (int i = 0; i < kLatentVector; ++i) bytes[i] = is_ocp && bytes[i] == kNan ? kOcpNan : bytes[i];
  return bytes;
}

// Writes the lane's values that have no scale of their own: in bf16 as they are, in FP8 divided by the descale.
template <bool kIsFp8>
DG_DEVICE void append_lane(const AppendLatentArguments& args, uint8_t* first, const Chunk& values) {
  if constexpr (kIsFp8) {
    const float descale = args.descale == nullptr ? 1 : *(const Global<float>*)args.descale;
    *(Global<LatentBytes>*)(first + lane_id() * kLatentVector) = saturated_latent(values, descale, args.is_ocp);
  } else {
    *(Global<Chunk>*)(first + lane_id() * kChunkBytes) = values;
  }
}

template <class Layout>
DG_DEVICE void append_latent_token(const AppendLatentArguments& args, int workgroup) {
  const auto [token, page, in_page, exists] = appended_token(args, workgroup);
  if (!exists) return;
  uint8_t* const first = args.cache + page * args.page_bytes;
  uint8_t* const written = first + in_page * Layout::kTokenBytes;
  const int lane = lane_id();

  if (lane < kRotaryLanes) {
    const auto* rotary = static_cast<const uint8_t*>(args.rotary) + token * args.rotary_stride * 2;
    const Chunk values = load_global<Chunk>(rotary + lane * kChunkBytes);
    append_lane<Layout::kIsFp8 && !Layout::kHasScales>(args, written + Layout::kRotaryOffset, values);
  }
  constexpr int kLanes = Layout::kWidth / kLatentVector;
  const auto* latent = static_cast<const uint8_t*>(args.latent) + token * args.latent_stride * 2;
  const Chunk values = load_global<Chunk>(latent + min(lane, kLanes - 1) * kChunkBytes);
  if constexpr (!Layout::kHasScales) {
    if (kLanes == kWaveSize || lane < kLanes) append_lane<Layout::kIsFp8>(args, written, values);
  } else {
    float scale = latent_scale<kScaledLanes<Layout>>(values, args.is_ocp ? 448.0f : 240.0f);
    unsigned power = 0;
    if constexpr (Layout::kHasPowers) {
      power = power_of_two_above(scale);
      scale = __builtin_bit_cast(float, power << 23);
    }
    if (lane < kLanes) {
      *(Global<LatentBytes>*)(written + lane * kLatentVector) = quantised_latent(values, scale, args.is_ocp);
    }
    if (lane % kScaledLanes<Layout> != 0) return;
    const int block = lane / kScaledLanes<Layout>;
    if constexpr (Layout::kHasPowers) {
      uint8_t* const scales = first + args.page_size * Layout::kTokenBytes + in_page * Layout::kScaleBytes;
      *(Global<uint8_t>*)(scales + block) = lane < kLanes ? power : 0;
    } else {
      *(Global<float>*)(written + Layout::kScaleOffset + block * 4) = scale;
    }
  }
}

}  // namespace deep_gemm_rocm

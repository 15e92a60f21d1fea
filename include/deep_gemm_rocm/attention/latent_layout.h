// The layouts of a token in DeepSeek's latent cache, and conversions between the two formats of FP8.
#pragma once

#include "deep_gemm_rocm/arithmetic/widening.h"
#include "deep_gemm_rocm/hardware/buffer_intrinsics.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

constexpr int kLatentVector = kChunkBytes / sizeof(__bf16);  // elements that a lane moves at once

// 16-bit values in order: the latent vector, and then the rotary part. Attention multiplies them as they are.
struct Latent16 {
  static constexpr bool kIsFp8 = false;
  static constexpr bool kHasRotary = false;  // whether the rotary part has another type than the other values
  static constexpr bool kHasScales = false;
  static constexpr bool kHasPowers = false;
  static constexpr int kTokenBytes = 0;
  using Scales = int;
};

// For writing: kWidth_ values and the rotary part in bf16.
template <int kWidth_>
struct LatentBf16 {
  static constexpr bool kIsFp8 = false;
  static constexpr bool kHasScales = false;
  static constexpr int kWidth = kWidth_;
  static constexpr int kTokenBytes = (kWidth + 64) * 2;
  static constexpr int kRotaryOffset = kWidth * 2;
};

// For writing: 512 values and the rotary part in FP8, without scales of their own.
struct Latent576 {
  static constexpr bool kIsFp8 = true;
  static constexpr bool kHasScales = false;
  static constexpr int kWidth = 512;
  static constexpr int kTokenBytes = 576;
  static constexpr int kRotaryOffset = 512;
};

// All values in FP8, without scales of their own.
struct LatentFp8 {
  static constexpr bool kIsFp8 = true;
  static constexpr bool kHasRotary = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kHasPowers = false;
  static constexpr int kTokenBytes = 0;
  using Scales = int;
};

// 512 FP8 values, four fp32 scales, and the rotary part in bf16.
struct Latent656 {
  static constexpr int kWidth = 512;
  static constexpr int kTokenBytes = 656;
  static constexpr int kScaleOffset = 512;
  static constexpr int kRotaryOffset = 528;
  static constexpr int kScaledValues = 128;
  static constexpr bool kIsFp8 = true;
  static constexpr bool kHasRotary = true;
  static constexpr bool kHasScales = true;
  static constexpr bool kHasPowers = false;
  using Scales = Vector<float, 4>;
};

// 448 FP8 values and the rotary part in bf16. After all tokens of a page come their scales, eight bytes for each token:
// seven powers of two as e8m0, and a byte of padding.
struct Latent584 {
  static constexpr int kWidth = 448;
  static constexpr int kTokenBytes = 576;
  static constexpr int kScaleBytes = 8;
  static constexpr int kRotaryOffset = 448;
  static constexpr int kScaledValues = 64;
  static constexpr bool kIsFp8 = true;
  static constexpr bool kHasRotary = true;
  static constexpr bool kHasScales = true;
  static constexpr bool kHasPowers = true;
  using Scales = HalfChunk;
};

// Converts four bytes of OCP's e4m3fn to e4m3fnuz with half the value. The bytes are the same but for -0, whose byte is
// FNUZ's NaN, and for NaN, which in OCP is the largest magnitude.
DG_DEVICE unsigned fnuz_of_ocp(unsigned bytes) {
  constexpr unsigned kSigns = 0x80808080u;
  const unsigned magnitudes = bytes & ~kSigns;
  const unsigned not_zero = magnitudes + ~kSigns;              // the sign bit is set in bytes other than 0 and -0
  const unsigned nan = (magnitudes + 0x01010101u) & kSigns;
  return (bytes & (not_zero | ~kSigns) & ~(nan - (nan >> 7))) | nan;
}

// e8m0: a power of two. 255 is NaN.
DG_DEVICE float power_of_e8m0(unsigned byte) {
  return byte == 255 ? __builtin_nanf("") : __builtin_ldexpf(1, static_cast<int>(byte) - 127);
}

// widened_bf16() for either format. Values of OCP come out halved; callers double the scale.
template <bool kIsOcp, bool kRounds>
DG_DEVICE Chunk widened_latent(const HalfChunk& bytes, float scale) {
  if constexpr (!kIsOcp) return widened_bf16<kRounds>(bytes, scale);
  return widened_bf16<kRounds>(HalfChunk{fnuz_of_ocp(bytes[0]), fnuz_of_ocp(bytes[1])}, scale);
}

}  // namespace deep_gemm_rocm

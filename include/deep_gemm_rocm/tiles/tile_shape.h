// How the threads of a workgroup share one output tile of kBlockM x kBlockN elements.
//
// Waves form a grid of kWavesM x kWavesN. Each computes kFragsM x kFragsN MFMA tiles ("fragments"). The operands of the
// MFMA are swapped (B first), so that D is transposed: a lane holds one row m and consecutive columns n, its A scale is
// one number and its stores are wide.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Columns that share a scale of b, and of d.
constexpr int kScaleBlockN = 128;

// If B has several parts (see activation.h), a tile has equally many rows of each.
//
// Waves are numbered row by row of their grid or, with kWavesByColumns, column by column: then the first half of the
// waves has the first half of the tile's columns. With kWavesK > 1, K is split over that many waves, each of which
// computes the whole tile over its part of K. With kPartsK > 1, each wave splits K into that many parts and sums them
// one after the other, see SumOfKParts.
template <class Mfma_, int kBlockM_, int kBlockN_, int kWavesM_, int kWavesN_, int kParts_ = 1, int kWavesK_ = 1,
          bool kWavesByColumns_ = false, int kPartsK_ = 1>
struct TileShape {
  using Mfma = Mfma_;
  static constexpr int kBlockM = kBlockM_;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kWavesN = kWavesN_;
  static constexpr int kWavesK = kWavesK_;
  static constexpr int kPartsK = kPartsK_;
  static constexpr bool kWavesByColumns = kWavesByColumns_;
  static constexpr int kParts = kParts_;
  static constexpr int kOutputN = kBlockN / kParts;
  static constexpr int kThreads = kWavesM_ * kWavesN_ * kWaveSize;
  static constexpr int kWaves = kWavesM_ * kWavesN_ * kWavesK_;
  static constexpr int kWaveM = kBlockM / kWavesM_;
  static constexpr int kWaveN = kBlockN / kWavesN_;
  static constexpr int kFragsM = kWaveM / Mfma::kRows;
  static constexpr int kFragsN = kWaveN / Mfma::kRows;
  // Neighbouring fragments whose columns are interleaved so that a lane holds 8 or more consecutive n.
  static constexpr int kJoined = Mfma::kElements < 8 && kFragsN % (2 * kParts) == 0 ? 2 : 1;

  // A wave's private LDS. During the K loop it holds the scales of the wave's rows for 32 K-blocks (RowScalesInLds);
  // afterwards, if K is split over waves, as many columns of fragments of its sums as fit (SumOverWaves). Waves with
  // small tiles and columns of their own have few K-blocks, and are slower with scales in LDS.
  static constexpr bool kHasLdsForRowScales = kFragsM > 1 && (kWavesK > 1 || kWaveM * kWaveN >= 64 * 48);
  static constexpr int kSummedFragsN =
      kWavesK > 1 ? min(kFragsN, 64 * 1024 / (kWavesK * kWaveM * Mfma::kRows * 4)) : 0;
  static constexpr int kLdsBytesOfWave = max(kHasLdsForRowScales ? 32 : 0, kSummedFragsN * Mfma::kRows) * kWaveM * 4;

  static_assert(kWavesK == 1 || kWavesM_ * kWavesN_ == 1, "a part of K has one wave");
  static_assert(kWavesM_ * kFragsM * Mfma::kRows == kBlockM, "waves and fragments must divide the tile's rows");
  static_assert(kWavesN_ * kFragsN * Mfma::kRows == kBlockN, "waves and fragments must divide the tile's columns");
  static_assert(kFragsN % (kJoined * kParts) == 0, "each wave must have as many fragments of each part of B");

  // A lane holds kLaneSums sums of a row, as runs of kRun consecutive columns, of each part in turn. They are all the
  // sums for kLaneColumns columns of the output.
  static constexpr int kRun = Mfma::kElements * kJoined;
  static constexpr int kLaneSums = kWaveN / Mfma::kLaneGroups;
  static constexpr int kLaneColumns = kLaneSums / kParts;
  static constexpr int sum_of(int column, int part) { return (column / kRun * kParts + part) * kRun + column % kRun; }
  static constexpr int part_of_sum(int sum) { return sum / kRun % kParts; }
  static constexpr int column_of_sum(int sum) { return sum / (kRun * kParts) * kRun + sum % kRun; }

  // A wave's columns of a part share a scale of B if they are certain to lie in one block of 128. Otherwise those of
  // joined fragments share one.
  static constexpr int kScaledN = kScaleBlockN % kWaveN == 0 ? kWaveN / kParts : Mfma::kRows * kJoined;
  static constexpr int kScales = kWaveN / kScaledN;
  static_assert(kScaleBlockN % kScaledN == 0 && (kScales == kParts || kParts == 1));
  static constexpr int scale_of_fragment(int n) { return n / kJoined % kScales; }

  static DG_DEVICE int wave_m() {
    if (kWavesK > 1) return 0;
    const unsigned wave = wave_id();  // unsigned, it is divided by fewer instructions
    return (kWavesByColumns ? wave % kWavesM_ : wave / kWavesN) * kWaveM;
  }
  static DG_DEVICE int wave_n() {
    if (kWavesK > 1) return 0;
    const unsigned wave = wave_id();
    return (kWavesByColumns ? wave / kWavesM_ : wave % kWavesN) * kWaveN;
  }
  static DG_DEVICE int wave_k() { return kWavesK > 1 ? wave_id() : 0; }
  static DG_DEVICE int wave_column() { return wave_n() / kParts; }

  // The tile's row that a lane holds in its fragment row i, and the output's column of its i-th result there.
  static DG_DEVICE int lane_row(int lane, int i) { return wave_m() + lane % Mfma::kRows + i * Mfma::kRows; }
  static DG_DEVICE int lane_column(int lane, int i) {
    return wave_column() + lane / Mfma::kRows * kRun + i / kRun * kRun * Mfma::kLaneGroups + i % kRun;
  }
};

}  // namespace deep_gemm_rocm

// Loads tiles of four-bit values and the scales of their groups, and widens the values on their way to LDS: once for
// all waves of a workgroup.
#pragma once

#include "deep_gemm_rocm/loading/four_bits.h"
#include "deep_gemm_rocm/loading/tile_loader.h"

namespace deep_gemm_rocm {

// Base is a TileLoader whose threads load values of one group each. Scale is a GroupScale. For FP8, all values are
// relative to the usual reference, and become NaN if their scale is too far from it (see tiles_again.h).
template <class Base, class Scale>
class GroupedTileLoader : public Base {
  using T = typename Scale::T;
  using Form = typename Base::Form;
  using Order = typename Base::Order;
  using Table = typename Form::Table;
  using Stored = StoredScale<T>;
  static constexpr int kBlockK = Base::kBlockBytes * 2;
  static constexpr bool kTakesScales = deep_gemm_rocm::kTakesScales<Form>;
  static_assert(Scale::kValues % (Form::kChunks * Form::kBytes * 2) == 0, "a thread's values share a scale");

 public:
  using Base::Base;

  // `rows` are those of each part of the operand.
  DG_DEVICE void begin_scales(const GroupScales& scales, int rows) {
    if constexpr (!kTakesScales) return;
    scales_ = scales;
#pragma unroll
    for (int pass = 0; pass < Base::kPasses; ++pass) {
      const int row = Base::first_row_ + Order::of_lds_row(Base::lds_row(pass));
      scale_offset_[pass] = scales_.offset<Order, Stored, Scale>(row, 2 * Base::chunk_k(), rows);
    }
  }

  DG_DEVICE void load_scales(int stage, int pass, int k_block) {
    if constexpr (!kTakesScales) return;
    const int since = k_block - Base::first_k_block_;
    const int left_bytes = Base::k_bytes_ - since * Base::kBlockBytes;
    const bool exists = !Base::kKTail || Base::chunk_k() < left_bytes;
    const unsigned k = (scales_.first_k_block + since) * kBlockK;
    const Buffer all{scales_.first, kOutOfBounds};
    const Buffer buffer = Base::kGoesOn ? all.in_scalar_registers() : all;
    staged_scales_[stage][pass] = buffer.only_if(left_bytes > 0)
                                      .with_scalar_size()
                                      .template load<Stored>(exists ? scale_offset_[pass] : kOutOfBounds,
                                                             scales_.k_offset<Stored, Scale>(k));
  }

  // A pass in steps, between which there may be other work: the table, then the chunks.
  static constexpr int kStoreSteps = 1 + Form::kChunks;
  DG_DEVICE void store_step(int stage, int pass, uint8_t* lds_tile, int step) {
    auto& loaded = Base::staged_[stage][pass];
    if (step == 0) {
      if constexpr (kTakesScales) table_ = table_of(staged_scales_[stage][pass], loaded);
      return;
    }
    constexpr int kWords = Form::kBytes / sizeof(unsigned);
    unsigned words[kWords];
#pragma unroll
    for (int word = 0; word < kWords; ++word) words[word] = loaded[(step - 1) * kWords + word];
    const Chunk chunk = __builtin_bit_cast(Chunk, Form::chunk(words, table_));
    if (Base::stores(pass)) Base::store_chunk(chunk, lds_tile, pass, step - 1);
  }

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) {
#pragma unroll
    for (int step = 0; step < kStoreSteps; ++step) store_step(stage, pass, lds_tile, step);
  }

 private:
  static DG_DEVICE Table table_of(StagedScale<T> scale, typename Form::Loaded& codes) {
    if constexpr (kIsSame<Form, FourBits<E5M2>>) {
      return Table::of_usual(scale, codes);
    } else {
      return Table::template of<T>(scale);
    }
  }

  GroupScales scales_;
  Table table_;
  unsigned scale_offset_[Base::kPasses];
  StagedScale<T> staged_scales_[Base::kRegisterStages][Base::kPasses];
};

}  // namespace deep_gemm_rocm

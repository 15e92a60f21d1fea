// How an operand gets from memory into the fragments that a wave multiplies: through LDS, or straight into registers.
#pragma once

#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/loading/batched_k_loader.h"
#include "deep_gemm_rocm/loading/fragment_loader.h"
#include "deep_gemm_rocm/loading/grouped_fragment_loader.h"
#include "deep_gemm_rocm/loading/grouped_tile_loader.h"
#include "deep_gemm_rocm/loading/tile_loader.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"
#include "deep_gemm_rocm/tiles/gemm_kind.h"

namespace deep_gemm_rocm {

// How the tile of an operand is divided for loading. Resources are PipelineResources.
template <class Shape, class Resources, int kTileRows_, int kParts_>
struct OperandSizes {
  using Mfma = typename Shape::Mfma;
  static constexpr int kTileRows = kTileRows_;
  static constexpr int kParts = kParts_;
  static constexpr int kRows = kTileRows / kParts;  // rows of a part
  static constexpr int kThreads = Shape::kThreads / kParts;
  // LDS has room for all rows that the loader's passes store, also those past a part's last one.
  static constexpr int kLdsRows = kParts == 1 ? kRows : round_up(kRows, rows_per_pass(kThreads));
  static constexpr int kRegisterStages = Resources::kRegisterStages;
  static constexpr bool kGoesOn = Resources::kGoesOn;
};

template <class Kind, class Shape, class Resources>
struct OperandA : OperandSizes<Shape, Resources, Shape::kBlockM, Resources::kPartsOfA> {
  using T = typename Kind::A;
  using Order = Conditional<Kind::kGathersA, GatheredRows, RowsInOrder>;
  static constexpr Major kMajor = Kind::kMajorA;
  static constexpr KOrder kKOrder = Kind::kKOrderOfA;
  static constexpr int kFragments = Shape::kFragsM;
  static constexpr int kLdsStages = Resources::kLdsStagesOfA;
  static constexpr bool kSumsSquares = Kind::kSumsSquares;
  using Form = AsTheyAre;
  template <class Loader, template <class, class> class>
  using WithScales = Loader;
  static DG_DEVICE int wave_row() { return Shape::wave_m(); }
};

template <class Kind, class Shape, class Resources>
struct OperandB : OperandSizes<Shape, Resources, Shape::kBlockN, Resources::kPartsOfB> {
  using T = typename Kind::B;
  using Order = RowsByLane<typename Shape::Mfma, Shape::kJoined, Shape::kParts>;
  static constexpr Major kMajor = Kind::kMajorB;
  static constexpr KOrder kKOrder = Kind::kKOrderOfB;
  static constexpr int kFragments = Shape::kFragsN;
  static constexpr int kLdsStages = Resources::kLdsStagesOfB;
  static constexpr bool kSumsSquares = false;
  static constexpr bool kHasZeros = kIsSame<typename Kind::ScaleOfB::T, ScaleAndZero>;
  using IntegersOfB = Conditional<kIsSame<T, ShuffledInt4>, ShuffledIntegers, Integers<kHasZeros>>;
  using Code = Conditional<Kind::kKeepsIntegers, IntegersOfB, T>;
  using Form = Conditional<Kind::kWidensB, FourBits<typename Kind::MultipliedB, Code>, AsTheyAre>;
  // The loader, or Grouped<loader>, which loads groups' scales, too.
  template <class Loader, template <class, class> class Grouped>
  using WithScales = Conditional<Kind::kWidensB, Grouped<Loader, typename Kind::ScaleOfB>, Loader>;
  static DG_DEVICE int wave_row() { return Shape::wave_n(); }
};

// The loader into LDS depends on how the operand is in memory.
template <class Loader>
struct LoaderType {
  using Type = Loader;
};

template <class Kind, class Operand>
constexpr auto loader_of_one_group() {
  if constexpr (Operand::kMajor == Major::kRows) {
    return LoaderType<TransposingTileLoader<typename Operand::T, typename Operand::Order, Operand::kRows,
                                            Operand::kThreads, Operand::kRegisterStages>>{};
  } else {
    using Loader = TileLoader<typename Operand::Order, Operand::kRows, Operand::kLdsRows, Operand::kThreads,
                              Operand::kRegisterStages, Kind::kKTail, Operand::kGoesOn, typename Operand::Form,
                              Operand::kKOrder>;
    return LoaderType<typename Operand::template WithScales<Loader, GroupedTileLoader>>{};
  }
}

template <class Kind, class Operand>
constexpr auto loader_through_lds() {
  using GroupLoader = typename decltype(loader_of_one_group<Kind, Operand>())::Type;
  if constexpr (Operand::kSumsSquares) {
    return LoaderType<SquaringTileLoader<typename Operand::Order, Operand::kRows, Operand::kThreads,
                                         Operand::kRegisterStages, Kind::kKTail, Widened>>{};
  } else if constexpr (Kind::kSumsBatch) {
    return LoaderType<BatchedKLoader<GroupLoader>>{};
  } else {
    return LoaderType<GroupLoader>{};
  }
}

template <class Kind, class Operand>
using LoaderThroughLds = typename decltype(loader_through_lds<Kind, Operand>())::Type;

// An operand that waves share in LDS. load_values() brings it from memory into registers, store() into LDS, and read()
// into a fragment.
template <class Kind, class Operand>
class OperandInLds {
  using Mfma = typename Operand::Mfma;
  static constexpr int kStageBytes = Operand::kParts * Operand::kLdsRows * kBlockKBytes;

 public:
  using Loader = LoaderThroughLds<Kind, Operand>;
  static constexpr int kPasses = Loader::kPasses;
  static constexpr int kLoads = kPasses;
  static constexpr int kStoreSteps = Loader::kStoreSteps;
  static constexpr int kLdsBytes = Operand::kLdsStages * kStageBytes;

  DG_DEVICE OperandInLds()
      : loader_(loaded_part() * Operand::kRows),
        stored_part_(loaded_part() * first_row_offset(Operand::kLdsRows)),
        first_read_row_(Operand::wave_row() / Operand::kRows * Operand::kLdsRows +
                        Operand::wave_row() % Operand::kRows) {}

  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) { loader_.begin(tile, first_k_block); }

  DG_DEVICE void load_values(int stage, int pass, int k_block) { loader_.load(stage, pass, k_block); }

  // `lds` has room for kLdsBytes of this operand.
  DG_DEVICE void store(int stage, int pass, uint8_t* lds, int k_block) {
    loader_.store(stage, pass, stage_of(lds, k_block) + stored_part_);
  }
  // The same in Loader::kStoreSteps steps, for a loader that widens.
  DG_DEVICE void store_step(int stage, int pass, uint8_t* lds, int k_block, int step) {
    loader_.store_step(stage, pass, stage_of(lds, k_block) + stored_part_, step);
  }
  DG_DEVICE void read(Fragment<Mfma>& fragment, int i, int read, const uint8_t* lds, int k_block, int) const {
    fragment.template read<Operand::kKOrder>(read, stage_of(lds, k_block), first_read_row_ + i * Mfma::kRows);
  }

  DG_DEVICE Loader& loader() { return loader_; }
  DG_DEVICE const Loader& loader() const { return loader_; }

 private:
  static DG_DEVICE int loaded_part() {
    return Operand::kParts == 1 ? 0 : wave_id() / (Operand::kThreads / kWaveSize);
  }

  // LDS holds as many of the last K-blocks as it has stages.
  template <class Byte>
  static DG_DEVICE Byte* stage_of(Byte* lds, unsigned k_block) {
    return lds + k_block % Operand::kLdsStages * kStageBytes;
  }

  Loader loader_;
  int stored_part_;
  int first_read_row_;
};

// An operand that each wave loads into its fragments' registers. store() has nothing to do.
template <class Kind, class Operand>
class OperandInRegisters {
  using Mfma = typename Operand::Mfma;
  using LoaderWithoutScales =
      FragmentLoader<Mfma, typename Operand::Order, Operand::kFragments, Operand::kTileRows, Operand::kRegisterStages,
                     Kind::kKTail, Operand::kKOrder, typename Operand::Form>;
  using Loader = typename Operand::template WithScales<LoaderWithoutScales, GroupedFragmentLoader>;

 public:
  static constexpr int kPasses = 0;
  static constexpr int kLoads = Operand::kFragments;
  static constexpr int kStoreSteps = 0;
  static constexpr int kLdsBytes = 0;

  DG_DEVICE OperandInRegisters() : loader_(Operand::wave_row()) {}

  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) { loader_.begin(tile, first_k_block); }

  DG_DEVICE void store(int, int, uint8_t*, int) {}
  DG_DEVICE void read(Fragment<Mfma>& fragment, int i, int read, const uint8_t*, int, int register_stage) const {
    fragment.set(read, loader_.operands(register_stage, i, read));
  }

  DG_DEVICE void load_values(int stage, int i, int k_block) { loader_.load_fragment(stage, i, k_block); }

  DG_DEVICE Loader& loader() { return loader_; }
  DG_DEVICE const Loader& loader() const { return loader_; }

 private:
  Loader loader_;
};

}  // namespace deep_gemm_rocm

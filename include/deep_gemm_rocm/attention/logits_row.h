// A row of logits, or a part of one, in the registers of a workgroup.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Some neighbouring elements, in one wave: kVectors times 16 bytes for each lane.
template <class T>
struct LogitsBlock {
  static constexpr int kVector = kChunkBytes / sizeof(T);
  static constexpr int kElements = 1024;
  static constexpr int kVectors = kElements / (kVector * kWaveSize);

  // The value of element `j` of vector `i`.
  DG_DEVICE float value(int i, int j) const {
    const unsigned word = chunks[i][j * sizeof(T) / sizeof(unsigned)];
    if constexpr (kIsSame<T, float>) {
      return __builtin_bit_cast(float, word);
    } else {
      static_assert(kIsSame<T, __bf16>);
      return __builtin_bit_cast(float, j % 2 == 0 ? word << 16 : word & 0xffff0000u);
    }
  }

  // Its position in the row, which the row need not have.
  DG_DEVICE int position(int i, int j) const { return begin + (i * kWaveSize + lane_id()) * kVector + j; }

  // Calls body(value, position) for all elements.
  template <class Body>
  DG_DEVICE void for_each(Body&& body) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) body(value(i, j), position(i, j));
    }
  }

  Chunk chunks[kVectors];
  int number;  // of the block in the row
  int begin;   // the position of its first element
};

// Waves take turns with blocks. Blocks begin at a multiple of 4 bytes, so the first one may have a bf16 before the row.
// A sample of the row, a quarter of it, is loaded before all else: numbers of the first vector of each block.
template <class T, int kWaves>
class LogitsRow {
 public:
  using Block = LogitsBlock<T>;
  static constexpr int kMostBlocks = 32 * sizeof(float) / sizeof(T);
  static constexpr int kBlocksOfWave = kMostBlocks / kWaves;
  static constexpr int kMostLead = sizeof(unsigned) / sizeof(T) - 1;
  static constexpr int kMostElements = kMostBlocks * Block::kElements - kMostLead;  // whatever the address

  // Begins to load. Arguments are uniform. No load is behind a branch: the wait for such a load would be one for all
  // others, too. Loads behind the row's end are out of the buffer's bounds and read nothing.
  DG_DEVICE LogitsRow(const T* first, int count)
      : lead_(static_cast<int>(reinterpret_cast<uint64_t>(first) % sizeof(unsigned) / sizeof(T))), count_(count) {
    const unsigned bytes = (lead_ + count) * sizeof(T);
    const unsigned whole_words = bytes & ~3u;
    const Buffer buffer = Buffer{first - lead_, whole_words}.in_scalar_registers();
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
      Block& block = blocks_[i];
      block.number = i * kWaves + wave_id();
      block.begin = begin_of_block(block.number);
      load(buffer, block, 0);
    }
    lds_barrier();  // else the sample of the last waves comes behind all that the first ones load
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
#pragma unroll
      for (int v = 1; v < Block::kVectors; ++v) load(buffer, blocks_[i], v);
    }
    if (bytes == whole_words) return;
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) load_last(first, blocks_[i]);
  }

  DG_DEVICE int count() const { return count_; }
  DG_DEVICE bool has(int position) const { return static_cast<unsigned>(position) < static_cast<unsigned>(count_); }
  DG_DEVICE int begin_of_block(int block) const { return block * Block::kElements - lead_; }
  DG_DEVICE int block_of(int position) const { return static_cast<unsigned>(position + lead_) / Block::kElements; }

  // Elements in the sample.
  DG_DEVICE int sampled() const {
    constexpr int kOfBlock = kSampledOfVector * kWaveSize;
    const int of_last = min(count_ % Block::kElements, Block::kVector * kWaveSize) * kSampledOfVector / Block::kVector;
    return count_ / Block::kElements * kOfBlock + of_last;
  }

  // Calls body(value) for the wave's part of the sample, with NaNs for elements that aren't in the row.
  template <class Body>
  DG_DEVICE void for_each_sampled(Body&& body) {
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
      Block& block = blocks_[i];
      if (block.begin >= count_) break;
      asm volatile("" : "+v"(block.chunks[0]));
      if (!has_all(block)) clear_outside(block, 0);
#pragma unroll
      for (int j = 0; j < Block::kVector; j += Block::kVector / kSampledOfVector) body(block.value(0, j));
    }
  }

  // Calls body(block) for the wave's blocks, with NaNs for elements that aren't in the row. Compilers keep nothing that
  // is computed from a block until the next call, for which there are no registers.
  template <class Body>
  DG_DEVICE void for_each_block(Body&& body) {
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
      if (blocks_[i].begin >= count_) break;
#pragma unroll
      for (int v = 0; v < Block::kVectors; ++v) asm volatile("" : "+v"(blocks_[i].chunks[v]));
      if (!has_all(blocks_[i])) {
#pragma unroll
        for (int v = 0; v < Block::kVectors; ++v) clear_outside(blocks_[i], v);
      }
      body(blocks_[i]);
    }
  }

  // The same for what is seldom needed: the loop isn't unrolled, so that it takes little time to compile. Blocks move on
  // through the registers of the first one.
  template <class Body>
  DG_DEVICE void for_each_block_in_turn(Body&& body) {
#pragma nounroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
      const Block first = blocks_[0];
      if (first.begin < count_) body(first);
#pragma unroll
      for (int next = 1; next < kBlocksOfWave; ++next) blocks_[next - 1] = blocks_[next];
      blocks_[kBlocksOfWave - 1] = first;
    }
  }

 private:
  static constexpr int kSampledOfVector = 4;  // all of a lane's 4 fp32, or every other one of 8 bf16

  DG_DEVICE static void load(const Buffer& buffer, Block& block, int v) {
    const int vector = block.number * Block::kVectors + v;
    block.chunks[v] = buffer.load<Chunk>((vector * kWaveSize + lane_id()) * kChunkBytes);
  }

  DG_DEVICE bool has_all(const Block& block) const {
    return block.begin >= 0 && block.begin + Block::kElements <= count_;
  }

  // Makes NaNs of a vector's elements that aren't in the row.
  DG_DEVICE void clear_outside(Block& block, int v) const {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      unsigned kept = 0;
#pragma unroll
      for (int j = 0; j < Block::kVector; ++j) {
        const int shift = j * 8 * sizeof(T) % 32;
        const unsigned bits = (sizeof(T) == 2 ? 0xffffu : 0xffffffffu) << shift;
        if (j * sizeof(T) / 4 == word && has(block.position(v, j))) kept |= bits;
      }
      block.chunks[v][word] |= ~kept;
    }
  }

  // Half a word at the end is out of the buffer's bounds.
  DG_DEVICE void load_last(const T* first, Block& block) const {
    if (block.begin + Block::kElements < count_) return;
    const unsigned last = *(const Global<unsigned short>*)(first + count_ - 1);
#pragma unroll
    for (int v = 0; v < Block::kVectors; ++v) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if (block.position(v, word * Block::kVector / 4) == count_ - 1) block.chunks[v][word] = last;
      }
    }
  }

  int lead_;
  int count_;
  Block blocks_[kBlocksOfWave];
};

}  // namespace deep_gemm_rocm

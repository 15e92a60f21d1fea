// A row of logits that passes through the registers of a workgroup.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

constexpr int kMostColumns = 1 << 19;

// 1024 neighbouring elements in the registers of one wave: kVectors vectors of 16 bytes in each lane.
template <class T>
struct LogitsBlock {
  static constexpr int kVector = kChunkBytes / sizeof(T);
  static constexpr int kElements = 1024;
  static constexpr int kVectors = kElements / (kVector * kWaveSize);

  // The value of element `j` of vector `i`.
  DG_DEVICE float value(int i, int j) const { return value_of(chunks[i], j); }

  static DG_DEVICE float value_of(const Chunk& chunk, int j) {
    const unsigned word = chunk[j * sizeof(T) / sizeof(unsigned)];
    if constexpr (kIsSame<T, float>) {
      return __builtin_bit_cast(float, word);
    } else {
      static_assert(kIsSame<T, __bf16>);
      return __builtin_bit_cast(float, j % 2 == 0 ? word << 16 : word & 0xffff0000u);
    }
  }

  // The position in the row of that element. It may be outside of the row.
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

// Blocks are dealt round-robin to waves. A block begins at a multiple of 4 bytes, so the first one may have a bf16 that
// precedes the row. The workgroup's registers hold kHeldBlocks blocks; longer rows take several rounds.
//
// A sample of the row is loaded first. If the row takes one round, the sample is a quarter of it, the first vector of
// each block. Otherwise it is 512 runs of eight chunks at equal distances, which the first round's blocks then replace.
//
// kIsAnyLength: whether rows may take several rounds.
template <class T, int kWaves, bool kIsAnyLength>
class LogitsRow {
 public:
  using Block = LogitsBlock<T>;
  static constexpr int kHeldBlocks = 32 * sizeof(float) / sizeof(T);
  static constexpr int kBlocksOfWave = kHeldBlocks / kWaves;
  static constexpr int kMostLead = sizeof(unsigned) / sizeof(T) - 1;
  static constexpr int kHeldElements = kHeldBlocks * Block::kElements - kMostLead;  // whatever the address
  static constexpr int kMostBlocks =
      kIsAnyLength ? ceil_div(kMostColumns + kMostLead, Block::kElements) : kHeldBlocks;

  // Starts the first loads. Arguments are uniform. No load is behind a branch, or the compiler couldn't count the loads
  // in flight, and a wait for one would be a wait for all. Loads past the row's end are out of the buffer's bounds and
  // cost no memory traffic.
  DG_DEVICE LogitsRow(const T* first, int count)
      : lead_(static_cast<int>(reinterpret_cast<uint64_t>(first) % sizeof(unsigned) / sizeof(T))),
        count_(count),
        rounds_(kIsAnyLength ? ceil_div(lead_ + count, kHeldBlocks * Block::kElements) : 1),
        whole_words_(Buffer{first - lead_, static_cast<unsigned>((lead_ + count) * sizeof(T)) & ~3u}
                         .in_scalar_registers()) {
    load_sample();
    if constexpr (kMostLead > 0) last_ = *(const Global<unsigned short>*)(first + count - 1);
  }

  DG_DEVICE int count() const { return count_; }
  DG_DEVICE bool has(int position) const { return static_cast<unsigned>(position) < static_cast<unsigned>(count_); }
  DG_DEVICE int begin_of_block(int block) const { return block * Block::kElements - lead_; }
  DG_DEVICE int block_of(int position) const { return static_cast<unsigned>(position + lead_) / Block::kElements; }

  // The number of elements in the sample.
  DG_DEVICE int sampled() const {
    const int run = (rounds_ == 1 ? kWaveSize : kSampledRun) * Block::kVector;
    const int distance = rounds_ == 1 ? Block::kElements : kRunDistance * rounds_ * Block::kVector;
    return (count_ / distance * run + min(count_ % distance, run)) * kSampledOfChunk / Block::kVector;
  }

  // Calls body(value) for the wave's part of the sample, with NaNs for elements that aren't in the row.
  template <class Body>
  DG_DEVICE void for_each_sampled(Body&& body) {
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
#pragma unroll
      for (int v = 0; v < kSampledVectors; ++v) {
        if (v > 0 && rounds_ == 1) break;
        Chunk& chunk = blocks_[i].chunks[v];
        asm volatile("" : "+v"(chunk));
        if (rounds_ > 1 || !has_all(blocks_[i])) clear_outside(chunk, sampled_chunk(i, v) * Block::kVector - lead_);
#pragma unroll
        for (int j = 0; j < Block::kVector; j += Block::kVector / kSampledOfChunk) body(Block::value_of(chunk, j));
      }
    }
  }

  // Starts to load the first round's blocks into the sample's registers.
  DG_DEVICE void end_sample() {
    if (rounds_ == 1) return;
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
#pragma unroll
      for (int v = 0; v < kSampledVectors; ++v) load(whole_words_, blocks_[i], v);
    }
  }

  // Calls body(block) for the wave's blocks, with NaNs for elements that aren't in the row. When a block is done, the
  // load of the next round's block into its registers starts. Each block passes an empty asm. Otherwise the compiler
  // would keep what it computes from the block until the next call, for which there are no registers.
  template <class Body>
  DG_DEVICE void for_each_block(Body&& body) {
#pragma nounroll
    for (int round = 0; round < rounds_; ++round) {
      const Buffer next = whole_words_.only_if(round + 1 < rounds_);
#pragma unroll
      for (int i = 0; i < kBlocksOfWave; ++i) {
        Block& block = blocks_[i];
        if (!has_all(block)) clear_all_outside(block);
#pragma unroll
        for (int v = 0; v < Block::kVectors; ++v) asm volatile("" : "+v"(block.chunks[v]));
        if (block.begin < count_) body(block);
        begin_block(i, round + 1);
#pragma unroll
        for (int v = 0; v < Block::kVectors; ++v) load(next, block, v);
      }
    }
    held_round_ = rounds_;
  }

  // The same for rare cases: the loop isn't unrolled, so that it takes little time to compile. Registers can't be
  // indexed, so the blocks rotate through those of the first one.
  template <class Body>
  DG_DEVICE void for_each_block_in_turn(Body&& body) {
#pragma nounroll
    for (int round = 0; round < rounds_; ++round) {
      if (round != held_round_) load_round(round);
#pragma nounroll
      for (int i = 0; i < kBlocksOfWave; ++i) {
        Block first = blocks_[0];
        if (!has_all(first)) clear_all_outside(first);
        if (first.begin < count_) body(first);
#pragma unroll
        for (int next = 1; next < kBlocksOfWave; ++next) blocks_[next - 1] = blocks_[next];
        blocks_[kBlocksOfWave - 1] = first;
      }
    }
  }

 private:
  static constexpr int kSampledOfChunk = 4;  // all 4 fp32, or every other one of 8 bf16
  static constexpr int kSampledVectors = Block::kVectors / 2;  // vectors of a block whose registers the sample takes
  static constexpr int kSampledRun = 8;  // chunks
  static constexpr int kRunDistance = 2 * kSampledRun;  // from run to run for each round
  static_assert(Block::kVectors * kSampledRun == kSampledVectors * kRunDistance, "the last run is at the row's end");

  // The lane's chunk in a vector of the sample, counted from the row's first one.
  DG_DEVICE int sampled_chunk(int i, int v) const {
    if (rounds_ == 1) return chunk_of(blocks_[i], v);
    const int place = ((i * kSampledVectors + v) * kWaves + wave_id()) * kWaveSize + lane_id();
    return place / kSampledRun * kRunDistance * rounds_ + place % kSampledRun;
  }

  DG_DEVICE void load_sample() {
    held_round_ = 0;
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
      begin_block(i, 0);
      blocks_[i].chunks[0] = whole_words_.load<Chunk>(sampled_chunk(i, 0) * kChunkBytes);
    }
    lds_barrier();  // otherwise the last waves' sample queues behind all loads of the first waves
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
#pragma unroll
      for (int v = 1; v < Block::kVectors; ++v) {
        const int chunk = v < kSampledVectors ? sampled_chunk(i, v) : chunk_of(blocks_[i], v);
        blocks_[i].chunks[v] = whole_words_.load<Chunk>(chunk * kChunkBytes);
      }
    }
  }

  DG_DEVICE void begin_block(int i, int round) {
    blocks_[i].number = round * kHeldBlocks + i * kWaves + wave_id();
    blocks_[i].begin = begin_of_block(blocks_[i].number);
  }

  DG_DEVICE void load_round(int round) {
    held_round_ = round;
#pragma unroll
    for (int i = 0; i < kBlocksOfWave; ++i) {
      begin_block(i, round);
#pragma unroll
      for (int v = 0; v < Block::kVectors; ++v) load(whole_words_, blocks_[i], v);
    }
  }

  static DG_DEVICE int chunk_of(const Block& block, int v) {
    return (block.number * Block::kVectors + v) * kWaveSize + lane_id();
  }

  DG_DEVICE static void load(const Buffer& buffer, Block& block, int v) {
    block.chunks[v] = buffer.load<Chunk>(chunk_of(block, v) * kChunkBytes);
  }

  DG_DEVICE bool has_all(const Block& block) const {
    return block.begin >= 0 && block.begin + Block::kElements <= count_;
  }

  DG_DEVICE void clear_all_outside(Block& block) const {
#pragma unroll
    for (int v = 0; v < Block::kVectors; ++v) clear_outside(block.chunks[v], block.position(v, 0));
  }

  // Sets elements that aren't in the row to NaN. The chunk's first element is at position `first`.
  DG_DEVICE void clear_outside(Chunk& chunk, int first) const {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      unsigned kept = 0;
#pragma unroll
      for (int j = 0; j < Block::kVector; ++j) {
        const int shift = j * 8 * sizeof(T) % 32;
        const unsigned bits = (sizeof(T) == 2 ? 0xffffu : 0xffffffffu) << shift;
        if (j * sizeof(T) / 4 == word && has(first + j)) kept |= bits;
      }
      chunk[word] |= ~kept;
      if constexpr (kMostLead > 0) {
        // A row that ends in the middle of a word: the buffer has only whole words, so last_ was loaded by itself.
        if (kept == 0xffff && first + 2 * word == count_ - 1) chunk[word] = ~kept | last_;
      }
    }
  }

  int lead_;
  int count_;
  int rounds_;
  Buffer whole_words_;
  unsigned last_;  // the row's last element, if T is bf16
  int held_round_;
  Block blocks_[kBlocksOfWave];
};

}  // namespace deep_gemm_rocm

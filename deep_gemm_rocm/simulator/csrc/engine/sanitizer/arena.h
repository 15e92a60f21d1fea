// An arena for objects that live until the end of a launch. Chunks are reused by later launches, because the system
// clears fresh memory, which is slow.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <vector>

namespace mi300x {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  ~Arena() {
    Spare& spare = spare_chunks();
    std::lock_guard<std::mutex> lock(spare.mutex);
    for (Chunk& chunk : chunks_)
      if (spare.chunks.size() < most_spare_chunks) spare.chunks.push_back(std::move(chunk));
  }

  // For a forked child: another thread may have held the mutex of the spare chunks.
  static void forget_other_threads() { spare_ = new Spare; }

  // Makes `count` objects that live as long as the arena. Safe to call from several threads.
  template <class T>
  T* make(size_t count = 1) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= alignment);
    const size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
    static_assert(sizeof(T) <= chunk_bytes);
    T* objects = reinterpret_cast<T*>(take(bytes));
    for (size_t i = 0; i < count; ++i) new (objects + i) T();
    return objects;
  }

 private:
  static constexpr size_t chunk_bytes = 1 << 20, most_spare_chunks = 64, alignment = 16;
  using Chunk = std::unique_ptr<std::byte[]>;
  struct Spare {
    std::mutex mutex;
    std::vector<Chunk> chunks;
  };
  // Never destroyed, because launches may end while the process exits.
  static Spare& spare_chunks() { return *spare_; }

  std::byte* take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (chunks_.empty() || used_ + bytes > chunk_bytes) {
      chunks_.push_back(new_chunk());
      used_ = 0;
    }
    used_ += bytes;
    return chunks_.back().get() + used_ - bytes;
  }

  static Chunk new_chunk() {
    Spare& spare = spare_chunks();
    std::lock_guard<std::mutex> lock(spare.mutex);
    if (spare.chunks.empty()) return Chunk(new std::byte[chunk_bytes]);
    Chunk chunk = std::move(spare.chunks.back());
    spare.chunks.pop_back();
    return chunk;
  }

  static inline Spare* spare_ = new Spare;
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  size_t used_ = 0;  // bytes of the last chunk
};

}  // namespace mi300x

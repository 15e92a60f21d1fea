// A pool of host threads that run loops in parallel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mi300x::timing {

class Crew {
 public:
  // The calling thread counts as one of `threads`.
  explicit Crew(size_t threads);
  ~Crew();

  // Calls f(0) … f(count - 1), in any order, on all threads, and returns when all calls have.
  void for_each(size_t count, const std::function<void(size_t)>& f);

 private:
  void work();
  void take_turns();

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  uint64_t round_ = 0;
  size_t busy_ = 0;
  bool over_ = false;
  const std::function<void(size_t)>* task_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0};
};

}  // namespace mi300x::timing

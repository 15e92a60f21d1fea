#include "crew.h"

#include <algorithm>

namespace mi300x::timing {

Crew::Crew(size_t threads) {
  for (size_t i = 1; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Crew::~Crew() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::for_each(size_t count, const std::function<void(size_t)>& f) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    task_ = &f;
    count_ = count;
    next_ = 0;
    busy_ = threads_.size();
    ++round_;
  }
  begun_.notify_all();
  take_turns();
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [&] { return busy_ == 0; });
}

void Crew::work() {
  for (uint64_t seen = 0;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      begun_.wait(lock, [&] { return over_ || round_ != seen; });
      if (over_) return;
      seen = round_;
    }
    take_turns();
    std::lock_guard<std::mutex> lock(mutex_);
    if (--busy_ == 0) ended_.notify_one();
  }
}

// Threads take several iterations at a time, to contend less.
void Crew::take_turns() {
  const size_t portion = 1 + count_ / (16 * (threads_.size() + 1));
  for (size_t first; (first = next_.fetch_add(portion)) < count_;)
    for (size_t i = first; i < std::min(first + portion, count_); ++i) (*task_)(i);
}

}  // namespace mi300x::timing

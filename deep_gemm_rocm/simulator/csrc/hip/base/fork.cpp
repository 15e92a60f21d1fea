#include "fork.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <new>

#include "../launch/engine_library.h"
#include "../memory/memory_map.h"
#include "../streams/capture.h"

namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned inside = 0;  // threads that have a NoFork
  unsigned forks = 0;   // threads that fork or wait to
};

// Never destroyed: static destructors of the host program may still call HIP.
Gate& gate() {
  static auto& instance = *new Gate;
  return instance;
}

thread_local unsigned depth = 0;

void enter() {
  std::unique_lock lock(gate().mutex);
  gate().changed.wait(lock, [] { return gate().forks == 0; });
  ++gate().inside;
}

void leave() {
  std::lock_guard lock(gate().mutex);
  --gate().inside;
  if (gate().forks > 0) gate().changed.notify_all();
}

void before_fork() {
  std::unique_lock lock(gate().mutex);
  ++gate().forks;
  const unsigned own = depth > 0 ? 1 : 0;
  gate().changed.wait(lock, [&] { return gate().inside == own; });
  lock.unlock();
  engine_before_fork();
}

void after_fork_in_parent() {
  engine_after_fork(false);
  std::lock_guard lock(gate().mutex);
  --gate().forks;
  gate().changed.notify_all();
}

void after_fork_in_child() {
  new (&gate()) Gate;
  gate().inside = depth > 0 ? 1 : 0;
  engine_after_fork(true);
  MemoryMap::instance().forget_other_threads();
  forget_captures_of_other_threads();
}

// vfork and posix_spawn don't run these handlers and needn't: their children only exec.
[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

NoFork::NoFork() noexcept {
  if (depth++ == 0) enter();
}

NoFork::~NoFork() {
  if (--depth == 0) leave();
}

MayFork::MayFork() noexcept : depth_(depth) {
  depth = 0;
  if (depth_ > 0) leave();
}

MayFork::~MayFork() {
  if (depth_ > 0) enter();
  depth = depth_;
}

// Makes fork safe while other threads are in HIP calls. The fork waits until these threads hold no lock and have
// changed nothing halfway, so that the child, which lacks them, finds a consistent state.
#pragma once

// During its lifetime only this thread may fork. NoForks nest.
class NoFork {
 public:
  NoFork() noexcept;
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

// Suspends the thread's NoFork: for what may take long, and for the program's functions, which may wait for the thread
// that forks. A lock that is held or waited for meanwhile must be made anew in the child; see forget_other_threads().
class MayFork {
 public:
  MayFork() noexcept;
  ~MayFork();
  MayFork(const MayFork&) = delete;
  MayFork& operator=(const MayFork&) = delete;

 private:
  const unsigned depth_;
};

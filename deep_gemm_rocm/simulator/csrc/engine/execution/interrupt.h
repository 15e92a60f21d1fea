// Handles Ctrl-C while a dispatch runs.
#pragma once

namespace mi300x {

// During its lifetime SIGINT ends dispatches and then runs the program's own handler. A program without a handler is
// terminated as usual. Several dispatches may run at once.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool interrupted();

  // For a forked child, in which no dispatch runs.
  static void forget_other_threads();
};

}  // namespace mi300x

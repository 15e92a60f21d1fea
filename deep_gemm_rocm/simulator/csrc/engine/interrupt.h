// Ctrl-C while a dispatch runs.
#pragma once

namespace mi300x {

// For its lifetime SIGINT ends dispatches, and then does what the program had it do. A program that leaves SIGINT to
// the system is ended by it as ever. Several dispatches may run at once.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool interrupted();

  // In a forked child: no dispatch runs.
  static void forget_other_threads();
};

}  // namespace mi300x

#include "interrupt.h"

#include <signal.h>

#include <atomic>
#include <mutex>
#include <new>

namespace mi300x {
namespace {

std::mutex mutex;
int watches = 0;
bool installed = false;
struct sigaction program_action;
std::atomic<bool> seen{false};

void on_interrupt(int signal, siginfo_t* info, void* context) {
  seen = true;
  if (program_action.sa_flags & SA_SIGINFO) {
    program_action.sa_sigaction(signal, info, context);
  } else {
    program_action.sa_handler(signal);
  }
}

}  // namespace

InterruptWatch::InterruptWatch() {
  std::lock_guard<std::mutex> lock(mutex);
  if (watches++ > 0) return;
  seen = false;
  sigaction(SIGINT, nullptr, &program_action);
  const bool has_handler = program_action.sa_flags & SA_SIGINFO ||
                           (program_action.sa_handler != SIG_DFL && program_action.sa_handler != SIG_IGN);
  if (!has_handler) return;
  struct sigaction action = program_action;
  action.sa_flags |= SA_SIGINFO;
  action.sa_sigaction = on_interrupt;
  installed = sigaction(SIGINT, &action, nullptr) == 0;
}

InterruptWatch::~InterruptWatch() {
  std::lock_guard<std::mutex> lock(mutex);
  if (--watches > 0 || !installed) return;
  sigaction(SIGINT, &program_action, nullptr);
  installed = false;
}

void InterruptWatch::forget_other_threads() {
  new (&mutex) std::mutex;
  watches = 0;
  installed = false;
  struct sigaction action;
  sigaction(SIGINT, nullptr, &action);
  if (action.sa_flags & SA_SIGINFO && action.sa_sigaction == on_interrupt) sigaction(SIGINT, &program_action, nullptr);
}

bool InterruptWatch::interrupted() { return seen; }

}  // namespace mi300x

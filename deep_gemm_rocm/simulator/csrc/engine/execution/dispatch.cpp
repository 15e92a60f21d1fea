// Runs the workgroups of a dispatch on the host's cores.

#include <xmmintrin.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "../../engine.h"
#include "../isa/decoder.h"
#include "../isa/disassembler.h"
#include "../isa/opcodes.h"
#include "../sanitizer/arena.h"
#include "../timing/chip.h"
#include "interrupt.h"
#include "launch.h"
#include "settings.h"
#include "workgroup_queue.h"

namespace mi300x {
namespace {

// One host thread's share of the dispatch.
void run_workgroups(Launch& launch, WorkgroupQueue& queue) {
  const uint32_t host_control = _mm_getcsr();
  std::optional<Statistics> statistics;
  if (launch.statistics) statistics.emplace(launch.code->instructions.size());
  for (WorkgroupQueue::Resident resident = queue.take(); resident.runner != nullptr;) {
    if (statistics) resident.runner->count_into(&*statistics);
    const WorkgroupRunner::Slice slice = resident.runner->run(resident.slice);
    resident = queue.exchange(std::move(resident), slice);
  }
  _mm_setcsr(host_control);
  if (!statistics) return;
  std::lock_guard<std::mutex> lock(launch.outcome_mutex);
  launch.statistics->add(*statistics);
}

Outcome refuse(const Kernel* kernel, const std::string& why) {
  Outcome outcome;
  outcome.status = Outcome::Status::invalid_dispatch;
  snprintf(outcome.message, sizeof outcome.message, "kernel %s: %s", kernel && kernel->name ? kernel->name : "?",
           why.c_str());
  return outcome;
}

std::string find_mistake(const Dispatch& dispatch) {
  const Kernel* kernel = dispatch.kernel;
  if (kernel == nullptr) return "no kernel given";
  const uint64_t items = uint64_t(dispatch.block.x) * dispatch.block.y * dispatch.block.z;
  if (items == 0 || items > device::kMaxBlockThreads)
    return "a workgroup of " + std::to_string(items) + " work-items; 1 to 1024 are possible";
  if (dispatch.grid.x == 0 || dispatch.grid.y == 0 || dispatch.grid.z == 0) return "an empty grid";
  if (uint64_t(kernel->lds_bytes) + dispatch.dynamic_lds > lds_capacity)
    return std::to_string(uint64_t(kernel->lds_bytes) + dispatch.dynamic_lds) + " bytes of LDS; a workgroup has 65536";
  const uint64_t start = kernel->first_instruction();
  if (kernel->entry < kernel->code_begin || start >= kernel->code_end || start % 4 != 0)
    return "its entry lies outside its code";
  if (kernel->kernarg_bytes != 0 && dispatch.kernarg == nullptr) return "no kernel arguments given";
  return "";
}

class Interpreter final : public Engine {
 public:
  Outcome run(const Dispatch& dispatch) override {
    Settings settings = Settings::from_environment();
    const std::string mistake = settings.mistake.empty() ? find_mistake(dispatch) : settings.mistake;
    if (!mistake.empty()) return refuse(dispatch.kernel, mistake);
    const InterruptWatch watch;
    Launch launch(dispatch, decoded(*dispatch.kernel), std::move(settings));
    if (launch.settings.timing) return run_in_time(launch);
    const uint64_t count = std::max<uint64_t>(1, std::min(launch.settings.threads, launch.workgroups));
    WorkgroupQueue queue(launch);
    // Threads are made for each dispatch, so that a process may fork between two of them.
    std::vector<std::thread> threads;
    for (uint64_t i = 1; i < count; ++i) threads.emplace_back([&] { run_workgroups(launch, queue); });
    run_workgroups(launch, queue);
    for (std::thread& thread : threads) thread.join();
    launch.finish_records();
    launch.outcome.instructions = launch.instructions;
    return launch.outcome;
  }

  size_t disassemble(const void* code, size_t bytes, char* text, size_t capacity) override {
    const auto* words = static_cast<const uint32_t*>(code);
    std::string lines;
    for (size_t i = 0; i < bytes / 4;) {
      const Instruction inst = parse(words + i, bytes / 4 - i, i);
      char offset[24];
      snprintf(offset, sizeof offset, "%zx ", 4 * i);
      lines += offset + mi300x::disassemble(inst) + '\n';
      i += inst.size;
    }
    return give(lines, text, capacity);
  }

  size_t list_opcodes(char* text, size_t capacity) override { return give(mi300x::list_opcodes(), text, capacity); }

  void forget_code(uint64_t begin, uint64_t end) override {
    std::lock_guard<std::mutex> lock(kept_->code_mutex);
    auto& code = kept_->code;
    for (auto it = code.begin(); it != code.end();)
      it = it->first >= begin && it->first < end ? code.erase(it) : std::next(it);
  }

  void empty_caches() override {
    std::lock_guard<std::mutex> lock(kept_->chip_mutex);
    kept_->chip.reset();
  }

  // Nobody decodes at a fork: that makes the decoder's tables the first time.
  void before_fork() override { kept_->code_mutex.lock(); }

  void after_fork(bool in_child) override {
    if (!in_child) return kept_->code_mutex.unlock();
    kept_ = new Kept;  // other threads may have been in the midst of the old one
    Arena::forget_other_threads();
    InterruptWatch::forget_other_threads();
  }

 private:
  static size_t give(const std::string& lines, char* text, size_t capacity) {
    if (capacity > 0) snprintf(text, capacity, "%s", lines.c_str());
    return lines.size();
  }

  std::shared_ptr<const Code> decoded(const Kernel& kernel) {
    std::lock_guard<std::mutex> lock(kept_->code_mutex);
    std::shared_ptr<Code>& code = kept_->code[kernel.code_begin];
    if (code == nullptr) {
      const auto* words = reinterpret_cast<const uint32_t*>(kernel.code_begin);
      code = std::make_shared<Code>(decode_all(words, (kernel.code_end - kernel.code_begin) / 4));
    }
    return code;
  }

  // One launch at a time: they share the simulated chip, whose Infinity Cache keeps what earlier ones left.
  Outcome run_in_time(Launch& launch) {
    Kept& kept = *kept_;
    std::lock_guard<std::mutex> lock(kept.chip_mutex);
    std::string mistake;
    const timing::Constants constants = timing::Constants::read(mistake);
    if (!mistake.empty()) return refuse(launch.dispatch.kernel, mistake);
    if (kept.chip == nullptr || kept.chip_constants != constants.text()) {
      kept.chip = std::make_unique<timing::Chip>(constants);
      kept.chip_constants = constants.text();
    }
    const uint32_t host_control = _mm_getcsr();
    kept.chip->run(launch);
    _mm_setcsr(host_control);
    launch.finish_records();
    launch.outcome.instructions = launch.instructions;
    return launch.outcome;
  }

  // State that is kept from dispatch to dispatch.
  struct Kept {
    std::mutex code_mutex;
    std::map<uint64_t, std::shared_ptr<Code>> code;
    std::mutex chip_mutex;
    std::unique_ptr<timing::Chip> chip;
    std::string chip_constants;
  };
  Kept* kept_ = new Kept;  // never destroyed, as the engine
};

}  // namespace
}  // namespace mi300x

extern "C" __attribute__((visibility("default"))) mi300x::Engine* mi300x_engine() {
  static auto* engine =
      new mi300x::Interpreter;  // never destroyed: libraries unload their code while the process exits
  return engine;
}

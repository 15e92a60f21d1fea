#include "wait_counters.h"

#include <utility>

namespace mi300x {

void WaitCounters::start() {
  for (Queue& queue : queues_)
    while (queue.size() != 0) pop(queue);
}

void WaitCounters::pop(Queue& queue) {
  Operation& operation = queue.at(queue.head++);
  for (int i = 0; i < operation.written.count; ++i) --queue.pending[size_t(operation.written.first + i)];
  queue.waiting_registers -= operation.written.count;
  queue.out_of_order -= !operation.in_order;
  operation.lds.clear();
}

void WaitCounters::push(Queue& queue, size_t limit, const Effects& effects, bool in_order, LdsBytes* lds) {
  // The hardware stalls an instruction whose counter is at its limit.
  if (queue.size() == limit && queue.out_of_order == 0) pop(queue);
  if (queue.size() == Queue::capacity) pop(queue);
  Operation& operation = queue.at(queue.tail++);
  operation.written = effects.is_load && effects.writes.size() != 0 ? effects.writes[0] : RegisterRange();
  operation.in_order = in_order;
  operation.to_lds = effects.to_lds;
  operation.memory = effects.memory;
  if (lds != nullptr) std::swap(operation.lds, *lds);
  for (int i = 0; i < operation.written.count; ++i) ++queue.pending[size_t(operation.written.first + i)];
  queue.waiting_registers += operation.written.count;
  queue.out_of_order += !in_order;
}

void WaitCounters::issue(const Effects& effects, LdsBytes& lds) {
  constexpr size_t vm_limit = 63, lgkm_limit = 15;
  switch (effects.unit) {
    case Unit::scalar_memory: return push(queues_[lgkmcnt], lgkm_limit, effects, false, nullptr);
    case Unit::lds: return push(queues_[lgkmcnt], lgkm_limit, effects, true, &lds);
    case Unit::vector_memory: return push(queues_[vmcnt], vm_limit, effects, true, &lds);
    case Unit::flat:
      push(queues_[vmcnt], vm_limit, effects, false, nullptr);
      return push(queues_[lgkmcnt], lgkm_limit, effects, false, &lds);
    default: return;
  }
}

const char* WaitCounters::blocking(const RegisterRange& range, bool is_write, Unit unit, int& number) const {
  const bool look[2] = {queues_[vmcnt].waiting_registers != 0 && !(is_write && unit == Unit::vector_memory),
                        queues_[lgkmcnt].waiting_registers != 0 && !(is_write && unit == Unit::lds)};
  if (!look[vmcnt] && !look[lgkmcnt]) return nullptr;
  for (number = range.first; number < range.first + range.count; ++number) {
    if (look[vmcnt] && queues_[vmcnt].pending[size_t(number)]) return "vmcnt";
    if (look[lgkmcnt] && queues_[lgkmcnt].pending[size_t(number)]) return "lgkmcnt";
  }
  return nullptr;
}

}  // namespace mi300x

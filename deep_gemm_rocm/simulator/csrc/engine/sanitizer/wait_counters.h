// The operations that S_WAITCNT counts: those in flight, and the registers and LDS bytes that they will write.
#pragma once

#include <array>
#include <vector>

#include "../isa/effects.h"

namespace mi300x {

// The LDS bytes that an instruction accesses: `bytes` bytes from each of `begins`.
struct LdsBytes {
  std::vector<uint32_t> begins;
  uint32_t bytes = 0;
  uint32_t site = 0;  // the instruction's index

  void clear() { begins.clear(); }
};

class WaitCounters {
 public:
  struct Operation {
    RegisterRange written;  // by a load; empty for stores
    bool in_order;          // memory answers scalar loads and flat accesses in any order
    bool to_lds;
    MemoryAccess memory;
    LdsBytes lds;
  };

  void start();

  // Adds the instruction's operation. Swaps its LDS bytes for an empty set, to reuse the memory.
  void issue(const Effects& effects, LdsBytes& lds);

  // Executes S_WAITCNT. Calls `landed` with each load to LDS that has ended.
  template <class F>
  void wait(uint16_t simm16, F landed) {
    // vmcnt in bits 0..3 and 14..15, lgkmcnt in bits 8..11.
    retire(queues_[vmcnt], (simm16 & 15) | (simm16 >> 14 & 3) << 4, landed);
    retire(queues_[lgkmcnt], simm16 >> 8 & 15, landed);
  }

  // True where no register waits for a load.
  bool none_waits() const { return queues_[vmcnt].waiting_registers + queues_[lgkmcnt].waiting_registers == 0; }

  // The name of the counter that a register of the range still waits for, and that register's number; null where there
  // is none. A load may follow another one to the same register on the same counter.
  const char* blocking(const RegisterRange& range, bool is_write, Unit unit, int& number) const;

  // Calls f with each operation in flight that touches LDS.
  template <class F>
  void for_each_in_lds(F f) const {
    for (const Queue& queue : queues_)
      for (size_t i = queue.head; i != queue.tail; ++i)
        if (!queue.at(i).lds.begins.empty()) f(queue.at(i));
  }

 private:
  enum Counter { vmcnt, lgkmcnt };

  // A ring buffer. Operations keep the memory of their LDS bytes for reuse.
  struct Queue {
    static constexpr size_t capacity = 64;
    std::array<Operation, capacity> ring;
    size_t head = 0, tail = 0;   // count up
    size_t out_of_order = 0;     // operations that aren't in_order
    size_t waiting_registers = 0;
    std::array<uint8_t, register_count> pending{};  // operations that will write each register

    size_t size() const { return tail - head; }
    Operation& at(size_t i) { return ring[i % capacity]; }
    const Operation& at(size_t i) const { return ring[i % capacity]; }
  };

  static void push(Queue& queue, size_t limit, const Effects& effects, bool in_order, LdsBytes* lds);
  static void pop(Queue& queue);

  template <class F>
  static void retire(Queue& queue, size_t keep, F landed) {
    if (queue.out_of_order != 0 && keep != 0) return;  // it isn't known which ones have ended
    while (queue.size() > keep) {
      if (queue.at(queue.head).to_lds) landed(queue.at(queue.head));
      pop(queue);
    }
  }

  Queue queues_[2];
};

}  // namespace mi300x

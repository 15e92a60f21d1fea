// The counters that the timing model keeps for a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan.h"

namespace mi300x::timing {

// Reasons why a wave waits between one instruction and the next.
enum class Stall : uint8_t {
  issue,          // another wave took the unit, or its priority was higher
  vector_busy,
  matrix_busy,
  matrix_result,
  wait_memory,    // s_waitcnt vmcnt
  wait_local,     // s_waitcnt lgkmcnt
  barrier,
  local_queue,    // the LDS queue is full
  memory_queue,   // the L1's queue is full
  nop,            // s_nop, s_sleep
  scalar,         // results of scalar instructions and branches
  count
};
constexpr size_t stall_count = size_t(Stall::count);
extern const char* const stall_names[stall_count];

struct InstructionCounters {
  uint64_t executed = 0;
  uint64_t clocks = 0;  // summed over waves: from the issue of the instruction before to that of this one
  uint64_t busy = 0;    // clocks for which it occupied LDS or the L1's port
};

// The counters of one CU, or of several added up.
struct Counters {
  uint64_t stalls[stall_count] = {};  // clocks, summed over waves
  uint64_t lds_conflict_clocks = 0;
  uint64_t l1_hits = 0, l1_misses = 0;
  uint64_t wave_clocks = 0;  // clocks that waves were resident
  std::vector<InstructionCounters> by_instruction;

  void add(const Counters& other);

  // Adds the difference between two points in time, times `weight`.
  void add_difference(const Counters& end, const Counters& begin, double weight);

 private:
  template <class F>
  static void for_each_total(F f);
};

// Totals over all instructions' counters.
struct Sums {
  Sums(const std::vector<InstructionCounters>& by_instruction, const std::vector<Plan>& plans);

  uint64_t instructions = 0;
  uint64_t matrix_clocks = 0, vector_clocks = 0;  // summed over SIMDs
  uint64_t matrix_clocks_fp8 = 0, matrix_clocks_i8 = 0, matrix_clocks_f16 = 0;  // parts of matrix_clocks
  uint64_t lds_clocks = 0;
  uint64_t memory_clocks = 0;  // of the L1's port
  double l1_bytes = 0;         // that the port could move in these clocks
};

// sum + weight * (end - begin).
inline uint64_t extrapolated(uint64_t sum, uint64_t end, uint64_t begin, double weight) {
  return sum + uint64_t(weight * double(end - begin) + 0.5);
}

}  // namespace mi300x::timing

// The timing of a compute unit: four SIMDs that issue the instructions of their waves, the LDS, the vector L1 and a
// scalar cache.
//
// A CU runs by itself up to a given clock. Its cache misses become requests, which the chip answers before the CU runs
// on. The CU never runs further ahead than the fastest answer takes.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "../execution/workgroup_runner.h"
#include "cache.h"
#include "constants.h"
#include "counters.h"
#include "memory_system.h"
#include "plan.h"
#include "timeline.h"
#include "trace.h"

namespace mi300x::timing {

// A memory access in flight.
struct Transfer {
  double done = 0;            // the clock at which it ended, once nothing is outstanding
  uint32_t outstanding = 0;   // lines that the chip hasn't answered yet
  double tail = 0;            // clocks from the last line to the end
};

struct LineRequest {
  double time;
  uint64_t line;  // of the cache that asks
  Transfer* transfer;
  uint32_t cu;
  uint16_t bytes;
  Request kind;
  bool merged;  // the CU has asked for the line already

  uint64_t bytes_of_line() const { return kind == Request::scalar_load ? scalar_line_bytes : line_bytes; }
  uint64_t l2_line() const { return line * bytes_of_line() / line_bytes; }
};

class ComputeUnit {
 public:
  ComputeUnit(uint32_t number, const Constants& constants, Launch& launch, const std::vector<Plan>& plans,
              const AddressSpace& addresses);

  // True where there are wave slots, registers and LDS for another workgroup.
  bool has_room() const;
  void start_workgroup(uint64_t id, uint64_t time);

  // Simulates up to the clock `end`.
  void run(uint64_t end);

  // Requests since the last call of run.
  std::vector<LineRequest>& requests() { return requests_; }
  void answer(const LineRequest& request, double time);

  // Clocks at which workgroups ended since the last call of run.
  std::vector<uint64_t>& ended_workgroups() { return ended_; }

  bool is_idle() const { return resident_ == 0; }
  uint64_t last_end() const { return last_end_; }
  const Counters& counters() const { return counters_; }
  const std::optional<Statistics>& statistics() const { return statistics_; }
  const std::optional<Timeline>& timeline() const { return timeline_; }

 private:
  // The accesses that one S_WAITCNT counter counts, in order.
  struct TransferQueue {
    static constexpr size_t capacity = 64;
    std::array<Transfer, capacity> ring;
    size_t head = 0, tail = 0;
    size_t size() const { return tail - head; }
    Transfer& push() { return ring[tail++ % capacity] = Transfer(); }
  };
  struct MatrixWrite {
    RegisterRange range;
    uint64_t time = 0, expires = 0;
    uint8_t passes = 0;
  };
  struct Group;
  struct Slot {
    Group* group = nullptr;
    Wave* wave = nullptr;
    Trace* trace = nullptr;
    uint64_t next = 0;      // the clock at which to try again
    uint64_t age = 0;
    uint64_t last_issue = 0, started = 0;
    uint64_t stalled_since = 0;
    Stall stall = Stall::count;
    int priority = 0;
    bool at_barrier = false;
    TransferQueue memory, local;
    std::array<MatrixWrite, 8> matrix;
    uint64_t matrix_until = 0;
    uint32_t matrix_next = 0;
  };
  struct Simd {
    std::vector<Slot*> slots;  // oldest first
    uint32_t registers = 0;    // in use
    uint64_t next = ~0ull;
    uint64_t vector_free = 0, matrix_free = 0;
  };
  struct Group {
    std::unique_ptr<WorkgroupRunner> runner;
    std::vector<Trace> traces;
    std::vector<std::unique_ptr<Slot>> slots;
    std::vector<uint32_t> simd_of_wave;
    uint64_t id = 0, started = 0;
    uint32_t alive = 0, waiting = 0;
    uint64_t last_arrival = 0;
    bool resident = false;
  };
  enum Port : uint8_t { port_vector = 1, port_memory = 2, port_scalar = 4, port_lds = 8, port_branch = 16 };

  static constexpr uint64_t never = ~0ull;

  void turn(uint32_t number, uint64_t now);
  bool try_issue(uint32_t simd_number, Slot& slot, uint64_t now, uint8_t& used);
  // The port that an instruction takes for a turn; 0 where none limits it.
  static uint8_t port_of(Plan::Kind kind);
  // These return false, with the wave held, where the instruction can't be issued yet.
  bool issue(uint32_t simd_number, Slot& slot, const Step& step, const Plan& plan, uint64_t now);
  bool issue_vector(Simd& simd, Slot& slot, const Plan& plan, uint64_t now);
  bool issue_matrix(Simd& simd, Slot& slot, const Plan& plan, uint64_t now);
  bool issue_lds(uint32_t simd_number, Slot& slot, const Step& step, const Plan& plan, uint64_t now);
  bool issue_memory(Slot& slot, const Step& step, const Plan& plan, uint64_t now);
  bool issue_scalar_memory(Slot& slot, const Step& step, const Plan& plan, uint64_t now);
  bool wait(Slot& slot, const Plan& plan, uint64_t now);
  bool arrive(Slot& slot, uint64_t now);
  void open_barrier(Group& group);
  void end_wave(Slot& slot, uint64_t now);

  // Stalls the wave until the clock `until`. Returns false.
  bool hold(Slot& slot, Stall why, uint64_t now, uint64_t until);
  void end_stall(Slot& slot, uint64_t now);
  void issued(Slot& slot, uint64_t now, uint64_t next);
  void show(const Slot& slot, uint64_t begin, uint64_t end, int64_t pc, Stall stall);
  uint64_t matrix_result_time(const Slot& slot, const Plan& plan) const;
  bool make_room(Slot& slot, TransferQueue& queue, size_t limit, Stall why, uint64_t now);

  // The clock at which all but the last `keep` transfers have ended; `never` where that isn't known yet.
  static uint64_t end_of(const TransferQueue& queue, size_t keep);
  static void retire(TransferQueue& queue, uint64_t now);
  void request(double time, uint64_t line, Transfer& transfer, Request kind, uint16_t bytes, bool merged);
  double filled(const LineRequest& request, double time);
  std::vector<uint32_t> placement() const;
  std::unique_ptr<Group> new_group();

  const uint32_t number_;
  const Constants& constants_;
  Launch& launch_;
  const std::vector<Plan>& plans_;
  const AddressSpace& addresses_;
  uint32_t waves_of_group_, registers_of_wave_, lds_of_group_;

  std::vector<Simd> simds_;
  std::vector<std::unique_ptr<Group>> groups_;
  uint32_t resident_ = 0, lds_used_ = 0;
  uint64_t ages_ = 0;
  uint64_t now_ = 0, horizon_ = 0;
  uint64_t last_end_ = 0;
  std::vector<uint64_t> ended_;

  double bank_free_ = 0;
  double lds_in_free_[2] = {}, lds_out_free_[2] = {};
  Cache l1_, scalar_cache_;
  double l1_free_ = 0, fill_free_ = 0;
  uint64_t unanswered_ = 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> arrivals_;  // clocks of answered lines
  std::vector<LineRequest> requests_;
  Counters counters_;
  std::optional<Statistics> statistics_;
  std::optional<Timeline> timeline_;
};

}  // namespace mi300x::timing

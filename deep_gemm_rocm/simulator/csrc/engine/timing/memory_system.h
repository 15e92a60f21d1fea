// The memory system beyond the CUs: an L2 for each XCD, the fabric, the Infinity Cache (MALL) and HBM.
//
// A request is answered with the time of its completion as soon as it is made: every resource on its way (L2 channel,
// fabric link, MALL slice, HBM channel) keeps the time until which it is busy. Requests must come in order of time.
#pragma once

#include <cstdint>
#include <vector>

#include "cache.h"
#include "constants.h"

namespace mi300x::timing {

constexpr uint64_t line_bytes = 128;
constexpr uint64_t scalar_line_bytes = 64;  // of the scalar cache (CDNA3 ISA)

enum class Request : uint8_t { load, store, atomic, scalar_load };

struct MemoryCounters {
  uint64_t l2_hits = 0, l2_misses = 0;
  uint64_t mall_hits = 0, mall_misses = 0, mall_writes = 0;
  uint64_t hbm_read_bytes = 0, hbm_write_bytes = 0;
  uint64_t tlb_misses = 0;

  // Adds the difference between two points in time, times `weight`.
  void add_difference(const MemoryCounters& end, const MemoryCounters& begin, double weight);
};

class MemorySystem {
 public:
  explicit MemorySystem(const Constants& constants);

  // Called before each kernel. Invalidates the L2s, whose lines may be stale, but not the MALL.
  void start_kernel();

  // The clock at which the line's data arrive at the CU, or a store is acknowledged. `time` is when the request leaves
  // the CU's cache; `bytes` is how much of the line a store writes.
  double access(uint32_t xcd, double time, uint64_t line, Request request, uint32_t bytes);

  // Writes back all dirty lines of the L2s, as at the end of a kernel. Returns the clock at which the last one is
  // written.
  double write_back(double time);

  // Counters of an XCD's requests.
  const MemoryCounters& counters(size_t xcd) const { return xcds_[xcd].counters; }

  // The shortest time in which a request can be answered.
  double least_clocks() const;

 private:
  // A resource that serves one request after another.
  struct Server {
    double free = 0;
    double serve(double time, double clocks) { return free = (time > free ? time : free) + clocks; }
  };
  struct Xcd {
    Cache l2;
    Cache tlb;
    std::vector<Server> channels;
    Server link_in, link_out;
    MemoryCounters counters;
  };

  double beyond_l2(Xcd& xcd, double time, uint64_t line);
  void write_line(Xcd& xcd, double time, uint64_t line);
  void touch_mall(Xcd& xcd, double time, uint64_t line, bool dirty, bool& hit, double& served);

  const Constants constants_;
  std::vector<Xcd> xcds_;
  Cache mall_;
  std::vector<Server> slices_, hbm_;
};

}  // namespace mi300x::timing

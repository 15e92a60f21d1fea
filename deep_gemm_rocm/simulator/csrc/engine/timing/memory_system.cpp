#include "memory_system.h"

#include <algorithm>

#include "counters.h"

namespace mi300x::timing {
namespace {

// Spreads lines over channels. Pairs of lines stay together; higher bits are folded in, so that power-of-two strides
// use all channels.
size_t channel_of(uint64_t line, size_t channels) {
  const uint64_t pair = line >> 1;
  return size_t(pair ^ pair >> 4 ^ pair >> 8 ^ pair >> 13 ^ pair >> 19) % channels;
}

}  // namespace

void MemoryCounters::add_difference(const MemoryCounters& end, const MemoryCounters& begin, double weight) {
  for (uint64_t MemoryCounters::*total :
       {&MemoryCounters::l2_hits, &MemoryCounters::l2_misses, &MemoryCounters::mall_hits, &MemoryCounters::mall_misses,
        &MemoryCounters::mall_writes, &MemoryCounters::hbm_read_bytes, &MemoryCounters::hbm_write_bytes,
        &MemoryCounters::tlb_misses})
    this->*total = extrapolated(this->*total, end.*total, begin.*total, weight);
}

MemorySystem::MemorySystem(const Constants& c)
    : constants_(c),
      mall_(c.mall_bytes, line_bytes, c.mall_ways),
      slices_(size_t(c.mall_slices)),
      hbm_(size_t(c.mall_slices)) {
  const double pages = std::max(1.0, c.tlb_reach_bytes / c.tlb_page_bytes);
  for (int i = 0; i < int(c.chip_xcds); ++i)
    xcds_.push_back({Cache(c.l2_bytes, line_bytes, c.l2_ways), Cache(pages, 1, pages),
                     std::vector<Server>(size_t(c.l2_channels)), Server(), Server(), {}});
}

void MemorySystem::start_kernel() {
  for (Xcd& xcd : xcds_) {
    xcd.counters = {};
    xcd.l2.clear();
    for (Server& channel : xcd.channels) channel.free = 0;
    xcd.link_in.free = xcd.link_out.free = 0;
  }
  for (Server& slice : slices_) slice.free = 0;
  for (Server& channel : hbm_) channel.free = 0;
}

double MemorySystem::least_clocks() const {
  return std::min(constants_.l2_hit_clocks - constants_.l1_hit_clocks, constants_.scalar_cache_miss_clocks);
}

void MemorySystem::touch_mall(Xcd& xcd, double time, uint64_t line, bool dirty, bool& hit, double& served) {
  const size_t slice = channel_of(line, slices_.size());
  const Cache::Result result = mall_.access(line, dirty);
  hit = result.hit;
  served = slices_[slice].serve(time, constants_.clocks(line_bytes / constants_.mall_bytes_per_ns));
  if (!result.evicted_dirty) return;
  xcd.counters.hbm_write_bytes += line_bytes;
  Server& channel = hbm_[channel_of(result.evicted, hbm_.size())];
  channel.serve(time, constants_.clocks(line_bytes / constants_.hbm_bytes_per_ns));
}

// An L2 miss: the line comes over the fabric from the MALL, or from HBM where the MALL misses too.
double MemorySystem::beyond_l2(Xcd& xcd, double time, uint64_t line) {
  const Constants& c = constants_;
  bool hit;
  double served;
  touch_mall(xcd, time, line, false, hit, served);
  const double mall_extra = c.clocks(c.mall_extra_ns);
  double done = served + mall_extra;
  if (hit) {
    ++xcd.counters.mall_hits;
  } else {
    ++xcd.counters.mall_misses;
    xcd.counters.hbm_read_bytes += line_bytes;
    const double read =
        hbm_[channel_of(line, hbm_.size())].serve(served, c.clocks(line_bytes / c.hbm_bytes_per_ns));
    done = read + mall_extra + c.clocks(c.hbm_extra_ns);
  }
  // Time on the link is reserved in the order of the requests, as if they had no latency, although data pass the link
  // on their way back.
  const double waiting = xcd.link_in.serve(time, c.clocks(line_bytes / c.fabric_xcd_bytes_per_ns)) - time;
  return std::max(done, time + mall_extra + waiting);
}

void MemorySystem::write_line(Xcd& xcd, double time, uint64_t line) {
  const double clocks = constants_.clocks(line_bytes / constants_.fabric_xcd_write_bytes_per_ns);
  const double sent = xcd.link_out.serve(time, clocks);
  ++xcd.counters.mall_writes;
  bool hit;
  double served;
  touch_mall(xcd, sent, line, true, hit, served);
}

double MemorySystem::access(uint32_t number, double time, uint64_t line, Request request, uint32_t bytes) {
  const Constants& c = constants_;
  Xcd& xcd = xcds_[number];
  const bool stores = request == Request::store;
  const double extra =
      request == Request::scalar_load ? c.scalar_cache_miss_clocks : c.l2_hit_clocks - c.l1_hit_clocks;
  const double service =
      stores ? std::max(1.0, bytes / c.l2_channel_write_bytes) : std::max(1.0, line_bytes / c.l2_channel_bytes);
  double ready = xcd.channels[channel_of(line, xcd.channels.size())].serve(time, service) - service;
  if (!xcd.tlb.access(line * line_bytes / uint64_t(c.tlb_page_bytes)).hit) {
    ++xcd.counters.tlb_misses;
    ready += c.clocks(c.tlb_miss_ns);
  }
  const Cache::Result result = xcd.l2.access(line, request != Request::load && request != Request::scalar_load);
  if (result.evicted_dirty) write_line(xcd, ready, result.evicted);
  ++(result.hit ? xcd.counters.l2_hits : xcd.counters.l2_misses);
  // Stores that miss fetch nothing: the line is then partly valid.
  if (stores) return ready + extra;
  if (!result.hit) *result.ready = beyond_l2(xcd, ready, line);
  return std::max(ready, *result.ready) + extra;
}

double MemorySystem::write_back(double time) {
  double last = time;
  for (Xcd& xcd : xcds_) {
    xcd.l2.write_back([&](uint64_t line) { write_line(xcd, time, line); });
    last = std::max(last, xcd.link_out.free);
  }
  return last;
}

}  // namespace mi300x::timing

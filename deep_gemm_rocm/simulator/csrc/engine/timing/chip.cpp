#include "chip.h"

#include <algorithm>

#include "record.h"

namespace mi300x::timing {

Chip::Chip(const Constants& constants) : constants_(constants), memory_(constants) {}

// Workgroups go round-robin over the XCDs, and in each XCD over the CUs that have room.
void Chip::dispatch(Launch& launch, Xcd& xcd, std::vector<std::unique_ptr<ComputeUnit>>& cus, size_t first,
                    uint64_t now) {
  const auto count = size_t(constants_.chip_cus_per_xcd);
  size_t full = 0;
  while (xcd.next_workgroup < launch.workgroups && full < count) {
    ComputeUnit& cu = *cus[first + xcd.next_cu];
    xcd.next_cu = (xcd.next_cu + 1) % count;
    if (!cu.has_room()) {
      ++full;
      continue;
    }
    full = 0;
    const uint64_t start = std::max(now, xcd.free);
    xcd.free = start + uint64_t(constants_.launch_workgroup_clocks);
    cu.start_workgroup(xcd.next_workgroup, start);
    xcd.next_workgroup += uint64_t(constants_.chip_xcds);
  }
}

void Chip::answer(std::vector<std::unique_ptr<ComputeUnit>>& cus) {
  requests_.clear();
  for (auto& cu : cus) {
    requests_.insert(requests_.end(), cu->requests().begin(), cu->requests().end());
    cu->requests().clear();
  }
  std::stable_sort(requests_.begin(), requests_.end(),
                   [](const LineRequest& a, const LineRequest& b) { return a.time < b.time; });
  for (const LineRequest& request : requests_) {
    const auto xcd = uint32_t(request.cu / size_t(constants_.chip_cus_per_xcd));
    const double time =
        request.merged ? 0 : memory_.access(xcd, request.time, request.line, request.kind, request.bytes);
    cus[request.cu]->answer(request, time);
  }
}

void Chip::run(Launch& launch) {
  const std::vector<Plan> plans = plans_of(launch.code->instructions, launch.effects, constants_);
  memory_.start_kernel();
  const auto xcd_count = size_t(constants_.chip_xcds), cus_per_xcd = size_t(constants_.chip_cus_per_xcd);
  std::vector<std::unique_ptr<ComputeUnit>> cus;
  for (uint32_t i = 0; i < xcd_count * cus_per_xcd; ++i)
    cus.push_back(std::make_unique<ComputeUnit>(i, constants_, launch, plans));
  std::vector<Xcd> xcds(xcd_count);
  for (size_t i = 0; i < xcd_count; ++i) xcds[i].next_workgroup = i;

  // The CUs run by themselves for no longer than the fastest answer takes.
  const auto quantum = std::max<uint64_t>(4, uint64_t(memory_.least_clocks()) / 4 * 4);
  const auto reaction = std::max<uint64_t>(quantum, uint64_t(constants_.launch_dispatch_clocks));
  for (size_t i = 0; i < xcd_count; ++i) dispatch(launch, xcds[i], cus, i * cus_per_xcd, 0);
  for (uint64_t now = quantum; !launch.stop; now += quantum) {
    bool any = false;
    for (auto& cu : cus) {
      if (cu->is_idle()) continue;
      cu->run(now);
      any = true;
      if (launch.stop) return;
    }
    answer(cus);
    for (size_t i = 0; i < xcd_count; ++i) {
      uint64_t freed = 0;
      for (size_t cu = i * cus_per_xcd; cu < (i + 1) * cus_per_xcd; ++cu) {
        for (const uint64_t end : cus[cu]->ended_workgroups()) freed = std::max(freed, end);
        cus[cu]->ended_workgroups().clear();
      }
      if (freed != 0) dispatch(launch, xcds[i], cus, i * cus_per_xcd, freed + reaction);
    }
    if (!any) break;
  }

  Counters counters;
  uint64_t end = 0;
  for (const auto& cu : cus) {
    counters.add(cu->counters());
    end = std::max(end, cu->last_end());
  }
  const uint64_t clocks = uint64_t(memory_.write_back(double(end)));
  launch.outcome.nanoseconds = constants_.launch_overhead_ns + double(clocks) * 1000 / constants_.chip_clock_mhz;
  if (launch.dispatch.profile == nullptr) return;
  const std::string record = record_of(launch, constants_, counters, memory_.counters(), clocks);
  launch.dispatch.profile->add(record.data(), record.size());
}

}  // namespace mi300x::timing

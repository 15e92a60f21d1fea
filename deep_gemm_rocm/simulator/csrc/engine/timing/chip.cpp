#include "chip.h"

#include <algorithm>

#include "compute_unit.h"
#include "crew.h"
#include "record.h"
#include "sampling.h"
#include "slice.h"

namespace mi300x::timing {
namespace {

// Whether a workgroup may find out by the instruction what other workgroups have done.
bool listens(const Effects& effects) {
  const bool vector = effects.unit == Unit::vector_memory || effects.unit == Unit::flat;
  return effects.memory.atomic && effects.is_load && (vector || effects.unit == Unit::scalar_memory);
}

// One launch: workgroups go to XCDs and CUs, CUs run, the memory system answers.
class LaunchInTime {
 public:
  LaunchInTime(Launch& launch, const Constants& constants, MemorySystem& memory, const AddressSpace& addresses)
      : launch_(launch),
        constants_(constants),
        memory_(memory),
        plans_(plans_of(launch.code->instructions, launch.effects, constants)),
        xcds_(size_t(constants.chip_xcds)),
        cus_per_xcd_(size_t(constants.chip_cus_per_xcd)),
        crew_(std::min(launch.settings.threads, launch.workgroups)),
        sampling_(launch.workgroups, xcds_.size()),
        left_out_(xcds_.size()) {
    for (uint32_t i = 0; i < xcds_.size() * cus_per_xcd_; ++i)
      cus_.push_back(std::make_unique<ComputeUnit>(i, constants, launch, plans_, addresses));
    for (size_t i = 0; i < xcds_.size(); ++i) xcds_[i].next_workgroup = i;
  }

  // False where a workgroup failed.
  bool run() {
    // CUs run by themselves for at most as long as the fastest answer takes.
    const auto quantum = std::max<uint64_t>(4, uint64_t(memory_.least_clocks()) / 4 * 4);
    const auto reaction = std::max<uint64_t>(quantum, uint64_t(constants_.launch_dispatch_clocks));
    for (size_t i = 0; i < xcds_.size(); ++i) dispatch(i, 0);
    uint64_t resident = 0;
    for (const Xcd& xcd : xcds_) resident += xcd.started;
    bool any_ended = false;
    std::atomic<bool> any{true};
    for (uint64_t now = quantum; any; now += quantum) {
      any = false;
      crew_.for_each(cus_.size(), [&](size_t cu) {
        if (launch_.stop || cus_[cu]->is_idle()) return;
        any = true;
        cus_[cu]->run(now);
      });
      if (launch_.stop) return false;
      answer();
      for (Xcd& xcd : xcds_) xcd.residence += double(quantum * (xcd.started - xcd.ended));
      const std::vector<uint64_t> freed = collect_ended();
      if (!any_ended && *std::max_element(freed.begin(), freed.end()) != 0) {
        any_ended = true;
        choose_sample(resident);
      }
      for (size_t i = 0; i < xcds_.size(); ++i) {
        while (xcds_[i].ended >= sampling_.next_mark(i)) sampling_.measure(i, work_of(i));
        if (freed[i] != 0) dispatch(i, freed[i] + reaction);
      }
    }
    for (const auto& cu : cus_)
      if (launch_.statistics) launch_.statistics->add(*cu->statistics());
    if (sampling_.left_out() != 0) execute_what_was_left_out();
    return !launch_.stop;
  }

  Cost total() {
    std::vector<uint64_t> ends(xcds_.size());
    for (size_t i = 0; i < cus_.size(); ++i) {
      uint64_t& end = ends[i / cus_per_xcd_];
      end = std::max(end, cus_[i]->last_end());
    }
    Cost cost;
    cost.clocks = memory_.write_back(double(*std::max_element(ends.begin(), ends.end())));
    for (size_t i = 0; i < xcds_.size(); ++i) cost.work.add_difference(work_of(i), {}, 1);
    if (sampling_.left_out() != 0) sampling_.extrapolate(cost, ends, left_out_);
    return cost;
  }
  const Sampling& sampling() const { return sampling_; }
  const std::vector<Plan>& plans() const { return plans_; }
  std::vector<const Timeline*> timelines() const {
    std::vector<const Timeline*> result;
    for (const auto& cu : cus_)
      if (cu->timeline()) result.push_back(&*cu->timeline());
    return result;
  }

 private:
  struct Xcd {
    uint64_t next_workgroup = 0;  // each XCD gets every eighth workgroup
    uint64_t free = 0;            // the clock from which the dispatcher can start the next one
    size_t next_cu = 0;
    uint64_t started = 0, ended = 0;  // workgroups
    double residence = 0;             // clocks that workgroups were resident
  };

  // Workgroups go round-robin over the XCDs, and in each XCD over the CUs that have room.
  void dispatch(size_t number, uint64_t now) {
    Xcd& xcd = xcds_[number];
    size_t full = 0;
    for (;;) {
      while (xcd.next_workgroup < launch_.workgroups && !sampling_.keeps(xcd.next_workgroup))
        xcd.next_workgroup += xcds_.size();
      if (xcd.next_workgroup >= launch_.workgroups || full == cus_per_xcd_) return;
      ComputeUnit& cu = *cus_[number * cus_per_xcd_ + xcd.next_cu];
      xcd.next_cu = (xcd.next_cu + 1) % cus_per_xcd_;
      if (!cu.has_room()) {
        ++full;
        continue;
      }
      full = 0;
      const uint64_t start = std::max(now, xcd.free);
      xcd.free = start + uint64_t(constants_.launch_workgroup_clocks);
      cu.start_workgroup(xcd.next_workgroup, start);
      xcd.next_workgroup += xcds_.size();
      ++xcd.started;
    }
  }

  void answer() {
    requests_.clear();
    for (auto& cu : cus_) {
      requests_.insert(requests_.end(), cu->requests().begin(), cu->requests().end());
      cu->requests().clear();
    }
    std::stable_sort(requests_.begin(), requests_.end(),
                     [](const LineRequest& a, const LineRequest& b) { return a.time < b.time; });
    for (const LineRequest& request : requests_) {
      const auto xcd = uint32_t(request.cu / cus_per_xcd_);
      const double time =
          request.merged ? 0 : memory_.access(xcd, request.time, request.l2_line(), request.kind, request.bytes);
      cus_[request.cu]->answer(request, time);
    }
  }

  // For each XCD, the clock of the last workgroup that ended since the last call; 0 where none has.
  std::vector<uint64_t> collect_ended() {
    std::vector<uint64_t> freed(xcds_.size());
    for (size_t cu = 0; cu < cus_.size(); ++cu) {
      uint64_t& last = freed[cu / cus_per_xcd_];
      for (const uint64_t end : cus_[cu]->ended_workgroups()) last = std::max(last, end);
      xcds_[cu / cus_per_xcd_].ended += cus_[cu]->ended_workgroups().size();
      cus_[cu]->ended_workgroups().clear();
    }
    return freed;
  }

  // Called once the first workgroups have ended, and the size of the launch can be estimated from them. Launches whose
  // workgroups wait for each other, or whose instructions are counted, aren't sampled.
  void choose_sample(uint64_t resident) {
    if (!launch_.settings.sampling || launch_.statistics) return;
    uint64_t ended = 0;
    for (size_t i = 0; i < xcds_.size(); ++i) {
      const Counters so_far = work_of(i).counters;
      for (size_t pc = 0; pc < plans_.size(); ++pc)
        if (so_far.by_instruction[pc].executed != 0 && listens(launch_.effects[pc])) return;
      ended += xcds_[i].ended;
    }
    sampling_.leave_out(resident, launch_.instructions / ended, uint64_t(constants_.sampling_most_instructions));
  }

  Work work_of(size_t xcd) const {
    Work work;
    work.residence = xcds_[xcd].residence;
    for (size_t i = 0; i < cus_per_xcd_; ++i) work.counters.add(cus_[xcd * cus_per_xcd_ + i]->counters());
    work.memory = memory_.counters(xcd);
    return work;
  }

  // Executes the workgroups that weren't sampled, without timing, and counts their instructions. Where results aren't
  // wanted, only what branches depend on is executed.
  void execute_what_was_left_out() {
    const std::vector<Instruction>& code = launch_.code->instructions;
    std::vector<uint8_t> needed(code.size(), 1);
    if (!launch_.settings.computes(launch_.dispatch.kernel->name))
      needed = needed_instructions(launch_, Wanted::branches);
    for (std::vector<uint64_t>& executed : left_out_) executed.resize(code.size());
    std::mutex mutex;
    crew_.for_each(launch_.settings.threads, [&](size_t) {
      std::vector<Tally> tallies(xcds_.size(), Tally(code, needed));
      WorkgroupRunner runner(launch_);
      for (uint64_t id; !launch_.stop && (id = launch_.next_workgroup++) < launch_.workgroups;) {
        if (sampling_.keeps(id)) continue;
        runner.count_into(&tallies[id % xcds_.size()]);
        runner.start(id);
        while (!runner.run().has_ended) {}
      }
      std::lock_guard<std::mutex> lock(mutex);
      for (size_t i = 0; i < xcds_.size(); ++i) tallies[i].add_to(left_out_[i]);
    });
  }

  Launch& launch_;
  const Constants& constants_;
  MemorySystem& memory_;
  const std::vector<Plan> plans_;
  std::vector<std::unique_ptr<ComputeUnit>> cus_;
  std::vector<Xcd> xcds_;
  const size_t cus_per_xcd_;
  std::vector<LineRequest> requests_;
  Crew crew_;
  Sampling sampling_;
  std::vector<std::vector<uint64_t>> left_out_;  // of each XCD: how often instructions of those were executed
};

}  // namespace

void Chip::run(Launch& launch) {
  if (!launch.settings.computes(launch.dispatch.kernel->name))
    launch.needed = needed_instructions(launch, Wanted::branches_and_addresses);
  memory_.start_kernel();
  addresses_.enter(launch);
  LaunchInTime in_time(launch, constants_, memory_, addresses_);
  if (!in_time.run()) return;
  const Cost cost = in_time.total();
  launch.outcome.nanoseconds = constants_.launch_overhead_ns + cost.clocks * 1000 / constants_.chip_clock_mhz;
  if (launch.dispatch.profile == nullptr) return;
  const std::string record =
      record_of(launch, constants_, in_time.sampling(), cost, in_time.plans(), in_time.timelines());
  launch.dispatch.profile->add(record.data(), record.size());
}

}  // namespace mi300x::timing

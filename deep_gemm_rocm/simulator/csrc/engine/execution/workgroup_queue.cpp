#include "workgroup_queue.h"

#include <algorithm>
#include <utility>

namespace mi300x {
namespace {

// A slice counts as at least so many instructions, because suspending a workgroup takes time too.
constexpr uint64_t least_slice = 256;

uint64_t most_resident(const Launch& launch) {
  const int waves = int((launch.workgroup_size + lanes - 1) / lanes);
  const device::Occupancy of_cu(waves, launch.dispatch.kernel->all_vector_registers(), launch.lds_bytes);
  return uint64_t(std::max(1, of_cu.workgroups())) * device::kComputeUnits;
}

}  // namespace

WorkgroupQueue::WorkgroupQueue(Launch& launch) : launch_(launch), most_resident_(most_resident(launch)) {}

WorkgroupQueue::Resident WorkgroupQueue::take() { return next(std::unique_lock<std::mutex>(mutex_)); }

WorkgroupQueue::Resident WorkgroupQueue::exchange(Resident resident, const WorkgroupRunner::Slice& slice) {
  std::unique_lock<std::mutex> lock(mutex_);
  put_back(std::move(resident), slice);
  return next(std::move(lock));
}

WorkgroupQueue::Resident WorkgroupQueue::next(std::unique_lock<std::mutex> lock) {
  Resident resident;
  const bool starts = started_ < launch_.workgroups && resident_ < most_resident_;
  if (launch_.stop || (!starts && suspended_.empty())) return resident;
  if (!starts) {
    resident = std::move(suspended_.front());
    suspended_.pop_front();
    resident.taken_at = progress_;
    if (resident.runner.get() == favourite_)
      resident.slice = std::max(WorkgroupRunner::usual_slice, std::exchange(others_, 0));
    return resident;
  }
  const uint64_t id = started_++;
  ++resident_;
  resident.taken_at = progress_;
  if (!spare_.empty()) {
    resident.runner = std::move(spare_.back());
    spare_.pop_back();
  }
  lock.unlock();
  if (resident.runner == nullptr) resident.runner = std::make_unique<WorkgroupRunner>(launch_);
  resident.runner->start(id);
  return resident;
}

void WorkgroupQueue::put_back(Resident resident, const WorkgroupRunner::Slice& slice) {
  if (slice.has_progressed || slice.has_ended) {
    ++progress_;
    waiting_ = polling_ = 0;
  } else if (resident.taken_at == progress_ && resident.polled_at != progress_) {
    resident.polled_at = progress_;
    ++waiting_;
  }
  const bool is_favourite = resident.runner.get() == favourite_;
  if (!is_favourite) others_ += slice.instructions;
  if (is_favourite && slice.has_ended) favourite_ = nullptr;
  if (favourite_ == nullptr && !slice.has_ended && slice.instructions >= resident.slice)
    favourite_ = resident.runner.get();
  if (slice.has_ended) {
    --resident_;
    spare_.push_back(std::move(resident.runner));
    return;
  }
  if (waiting_ == resident_) polling_ += std::max(least_slice, slice.instructions);
  // A workgroup that is alone is left to the limit of each wave.
  if (polling_ >= launch_.settings.max_instructions && launch_.workgroups > 1)
    resident.runner->report_waiting(stalled());
  suspended_.push_back(std::move(resident));
}

std::string WorkgroupQueue::stalled() const {
  std::string text = "the workgroups wait for each other: " + std::to_string(resident_) + " of " +
                     std::to_string(launch_.workgroups) + " have polled memory for " + std::to_string(polling_) +
                     " instructions without an end (limit: DG_SIM_MAX_INSTRUCTIONS)";
  const uint64_t not_started = launch_.workgroups - started_;
  if (not_started > 0 && resident_ == most_resident_)
    text += ", and no more fit on the chip, so that " + std::to_string(not_started) + " never start";
  return text;
}

}  // namespace mi300x

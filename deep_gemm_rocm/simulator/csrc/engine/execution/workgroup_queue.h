// The workgroups of a dispatch, which the host threads execute. A workgroup that waits for others is suspended, so that
// one host thread can execute workgroups that wait for each other. As on the chip, only as many workgroups are resident
// as fit, and another one starts when one of these ends.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "launch.h"
#include "workgroup_runner.h"

namespace mi300x {

class WorkgroupQueue {
 public:
  explicit WorkgroupQueue(Launch& launch);

  struct Resident {
    std::unique_ptr<WorkgroupRunner> runner;
    uint64_t taken_at = 0, polled_at = 0;  // as counted by progress_
    uint64_t slice = WorkgroupRunner::usual_slice;
  };

  // A workgroup to execute next; without a runner where nothing is left for this host thread.
  Resident take();

  // The same, after a slice of another one. Fails the dispatch where no workgroup has made progress for too long.
  Resident exchange(Resident resident, const WorkgroupRunner::Slice& slice);

 private:
  // Called with the mutex locked.
  void put_back(Resident resident, const WorkgroupRunner::Slice& slice);

  // Unlocks, and makes the workgroup resident where it is a new one.
  Resident next(std::unique_lock<std::mutex> lock);

  // Describes a dispatch in which no workgroup makes progress.
  std::string stalled() const;

  Launch& launch_;
  const uint64_t most_resident_;
  std::mutex mutex_;
  uint64_t started_ = 0, resident_ = 0;
  std::deque<Resident> suspended_;  // the longest suspended one first
  std::vector<std::unique_ptr<WorkgroupRunner>> spare_;

  uint64_t progress_ = 1;   // counts slices in which a workgroup did more than to poll memory
  uint64_t waiting_ = 0;    // workgroups that have polled in a slice that began after the last progress
  uint64_t polling_ = 0;    // instructions executed since all resident workgroups only poll

  // The first workgroup that executes very many instructions. It gets half of the time, so that it soon reaches the
  // limit of instructions if it is endless.
  const WorkgroupRunner* favourite_ = nullptr;
  uint64_t others_ = 0;  // instructions of the other workgroups since its last slice
};

}  // namespace mi300x

// Device memory for the grid barrier of a cooperative launch.
#pragma once

#include <cstdint>

// The state of a grid's barrier in device memory, to which hidden_multigrid_sync_arg points. ROCm's device libraries
// (ockl, cg.cl) and this package's headers know the layout, which is that of ROCm 6.
class GridSync {
 public:
  explicit GridSync(uint64_t workgroups, uint64_t threads);
  ~GridSync();
  GridSync(const GridSync&) = delete;

  uint64_t address() const { return reinterpret_cast<uint64_t>(info_); }

 private:
  struct Info {
    void* between_grids;  // the barrier of a launch on several devices
    uint32_t grid;
    uint32_t grids;
    uint64_t threads_before;
    uint64_t threads;  // of all grids
    uint32_t arrived;  // workgroups in the lower half, barriers passed in the upper one
    uint32_t reserved;
    uint32_t workgroups;
  };
  Info* info_;
};

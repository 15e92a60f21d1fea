#include "grid_sync.h"

#include <new>

#include "../memory/memory_map.h"

GridSync::GridSync(uint64_t workgroups, uint64_t threads) {
  MemoryMap& memory = MemoryMap::instance();
  info_ = new (memory.allocate(sizeof(Info), MemoryKind::device)) Info{};
  info_->grids = 1;
  info_->threads = threads;
  info_->workgroups = static_cast<uint32_t>(workgroups);
  memory.note_write(address(), sizeof(Info));
}

GridSync::~GridSync() { MemoryMap::instance().release(info_); }

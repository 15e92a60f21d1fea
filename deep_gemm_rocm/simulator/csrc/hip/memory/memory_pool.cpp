#include "memory_pool.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "../base/abi.h"
#include "../base/handles.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "../device/device.h"
#include "../streams/capture.h"
#include "../streams/stream.h"
#include "memory_map.h"

// Freed memory goes back to the device at once, so a pool reserves no more than what is in use.
struct MemoryPool {
  uint64_t limit = 0;  // 0: none
  uint64_t used = 0, most_used = 0;
  uint64_t release_threshold = 0;
  int reuse_policies[3] = {1, 1, 1};
};

namespace {

// Never destroyed: static destructors of the host program may still call HIP.
struct Pools {
  std::mutex mutex;
  Handles<MemoryPool> handles{"a memory pool"};
  std::shared_ptr<MemoryPool> standard = std::make_shared<MemoryPool>();
  std::shared_ptr<MemoryPool> current = standard;
  struct Allocation {
    std::shared_ptr<MemoryPool> pool;
    uint64_t size;
  };
  std::map<const void*, Allocation> allocations;

  Pools() { handles.add(standard); }
};

Pools& pools() {
  static auto& all = *new Pools;
  return all;
}

void allocate(Out<void*> pointer, size_t size, std::shared_ptr<MemoryPool> pool, hipStream_t stream) {
  require(pointer, "the output pointer");
  require_not_capturing(stream);
  pointer.give(nullptr);
  if (size == 0) return;
  std::lock_guard lock(pools().mutex);
  if (pool->limit != 0 && size > pool->limit - pool->used) {
    fail(hipErrorOutOfMemory, "%zu bytes asked for, the pool has %llu left", size,
         static_cast<unsigned long long>(pool->limit - pool->used));
  }
  void* const memory = MemoryMap::instance().allocate(size, MemoryKind::device);
  pool->used += size;
  pool->most_used = std::max(pool->most_used, pool->used);
  pools().allocations[memory] = {std::move(pool), size};
  pointer.give(memory);
}

// Each attribute has a type of its own.
template <class Value>
Value attribute_at(const void* value) {
  return In<Value>(static_cast<const Value*>(value)).read("the value");
}
template <class Value>
void give_attribute(void* place, Value value) {
  Out<Value>(static_cast<Value*>(place)).give(value);
}

bool is_reuse_policy(int attribute) {
  return attribute >= hipMemPoolReuseFollowEventDependencies && attribute <= hipMemPoolReuseAllowInternalDependencies;
}

void require_location(const hipMemLocation& location) {
  constexpr int device_location = 1;
  if (location.type != device_location) fail(hipErrorNotSupported, "pools are in device memory here");
  require_device(location.id);
}

}  // namespace

void forget_pooled(const void* pointer) {
  std::lock_guard lock(pools().mutex);
  const auto found = pools().allocations.find(pointer);
  if (found == pools().allocations.end()) return;
  found->second.pool->used -= found->second.size;
  pools().allocations.erase(found);
}

HIP_API hipError_t hipMallocAsync(Out<void*> pointer, size_t size, hipStream_t stream) {
  return api(__func__, [&] { allocate(pointer, size, pools().current, stream); });
}

HIP_API hipError_t hipMallocFromPoolAsync(Out<void*> pointer, size_t size, hipMemPool_t pool, hipStream_t stream) {
  return api(__func__, [&] { allocate(pointer, size, pools().handles.get(pool), stream); });
}

HIP_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return api(__func__, [&] {
    require_not_capturing(stream);
    if (!pointer) return;
    forget_pooled(pointer);
    MemoryMap::instance().release(pointer);
  });
}

HIP_API hipError_t hipMemPoolCreate(Out<hipMemPool_t> pool, In<hipMemPoolProps> properties) {
  return api_giving(__func__, pool, "the output pointer", [&] {
    const hipMemPoolProps wanted = properties.read("the properties");
    require_location(wanted.location);
    if (wanted.handleTypes != 0) fail(hipErrorNotSupported, "pools can't be shared with other processes here");
    auto fresh = std::make_shared<MemoryPool>();
    fresh->limit = wanted.maxSize;
    return pools().handles.add(std::move(fresh));
  });
}

// Destroys the pool. Memory allocated from it stays until it is freed.
HIP_API hipError_t hipMemPoolDestroy(hipMemPool_t pool) {
  return api(__func__, [&] {
    Pools& all = pools();
    std::lock_guard lock(all.mutex);
    if (pool == all.standard.get()) fail(hipErrorInvalidValue, "the device's default pool can't be destroyed");
    if (all.handles.remove(pool) == all.current) all.current = all.standard;
  });
}

HIP_API hipError_t hipDeviceGetDefaultMemPool(Out<hipMemPool_t> pool, int number) {
  return api_giving(__func__, pool, "the output pointer", [&] {
    require_device(number);
    return pools().standard.get();
  });
}

HIP_API hipError_t hipDeviceGetMemPool(Out<hipMemPool_t> pool, int number) {
  return api_giving(__func__, pool, "the output pointer", [&] {
    require_device(number);
    std::lock_guard lock(pools().mutex);
    return pools().current.get();
  });
}

HIP_API hipError_t hipDeviceSetMemPool(int number, hipMemPool_t pool) {
  return api(__func__, [&] {
    require_device(number);
    auto found = pools().handles.get(pool);
    std::lock_guard lock(pools().mutex);
    pools().current = std::move(found);
  });
}

HIP_API hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t) {
  return api(__func__, [&] { pools().handles.get(pool); });
}

HIP_API hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value) {
  return api(__func__, [&] {
    const auto found = pools().handles.get(pool);
    std::lock_guard lock(pools().mutex);
    if (is_reuse_policy(attribute)) {
      found->reuse_policies[attribute - hipMemPoolReuseFollowEventDependencies] = attribute_at<int>(value);
    } else if (attribute == hipMemPoolAttrReleaseThreshold) {
      found->release_threshold = attribute_at<uint64_t>(value);
    } else if (attribute == hipMemPoolAttrReservedMemHigh || attribute == hipMemPoolAttrUsedMemHigh) {
      if (attribute_at<uint64_t>(value) != 0) fail(hipErrorInvalidValue, "a high-water mark can only be set to 0");
      found->most_used = 0;
    } else {
      fail(hipErrorInvalidValue, "%d is not an attribute that can be set", attribute);
    }
  });
}

HIP_API hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value) {
  return api(__func__, [&] {
    const auto found = pools().handles.get(pool);
    std::lock_guard lock(pools().mutex);
    switch (attribute) {
      case hipMemPoolAttrReleaseThreshold: give_attribute(value, found->release_threshold); return;
      case hipMemPoolAttrReservedMemCurrent:
      case hipMemPoolAttrUsedMemCurrent: give_attribute(value, found->used); return;
      case hipMemPoolAttrReservedMemHigh:
      case hipMemPoolAttrUsedMemHigh: give_attribute(value, found->most_used); return;
      default: break;
    }
    if (!is_reuse_policy(attribute)) fail(hipErrorInvalidValue, "%d is not an attribute of a pool", attribute);
    give_attribute(value, found->reuse_policies[attribute - hipMemPoolReuseFollowEventDependencies]);
  });
}

HIP_API hipError_t hipMemPoolSetAccess(hipMemPool_t pool, In<hipMemAccessDesc> descriptions, size_t count) {
  return api(__func__, [&] {
    pools().handles.get(pool);
    for (const hipMemAccessDesc& description : descriptions.read(count, "the descriptions")) {
      require_location(description.location);
      if (description.flags != hipMemAccessFlagsProtReadWrite) {
        fail(hipErrorInvalidValue, "the device that has the pool may always read and write it");
      }
    }
  });
}

HIP_API hipError_t hipMemPoolGetAccess(Out<int> flags, hipMemPool_t pool, In<hipMemLocation> location) {
  return api_giving(__func__, flags, "flags", [&] {
    pools().handles.get(pool);
    require_location(location.read("the location"));
    return hipMemAccessFlagsProtReadWrite;
  });
}

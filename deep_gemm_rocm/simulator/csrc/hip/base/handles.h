// The living objects behind a kind of HIP handle. A caller's handle is looked up here and never followed before it was
// found, so that a wild or stale one is an error instead of a crash.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "status.h"

template <class Object>
class Handles {
 public:
  // `kind` names the objects in errors: "a stream".
  explicit Handles(const char* kind) : kind_(kind) {}

  Object* add(std::shared_ptr<Object> object) {
    Object* handle = object.get();
    std::unique_lock lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // The object lives at least as long as the result. Fails with hipErrorInvalidHandle.
  std::shared_ptr<Object> get(Object* handle) const {
    std::shared_lock lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) refuse(handle);
    return found->second;
  }

  std::shared_ptr<Object> remove(Object* handle) {
    std::unique_lock lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) refuse(handle);
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  [[noreturn]] void refuse(const Object* handle) const {
    fail(hipErrorInvalidHandle, "%p is not %s", static_cast<const void*>(handle), kind_);
  }

  const char* kind_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<const Object*, std::shared_ptr<Object>> objects_;
};

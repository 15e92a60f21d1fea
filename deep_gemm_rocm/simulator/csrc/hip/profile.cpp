#include "profile.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "abi.h"

namespace {

class Collection final : public mi300x::ProfileSink {
 public:
  void add(const char* json, size_t bytes) override {
    std::lock_guard lock(mutex_);
    lines_.append(json, bytes) += '\n';
  }

  // Copies the records if there is room for all of them, and forgets them then.
  size_t take(char* text, size_t capacity) {
    std::lock_guard lock(mutex_);
    const size_t size = lines_.size();
    if (capacity <= size) return size;
    std::memcpy(text, lines_.c_str(), size + 1);
    lines_.clear();
    return size;
  }

 private:
  std::mutex mutex_;
  std::string lines_;
};

Collection& collection() {
  static auto& records = *new Collection;
  return records;
}

std::atomic<bool> collecting{false};

}  // namespace

mi300x::ProfileSink* profile_sink() { return collecting ? &collection() : nullptr; }

// Additions to the HIP API: whether launches leave records, and the records so far, one JSON object a line. Returns the
// length of the text; copies and forgets it where `capacity` is larger.
HIP_API void dgSimCollectProfiles(int on) { collecting = on != 0; }

HIP_API size_t dgSimTakeProfiles(char* text, size_t capacity) { return collection().take(text, capacity); }

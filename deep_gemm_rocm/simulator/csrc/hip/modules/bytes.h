// A view of untrusted bytes: every read is checked against the end.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "../base/status.h"

class Bytes {
 public:
  Bytes() = default;
  Bytes(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), size_(size) {}

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  template <class Value>
  Value read(uint64_t offset) const {
    static_assert(std::is_trivially_copyable_v<Value>);
    Value value;
    std::memcpy(&value, at(offset, sizeof value), sizeof value);
    return value;
  }

  Bytes slice(uint64_t offset, uint64_t size) const { return {at(offset, size), static_cast<size_t>(size)}; }

  std::string_view text(uint64_t offset, uint64_t size) const {
    return {reinterpret_cast<const char*>(at(offset, size)), static_cast<size_t>(size)};
  }

  // Up to the terminating zero, which must come before the end.
  std::string_view zero_terminated(uint64_t offset) const {
    const std::string_view rest = text(offset, offset <= size_ ? size_ - offset : 0);
    const size_t length = rest.find('\0');
    if (length == std::string_view::npos) fail(hipErrorInvalidImage, "a string runs past the end");
    return rest.substr(0, length);
  }

  bool starts_with(std::string_view prefix) const {
    return size_ >= prefix.size() && std::memcmp(data_, prefix.data(), prefix.size()) == 0;
  }

 private:
  const uint8_t* at(uint64_t offset, uint64_t size) const {
    if (offset > size_ || size > size_ - offset) {
      fail(hipErrorInvalidImage, "truncated: %llu bytes at offset %llu of %zu", static_cast<unsigned long long>(size),
           static_cast<unsigned long long>(offset), size_);
    }
    return data_ + offset;
  }

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

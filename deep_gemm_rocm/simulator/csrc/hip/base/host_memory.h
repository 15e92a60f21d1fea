// Access to memory behind a caller's pointer. The runtime probes it first, so that a wild pointer becomes a HIP error
// instead of a crash. Parameters of API functions that point to values are In, Out, InOut or Text: the ABI passes them
// like pointers, and they can't be followed without a probe.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "status.h"

// Pages that an API call has found usable are taken for usable until its end, or until it runs code of the program.
bool is_mapped(const void* address, size_t size);
bool is_readable(const void* address, size_t size);
bool is_writable(void* address, size_t size);

// Fail with hipErrorInvalidValue where the pointer is null or the memory can't be used; `what` names it in the error.
void require_readable(const void* pointer, size_t count, size_t element_size, const char* what);
void require_writable(void* pointer, size_t count, size_t element_size, const char* what);

// Fails unless there is code at the address.
void require_callable(const void* function, const char* what);

inline void read_from_host(void* destination, const void* source, size_t size, const char* what) {
  require_readable(source, size, 1, what);
  std::memcpy(destination, source, size);
}

// A pointer to a value that a call reads, or to an array of values.
template <class T>
class In {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  In(const T* pointer) : pointer_(pointer) {}

  explicit operator bool() const { return pointer_; }
  const T* address() const { return pointer_; }

  T read(const char* what) const { return at(0, what); }
  T at(size_t i, const char* what) const {
    T value;
    read_from_host(&value, pointer_ + i, sizeof value, what);
    return value;
  }
  std::vector<T> read(size_t count, const char* what) const {
    if (count == 0) return {};
    require_readable(pointer_, count, sizeof(T), what);
    std::vector<T> values(count);
    std::memcpy(values.data(), pointer_, count * sizeof(T));
    return values;
  }

 private:
  const T* pointer_;
};

// A pointer to where a call writes a value, or an array of values.
template <class T>
class Out {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Out(T* pointer) : pointer_(pointer) {}

  explicit operator bool() const { return pointer_; }
  T* address() const { return pointer_; }

  void give(const T& value) const { give(0, value); }
  void give(size_t i, const T& value) const {
    require_writable(pointer_ + i, 1, sizeof value, "the result");
    std::memcpy(pointer_ + i, &value, sizeof value);
  }
  // For results that the caller may do without.
  void give_if_wanted(const T& value) const {
    if (pointer_) give(value);
  }

 private:
  T* pointer_;
};

// A pointer to a value that a call reads and changes.
template <class T>
class InOut : public Out<T> {
 public:
  InOut(T* pointer) : Out<T>(pointer) {}

  T read(const char* what) const { return In<T>(this->address()).read(what); }
};

// A pointer to a string that ends with a zero.
class Text {
 public:
  Text(const char* pointer) : pointer_(pointer) {}

  std::string read(const char* what) const;

 private:
  const char* pointer_;
};

// Writes as much of the text as there is room for, and a zero behind it.
void give_text(Out<char> out, size_t capacity, const std::string& text, const char* what);

// Checks of results before a call has any effect: one that must be given, and one that may be null.
template <class T>
void require(Out<T> result, const char* what, size_t count = 1) {
  require_writable(result.address(), count, sizeof(T), what);
}
template <class T>
void require(InOut<T> result, const char* what) {
  require_writable(result.address(), 1, sizeof(T), what);
}
template <class T>
void allow(Out<T> result, const char* what, size_t count = 1) {
  if (result && count > 0) require_writable(result.address(), count, sizeof(T), what);
}

// An API function whose body returns the one result that it gives.
template <class T, class Body>
hipError_t api_giving(const char* function, Out<T> result, const char* what, Body&& body) noexcept {
  return api(function, [&] {
    require(result, what);
    result.give(body());
  });
}

// A reader for MessagePack, the format of a code object's metadata.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bytes.h"

namespace msgpack {

struct Value;
using Array = std::vector<Value>;
using Map = std::vector<std::pair<Value, Value>>;

struct Value {
  // monostate: nil, and what metadata has no use for (floats, binary data, extensions).
  std::variant<std::monostate, bool, uint64_t, int64_t, std::string, Array, Map> data;

  // The entry of a map with this key; null where there is none or this is no map.
  const Value* find(std::string_view key) const;

  // Contents of the expected type; `what` names the value in the error where it has another one.
  uint64_t unsigned_integer(const char* what) const;
  bool boolean(const char* what) const;
  const std::string& text(const char* what) const;
  const Array& array(const char* what) const;
};

Value parse(Bytes bytes);

}  // namespace msgpack

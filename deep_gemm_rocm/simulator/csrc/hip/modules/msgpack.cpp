#include "msgpack.h"

namespace msgpack {

namespace {

constexpr int kMaxDepth = 16;  // metadata nests five deep; a hostile file must not exhaust the stack

template <class Integer>
Integer from_big_endian(Integer value) {
  if constexpr (sizeof value == 2) return static_cast<Integer>(__builtin_bswap16(static_cast<uint16_t>(value)));
  if constexpr (sizeof value == 4) return static_cast<Integer>(__builtin_bswap32(static_cast<uint32_t>(value)));
  if constexpr (sizeof value == 8) return static_cast<Integer>(__builtin_bswap64(static_cast<uint64_t>(value)));
  return value;
}

class Parser {
 public:
  explicit Parser(Bytes bytes) : bytes_(bytes) {}

  // The format byte's table is in the MessagePack specification, "Formats".
  Value value(int depth = 0) {
    if (depth > kMaxDepth) fail(hipErrorInvalidImage, "metadata is nested more than %d deep", kMaxDepth);
    const auto format = take<uint8_t>();
    if (format <= 0x7f) return {uint64_t{format}};
    if (format <= 0x8f) return map(format & 0x0f, depth);
    if (format <= 0x9f) return array(format & 0x0f, depth);
    if (format <= 0xbf) return text(format & 0x1f);
    if (format >= 0xe0) return {int64_t{static_cast<int8_t>(format)}};
    switch (format) {
      case 0xc0: return {};
      case 0xc2: return {false};
      case 0xc3: return {true};
      case 0xc4: return skip(take<uint8_t>());
      case 0xc5: return skip(take<uint16_t>());
      case 0xc6: return skip(take<uint32_t>());
      case 0xc7: return skip(uint64_t{take<uint8_t>()} + 1);
      case 0xc8: return skip(uint64_t{take<uint16_t>()} + 1);
      case 0xc9: return skip(uint64_t{take<uint32_t>()} + 1);
      case 0xca: return skip(4);
      case 0xcb: return skip(8);
      case 0xcc: return {uint64_t{take<uint8_t>()}};
      case 0xcd: return {uint64_t{take<uint16_t>()}};
      case 0xce: return {uint64_t{take<uint32_t>()}};
      case 0xcf: return {take<uint64_t>()};
      case 0xd0: return {int64_t{take<int8_t>()}};
      case 0xd1: return {int64_t{take<int16_t>()}};
      case 0xd2: return {int64_t{take<int32_t>()}};
      case 0xd3: return {take<int64_t>()};
      case 0xd4: return skip(2);
      case 0xd5: return skip(3);
      case 0xd6: return skip(5);
      case 0xd7: return skip(9);
      case 0xd8: return skip(17);
      case 0xd9: return text(take<uint8_t>());
      case 0xda: return text(take<uint16_t>());
      case 0xdb: return text(take<uint32_t>());
      case 0xdc: return array(take<uint16_t>(), depth);
      case 0xdd: return array(take<uint32_t>(), depth);
      case 0xde: return map(take<uint16_t>(), depth);
      case 0xdf: return map(take<uint32_t>(), depth);
    }
    fail(hipErrorInvalidImage, "metadata: %#x is no MessagePack format", format);
  }

 private:
  template <class Integer>
  Integer take() {
    const auto value = bytes_.read<Integer>(position_);
    position_ += sizeof value;
    return from_big_endian(value);
  }

  Value skip(uint64_t size) {
    bytes_.slice(position_, size);
    position_ += size;
    return {};
  }

  Value text(uint64_t size) {
    Value value{std::string(bytes_.text(position_, size))};
    position_ += size;
    return value;
  }

  // The counts come from the file, so nothing is reserved for them.
  Value array(uint64_t count, int depth) {
    Array items;
    for (uint64_t i = 0; i < count; ++i) items.push_back(value(depth + 1));
    return {std::move(items)};
  }

  Value map(uint64_t count, int depth) {
    Map entries;
    for (uint64_t i = 0; i < count; ++i) {
      Value key = value(depth + 1);
      entries.emplace_back(std::move(key), value(depth + 1));
    }
    return {std::move(entries)};
  }

  Bytes bytes_;
  uint64_t position_ = 0;
};

template <class Type>
const Type& expect(const Value& value, const char* what, const char* type) {
  if (const auto* content = std::get_if<Type>(&value.data)) return *content;
  fail(hipErrorInvalidImage, "metadata: %s is not %s", what, type);
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  const auto* map = std::get_if<Map>(&data);
  if (!map) return nullptr;
  for (const auto& [name, value] : *map) {
    const auto* text = std::get_if<std::string>(&name.data);
    if (text && *text == key) return &value;
  }
  return nullptr;
}

uint64_t Value::unsigned_integer(const char* what) const {
  return expect<uint64_t>(*this, what, "an unsigned integer");
}

bool Value::boolean(const char* what) const {
  if (const auto* number = std::get_if<uint64_t>(&data)) return *number != 0;
  return expect<bool>(*this, what, "a boolean");
}

const std::string& Value::text(const char* what) const { return expect<std::string>(*this, what, "a string"); }

const Array& Value::array(const char* what) const { return expect<Array>(*this, what, "an array"); }

Value parse(Bytes bytes) { return Parser(bytes).value(); }

}  // namespace msgpack

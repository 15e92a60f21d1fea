#include "device_printf.h"

#include <cstdio>
#include <cstring>
#include <string>

namespace {

// Reads the values of a message in order; beyond its end it finds zeros and empty strings.
class Reader {
 public:
  explicit Reader(const std::vector<uint64_t>& values) : values_(values) {}

  uint64_t number() { return next_ < values_.size() ? values_[next_++] : 0; }

  std::string string() {
    if (next_ >= values_.size()) return "";
    const char* const text = reinterpret_cast<const char*>(&values_[next_]);
    const size_t length = strnlen(text, (values_.size() - next_) * sizeof(uint64_t));
    next_ += length / sizeof(uint64_t) + 1;
    return {text, length};
  }

 private:
  const std::vector<uint64_t>& values_;
  size_t next_ = 0;
};

template <class T>
std::string formatted(const std::string& specification, T value) {
  const int length = snprintf(nullptr, 0, specification.c_str(), value);
  if (length < 0) return "";
  std::string text(size_t(length) + 1, '\0');
  snprintf(text.data(), text.size(), specification.c_str(), value);
  text.pop_back();
  return text;
}

// An integer as wide as the length modifier says.
std::string formatted_integer(const std::string& flags, const std::string& length, char conversion, uint64_t value) {
  const bool is_signed = conversion == 'd' || conversion == 'i';
  int bits = 32;
  if (length == "hh") bits = 8;
  else if (length == "h") bits = 16;
  else if (!length.empty()) bits = 64;
  const int unused = 64 - bits;
  value = is_signed ? uint64_t(int64_t(value << unused) >> unused) : value << unused >> unused;
  return formatted(flags + "ll" + conversion, static_cast<long long>(value));
}

std::string formatted_message(Reader& arguments) {
  const std::string format = arguments.string();
  std::string text;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      text += format[i++];
      continue;
    }
    const size_t begin = i++;
    std::string flags = "%";
    for (; i < format.size() && strchr("-+ #0123456789.*", format[i]); ++i) {
      if (format[i] != '*') {
        flags += format[i];
        continue;
      }
      const int32_t value = int32_t(arguments.number());
      if (value < 0 && flags.back() == '.') flags.pop_back();  // a negative precision is none
      else flags += std::to_string(value);
    }
    std::string length;
    while (i < format.size() && strchr("hlLjzt", format[i])) length += format[i++];
    const char conversion = i < format.size() ? format[i++] : '\0';
    switch (conversion) {
      case '%': text += '%'; break;
      case 'd': case 'i': case 'u': case 'o': case 'x': case 'X':
        text += formatted_integer(flags, length, conversion, arguments.number());
        break;
      case 'c': text += formatted(flags + 'c', int(arguments.number())); break;
      case 'p': text += formatted(flags + 'p', reinterpret_cast<void*>(arguments.number())); break;
      case 's': text += formatted(flags + 's', arguments.string().c_str()); break;
      case 'a': case 'A': case 'e': case 'E': case 'f': case 'F': case 'g': case 'G': {
        const uint64_t bits = arguments.number();
        double value;
        memcpy(&value, &bits, sizeof value);
        text += formatted(flags + conversion, value);
        break;
      }
      case 'n': arguments.number(); break;  // writes nothing, as with ROCm
      default: text.append(format, begin, i - begin);
    }
  }
  return text;
}

}  // namespace

int print_message(const std::vector<uint64_t>& message) {
  Reader arguments(message);
  FILE* const stream = arguments.number() & 1 ? stderr : stdout;
  const std::string text = formatted_message(arguments);
  fwrite(text.data(), 1, text.size(), stream);
  fflush(stream);
  return int(text.size());
}

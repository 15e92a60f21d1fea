// Records as JSON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "../../engine.h"

namespace mi300x {

class JsonObject {
 public:
  JsonObject& add(const std::string& name, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + quoted(name) + ": " + json;
    return *this;
  }
  JsonObject& add(const std::string& name, double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.17g", std::isfinite(value) ? value : 0);
    return add(name, std::string(digits));
  }
  JsonObject& add(const std::string& name, uint64_t value) { return add(name, std::to_string(value)); }
  std::string text() const { return "{" + text_ + "}"; }

  static std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      if (static_cast<unsigned char>(c) >= ' ') result += c;
    }
    return result + '"';
  }

 private:
  std::string text_;
};

inline std::string json_of(const Dim3& dim) {
  return "[" + std::to_string(dim.x) + ", " + std::to_string(dim.y) + ", " + std::to_string(dim.z) + "]";
}

}  // namespace mi300x

#include "constants.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "memory_system.h"

namespace mi300x::timing {
namespace {

enum class Kind { whole, real };

struct Field {
  double* value;
  Kind kind;
  double least, most;

  bool allows(double number) const {
    return number >= least && number <= most && (kind == Kind::real || number == std::floor(number));
  }
};

using Fields = std::map<std::string, Field>;

std::string text_of(double number) {
  char text[32];
  snprintf(text, sizeof text, "%.10g", number);
  return text;
}

Fields fields_of(Constants& constants) {
  return {
#define CONSTANT(section, name, kind, least, most) \
  {#section "." #name, {&constants.section##_##name, Kind::kind, least, most}},
      TIMING_CONSTANTS(CONSTANT)
#undef CONSTANT
  };
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// Reads a subset of TOML: [section], name = number, section.name = number, and comments.
std::string read_file(const std::string& path, const Fields& fields) {
  std::ifstream file(path);
  if (!file) return path + ": the timing constants can't be read";
  std::string section, line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto mistake = [&](const std::string& what) { return path + ":" + std::to_string(number) + ": " + what; };
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (line.front() == '[' && line.back() == ']') {
      section = trimmed(line.substr(1, line.size() - 2)) + ".";
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == std::string::npos) return mistake("expected [section] or name = number, got " + line);
    const std::string name = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1));
    if (section == "power." || name.rfind("power.", 0) == 0) continue;  // for power.py
    const auto field = fields.find(section + name);
    if (field == fields.end()) return mistake(section + name + " is no constant of the timing model");
    char* end;
    const double parsed = strtod(value.c_str(), &end);
    const Field& wanted = field->second;
    if (value.empty() || *end != '\0' || !wanted.allows(parsed)) {
      return mistake(section + name + ": expected a " + (wanted.kind == Kind::whole ? "whole " : "") + "number from " +
                     text_of(wanted.least) + " to " + text_of(wanted.most) + ", got " + value);
    }
    *wanted.value = parsed;
  }
  return "";
}

// Each cache needs a set, so a line for each of its ways. CUs run alone for as long as nothing beyond their L1 answers,
// which can't be less than no time.
std::string check_caches(const Constants& c) {
  if (c.l2_hit_clocks < c.l1_hit_clocks) {
    return "l2.hit_clocks: expected at least l1.hit_clocks, " + text_of(c.l1_hit_clocks) + ", got " +
           text_of(c.l2_hit_clocks);
  }
  const struct {
    const char* name;
    double bytes, line_bytes, ways;
  } caches[] = {
      {"l1", c.l1_bytes, line_bytes, c.l1_ways},
      {"scalar_cache", c.scalar_cache_bytes, scalar_line_bytes, c.scalar_cache_ways},
      {"l2", c.l2_bytes, line_bytes, c.l2_ways},
      {"mall", c.mall_bytes, line_bytes, c.mall_ways},
  };
  for (const auto& cache : caches) {
    const double least = cache.line_bytes * cache.ways;
    if (cache.bytes < least) {
      return std::string(cache.name) + ".bytes: expected at least a line for each of its ways, " + text_of(least) +
             " bytes, got " + text_of(cache.bytes);
    }
  }
  return "";
}

std::string default_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&default_path), &info) == 0) return "mi300x_timing.toml";
  const std::string library = info.dli_fname;
  return library.substr(0, library.rfind('/') + 1) + "../mi300x_timing.toml";
}

}  // namespace

Constants Constants::read(std::string& mistake) {
  Constants constants;
  const Fields fields = fields_of(constants);
  mistake = read_file(default_path(), fields);
  if (!mistake.empty()) return constants;
  for (const auto& [name, field] : fields)
    if (*field.value < 0) mistake = default_path() + ": " + name + " is missing";
  const char* chosen = getenv("DG_SIM_TIMING_CONSTANTS");
  if (mistake.empty() && chosen != nullptr && *chosen != '\0') mistake = read_file(chosen, fields);
  if (mistake.empty()) mistake = check_caches(constants);
  return constants;
}

std::string Constants::text() const {
  Constants copy = *this;
  std::string result;
  for (const auto& [name, field] : fields_of(copy)) result += name + " = " + std::to_string(*field.value) + "\n";
  return result;
}

}  // namespace mi300x::timing

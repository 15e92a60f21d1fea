#include "constants.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <map>

namespace mi300x::timing {
namespace {

using Fields = std::map<std::string, double*>;

Fields fields_of(Constants& constants) {
  return {
#define CONSTANT(section, name) {#section "." #name, &constants.section##_##name},
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
    if (value.empty() || *end != '\0' || !(parsed >= 0)) return mistake("expected a number from 0 on, got " + value);
    *field->second = parsed;
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
  for (const auto& [name, value] : fields)
    if (*value < 0) mistake = default_path() + ": " + name + " is missing";
  const char* chosen = getenv("DG_SIM_TIMING_CONSTANTS");
  if (mistake.empty() && chosen != nullptr && *chosen != '\0') mistake = read_file(chosen, fields);
  return constants;
}

std::string Constants::text() const {
  Constants copy = *this;
  std::string result;
  for (const auto& [name, value] : fields_of(copy)) result += name + " = " + std::to_string(*value) + "\n";
  return result;
}

}  // namespace mi300x::timing

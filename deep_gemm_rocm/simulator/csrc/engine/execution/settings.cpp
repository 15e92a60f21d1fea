#include "settings.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>

namespace mi300x {
namespace {

uint64_t number(const char* name, uint64_t otherwise, uint64_t least, uint64_t most, std::string& mistake) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const uint64_t value = strtoull(text, &end, 10);
  if (*text >= '0' && *text <= '9' && *end == '\0' && value >= least && value <= most) return value;
  if (mistake.empty())
    mistake = std::string(name) + "=" + text + ": expected a number from " + std::to_string(least) + " to " +
              std::to_string(most);
  return otherwise;
}

// True where the variable is the first of two words, or isn't set.
bool choice(const char* name, const std::string& first, const std::string& second, std::string& mistake) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0' || text == first) return true;
  if (text != second && mistake.empty())
    mistake = std::string(name) + "=" + text + ": expected " + first + " or " + second;
  return false;
}

// An endless wave takes twenty seconds or more to reach this. Real waves execute a hundredth of it.
constexpr uint64_t default_max_instructions = 500'000'000;

const uint64_t host_threads = std::max(1u, std::thread::hardware_concurrency());

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  settings.threads = number("DG_SIM_THREADS", host_threads, 1, 1024, settings.mistake);
  settings.max_instructions = number("DG_SIM_MAX_INSTRUCTIONS", default_max_instructions, 1, ~0ull, settings.mistake);
  const uint64_t sanitize = number("DG_SIM_SANITIZE", 0, 0, 2, settings.mistake);
  settings.sanitize = sanitize != 0;
  settings.hazards_as_llvm = sanitize == 2;
  settings.seed = number("DG_SIM_SEED", 0, 0, ~0ull, settings.mistake);
  settings.timing = number("DG_SIM_TIMING", 0, 0, 1, settings.mistake) != 0;
  settings.sampling = number("DG_SIM_TIMING_SAMPLING", 1, 0, 1, settings.mistake) != 0;
  settings.timeline_cu = number("DG_SIM_TIMING_TIMELINE", Settings::no_timeline, 0, 303, settings.mistake);
  settings.computes_all = choice("DG_SIM_TIMING_COMPUTE", "all", "sampled", settings.mistake);
  const char* computed = getenv("DG_SIM_TIMING_COMPUTED");
  settings.computed = computed == nullptr ? "" : computed;
  return settings;
}

bool Settings::computes(const std::string& kernel) const {
  if (computes_all) return true;
  std::istringstream patterns(computed);
  for (std::string pattern; std::getline(patterns, pattern, ',');)
    if (fnmatch(pattern.c_str(), kernel.c_str(), 0) == 0) return true;
  return false;
}

}  // namespace mi300x

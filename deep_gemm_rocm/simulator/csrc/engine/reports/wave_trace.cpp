#include "wave_trace.h"

#include "../isa/disassembler.h"
#include "json.h"

namespace mi300x {
namespace {

// Eight hexadecimal digits for each lane, or for the scalar register.
std::string values_of(Wave& wave, int number) {
  const bool is_vector = number < first_scalar;
  const uint32_t* values = is_vector ? wave.row(number) : &wave.sgpr[number - first_scalar];
  std::string text;
  char digits[12];
  for (int i = 0; i < (is_vector ? lanes : 1); ++i) {
    snprintf(digits, sizeof digits, "%08x", values[i]);
    text += digits;
  }
  return JsonObject::quoted(text);
}

template <class Ranges>
std::string registers(Wave& wave, const Ranges& ranges) {
  JsonObject object;
  for (const RegisterRange& range : ranges)
    for (int number = range.first; number < range.first + range.count; ++number) {
      const std::string name = number < first_scalar ? register_name(number) : scalar_name(number - first_scalar, 1);
      object.add(name, values_of(wave, number));
    }
  return object.text();
}

bool ends_wave(Op op) { return op == Op::s_endpgm || op == Op::s_endpgm_saved; }

}  // namespace

WaveTrace::WaveTrace(RecordSink& sink, const Kernel& kernel, const TracedWave& traced)
    : sink_(sink), kernel_(kernel), traced_(traced) {
  const std::string header = JsonObject()
                                 .add("kernel", JsonObject::quoted(kernel.name))
                                 .add("workgroup", json_of(traced.workgroup))
                                 .add("wave", uint64_t(traced.wave))
                                 .text();
  sink_.add(header.data(), header.size());
}

void WaveTrace::record(Wave& wave, const Instruction& inst, const Effects& effects) {
  if (wave.index_in_group != traced_.wave) return;
  finish();
  const uint64_t index = executed_++;
  if (index < traced_.first || index - traced_.first >= traced_.count) return;
  char exec[24];
  snprintf(exec, sizeof exec, "%016llx", static_cast<unsigned long long>(wave.exec()));
  JsonObject object;
  object.add("offset", std::to_string(int64_t(wave.address_of(wave.pc) - kernel_.entry)))
      .add("text", JsonObject::quoted(disassemble(inst)))
      .add("exec", JsonObject::quoted(exec))
      .add("scc", uint64_t(wave.scc))
      .add("reads", registers(wave, effects.reads));
  pending_ = object.text();
  pending_.pop_back();
  written_ = effects.writes;
  wave_ = &wave;
  if (ends_wave(inst.op)) finish();
}

void WaveTrace::finish() {
  if (wave_ == nullptr) return;
  pending_ += ", \"writes\": " + registers(*wave_, written_) + "}";
  sink_.add(pending_.data(), pending_.size());
  wave_ = nullptr;
}

}  // namespace mi300x

#include "checker.h"

#include <algorithm>
#include <cstring>

#include "decoder.h"

namespace mi300x {
namespace {

constexpr int first_scalar = register_rows;  // SGPRs follow the rows in tables of all registers

int table_index(const RegisterRange& range) { return range.is_vector ? range.first : first_scalar + range.first; }

std::string name_of(const RegisterRange& range) {
  const bool accumulator = range.is_vector && range.first >= accumulator_row;
  const int number = accumulator ? range.first - accumulator_row : range.first;
  const char* prefix = !range.is_vector ? "s" : accumulator ? "a" : "v";
  if (!range.is_vector && range.first == sgpr_vcc) return "vcc";
  if (!range.is_vector && range.first == sgpr_exec) return "exec";
  if (!range.is_vector && range.first == sgpr_m0) return "m0";
  return prefix + std::to_string(number);
}

bool same(const RegisterRange& a, const RegisterRange& b) {
  return a.is_vector == b.is_vector && a.first == b.first && a.count == b.count;
}

bool is_memory(Unit unit) { return unit == Unit::lds || unit == Unit::vector_memory || unit == Unit::flat; }
bool is_vector_alu(Unit unit) { return unit == Unit::vector || unit == Unit::transcendental; }

// ---- LDS bytes of an instruction ----

struct LdsAccess {
  uint32_t offsets[2] = {0, 0};
  int count = 0;  // accesses a lane
  uint32_t bytes = 0;
  bool writes = false, reads = false, atomic = false;
};

bool contains(const char* text, const char* part) { return strstr(text, part) != nullptr; }

LdsAccess lds_access(const Instruction& inst, const Effects& effects) {
  LdsAccess access;
  const char* name = mnemonic(inst.op);
  if (inst.family != Family::DS || contains(name, "permute") || contains(name, "swizzle") || contains(name, "addtid") ||
      contains(name, "append") || contains(name, "consume") || contains(name, "gws") || inst.op == Op::ds_nop)
    return access;
  const bool two = contains(name, "read2") || contains(name, "write2") || contains(name, "wrxchg2");
  access.count = two ? 2 : 1;
  access.reads = effects.is_load;
  access.writes = effects.is_store;
  access.atomic = access.writes && !contains(name, "ds_write");
  const uint32_t dwords = access.writes ? inst.src[1].dwords : inst.dst.dwords / uint32_t(access.count);
  access.bytes = contains(name, "_b8") || contains(name, "_u8") || contains(name, "_i8")      ? 1
                 : contains(name, "_b16") || contains(name, "_u16") || contains(name, "_i16") ? 2
                                                                                              : 4 * dwords;
  const uint32_t scale = two ? access.bytes * (contains(name, "st64") ? 64 : 1) : 1;
  access.offsets[0] = two ? inst.mem.offset0 * scale : uint32_t(inst.imm);
  access.offsets[1] = inst.mem.offset1 * scale;
  return access;
}

// Calls f(lane, byte) for each byte in the LDS of the workgroup, until it returns false.
template <class F>
void for_each_lds_byte(Wave& wave, const Instruction& inst, const LdsAccess& access, F f) {
  const uint32_t* address = wave.row(inst.src[0].index);
  for (uint64_t rest = wave.exec(); rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctzll(rest);
    for (int i = 0; i < access.count; ++i) {
      const uint64_t begin = uint64_t(address[lane]) + access.offsets[i];
      for (uint64_t byte = begin; byte < begin + access.bytes && byte < wave.group->lds_bytes; ++byte)
        if (!f(lane, uint32_t(byte))) return;
    }
  }
}

std::vector<uint32_t> lds_bytes_of_load(Wave& wave, const Instruction& inst) {
  std::vector<uint32_t> bytes;
  for (uint64_t rest = wave.exec(); rest != 0; rest &= rest - 1) {
    const uint32_t begin = (wave.m0() & 0xFFFF) + uint32_t(inst.imm) + 4 * uint32_t(__builtin_ctzll(rest));
    for (uint32_t byte = begin; byte < begin + 4 && byte < wave.group->lds_bytes; ++byte) bytes.push_back(byte);
  }
  return bytes;
}

}  // namespace

// ---- Wait counters ----

void WaitCounters::push(Counter counter, Operation operation) {
  for (const RegisterRange& range : operation.registers)
    for (int i = 0; i < range.count; ++i) ++pending_[counter][size_t(table_index(range) + i)];
  queues_[counter].push_back(std::move(operation));
}

void WaitCounters::retire(Counter counter, size_t keep) {
  while (queues_[counter].size() > keep) {
    for (const RegisterRange& range : queues_[counter].front().registers)
      for (int i = 0; i < range.count; ++i) --pending_[counter][size_t(table_index(range) + i)];
    queues_[counter].pop_front();
  }
}

void WaitCounters::issue(const Effects& effects, std::vector<uint32_t> lds_bytes) {
  const std::vector<RegisterRange> written = effects.is_load ? effects.writes : std::vector<RegisterRange>();
  switch (effects.unit) {
    case Unit::scalar_memory: return push(lgkmcnt, {written, {}, false});
    case Unit::lds: return push(lgkmcnt, {written, std::move(lds_bytes), true});
    case Unit::vector_memory: return push(vmcnt, {written, std::move(lds_bytes), true});
    case Unit::flat:
      push(vmcnt, {written, {}, true});
      return push(lgkmcnt, {written, {}, true});
    default: return;
  }
}

// S_WAITCNT on gfx9: vmcnt in bits 0..3 and 14..15, lgkmcnt in bits 8..11.
void WaitCounters::wait(uint16_t simm16) {
  retire(vmcnt, (simm16 & 15) | (simm16 >> 14 & 3) << 4);
  const size_t keep = simm16 >> 8 & 15;
  const auto& queue = queues_[lgkmcnt];
  const bool in_order = std::all_of(queue.begin(), queue.end(), [](const Operation& operation) { return operation.in_order; });
  if (in_order || keep == 0) retire(lgkmcnt, keep);
}

const char* WaitCounters::blocking(const RegisterRange& range, bool is_write, Unit unit) const {
  const bool skip_vm = is_write && unit == Unit::vector_memory, skip_lgkm = is_write && unit == Unit::lds;
  for (int i = 0; i < range.count; ++i) {
    const size_t index = size_t(table_index(range) + i);
    if (pending_[vmcnt][index] && !skip_vm) return "vmcnt";
    if (pending_[lgkmcnt][index] && !skip_lgkm) return "lgkmcnt";
  }
  return nullptr;
}

std::vector<uint32_t> WaitCounters::unfinished_lds_bytes() const {
  std::vector<uint32_t> bytes;
  for (const auto& queue : queues_)
    for (const Operation& operation : queue) bytes.insert(bytes.end(), operation.lds_bytes.begin(), operation.lds_bytes.end());
  return bytes;
}

// ---- Hazards ----

std::string HazardRules::check(const char* what, const Event& event, int needed) const {
  if (event.time == 0) return "";
  const int between = int(std::min<uint64_t>(time_ - event.time, 1000)) - 1;
  if (between >= needed) return "";
  return std::string(what) + " " + name_of(event.range) + " needs " + std::to_string(needed) + " wait states between, and has " +
         std::to_string(between);
}

int HazardRules::needed_for_matrix_read(const Event& event, const RegisterRange& range, bool as_c, const Effects& effects) const {
  if (event.is_f64) {
    const bool large = event.passes == 8;
    if (!as_c) return large ? 11 : 6;
    if (same(event.range, range)) return large ? 0 : 4;
    return effects.is_xdl ? 0 : large ? 9 : 4;
  }
  if (!as_c) return event.passes + (event.is_xdl ? 3 : 2);
  if (same(event.range, range)) return event.passes == 2 ? 2 : 0;
  if (effects.is_xdl && !event.is_xdl) return 0;
  return event.passes + (event.is_xdl ? 1 : 0);
}

std::string HazardRules::check_read(const RegisterRange& range, int index, const Instruction& inst, const Effects& effects) const {
  for (int i = 0; i < range.count; ++i) {
    const Event& event = writers_[size_t(table_index(range) + i)];
    if (event.time == 0) continue;
    int needed = 0;
    const char* what = "";
    const auto require = [&](int states, const char* description) {
      if (states > needed) needed = states, what = description;
    };
    if (event.unit == Unit::matrix && effects.unit == Unit::matrix) {
      require(needed_for_matrix_read(event, range, index == 2, effects), "a matrix instruction that reads the matrix result");
    } else if (event.unit == Unit::matrix && event.is_f64) {
      const bool large = event.passes == 8;
      require(is_memory(effects.unit) ? (large ? 18 : 9) : large ? 11 : 6, "reading the F64 matrix result");
    } else if (event.unit == Unit::matrix) {
      require(event.passes + (event.is_xdl ? 3 : 2), "reading the matrix result");
    }
    if (is_vector_alu(event.unit)) {
      if (effects.unit == Unit::matrix) require(2, "a matrix instruction that reads the VALU result");
      if (!range.is_vector && is_memory(effects.unit)) require(5, "a memory instruction that reads the VALU result");
      if (!range.is_vector && range.first != sgpr_exec && is_vector_alu(effects.unit)) require(2, "reading the VALU result");
      if (event.unit == Unit::transcendental && effects.unit == Unit::vector) require(1, "reading the transcendental result");
      if (event.partial && is_vector_alu(effects.unit)) require(1, "reading the partly written");
      if (inst.dpp && range.is_vector && index == 0) require(2, "a DPP instruction that reads the VALU result");
      if (inst.dpp && range.first == sgpr_exec && !range.is_vector) require(5, "a DPP instruction after a VALU write of");
      const bool lane_access = inst.op == Op::v_readlane_b32 || inst.op == Op::v_writelane_b32;
      if (lane_access && !range.is_vector && index == 1) require(4, "a lane selection by the VALU result");
      if ((lane_access || inst.op == Op::v_readfirstlane_b32) && range.is_vector) require(1, "a lane read of the VALU result");
      const bool fmas = inst.op == Op::v_div_fmas_f32 || inst.op == Op::v_div_fmas_f64;
      if (fmas && !range.is_vector && range.first == sgpr_vcc) require(4, "v_div_fmas after a VALU write of");
    }
    if (std::string broken = check(what, event, needed); !broken.empty()) return broken;
  }
  return "";
}

std::string HazardRules::check_write(const RegisterRange& range, const Effects& effects) const {
  if (!range.is_vector || effects.unit == Unit::matrix) return "";
  for (int i = 0; i < range.count; ++i) {
    const size_t row = size_t(range.first) + size_t(i);
    const Event& writer = writers_[row];
    if (writer.unit == Unit::matrix && writer.time) {
      const int needed = writer.is_f64 ? (writer.passes == 8 ? 11 : 6) : writer.passes + (writer.is_xdl ? 3 : 2);
      if (std::string broken = check("overwriting the matrix result", writer, needed); !broken.empty()) return broken;
    }
    const Event& reader = readers_as_c_[row];
    if (std::string broken = check("overwriting a matrix instruction's C in", reader, reader.passes - 1); !broken.empty())
      return broken;
    if (is_vector_alu(effects.unit))
      if (std::string broken = check("overwriting the data of a wide store in", stores_[row], 2); !broken.empty()) return broken;
  }
  return "";
}

std::string HazardRules::broken_by(const Instruction& inst, const Effects& effects) const {
  for (size_t i = 0; i < effects.reads.size(); ++i)
    if (std::string broken = check_read(effects.reads[i], int(i), inst, effects); !broken.empty()) return broken;
  for (const RegisterRange& range : effects.writes)
    if (std::string broken = check_write(range, effects); !broken.empty()) return broken;
  return "";
}

void HazardRules::issue(const Instruction& inst, const Effects& effects) {
  Event event;
  event.unit = effects.unit;
  event.is_xdl = effects.is_xdl;
  event.is_f64 = effects.unit == Unit::matrix && contains(mnemonic(inst.op), "f64");
  event.partial = inst.sdwa && is_vector_alu(effects.unit);
  event.passes = effects.passes;
  event.time = time_;
  for (const RegisterRange& range : effects.writes) {
    event.range = range;
    for (int i = 0; i < range.count; ++i) writers_[size_t(table_index(range) + i)] = event;
  }
  if (effects.unit == Unit::matrix && effects.is_xdl && effects.reads.size() > 2) {
    event.range = effects.reads[2];
    for (int i = 0; i < event.range.count; ++i) readers_as_c_[size_t(event.range.first) + size_t(i)] = event;
  }
  const bool buffer_with_soffset = inst.family == Family::MUBUF && inst.src[2].kind == Operand::Kind::scalar;
  if (effects.is_store && effects.unit == Unit::vector_memory && !buffer_with_soffset) {
    event.range = effects.reads.back();
    if (event.range.is_vector && event.range.count > 2)
      for (int i = 0; i < event.range.count; ++i) stores_[size_t(event.range.first) + size_t(i)] = event;
  }
  time_ += inst.op == Op::s_nop ? uint64_t(inst.imm & 15) + 1 : 1;
}

// ---- Definedness ----

void Definedness::start(const Wave& wave, int scalars) {
  std::fill(rows_.begin(), rows_.end(), 0);
  std::fill(scalars_.begin(), scalars_.end(), 0);
  std::fill(scalars_.begin(), scalars_.begin() + scalars, ~0u);
  for (int index : {102, 103, sgpr_vcc, sgpr_vcc + 1, sgpr_m0, sgpr_exec, sgpr_exec + 1}) scalars_[size_t(index)] = ~0u;
  rows_[0] = wave.exec();
  scc_ = true;
}

bool Definedness::is_defined(const RegisterRange& range, uint64_t lanes) const {
  for (int i = 0; i < range.count; ++i) {
    if (range.is_vector && (lanes & ~rows_[size_t(range.first + i)]) != 0) return false;
    if (!range.is_vector && scalars_[size_t(range.first + i)] != ~0u) return false;
  }
  return true;
}

uint64_t Definedness::bits_of(const Operand& operand) const {
  if (operand.kind != Operand::Kind::scalar || operand.special != Operand::Special::none) return ~0ull;
  return operand.dwords >= 2 ? pair(operand.index) : scalars_[operand.index] | 0xFFFFFFFF'00000000;
}

uint64_t Definedness::lanes_of(const Operand& operand, int dword) const {
  if (operand.kind == Operand::Kind::vector) return rows_[size_t(operand.index + std::min(dword, operand.dwords - 1))];
  return bits_of(operand) == ~0ull ? ~0ull : 0;
}

void Definedness::define_scalar(const RegisterRange& range, uint64_t bits) {
  for (int i = 0; i < range.count; ++i) scalars_[size_t(range.first + i)] = uint32_t(i % 2 ? bits >> 32 : bits);
}

namespace {

// A bit and its definedness through the two operations that can make a defined bit of an undefined one.
struct Bits {
  uint64_t value, defined;
};
Bits operator~(Bits a) { return {~a.value, a.defined}; }
Bits operator&(Bits a, Bits b) {
  return {a.value & b.value, (a.defined & b.defined) | (a.defined & ~a.value) | (b.defined & ~b.value)};
}
Bits operator|(Bits a, Bits b) { return ~(~a & ~b); }

enum class Bitwise { none, move, conjunction, disjunction, difference, difference_reversed };

Bitwise bitwise_operation(const char* name) {
  const auto is = [&](const char* prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; };
  if (is("s_mov_b")) return Bitwise::move;
  if (is("s_and_")) return Bitwise::conjunction;
  if (is("s_or_")) return Bitwise::disjunction;
  if (is("s_andn2_")) return Bitwise::difference;
  if (is("s_andn1_")) return Bitwise::difference_reversed;
  return Bitwise::none;
}

}  // namespace

// Moves and lane mask arithmetic; false for other instructions.
bool Definedness::execute_bitwise(const Wave& wave, const Instruction& inst) {
  const char* name = mnemonic(inst.op);
  const Bitwise operation = inst.family == Family::SOP1 || inst.family == Family::SOP2 ? bitwise_operation(name) : Bitwise::none;
  if (operation == Bitwise::none) return false;
  const bool with_exec = contains(name, "exec");
  const Bits exec{wave.exec(), pair(sgpr_exec)};
  const Bits a{wave.read_scalar(inst.src[0]), bits_of(inst.src[0])};
  const Bits b = with_exec ? exec : Bits{wave.read_scalar(inst.src[1]), bits_of(inst.src[1])};
  Bits result = a;
  switch (operation) {
    case Bitwise::conjunction: result = a & b; break;
    case Bitwise::disjunction: result = a | b; break;
    case Bitwise::difference: result = a & ~b; break;
    case Bitwise::difference_reversed: result = ~a & b; break;
    default: break;
  }
  const RegisterRange target{false, inst.dst.index, inst.dst.dwords};
  define_scalar(target, contains(name, "saveexec") ? exec.defined : result.defined);
  if (with_exec) define_scalar({false, sgpr_exec, 2}, result.defined);
  const uint64_t width = inst.dst.dwords == 2 ? ~0ull : 0xFFFFFFFF;
  if (operation != Bitwise::move) scc_ = (~result.defined & width) == 0 || (result.value & result.defined & width) != 0;
  return true;
}

// The lanes of row `row` of the result that are computed from defined values only. Low dwords of 64-bit sums and left
// shifts don't depend on high ones, and selections depend on what they select.
uint64_t Definedness::result_lanes(Wave& wave, const Instruction& inst, const Effects& effects, int row) const {
  if (inst.op == Op::v_cndmask_b32) {
    const bool vop3 = inst.family == Family::VOP3;
    const uint64_t mask = vop3 ? wave.read_scalar(inst.src[2]) : wave.vcc();
    const uint64_t known = vop3 ? bits_of(inst.src[2]) : pair(sgpr_vcc);
    return known & ((mask & lanes_of(inst.src[1], 0)) | (~mask & lanes_of(inst.src[0], 0)));
  }
  if (inst.op == Op::v_pk_mov_b32) return lanes_of(inst.src[row], inst.vop.op_sel >> row & 1);
  const bool pairs = inst.op == Op::v_pk_fma_f32 || inst.op == Op::v_pk_mul_f32 || inst.op == Op::v_pk_add_f32;
  const bool low_first = inst.op == Op::v_mad_u64_u32 || inst.op == Op::v_mad_i64_i32 || inst.op == Op::v_lshlrev_b64 ||
                         inst.op == Op::v_lshl_add_u64 || inst.op == Op::v_mov_b64;
  const bool carries = contains(mnemonic(inst.op), "c_co_") || contains(mnemonic(inst.op), "b_co_");
  uint64_t defined = carries && inst.family == Family::VOP2 ? pair(sgpr_vcc) : ~0ull;
  for (int i = 0; i < 3; ++i) {
    const Operand& operand = inst.src[i];
    if (carries && i == 2) {
      defined &= bits_of(operand);
    } else if (pairs) {
      defined &= lanes_of(operand, (row ? inst.vop.op_sel_hi : inst.vop.op_sel) >> i & 1);
    } else {
      const int dwords = low_first ? std::min<int>(row + 1, operand.dwords) : operand.dwords;
      for (int dword = 0; dword < dwords; ++dword) defined &= lanes_of(operand, dword);
    }
  }
  if (effects.unit == Unit::matrix) return defined == ~0ull ? ~0ull : 0;
  if (inst.dpp) return (defined & wave.exec()) == wave.exec() ? ~0ull : defined;
  return defined;
}

void Definedness::execute(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t loaded_lanes) {
  const uint64_t exec = wave.exec();
  if (inst.op == Op::v_writelane_b32) {
    rows_[inst.dst.index] |= 1ull << (wave.read_scalar(inst.src[1]) % lanes);
    return;
  }
  if (inst.op == Op::v_readlane_b32 || inst.op == Op::v_readfirstlane_b32) {
    const uint64_t lane = inst.op == Op::v_readlane_b32 ? wave.read_scalar(inst.src[1]) % lanes : uint64_t(exec ? __builtin_ctzll(exec) : 0);
    scalars_[inst.dst.index] = lanes_of(inst.src[0], 0) >> lane & 1 ? ~0u : 0;
    return;
  }
  if (execute_bitwise(wave, inst)) return;
  bool all_sources = true;
  for (const RegisterRange& range : effects.reads) all_sources &= is_defined(range, exec);
  // A lane operation may write what it reads: all results are found before any is kept.
  std::vector<std::pair<size_t, uint64_t>> rows;
  const uint64_t scalar_bits = inst.sdst.kind != Operand::Kind::none        ? ~exec | result_lanes(wave, inst, effects, 0)
                               : effects.unit == Unit::scalar_memory || all_sources ? ~0ull
                                                                                    : 0;
  for (const RegisterRange& range : effects.writes) {
    if (!range.is_vector) continue;
    for (int i = 0; i < range.count; ++i) {
      const size_t index = size_t(range.first + i);
      uint64_t result = effects.is_load ? loaded_lanes : result_lanes(wave, inst, effects, i);
      if (inst.op == Op::ds_bpermute_b32 || inst.op == Op::ds_permute_b32 || inst.op == Op::ds_swizzle_b32)
        result = all_sources ? ~0ull : 0;
      const uint64_t active = effects.unit == Unit::matrix ? ~0ull : exec;
      rows.emplace_back(index, (rows_[index] & ~active) | (result & active));
    }
  }
  for (const RegisterRange& range : effects.writes)
    if (!range.is_vector) define_scalar(range, scalar_bits);
  for (const auto& [index, defined] : rows) rows_[index] = defined;
  const bool keeps_scc = inst.family == Family::SOPK && !contains(mnemonic(inst.op), "cmpk") && inst.op != Op::s_addk_i32;
  if (effects.unit == Unit::scalar && !keeps_scc) scc_ = all_sources;
}

// ---- LDS ----

void LdsWatch::start_workgroup() {
  std::fill(bytes_.begin(), bytes_.end(), Byte());
  epoch_ = 1;
}

int LdsWatch::conflicting_wave(uint32_t index, uint32_t wave, bool writes, bool atomic) const {
  const Byte& byte = bytes_[index];
  if (byte.write_epoch >= epoch_ && byte.writer != wave && !(atomic && byte.atomic)) return byte.writer;
  if (writes && byte.read_epoch == epoch_ && (byte.readers & ~(1u << wave)) != 0)
    return __builtin_ctz(byte.readers & ~(1u << wave));
  return -1;
}

void LdsWatch::touch(uint32_t index, uint32_t wave, bool writes, bool atomic) {
  Byte& byte = bytes_[index];
  if (writes) {
    byte.write_epoch = std::max(byte.write_epoch, epoch_);
    byte.writer = uint8_t(wave);
    byte.atomic = atomic;
    byte.defined = true;
  } else {
    if (byte.read_epoch != epoch_) byte.readers = 0;
    byte.read_epoch = epoch_;
    byte.readers = uint16_t(byte.readers | 1u << wave);
  }
}

void LdsWatch::carry_over(uint32_t index, uint32_t wave) {
  bytes_[index].write_epoch = epoch_ + 1;
  bytes_[index].writer = uint8_t(wave);
  bytes_[index].atomic = false;
}

// ---- Checker ----

void Checker::start_workgroup(const std::vector<std::unique_ptr<Wave>>& waves, int scalars) {
  for (size_t i = 0; i < waves_.size(); ++i) {
    waves_[i] = PerWave();
    waves_[i].definedness.start(*waves[i], scalars);
  }
  lds_.start_workgroup();
}

bool Checker::check_counters(Wave& wave, const Effects& effects) {
  const WaitCounters& counters = waves_[wave.index_in_group].counters;
  const auto check = [&](const std::vector<RegisterRange>& ranges, bool is_write) {
    for (const RegisterRange& range : ranges) {
      const char* counter = counters.blocking(range, is_write && effects.is_load, effects.unit);
      if (counter == nullptr) continue;
      wave.fail(Outcome::Status::unsafe, name_of(range) + " is used before an s_waitcnt for " + counter + " has waited for its load");
      return false;
    }
    return true;
  };
  return check(effects.reads, false) && check(effects.writes, true);
}

bool Checker::check_definedness(Wave& wave, const Instruction& inst, const Effects& effects) {
  const Definedness& definedness = waves_[wave.index_in_group].definedness;
  const auto require = [&](bool defined, const std::string& what) {
    if (!defined) wave.fail(Outcome::Status::unsafe, what + " was never written");
    return defined;
  };
  for (const RegisterRange& range : effects.addresses)
    if (!require(definedness.is_defined(range, wave.exec()), "the address in " + name_of(range))) return false;
  // Functions save registers that their caller may never have written.
  if (effects.is_store && inst.family != Family::SCRATCH)
    for (const RegisterRange& range : effects.reads)
      if (!require(definedness.is_defined(range, wave.exec()), "what is stored, " + name_of(range) + ",")) return false;
  switch (inst.op) {
    case Op::s_cbranch_scc0: case Op::s_cbranch_scc1:
      return require(definedness.scc_is_defined(), "the condition of the branch depends on a register that");
    case Op::s_cbranch_vccz: case Op::s_cbranch_vccnz:
      return require(definedness.is_defined({false, sgpr_vcc, 2}, 0), "the condition of the branch in vcc depends on a register that");
    case Op::s_cbranch_execz: case Op::s_cbranch_execnz:
      return require(definedness.is_defined({false, sgpr_exec, 2}, 0), "the condition of the branch in exec depends on a register that");
    default: return true;
  }
}

bool Checker::check_lds(Wave& wave, const Instruction& inst, const Effects& effects) {
  const LdsAccess access = lds_access(inst, effects);
  if (access.count == 0) return true;
  const uint32_t self = wave.index_in_group;
  for_each_lds_byte(wave, inst, access, [&](int lane, uint32_t byte) {
    const int other = lds_.conflicting_wave(byte, self, access.writes, access.atomic);
    if (other >= 0) {
      wave.fail(Outcome::Status::unsafe,
                "race: lane " + std::to_string(lane) + (access.writes ? " writes" : " reads") + " byte " + std::to_string(byte) +
                    " of LDS, which wave " + std::to_string(other) +
                    " has touched since the last barrier (or before it, without waiting for its write)");
      return false;
    }
    lds_.touch(byte, self, access.writes, access.atomic);
    return true;
  });
  return wave.state != Wave::State::failed;
}

void Checker::reach_barrier(Wave& wave) {
  for (uint32_t byte : waves_[wave.index_in_group].counters.unfinished_lds_bytes())
    lds_.carry_over(byte, wave.index_in_group);
}

void Checker::before(Wave& wave, const Instruction& inst, const Effects& effects) {
  PerWave& state = waves_[wave.index_in_group];
  if (inst.op == Op::s_waitcnt) state.counters.wait(uint16_t(inst.imm));
  if (inst.op == Op::s_barrier) reach_barrier(wave);
  if (!check_counters(wave, effects)) return;
  if (const std::string broken = state.hazards.broken_by(inst, effects); !broken.empty())
    return wave.fail(Outcome::Status::unsafe, "hazard: " + broken);
  if (!check_definedness(wave, inst, effects)) return;

  // What the instruction is about to do, while its address registers still hold the addresses.
  uint64_t loaded_lanes = ~0ull;
  std::vector<uint32_t> lds_bytes;
  const LdsAccess access = lds_access(inst, effects);
  if (access.reads && !access.writes)
    for_each_lds_byte(wave, inst, access, [&](int lane, uint32_t byte) {
      if (!lds_.is_defined(byte)) loaded_lanes &= ~(1ull << lane);
      return true;
    });
  if (access.writes)
    for_each_lds_byte(wave, inst, access, [&](int, uint32_t byte) {
      lds_bytes.push_back(byte);
      return true;
    });
  if (effects.to_lds) {
    lds_bytes = lds_bytes_of_load(wave, inst);
    for (uint32_t byte : lds_bytes) lds_.touch(byte, wave.index_in_group, true, false);
  }
  if (!check_lds(wave, inst, effects)) return;
  state.definedness.execute(wave, inst, effects, loaded_lanes);
  state.counters.issue(effects, std::move(lds_bytes));
  state.hazards.issue(inst, effects);
}

}  // namespace mi300x

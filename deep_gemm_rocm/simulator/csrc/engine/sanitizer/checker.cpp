#include "checker.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "../execution/addresses.h"
#include "../execution/lane_transfer.h"

namespace mi300x {
namespace {

template <class F>
bool for_lanes(uint64_t mask, F f) {
  for (; mask != 0; mask &= mask - 1)
    if (!f(__builtin_ctzll(mask))) return false;
  return true;
}

std::string hexadecimal(uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string misaligned(int lane, const char* kind, uint32_t bytes, bool in_lds, uint64_t address) {
  return "lane " + std::to_string(lane) + " makes a misaligned " + kind + " of " + std::to_string(bytes) +
         " bytes to " + (in_lds ? "LDS" : "memory") + " at " + hexadecimal(address);
}

bool is_update(const MemoryAccess& access) { return access.reads && access.writes; }
bool stores_plainly(const MemoryAccess& access) { return access.overwrites && !access.atomic; }

struct Stored {
  uint32_t value[4];
  uint32_t bytes;
};
// The value that a lane stores, from the rows of data registers.
Stored stored_bytes(const MemoryAccess& access, const uint32_t* data, int lane) {
  Stored stored;
  stored.bytes = access.bytes;
  for (uint32_t i = 0; i < (stored.bytes + 3) / 4; ++i) stored.value[i] = data[i * lanes + uint32_t(lane)];
  if (access.high_half) stored.value[0] >>= 16;
  return stored;
}

// Calls f(first byte, bytes, dword) for each dword of an access.
template <class F>
void for_dwords(uint32_t bytes, F f) {
  for (uint32_t byte = 0; byte < bytes; byte += 4) f(byte, std::min(bytes - byte, 4u), byte / 4);
}

// A bit for each byte of the store that memory holds already.
uint32_t bytes_alike(const Stored& stored, const uint8_t* memory) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(stored.value);
  uint32_t alike = 0;
  for (uint32_t i = 0; i < stored.bytes; ++i) alike |= uint32_t(bytes[i] == memory[i]) << i;
  return alike;
}

// True where all lanes are active and each lane's access begins where the previous one ends.
bool follow_one_another(uint64_t active, const uint64_t* addresses, uint32_t bytes) {
  uint64_t differences = ~active;
  for (int lane = 0; lane < lanes; ++lane) differences |= addresses[lane] ^ (addresses[0] + uint64_t(lane) * bytes);
  return differences == 0;
}

// Transposes the data rows of all lanes into memory order.
void interleave(const uint32_t* rows, uint32_t dwords, uint8_t* memory) {
  const auto place = [&](int lane) { return memory + 4 * dwords * uint32_t(lane); };
  switch (dwords) {
    case 1: return scatter<1>(~0ull, rows, place);
    case 2: return scatter<2>(~0ull, rows, place);
    case 3: return scatter<3>(~0ull, rows, place);
    default: return scatter<4>(~0ull, rows, place);
  }
}

// Buffer instructions that convert between registers and the element's format in memory.
bool converts_format(const Instruction& inst, const Effects& effects) {
  const bool is_buffer = inst.family == Family::MUBUF || inst.family == Family::MTBUF;
  return is_buffer && (effects.is_load || effects.is_store);
}

// The lanes whose flat addresses lie in a window of the address space.
uint64_t lanes_in_aperture(const uint64_t* addresses, uint64_t active, uint64_t aperture) {
  uint64_t found = 0;
  for_lanes(active, [&](int lane) {
    found |= uint64_t(in_aperture(addresses[lane], aperture)) << lane;
    return true;
  });
  return found;
}

// The lanes in which a store has at least one defined dword.
uint64_t lanes_with_data(const Definedness& definedness, const Effects& effects) {
  uint64_t with_data = 0;
  for (size_t i = effects.address_count; i < effects.reads.size(); ++i) {
    const RegisterRange& range = effects.reads[i];
    for (int row = range.first; range.is_vector() && row < range.first + range.count; ++row)
      with_data |= ~definedness.undefined_lanes(row, ~0ull);
  }
  return with_data;
}

// A release or acquire for the whole device (SC1).
bool has_device_scope(const Instruction& inst) { return inst.word[0] >> 15 & 1; }

}  // namespace

void Checker::start_workgroup(const std::vector<std::unique_ptr<Wave>>& waves, const Kernel& kernel, int scalars) {
  for (size_t i = 0; i < waves_.size(); ++i) {
    waves_[i].counters.start();
    waves_[i].hazards.start();
    waves_[i].definedness.start(*waves[i], kernel, scalars);
    waves_[i].scratch.start();
    waves_[i].has_read_unwritten_lds = false;
  }
  const Workgroup& group = *waves[0]->group;
  lds_.start_workgroup(group.lds_bytes);
  visitor_ = {group.flat_id, 0, 0};
}

// ---- Counters and registers ----

void Checker::wait(const Wave& wave, uint16_t simm16) {
  state_of(wave).counters.wait(simm16, [&](const WaitCounters::Operation& load) {
    lds_.end_load(load.lds.bytes, wave.index_in_group, load.lds.site, load.lds.begins);
  });
}

// Beyond the allocation, the chip reads v0 or s0 instead and drops what is written (CDNA3 ISA, "Out-of-range behavior").
bool Checker::check_registers(Wave& wave, const Effects& effects) {
  const RegisterCounts& wanted = effects.registers;
  if (registers_.cover(wanted)) return true;
  const auto describe = [](const char* file, int last, const char* kind, int count) {
    return file + std::to_string(last) + " is used, but the kernel's descriptor asks for " + std::to_string(count) +
           " " + kind;
  };
  wave.fail(Outcome::Status::unsafe,
            wanted.vectors > registers_.vectors
                ? describe("v", wanted.vectors - 1, "vector registers", registers_.vectors)
            : wanted.accumulators > registers_.accumulators
                ? describe("a", wanted.accumulators - 1, "accumulators", registers_.accumulators)
                : describe("s", wanted.scalars - 1, "scalar registers", registers_.scalars));
  return false;
}

bool Checker::check_counters(Wave& wave, const Effects& effects) {
  const WaitCounters& counters = state_of(wave).counters;
  if (counters.none_waits()) return true;
  const auto check = [&](const auto& ranges, bool is_write) {
    for (const RegisterRange& range : ranges) {
      int number;
      const char* counter = counters.blocking(range, is_write && effects.is_load, effects.unit, number);
      if (counter == nullptr) continue;
      wave.fail(Outcome::Status::unsafe,
                register_name(number) + " is used before an s_waitcnt for " + counter + " has waited for its load");
      return false;
    }
    return true;
  };
  return check(effects.reads, false) && check(effects.writes, true);
}

constexpr const char* undefined_condition = ", which depends on a register or memory that was never written";

bool Checker::require_defined(Wave& wave, const RegisterRange& range, uint64_t active, uint64_t copied,
                              const char* before, const char* after) {
  const Definedness& definedness = state_of(wave).definedness;
  if (definedness.is_defined(range, active)) return true;
  std::string lane;
  int number = range.first;
  for (; range.is_vector(); ++number) {
    if (number == range.first + range.count) return true;
    const uint64_t undefined = definedness.undefined_lanes(number, active & ~(copied & definedness.gaps(number)));
    if (undefined == 0) continue;
    lane = " (lane " + std::to_string(__builtin_ctzll(undefined)) + ")";
    break;
  }
  wave.fail(Outcome::Status::unsafe, before + register_name(number) + lane + after);
  return false;
}

bool Checker::check_definedness(Wave& wave, const Instruction& inst, const Effects& effects) {
  for (size_t i = 0; i < effects.address_count; ++i)
    if (!require_defined(wave, effects.reads[i], wave.exec(), 0, "the address in ",
                         " was never written, or comes from memory that never was"))
      return false;
  const bool stores = effects.is_store && effects.derivation != Derivation::crossing;
  return (!stores || check_stored(wave, inst, effects)) && check_branch(wave, inst);
}

bool Checker::check_stored(Wave& wave, const Instruction& inst, const Effects& effects) {
  // Stores to scratch may hold undefined values: functions save registers that their caller may never have written. The
  // scratch bytes become undefined instead.
  if (inst.family != Family::SCRATCH) {
    uint64_t active = wave.exec();
    if (inst.family == Family::FLAT) {
      uint64_t addresses[lanes];
      global_addresses(wave, inst, addresses);
      active &= ~lanes_in_aperture(addresses, active, private_aperture);
    }
    const Definedness& definedness = state_of(wave).definedness;
    const uint64_t copied = stores_plainly(effects.memory) ? lanes_with_data(definedness, effects) : 0;
    for (size_t i = effects.address_count; i < effects.reads.size(); ++i)
      if (!require_defined(wave, effects.reads[i], active, copied, "what is stored, ",
                           ", was never written, or comes from memory that never was"))
        return false;
  }
  return require_defined(wave, scalar_range(sgpr_exec, 2), wave.exec(), 0, "the lanes that store are those of ",
                         undefined_condition);
}

bool Checker::check_branch(Wave& wave, const Instruction& inst) {
  const auto require = [&](int sgpr) {
    return require_defined(wave, scalar_range(sgpr, 2), wave.exec(), 0, "a branch on ", undefined_condition);
  };
  switch (inst.op) {
    case Op::s_cbranch_scc0: case Op::s_cbranch_scc1:
      if (state_of(wave).definedness.scc_is_defined()) return true;
      wave.fail(Outcome::Status::unsafe, std::string("a branch on scc") + undefined_condition);
      return false;
    case Op::s_cbranch_vccz: case Op::s_cbranch_vccnz: return require(sgpr_vcc);
    case Op::s_cbranch_execz: case Op::s_cbranch_execnz: return require(sgpr_exec);
    default: return true;
  }
}

// ---- LDS ----

bool Checker::report_lds(Wave& wave, const LdsWatch::Conflict& conflict, int lane, bool writes) {
  const std::string who = "lane " + std::to_string(lane) + (writes ? " writes" : " reads") + " byte " +
                          std::to_string(conflict.byte) + " of LDS";
  const std::string other = "wave " + std::to_string(conflict.wave);
  const uint64_t offset = 4ull * conflict.site;
  if (conflict.kind == LdsWatch::Conflict::Kind::unfinished_load)
    wave.fail(Outcome::Status::unsafe,
              who + " before an s_waitcnt for vmcnt has waited for the load to LDS of " + other, 0, offset);
  else
    wave.fail(Outcome::Status::unsafe,
              "race: " + who + ", which " + other + (conflict.was_write ? " has written" : " has read") + " (offset " +
                  hexadecimal(offset) + "); a barrier is missing in between, or a wait for lgkmcnt before it",
              0, offset);
  return false;
}

Checker::Data Checker::data_of(Wave& wave, const MemoryAccess& access, const Operand& source) const {
  if (!stores_plainly(access)) return {};
  const RegisterRange range{source.index, source.dwords};
  const Definedness& definedness = waves_[wave.index_in_group].definedness;
  return {wave.row(source.index), source.index, definedness.is_defined(range, wave.exec())};
}

// Calls note_write(first byte, bytes, is defined) for each part of a lane's store.
template <class NoteWrite>
void Checker::follow_stored(const Wave& wave, int lane, const MemoryAccess& access, const Data& data,
                            NoteWrite note_write) const {
  if (data.is_defined) return note_write(0, access.bytes, true);
  const Definedness& definedness = waves_[wave.index_in_group].definedness;
  for_dwords(access.bytes, [&](uint32_t byte, uint32_t bytes, uint32_t dword) {
    note_write(byte, bytes, definedness.undefined_lanes(data.first_row + int(dword), 1ull << lane) == 0);
  });
}

// alike(lane, memory) returns the bytes that already hold what the lane stores.
template <class Alike>
bool Checker::check_lds(Wave& wave, uint64_t held, const Lanes& positions, const LdsWatch::Access& access,
                        Alike alike) {
  return for_lanes(held, [&](int lane) {
    const auto begin = uint32_t(positions.addresses[lane]);
    const auto conflict = lds_.first_conflict(access, begin, alike(lane, wave.group->lds.data() + begin));
    return !conflict || report_lds(wave, conflict, lane, access.writes);
  });
}

// Records the bytes that the lanes access. Returns the lanes that are within LDS.
uint64_t Checker::places_in_lds(const Wave& wave, const Lanes& positions, uint32_t bytes) {
  uint64_t held = 0;
  for_lanes(positions.active, [&](int lane) {
    if (positions.addresses[lane] + bytes > wave.group->lds_bytes) return true;  // the access itself will fail
    held |= 1ull << lane;
    lds_bytes_.begins.push_back(uint32_t(positions.addresses[lane]));
    return true;
  });
  return held;
}

bool Checker::access_lds(Wave& wave, const Lanes& positions, const MemoryAccess& access, const Data& data,
                         Loaded& loaded, uint32_t dword) {
  const LdsWatch::Access here{access.bytes,  wave.index_in_group, access.writes,
                              access.atomic, access.compares,     uint32_t(wave.pc)};
  const size_t first = lds_bytes_.begins.size();
  const uint64_t held = places_in_lds(wave, positions, access.bytes);
  const auto alike = [&](int lane, const uint8_t* memory) {
    return data.rows == nullptr ? 0 : bytes_alike(stored_bytes(access, data.rows, lane), memory);
  };
  if (lds_.may_conflict(here, lds_bytes_.begins, first) && !check_lds(wave, held, positions, here, alike)) return false;
  lds_.record(here, lds_bytes_.begins, first);
  return for_lanes(held, [&](int lane) {
    const auto begin = uint32_t(positions.addresses[lane]);
    if (access.reads)
      for_dwords(access.bytes, [&](uint32_t byte, uint32_t bytes, uint32_t i) {
        if (lds_.has_data(begin + byte, bytes)) return;
        loaded.lose(dword + i, lane);
        state_of(wave).has_read_unwritten_lds = true;
      });
    if (access.overwrites)
      follow_stored(wave, lane, access, data, [&](uint32_t byte, uint32_t bytes, bool defined) {
        lds_.define(begin + byte, bytes, defined);
      });
    return true;
  });
}

bool Checker::access_ds(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded) {
  const uint32_t* base = wave.row(inst.src[0].index);
  Lanes positions;
  positions.active = wave.exec();
  for (uint32_t part = 0; part < effects.memory.parts; ++part) {
    for (int l = 0; l < lanes; ++l) positions.addresses[l] = base[l] + effects.memory.offsets[part];
    if (!check_lds_alignment(wave, positions, effects.memory)) return false;
    const Data data = data_of(wave, effects.memory, inst.src[1 + part]);
    if (!access_lds(wave, positions, effects.memory, data, loaded, part * effects.memory.bytes / 4)) return false;
  }
  return true;
}

void Checker::access_scratch(const Wave& wave, const Lanes& positions, const MemoryAccess& access, const Data& data,
                             Loaded& loaded) {
  WrittenScratch& scratch = state_of(wave).scratch;
  for_lanes(positions.active, [&](int lane) {
    const uint64_t begin = positions.addresses[lane];
    if (!scratch.holds(begin, access.bytes)) return true;  // the access itself will fail
    if (access.reads)
      for_dwords(access.bytes, [&](uint32_t byte, uint32_t bytes, uint32_t dword) {
        if (!scratch.has_data(lane, begin + byte, bytes)) loaded.lose(dword, lane);
      });
    if (access.writes)
      follow_stored(wave, lane, access, data, [&](uint32_t byte, uint32_t bytes, bool defined) {
        scratch.note_write(lane, begin + byte, bytes, defined);
      });
    return true;
  });
}

bool Checker::load_to_lds(Wave& wave, const Instruction& inst, const Loaded& loaded) {
  const uint32_t base = (wave.m0() & 0xFFFF) + uint32_t(inst.imm);
  if (base % 4 != 0 && wave.exec() != 0) {
    wave.fail(Outcome::Status::unsafe, "a load to LDS at " + hexadecimal(base) + ", which is no multiple of 4");
    return false;
  }
  const LdsWatch::Access here{4, wave.index_in_group, true, false, false, uint32_t(wave.pc)};
  Lanes positions;
  positions.active = wave.exec();
  for (int lane = 0; lane < lanes; ++lane) positions.addresses[lane] = base + 4 * uint32_t(lane);
  lds_bytes_.bytes = 4;
  const uint64_t held = places_in_lds(wave, positions, 4);
  const auto none_alike = [](int, const uint8_t*) { return 0u; };
  if (lds_.may_conflict(here, lds_bytes_.begins, 0) && !check_lds(wave, held, positions, here, none_alike))
    return false;
  lds_.begin_load(here, lds_bytes_.begins);
  return for_lanes(held, [&](int lane) {
    lds_.define(uint32_t(positions.addresses[lane]), 4, loaded.lanes[0] >> lane & 1);
    return true;
  });
}

// Accesses that a wave hasn't waited for before a barrier may still happen after it.
void Checker::open_barrier() {
  lds_.open_barrier();
  for (PerWave& wave : waves_) wave.has_read_unwritten_lds = false;
  for (uint32_t wave = 0; wave < waves_.size(); ++wave)
    waves_[wave].counters.for_each_in_lds([&](const WaitCounters::Operation& operation) {
      if (operation.to_lds) return;  // recorded by begin_load
      const MemoryAccess& access = operation.memory;
      lds_.record({operation.lds.bytes, wave, access.writes, access.atomic, access.compares, operation.lds.site},
                  operation.lds.begins);
    });
}

// ---- Global memory ----

bool Checker::check_alignment(Wave& wave, const Lanes& places, const MemoryAccess& access, bool in_lds) {
  return !is_update(access) || for_lanes(places.active, [&](int lane) {
    const uint64_t address = places.addresses[lane];
    if (address % access.bytes == 0) return true;
    wave.fail(Outcome::Status::memory_fault, misaligned(lane, "atomic access", access.bytes, in_lds, address),
              in_lds ? 0 : address);
    return false;
  });
}

// DS instructions. Only the unaligned mode (SH_MEM_CONFIG) keeps the low bits of misaligned addresses. In that mode
// LLVM merges narrow accesses at any address into wide ones, but doesn't emit misaligned accesses of a dword or less,
// nor misaligned pairs (SITargetLowering::allowsMisalignedMemoryAccessesImpl): a misaligned one of these is a bug.
bool Checker::check_lds_alignment(Wave& wave, const Lanes& positions, const MemoryAccess& access) {
  if (is_update(access)) return check_alignment(wave, positions, access, true);
  const bool is_wide = access.bytes > 4 && access.parts == 1;
  const uint32_t alignment = is_wide ? 1 : std::min<uint32_t>(access.bytes, 4);
  return for_lanes(positions.active, [&](int lane) {
    const uint64_t address = positions.addresses[lane];
    if (address % alignment == 0) return true;
    const char* kind = access.writes ? "store" : "load";
    wave.fail(Outcome::Status::unsafe, misaligned(lane, kind, access.bytes, true, address) +
                                           ": only the unaligned access mode keeps the last bits, and takes longer");
    return false;
  });
}

bool Checker::visit_global(Wave& wave, const GlobalWatch::Span& span, const Lanes* places) {
  const GlobalWatch::Conflict conflict = global_->access(visitor_, span);
  if (!conflict.found) return true;
  std::string who = "the scalar access";
  uint64_t address = conflict.address;
  if (places != nullptr)
    for_lanes(places->active, [&](int lane) {
      const uint64_t begin = places->addresses[lane];
      if (begin < span.address || begin + 16 <= conflict.address || begin >= conflict.address + 4) return true;
      who = "lane " + std::to_string(lane);
      address = std::max(begin, conflict.address);
      return false;
    });
  const uint32_t other = conflict.workgroup;
  const bool is_known = conflict.site != GlobalWatch::unknown_site;
  const uint64_t offset = is_known ? 4ull * conflict.site : Outcome::nowhere;
  const std::string at = is_known ? " (offset " + hexadecimal(offset) + ")" : "";
  char text[320];
  snprintf(
      text, sizeof text,
      "race between workgroups: %s %s memory at 0x%llx, which workgroup (%u, %u, %u) has %s%s without a release there "
      "and an acquire here in between",
      who.c_str(), span.writes ? "writes" : "reads", static_cast<unsigned long long>(address), other % grid_.x,
      other / grid_.x % grid_.y, other / grid_.x / grid_.y, conflict.was_write ? "written" : "read", at.c_str());
  wave.fail(Outcome::Status::unsafe, text, address, offset);
  return false;
}

// Lanes that follow one another in memory are checked together. `data` are the rows that are stored, null for reads and
// atomics.
bool Checker::access_global(Wave& wave, const Lanes& places, const MemoryAccess& access, const uint32_t* data) {
  if (!check_alignment(wave, places, access, false)) return false;
  if (global_ == nullptr || places.active == 0) return true;
  uint8_t stored[lanes * 16];
  const uint8_t* const kept = data == nullptr ? nullptr : stored;
  GlobalWatch::Span span{0, 0, access.writes, access.atomic, access.compares, false, kept, uint32_t(wave.pc)};
  if (access.bytes % 4 == 0 && follow_one_another(places.active, places.addresses, access.bytes)) {
    if (data != nullptr) interleave(data, access.bytes / 4, stored);
    span.address = places.addresses[0];
    span.bytes = lanes * access.bytes;
    return visit_global(wave, span, &places);
  }
  const auto store = [&](int lane, uint64_t position) {
    if (data != nullptr) memcpy(stored + position, stored_bytes(access, data, lane).value, access.bytes);
  };
  const bool clean = for_lanes(places.active, [&](int lane) {
    const uint64_t address = places.addresses[lane];
    if (span.bytes != 0 && address == span.address + span.bytes) {
      store(lane, span.bytes);
      span.bytes += access.bytes;
      return true;
    }
    if (span.bytes != 0 && address >= span.address && address + access.bytes <= span.address + span.bytes) {
      store(lane, address - span.address);
      return true;
    }
    if (span.bytes != 0 && !visit_global(wave, span, &places)) return false;
    span.address = address;
    span.bytes = access.bytes;
    store(lane, 0);
    return true;
  });
  return clean && visit_global(wave, span, &places);
}

// Marks loaded dwords that nothing has written, and records the bytes that a store writes.
void Checker::follow_data(const Wave& wave, const Lanes& places, const MemoryAccess& access, const Data& data,
                          Loaded& loaded) {
  if (written_.is_empty()) return;
  for_lanes(places.active, [&](int lane) {
    const uint64_t begin = places.addresses[lane];
    if (access.reads)
      for_dwords(access.bytes, [&](uint32_t byte, uint32_t bytes, uint32_t dword) {
        if (!written_.has_data(begin + byte, bytes)) loaded.lose(dword, lane);
      });
    if (access.writes)
      follow_stored(wave, lane, access, data, [&](uint32_t byte, uint32_t bytes, bool defined) {
        written_.note_write(begin + byte, bytes, defined);
      });
    return true;
  });
}

bool Checker::access_vector_memory(Wave& wave, const Instruction& inst, const MemoryAccess& access, Loaded& loaded) {
  const Data data = data_of(wave, access, inst.family == Family::MUBUF ? inst.dst : inst.src[1]);
  Lanes places, positions;
  places.active = wave.exec();
  if (inst.family == Family::GLOBAL) {
    global_addresses(wave, inst, places.addresses);
  } else if (inst.family == Family::FLAT) {
    global_addresses(wave, inst, places.addresses);
    positions.active = lanes_in_aperture(places.addresses, wave.exec(), private_aperture);
    for (int lane = 0; lane < lanes; ++lane) positions.addresses[lane] = places.addresses[lane] - private_aperture;
    access_scratch(wave, positions, access, data, loaded);
    places.active &= ~positions.active;
    positions.active = lanes_in_aperture(places.addresses, wave.exec(), shared_aperture);
    for (int lane = 0; lane < lanes; ++lane) positions.addresses[lane] = places.addresses[lane] - shared_aperture;
    places.active &= ~positions.active;
    if (!check_alignment(wave, positions, access, true) || !access_lds(wave, positions, access, data, loaded))
      return false;
  } else {
    const BufferOperands operands(wave, inst);
    for_lanes(wave.exec(), [&](int lane) {
      const BufferPosition position = operands.position(lane);
      places.addresses[lane] = position.address;
      if (position.in_bounds < access.bytes) places.active &= ~(1ull << lane);
      return true;
    });
  }
  follow_data(wave, places, access, data, loaded);
  return access_global(wave, places, access, data.rows);
}

bool Checker::access_scalar_memory(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded) {
  const uint64_t address = scalar_address(wave, inst);
  if (address % 4 != 0) {
    wave.fail(Outcome::Status::unsafe,
              "a scalar access to " + hexadecimal(address) + ": the hardware ignores the last two bits");
    return false;
  }
  for (uint32_t dword = 0; dword < effects.memory.bytes / 4u && !written_.is_empty(); ++dword) {
    if (effects.memory.reads && !written_.has_data(address + 4 * dword, 4)) loaded.scalars &= ~(1ull << dword);
    if (effects.memory.writes) written_.note_write(address + 4 * dword, 4);
  }
  if (global_ == nullptr) return true;
  // LLVM reads bytes and shorts that are the same for all lanes with a scalar load of the dword that holds them.
  const MemoryAccess& access = effects.memory;
  const bool may_overfetch = access.bytes == 4;
  const GlobalWatch::Span span{address, access.bytes, access.writes, access.atomic, false, may_overfetch, nullptr,
                               uint32_t(wave.pc)};
  return visit_global(wave, span, nullptr);
}

// The element's format tells how many bytes are accessed and which register each component belongs to.
bool Checker::access_typed_buffer(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded) {
  MemoryAccess access = effects.memory;
  access.parts = 1;
  access.bytes = uint8_t(element_bytes(wave, inst));
  access.overwrites = false;  // the stored bytes differ from the registers' bits
  if (access.bytes == 0) return true;
  if (!access_vector_memory(wave, inst, access, loaded)) return false;
  loaded.lanes.fill(loaded.in_all());
  return !effects.to_lds || load_to_lds(wave, inst, loaded);
}

bool Checker::access_memory(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded) {
  lds_bytes_.clear();
  lds_bytes_.bytes = effects.memory.bytes;
  lds_bytes_.site = uint32_t(wave.pc);
  if (effects.memory.parts == 0)
    return !converts_format(inst, effects) || access_typed_buffer(wave, inst, effects, loaded);
  switch (inst.family) {
    case Family::DS: return access_ds(wave, inst, effects, loaded);
    case Family::SMEM: return access_scalar_memory(wave, inst, effects, loaded);
    case Family::SCRATCH: {
      Lanes positions;
      positions.active = wave.exec();
      for (int lane = 0; lane < lanes; ++lane) positions.addresses[lane] = scratch_offset(wave, inst, lane);
      access_scratch(wave, positions, effects.memory, data_of(wave, effects.memory, inst.src[1]), loaded);
      return !effects.to_lds || load_to_lds(wave, inst, loaded);
    }
    default:
      return access_vector_memory(wave, inst, effects.memory, loaded) &&
             (!effects.to_lds || load_to_lds(wave, inst, loaded));
  }
}

bool Checker::before(Wave& wave, const Instruction& inst, const Effects& effects, bool is_changed) {
  PerWave& state = state_of(wave);
  if (inst.op == Op::s_waitcnt) wait(wave, uint16_t(inst.imm));
  if (global_ != nullptr && inst.op == Op::buffer_wbl2 && has_device_scope(inst)) global_->release(visitor_);
  if (global_ != nullptr && inst.op == Op::buffer_inv && has_device_scope(inst)) global_->acquire(visitor_);
  if (!check_registers(wave, effects) || !check_counters(wave, effects)) return false;
  const std::string broken = is_changed ? state.hazards.issue_changed(inst, effects)
                                        : state.hazards.issue(inst, effects, wave.pc, known_paths_);
  if (!broken.empty()) {
    wave.fail(Outcome::Status::unsafe, "hazard: " + broken);
    return false;
  }
  if (!check_definedness(wave, inst, effects)) return false;
  // Before execute(), while the registers still hold the addresses.
  Loaded loaded;
  if (!access_memory(wave, inst, effects, loaded)) return false;
  state.definedness.execute(wave, inst, effects, loaded);
  state.counters.issue(effects, lds_bytes_);
  return true;
}

}  // namespace mi300x

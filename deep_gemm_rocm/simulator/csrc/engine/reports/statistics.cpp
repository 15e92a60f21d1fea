#include "statistics.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "../../hardware_limits.h"
#include "../execution/addresses.h"
#include "../execution/launch.h"
#include "../timing/lds_banks.h"
#include "json.h"

namespace mi300x {
namespace {

constexpr const char* class_names[] = {"scalar", "scalar_memory", "vector", "transcendental", "matrix", "lds",
                                       "vector_memory", "flat", "branch", "waitcnt", "barrier", "other"};
enum class Class : uint8_t {
  scalar, scalar_memory, vector, transcendental, matrix, lds, vector_memory, flat, branch, waitcnt, barrier, other,
  count
};
static_assert(sizeof class_names / sizeof class_names[0] == size_t(Class::count));

Class class_of(const Instruction& inst, const Effects& effects) {
  switch (effects.unit) {
    case Unit::scalar: return effects.has(trait::branch) ? Class::branch : Class::scalar;
    case Unit::scalar_memory: return Class::scalar_memory;
    case Unit::vector: return Class::vector;
    case Unit::transcendental: return Class::transcendental;
    case Unit::matrix: return Class::matrix;
    case Unit::lds: return Class::lds;
    case Unit::vector_memory: return Class::vector_memory;
    case Unit::flat: return Class::flat;
    case Unit::other: break;
  }
  if (inst.op == Op::s_waitcnt) return Class::waitcnt;
  if (inst.op == Op::s_barrier) return Class::barrier;
  return effects.has(trait::branch) ? Class::branch : Class::other;
}

bool is_vector(const Effects& effects) { return effects.unit >= Unit::vector; }

// Bytes of the LDS instructions whose address comes from M0, for which effects_of() has no access.
uint32_t unaddressed_lds_bytes(Op op, uint32_t active) {
  switch (op) {
    case Op::ds_append: case Op::ds_consume: return 4;
    case Op::ds_read_addtid_b32: case Op::ds_write_addtid_b32: return 4 * active;
    default: return 0;
  }
}

struct Bytes {
  uint64_t read = 0, written = 0, atomic = 0;

  void add(uint64_t bytes, const MemoryAccess& access, bool is_store) {
    if (access.reads && access.writes) atomic += bytes;
    else if (access.writes || is_store) written += bytes;
    else read += bytes;
  }
  std::string text() const {
    return JsonObject().add("read", read).add("written", written).add("atomic", atomic).text();
  }
};

std::string occupancy(const Launch& launch) {
  const Kernel& kernel = *launch.dispatch.kernel;
  const uint64_t waves = (launch.workgroup_size + lanes - 1) / lanes;
  const int registers = kernel.all_vector_registers();
  const device::Occupancy fits(int(waves), registers, launch.lds_bytes);
  return JsonObject()
      .add("registers", uint64_t(registers))
      .add("lds_bytes", uint64_t(launch.lds_bytes))
      .add("scratch_bytes", uint64_t(kernel.scratch_bytes))
      .add("waves_per_workgroup", waves)
      .add("workgroups_by_wave_slots", uint64_t(fits.by_wave_slots))
      .add("workgroups_by_registers", uint64_t(fits.by_registers))
      .add("workgroups_by_lds", uint64_t(fits.by_lds))
      .text();
}

}  // namespace

void Statistics::Count::add(const Count& other) {
  executed += other.executed;
  active_lanes += other.active_lanes;
  global_bytes += other.global_bytes;
  lds_bytes += other.lds_bytes;
  scratch_bytes += other.scratch_bytes;
  lds_clocks += other.lds_clocks;
  conflict_clocks += other.conflict_clocks;
}

void Statistics::add(const Statistics& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i].add(other.counts_[i]);
}

void Statistics::count_vector_memory(Wave& wave, const Instruction& inst, const Effects& effects, Count& count) const {
  const uint64_t exec = wave.exec(), active = uint64_t(__builtin_popcountll(exec));
  const uint64_t bytes = effects.memory.bytes;
  if (effects.to_lds) count.lds_bytes += 4 * active;
  switch (inst.family) {
    case Family::SCRATCH: count.scratch_bytes += bytes * active; return;
    case Family::GLOBAL: count.global_bytes += bytes * active; return;
    case Family::FLAT: {
      uint64_t addresses[lanes];
      global_addresses(wave, inst, addresses);
      for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
        const uint64_t address = addresses[__builtin_ctzll(rest)];
        uint64_t& kind = in_aperture(address, shared_aperture)    ? count.lds_bytes
                         : in_aperture(address, private_aperture) ? count.scratch_bytes
                                                                  : count.global_bytes;
        kind += bytes;
      }
      return;
    }
    default: break;
  }
  const bool moves_data = effects.is_load || effects.is_store;
  if (!moves_data) return;  // cache control
  const uint64_t wanted = bytes != 0 ? bytes : element_bytes(wave, inst);
  const BufferOperands operands(wave, inst);
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1)
    count.global_bytes += std::min(wanted, operands.position(__builtin_ctzll(rest)).in_bounds);
}

void Statistics::count(Wave& wave, const Instruction& inst, const Effects& effects) {
  Count& count = counts_[wave.pc];
  ++count.executed;
  if (!is_vector(effects)) {
    if (effects.unit == Unit::scalar_memory && (effects.is_load || effects.is_store) && inst.src[0].dwords != 0)
      count.global_bytes += 4u * inst.dst.dwords;
    return;
  }
  const auto active = uint32_t(__builtin_popcountll(effects.unit == Unit::matrix ? ~0ull : wave.exec()));
  count.active_lanes += active;
  if (effects.unit == Unit::vector_memory || effects.unit == Unit::flat)
    return count_vector_memory(wave, inst, effects, count);
  if (effects.unit != Unit::lds) return;
  const timing::BankClocks clocks = timing::bank_clocks(wave, inst, effects.memory);
  count.lds_clocks += clocks.all;
  count.conflict_clocks += clocks.conflicts;
  const uint32_t addressed = effects.memory.parts * effects.memory.bytes * active;
  count.lds_bytes += addressed != 0 ? addressed : unaddressed_lds_bytes(inst.op, active);
}

std::string Statistics::record(const Launch& launch) const {
  uint64_t by_class[size_t(Class::count)] = {};
  std::map<std::string, uint64_t> matrix_instructions;
  uint64_t instructions = 0, operations = 0, vector_instructions = 0;
  Bytes global, scalar, lds, scratch;
  Count all;
  std::string listing;
  const int64_t entry = int64_t(launch.dispatch.kernel->entry - launch.dispatch.kernel->code_begin);
  for (size_t pc = 0; pc < counts_.size(); ++pc) {
    const Count& count = counts_[pc];
    if (count.executed == 0) continue;
    const Instruction& inst = launch.code->instructions[pc];
    const Effects& effects = launch.effects[pc];
    instructions += count.executed;
    by_class[size_t(class_of(inst, effects))] += count.executed;
    if (is_vector(effects)) vector_instructions += count.executed;
    if (effects.unit == Unit::matrix) {
      matrix_instructions[mnemonic(inst.op)] += count.executed;
      operations += count.executed * matrix_shape(inst.op)->operations();
    }
    const bool is_scalar = effects.unit == Unit::scalar_memory;
    (is_scalar ? scalar : global).add(count.global_bytes, effects.memory, effects.is_store);
    scratch.add(count.scratch_bytes, effects.memory, effects.is_store);
    if (effects.to_lds) lds.written += count.lds_bytes;
    else lds.add(count.lds_bytes, effects.memory, effects.is_store);
    all.add(count);
    JsonObject line;
    line.add("offset", double(4 * int64_t(pc) - entry)).add("executed", count.executed);
    line.add("global_bytes", count.global_bytes).add("lds_bytes", count.lds_bytes);
    line.add("scratch_bytes", count.scratch_bytes).add("lds_conflict_clocks", count.conflict_clocks);
    listing += (listing.empty() ? "" : ", ") + line.text();
  }
  JsonObject classes, matrices;
  for (size_t i = 0; i < size_t(Class::count); ++i) classes.add(class_names[i], by_class[i]);
  for (const auto& [name, count] : matrix_instructions) matrices.add(name, count);
  return JsonObject()
      .add("name", JsonObject::quoted(launch.dispatch.kernel->name))
      .add("grid", json_of(launch.dispatch.grid))
      .add("block", json_of(launch.dispatch.block))
      .add("instructions", instructions)
      .add("by_class", classes.text())
      .add("vector_instructions", vector_instructions)
      .add("active_lanes", all.active_lanes)
      .add("matrix_instructions", matrices.text())
      .add("matrix_operations", operations)
      .add("global_bytes", global.text())
      .add("scalar_bytes", scalar.text())
      .add("lds_bytes", lds.text())
      .add("scratch_bytes", scratch.text())
      .add("lds_clocks", all.lds_clocks)
      .add("lds_conflict_clocks", all.conflict_clocks)
      .add("occupancy", occupancy(launch))
      .add("listing", "[" + listing + "]")
      .text();
}

}  // namespace mi300x

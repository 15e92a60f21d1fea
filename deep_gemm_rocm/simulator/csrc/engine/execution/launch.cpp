#include "launch.h"

#include <cstdio>

#include "../isa/disassembler.h"

namespace mi300x {

Launch::Launch(const Dispatch& d, std::shared_ptr<const Code> decoded, Settings chosen)
    : dispatch(d), code(std::move(decoded)), settings(std::move(chosen)) {
  const Kernel& kernel = *d.kernel;
  lds_bytes = kernel.lds_bytes + d.dynamic_lds;
  workgroup_size = d.block.x * d.block.y * d.block.z;
  workgroups = uint64_t(d.grid.x) * d.grid.y * d.grid.z;
  packet.workgroup_size_x = uint16_t(d.block.x);
  packet.workgroup_size_y = uint16_t(d.block.y);
  packet.workgroup_size_z = uint16_t(d.block.z);
  packet.grid_size_x = d.grid.x * d.block.x;
  packet.grid_size_y = d.grid.y * d.block.y;
  packet.grid_size_z = d.grid.z * d.block.z;
  packet.private_segment_size = kernel.scratch_bytes;
  packet.group_segment_size = lds_bytes;
  packet.kernel_object = kernel.entry;
  packet.kernarg_address = reinterpret_cast<uint64_t>(d.kernarg);
  memory.assign(d.memory, d.memory + d.memory_count);
  add_memory(d.kernarg, (size_t(kernel.kernarg_bytes) + 63) / 64 * 64);
  add_memory(&packet, sizeof packet);
  add_memory(queue, sizeof queue);
  memory.push_back({kernel.code_begin, kernel.code_end});
  if (d.host) memory.push_back(d.host->memory());
  if (settings.sanitize || settings.timing || d.counters || d.trace || d.debugger) effects = code->effects();
  if (d.counters) statistics.emplace(code->instructions.size());
  if (d.trace) wave_trace.emplace(*d.trace, kernel, d.traced);
  if (settings.sanitize && workgroups > 1) global_watch.emplace(d.memory, d.memory_count);
}

void Launch::add_memory(const void* begin, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(begin);
  if (bytes) memory.push_back({address, address + bytes});
}

void Launch::finish_records() {
  if (!statistics) return;
  const std::string record = statistics->record(*this);
  dispatch.counters->add(record.data(), record.size());
}

bool Launch::is_debugged(const Workgroup& group) const {
  if (dispatch.debugger == nullptr) return false;
  const Dim3 id = dispatch.debugger->workgroup();
  return id.x == group.id.x && id.y == group.id.y && id.z == group.id.z;
}

bool Launch::debug(Wave& wave, const char* failure) const {
  if (!is_debugged(*wave.group) || wave.index_in_group != dispatch.debugger->wave()) return true;
  StoppedWave view;
  view.offset = failure ? outcome.offset : 4 * wave.pc;
  if (!failure && !dispatch.debugger->wants(view.offset)) return true;
  view.executed = wave.instructions;
  view.scalars = wave.sgpr;
  view.scalar_count = 128;
  view.vectors = wave.row(0);
  view.vector_count = uint32_t(dispatch.kernel->vector_registers());
  view.accumulators = wave.row(accumulator_row);
  view.accumulator_count = uint32_t(dispatch.kernel->accumulators());
  view.scc = wave.scc;
  view.mode = wave.mode.bits;
  view.lds = wave.group->lds.data();
  view.lds_bytes = wave.group->lds_bytes;
  view.scratch = wave.scratch;
  view.scratch_bytes = wave.scratch_bytes;
  view.failure = failure;
  return dispatch.debugger->stop(view);
}

void Launch::report(Wave& wave, const Instruction* inst) {
  stop = true;
  std::lock_guard<std::mutex> lock(outcome_mutex);
  if (outcome.status != Outcome::Status::ok) return;
  outcome.status = wave.failure;
  outcome.address = wave.failed_address;
  outcome.other_offset = wave.failed_other_offset;
  const Dim3& id = wave.group->id;
  const uint64_t offset = inst ? uint64_t(inst - code->instructions.data()) * 4 : 0;
  if (inst) outcome.offset = offset;
  // Functions that a kernel calls may lie before it.
  const uint64_t from_entry = dispatch.kernel->code_begin + offset - dispatch.kernel->entry;
  snprintf(outcome.message, sizeof outcome.message,
           "kernel %s: %s; at %s, offset 0x%llx from the start of the code (%s from the kernel's entry), "
           "workgroup (%u, %u, %u), wave %u",
           dispatch.kernel->name, wave.message.c_str(), inst ? describe(*inst).c_str() : "its start",
           static_cast<unsigned long long>(offset),
           signed_hexadecimal(int64_t(from_entry)).c_str(), id.x, id.y, id.z, wave.index_in_group);
  if (wave.failure != Outcome::Status::interrupted) debug(wave, outcome.message);
}

}  // namespace mi300x

#include "compute_unit.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mi300x::timing {
namespace {

constexpr double unknown = std::numeric_limits<double>::infinity();

uint64_t up(double time) { return uint64_t(std::ceil(time)); }

// Scratch lies beyond all other addresses.
constexpr uint64_t scratch_space = 1ull << 56;

bool overlap(const RegisterRange& a, const RegisterRange& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

}  // namespace

ComputeUnit::ComputeUnit(uint32_t number, const Constants& constants, Launch& launch, const std::vector<Plan>& plans,
                         const AddressSpace& addresses)
    : number_(number),
      constants_(constants),
      launch_(launch),
      plans_(plans),
      addresses_(addresses),
      simds_(size_t(constants.cu_simds)),
      l1_(constants.l1_bytes, line_bytes, constants.l1_ways),
      scalar_cache_(constants.scalar_cache_bytes, scalar_line_bytes, constants.scalar_cache_ways) {
  const auto rounded = [](uint32_t value, double granule) {
    return uint32_t(std::ceil(value / granule) * granule);
  };
  waves_of_group_ = (launch.workgroup_size + lanes - 1) / lanes;
  const auto registers = uint32_t(launch.dispatch.kernel->all_vector_registers());
  registers_of_wave_ = rounded(registers, constants.cu_register_granule);
  lds_of_group_ = rounded(launch.lds_bytes, constants.cu_lds_granule);
  counters_.by_instruction.resize(plans.size());
  if (launch.statistics) statistics_.emplace(plans.size());
  if (launch.settings.timeline_cu != Settings::no_timeline) {
    timeline_.emplace();
    timeline_->shows_waves = launch.settings.timeline_cu == number;
  }
}

// ---- Workgroups ----

// The SIMD of each wave of a workgroup, empty where it doesn't fit. Waves go to the SIMDs in turn, from the emptiest
// on.
std::vector<uint32_t> ComputeUnit::placement() const {
  if (lds_used_ + lds_of_group_ > constants_.cu_lds_bytes) return {};
  std::vector<size_t> waves;
  std::vector<uint32_t> registers, result;
  size_t first = 0;
  for (size_t i = 0; i < simds_.size(); ++i) {
    waves.push_back(simds_[i].slots.size());
    registers.push_back(simds_[i].registers);
    if (waves[i] < waves[first]) first = i;
  }
  for (uint32_t wave = 0; wave < waves_of_group_; ++wave) {
    bool placed = false;
    for (size_t attempt = 0; attempt < simds_.size() && !placed; ++attempt) {
      const size_t simd = (first + wave + attempt) % simds_.size();
      if (waves[simd] + 1 > constants_.cu_waves_per_simd) continue;
      if (registers[simd] + registers_of_wave_ > constants_.cu_registers) continue;
      ++waves[simd];
      registers[simd] += registers_of_wave_;
      result.push_back(uint32_t(simd));
      placed = true;
    }
    if (!placed) return {};
  }
  return result;
}

bool ComputeUnit::has_room() const { return !placement().empty(); }

std::unique_ptr<ComputeUnit::Group> ComputeUnit::new_group() {
  auto group = std::make_unique<Group>();
  group->runner = std::make_unique<WorkgroupRunner>(launch_);
  if (statistics_) group->runner->count_into(&*statistics_);
  const uint64_t scratch_bytes = uint64_t(launch_.dispatch.kernel->scratch_bytes) * lanes;
  const uint64_t wave_slots = simds_.size() * uint64_t(constants_.cu_waves_per_simd);
  const uint64_t waves_before = number_ * wave_slots + groups_.size() * waves_of_group_;
  for (uint32_t i = 0; i < waves_of_group_; ++i) {
    group->traces.emplace_back(addresses_, scratch_space + (waves_before + i) * scratch_bytes);
    group->slots.push_back(std::make_unique<Slot>());
  }
  group->runner->trace_into(group->traces.data());
  return group;
}

void ComputeUnit::start_workgroup(uint64_t id, uint64_t time) {
  auto free = std::find_if(groups_.begin(), groups_.end(), [](const auto& group) { return !group->resident; });
  if (free == groups_.end()) {
    groups_.push_back(new_group());
    free = groups_.end() - 1;
  }
  Group& group = **free;
  group.simd_of_wave = placement();
  group.runner->start(id);
  group.id = id;
  group.started = time;
  group.resident = true;
  group.alive = waves_of_group_;
  group.waiting = 0;
  lds_used_ += lds_of_group_;
  ++resident_;
  for (uint32_t i = 0; i < waves_of_group_; ++i) {
    Slot& slot = *group.slots[i];
    slot.group = &group;
    slot.wave = group.runner->waves()[i].get();
    slot.wave->clock = &now_;
    slot.trace = &group.traces[i];
    slot.trace->clear();
    slot.next = slot.last_issue = slot.started = time;
    slot.age = ages_++;
    slot.stall = Stall::count;
    slot.priority = 0;
    slot.at_barrier = false;
    slot.memory.head = slot.memory.tail = slot.local.head = slot.local.tail = 0;
    slot.matrix_until = 0;
    Simd& simd = simds_[group.simd_of_wave[i]];
    simd.slots.push_back(&slot);
    simd.registers += registers_of_wave_;
    simd.next = std::min(simd.next, time);
  }
}

void ComputeUnit::end_wave(Slot& slot, uint64_t now) {
  Group& group = *slot.group;
  const uint32_t index = slot.wave->index_in_group;
  Simd& simd = simds_[group.simd_of_wave[index]];
  simd.slots.erase(std::find(simd.slots.begin(), simd.slots.end(), &slot));
  simd.registers -= registers_of_wave_;
  counters_.wave_clocks += now - slot.started;
  last_end_ = std::max(last_end_, now);
  --group.alive;
  if (group.alive != 0) {
    if (group.waiting == group.alive) open_barrier(group);
    return;
  }
  group.resident = false;
  --resident_;
  lds_used_ -= lds_of_group_;
  ended_.push_back(now);
  if (timeline_) timeline_->residences.push_back({group.id, group.started, now, number_});
  for (const auto& wave : group.runner->waves()) launch_.instructions += wave->instructions;
}

// ---- Time ----

void ComputeUnit::run(uint64_t end) {
  horizon_ = end;
  for (;;) {
    // Each SIMD issues every fourth clock, at a phase of its own.
    uint32_t first = 0;
    uint64_t time = never;
    for (uint32_t i = 0; i < simds_.size(); ++i) {
      if (simds_[i].next == never) continue;
      const uint64_t period = simds_.size(), phase = i;
      const uint64_t next = (simds_[i].next + period - 1 - phase) / period * period + phase;
      if (next < time) time = next, first = i;
    }
    if (time >= end) return;
    now_ = time;
    turn(first, time);
    if (launch_.stop) return;
  }
}

void ComputeUnit::turn(uint32_t number, uint64_t now) {
  Simd& simd = simds_[number];
  Slot* order[16];
  size_t count = 0;
  for (Slot* slot : simd.slots) {
    if (slot->next > now) continue;
    size_t place = count++;
    for (; place > 0 && order[place - 1]->priority < slot->priority; --place) order[place] = order[place - 1];
    order[place] = slot;
  }
  uint8_t used = 0;
  for (size_t i = 0; i < count; ++i) try_issue(number, *order[i], now, used);
  simd.next = never;
  for (const Slot* slot : simd.slots) simd.next = std::min(simd.next, std::max(slot->next, now + 1));
}

bool ComputeUnit::hold(Slot& slot, Stall why, uint64_t now, uint64_t until) {
  end_stall(slot, now);
  slot.stall = why;
  slot.stalled_since = now;
  slot.next = std::max(until, now + 1);
  return false;
}

void ComputeUnit::end_stall(Slot& slot, uint64_t now) {
  if (slot.stall == Stall::count) return;
  counters_.stalls[size_t(slot.stall)] += now - slot.stalled_since;
  show(slot, slot.stalled_since, now, -1, slot.stall);
}

void ComputeUnit::show(const Slot& slot, uint64_t begin, uint64_t end, int64_t pc, Stall stall) {
  if (!timeline_ || !timeline_->shows_waves) return;
  const uint32_t wave = slot.wave->index_in_group;
  timeline_->add({slot.group->id, begin, end, wave, slot.group->simd_of_wave[wave], pc, stall});
}

void ComputeUnit::issued(Slot& slot, uint64_t now, uint64_t next) {
  end_stall(slot, now);
  slot.stall = Stall::count;
  show(slot, now, std::min(next, now + 64 * simds_.size()), slot.trace->front().pc, Stall::count);
  InstructionCounters& counters = counters_.by_instruction[slot.trace->front().pc];
  ++counters.executed;
  counters.clocks += now - slot.last_issue;
  slot.last_issue = now;
  slot.next = next;
  slot.trace->pop();
}

// Wait states after matrix instructions, from LLVM's hazard recognizer; each is four clocks. A matrix instruction whose
// C is exactly the earlier result needs none (two after a two-pass one).
uint64_t ComputeUnit::matrix_result_time(const Slot& slot, const Plan& plan) const {
  const Effects& effects = *plan.effects;
  const bool is_matrix = plan.kind == Plan::Kind::matrix;
  uint64_t latest = 0;
  for (const MatrixWrite& write : slot.matrix) {
    if (write.expires <= now_) continue;
    const auto need = [&](uint32_t states) {
      latest = std::max(latest, write.time + uint64_t(constants_.matrix_clocks_per_pass) * (states + 1));
    };
    for (size_t i = 0; i < effects.reads.size(); ++i) {
      if (!overlap(effects.reads[i], write.range)) continue;
      if (!is_matrix || i != 2) need(write.passes + 3u);
      else if (!(effects.reads[i] == write.range)) need(write.passes + 1u);
      else if (write.passes == 2) need(2);
    }
    for (const RegisterRange& range : effects.writes)
      if (!is_matrix && overlap(range, write.range)) need(write.passes + 3u);
  }
  return latest;
}

bool ComputeUnit::try_issue(uint32_t number, Slot& slot, uint64_t now, uint8_t& used) {
  while (slot.trace->empty()) {
    if (launch_.stop || slot.wave->state != Wave::State::running) return hold(slot, Stall::issue, now, never);
    slot.group->runner->run_turn(*slot.wave);
  }
  const Step step = slot.trace->front();
  const Plan& plan = plans_[step.pc];
  if (slot.matrix_until > now) {
    const uint64_t ready = matrix_result_time(slot, plan);
    if (ready > now) return hold(slot, Stall::matrix_result, now, ready);
  }
  const uint8_t port = port_of(plan.kind);
  if (used & port) return hold(slot, Stall::issue, now, now + simds_.size());
  if (!issue(number, slot, step, plan, now)) return false;
  used |= port;
  return true;
}

uint8_t ComputeUnit::port_of(Plan::Kind kind) {
  switch (kind) {
    case Plan::Kind::branch: return port_branch;
    case Plan::Kind::scalar: case Plan::Kind::scalar_memory: return port_scalar;
    case Plan::Kind::vector: case Plan::Kind::matrix: return port_vector;
    case Plan::Kind::lds: return port_lds;
    case Plan::Kind::vector_memory: return port_memory;
    default: return 0;
  }
}

bool ComputeUnit::issue(uint32_t number, Slot& slot, const Step& step, const Plan& plan, uint64_t now) {
  const uint64_t turn_clocks = simds_.size();
  const auto for_clocks = [&](uint64_t clocks) {
    issued(slot, now, now + std::max(turn_clocks, clocks));
    return true;
  };
  switch (plan.kind) {
    case Plan::Kind::nop: return for_clocks(turn_clocks * ((plan.argument & 15u) + 1));
    case Plan::Kind::sleep: return for_clocks(uint64_t(constants_.cu_sleep_clocks) * (plan.argument & 127));
    case Plan::Kind::priority: slot.priority = plan.argument & 3; return for_clocks(turn_clocks);
    case Plan::Kind::wait: return wait(slot, plan, now);
    case Plan::Kind::barrier: return arrive(slot, now);
    case Plan::Kind::end: issued(slot, now, never); end_wave(slot, now); return true;
    case Plan::Kind::branch: issued(slot, now, now + uint64_t(constants_.cu_branch_clocks)); return true;
    case Plan::Kind::scalar: return for_clocks(uint64_t(constants_.alu_scalar_clocks));
    case Plan::Kind::scalar_memory: return issue_scalar_memory(slot, step, plan, now);
    case Plan::Kind::vector: return issue_vector(simds_[number], slot, plan, now);
    case Plan::Kind::matrix: return issue_matrix(simds_[number], slot, plan, now);
    case Plan::Kind::lds: return issue_lds(number, slot, step, plan, now);
    case Plan::Kind::vector_memory: return issue_memory(slot, step, plan, now);
  }
  return false;
}

bool ComputeUnit::issue_vector(Simd& simd, Slot& slot, const Plan& plan, uint64_t now) {
  if (simd.vector_free > now) return hold(slot, Stall::vector_busy, now, simd.vector_free);
  simd.vector_free = now + plan.clocks;
  issued(slot, now, now + simds_.size());
  return true;
}

bool ComputeUnit::issue_matrix(Simd& simd, Slot& slot, const Plan& plan, uint64_t now) {
  if (simd.vector_free > now) return hold(slot, Stall::vector_busy, now, simd.vector_free);
  if (simd.matrix_free > now) return hold(slot, Stall::matrix_busy, now, simd.matrix_free);
  simd.vector_free = now + uint64_t(constants_.matrix_issue_clocks);
  simd.matrix_free = now + plan.clocks;
  MatrixWrite& write = slot.matrix[slot.matrix_next++ % slot.matrix.size()];
  write = {plan.effects->writes[0], now, now + 4 * (plan.passes + 4u), plan.passes};
  slot.matrix_until = std::max(slot.matrix_until, write.expires);
  issued(slot, now, now + simds_.size());
  return true;
}

// ---- Waits ----

uint64_t ComputeUnit::end_of(const TransferQueue& queue, size_t keep) {
  double last = 0;
  for (size_t i = queue.head; i + keep < queue.tail; ++i) {
    const Transfer& transfer = queue.ring[i % TransferQueue::capacity];
    if (transfer.outstanding != 0) return never;
    last = std::max(last, transfer.done);
  }
  return up(last);
}

void ComputeUnit::retire(TransferQueue& queue, uint64_t now) {
  while (queue.size() > 0) {
    const Transfer& transfer = queue.ring[queue.head % TransferQueue::capacity];
    if (transfer.outstanding != 0 || transfer.done > double(now)) return;
    ++queue.head;
  }
}

bool ComputeUnit::make_room(Slot& slot, TransferQueue& queue, size_t limit, Stall why, uint64_t now) {
  retire(queue, now);
  if (queue.size() < limit) return true;
  return hold(slot, why, now, std::min(end_of(queue, limit - 1), horizon_));
}

bool ComputeUnit::wait(Slot& slot, const Plan& plan, uint64_t now) {
  // vmcnt in bits 0..3 and 14..15, lgkmcnt in bits 8..11.
  const size_t memory_left = (plan.argument & 15u) | (plan.argument >> 14 & 3u) << 4;
  const size_t local_left = plan.argument >> 8 & 15u;
  const uint64_t memory = end_of(slot.memory, memory_left), local = end_of(slot.local, local_left);
  // The end of an unanswered request isn't known yet: tries again after the chip's next answers.
  if (memory > now) return hold(slot, Stall::wait_memory, now, std::min(memory, horizon_));
  if (local > now) return hold(slot, Stall::wait_local, now, std::min(local, horizon_));
  retire(slot.memory, now);
  retire(slot.local, now);
  issued(slot, now, now + uint64_t(constants_.cu_waitcnt_clocks));
  return true;
}

bool ComputeUnit::arrive(Slot& slot, uint64_t now) {
  Group& group = *slot.group;
  issued(slot, now, never);
  hold(slot, Stall::barrier, now, never);
  slot.at_barrier = true;
  ++group.waiting;
  if (group.waiting == group.alive) open_barrier(group);
  return true;
}

void ComputeUnit::open_barrier(Group& group) {
  group.waiting = 0;
  group.runner->open_barrier();
  for (auto& slot : group.slots) {
    if (!slot->at_barrier) continue;
    slot->at_barrier = false;
    slot->next = now_ + uint64_t(constants_.cu_barrier_clocks);
    Simd& simd = simds_[group.simd_of_wave[slot->wave->index_in_group]];
    simd.next = std::min(simd.next, slot->next);
  }
}

// ---- LDS ----

// Two SIMDs share a port for requests and one for results; all four share the banks.
bool ComputeUnit::issue_lds(uint32_t number, Slot& slot, const Step& step, const Plan& plan, uint64_t now) {
  constexpr size_t lgkm_limit = 15;
  if (!make_room(slot, slot.local, lgkm_limit, Stall::wait_local, now)) return false;
  const size_t pair = number / 2 % 2;
  if (lds_in_free_[pair] > double(now)) return hold(slot, Stall::local_queue, now, up(lds_in_free_[pair]));
  const double backlog = std::max(bank_free_, lds_out_free_[pair]) - double(now);
  if (backlog > constants_.lds_queue_clocks)
    return hold(slot, Stall::local_queue, now, now + up(backlog - constants_.lds_queue_clocks));

  const double port = constants_.lds_port_bytes, row = lanes * 4;
  const Effects& effects = *plan.effects;
  const double sent = (1 + (effects.is_store ? plan.dwords : 0)) * row / port;
  const double returned = effects.is_load ? std::max<double>(1, plan.dwords) * row / port : 0;
  lds_in_free_[pair] = double(now) + sent;
  const double start = std::max(double(now) + (effects.is_store ? sent : 0), bank_free_);
  bank_free_ = start + step.bank_clocks;
  double end = bank_free_;
  if (returned > 0) {
    lds_out_free_[pair] = std::max(start, lds_out_free_[pair]) + returned;
    end = std::max(end, lds_out_free_[pair]);
  }
  slot.local.push().done = end + constants_.lds_latency_clocks - constants_.cu_waitcnt_clocks;
  counters_.by_instruction[step.pc].busy += step.bank_clocks;
  counters_.lds_conflict_clocks += step.conflicts;
  issued(slot, now, now + simds_.size());
  return true;
}

// ---- Memory ----

void ComputeUnit::request(double time, uint64_t line, Transfer& transfer, Request kind, uint16_t bytes, bool merged) {
  requests_.push_back({time, line, &transfer, number_, bytes, kind, merged});
  ++transfer.outstanding;
  if (!merged) ++unanswered_;
}

// When a line's data are in the vector L1. Lines come in one after another. As with the fabric's links, time on the
// port is reserved in the order of the requests, not in that of their answers.
double ComputeUnit::filled(const LineRequest& request, double time) {
  if (request.kind != Request::load) return time;
  const double clocks = double(line_bytes) / constants_.l1_fill_bytes;
  const double waited = std::max(0.0, fill_free_ - request.time);
  fill_free_ = request.time + waited + clocks;
  return std::max(time, request.time + waited + constants_.l2_hit_clocks - constants_.l1_hit_clocks);
}

void ComputeUnit::answer(const LineRequest& request, double time) {
  Transfer& transfer = *request.transfer;
  if (!request.merged) time = filled(request, time);
  if (request.merged || request.kind == Request::load || request.kind == Request::scalar_load) {
    double* ready = (request.kind == Request::scalar_load ? scalar_cache_ : l1_).ready(request.line);
    if (request.merged && ready != nullptr) time = std::max(time, *ready);
    else if (ready != nullptr) *ready = time;
  }
  if (!request.merged) {
    const bool loads = request.kind == Request::load || request.kind == Request::scalar_load;
    const auto bytes = loads ? uint16_t(request.bytes_of_line()) : request.bytes;
    if (timeline_ && timeline_->shows_waves) timeline_->add({request.time, time, request.kind, bytes});
    --unanswered_;
    arrivals_.push(time);
  }
  transfer.done = std::max(transfer.done, time + transfer.tail);
  last_end_ = std::max(last_end_, up(transfer.done));
  --transfer.outstanding;
}

bool ComputeUnit::issue_memory(Slot& slot, const Step& step, const Plan& plan, uint64_t now) {
  constexpr size_t vm_limit = 63;
  const Constants& c = constants_;
  if (!make_room(slot, slot.memory, vm_limit, Stall::wait_memory, now)) return false;
  if (l1_free_ - double(now) > c.l1_queue_clocks)
    return hold(slot, Stall::memory_queue, now, up(l1_free_ - c.l1_queue_clocks));
  while (!arrivals_.empty() && arrivals_.top() <= double(now)) arrivals_.pop();
  const uint64_t under_way = unanswered_ + arrivals_.size();
  if (under_way != 0 && double(under_way + step.lines) > c.l1_outstanding_lines)
    return hold(slot, Stall::memory_queue, now, std::min(arrivals_.empty() ? never : up(arrivals_.top()), horizon_));

  const Effects& effects = *plan.effects;
  const double moved = std::max<double>(1, plan.dwords) * lanes * 4 / plan.l1_port_bytes;
  const double start = std::max(double(now), l1_free_);
  Transfer& transfer = slot.memory.push();
  const double row = lanes * 4 / c.l1_port_bytes;
  // Published latencies include the return from S_WAITCNT.
  transfer.tail = c.l1_hit_clocks - c.cu_waitcnt_clocks + (effects.is_load ? std::max(0.0, moved - row) : 0);
  const Request kind = !effects.is_store ? Request::load : effects.memory.reads ? Request::atomic : Request::store;
  for (uint16_t i = 0; i < step.lines; ++i) {
    const uint64_t line = slot.trace->lines()[i];
    const double looked_up = start + i / c.l1_tags_per_clock;
    if (kind != Request::load || plan.bypasses_l1) {
      request(looked_up, line, transfer, kind, step.bytes, false);
      continue;
    }
    const Cache::Result result = l1_.access(line);
    ++(result.hit ? counters_.l1_hits : counters_.l1_misses);
    if (!result.hit) {
      *result.ready = unknown;
      request(looked_up, line, transfer, kind, 0, false);
    } else if (*result.ready == unknown) {
      request(looked_up, line, transfer, kind, 0, true);
    } else {
      transfer.done = std::max(transfer.done, std::max(looked_up, *result.ready) + transfer.tail);
    }
  }
  transfer.done = std::max(transfer.done, start + transfer.tail);
  const double busy = std::max(step.lines / c.l1_tags_per_clock, moved);
  l1_free_ = start + busy;
  counters_.by_instruction[step.pc].busy += uint64_t(busy);
  // The wave goes on once a store's data have left the registers.
  issued(slot, now, now + simds_.size() * (effects.is_store ? 1 + plan.dwords : 1));
  return true;
}

bool ComputeUnit::issue_scalar_memory(Slot& slot, const Step& step, const Plan& plan, uint64_t now) {
  constexpr size_t lgkm_limit = 15;
  if (!make_room(slot, slot.local, lgkm_limit, Stall::wait_local, now)) return false;
  Transfer& transfer = slot.local.push();
  transfer.tail = constants_.scalar_cache_hit_clocks - constants_.cu_waitcnt_clocks;
  transfer.done = double(now) + transfer.tail;
  for (uint16_t i = 0; i < step.lines; ++i) {
    const uint64_t line = slot.trace->lines()[i];
    if (plan.effects->is_store) {
      const uint64_t l2_line = line * scalar_line_bytes / line_bytes;
      request(double(now), l2_line, transfer, Request::store, uint16_t(4 * plan.dwords), false);
      continue;
    }
    const Cache::Result result = scalar_cache_.access(line);
    if (!result.hit || *result.ready == unknown) {
      *result.ready = unknown;
      request(double(now), line, transfer, Request::scalar_load, 0, false);
    } else {
      transfer.done = std::max(transfer.done, std::max(double(now), *result.ready) + transfer.tail);
    }
  }
  issued(slot, now, now + simds_.size());
  return true;
}

}  // namespace mi300x::timing

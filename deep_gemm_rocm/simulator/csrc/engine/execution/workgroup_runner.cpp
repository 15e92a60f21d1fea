#include "workgroup_runner.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "interrupt.h"

namespace mi300x {
namespace {

// Instructions of a turn. Waves take turns, so that a wave that polls memory for another one's signal doesn't block the
// workgroup. Under the sanitizer, turns are shorter and their order is random, to expose programs that depend on the
// order of waves.
constexpr uint64_t longest_turn = 1 << 14;
constexpr uint64_t longest_random_turn = 256;

// Instructions of the longest loop that polls() recognises. Under the sanitizer, whose turns are short, only one of
// many turns is followed by that search.
constexpr uint64_t longest_poll = 256;
constexpr uint64_t random_rounds_before_search = 64;

bool is_vector(Family family) { return family >= Family::VOP1; }
bool is_vector_alu(Family family) { return is_vector(family) && family <= Family::VOP3P; }

// How far a wave runs ahead of its simulated time.
constexpr uint64_t longest_traced_turn = 256;

// True where the result depends on when the instruction executes: it reads a clock, or memory that other workgroups
// write meanwhile.
bool depends_on_time(const Instruction& inst, const Effects& effects) {
  if (inst.op == Op::s_memtime || inst.op == Op::s_memrealtime) return true;
  return effects.memory.atomic && (effects.unit == Unit::vector_memory || effects.unit == Unit::flat);
}

// GPR indexing: the instruction with shifted registers. A register that would be beyond the last one stays.
Instruction indexed(const Wave& wave, const Instruction& inst) {
  Instruction shifted = inst;
  const uint32_t offset = wave.m0() & 0xFF, selected = wave.m0() >> 12 & 15;
  Operand* operands[4] = {&shifted.src[0], &shifted.src[1], &shifted.src[2], &shifted.dst};
  for (int i = 0; i < 4; ++i) {
    if (!(selected >> i & 1) || operands[i]->kind != Operand::Kind::vector) continue;
    if (operands[i]->index + offset + operands[i]->dwords <= accumulator_row)
      operands[i]->index = uint16_t(operands[i]->index + offset);
  }
  return shifted;
}

constexpr int poison_byte = 0xFF;

// Spreads the seeds of neighbouring workgroups.
uint32_t random_seed(uint64_t seed, uint64_t workgroup) {
  return uint32_t((seed * 0x9E3779B97F4A7C15 + workgroup) * 0xD1342543DE82EF95 >> 32);
}

// USER_SGPR_COUNT of COMPUTE_PGM_RSRC2.
int user_scalars(const Kernel& kernel) { return int(kernel.compute_pgm_rsrc2 >> 1 & 31); }

std::string place_of(const Wave& wave) {
  const bool waits = wave.state == Wave::State::at_barrier;
  if (!waits && wave.state != Wave::State::running) return "ended";
  char text[64];
  const uint64_t offset = 4 * (wave.pc - (waits ? 1 : 0));  // S_BARRIER is one dword long
  snprintf(text, sizeof text, waits ? "at the s_barrier at offset 0x%llx" : "running at offset 0x%llx",
           static_cast<unsigned long long>(offset));
  return text;
}

void pass(Wave& wave, const Instruction& inst) {
  wave.pc += inst.size;
  ++wave.instructions;
}

void step(Wave& wave, const Instruction& inst) {
  pass(wave, inst);
  inst.handler(wave, inst);
}

// A wave's registers at some time; the vector registers only where `kernel` is given.
class RegisterCopy {
 public:
  RegisterCopy(Wave& wave, const Kernel* kernel) : scalars_(wave.sgpr, wave.sgpr + scalar_count), scc_(wave.scc) {
    if (kernel == nullptr) return;
    rows_ = {{0, kernel->vector_registers()}, {accumulator_row, kernel->accumulators()}};
    for (const Rows& rows : rows_) vectors_.insert(vectors_.end(), begin(wave, rows), begin(wave, rows) + size(rows));
  }

  bool is_state_of(Wave& wave) const {
    if (scc_ != wave.scc || memcmp(scalars_.data(), wave.sgpr, sizeof wave.sgpr) != 0) return false;
    const uint32_t* kept = vectors_.data();
    for (const Rows& rows : rows_) {
      if (memcmp(kept, begin(wave, rows), size(rows) * sizeof(uint32_t)) != 0) return false;
      kept += size(rows);
    }
    return true;
  }

 private:
  struct Rows {
    int first, count;
  };
  static const uint32_t* begin(Wave& wave, const Rows& rows) { return wave.row(rows.first); }
  static size_t size(const Rows& rows) { return size_t(rows.count) * lanes; }

  std::vector<uint32_t> scalars_, vectors_;
  std::vector<Rows> rows_;
  bool scc_;
};

}  // namespace

WorkgroupRunner::WorkgroupRunner(Launch& launch) : launch_(launch), memory_(launch.memory) {
  const uint32_t count = (launch.workgroup_size + lanes - 1) / lanes;
  const size_t scratch_bytes = size_t(launch.dispatch.kernel->scratch_bytes) * lanes;
  scratch_.resize(scratch_bytes * count);
  for (uint32_t i = 0; i < count; ++i) {
    waves_.push_back(std::make_unique<Wave>());
    waves_[i]->scratch = scratch_.data() + scratch_bytes * i;
    order_.push_back(waves_[i].get());
  }
  if (launch.settings.sanitize)
    checker_.emplace(count, launch.global_watch ? &*launch.global_watch : nullptr, launch.dispatch,
                     launch.code->instructions.size(), launch.settings.hazards_as_llvm);
}

WorkgroupRunner::~WorkgroupRunner() {
  if (wave_trace_) wave_trace_->finish();
}

WorkgroupRunner::Slice WorkgroupRunner::run(uint64_t most_instructions) {
  const uint64_t before = executed_instructions();
  Slice slice;
  for (uint64_t round = 1;; ++round) {
    const bool searches = !checker_ || round % random_rounds_before_search == 0;
    bool any_running = false, any_waiting = false, all_poll = true;
    if (checker_) std::shuffle(order_.begin(), order_.end(), random_);
    for (Wave* wave : order_) {
      if (wave->state == Wave::State::running) {
        run_turn(*wave);
        const bool sleeps = wave->sleeps;  // before polls() executes instructions
        const bool is_searched = searches || sleeps;
        const bool polls_memory = is_searched && polls(*wave);
        all_poll &= sleeps || polls_memory;
        slice.has_progressed |= is_searched && !polls_memory;
      }
      if (wave->state == Wave::State::failed) return {true};
      any_running |= wave->state == Wave::State::running;
      any_waiting |= wave->state == Wave::State::at_barrier;
    }
    slice.has_progressed |= !any_running;
    if (any_running) {
      slice.instructions = executed_instructions() - before;
      if (all_poll || slice.instructions >= most_instructions) return slice;
      continue;
    }
    slice.has_ended = true;
    if (postponed_ != nullptr) {
      launch_.report(*postponed_, &launch_.code->instructions[postponed_->pc]);
      return slice;
    }
    if (!any_waiting) break;
    slice.has_ended = false;
    open_barrier();
  }
  launch_.instructions += executed_instructions();
  return slice;
}

uint64_t WorkgroupRunner::executed_instructions() const {
  uint64_t sum = 0;
  for (const auto& wave : waves_) sum += wave->instructions;
  return sum;
}

// A wave that comes back to an instruction with the same registers will repeat itself until it loads another value.
// Most other loops are ruled out by the scalar registers alone.
bool WorkgroupRunner::polls(Wave& wave) {
  if (wave.state != Wave::State::running) return false;
  const uint64_t pc = wave.pc;
  for (const Kernel* vectors_of : {static_cast<const Kernel*>(nullptr), launch_.dispatch.kernel}) {
    const RegisterCopy before(wave, vectors_of);
    uint64_t executed = 0;
    do {
      if (executed++ == longest_poll) return false;
      execute(wave, 1);
      if (wave.state != Wave::State::running) return false;
    } while (wave.pc != pc);
    if (!before.is_state_of(wave)) return false;
  }
  return true;
}

void WorkgroupRunner::report_waiting(const std::string& message) {
  const auto polling = std::find_if(waves_.begin(), waves_.end(),
                                    [](const auto& wave) { return wave->state == Wave::State::running; });
  Wave& wave = **polling;
  wave.fail(Outcome::Status::deadlock, message + others(wave));
  launch_.report(wave, &launch_.code->instructions[wave.pc]);
}

// A barrier opens when every wave that hasn't ended has reached it.
void WorkgroupRunner::open_barrier() {
  if (checker_ && !check_barrier()) return;
  for (auto& wave : waves_)
    if (wave->state == Wave::State::at_barrier) wave->state = Wave::State::running;
  if (checker_) checker_->open_barrier();
}

// HIP requires that all waves reach a barrier; the hardware doesn't wait for those that have ended.
bool WorkgroupRunner::check_barrier() {
  Wave* waiting = nullptr;
  bool any_ended = false;
  for (auto& wave : waves_) {
    if (wave->state != Wave::State::at_barrier) any_ended = true;
    else if (waiting == nullptr) waiting = wave.get();
  }
  if (!any_ended) return true;
  waiting->fail(Outcome::Status::unsafe, "a barrier that not all waves reach" + others(*waiting));
  launch_.report(*waiting, &launch_.code->instructions[waiting->pc - 1]);
  return false;
}

bool WorkgroupRunner::watch(Wave& wave, const Instruction& inst, const Effects& effects, const Instruction& in_code) {
  if (traces_ && !traces_[wave.index_in_group].empty() && depends_on_time(inst, effects)) return false;
  if (is_debugged_ && !launch_.debug(wave)) {
    wave.fail(Outcome::Status::interrupted, "the debugger ended the launch");
    launch_.report(wave, &in_code);
    return false;
  }
  if (wave_trace_) wave_trace_->record(wave, inst, effects);
  if (checker_ && !checker_->before(wave, inst, effects, &inst != &in_code)) {
    // If another wave writes this LDS before the next barrier, that is reported, as the race that it is.
    if (traces_ == nullptr && checker_->may_lack_barrier(wave)) {
      wave.state = Wave::State::postponed;
      if (postponed_ == nullptr) postponed_ = &wave;
    } else {
      launch_.report(wave, &in_code);
    }
    return false;
  }
  if (statistics_) statistics_->count(wave, inst, effects);
  if (traces_) traces_[wave.index_in_group].record(wave, inst, effects);
  return true;
}

void WorkgroupRunner::run_turn(Wave& wave) {
  execute(wave, traces_    ? longest_traced_turn
                : checker_ ? 1 + random_() % longest_random_turn
                           : longest_turn);
}

void WorkgroupRunner::execute(Wave& wave, uint64_t most_instructions) {
  const Instruction* code = launch_.code->instructions.data();
  const uint8_t* needed = tally_ || launch_.needed.empty() ? nullptr : launch_.needed.data();
  wave.turn_end = std::min(wave.instructions + most_instructions, launch_.settings.max_instructions);
  wave.sleeps = false;
  apply_mode(wave.mode);
  while (wave.state == Wave::State::running && wave.instructions < wave.turn_end) {
    if (tally_) wave.pc = tally_->count(wave.pc);
    const Instruction& inst = code[wave.pc];
    if (wave.mode.bits & Mode::skips_vector && is_vector(inst.family)) {
      pass(wave, inst);
    } else if (wave.mode.bits & Mode::indexes_registers && is_vector_alu(inst.family)) {
      const Instruction shifted = indexed(wave, inst);
      if (watched_ && !watch(wave, shifted, effects_of(shifted), inst)) return;
      step(wave, shifted);
    } else {
      if (watched_ && !watch(wave, inst, launch_.effects[wave.pc], inst)) return;
      if (needed == nullptr || needed[wave.pc]) step(wave, inst);
      else pass(wave, inst);
    }
    if (wave.state == Wave::State::failed) return launch_.report(wave, &inst);
  }
  if (wave.instructions >= launch_.settings.max_instructions && wave.state == Wave::State::running) {
    wave.fail(Outcome::Status::deadlock, "a wave has executed " + std::to_string(wave.instructions) +
                                             " instructions without an end (limit: DG_SIM_MAX_INSTRUCTIONS)" +
                                             others(wave));
    launch_.report(wave, &code[wave.pc]);
  }
  if (InterruptWatch::interrupted() && wave.state == Wave::State::running) {
    wave.fail(Outcome::Status::interrupted, "interrupted");
    launch_.report(wave, &code[wave.pc]);
  }
  if (launch_.stop) wave.state = Wave::State::failed;
}

std::string WorkgroupRunner::others(const Wave& wave) const {
  std::map<std::string, std::string> waves_by_place;
  for (const auto& other : waves_) {
    if (other.get() == &wave) continue;
    std::string& numbers = waves_by_place[place_of(*other)];
    numbers += (numbers.empty() ? "" : ", ") + std::to_string(other->index_in_group);
  }
  std::string text;
  for (const auto& [place, numbers] : waves_by_place) text += "; " + place + ": wave " + numbers;
  return text;
}

void WorkgroupRunner::count_into(Statistics* statistics) {
  statistics_ = statistics;
  set_watched();
}

void WorkgroupRunner::set_watched() { watched_ = checker_ || traces_ || statistics_ || wave_trace_ || is_debugged_; }

void WorkgroupRunner::start(uint64_t id) {
  const Dim3& grid = launch_.dispatch.grid;
  group_.flat_id = uint32_t(id);
  group_.id = {uint32_t(id % grid.x), uint32_t(id / grid.x % grid.y), uint32_t(id / grid.x / grid.y)};
  group_.lds_bytes = launch_.lds_bytes;
  memset(group_.lds.data(), poison_byte, group_.lds_bytes);
  for (uint32_t i = 0; i < waves_.size(); ++i) start_wave(*waves_[i], i);
  wave_trace_ = launch_.wave_trace && launch_.wave_trace->is_in(group_) ? &*launch_.wave_trace : nullptr;
  is_debugged_ = launch_.is_debugged(group_);
  set_watched();
  postponed_ = nullptr;
  if (!checker_) return;
  checker_->start_workgroup(waves_, *launch_.dispatch.kernel, launch_scalars_);
  random_.seed(random_seed(launch_.settings.seed, id));
}

void WorkgroupRunner::start_wave(Wave& wave, uint32_t index) {
  const Kernel& kernel = *launch_.dispatch.kernel;
  wave.group = &group_;
  wave.memory = &memory_;
  wave.host = launch_.dispatch.host;
  wave.index_in_group = index;
  wave.scratch_bytes = kernel.scratch_bytes;
  wave.state = Wave::State::running;
  wave.failure = Outcome::Status::ok;
  wave.scc = false;
  wave.instructions = 0;
  wave.clock = &wave.instructions;
  wave.trap_status = 0;
  wave.code_begin = kernel.code_begin;
  wave.code_dwords = (kernel.code_end - kernel.code_begin) / 4;
  wave.pc = (kernel.first_instruction() - kernel.code_begin) / 4;
  // COMPUTE_PGM_RSRC1: FLOAT_MODE in bits 12..19, DX10_CLAMP 21, IEEE_MODE 23, FP16_OVFL 26.
  const uint32_t rsrc1 = kernel.compute_pgm_rsrc1;
  wave.mode.bits = (rsrc1 >> 12 & 0xFF) | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9 | (rsrc1 >> 26 & 1) << 23;
  poison_registers(wave);
  set_scalar_registers(wave);
  set_vector_registers(wave, index);
}

// Registers that code never wrote hold NaNs (f16, bf16, f32, f64), the lowest value (fp8) and wild addresses.
void WorkgroupRunner::poison_registers(Wave& wave) {
  const Kernel& kernel = *launch_.dispatch.kernel;
  constexpr size_t row_bytes = lanes * sizeof(uint32_t);
  memset(wave.row(0), poison_byte, size_t(kernel.vector_registers()) * row_bytes);
  memset(wave.row(accumulator_row), poison_byte, size_t(kernel.accumulators()) * row_bytes);
  memset(wave.sgpr, poison_byte, sizeof wave.sgpr);
}

// The order and the enabling bits are those of LLVM AMDGPU usage, "SGPR register set up order".
void WorkgroupRunner::set_scalar_registers(Wave& wave) {
  const Kernel& kernel = *launch_.dispatch.kernel;
  const uint16_t properties = kernel.kernel_code_properties;
  const auto enabled = [&](int bit) { return properties >> bit & 1; };
  int next = 0;
  const auto push_address = [&](const void* pointer) {
    wave.set_pair(next, reinterpret_cast<uint64_t>(pointer));
    next += 2;
  };
  if (enabled(0)) next += 4;  // private segment buffer: scratch is addressed by SCRATCH_* instructions here
  if (enabled(1)) push_address(&launch_.packet);
  if (enabled(2)) push_address(launch_.queue);
  if (enabled(3)) push_address(launch_.dispatch.kernarg);
  if (enabled(4)) push_address(nullptr);  // dispatch id
  if (enabled(5)) push_address(nullptr);  // flat scratch init
  if (enabled(6)) wave.sgpr[next++] = kernel.scratch_bytes;
  if (next < user_scalars(kernel)) preload_arguments(wave, next);
  next = user_scalars(kernel);
  if (kernel.compute_pgm_rsrc2 >> 7 & 1) wave.sgpr[next++] = group_.id.x;
  if (kernel.compute_pgm_rsrc2 >> 8 & 1) wave.sgpr[next++] = group_.id.y;
  if (kernel.compute_pgm_rsrc2 >> 9 & 1) wave.sgpr[next++] = group_.id.z;
  if (kernel.compute_pgm_rsrc2 >> 10 & 1) wave.sgpr[next++] = 0;  // workgroup info
  launch_scalars_ = next;
  wave.set_pair(sgpr_flat_scratch, 0);  // FLAT_SCRATCH: scratch offsets are relative to the wave's own scratch
  wave.set_vcc(0);
  wave.sgpr[sgpr_m0] = 0;
}

void WorkgroupRunner::preload_arguments(Wave& wave, int first) {
  const Kernel& kernel = *launch_.dispatch.kernel;
  const uint32_t begin = std::min(4 * kernel.preload_offset(), kernel.kernarg_bytes);
  const uint32_t room = 4 * uint32_t(user_scalars(kernel) - first);
  const uint32_t bytes = std::min({4 * kernel.preloaded_dwords(), kernel.kernarg_bytes - begin, room});
  memcpy(&wave.sgpr[first], static_cast<const uint8_t*>(launch_.dispatch.kernarg) + begin, bytes);
}

// v0 holds the work-item ids x, y and z in ten bits each.
void WorkgroupRunner::set_vector_registers(Wave& wave, uint32_t index) {
  const Dim3& block = launch_.dispatch.block;
  const uint32_t first = index * lanes;
  const uint32_t active = std::min<uint32_t>(lanes, launch_.workgroup_size - first);
  wave.set_exec(active == lanes ? ~0ull : (1ull << active) - 1);
  uint32_t x = first % block.x, y = first / block.x % block.y, z = first / block.x / block.y;
  for (uint32_t lane = 0; lane < active; x = 0) {
    const uint32_t run = std::min(active - lane, block.x - x);
    for (uint32_t i = 0; i < run; ++i) wave.row(0)[lane + i] = (x + i) | y << 10 | z << 20;
    lane += run;
    if (++y < block.y) continue;
    y = 0;
    ++z;
  }
}

}  // namespace mi300x

// The boundary between the HIP runtime and the execution engine.
//
// The HIP runtime (hip/) is built once. The engine (engine/) is built once for each x86-64 level and opened at run
// time, so that one installed package runs everywhere and uses AVX2 or AVX-512 where the host has it. Only plain
// structs and abstract classes cross this boundary.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace mi300x {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// The address that kernels get for the heap of device malloc, which isn't simulated. No process can map it, so that its
// use is an error that names it.
constexpr uint64_t device_heap = 0x0003'0000'0000'0000;
constexpr uint64_t device_heap_bytes = 1 << 20;

// Device addresses are host addresses: [begin, end) is memory that a kernel may touch.
struct MemoryRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint8_t* written = nullptr;  // a bit for each byte that was written; null where writes aren't tracked
};

// The range that holds an address, in a sorted array of disjoint ranges; null where there is none.
template <class Range>
const Range* find_range(const Range* begin, const Range* end, uint64_t address) {
  const Range* after = std::upper_bound(begin, end, address,
                                        [](uint64_t value, const Range& range) { return value < range.begin; });
  return after != begin && address < after[-1].end ? after - 1 : nullptr;
}

// A kernel as its descriptor (LLVM AMDGPU usage, "Kernel Descriptor") and its metadata describe it.
struct Kernel {
  const char* name = nullptr;
  uint64_t entry = 0;       // its address in the loaded image
  uint64_t code_begin = 0;  // bounds of the executable segment that holds it
  uint64_t code_end = 0;
  uint32_t kernarg_bytes = 0;
  uint32_t lds_bytes = 0;      // group_segment_fixed_size
  uint32_t scratch_bytes = 0;  // private_segment_fixed_size, for each work-item
  uint32_t compute_pgm_rsrc1 = 0;
  uint32_t compute_pgm_rsrc2 = 0;
  uint32_t compute_pgm_rsrc3 = 0;
  uint16_t kernel_code_properties = 0;
  uint16_t kernarg_preload = 0;

  // Arguments that are preloaded into SGPRs: length and offset of the KERNARG_PRELOAD_SPEC, in dwords.
  uint32_t preloaded_dwords() const { return kernarg_preload & 127; }
  uint32_t preload_offset() const { return kernarg_preload >> 7; }

  // Vector registers of a lane: GRANULATED_WORKITEM_VGPR_COUNT in units of 8. Those from ACCUM_OFFSET on, in units of
  // 4, are accumulators (LLVM AMDGPU usage, gfx90a and gfx942). They can be named as VGPRs, too: kernels of AITER that
  // want no accumulators do so. The simulator keeps them apart, and expects of a kernel that it uses one name only.
  int vector_registers() const { return std::min(all_vector_registers(), 256); }
  int accumulators() const {
    return std::clamp(all_vector_registers() - 4 * int((compute_pgm_rsrc3 & 63) + 1), 0, 256);
  }
  int all_vector_registers() const { return 8 * int((compute_pgm_rsrc1 & 63) + 1); }

  // GRANULATED_WAVEFRONT_SGPR_COUNT, which GFX9 counts in pairs of units of 8.
  int scalar_registers() const { return 16 * int((compute_pgm_rsrc1 >> 7 & 7) + 1); }

  // LLVM AMDGPU usage, "Preloaded Kernel Arguments": a kernel that asks for them begins with 256 bytes for firmware
  // that can't preload, which load the arguments or trap; firmware that can starts behind.
  uint64_t first_instruction() const { return entry + (preloaded_dwords() > 0 ? 256 : 0); }
};

// Receives records of a dispatch: one JSON object at a time, without a newline.
class RecordSink {
 public:
  virtual ~RecordSink() = default;
  virtual void add(const char* json, size_t bytes) = 0;
};

// Serves what kernels ask of the host while they run, such as printf.
class Host {
 public:
  virtual ~Host() = default;

  // Memory beside the dispatch's, through which the kernel and the host talk.
  virtual MemoryRange memory() const = 0;

  // Answers all requests so far. Called by several threads, when a wave has sent an interrupt. Returns a message where
  // the wave must fail.
  virtual std::string answer_interrupt() = 0;
};

// The wave to trace, and which of its instructions.
struct TracedWave {
  Dim3 workgroup{0, 0, 0};  // its place in the grid
  uint32_t wave = 0;        // of the workgroup
  uint64_t first = 0;       // index of the first traced instruction
  uint64_t count = 0;
};

// A wave before an instruction: views of its state, which are valid until it goes on.
struct StoppedWave {
  uint64_t offset = 0;    // of the instruction, in bytes from the start of the code
  uint64_t executed = 0;  // instructions so far
  const uint32_t* scalars = nullptr;       // by operand encoding: s0 is 0, vcc 106, m0 124, exec 126
  const uint32_t* vectors = nullptr;       // v0, v1, ..., 64 lanes each
  const uint32_t* accumulators = nullptr;  // a0, a1, ...
  uint32_t scalar_count = 0, vector_count = 0, accumulator_count = 0;
  uint32_t scc = 0, mode = 0;
  uint32_t lds_bytes = 0, scratch_bytes = 0;  // of the workgroup, and of a lane
  const uint8_t* lds = nullptr;
  const uint8_t* scratch = nullptr;  // lane by lane
  const char* failure = nullptr;     // the message where the instruction failed; else null
};

// Stops one wave of a dispatch.
class Debugger {
 public:
  virtual ~Debugger() = default;

  virtual Dim3 workgroup() const = 0;  // the wave's
  virtual uint32_t wave() const = 0;

  // Whether to stop before the instruction at that offset.
  virtual bool wants(uint64_t offset) const = 0;

  // Called by one of the engine's threads. The wave goes on when it returns; false ends the dispatch.
  virtual bool stop(const StoppedWave& wave) = 0;
};

struct Dispatch {
  const Kernel* kernel = nullptr;
  Dim3 grid;   // in workgroups
  Dim3 block;  // in work-items
  uint32_t dynamic_lds = 0;
  // kernel->kernarg_bytes bytes with hidden arguments, rounded up to 64: compilers load past the last argument.
  const void* kernarg = nullptr;
  const MemoryRange* memory = nullptr;  // sorted by address, disjoint; the kernarg buffer and the code are not in it
  size_t memory_count = 0;
  Host* host = nullptr;  // null where the kernel asks for nothing
  // Each is null where it isn't asked for.
  RecordSink* profile = nullptr;   // the timing model's record
  RecordSink* counters = nullptr;  // totals of what the waves executed
  RecordSink* trace = nullptr;     // one wave: a record of the wave, then one for each instruction
  TracedWave traced;
  Debugger* debugger = nullptr;
};

// The result of a dispatch. The message of a failed one names the kernel, the instruction and its offset.
struct Outcome {
  // `unsafe`: the sanitizer found an error that the hardware may not show.
  enum class Status { ok, invalid_dispatch, illegal_instruction, memory_fault, deadlock, trap, unsafe, interrupted };
  Status status = Status::ok;
  char message[1024] = "";
  // Where it failed, for source lines: in bytes from the start of the code.
  static constexpr uint64_t nowhere = ~0ull;
  uint64_t offset = nowhere;
  uint64_t other_offset = nowhere;  // the instruction that made the other access of a race, where it is known
  uint64_t address = 0;             // the memory of the access at fault; 0 where there is none
  uint64_t instructions = 0;  // wave instructions executed
  double nanoseconds = 0;     // simulated, with DG_SIM_TIMING; 0 without
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Executes every workgroup of the dispatch on all host cores and returns when the last one ended.
  // Safe to call from several threads.
  virtual Outcome run(const Dispatch& dispatch) = 0;

  // Writes one line for each instruction of the code, in the style of LLVM: offset, mnemonic, operands. Returns the
  // length of the whole text; no more than `capacity` bytes, the final zero included, are written.
  virtual size_t disassemble(const void* code, size_t bytes, char* text, size_t capacity) = 0;

  // Writes one line for each opcode that LLVM knows for gfx942: encoding family, number, mnemonic, status (exact,
  // approximate or missing) and, for approximate ones, how they differ from the chip. Length and capacity as above.
  virtual size_t list_opcodes(char* text, size_t capacity) = 0;

  // Forgets decoded code in [begin, end), which is about to be unloaded.
  virtual void forget_code(uint64_t begin, uint64_t end) = 0;

  // Empties the caches that the timing model keeps from launch to launch.
  virtual void empty_caches() = 0;

  // Called around a fork. Dispatches of other threads neither delay it nor go on in the child.
  virtual void before_fork() = 0;
  virtual void after_fork(bool in_child) = 0;
};

}  // namespace mi300x

// The one symbol an engine library exports.
extern "C" mi300x::Engine* mi300x_engine();

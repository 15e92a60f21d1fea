// A loaded gfx942 code object: an ELF file of code object version 3 to 6 (LLVM documentation, "User Guide for AMDGPU
// Backend", AMDGPUUsage).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../../engine.h"
#include "bytes.h"
#include "msgpack.h"

// Kinds of kernel arguments (AMDGPUUsage, "Code Object V3 Kernel Argument Metadata Map", .value_kind).
// clang-format off
#define KERNEL_ARGUMENT_KINDS(X)                                                                             \
  X(by_value) X(global_buffer) X(dynamic_shared_pointer) X(sampler) X(image) X(pipe) X(queue)                \
  X(hidden_global_offset_x) X(hidden_global_offset_y) X(hidden_global_offset_z) X(hidden_none)               \
  X(hidden_printf_buffer) X(hidden_hostcall_buffer) X(hidden_default_queue) X(hidden_completion_action)      \
  X(hidden_multigrid_sync_arg) X(hidden_block_count_x) X(hidden_block_count_y) X(hidden_block_count_z)       \
  X(hidden_group_size_x) X(hidden_group_size_y) X(hidden_group_size_z) X(hidden_remainder_x)                 \
  X(hidden_remainder_y) X(hidden_remainder_z) X(hidden_grid_dims) X(hidden_heap_v1)                          \
  X(hidden_dynamic_lds_size) X(hidden_private_base) X(hidden_shared_base) X(hidden_queue_ptr)
// clang-format on

enum class ArgumentKind {
#define KERNEL_ARGUMENT_ENUMERATOR(name) name,
  KERNEL_ARGUMENT_KINDS(KERNEL_ARGUMENT_ENUMERATOR)
#undef KERNEL_ARGUMENT_ENUMERATOR
};

struct KernelArgument {
  ArgumentKind kind;
  uint32_t offset;  // in the kernarg segment
  uint32_t size;
  std::string name;  // empty where the compiler dropped it

  bool is_hidden() const { return kind >= ArgumentKind::hidden_global_offset_x; }
};

struct KernelInfo {
  std::string name;
  mi300x::Kernel descriptor;
  std::vector<KernelArgument> arguments;
  uint32_t max_block_threads = 0;
  uint32_t required_block[3] = {0, 0, 0};  // zeros where the kernel takes any block
  uint32_t vgprs = 0;                      // as the compiler counts them, for hipFuncGetAttributes
  bool uses_dynamic_stack = false;

  // Bytes of the kernarg segment before the end of the last argument that is not hidden.
  uint32_t explicit_kernarg_bytes() const;
};

class ElfFile;

struct GlobalVariable {
  void* address;
  size_t size;
};

class CodeObject {
 public:
  // Parses the ELF file, loads its segments into host memory, applies its relocations and tells the memory map about
  // its data. Fails with hipErrorInvalidImage, hipErrorNoBinaryForGpu (another target) or
  // hipErrorSharedObjectSymbolNotFound (an undefined symbol).
  explicit CodeObject(Bytes file);
  ~CodeObject();

  CodeObject(const CodeObject&) = delete;
  CodeObject& operator=(const CodeObject&) = delete;

  // The device reads a __managed__ variable `x` through the pointer `x`; its initial value is `x.managed`. Compiled host
  // code has memory for it. Without such, this lets the pointer point to the initial value, and `x` name that.
  void place_managed_variables();

  // Null where there is no such kernel or variable.
  const KernelInfo* find_kernel(const std::string& name) const;
  const GlobalVariable* find_global(const std::string& name) const;

  size_t kernel_count() const { return kernels_.size(); }
  std::string some_kernel_names() const;  // joined by ", "

 private:
  struct Segment {
    uint64_t address;  // in the file's address space
    uint64_t size;
    bool executable;

    uint64_t end() const { return address + size; }
  };

  // The host memory of the loaded segments.
  class Image {
   public:
    Image() = default;
    ~Image();
    Image(const Image&) = delete;
    Image& operator=(const Image&) = delete;

    void map(uint64_t address, uint64_t size);
    uint8_t* host(uint64_t address) const { return reinterpret_cast<uint8_t*>(base_ + (address - address_)); }
    uint64_t file_address(const void* host) const { return reinterpret_cast<uint64_t>(host) - base_ + address_; }

   private:
    uint64_t base_ = 0;
    uint64_t address_ = 0;
    uint64_t size_ = 0;
  };

  void load_segments(const ElfFile& elf);
  void apply_relocations(const ElfFile& elf);
  void read_symbols(const ElfFile& elf);
  void read_kernels(const msgpack::Value& metadata);
  void register_data();

  const Segment* segment_of(uint64_t address, uint64_t size) const;
  uint8_t* host_at(uint64_t address, uint64_t size, const char* what) const;

  std::vector<Segment> segments_;  // sorted by address, disjoint
  Image image_;
  std::unordered_map<std::string, GlobalVariable> globals_;
  std::unordered_map<std::string, KernelInfo> kernels_;
};

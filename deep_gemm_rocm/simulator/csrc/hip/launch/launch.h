// Kernel launches: shape, arguments, and the launch itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../base/abi.h"
#include "../base/host_memory.h"
#include "../modules/module.h"

struct LaunchShape {
  dim3 grid;  // in blocks
  dim3 block;
  size_t dynamic_lds = 0;
  bool cooperative = false;  // all blocks are resident at once

  uint64_t blocks() const { return uint64_t{grid.x} * grid.y * grid.z; }
  uint64_t threads_of_block() const { return uint64_t{block.x} * block.y * block.z; }
};

// The kernarg segment: the caller's arguments and the hidden ones, at the places that the metadata gives them.
class KernelArguments {
 public:
  // Either from one pointer for each argument (kernelParams) or from a buffer with the final layout (extra).
  static KernelArguments from_pointers(const KernelInfo& kernel, In<void*> arguments, const LaunchShape& shape);
  static KernelArguments from_buffer(const KernelInfo& kernel, In<void*> extra, const LaunchShape& shape);

  const void* data() const { return lines_.data(); }
  const uint8_t* at(uint32_t offset) const { return lines_.data()->bytes + offset; }
  void set(uint32_t offset, uint64_t value) { std::memcpy(at(offset), &value, sizeof value); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };

  explicit KernelArguments(const KernelInfo& kernel) : lines_(kernel.descriptor.kernarg_bytes / sizeof(Line) + 1) {}
  uint8_t* at(uint32_t offset) { return lines_.data()->bytes + offset; }
  void fill_hidden(const KernelInfo& kernel, const LaunchShape& shape);

  std::vector<Line> lines_;
};

// A kernel launch.
struct KernelWork {
  std::shared_ptr<const Function> function;
  void* named;  // the caller's name for the kernel: a hipFunction_t, or the address of a host stub
  LaunchShape shape;
  KernelArguments arguments;

  // Exactly one of `arguments` and `extra` may be given; both may be null where the kernel takes none. Fails where the
  // shape or the arguments don't fit the kernel.
  static KernelWork prepare(std::shared_ptr<const Function> function, const void* named, const LaunchShape& shape,
                            In<void*> arguments, In<void*> extra);
  static KernelWork described_by(const hipKernelNodeParams& parameters);

  // `pointers` becomes the array that the description refers to.
  hipKernelNodeParams description(std::vector<void*>& pointers) const;

  // Runs the kernel to its end. Fails as HIP's launch calls do, with the engine's message.
  void run() const;
};

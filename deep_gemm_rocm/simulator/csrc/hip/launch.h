#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"
#include "host_memory.h"
#include "module.h"

struct LaunchShape {
  dim3 grid;  // in blocks
  dim3 block;
  size_t dynamic_lds = 0;
};

// The kernarg segment: the caller's arguments and the hidden ones, at the places that the metadata gives them.
class KernelArguments {
 public:
  // From one pointer for each argument (kernelParams), or from a buffer that is laid out already (extra).
  static KernelArguments from_pointers(const KernelInfo& kernel, In<void*> arguments, const LaunchShape& shape);
  static KernelArguments from_buffer(const KernelInfo& kernel, In<void*> extra, const LaunchShape& shape);

  const void* data() const { return lines_.data(); }
  const uint8_t* at(uint32_t offset) const { return lines_.data()->bytes + offset; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };

  explicit KernelArguments(const KernelInfo& kernel) : lines_(kernel.descriptor.kernarg_bytes / sizeof(Line) + 1) {}
  uint8_t* at(uint32_t offset) { return lines_.data()->bytes + offset; }
  void fill_hidden(const KernelInfo& kernel, const LaunchShape& shape);

  std::vector<Line> lines_;
};

// A kernel with all that a launch needs.
struct KernelWork {
  std::shared_ptr<const Function> function;
  void* named;  // what the caller knows the kernel by: a hipFunction_t, or the address of a host stub
  LaunchShape shape;
  KernelArguments arguments;

  // Exactly one of `arguments` and `extra` may be given; both may be null where the kernel takes none. Fails where the
  // shape or the arguments don't fit the kernel.
  static KernelWork prepare(std::shared_ptr<const Function> function, const void* named, const LaunchShape& shape,
                            In<void*> arguments, In<void*> extra);
  static KernelWork described_by(const hipKernelNodeParams& parameters);

  // `pointers` becomes the array that the description refers to.
  hipKernelNodeParams description(std::vector<void*>& pointers) const;

  // Runs it to its end. Fails as the launch calls of HIP do, with what the engine says of a kernel that went wrong.
  void run() const;
};

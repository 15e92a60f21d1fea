#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi.h"
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
  static KernelArguments from_pointers(const KernelInfo& kernel, void** arguments, const LaunchShape& shape);
  static KernelArguments from_buffer(const KernelInfo& kernel, void** extra, const LaunchShape& shape);

  const void* data() const { return lines_.data(); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };

  explicit KernelArguments(const KernelInfo& kernel) : lines_(kernel.descriptor.kernarg_bytes / sizeof(Line) + 1) {}
  uint8_t* at(uint32_t offset) { return lines_.data()->bytes + offset; }
  void fill_hidden(const KernelInfo& kernel, const LaunchShape& shape);

  std::vector<Line> lines_;
};

// Runs the kernel to its end. Exactly one of `arguments` and `extra` may be given; both may be null where the kernel
// takes none. Fails as the launch calls of HIP do, with what the engine says of a kernel that went wrong.
void launch(const Function& function, const LaunchShape& shape, hipStream_t stream, void** arguments, void** extra);

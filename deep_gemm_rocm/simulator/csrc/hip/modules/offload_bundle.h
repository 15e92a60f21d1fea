// Containers that hold code objects for several targets, and the choice of the one for this device.
#pragma once

#include "bytes.h"

// The bytes behind a pointer to a code object or an offload bundle; their size is in their headers. Fails where the
// memory can't be read.
Bytes image_at(const void* image);

// The ELF file for this device: the image itself, or the best entry of a bundle (clang's documentation, "Clang
// Offload Bundler"). Fails with hipErrorNoBinaryForGpu where a bundle has none, and names those it has.
Bytes code_object_for_device(Bytes image);

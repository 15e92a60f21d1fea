// Copies and fills of memory, as work for a stream or a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../base/abi.h"

// width bytes in each of height rows in each of depth slices.
struct Box {
  size_t width, height, depth;

  bool empty() const { return width == 0 || height == 0 || depth == 0; }
};

// The placement of a box in memory.
struct Placement {
  char* base;
  size_t pitch;        // bytes from row to row
  size_t slice_pitch;  // bytes from slice to slice

  // The memory behind a pitched pointer, from this position on.
  static Placement of(const hipPitchedPtr& pointer, const hipPos& position, const char* name);

  // Bytes from the first to the last one of the box; `name` is the place's in errors.
  size_t span(const Box& box, const char* name) const;
  char* row(size_t y, size_t z) const { return base + z * slice_pitch + y * pitch; }
};

struct CopyWork {
  Placement destination, source;
  Box box;
  hipMemcpyKind kind;

  static CopyWork of_bytes(void* destination, const void* source, size_t size, hipMemcpyKind kind);
  static CopyWork of_rows(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                          size_t width, size_t height, hipMemcpyKind kind);
  static CopyWork described_by(const hip_Memcpy2D& parameters);
  static CopyWork described_by(const hipMemcpy3DParms& parameters);

  hipMemcpy3DParms description() const;
  void run() const;  // checks all addresses first
};

struct FillWork {
  Placement destination;
  Box box;
  uint32_t value;
  unsigned element_size;  // 1, 2 or 4 bytes, of which the width is a multiple

  static FillWork of_elements(void* destination, uint32_t value, unsigned element_size, size_t count);
  static FillWork of_box(const Placement& destination, int value, const Box& box);
  static FillWork described_by(const hipMemsetParams& parameters);

  hipMemsetParams description() const;
  void run() const;
};

// Fails with hipErrorInvalidValue unless the device may access all of the range.
void require_device_memory(const char* name, const void* pointer, size_t size);

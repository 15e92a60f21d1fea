// Tiles through LDS, with a column of padding against bank conflicts.
#include "device.h"

constexpr int tile = 32, rows_at_once = 8;

template <class T>
__device__ void transpose(const T* x, T* y, int rows, int columns) {
  __shared__ T values[tile][tile + 1];
  int column = blockIdx.x * tile + threadIdx.x, row = blockIdx.y * tile + threadIdx.y;
  for (int i = 0; i < tile; i += rows_at_once)
    if (row + i < rows && column < columns) values[threadIdx.y + i][threadIdx.x] = x[(row + i) * columns + column];
  __syncthreads();
  column = blockIdx.y * tile + threadIdx.x;
  row = blockIdx.x * tile + threadIdx.y;
  for (int i = 0; i < tile; i += rows_at_once)
    if (row + i < columns && column < rows) y[(row + i) * rows + column] = values[threadIdx.x][threadIdx.y + i];
}
KERNEL transpose_8(const u8* x, u8* y, int rows, int columns) { transpose(x, y, rows, columns); }
KERNEL transpose_16(const u16* x, u16* y, int rows, int columns) { transpose(x, y, rows, columns); }
KERNEL transpose_32(const u32* x, u32* y, int rows, int columns) { transpose(x, y, rows, columns); }
KERNEL transpose_64(const u64* x, u64* y, int rows, int columns) { transpose(x, y, rows, columns); }

// Calls: recursion, pointers to functions, virtual functions, arguments and results on the stack, arrays in scratch.
#include "device.h"

__device__ __attribute__((noinline)) int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL recursion(int* y, int n) {
  const int i = global_thread();
  if (i < n) y[i] = fibonacci(i % 12);
}

__device__ __attribute__((noinline)) int add(int a, int b) { return a + b; }
__device__ __attribute__((noinline)) int subtract(int a, int b) { return a - b; }
__device__ __attribute__((noinline)) int multiply(int a, int b) { return a * b; }
typedef int (*Operation)(int, int);
__device__ Operation operations[] = {add, subtract, multiply};
KERNEL by_pointer(const int* x, const int* y, const u8* which, int* out, int n) {
  const int i = global_thread();
  if (i < n) out[i] = operations[which[i] % 3](x[i], y[i]);  // another function in each lane
}

struct Shape {
  __device__ virtual float area() const { return 0; }
};
struct Circle : Shape {
  float radius;
  __device__ explicit Circle(float r) : radius(r) {}
  __device__ float area() const override { return 3.0f * radius * radius; }
};
struct Box : Shape {
  float sides[2];
  __device__ Box(float a, float b) : sides{a, b} {}
  __device__ float area() const override { return sides[0] * sides[1]; }
};
KERNEL by_table(const float* x, float* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const Circle circle(x[i]);
  const Box box(x[i], 0.5f);
  const Shape* shape = &circle;
  if (i % 3 == 0) shape = &box;
  out[i] = shape->area();
}

struct Many {
  int values[40];
};
__device__ __attribute__((noinline)) Many rotate(Many many, int by, int a, int b, int c, Many other) {
  Many result;
  for (int i = 0; i < 40; ++i) result.values[i] = many.values[(i + by) % 40] + other.values[i] * (a + b + c);
  return result;
}
KERNEL much_on_the_stack(const int* x, int* y, int n) {
  const int i = global_thread();
  if (i >= n) return;
  Many many, other;
  for (int j = 0; j < 40; ++j) {
    many.values[j] = x[i] + j;
    other.values[j] = j;
  }
  const Many result = rotate(many, i % 40, 1, 2, i, other);
  for (int j = 0; j < 40; ++j) y[40 * i + j] = result.values[j];
}

// How many ways n queens stand on an n x n board, the first one in this thread's column: each lane with a stack.
KERNEL queens(int* counts, int n) {
  const int first = global_thread();
  if (first >= n) return;
  u8 columns[16];
  int row = 1, count = 0;
  columns[0] = u8(first);
  columns[1] = 0xFF;
  while (row > 0) {
    const int column = u8(++columns[row]);
    if (column >= n) {
      --row;
      continue;
    }
    bool safe = true;
    for (int other = 0; other < row && safe; ++other) {
      const int distance = column - columns[other];
      safe = distance != 0 && distance != row - other && distance != other - row;
    }
    if (!safe) continue;
    if (row == n - 1) ++count;
    else columns[++row] = 0xFF;
  }
  counts[first] = count;
}

// A switch with enough cases for a table, in a loop that lanes leave at different times.
KERNEL interpreter(const u8* code, int length, int* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  int a = i, b = 1;
  for (int pc = i % 7; pc < length; ++pc) {
    switch (code[pc] % 9) {
      case 0: a += b; break;
      case 1: b ^= a; break;
      case 2: a = a * 3 + 1; break;
      case 3: pc += a & 1; break;
      case 4: b = b << 1 | u32(b) >> 31; break;
      case 5: a -= b; break;
      case 6: if ((a & 31) == 7) { pc = length; } break;
      case 7: b += pc; break;
      default: a = ~a;
    }
  }
  out[i] = a ^ b;
}

"""HIP programs compiled without and with optimization, against numpy: they exercise the ISA as compilers use it."""

from __future__ import annotations

from ctypes import c_float, c_int

import numpy as np
import pytest
from simulated_hip import Compiler, Hip

SOURCE = """
#define KERNEL extern "C" __global__ void
__device__ int thread() {
  return __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x();
}
__device__ void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KERNEL axpy(float a, const float* x, float* y, int n) {
  int i = thread();
  if (i < n) y[i] = a * x[i] + y[i];
}

KERNEL float_math(const float* x, float* y, int n) {
  int i = thread();
  if (i >= n) return;
  float v = x[i];
  float result = __builtin_sqrtf(__builtin_fabsf(v)) + v / (1.0f + v * v);
  result = result * __builtin_floorf(v) + __builtin_fminf(v, 0.5f) - __builtin_truncf(3.0f * v);
  for (int j = 0; j < (i & 7); ++j) result = result * 0.5f + j;
  y[i] = result;
}

KERNEL integer_math(const int* x, long long* y, int n) {
  int i = thread();
  if (i >= n) return;
  long long wide = (long long)x[i] * x[i] * 31 + x[i];
  long long narrow = x[i] / 3 + x[i] % 5 + __builtin_popcount(x[i]);
  y[i] = wide / 7 + wide % 13 + narrow + (wide << (i & 15)) + (wide >> (i & 31));
}

KERNEL double_math(const double* x, double* y, int n) {
  int i = thread();
  if (i < n) y[i] = __builtin_sqrt(x[i] * x[i] + 1.0) / (x[i] + 3.0);
}

KERNEL half_math(const _Float16* x, const _Float16* y, _Float16* z, int n) {
  int i = thread();
  if (i < n) z[i] = x[i] * y[i] + x[i];
}

__shared__ float partial[256];
KERNEL block_sums(const float* x, float* sums, int n) {
  int t = __builtin_amdgcn_workitem_id_x(), i = thread();
  partial[t] = i < n ? x[i] : 0.0f;
  barrier();
  for (int step = 128; step > 0; step >>= 1) {
    if (t < step) partial[t] += partial[t + step];
    barrier();
  }
  if (t == 0) sums[__builtin_amdgcn_workgroup_id_x()] = partial[0];
}

KERNEL histogram(const int* x, int* bins, float* total, int n) {
  int i = thread();
  if (i >= n) return;
  __hip_atomic_fetch_add(&bins[x[i] & 15], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_add(total, 1.5f, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

__device__ __attribute__((noinline)) int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL recursion(int* y, int n) {
  int i = thread();
  if (i < n) y[i] = fibonacci(i % 12);
}

KERNEL private_array(const int* x, int* y, int n) {
  int i = thread();
  if (i >= n) return;
  int values[16], sum = 0;
  for (int j = 0; j < 16; ++j) values[j] = j * j + i;
  for (int j = 0; j < 8; ++j) sum += values[(x[i] + 3 * j) & 15];
  y[i] = sum;
}
"""

N = 1000
RNG = np.random.default_rng(0)
FLOATS = (3 * RNG.standard_normal(N)).astype(np.float32)
INTS = RNG.integers(-10000, 10000, N).astype(np.int32)


class Program:
    def __init__(self, hip: Hip, image: bytes) -> None:
        self.hip = hip
        self.module = hip.load(image)

    def __call__(self, kernel: str, *arguments: object, block: int = 128) -> None:
        blocks = -(-N // block)
        self.hip.launch(self.hip.function(self.module, kernel), blocks, block, *arguments, c_int(N))

    def run(self, kernel: str, result: np.ndarray, *inputs: np.ndarray) -> np.ndarray:
        """Runs kernel(inputs…, result, N) and returns the result."""
        output = self.hip.upload(result)
        self(kernel, *map(self.hip.upload, inputs), output)
        return self.hip.download(output, result)


@pytest.fixture(scope="module", params=["-O0", "-O3"])
def program(hip: Hip, compiler: Compiler, request: pytest.FixtureRequest) -> Program:
    return Program(hip, compiler.code_object(SOURCE, request.param))


def truncated_quotient(a: np.ndarray, b: int) -> np.ndarray:
    return np.sign(a) * (np.abs(a) // b)


def test_axpy(program: Program) -> None:
    y = program.hip.upload(FLOATS)
    program("axpy", c_float(2.5), program.hip.upload(FLOATS), y)
    expected = np.float64(2.5) * FLOATS + FLOATS
    np.testing.assert_allclose(program.hip.download(y, FLOATS), expected, rtol=2**-23)


def test_float_math(program: Program) -> None:
    x = FLOATS.astype(np.float64)
    expected = np.sqrt(np.abs(x)) + x / (1 + x * x)
    expected = expected * np.floor(x) + np.minimum(x, 0.5) - np.trunc(3 * FLOATS)
    for j in range(7):
        expected = np.where(j < (np.arange(N) & 7), expected * 0.5 + j, expected)
    np.testing.assert_allclose(program.run("float_math", FLOATS, FLOATS), expected, rtol=1e-5, atol=1e-5)


def test_integer_math(program: Program) -> None:
    x, i = INTS.astype(np.int64), np.arange(N)
    wide = x * x * 31 + x
    bits = np.array([int(value & 0xFFFFFFFF).bit_count() for value in x])
    expected = truncated_quotient(wide, 7) + wide - 13 * truncated_quotient(wide, 13)
    expected += truncated_quotient(x, 3) + x - 5 * truncated_quotient(x, 5)
    expected += bits + (wide << (i & 15)) + (wide >> (i & 31))
    np.testing.assert_array_equal(program.run("integer_math", x, INTS), expected)


def test_double_math(program: Program) -> None:
    x = FLOATS.astype(np.float64)
    np.testing.assert_allclose(program.run("double_math", x, x), np.sqrt(x * x + 1) / (x + 3), rtol=1e-15)


def test_half_math(program: Program) -> None:
    x, y = FLOATS.astype(np.float16), FLOATS[::-1].astype(np.float16)
    exact = x.astype(np.float64) * y + x
    result = program.run("half_math", x, x, y).astype(np.float64)
    # Contracted or not: at most two roundings.
    assert np.all(np.abs(result - exact) <= 2**-11 * (np.abs(exact) + np.abs(x.astype(np.float64) * y)) + 2**-24)


def test_block_sums(program: Program) -> None:
    sums = program.hip.upload(np.full(4, np.nan, np.float32))
    program("block_sums", program.hip.upload(FLOATS), sums, block=256)
    blocks = np.pad(FLOATS, (0, 24)).reshape(4, 256).astype(np.float64)
    np.testing.assert_allclose(program.hip.download(sums, np.empty(4, np.float32)), blocks.sum(1), rtol=1e-4, atol=1e-4)


def test_histogram(program: Program) -> None:
    bins, total = program.hip.upload(np.zeros(16, np.int32)), program.hip.upload(np.zeros(1, np.float32))
    program("histogram", program.hip.upload(INTS), bins, total)
    np.testing.assert_array_equal(
        program.hip.download(bins, np.empty(16, np.int32)), np.bincount(INTS & 15, minlength=16)
    )
    assert program.hip.download(total, np.empty(1, np.float32)) == 1.5 * N


def test_recursion(program: Program) -> None:
    fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    expected = [fibonacci[i % 12] for i in range(N)]
    np.testing.assert_array_equal(program.run("recursion", INTS), expected)


def test_private_array(program: Program) -> None:
    expected = sum(((INTS + 3 * j) & 15) ** 2 + np.arange(N) for j in range(8))
    np.testing.assert_array_equal(program.run("private_array", INTS, INTS), expected)

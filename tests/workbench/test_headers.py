"""The headers in ``workbench/include``: what each function gives, against Python and numpy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from deep_gemm_rocm import simulator, workbench

RNG = np.random.default_rng(0)
SMALL, POSITIVE = np.linspace(-9, 9, 500), np.geomspace(1e-30, 1e30, 500)
UNIT, WIDE = np.linspace(-1, 1, 501), np.linspace(-1e5, 1e5, 500)


# The function, its arguments, and the reference.
UNARY: dict[str, tuple[np.ndarray, Callable[[float], float]]] = {
    "exp": (SMALL * 9, math.exp),
    "exp2": (SMALL * 9, lambda x: 2.0**x),
    "exp10": (SMALL, lambda x: 10.0**x),
    "expm1": (np.concatenate([SMALL, SMALL * 1e-8]), math.expm1),
    "log": (POSITIVE, math.log),
    "log2": (POSITIVE, math.log2),
    "log10": (POSITIVE, math.log10),
    "log1p": (np.concatenate([POSITIVE, UNIT[1:] * 0.99, UNIT * 1e-9]), math.log1p),
    "sin": (np.concatenate([SMALL, WIDE]), math.sin),
    "cos": (np.concatenate([SMALL, WIDE]), math.cos),
    "tan": (SMALL, math.tan),
    "asin": (UNIT, math.asin),
    "acos": (UNIT, math.acos),
    "atan": (np.concatenate([SMALL, WIDE]), math.atan),
    "sinh": (np.concatenate([SMALL, SMALL * 1e-5]), math.sinh),
    "cosh": (SMALL, math.cosh),
    "tanh": (np.concatenate([SMALL, SMALL * 1e-3]), math.tanh),
    "asinh": (np.concatenate([SMALL, WIDE]), math.asinh),
    "acosh": (np.geomspace(1, 1e20, 300), math.acosh),
    "atanh": (UNIT[1:-1], math.atanh),
    "erf": (SMALL, math.erf),
    "erfc": (SMALL, math.erfc),
    "cbrt": (np.concatenate([SMALL, POSITIVE]), lambda x: float(np.cbrt(x))),
    "sqrt": (POSITIVE, math.sqrt),
    "rsqrt": (POSITIVE, lambda x: 1 / math.sqrt(x)),
    "floor": (SMALL, math.floor),
    "ceil": (SMALL, math.ceil),
    "trunc": (SMALL, math.trunc),
    "rint": (SMALL, round),
    "round": (np.arange(-4, 5) + 0.5, lambda x: math.copysign(math.floor(abs(x) + 0.5), x)),
    "fabs": (SMALL, abs),
}
BINARY: dict[str, tuple[np.ndarray, np.ndarray, Callable[[float, float], float]]] = {
    "pow": (np.abs(SMALL) + 0.1, SMALL[::-1], math.pow),
    "fmod": (WIDE, SMALL + 0.123, math.fmod),
    "atan2": (SMALL, RNG.permutation(SMALL), math.atan2),
    "hypot": (POSITIVE * 1e-7, POSITIVE[::-1] * 1e-7, math.hypot),
    "fmin": (SMALL, SMALL[::-1], min),
    "fmax": (SMALL, SMALL[::-1], max),
    "fdim": (SMALL, SMALL[::-1], lambda x, y: max(x - y, 0.0)),
    "copysign": (SMALL, SMALL[::-1], math.copysign),
}


@functools.cache
def _math_code() -> bytes:
    kernels = ["#include <hip/hip_runtime.h>", "#include <cmath>"]
    for type_name in ("float", "double"):
        for name in UNARY:
            kernels.append(
                f'extern "C" __global__ void {name}_{type_name}(const {type_name}* x, {type_name}* y, int n) {{'
                f"  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = {name}(x[i]); }}"
            )
        for name in BINARY:
            kernels.append(
                f'extern "C" __global__ void {name}_{type_name}(const {type_name}* x, const {type_name}* x2,'
                f" {type_name}* y, int n) {{"
                f"  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = std::{name}(x[i], x2[i]); }}"
            )
    return workbench.compile("\n".join(kernels))


def _compare(name: str, dtype: type, arguments: list[np.ndarray], reference: Callable[..., float]) -> None:
    arguments = [np.ascontiguousarray(argument, dtype) for argument in arguments]
    result = np.full_like(arguments[0], np.nan)
    type_name = {np.float32: "float", np.float64: "double"}[dtype]
    blocks = -(-result.size // 256)
    simulator.launch(_math_code(), f"{name}_{type_name}", blocks, 256, [*arguments, result, result.size])
    expected = np.array([reference(*map(float, values)) for values in zip(*arguments, strict=True)])
    # tanh in single precision has a fast form.
    ulps = 8 if dtype is np.float64 else 4 if name == "tanh" else 2
    step = np.spacing(np.maximum(np.abs(expected), np.finfo(dtype).tiny).astype(dtype)).astype(np.float64)
    error = np.abs(result.astype(np.float64) - expected)
    worst = np.argmax(error - ulps * step)
    place = f"{name}{[argument[worst] for argument in arguments]}: {result[worst]}, not {expected[worst]}"
    assert (error <= ulps * step).all(), place


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: type) -> None:
    argument, reference = UNARY[name]
    _compare(name, dtype, [argument], reference)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: type) -> None:
    *arguments, reference = BINARY[name]
    _compare(name, dtype, arguments, reference)


# With 64 bits of precision, enough to measure the errors of doubles.
LONG: dict[str, Callable[..., np.ndarray]] = {
    **{
        name: getattr(np, name)
        for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan")
    },
    **{name: getattr(np, name) for name in ("sinh", "cosh", "tanh", "cbrt", "sqrt", "floor", "ceil", "trunc", "rint")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    "exp10": lambda x: np.power(np.longdouble(10), np.clip(x, -4000, 4000)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "fabs": np.abs,
    "pow": np.power,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "copysign": np.copysign,
    "erf": np.vectorize(lambda x: _exactly(mpmath.erf, x), otypes="g"),
    "erfc": np.vectorize(lambda x: _exactly(mpmath.erfc, x), otypes="g"),
}
# Doubles near multiples of pi / 2; but for 0, none is nearer than the first.
NEAR_QUARTERS = [
    *(m * 2.0**e for m, e in [(6381956970095103, 797), (3205513981387887, -46), (7763785107565477, -29)]),
    *(m * 2.0**e for m, e in [(8415546123915803, -18), (1654412418448821, 17), (5916243447979695, 79)]),
    *(m * 2.0**e for m, e in [(7636753411044619, 201), (2925482757170843, 526), (8444920710073313, 939)]),
]


def _exactly(function: Callable[[float], mpmath.mpf], x: float) -> np.longdouble:
    """A result of mpmath with 64 bits, but infinity as 99, and the sign of zero."""
    with mpmath.workprec(80):
        exact = function(float(np.clip(x, -99, 99)))
        high = float(exact)
        return np.longdouble(high) + np.longdouble(float(exact - high)) if exact else np.longdouble(x)


def _everywhere(dtype: type) -> np.ndarray:
    """Arguments of all sizes, denser where functions change, with the ends of ranges and what isn't a number."""
    info = np.finfo(dtype)
    sizes = np.concatenate(
        [
            RNG.uniform(1, 2, 500) * np.geomspace(info.tiny, info.max / 4, 500),
            RNG.integers(1, 1 << info.nmant, 40) * np.float64(info.smallest_subnormal),
            *(RNG.uniform(0, end, 150) for end in (1, 4, 30, 120, 330, 760, 1080)),
            1 + np.geomspace(info.eps, 1, 60),
            1 - np.geomspace(info.epsneg, 1, 60),
            RNG.uniform(709, 711, 50),
            np.arange(0, 9, 0.25),
            [info.smallest_subnormal, info.tiny, info.max, np.inf],
            np.abs(NEAR_QUARTERS),
        ]
    )
    with np.errstate(over="ignore"):
        return np.concatenate([sizes, -sizes, [np.nan]]).astype(dtype)


def _ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units of the last place, infinite for another infinity, NaN or sign of zero."""
    dtype = result.dtype.type
    info = np.finfo(dtype)
    rounded = exact.astype(dtype)
    power = np.frexp(np.clip(np.abs(rounded), info.tiny, info.max))[1]
    # Infinity is one step beyond the largest number.
    beyond = np.ldexp(np.longdouble(1), info.maxexp)
    error = np.abs(np.clip(result.astype(np.longdouble), -beyond, beyond) - np.clip(exact, -beyond, beyond))
    error = np.ldexp(error, info.nmant + 1 - power)
    error[np.isnan(result) & np.isnan(exact)] = 0
    wrong_zero = (result == 0) & (rounded == 0) & (np.signbit(result) != np.signbit(rounded))
    return np.where(np.isnan(error) | wrong_zero, np.inf, error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_arguments(dtype: type) -> None:
    """Errors of a few ulp, for every exponent and at the ends; the signs of zeros, infinities, NaNs."""
    x = _everywhere(dtype)
    ends = (-745, 710) if dtype is np.float64 else (-104, 89)
    kinds = np.array([0.0, -0.0, 1, -1, 2, -3, 0.5, np.inf, -np.inf, np.nan, np.finfo(dtype).max], dtype)
    pairs = [part.ravel() for part in np.meshgrid(kinds, kinds)]
    failures = []
    with np.errstate(all="ignore"):
        powers = RNG.uniform(*ends, x.size) / np.log(np.abs(x))  # for results of all sizes
        near = RNG.uniform(-4, 4, x.size) * x
        for name in LONG:
            arguments = [np.concatenate([x, kinds])]
            if name in BINARY:
                other = powers if name == "pow" else near if name == "hypot" else RNG.permutation(x)
                arguments = [np.concatenate([x, pairs[0]]), np.concatenate([other.astype(dtype), pairs[1]])]
                if name in ("fmin", "fmax"):  # either of two zeros is right
                    arguments = [np.where(argument == 0, 0, argument) for argument in arguments]
            result = np.full_like(arguments[0], np.nan)
            kernel = f"{name}_{'double' if dtype is np.float64 else 'float'}"
            simulator.launch(_math_code(), kernel, -(-result.size // 256), 256, [*arguments, result, result.size])
            exact = LONG[name](*(argument.astype(np.longdouble) for argument in arguments))
            error = _ulps(result, np.asarray(exact, np.longdouble))
            worst = np.argmax(error)
            if error[worst] > (5 if dtype is np.float64 else 4 if name == "tanh" else 2):
                at = [float(argument[worst]) for argument in arguments]
                failures.append(f"{name}{at}: {error[worst]:.3g} ulp, {result[worst]} instead of {exact[worst]}")
    assert not failures, "\n".join(failures)


TYPES = """
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_fp8.h>

template <class T>
__device__ void there_and_back(const float* x, float* y, T* codes, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  codes[i] = T(x[i]);
  y[i] = float(codes[i]);
}
#define CONVERT(name, T) \
  extern "C" __global__ void name(const float* x, float* y, T* codes, int n) { there_and_back(x, y, codes, n); }
CONVERT(half_, __half)
CONVERT(bf16, __hip_bfloat16)
CONVERT(e4m3, __hip_fp8_e4m3)
CONVERT(e5m2, __hip_fp8_e5m2)
CONVERT(e4m3_fnuz, __hip_fp8_e4m3_fnuz)
CONVERT(e5m2_fnuz, __hip_fp8_e5m2_fnuz)
extern "C" __global__ void pairs(const float4* x, __hip_fp8x4_e4m3_fnuz* f, __half2* h, __hip_bfloat162* b, float4* y) {
  int i = threadIdx.x;
  f[i] = __hip_fp8x4_e4m3_fnuz(x[i]);
  h[i] = __hfma2(__floats2half2_rn(x[i].x, x[i].y), __float2half2_rn(2.0f), __halves2half2(1, -1));
  b[i] = __float22bfloat162_rn(make_float2(x[i].z, x[i].w)) * __float2bfloat162_rn(0.5f);
  y[i] = float4(f[i]) + make_float4(1, 2, 3, 4) * x[i];
}
template <class T, class Pair>
__device__ void least_and_greatest(const T* x, const T* y, T* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const T a = x[i], b = y[i];
  const Pair two(a, b), swapped(b, a);
  T* to = out + 9 * i;
  to[0] = __hmin(a, b), to[1] = __hmin2(two, swapped).x, to[2] = __hmax(a, b), to[3] = __hmax2(two, swapped).y;
  to[4] = __hmin_nan(a, b), to[5] = __hmin2_nan(two, swapped).x;
  to[6] = __hmax_nan(a, b), to[7] = __hmax2_nan(two, swapped).y;
  to[8] = __habs(a);
}
extern "C" __global__ void ends_half(const __half* x, const __half* y, __half* out) {
  least_and_greatest<__half, __half2>(x, y, out);
}
extern "C" __global__ void ends_bf16(const __hip_bfloat16* x, const __hip_bfloat16* y, __hip_bfloat16* out) {
  least_and_greatest<__hip_bfloat16, __hip_bfloat162>(x, y, out);
}
extern "C" __global__ void beyond(const float* x, unsigned char* out) {
  const __hip_fp8_interpretation_t kinds[] = {__HIP_E4M3, __HIP_E5M2, __HIP_E4M3_FNUZ, __HIP_E5M2_FNUZ};
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 2; ++j)
      out[8 * threadIdx.x + 2 * i + j] =
          __hip_cvt_float_to_fp8(x[threadIdx.x], j ? __HIP_SATFINITE : __HIP_NOSAT, kinds[i]);
}
extern "C" __global__ void from_double(const double* x, const float* patterns, __half* half, __hip_bfloat16* bf16,
                                       __hip_bfloat16* cut) {
  const int i = threadIdx.x;
  half[i] = __double2half(x[i]), bf16[i] = __double2bfloat16(x[i]);
  cut[i] = __float2bfloat16_rz(patterns[i]);
}
"""


@functools.cache
def _types_code() -> bytes:
    return workbench.compile(TYPES)


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [
        ("half_", torch.float16, 65504),
        ("bf16", torch.bfloat16, 3e38),
        ("e4m3", torch.float8_e4m3fn, 448),
        ("e5m2", torch.float8_e5m2, 57344),
        ("e4m3_fnuz", torch.float8_e4m3fnuz, 240),
        ("e5m2_fnuz", torch.float8_e5m2fnuz, 57344),
    ],
)
def test_small_floats(name: str, dtype: torch.dtype, largest: float) -> None:
    """Conversions are torch's, down to subnormals; FP8 saturates, which torch doesn't."""
    sizes = np.concatenate([np.geomspace(1e-9, largest, 3000), [0, largest, np.nan]])
    # Halves between neighbours are ties.
    grid = torch.arange(0, 128, dtype=torch.uint8).view(torch.float8_e4m3fnuz).float().numpy()
    x = np.concatenate([sizes, -sizes, (grid[1:] + grid[:-1]) / 2]).astype(np.float32)
    bits = torch.zeros(x.size, dtype=dtype)
    y = np.zeros_like(x)
    simulator.launch(_types_code(), name, -(-x.size // 256), 256, [x, y, bits, x.size])
    expected = torch.from_numpy(x).to(dtype).float().numpy()
    np.testing.assert_array_equal(y, expected)
    torch.testing.assert_close(bits.float(), torch.from_numpy(expected), rtol=0, atol=0, equal_nan=True)
    if dtype.itemsize == 1:
        beyond = np.array([2 * largest, -1e30], np.float32)
        simulator.launch(_types_code(), name, 1, 64, [beyond, y, bits, 2])
        np.testing.assert_array_equal(y[:2], [largest, -largest])


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bf16", torch.bfloat16)])
def test_least_and_greatest(name: str, dtype: torch.dtype) -> None:
    """A number counts more than a NaN but in the forms with _nan, and +0 more than -0, in either order."""
    kinds = torch.tensor(
        [0.0, -0.0, 1, -1, 2.5, math.inf, -math.inf, math.nan, torch.finfo(dtype).tiny / 4], dtype=dtype
    )
    kinds = torch.cat([kinds, torch.randn(7).to(dtype)])
    x, y = (part.reshape(-1).contiguous() for part in torch.meshgrid(kinds, kinds, indexing="ij"))
    out = torch.zeros(256, 9, dtype=dtype)
    simulator.launch(_types_code(), f"ends_{name}", 4, 64, [x, y, out])
    both_zero = (x == 0) & (y == 0)
    least = torch.where(both_zero, torch.where(x.signbit() | y.signbit(), -0.0, 0.0), torch.fmin(x, y))
    greatest = torch.where(both_zero, torch.where(x.signbit() & y.signbit(), -0.0, 0.0), torch.fmax(x, y))
    nan = (x + y).isnan() & (x.isnan() | y.isnan())
    of_nan = [torch.where(nan, math.nan, end) for end in (least, greatest)]
    columns = [least, least, greatest, greatest, of_nan[0], of_nan[0], of_nan[1], of_nan[1], x.abs()]
    for column, expected in enumerate(columns):
        found, expected = out[:, column], expected.to(dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())


def test_fp8_beyond_its_range() -> None:
    """As in CUDA: __HIP_NOSAT gives infinity or else NaN, __HIP_SATFINITE the largest number, both keep NaN."""
    x = np.array([np.nan, np.inf, -np.inf, 1e6, -1e6, 448, 464, 240, 248, 57344, 61439, 61440, 0, -0.0], np.float32)
    out = np.zeros((x.size, 4, 2), np.uint8)
    simulator.launch(_types_code(), "beyond", 1, x.size, [x, out])
    signs = np.where(np.signbit(x) & ~np.isnan(x), 0x80, 0).astype(np.uint8)
    formats = [(torch.float8_e4m3fn, 464, 0x7F), (torch.float8_e5m2, 61439, 0x7C)]
    formats += [(torch.float8_e4m3fnuz, 247, 0x80), (torch.float8_e5m2fnuz, 61439, 0x80)]
    for i, (dtype, last, beyond) in enumerate(formats):
        largest = torch.finfo(dtype).max
        saturated = torch.from_numpy(np.clip(x, -largest, largest)).to(dtype).view(torch.uint8).numpy()
        np.testing.assert_array_equal(out[:, i, 1], saturated)
        np.testing.assert_array_equal(out[:, i, 0], np.where(np.abs(x) > last, beyond | signs, saturated))


def test_from_double() -> None:
    """Conversions round once: a little more than a tie is no tie, even where a float would be one."""
    steps = 1 + np.arange(32) / 128
    x = np.concatenate([(steps + 2.0**-8) * (1 + 2.0**-40), steps * 2.0**-20 + 2.0**-31 + 2.0**-70])
    half, bf16, cut = np.zeros(64, np.float16), np.zeros(64, np.uint16), np.zeros(64, np.uint16)
    patterns = np.resize(
        np.array([0x7F800001, 0x3F81FFFF], np.uint32), 64
    )  # the first is infinity but for its last bit
    simulator.launch(_types_code(), "from_double", 1, 64, [x, patterns, half, bf16, cut])
    np.testing.assert_array_equal(half, x.astype(np.float16))
    as_float = (bf16.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(as_float[:32], steps + 2.0**-7)
    np.testing.assert_array_equal(cut, np.resize([0x7FFF, 0x3F81], 64))


def test_vectors() -> None:
    x = torch.randn(64, 4)
    f = torch.zeros(64, 4, dtype=torch.float8_e4m3fnuz)
    h, b, y = torch.zeros(64, 2, dtype=torch.half), torch.zeros(64, 2, dtype=torch.bfloat16), torch.zeros(64, 4)
    simulator.launch(_types_code(), "pairs", 1, 64, [x, f, h, b, y])
    assert torch.equal(f.float(), x.to(f.dtype).float())
    half = (x[:, :2].half().double() * 2 + torch.tensor([1.0, -1.0])).half()
    assert torch.equal(h, half)
    assert torch.equal(b, x[:, 2:].bfloat16() * 0.5)
    torch.testing.assert_close(y, f.float() + torch.tensor([1.0, 2, 3, 4]) * x, rtol=1e-6, atol=1e-6)


DEVICE = """
#include <hip/hip_bf16.h>
#include <hip/hip_cooperative_groups.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
namespace cg = cooperative_groups;

extern "C" __global__ void places(int* out) {
  cg::thread_block block = cg::this_thread_block();
  int group = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int* to = out + 4 * (group * block.size() + block.thread_rank());
  to[0] = threadIdx.x, to[1] = threadIdx.y, to[2] = blockIdx.x, to[3] = blockIdx.y + 10 * gridDim.y + 100 * blockDim.y;
}
extern "C" __global__ void shuffles(const int* x, int* out, double* d) {
  int lane = threadIdx.x, v = x[lane];
  int* to = out + 8 * lane;
  to[0] = __shfl(v, 5), to[1] = __shfl_up(v, 3, 16), to[2] = __shfl_down(v, 3, 16), to[3] = __shfl_xor(v, 17);
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  to[4] = tile.shfl(v, 20) + 1000 * tile.thread_rank();
  to[5] = (int)tile.ballot(v & 1), to[6] = __popcll(__ballot(v > 31));
  to[7] = tile.all(v < 100) + 2 * tile.any(v == 40);
  d[lane] = __shfl_xor((double)v + 0.25, 1);
}
extern "C" __global__ void some_lanes(const int* x, unsigned long long* out) {
  int lane = threadIdx.x, v = x[lane];
  unsigned long long* to = out + 8 * lane;
  if (v % 3 != 0) return;
  cg::coalesced_group group = cg::coalesced_threads();
  to[0] = group.size(), to[1] = group.thread_rank(), to[2] = group.shfl(v, 0), to[3] = group.shfl(v, v);
  to[4] = group.shfl_up(v, 2), to[5] = group.shfl_down(v, 2), to[6] = group.ballot(v & 1);
  to[7] = group.any(v == 63) + 2 * group.all(v != 62);
}
extern "C" __global__ void counts(int* i, unsigned* u, float* f, double* d, unsigned long long* l) {
  atomicAdd(i, 2), atomicMax(i + 1, (int)threadIdx.x), atomicMin(i + 2, -(int)threadIdx.x), atomicSub(i + 3, 1);
  atomicOr(u, 1u << threadIdx.x % 32), atomicInc(u + 1, 9), atomicXor(u + 2, threadIdx.x);
  atomicAdd(f, 0.5f), unsafeAtomicAdd(f + 1, 0.25f), atomicAdd(d, 1), atomicAdd(l, 1ull << 33);
  unsigned seen = u[3], old;
  do { old = seen; seen = atomicCAS(u + 3, old, old + 3); } while (seen != old);
  f[2 + threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0) + (__syncthreads_or(threadIdx.x == 9) ? 0.5f : 0);
}
extern "C" __global__ void pairs(__half2* h, __hip_bfloat162* b) {
  unsafeAtomicAdd(h, __half2(1, -0.5f)), unsafeAtomicAdd(b, __hip_bfloat162(0.5f, threadIdx.x % 2));
}
extern "C" __global__ void bits(const unsigned* x, unsigned* out) {
  unsigned v = x[threadIdx.x], *to = out + 8 * threadIdx.x;
  to[0] = __popc(v), to[1] = __clz(v), to[2] = __ffs(v), to[3] = __brev(v), to[4] = __umulhi(v, v);
  to[5] = __byte_perm(v, 0x04030201, 0x7140), to[6] = __funnelshift_l(v, 5, 4);
  to[7] = __float_as_uint(__uint2float_rn(v));
}
extern "C" __global__ void products(const int* x, const int* y, const int* z, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, a = x[i], b = y[i], c = z[i];
  int* to = out + 8 * i;
  to[0] = __mul24(a, b), to[1] = __umul24(a, b), to[2] = __mulhi(a, b), to[3] = __umulhi(a, b);
  to[4] = __sad(a, b, c), to[5] = __usad(a, b, c), to[6] = __funnelshift_r(a, b, c), to[7] = __byte_perm(a, b, c);
}
extern "C" __global__ void to_integers(const float* x, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int* to = out + 8 * i;
  to[0] = __float2int_rn(x[i]), to[1] = __float2int_rz(x[i]), to[2] = __float2int_rd(x[i]);
  to[3] = __float2int_ru(x[i]), to[4] = __float2uint_rn(x[i]), to[5] = __float2uint_rz(x[i]);
  to[6] = __double2int_rn(x[i]), to[7] = __double2int_rz(x[i]);
}
template <class T, int times>
__global__ void reverse(T* x) {
  extern __shared__ T kept[];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x] * times;
}
template __global__ void reverse<float, 3>(float*);
"""


@functools.cache
def _device_code() -> bytes:
    return workbench.compile(DEVICE)


def test_coordinates() -> None:
    out = np.zeros((2, 3, 4, 8, 4), np.int32)  # workgroups in y and x, work-items in y and x
    simulator.launch(_device_code(), "places", (3, 2), (8, 4), [out])
    group_y, group_x, y, x = np.ogrid[:2, :3, :4, :8]
    for part, expected in enumerate([x, y, group_x, group_y + 10 * 2 + 100 * 4]):
        np.testing.assert_array_equal(out[..., part], np.broadcast_to(expected, out.shape[:-1]))


def test_shuffles_and_ballots() -> None:
    x = RNG.permutation(64).astype(np.int32)
    out, d = np.zeros((64, 8), np.int32), np.zeros(64)
    simulator.launch(_device_code(), "shuffles", 1, 64, [x, out, d])
    lane = np.arange(64)
    part = lane // 16 * 16
    expected = [
        np.full(64, x[5]),
        x[np.where(lane % 16 >= 3, lane - 3, lane)],
        x[np.where(lane % 16 < 13, lane + 3, lane)],
        x[lane ^ 17],
        x[part + 4] + 1000 * (lane % 16),
        np.repeat([(row & 1) @ (1 << np.arange(16)) for row in x.reshape(4, 16)], 16),
        np.full(64, 32),
        1 + 2 * np.repeat((x.reshape(4, 16) == 40).any(1), 16),
    ]
    np.testing.assert_array_equal(out, np.stack(expected, 1))
    np.testing.assert_array_equal(d, x[lane ^ 1] + 0.25)


def test_groups_of_some_lanes() -> None:
    x = RNG.permutation(64).astype(np.int32)
    out = np.zeros((64, 8), np.uint64)
    simulator.launch(_device_code(), "some_lanes", 1, 64, [x, out])
    group = x[x % 3 == 0]
    rank = np.arange(group.size)
    expected = [
        np.full(group.size, group.size),
        rank,
        np.full(group.size, group[0]),
        group[group % group.size],
        group[np.where(rank >= 2, rank - 2, rank)],
        group[np.where(rank + 2 < group.size, rank + 2, rank)],
        np.full(group.size, (group & 1) @ (1 << rank)),
        np.full(group.size, 3),
    ]
    np.testing.assert_array_equal(out[x % 3 == 0], np.stack(expected, 1).astype(np.uint64))


def test_atomics() -> None:
    i, u = np.array([0, 0, 0, 0], np.int32), np.zeros(4, np.uint32)
    f, d, large = np.zeros(2 + 256, np.float32), np.zeros(1), np.zeros(1, np.uint64)
    simulator.launch(_device_code(), "counts", 2, 256, [i, u, f, d, large])
    np.testing.assert_array_equal(i, [1024, 255, -255, -512])
    np.testing.assert_array_equal(u, [2**32 - 1, 512 % 10, 0, 3 * 512])
    np.testing.assert_array_equal(f[:2], [256, 128])
    np.testing.assert_array_equal(f[2:], np.full(256, 86.5))
    assert d[0] == 512
    assert large[0] == 512 << 33
    h, b = torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)
    simulator.launch(_device_code(), "pairs", 2, 64, [h, b])
    assert (h.tolist(), b.tolist()) == ([128, -64], [64, 64])


def test_bits() -> None:
    x = np.concatenate([[0, 1, 2**32 - 1], RNG.integers(0, 2**32, 61)]).astype(np.uint32)
    out = np.zeros((64, 8), np.uint32)
    simulator.launch(_device_code(), "bits", 1, 64, [x, out])
    for v, found in zip(map(int, x), out, strict=True):
        reversed_bits = int(f"{v:032b}"[::-1], 2)
        low = (v & -v).bit_length()
        permuted = (v & 255) | 0x01 << 8 | (v >> 8 & 255) << 16 | 0x04 << 24
        shifted = ((5 << 32 | v) << 4) >> 32 & 0xFFFFFFFF
        as_float = int(np.float32(v).view(np.uint32))
        expected = [v.bit_count(), 32 - v.bit_length(), low, reversed_bits, v * v >> 32, permuted, shifted, as_float]
        assert found.tolist() == expected


def test_integer_products() -> None:
    ends = [0, 1, -1, 2**31 - 1, -(2**31), 2**23 - 1, -(2**23), 2**24 - 1, 0x7531, -0x1234]
    x, y = (np.array(part, np.int32).ravel() for part in np.meshgrid(ends, ends))
    x, y = np.pad(x, (0, 156), mode="wrap"), np.pad(y, (0, 156), mode="wrap")
    z = RNG.integers(-(2**31), 2**31, 256).astype(np.int32)
    out = np.zeros((256, 8), np.uint32)
    simulator.launch(_device_code(), "products", 4, 64, [x, y, z, out])

    def low_24(v: int) -> int:
        return ((v + 2**23) & 0xFFFFFF) - 2**23

    for a, b, c, found in zip(x.tolist(), y.tolist(), z.tolist(), out.tolist(), strict=True):
        u, v, w = (value & 0xFFFFFFFF for value in (a, b, c))
        both = v << 32 | u
        permuted = bytes(both.to_bytes(8, "little")[w >> 4 * i & 7] for i in range(4))
        expected = [low_24(a) * low_24(b), (u & 0xFFFFFF) * (v & 0xFFFFFF), a * b >> 32, u * v >> 32]
        expected += [w + abs(a - b), w + abs(u - v), both >> (w & 31), int.from_bytes(permuted, "little")]
        assert found == [value & 0xFFFFFFFF for value in expected], (a, b, c)


def test_conversions_to_integers() -> None:
    """They round as they say, NaN is 0, and what is beyond the range is its end."""
    ends = [np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2.0**31 - 128, 2.0**32, 2.0**32 - 256, 3e9, -3e9, -0.6]
    x = np.concatenate([ends, np.arange(-8, 8) / 4, RNG.uniform(-1e10, 1e10, 101)]).astype(np.float32)
    out = np.zeros((x.size, 8), np.uint32)
    simulator.launch(_device_code(), "to_integers", 2, 64, [x, out])
    roundings = [np.rint, np.trunc, np.floor, np.ceil, np.rint, np.trunc, np.rint, np.trunc]
    for column, rounding in enumerate(roundings):
        low, high = (0, 2**32 - 1) if column in (4, 5) else (-(2**31), 2**31 - 1)
        expected = np.nan_to_num(np.clip(rounding(x.astype(np.float64)), low, high)).astype(np.int64)
        np.testing.assert_array_equal(out[:, column], expected.astype(np.uint32))


PARTS = """
#include <cmath>

template <class T>
struct Parts { T modf, whole, remainder, remquo, logb, nextafter, scalbln, sinpi, cospi; };

template <class T>
__device__ void take_apart(const T* x, const T* y, Parts<T>* out, long long* integers) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  T whole;
  int quotient;
  const T fraction = std::modf(x[i], &whole), rest = std::remquo(x[i], y[i], &quotient);
  out[i] = {fraction, whole, std::remainder(x[i], y[i]), rest, std::logb(x[i]), std::nextafter(x[i], y[i]),
            std::scalbln(x[i], 3L), sinpi(x[i]), cospi(x[i])};
  long long* to = integers + 6 * i;
  to[0] = quotient, to[1] = std::ilogb(x[i]), to[2] = std::lrint(x[i]), to[3] = std::llround(x[i]);
  to[4] = fpclassify(x[i]) + 10 * isnormal(x[i]);
  to[5] = isgreater(x[i], y[i]) + 2 * islessequal(x[i], y[i]) + 4 * isunordered(x[i], y[i]);
}
extern "C" __global__ void mixed(int n, float f, double d, double* out) {
  out[0] = std::sqrt(n), out[1] = pow(2, n), out[2] = std::pow(d, f), out[3] = max(f, d), out[4] = min(1u, n);
  out[5] = hypot(n, 4), out[6] = log2(n), out[7] = fmin(f, d), out[8] = max(n, 1l << 40), out[9] = isnan(n);
}
#define TAKE_APART(T)                                                                            \\
  extern "C" __global__ void T##s(const T* x, const T* y, Parts<T>* out, long long* integers) { \\
    take_apart(x, y, out, integers);                                                             \\
  }
TAKE_APART(float)
TAKE_APART(double)
"""


@functools.cache
def _parts_code() -> bytes:
    return workbench.compile(PARTS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_of_numbers(dtype: type) -> None:
    info = np.finfo(dtype)
    kinds = [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -2.5,
        3.5,
        7,
        info.tiny,
        -info.smallest_subnormal,
        info.max,
        np.inf,
        -np.inf,
        np.nan,
    ]
    pairs = [part.ravel() for part in np.meshgrid(kinds, kinds)]
    x = np.concatenate([pairs[0], RNG.uniform(-1, 1, 316) * np.geomspace(1e-30, 1e30, 316)]).astype(dtype)
    y = np.concatenate([pairs[1], RNG.uniform(-9, 9, 316) * np.geomspace(1e-29, 1e26, 316)]).astype(dtype)
    out, integers = np.zeros((512, 9), dtype), np.zeros((512, 6), np.int64)
    simulator.launch(_parts_code(), "doubles" if dtype is np.float64 else "floats", 8, 64, [x, y, out, integers])

    def remainder(a: float, b: float) -> float:
        return math.remainder(a, b) if math.isfinite(a) and b != 0 else math.nan

    fine = np.isfinite(x) & (x != 0)
    with np.errstate(all="ignore"):
        rests = np.array([remainder(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]).astype(dtype)
        exponents = np.where(fine, np.frexp(x)[1] - 1, np.where(x == 0, -np.inf, np.abs(x)))
        columns = [*np.modf(x), rests, rests, exponents, np.nextafter(x, y), x * 8]
    for column, expected in enumerate(columns):
        np.testing.assert_array_equal(out[:, column], expected)
        assert (np.signbit(out[:, column]) == np.signbit(expected))[~np.isnan(expected)].all(), column
    for a, b, (sine, cosine), rest, found in zip(
        x.tolist(), y.tolist(), out[:, 7:].tolist(), rests.tolist(), integers.tolist(), strict=True
    ):
        if math.isfinite(rest) and math.isfinite(b):
            assert abs(found[0]) == abs(round(Fraction(a) / Fraction(b))) % 8, (a, b)
        if math.isfinite(a):
            exact_sine, exact_cosine = (float(f(mpmath.mpf(a))) for f in (mpmath.sinpi, mpmath.cospi))
            assert abs(sine - exact_sine) <= 4 * np.spacing(dtype(abs(exact_sine))), a
            assert abs(cosine - exact_cosine) <= 4 * np.spacing(dtype(abs(exact_cosine))), a
            assert math.copysign(1, sine) == math.copysign(1, exact_sine) or exact_sine == 0, a
        else:
            assert math.isnan(sine)
            assert math.isnan(cosine)
        if abs(a) < 2**62:
            away = math.floor(abs(Fraction(a)) + Fraction(1, 2))
            assert found[2:4] == [round(a), away if a > 0 else -away], a
        kind = 2 if a == 0 else 1 if math.isinf(a) else 0 if a != a else 3 if abs(a) < info.tiny else 14
        assert found[4:] == [kind, (a > b) + 2 * (a <= b) + 4 * (a != a or b != b)], (a, b)
    np.testing.assert_array_equal(integers[fine, 1], exponents[fine])
    assert (integers[x == 0, 1] == -(2**31)).all()
    assert (integers[np.isinf(x), 1] == 2**31 - 1).all()


def test_mixed_arguments() -> None:
    """Integers, and float beside double, are as in C++."""
    out = np.zeros(10)
    simulator.launch(_parts_code(), "mixed", 1, 1, [3, 2.5, 1.1, out])
    expected = [math.sqrt(3), 8, 1.1**2.5, 2.5, 1, 5, math.log2(3), 1.1, 2**40, 0]
    np.testing.assert_allclose(out, expected, rtol=1e-15)


def test_dynamic_lds() -> None:
    x = np.arange(100, dtype=np.float32)
    simulator.launch(_device_code(), "reverse", 1, 100, [x], dynamic_lds=400)
    np.testing.assert_array_equal(x, 3 * np.arange(100)[::-1])

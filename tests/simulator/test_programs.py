"""The HIP programs in ``programs``, compiled by both compilers with and without optimisation, against the CPU.

Unoptimised code keeps all variables in scratch, and accesses scratch and LDS with flat addresses.
"""

from __future__ import annotations

import functools
import hashlib
import math
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton.backends.amd
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator
from deep_gemm_rocm.jit.toolchain import Hipcc

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.usefixtures("checks")


class Programs:
    """``program(name, kernel, grid, block, *arguments)`` launches a kernel of ``programs/<name>.hip``."""

    def __init__(self, build: Callable[..., bytes]) -> None:
        self.code_object = functools.cache(lambda name, *flags: build(PROGRAMS / f"{name}.hip", *flags))

    def __call__(self, name: str, kernel: str, grid: Any, block: Any, *arguments: Any, dynamic_lds: int = 0) -> None:
        simulator.launch(self.code_object(name), kernel, grid, block, arguments, dynamic_lds)


def ziglang(compiler: Compiler, level: str) -> Programs:
    return Programs(lambda program, *flags: compiler.device_code_object(program, level, *flags))


def hipcc(compiler: Compiler, level: str) -> Programs:
    found = Hipcc.find()
    if found is None or found.why_unable():
        pytest.skip("no hipcc that can target gfx942")
    return Programs(lambda program, *flags: compiler.hipcc_code_object(found.program, program, level, *flags))


@pytest.fixture(
    scope="module",
    params=[(ziglang, "-O0"), (ziglang, "-O3"), (hipcc, "-O0"), (hipcc, "-O3")],
    ids=lambda pair: f"{pair[0].__name__}{pair[1]}",
)
def program(compiler: Compiler, request: pytest.FixtureRequest) -> Programs:
    build, level = request.param
    return build(compiler, level)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def poisoned(shape: Any, dtype: Any) -> np.ndarray:
    array = np.empty(shape, dtype)
    array.view(np.uint8).fill(0x7F)
    return array


def blocks(n: int, block: int) -> int:
    return -(-n // block)


# ---- cooperation


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint64])
def test_reduction(program: Programs, dtype: type) -> None:
    n = 3000
    x = rng().integers(-1000, 1000, n).astype(dtype)
    total = np.zeros(1, dtype)
    name = {np.float32: "f32", np.float64: "f64", np.int32: "i32", np.uint64: "u64"}[dtype]
    program("reduction", f"sum_{name}", 3, 192, x, total, n)
    assert total[0] == x.sum()


def test_peaks(program: Programs) -> None:
    n = 200
    x = rng().standard_normal(n).astype(np.float32)
    x[64:128] = -3  # equal values, of which the first must be found
    values, indices = poisoned(4, np.float32), poisoned(4, np.int32)
    program("reduction", "peaks", 1, 256, x, values, indices, n)
    magnitudes = np.pad(np.abs(x), (0, 56), constant_values=-1).reshape(4, 64)
    np.testing.assert_array_equal(values, magnitudes.max(1))
    np.testing.assert_array_equal(indices, magnitudes.argmax(1) + 64 * np.arange(4))


@pytest.mark.parametrize("bins", [7, 256])
def test_histogram(program: Programs, bins: int) -> None:
    x = rng().integers(0, 256, 2000).astype(np.uint8)
    counts = np.zeros(bins, np.uint32)
    program("histogram", "histogram", 3, 128, x, counts, len(x), bins, dynamic_lds=4 * bins)
    np.testing.assert_array_equal(counts, np.bincount(x.astype(int) % bins, minlength=bins))


def test_ranks_in_a_histogram(program: Programs) -> None:
    x = rng().integers(0, 40, 300).astype(np.uint8)
    ranks = poisoned(300, np.uint16)
    program("histogram", "block_ranks", 2, 256, x, ranks, len(x))
    for begin in (0, 256):
        block = slice(begin, begin + 256)
        for value in range(40):
            here = np.sort(ranks[block][x[block] == value])
            np.testing.assert_array_equal(here, np.arange(len(here)))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_transpose(program: Programs, bits: int) -> None:
    x = rng().integers(0, 2**bits, (50, 70), dtype=f"u{bits // 8}")
    y = poisoned((70, 50), x.dtype)
    program("transpose", f"transpose_{bits}", (3, 2), (32, 8), x, y, 50, 70)
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("u64", np.uint64), ("i8", np.int8)])
def test_bitonic_sort(program: Programs, name: str, dtype: type) -> None:
    keys = rng().integers(0, 2**64, (2, 512), dtype=np.uint64)
    keys = keys if dtype == np.uint64 else (keys % 199).astype(np.float64).astype(np.int64).astype(dtype) - dtype(99)
    ordered, values = keys.copy(), np.tile(np.arange(512, dtype=np.uint32), (2, 1))
    program("bitonic_sort", f"sort_{name}", 2, 256, ordered, values)
    np.testing.assert_array_equal(ordered, np.sort(keys, 1))
    np.testing.assert_array_equal(np.take_along_axis(keys, values.astype(np.int64), 1), ordered)
    np.testing.assert_array_equal(np.sort(values, 1), np.tile(np.arange(512), (2, 1)))


def test_stencil(program: Programs) -> None:
    nz, ny, nx = 5, 13, 37
    x = rng().standard_normal((nz, ny, nx)).astype(np.float32)
    y = poisoned(x.shape, np.float32)
    program("stencil", "stencil", (3, 2), (16, 8), x, y, nx, ny, nz)
    padded = np.pad(x.astype(np.float64), 1)
    around = sum(np.roll(padded, step, axis) for step in (1, -1) for axis in range(3))[1:-1, 1:-1, 1:-1]
    np.testing.assert_allclose(y, 0.5 * x.astype(np.float64) + 0.0625 * around, rtol=0, atol=2e-6)


def test_prefix_scan(program: Programs) -> None:
    n = 1500
    x = rng().integers(-1000, 1000, n).astype(np.int32)
    y, states, ticket = poisoned(n, np.int32), np.zeros(6, np.uint64), np.zeros(1, np.uint32)
    program("prefix_scan", "exclusive_scan", 6, 256, x, y, states, ticket, n)
    np.testing.assert_array_equal(y, np.cumsum(x) - x)


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "i8"])
def test_tiled_matmul(program: Programs, name: str) -> None:
    m, n, k = 70, 40, 35
    dtype, result = {
        "f32": (np.float32, np.float32),
        "f64": (np.float64, np.float64),
        "f16": (np.float16, np.float32),
        "i8": (np.int8, np.int32),
    }[name]
    a, b = (rng(seed).integers(-100, 100, shape) for seed, shape in enumerate([(m, k), (k, n)]))
    a, b = (x.astype(dtype) if name == "i8" else (x / 64).astype(dtype) for x in (a, b))
    c = poisoned((m, n), result)
    program("tiled_matmul", f"matmul_{name}", (3, 2), (16, 16), a, b, c, m, n, k)
    # All products are multiples of 2^-12 and all sums are below 2^9, so nothing is rounded.
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_votes(program: Programs) -> None:
    n = 150
    x = rng().integers(0, 1000, n).astype(np.int32)
    masks, flags = np.zeros(192, np.uint64), np.zeros(192, np.int32)
    program("waves", "votes", 1, 192, x, masks, flags, n)
    for wave in range(3):
        values = np.pad(x, (0, 42))[64 * wave : 64 * wave + 64]
        active = values % 5 != 0
        mask = sum(1 << lane for lane in range(64) if active[lane] and values[lane] % 2)
        flag = any(values[active] % 7 == 1) | all(values[active] > 0) << 1
        for lane in range(64):
            first = active[lane] and values[lane] == values[active][0]
            expected = (mask, flag | first << 2) if active[lane] else (0, 0)
            assert (masks[64 * wave + lane], flags[64 * wave + lane]) == expected


def test_matches(program: Programs) -> None:
    keys = rng().integers(0, 9, 128).astype(np.int32)
    masks, ranks = poisoned(128, np.uint64), poisoned(128, np.int32)
    program("waves", "matches", 2, 64, keys, masks, ranks)
    for i in range(128):
        lane, first = i % 64, i // 64 * 64
        equal = keys[first : first + 64] == keys[i]
        assert masks[i] == sum(1 << other for other in range(64) if equal[other])
        assert ranks[i] == equal[:lane].sum()


def test_moves(program: Programs) -> None:
    x = rng().integers(-1000, 1000, 64).astype(np.int32)
    out = poisoned((8, 64), np.int32)
    program("waves", "moves", 1, 64, x, out, 64)
    lane = np.arange(64)
    previous_row = np.where((lane // 16) % 2 == 1, x[(lane & ~15) - 1], -1)
    expected = [
        x[lane ^ 1],
        np.where(lane % 16 > 0, x[lane - 1], -1),
        previous_row,
        x[lane ^ 3],
        x[[list((5 * lane) % 64).index(i) for i in range(64)]],
        x[63 - lane],
        np.full(64, x[17]),
        x[lane ^ 9] + (lane ^ 9),
    ]
    np.testing.assert_array_equal(out, expected)


# ---- arithmetic


INTERESTING = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan]


def samples(dtype: Any, n: int, seed: int) -> np.ndarray:
    """Numbers of all magnitudes, including subnormals, and special values."""
    limits = np.finfo(dtype)
    random = rng(seed)
    exponents = random.uniform(np.log2(float(limits.smallest_subnormal)), np.log2(float(limits.max)) - 0.1, n)
    values = (np.exp2(exponents) * random.choice([-1.0, 1.0], n)).astype(dtype)
    values[::3] = (8 * random.standard_normal(n)).astype(dtype)[::3]
    special = np.array([*INTERESTING, limits.tiny, limits.smallest_subnormal, limits.max, -limits.max], dtype)
    places = random.permutation(n)[: 4 * len(special)]
    values[places] = np.tile(special, 4)
    return values


def same(actual: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Checks that values are equal, including the sign of zeros. Any NaN equals any other."""
    np.testing.assert_array_equal(actual, expected, err_msg=name)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]), err_msg=f"sign of zero, {name}")


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c, rounded once."""
    dtype = a.dtype
    with np.errstate(all="ignore"):
        result = a * b + c
    for i, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            result[i] = np.float64(x) * np.float64(y) + np.float64(z) if dtype != np.float64 else result[i]
            if not np.isfinite(z) and np.isfinite(x) and np.isfinite(y):
                result[i] = z
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact != 0:
            result[i] = nearest(exact, dtype)
    return result


def nearest(exact: Fraction, dtype: Any) -> float:
    """Rounds a fraction other than 0 to the nearest number of a type, ties to even."""
    limits = np.finfo(dtype)
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, int(limits.minexp)) - int(limits.nmant))
    value = round(magnitude / unit) * unit
    return math.copysign(float(value) if value <= Fraction(float(limits.max)) else math.inf, 1 if exact > 0 else -1)


def least(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    smaller = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, smaller))


def rounded_away(a: np.ndarray) -> np.ndarray:
    return np.copysign(np.trunc(np.abs(a)) + (np.abs(a) - np.trunc(np.abs(a)) >= 0.5), a)


@pytest.mark.parametrize(("name", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_float_math(program: Programs, name: str, dtype: type) -> None:
    n = 500
    a, b, c = (samples(dtype, n, seed) for seed in range(3))
    exponents = np.clip(np.nan_to_num(c, posinf=0, neginf=0), -200, 200)
    c = np.where(np.isfinite(c), c, exponents).astype(dtype)
    out = poisoned((16, n), dtype)
    program(f"{name}_math", f"{name}s", 4, 128, a, b, c, out, n)
    with np.errstate(all="ignore"):
        expected = {
            "sum": a + b,
            "product": a * b,
            "quotient": a / b,
            "root": np.sqrt(np.abs(a)),
            "fma": fused(a, b, c),
            "min": least(a, b),
            "max": -least(-a, -b),
            "floor": np.floor(a),
            "ceil": np.ceil(a),
            "trunc": np.trunc(a),
            "rint": np.rint(a),
            "round": np.where(np.isfinite(a), rounded_away(a), a),
            "narrowed": a.astype(np.float16 if dtype == np.float32 else np.float32).astype(dtype),
            "copysign": np.copysign(a, b),
        }
    for row, (operation, values) in enumerate(expected.items()):
        same(out[row], values.astype(dtype), operation)


def test_half_math(program: Programs) -> None:
    n = 400
    x, y, z = (samples(np.float16, 2 * n, seed) for seed in range(3))
    out = poisoned((12, 2 * n), np.float16)
    program("half2_math", "pairs", 4, 128, x, y, z, out, n)
    crossed = y.reshape(n, 2)[:, ::-1].ravel()
    with np.errstate(all="ignore"):
        expected = {
            "sum": x + y,
            "difference": x - y,
            "product": x * y,
            "fma": fused(x, y, z),
            "negated fma": fused(-x, crossed, z),
            "min": least(x, y),
            "max": -least(-x, -y),
            "abs": np.abs(x),
            "quotient": x / y,
            "root": np.sqrt(np.abs(x)),
            "floor": np.floor(x),
            "rint": np.rint(x * np.float16(8)),
        }
    for row, (operation, values) in enumerate(expected.items()):
        same(out[row], values.astype(np.float16), operation)


def test_mixed_precision(program: Programs) -> None:
    n = 300
    x, y = (samples(np.float16, n, seed) for seed in range(2))
    x, y = (np.clip(np.nan_to_num(v), -300, 300).astype(np.float16) for v in (x, y))
    z = (8 * rng(2).standard_normal(n)).astype(np.float32)
    sums, halves, integers = poisoned(n, np.float32), poisoned(n, np.float16), poisoned(n, np.int32)
    program("half2_math", "mixed", 3, 128, x, y, z, sums, halves, integers, n)
    expected = (x.astype(np.float64) * y + z).astype(np.float32)  # the product is exact, contracted or not
    np.testing.assert_array_equal(sums, expected)
    rounded_once = fused(*(v.astype(np.float32) for v in (x, y, z)))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(halves, rounded_once.astype(np.float16), rtol=2**-10, atol=2**-24)
        scaled = x * np.float16(100)
    finite = np.isfinite(scaled)
    less = np.where(x < y, 1000000, 0)
    np.testing.assert_array_equal(integers[finite], (np.trunc(scaled[finite]).astype(np.int32) + less[finite]))


def integers(dtype: Any, n: int, seed: int) -> np.ndarray:
    random = rng(seed)
    values = random.integers(0, 2**64, n, dtype=np.uint64) >> random.integers(0, 64, n, dtype=np.uint64)
    values[:8] = 0, 1, 2**63, 2**63 - 1, 2**64 - 1, 2**32, 2**31, 2**32 - 1
    return random.permutation(values).view(dtype)


def wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_signed_64_bit_math(program: Programs) -> None:
    n = 300
    x, y = integers(np.int64, n, 0), integers(np.int64, n, 1)
    y[y == 0] = 3
    x[(x == -(2**63)) & (y == -1)] = 5
    out = poisoned((12, n), np.int64)
    program("int64_math", "signed_math", 3, 128, x, y, out, n)
    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        expected = [
            wrap(a + b), wrap(a - b), wrap(a * b), truncated(a, b), a - b * truncated(a, b), (a * b) >> 64,
            a >> (b & 63), min(a, b), wrap(-a ^ ~b), wrap(truncated(a, 1000003) + b - 97 * truncated(b, 97)),
            wrap(a + b) != a + b, wrap(a * b) != a * b,
        ]  # fmt: skip
        assert out[:, i].tolist() == expected, (a, b)


def test_unsigned_64_bit_math(program: Programs) -> None:
    n = 300
    x, y = integers(np.uint64, n, 2), integers(np.uint64, n, 3)
    y[y == 0] = 3
    out = poisoned((12, n), np.uint64)
    program("int64_math", "unsigned_math", 3, 128, x, y, out, n)
    mask = 2**64 - 1
    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        s = b & 63
        expected = [
            a // b, a % b, a * b >> 64, a << s & mask, a >> s, 64 - (a | 1).bit_length(),
            ((a | 1 << 63) & -(a | 1 << 63)).bit_length() - 1, a.bit_count(), int(f"{a:064b}"[::-1], 2),
            int.from_bytes(a.to_bytes(8, "little"), "big"), (a << s | a >> (64 - s)) & mask, abs(a - b),
        ]  # fmt: skip
        assert out[:, i].tolist() == expected, (a, b)


def test_conversions_of_64_bit_integers(program: Programs) -> None:
    n = 300
    x, y = integers(np.int64, n, 4), integers(np.uint64, n, 5)
    doubles, floats = poisoned((2, n), np.float64), poisoned((2, n), np.float32)
    program("int64_math", "floats_of_integers", 3, 128, x, y, doubles, floats, n)
    np.testing.assert_array_equal(doubles, [x.astype(np.float64), y.astype(np.float64)])
    np.testing.assert_array_equal(floats, [x.astype(np.float32), y.astype(np.float32)])
    wide = (rng(6).uniform(-1, 1, n) * np.exp2(rng(7).uniform(-2, 62.9, n))).astype(np.float64)
    narrow = wide[::-1].astype(np.float32)
    signed, unsigned = poisoned((2, n), np.int64), poisoned((2, n), np.uint64)
    program("int64_math", "integers_of_floats", 3, 128, wide, narrow, signed, unsigned, n)
    np.testing.assert_array_equal(signed, [wide.astype(np.int64), narrow.astype(np.int64)])
    np.testing.assert_array_equal(unsigned, [np.abs(wide).astype(np.uint64), np.abs(narrow).astype(np.uint64)])


def within(actual: np.ndarray, expected: np.ndarray, ulps: float, name: str) -> None:
    """Checks results to ``ulps`` units in the last place of f32; subnormals may be flushed."""
    assert actual.dtype == np.float32
    finite = np.abs(expected) < np.finfo(np.float32).max
    unit = np.spacing(np.abs(expected[finite]).astype(np.float32))
    error = np.abs(actual[finite] - expected[finite])
    small = np.abs(expected[finite]) < np.finfo(np.float32).tiny
    assert np.all(error <= np.where(small, np.finfo(np.float32).tiny, ulps * unit)), name
    np.testing.assert_array_equal(actual[~finite], expected[~finite].astype(np.float32), err_msg=name)


def test_functions(program: Programs) -> None:
    """exp and log, which compilers expand inline."""
    n = 500
    x = (rng().standard_normal(n) * np.exp2(rng(1).uniform(-12, 8, n))).astype(np.float32)
    x[:4] = 0, 200, -200, 1
    out = poisoned((6, n), np.float32)
    program("float_math", "functions", 4, 128, x, out, n)
    a = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        within(out[0], np.exp(a), 2, "exp")
        within(out[1], np.exp2(a), 2, "exp2")
        for row, function in ((2, np.log), (3, np.log2), (4, np.log10)):
            expected = function(np.abs(a))
            near_one = np.abs(np.abs(a) - 1) < 0.1  # small logarithms have a small absolute error only
            within(out[row][~near_one], expected[~near_one], 3, function.__name__)
            np.testing.assert_allclose(out[row][near_one].astype(float), expected[near_one].astype(float), atol=2**-22)
        within(out[5], 1 / np.sqrt(np.abs(a)), 2, "rsqrt")


def test_transcendental_instructions(program: Programs) -> None:
    """Results are within the CDNA3 ISA's 1 ulp (sin and cos: absolute error) for arguments that aren't subnormal."""
    n = 600
    x = samples(np.float32, n, 4)
    x[(np.abs(x) < np.finfo(np.float32).tiny) & (x != 0)] = 3
    out = poisoned((8, n), np.float32)
    program("float_math", "instructions", 5, 128, x, out, n)
    a = x.astype(np.longdouble)
    magnitude = np.abs(a)
    with np.errstate(all="ignore"):
        for row, expected in enumerate(
            [1 / a, 1 / np.sqrt(magnitude), np.sqrt(magnitude), np.exp2(a), np.log2(magnitude)]
        ):
            defined = ~np.isnan(a)
            within(out[row][defined], expected[defined], 1, str(row))
            assert np.isnan(out[row][~defined]).all()
        moderate = magnitude <= 256
        for row, function in ((5, np.sin), (6, np.cos)):
            expected = function(2 * np.pi * (a[moderate] - np.trunc(a[moderate]))).astype(np.float64)
            np.testing.assert_allclose(out[row][moderate], expected, rtol=0, atol=2**-20)
        fractions = np.minimum(x - np.floor(x), np.float32(1 - 2**-24))
        finite = np.isfinite(x)
        np.testing.assert_array_equal(out[7][finite], fractions[finite])


TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
NEAREST, FLUSHING = 0xF0, 0
DIRECTIONS = {"up": 0xF1, "down": 0xF2, "to_zero": 0xF3}
# Compilers assume that f16 and f64 are rounded to nearest, so directions are tested for f32 only.
MODES = [("f32", mode) for mode in DIRECTIONS.values()] + [
    (name, mode) for name in TYPES for mode in (NEAREST, FLUSHING)
]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_modes(program: Programs, name: str, mode: int) -> None:
    n, dtype = 300, TYPES[name]
    limits = np.finfo(dtype)
    a, b = (samples(dtype, n, seed) for seed in (8, 9))
    a, b = (np.where(np.isfinite(v) & (v != 0), v, dtype(1.25)) for v in (a, b))
    b[::4] = a[::4] * dtype(0.7)
    out = poisoned((2, n), dtype)
    program("modes", f"modes_{name}", 3, 128, a, b, out, n, mode)
    flush = mode == FLUSHING

    def flushed(v: np.ndarray) -> np.ndarray:
        return np.where(np.abs(v) < limits.tiny, np.copysign(dtype(0), v), v) if flush else v

    x, y = flushed(a), flushed(b)
    for row, combine in enumerate((lambda p, q: p + q, lambda p, q: p * q)):
        exact = [combine(Fraction(float(p)), Fraction(float(q))) for p, q in zip(x, y, strict=True)]
        known = np.array([value != 0 for value in exact])  # the sign of zeros isn't checked here
        expected = flushed(np.array([directed(value, dtype, mode & 3) for value in exact], dtype))
        same(out[row][known], expected[known], f"row {row}")


def directed(exact: Fraction, dtype: Any, direction: int) -> float:
    """Rounds to nearest, up, down or to zero."""
    if exact == 0 or direction == 0:
        return nearest(exact, dtype) if exact else 0.0
    limits = np.finfo(dtype)
    value = nearest(exact, dtype)
    toward = {1: math.inf, 2: -math.inf, 3: 0.0}[direction]
    if math.isinf(value) and abs(exact) > Fraction(float(limits.max)):
        away = direction == 1 if exact > 0 else direction == 2
        return value if away else math.copysign(float(limits.max), exact)
    if (direction == 1 and Fraction(value) < exact) or (direction == 2 and Fraction(value) > exact):
        with np.errstate(over="ignore"):
            return float(np.nextafter(dtype(value), dtype(toward)))
    if direction == 3 and abs(Fraction(value)) > abs(exact):
        return float(np.nextafter(dtype(value), dtype(0)))
    return value


# ---- memory


@pytest.mark.parametrize(("name", "dtype"), [("u32", np.uint32), ("u64", np.uint64)])
def test_atomics(program: Programs, name: str, dtype: type) -> None:
    n = 150
    x = rng().integers(0, 2 ** (8 * dtype().itemsize), n, dtype=dtype)
    x[::2] >>= dtype(4 * dtype().itemsize)
    ones = np.iinfo(dtype).max
    start = np.array([0, 0, ones, 0, 0, ones, 0, 0], dtype)
    targets = np.tile(start, 2)
    program("atomics", f"all_{name}", 2, 96, x, start, targets, n)
    total = sum(x.tolist())
    extremes = [np.bitwise_and.reduce(x), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x), x.min(), x.max()]
    expected = [total % (int(ones) + 1), -total % (int(ones) + 1), *map(int, extremes)]
    assert targets[:7].tolist() == expected
    assert targets[8:15].tolist() == expected
    assert targets[15] == ones  # the sum saturates in any order


def test_float_atomics(program: Programs) -> None:
    n = 200
    x = rng().integers(-100, 100, n).astype(np.float32)
    sums, wide, pairs = np.zeros(2, np.float32), np.array([0, 0, np.inf, -np.inf]), np.zeros((4, 2), np.float16)
    program("atomics", "floats", 2, 128, x, sums, wide, pairs, n)
    assert sums.tolist() == [x.sum()] * 2
    assert wide.tolist() == [x.sum(), x.sum(), x.min(), x.max()]
    np.testing.assert_array_equal(pairs, [[50, 50 * i] for i in range(4)])


def test_tickets(program: Programs) -> None:
    n = 100
    counter, taken, wrapped = np.zeros(1, np.uint32), poisoned(n, np.uint32), np.zeros(2, np.uint32)
    program("atomics", "tickets", 2, 64, counter, taken, wrapped, n)
    assert counter[0] == n
    assert sorted(taken) == list(range(n))
    assert wrapped.tolist() == [n % 7, (-n) % 7]


PACKED = np.dtype([("a", "u1"), ("b", "<i2"), ("c", "<i4"), ("d", "<i8"), ("e", "<u2")])


def test_unaligned_structures(program: Programs) -> None:
    n = 100
    packed = np.frombuffer(bytearray(rng().bytes(n * PACKED.itemsize)), PACKED)
    out = poisoned((n, 5), np.int64)
    program("bytes", "unpack", 2, 64, packed, out, n)
    np.testing.assert_array_equal(out, np.stack([packed[name].astype(np.int64) for name in "abcde"], 1))
    back = poisoned(n, PACKED)
    program("bytes", "pack", 2, 64, out, back, n)
    np.testing.assert_array_equal(back.view(np.uint8), packed.view(np.uint8))


def test_halves_of_registers(program: Programs) -> None:
    n = 300
    x, y = rng().integers(0, 2**16, n).astype(np.uint16), rng(1).integers(-128, 128, n).astype(np.int8)
    out = poisoned((n, 2), np.uint16)
    program("bytes", "halves", 2, 256, x, y, out, n)
    other = np.arange(n) ^ 1
    first = x + x * y[other].astype(np.uint16)
    second = y[other].astype(np.uint16) + x[other] * y.view(np.uint8)
    np.testing.assert_array_equal(out, np.stack([first, second], 1))


def test_rc4(program: Programs) -> None:
    n, key_bytes, length = 70, 5, 20
    keys = np.frombuffer(bytearray(rng().bytes(n * key_bytes)), np.uint8).reshape(n, key_bytes)
    out = poisoned((n, length), np.uint8)
    program("bytes", "rc4", 1, 128, keys, key_bytes, out, length, n)
    for key, stream in zip(keys.tolist(), out.tolist(), strict=True):
        state, j, a, expected = list(range(256)), 0, 0, []
        for i in range(256):
            j = (j + state[i] + key[i % key_bytes]) % 256
            state[i], state[j] = state[j], state[i]
        j = 0
        for _ in range(length):
            a = (a + 1) % 256
            j = (j + state[a]) % 256
            state[a], state[j] = state[j], state[a]
            expected.append(state[(state[a] + state[j]) % 256])
        assert stream == expected


# ---- control


def test_recursion(program: Programs) -> None:
    fibonacci = np.array([0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
    y = poisoned(150, np.int32)
    program("calls", "recursion", 2, 128, y, 150)
    np.testing.assert_array_equal(y, fibonacci[np.arange(150) % 12])


def test_function_pointers(program: Programs) -> None:
    n = 150
    x, y = (rng(seed).integers(-1000, 1000, n).astype(np.int32) for seed in range(2))
    which, out = rng(2).integers(0, 256, n).astype(np.uint8), poisoned(n, np.int32)
    program("calls", "by_pointer", 2, 128, x, y, which, out, n)
    np.testing.assert_array_equal(out, np.choose(which % 3, [x + y, x - y, x * y]))


def test_virtual_functions(program: Programs) -> None:
    n = 150
    x, out = rng().integers(0, 100, n).astype(np.float32), poisoned(n, np.float32)
    program("calls", "by_table", 2, 128, x, out, n)
    np.testing.assert_array_equal(out, np.where(np.arange(n) % 3 == 0, x / 2, 3 * x * x))


def test_stack(program: Programs) -> None:
    n = 100
    x, out = rng().integers(0, 1000, n).astype(np.int32), poisoned((n, 40), np.int32)
    program("calls", "much_on_the_stack", 1, 128, x, out, n)
    i, j = np.arange(n)[:, None], np.arange(40)[None, :]
    np.testing.assert_array_equal(out, x[:, None] + (j + i % 40) % 40 + j * (3 + i))


def test_queens(program: Programs) -> None:
    counts = poisoned(7, np.int32)
    program("calls", "queens", 1, 64, counts, 7)
    assert counts.tolist() == [4, 7, 6, 6, 6, 7, 4]


def test_interpreter(program: Programs) -> None:
    n, length = 100, 60
    code, out = rng().integers(0, 256, length).astype(np.uint8), poisoned(n, np.int32)
    program("calls", "interpreter", 1, 128, code, length, out, n)

    def narrow(value: int) -> int:
        return (value + 2**31) % 2**32 - 2**31

    for i in range(n):
        a, b, pc = i, 1, i % 7
        while pc < length:
            match code[pc] % 9:
                case 0:
                    a += b
                case 1:
                    b ^= a
                case 2:
                    a = a * 3 + 1
                case 3:
                    pc += a & 1
                case 4:
                    b = b << 1 | (b % 2**32) >> 31
                case 5:
                    a -= b
                case 6:
                    pc = length if a & 31 == 7 else pc
                case 7:
                    b += pc
                case _:
                    a = ~a
            a, b, pc = narrow(a), narrow(b), pc + 1
        assert out[i] == narrow(a ^ b), i


def test_sha256(program: Programs) -> None:
    n, length = 80, 37
    messages = np.frombuffer(bytearray(rng().bytes(n * length)), np.uint8).reshape(n, length)
    digests = poisoned((n, 8), np.uint32)
    program("hashes", "sha256", 2, 64, messages, length, digests, n)
    assert [row.tobytes() for row in digests] == [hashlib.sha256(row.tobytes()).digest() for row in messages]


def test_crc32(program: Programs) -> None:
    n, length = 80, 37
    messages = np.frombuffer(bytearray(rng().bytes(n * length)), np.uint8).reshape(n, length)
    checks = poisoned(n, np.uint32)
    program("hashes", "crc32", 2, 64, messages, length, checks, n)
    assert checks.tolist() == [zlib.crc32(row.tobytes()) for row in messages]


@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_printf_by_amds_device_library(compiler: Compiler, level: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Uses AMD's device library from Triton."""
    code = printing_code(compiler, level, "hostcall")
    x = np.array([7], np.int32)
    simulator.launch(code, "talk", 1, 3, [x])
    assert capfd.readouterr().out == "7\n" * 3
    assert x[0] == 1
    simulator.launch(code, "stay_silent", 1, 64, [x])
    assert x[0] == 2
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("level", "message"), [("-O0", "outside the memory"), ("-O3", "-mprintf-kind=hostcall")])
def test_buffered_printf_is_refused(compiler: Compiler, level: str, message: str) -> None:
    """Kernels of the same file that don't print still run."""
    code = printing_code(compiler, level, "buffered")
    x = np.zeros(1, np.int32)
    with pytest.raises(simulator.SimulatorError, match=f"kernel talk.*{message}"):
        simulator.launch(code, "talk", 1, 64, [x])
    assert x[0] == 0
    simulator.launch(code, "stay_silent", 1, 64, [x])
    assert x[0] == 2


def printing_code(compiler: Compiler, level: str, kind: str) -> bytes:
    library = str(Path(triton.backends.amd.__path__[0], "lib", "ockl.bc"))
    link = ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", library]
    return compiler.device_code_object(PROGRAMS / "printing.hip", level, f"-mprintf-kind={kind}", *link)

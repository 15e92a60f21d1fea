"""Buffer loads and stores that convert formats, against numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from helpers.machine import Machine
from helpers.simulated_hip import Compiler

UNORM, SNORM, USCALED, SSCALED, UINT, SINT, FLOAT = 0, 1, 2, 3, 4, 5, 7
# Bits of the components in memory, from the lowest on, by the data format's number (CDNA3 ISA, DFMT).
WIDTHS = {
    1: [8],
    2: [16],
    3: [8, 8],
    4: [32],
    5: [16, 16],
    6: [11, 11, 10],
    7: [10, 11, 11],
    8: [2, 10, 10, 10],
    9: [10, 10, 10, 2],
    10: [8, 8, 8, 8],
    11: [32, 32],
    12: [16, 16, 16, 16],
    13: [32, 32, 32],
    14: [32, 32, 32, 32],
}
FLOATS = (2, 4, 5, 6, 7, 11, 12, 13, 14)
CASES = [(data, number) for data in WIDTHS for number in (UNORM, SNORM, USCALED, SSCALED, UINT, SINT)]
CASES += [(data, FLOAT) for data in FLOATS]
COMPONENTS = ("x", "xy", "xyz", "xyzw")
WAIT = "\n  s_waitcnt vmcnt(0)\n"
RESOURCE = """
  s_mov_b64 s[24:25], s[6:7]
  s_or_b32 s25, s25, s16
  s_mov_b32 s26, s17
  s_mov_b32 s27, s18
"""


def typed(access: str, data: int, number: int) -> str:
    return f"{RESOURCE}  tbuffer_{access} v[20:23], v0, s[24:27], 0 format:{data | number << 4} idxen{WAIT}"


def untyped(access: str, registers: str) -> str:
    return f"{RESOURCE}  buffer_{access} {registers}, v0, s[24:27], 0 idxen{WAIT}"


LOADS = {case: typed("load_format_xyzw", *case) for case in CASES}
STORES = {case: typed("store_format_xyzw", *case).replace("v[20:23]", "v[10:13]") for case in CASES}
SWIZZLED = {n: untyped(f"load_format_{COMPONENTS[n - 1]}", f"v[20:{19 + n}]" if n > 1 else "v20") for n in range(1, 5)}
HALVES = {n: untyped(f"load_format_d16_{COMPONENTS[n - 1]}", "v20" if n < 3 else "v[20:21]") for n in range(1, 5)}
STORED_HALVES = untyped("store_format_d16_xyzw", "v[10:11]")
HIGH_HALVES = untyped("load_format_d16_hi_x", "v20") + untyped("store_format_d16_hi_x", "v10")


@pytest.fixture(scope="module")
def machine(compiler: Compiler) -> Machine:
    bodies = [*LOADS.values(), *STORES.values(), *SWIZZLED.values(), *HALVES.values(), STORED_HALVES, HIGH_HALVES]
    return Machine(compiler, bodies)


def resource(data: int, number: int, records: int = 64, select: tuple[int, ...] = (4, 5, 6, 7)) -> list[int]:
    """Words 1 (a stride of one element), 2 and 3 of a buffer resource."""
    selects = sum(select[i] << 3 * i for i in range(4))
    return [sum(WIDTHS[data]) // 8 << 16, records, selects | number << 12 | data << 15]


def bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", np.float32(value)))[0]


def decoded(code: int, width: int, number: int) -> int:
    signed = code - (1 << width) if code >> (width - 1) else code
    if width == 32:
        return code
    match number:
        case 0:
            return bits(code / (2**width - 1))
        case 1:
            return bits(max(-1, signed / (2 ** (width - 1) - 1)))
        case 2:
            return bits(code)
        case 3:
            return bits(signed)
        case 4:
            return code
        case 5:
            return signed % 2**32
    mantissa = {16: 10, 11: 6, 10: 5}[width]
    fraction, exponent = code % 2**mantissa, code >> mantissa & 31
    if exponent == 31:
        magnitude = np.inf if fraction == 0 else np.nan
    else:
        magnitude = (fraction / 2**mantissa + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 15)
    return bits(-magnitude if width == 16 and code >> 15 else magnitude)


def packed(codes: list[int], widths: list[int]) -> bytes:
    value, position = 0, 0
    for code, width in zip(codes, widths, strict=True):
        value |= code << position
        position += width
    return value.to_bytes(position // 8, "little")


def elements(data: int, number: int) -> tuple[list[list[int]], np.ndarray]:
    """Codes of 64 elements, including extremes, and the memory that holds them."""
    rng = np.random.default_rng(data * 8 + number)
    widths = WIDTHS[data]
    codes = [[int(rng.integers(0, 1 << w)) for w in widths] for _ in range(60)]
    codes += [[0] * len(widths), [(1 << w) - 1 for w in widths], [1 << (w - 1) for w in widths], [1] * len(widths)]
    memory = b"".join(packed(element, widths) for element in codes)
    return codes, np.frombuffer(memory, np.uint8).copy()


def same(actual: np.ndarray, expected: np.ndarray, number: int) -> None:
    if number == FLOAT:  # any NaN equals any other
        nan = np.isnan(expected.view(np.float32))
        assert np.isnan(actual.view(np.float32)[nan]).all()
        actual, expected = actual[~nan], expected[~nan]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("data", "number"), CASES)
def test_loads(machine: Machine, data: int, number: int) -> None:
    codes, memory = elements(data, number)
    outputs = machine.run(LOADS[data, number], scalars=resource(data, number), memory=memory)
    for i in range(4):
        expected = [decoded(c[i], WIDTHS[data][i], number) if i < len(c) else 0 for c in codes]
        same(outputs[i], np.array(expected, np.uint32), number)


@pytest.mark.parametrize(("data", "number"), CASES)
def test_stores_of_what_was_loaded(machine: Machine, data: int, number: int) -> None:
    codes, memory = elements(data, number)
    widths = WIDTHS[data]
    if number == SNORM:  # two codes stand for -1
        codes = [[c if c != 1 << (w - 1) or w == 32 else 0 for c, w in zip(cs, widths, strict=True)] for cs in codes]
    if number == FLOAT:  # avoid NaNs, whose bits aren't specified
        finite = [(0x7BFF, 0xFFFF)[w == 16] if w != 32 else 2**32 - 1 for w in widths]
        codes = [
            [
                0 if np.isnan(np.uint32(decoded(c, w, FLOAT)).view(np.float32)) else c & f
                for c, w, f in zip(cs, widths, finite, strict=True)
            ]
            for cs in codes
        ]
    values = [
        np.array([decoded(c[i], widths[i], number) if i < len(c) else 0 for c in codes], np.uint32) for i in range(4)
    ]
    result = np.full_like(memory, 0xA5)
    machine.run(STORES[data, number], *values, scalars=resource(data, number), memory=result)
    assert result.tobytes() == b"".join(packed(element, widths) for element in codes)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_selected_components_and_range(machine: Machine, count: int) -> None:
    codes, memory = elements(10, UNORM)
    select = (7, 1, 0, 4)
    outputs = machine.run(SWIZZLED[count], scalars=resource(10, UNORM, 50, select), memory=memory)
    for i in range(count):
        values = [bits(1) if select[i] == 1 else decoded(c[select[i] - 4], 8, UNORM) if select[i] else 0 for c in codes]
        outside = bits(1) if select[i] == 1 else 0
        np.testing.assert_array_equal(outputs[i], np.array(values[:50] + [outside] * 14, np.uint32))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [SNORM, SINT])
def test_halves(machine: Machine, count: int, number: int) -> None:
    codes, memory = elements(10, number)
    outputs = machine.run(HALVES[count], scalars=resource(10, number), memory=memory)
    halves = outputs[:2].view(np.uint16).reshape(2, 64, 2)
    for i in range(count):
        values = np.array([decoded(c[i], 8, number) for c in codes], np.uint32)
        expected = values.view(np.float32).astype(np.float16).view(np.uint16) if number == SNORM else values
        np.testing.assert_array_equal(halves[i // 2, :, i % 2], expected.astype(np.uint16))


def test_stored_halves(machine: Machine) -> None:
    values = np.linspace(-1, 1, 256, dtype=np.float16).reshape(64, 4)
    memory = np.zeros(256, np.uint8)
    machine.run(STORED_HALVES, values.view(np.uint64).ravel(), scalars=resource(10, SNORM), memory=memory)
    expected = np.rint(values.astype(np.float64) * 127).astype(np.int8).view(np.uint8)
    np.testing.assert_array_equal(memory.reshape(64, 4), expected)
    data = np.arange(64, dtype=np.uint32) << 16 | 0xFFFF
    memory = np.arange(0, 128, 2, dtype=np.uint8)
    outputs = machine.run(HIGH_HALVES, data, scalars=resource(1, UINT), memory=memory)
    np.testing.assert_array_equal(outputs[0], np.arange(0, 128, 2) << 16)
    np.testing.assert_array_equal(memory, np.arange(64))

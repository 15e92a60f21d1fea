"""``simulator.launch``: kernels of any code object on arrays and tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n, double factor, _Float16 offset, char step) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) y[i] = x[i * step] * factor + offset;
}
struct Line {
  float slope;
  double at_zero[2];
};
extern "C" __global__ void on_line(float* y, Line line) {
  int i = __builtin_amdgcn_workitem_id_x();
  y[i] = line.slope * i + line.at_zero[1];
}
extern "C" __global__ void nothing() {}
extern "C" __global__ void is_null(const float* p, int* answer) { *answer = p == nullptr; }
extern "C" __global__ void past_the_end(int* p, int i) { p[i] = 1; }
extern __shared__ int lds[];
extern "C" __global__ void reverse(int* x) {
  int i = __builtin_amdgcn_workitem_id_x(), n = __builtin_amdgcn_workgroup_size_x();
  lds[i] = x[i];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  x[i] = lds[n - 1 - i];
}
"""


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.code_object(SOURCE)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_arguments_by_metadata(code: bytes, make: Callable) -> None:
    x = np.arange(200, dtype=np.float32)
    y = np.full(100, np.nan, np.float32)
    simulator.launch(code, "scale", 2, 64, [make(x), make(y), 100, 0.25, 1.5, 2])
    np.testing.assert_array_equal(y, x[::2] * 0.25 + 1.5)


def test_path_and_ctypes_scalars(code: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kernel.co"
    path.write_bytes(code)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    simulator.launch(
        path, "scale", (1, 1, 1), (64,), [x, y, ctypes.c_int(3), ctypes.c_double(2), 0.0, ctypes.c_byte(1)]
    )
    np.testing.assert_array_equal(y, 2 * x)


def test_structures_by_value(code: bytes) -> None:
    class Line(ctypes.Structure):
        _fields_ = (("slope", ctypes.c_float), ("at_zero", 2 * ctypes.c_double))

    y = np.zeros(64, np.float32)
    simulator.launch(code, "on_line", 1, 64, [y, Line(0.5, (0, 3))])
    np.testing.assert_array_equal(y, 0.5 * np.arange(64) + 3)
    with pytest.raises(ValueError, match=r"args\[1\]: the kernel takes 24 bytes, got c_double_Array_2 of 16"):
        simulator.launch(code, "on_line", 1, 64, [y, (2 * ctypes.c_double)(1, 2)])


def test_views_keep_to_their_elements(code: bytes) -> None:
    whole = np.zeros(10, np.int32)
    simulator.launch(code, "past_the_end", 1, 1, [whole[2:5], np.int8(2)])
    np.testing.assert_array_equal(np.flatnonzero(whole), [4])
    with pytest.raises(simulator.SimulatorError, match=r"past_the_end.*outside"):
        simulator.launch(code, "past_the_end", 1, 1, [whole[2:5], 3])
    with pytest.raises(simulator.SimulatorError, match="outside"):
        simulator.launch(code, "past_the_end", 1, 1, [whole[2:5], -1])
    np.testing.assert_array_equal(np.flatnonzero(whole), [4])


def test_null_pointer_and_no_arguments(code: bytes) -> None:
    answer = np.zeros(1, np.int32)
    simulator.launch(code, "is_null", 1, 1, [None, answer])
    assert answer[0] == 1
    simulator.launch(code, "nothing", (2, 3, 4), (5, 6, 7), [])


def test_dynamic_lds(code: bytes) -> None:
    x = np.arange(256, dtype=np.int32)
    simulator.launch(code, "reverse", 1, 256, [x], dynamic_lds=1024)
    np.testing.assert_array_equal(x, np.arange(256)[::-1])
    with pytest.raises(simulator.SimulatorError, match="LDS"):
        simulator.launch(code, "reverse", 1, 256, [x], dynamic_lds=65537)
    for lds in (-1, 2**32 + 1024, 1024.5):
        with pytest.raises(ValueError, match="dynamic_lds: expected a number of bytes"):
            simulator.launch(code, "reverse", 1, 256, [x], dynamic_lds=lds)


@pytest.mark.parametrize(
    ("kernel", "arguments", "error", "message"),
    [
        ("scale", [], ValueError, "takes 6 arguments, got 0"),
        ("is_null", [1.5, None], TypeError, r"args\[0\]: expected an array, a tensor, an address or None"),
        (
            "past_the_end",
            [np.zeros(1, np.int32), 1e39],
            ValueError,
            r"args\[1\]: 1e\+39 doesn't fit a float of 4 bytes",
        ),
        (
            "past_the_end",
            [np.zeros(1, np.int32), 2**40],
            ValueError,
            r"args\[1\]: 1099511627776 doesn't fit the 4 bytes",
        ),
        (
            "past_the_end",
            [np.zeros(1, np.int32), np.zeros(1)],
            TypeError,
            r"args\[1\]: the kernel takes 4 bytes by value",
        ),
        ("past_the_end", [np.zeros(1, np.int32), "1"], TypeError, r"args\[1\]: expected an array"),
        ("missing", [], simulator.SimulatorError, "missing"),
    ],
)
def test_bad_arguments(code: bytes, kernel: str, arguments: list, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulator.launch(code, kernel, 1, 1, arguments)


@pytest.mark.parametrize(
    "image", [b"", b"\x7fELF", b"not a code object at all" * 10], ids=["empty", "truncated", "text"]
)
def test_bad_code_objects(image: bytes) -> None:
    with pytest.raises(simulator.SimulatorError):
        simulator.launch(image, "kernel", 1, 1, [])


def test_disassemble() -> None:
    code = b"".join(word.to_bytes(4, "little") for word in (0xBF800000, 0x7E000281, 0xBF810000))
    assert simulator.disassemble(code).splitlines() == ["0 s_nop 0", "4 v_mov_b32 v0, 1", "8 s_endpgm"]

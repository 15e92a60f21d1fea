"""The headers of attention: operations across lanes, softmax over blocks of keys, and P as an operand."""

from __future__ import annotations

import ctypes
import functools

import pytest
import torch
from helpers.host_functions import compile_functions
from helpers.paths import TEMPLATES

from deep_gemm_rocm.jit import Kernel, cache, toolchain
from deep_gemm_rocm.jit.paths import include_dir
from deep_gemm_rocm.jit.render import render
from deep_gemm_rocm.jit.source import Source
from deep_gemm_rocm.runtime import hip

WAVE = 64
POISON = 12345.678
ROUNDING = 2.0**-24

# As in templates/deep_gemm_rocm/wave.hip.j2.
MASKS = (1, 2, 3, 7, 15, 16, 31, 32, 63)
DISTANCES = (16, 32)
NEIGHBOURS = (1, 2, 4, 8, 16)


def kernel(template: str, values: dict, argtypes: tuple) -> Kernel:
    source = Source.collect(template, render(TEMPLATES / "deep_gemm_rocm", f"{template}.hip.j2", values), include_dir())
    return Kernel(cache.obtain(source, toolchain.choose()), argtypes)


@functools.cache
def wave_kernel() -> Kernel:
    return kernel("wave", {}, (ctypes.c_void_p,) * 3)


@functools.cache
def softmax_kernel(type_: str, rows: int, fragments: int) -> Kernel:
    argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_float, *(ctypes.c_void_p,) * 3)
    return kernel("online_softmax", {"type": type_, "rows": rows, "fragments": fragments}, argtypes)


def test_operations_across_lanes():
    values = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:WAVE].float() - 500
    expected = [values[torch.arange(WAVE) ^ mask] for mask in MASKS]
    for distance in DISTANCES:
        groups = values.view(-1, distance)
        expected += [groups.amax(0).repeat(WAVE // distance), groups.sum(0).repeat(WAVE // distance)]
    for lanes in NEIGHBOURS:
        near = values.view(-1, lanes)
        expected += [near.amax(1).repeat_interleave(lanes), near.sum(1).repeat_interleave(lanes)]
    expected.append(values.cumsum(0))
    out = torch.full((len(expected), WAVE), POISON)
    with hip.runtime().launching(values=values, out=out) as stream:
        wave_kernel()(values.data_ptr(), out.data_ptr(), stream)
    assert torch.equal(out, torch.stack(expected))  # integers: every order of summation is exact


TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fnuz}
EXPONENT = {"bf16": 0, "f16": 0, "e4m3": 7}  # probabilities are scaled by 2 to this power


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("case", ["random", "large", "equal", "masked", "nan"])
def test_softmax_over_blocks(type_, rows, case):
    """Two blocks of keys, against a reference that sees all keys at once."""
    fragments = 32 // rows * 2
    logits = torch.randn(2, fragments * rows, rows, generator=torch.Generator().manual_seed(0))
    scale = 0.7
    if case == "large":
        logits *= 1e4
    elif case == "equal":
        logits[:] = 3.0
    elif case == "masked":  # a query that sees nothing, one that sees only the second block, one the first
        logits[:, :, 0] = -torch.inf
        logits[0, :, 1] = -torch.inf
        logits[1, :, 2] = -torch.inf
    elif case == "nan":
        logits[1, 5, 3] = torch.nan
    factors, out = torch.full((2, WAVE), POISON), torch.full((3, WAVE), POISON)
    with hip.runtime().launching(logits=logits, factors=factors, out=out) as stream:
        softmax_kernel(type_, rows, fragments)(logits.data_ptr(), 2, scale, factors.data_ptr(), out.data_ptr(), stream)
    assert all(torch.equal(t.view(-1, rows).nan_to_num(-1), t[None, :rows].nan_to_num(-1).expand(WAVE // rows, -1))
               for t in (*factors, *out))  # all lane groups know it  # fmt: skip
    scaled = logits.double() * torch.tensor(scale).double()
    highest = scaled.masked_fill(scaled.isnan(), -torch.inf).amax(1).cummax(0).values
    finite = highest.nan_to_num(neginf=0.0)
    # The error of an exponent is the rounding of the logits and of their maximum to fp32.
    error = 8 * ROUNDING * (1 + scaled.nan_to_num(0, 0, 0).abs().amax()) + 2**-20

    def close(actual, expected, tolerance):
        same = (actual == expected) | (actual.isnan() & expected.isnan())
        return (same | ((actual - expected).abs() <= tolerance)).all()

    before = torch.cat([torch.full((1, rows), -torch.inf).double(), highest[:1]])
    assert close(factors[:, :rows].double(), torch.exp2(before - finite), error)
    probabilities = torch.exp2(scaled - finite[1] + EXPONENT[type_])
    total = probabilities.sum((0, 1))
    assert close(out[0, :rows].double(), total, error * total + error)
    lse = torch.logsumexp(scaled.flatten(0, 1) * torch.log(torch.tensor(2.0)).double(), dim=0)
    assert close(out[1, :rows].double(), lse, error + 4 * ROUNDING * lse.abs())
    last = probabilities[1].sum(0)
    eps = {"bf16": 2**-8, "f16": 2**-10, "e4m3": 2**-4}[type_]
    assert close(out[2, :rows].double(), last, (eps + error) * last + rows * fragments * 2**-11)


LAYOUT = """
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/hardware/mfma_shape.h"
using namespace deep_gemm_rocm;
extern "C" int key(int mfma_rows, int run, int row) {
  return mfma_rows == 16 ? run == 8 ? RowsInRuns<MfmaShape<16>, 8>::of_lds_row(row)
                                    : RowsInRuns<MfmaShape<16>, 16>::of_lds_row(row)
         : run == 8      ? RowsInRuns<MfmaShape<32>, 8>::of_lds_row(row)
                         : RowsInRuns<MfmaShape<32>, 16>::of_lds_row(row);
}
"""


@pytest.mark.parametrize("run", [8, 16])
@pytest.mark.parametrize("mfma_rows", [16, 32])
def test_probabilities_are_in_the_order_of_values(tmp_path, mfma_rows, run):
    """The keys of a lane's elements of S = K Qᵀ are, in order, those that it reads as 16 bytes of a row of Vᵀ."""
    key = compile_functions(tmp_path, LAYOUT).key
    groups, elements = WAVE // mfma_rows, mfma_rows * mfma_rows // WAVE
    rows = 128
    assert sorted(key(mfma_rows, run, row) for row in range(rows)) == list(range(rows))
    for group in range(groups):
        held = [
            key(mfma_rows, run, first + 4 * groups * (element // 4) + 4 * group + element % 4)
            for first in range(0, rows, mfma_rows)
            for element in range(elements)
        ]
        read = [chunk * run + i for chunk in range(group, rows // run, groups) for i in range(run)]
        assert held == read

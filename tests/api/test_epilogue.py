"""Bias, activation and quantisation in the epilogue, also with groups, extreme values and bad arguments."""

from __future__ import annotations

import itertools
import typing

import pytest
import torch
from helpers.default_run import these

import deep_gemm_rocm as dg
from deep_gemm_rocm.problems.gemm_kind import EPILOGUES
from deep_gemm_rocm.testing import (
    GuardedOutput,
    activations,
    assert_accurate,
    assert_accurately_quantised,
    gemm_problem,
    gemm_reference,
    weights,
)

E4M3 = torch.float8_e4m3fnuz
ROOM, M, N, K = 128, 48, 256, 384
SIZES = [37, 0, 128, 1]


def quantised_output(m: int, n: int) -> tuple[GuardedOutput, GuardedOutput]:
    return GuardedOutput(m, n, dtype=E4M3), GuardedOutput(m, -(-n // 128), dtype=torch.float32)


@pytest.mark.parametrize(
    ("grouping", "quantised"),
    these(
        itertools.product(("ids", "psum", "masked"), (False, True)), [("ids", False), ("psum", True), ("masked", False)]
    ),
)
def test_groups(grouping, quantised):
    groups, rows = len(SIZES), ROOM * len(SIZES)
    a = dg.per_token_cast_to_fp8(activations(rows, K))
    weight = torch.stack([weights(2 * N, K, group) for group in range(groups)])
    data, scales = zip(*(dg.per_block_cast_to_fp8(w) for w in weight), strict=True)
    b = torch.stack(data), torch.stack(scales)
    bias = torch.randn(groups, 2 * N + 3, generator=torch.Generator().manual_seed(0))[:, 3:]
    output, output_scales = quantised_output(rows, N) if quantised else (GuardedOutput(rows, N),) * 2
    d = (output.tensor, output_scales.tensor) if quantised else output.tensor
    exists = torch.cat([torch.arange(ROOM) < size for size in SIZES])
    hooks = {"bias": bias, "epilogue": "silu_and_mul"}
    if grouping == "masked":

        def split(t):
            return t.unflatten(0, (groups, ROOM))

        d_of_groups = tuple(map(split, d)) if quantised else split(d)
        dg.m_grouped_fp8_gemm_nt_masked(tuple(map(split, a)), b, d_of_groups, torch.tensor(SIZES).int(), 40, **hooks)
        output.assert_intact(exists)
        output_scales.assert_intact(exists)
    else:
        ids = torch.where(exists, torch.arange(groups).repeat_interleave(ROOM), -1).int()
        # In this layout, the second group, which is empty, takes no room.
        ends = torch.tensor([37, 128, 128 + 128, 256 + 1]).int()
        if grouping == "psum":
            a = tuple(torch.cat([t[:ROOM], t[2 * ROOM :], t[ROOM : 2 * ROOM]]) for t in a)
        layout = ends if grouping == "psum" else ids
        dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, layout, use_psum_layout=grouping == "psum", **hooks)
        output.assert_intact()
        output_scales.assert_intact()
        padding = output.tensor[37:128]
        assert (padding.float() == 0).all()
    starts = [0, 128, 128, 256] if grouping == "psum" else [0, 128, 256, 384]
    for group, (start, size) in enumerate(zip(starts, SIZES, strict=True)):
        own = slice(start, start + size)
        reference = gemm_reference(
            tuple(t[own] for t in a), (b[0][group], b[1][group]), bias=bias[group], epilogue="silu_and_mul"
        )
        if quantised:
            assert_accurately_quantised(tuple(t[own] for t in d), reference)
        else:
            assert_accurate(d[own], reference)


SILU = {"bias": torch.randn(2 * N, generator=torch.Generator().manual_seed(3)), "epilogue": "silu_and_mul"}


def transposed(operand):
    return tuple(part.mT.contiguous() for part in operand) if isinstance(operand, tuple) else operand.mT.contiguous()


def output_of(rows: int, quantised: bool):
    return (torch.empty(rows, N, dtype=E4M3), torch.empty(rows, N // 128)) if quantised else torch.empty(rows, N)


def assert_as_the_reference(d, reference):
    if isinstance(d, tuple):
        assert_accurately_quantised(d, reference)
    else:
        assert_accurate(d, reference)


DENSE_NAMES = (
    *(f"fp8_gemm_{layout}" for layout in ("nn", "tn", "tt")),
    *(f"fp8_fp4_gemm_{layout}" for layout in ("nt", "nn", "tn", "tt")),
    *(f"bf16_gemm_{layout}" for layout in ("nn", "tn", "tt")),
    "gemm_fp8_fp8_bf16_nt",
)
GROUPED_NAMES = (
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked",
)


@pytest.mark.parametrize(
    ("quantised", "name"),
    these(itertools.product((False, True), DENSE_NAMES), [(False, "fp8_gemm_nn"), (True, "fp8_fp4_gemm_nt")]),
)
def test_dense_names(name, quantised):
    a, b = gemm_problem(M, 2 * N, K)
    if name.startswith("bf16"):
        a, b = activations(M, K), weights(2 * N, K)
    reference = gemm_reference(a, b, **SILU)
    layout = name.rpartition("_")[2]
    d = output_of(M, quantised)
    operands = transposed(a) if layout[0] == "t" else a, transposed(b) if layout[1] == "n" else b
    getattr(dg, name)(*operands, d, **SILU)
    assert_as_the_reference(d, reference)


@pytest.mark.parametrize(
    ("quantised", "name"),
    these(
        itertools.product((False, True), GROUPED_NAMES),
        [(False, "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous"), (True, "m_grouped_fp8_fp4_gemm_nn_contiguous")],
    ),
)
def test_grouped_names(name, quantised):
    groups, used = 2, [128, 37]
    a, b = activations(groups * ROOM, K), torch.stack([weights(2 * N, K, group) for group in range(groups)])
    if "fp8" in name:
        a = dg.per_token_cast_to_fp8(a)
        b = tuple(map(torch.stack, zip(*(dg.per_block_cast_to_fp8(w) for w in b), strict=True)))
    hooks = {**SILU, "bias": torch.stack([SILU["bias"], -SILU["bias"]])}
    d = output_of(groups * ROOM, quantised)

    def each(function, operand):
        return tuple(map(function, operand)) if isinstance(operand, tuple) else function(operand)

    if name.endswith("masked"):

        def split(t):
            return t.unflatten(0, (groups, ROOM))

        getattr(dg, name)(each(split, a), b, each(split, d), torch.tensor(used).int(), 40, **hooks)
    else:
        ids = torch.cat([torch.where(torch.arange(ROOM) < m, group, -1) for group, m in enumerate(used)]).int()
        getattr(dg, name)(a, transposed(b) if "_nn_" in name else b, d, ids, **hooks)
    for group, m in enumerate(used):
        own = slice(group * ROOM, group * ROOM + m)
        operands = each(lambda t, own=own: t[own], a), each(lambda t, group=group: t[group], b)
        reference = gemm_reference(*operands, bias=hooks["bias"][group], epilogue="silu_and_mul")
        assert_as_the_reference(each(lambda t, own=own: t[own], d), reference)


def test_what_the_epilogue_may_be_is_in_its_type():
    names, none = typing.get_args(dg.Epilogue)
    assert typing.get_args(names) == EPILOGUES
    assert none is type(None)


def test_scales_of_the_output_have_any_strides():
    a, b = gemm_problem(70, 300, 256)
    expected = torch.empty(70, 300, dtype=E4M3), torch.empty(70, 3)
    dg.fp8_gemm_nt(a, b, expected)
    strided = torch.full((3, 80), torch.nan)
    data = torch.empty(70, 300, dtype=E4M3)
    dg.fp8_gemm_nt(a, b, (data, strided[:, :70].T))
    assert torch.equal(data.view(torch.uint8), expected[0].view(torch.uint8))
    assert torch.equal(strided[:, :70].T, expected[1])
    assert strided[:, 70:].isnan().all()


def test_quantised_extremes():
    """Like per_token_cast_to_fp8: NaN and infinity make their row's block NaN, zeros stay zeros."""
    a = torch.zeros(4, 128)
    a[0, 0] = torch.nan
    a[1, 0] = 1
    b = torch.ones(256, 128)
    b[:128] = 0
    (a_data, sfa), (b_data, sfb) = dg.per_token_cast_to_fp8(a), dg.per_block_cast_to_fp8(b)
    sfa[2], a_data[2, 0] = torch.inf, 1.0
    d = torch.empty(4, 256, dtype=E4M3), torch.empty(4, 2)
    dg.fp8_gemm_nt((a_data, sfa), (b_data, sfb), d)
    values = d[0].float() * d[1].repeat_interleave(128, 1)
    assert values[0].isnan().all()
    assert (values[1, :128] == 0).all()
    assert torch.allclose(values[1, 128:], torch.tensor(1.0))
    assert values[2].isnan().all()
    assert (d[0][3].view(torch.uint8) == 0).all()
    assert (d[1][3] == torch.finfo(torch.float32).tiny).all()
    b_data.view(torch.uint8)[7, 0] = 0x80  # the NaN of a single column
    dg.fp8_gemm_nt((a_data, sfa), (b_data, sfb), d)
    values = d[0].float() * d[1].repeat_interleave(128, 1)
    assert values[:, :128].isnan().all()
    assert not values[[1, 3], 128:].isnan().any()


def test_silu_of_extremes_is_torchs():
    gates = torch.tensor([-torch.inf, -200, -88.5, -20, -1e-30, 0, 1e-30, 20, 100, 3e38, torch.inf, torch.nan])
    a = dg.per_token_cast_to_fp8(torch.zeros(1, 128))
    b = dg.per_token_cast_to_fp8(torch.zeros(24, 128))
    d = torch.empty(1, 12)
    bias = torch.cat([gates, torch.ones(12)])
    dg.fp8_gemm_nt(a, b, d, recipe=(1, 1, 128), bias=bias, epilogue="silu_and_mul")
    expected = torch.nn.functional.silu(gates.double())
    torch.testing.assert_close(d[0].double(), expected, rtol=2e-5, atol=1e-35, equal_nan=True)


BAD = {
    "unknown epilogue": ({"epilogue": "gelu"}, ValueError, r"one of \('identity', 'silu_and_mul'\), got 'gelu'"),
    "epilogue of another type": ({"epilogue": ["identity"]}, ValueError, "epilogue must be one of"),
    "bias of another shape": ({"bias": torch.zeros(8)}, ValueError, r"bias must have shape \(256,\), .* row of b"),
    "bias of another type": ({"bias": torch.zeros(256).double()}, TypeError, "bias must be bfloat16, float16 or"),
    "no tensor as bias": ({"bias": 1.0}, TypeError, "bias must be a torch.Tensor, got float"),
    "strided bias": ({"bias": torch.zeros(512)[::2]}, ValueError, "bias must be contiguous"),
    "c and an activation": (
        {"c": torch.zeros(16, 128).bfloat16(), "epilogue": "silu_and_mul", "d": torch.zeros(16, 128).bfloat16()},
        ValueError,
        "c must be None where",
    ),
    "d of all of b's rows": ({"epilogue": "silu_and_mul"}, ValueError, r"d must have shape \(16, 128\)"),
    "a pair without FP8": ({"d": (torch.zeros(16, 256), torch.zeros(16, 2))}, TypeError, r"d\[0\] must be float8"),
    "FP8 without scales": ({"d": torch.zeros(16, 256).to(E4M3)}, TypeError, "d must be bfloat16, float16 or float32"),
    "a pair of three": ({"d": (torch.zeros(16, 256),) * 3}, TypeError, "d must be a pair"),
    "few scales": (
        {"d": (torch.zeros(16, 256).to(E4M3), torch.zeros(16, 1))},
        ValueError,
        r"d\[1\] must have shape \(16, 2\), one scale for each row and 128 columns of d\[0\]",
    ),
    "scales that overlap": (
        {"d": (torch.zeros(16, 256).to(E4M3), torch.zeros(1, 2).expand(16, 2))},
        ValueError,
        r"d\[1\] must have elements that don't overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(launched, name):
    changed, error, message = BAD[name]
    a, b = gemm_problem(16, 256, 128)
    arguments = {"a": a, "b": b, "d": torch.zeros(16, 256).bfloat16(), **changed}
    with pytest.raises(error, match=message):
        dg.fp8_gemm_nt(**arguments)
    assert not launched


def test_parts_of_b_are_whole_blocks_of_scales(launched):
    a, b = gemm_problem(16, 384, 128)
    with pytest.raises(ValueError, match=r"b\[0\] must have a multiple of 256 rows for silu_and_mul, got 384"):
        dg.fp8_gemm_nt(a, b, torch.zeros(16, 192).bfloat16(), epilogue="silu_and_mul")
    with pytest.raises(TypeError, match=r"out must be .* got tuple"):
        dg.gemm_fp8(a, b, (torch.zeros(16, 384).to(E4M3), torch.zeros(16, 3)))
    assert not launched


def test_quantised_output_shares_no_memory(launched):
    a, b = gemm_problem(16, 256, 128)
    storage = torch.zeros(16 * 256 + 16 * 2 * 4, dtype=torch.uint8)
    data = storage[: 16 * 256].view(E4M3).view(16, 256)
    scales = storage[16 * 256 - 128 : 16 * 256].view(torch.float32).view(16, 2)
    with pytest.raises(ValueError, match=r"d\[0\] must not share memory with d\[1\]"):
        dg.fp8_gemm_nt(a, b, (data, scales))
    assert not launched

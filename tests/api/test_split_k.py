"""Dense GEMM with split K: results, their independence of the number of CUs, and when K is split."""

from __future__ import annotations

import contextlib

import pytest
import torch
from helpers.default_run import some, these

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import choose_dense, choose_gemm_config, forced
from deep_gemm_rocm.heuristics.gemm_problem import Choice
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.testing import (
    GuardedOutput,
    activations,
    assert_accurate,
    assert_accurately_quantised,
    gemm_problem,
    gemm_reference,
    weights,
)

D_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def in_parts(kind: GemmKind, m: int, n: int, k: int, parts: int) -> contextlib.AbstractContextManager[None]:
    """Forces K of these problems to be split into ``parts``, with the heuristic's configuration for parts."""
    return forced(Choice(choose_gemm_config(kind.in_parts, m, n * kind.parts, k, num_groups=parts), parts))


def splits_of(kind: GemmKind, m: int, n: int, k: int) -> int:
    return choose_dense(kind, m, n, k).splits


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [(1, 64, 1024, 2), (33, 136, 1040, 3), (7, 259, 640, 5), (9, 1300, 384, 3), (130, 40, 272, 3), (5, 4, 2176, 17)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_fp8(m, n, k, parts, dtype):
    a, b = gemm_problem(m, n, k)
    bias = torch.randn(n, generator=torch.Generator().manual_seed(0))
    output = GuardedOutput(m, n, dtype=dtype)
    with in_parts(GemmKind(d_type=D_TYPES[dtype], bias="f32"), m, n, k, parts):
        dg.fp8_gemm_nt(a, b, output.tensor, bias=bias)
    output.assert_intact()
    assert_accurate(output.tensor, gemm_reference(a, b, bias=bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_bf16_with_c_in_place(dtype):
    a, b = activations(19, 776), weights(72, 776)
    c = torch.randn(19, 72, generator=torch.Generator().manual_seed(0)).to(dtype)
    output = GuardedOutput(19, 72, dtype=dtype)
    output.tensor.copy_(c)
    kind = GemmKind("bf16", "bf16", D_TYPES[dtype], "none", accumulate=True, b_major="rows")
    with in_parts(kind, 19, 72, 776, 4):
        dg.bf16_gemm_nn(a, b.T.contiguous(), output.tensor, output.tensor)
    output.assert_intact()
    assert_accurate(output.tensor, gemm_reference(a, b, c=c))


@pytest.mark.parametrize("n", some([1031, 1, 2, 3, 5, 66, 259, 518], 5))
def test_ragged_columns_with_bias_and_c(n):
    """The last columns include those of lanes for which a vector load would reach beyond the output's end."""
    a, b = activations(5, 520), weights(n, 520)
    generator = torch.Generator().manual_seed(n)
    bias, c = torch.randn(n, generator=generator) * 100, torch.randn(5, n, generator=generator) * 100
    for dtype, d_type in D_TYPES.items():
        output = GuardedOutput(5, n, dtype=dtype)
        with in_parts(GemmKind("bf16", "bf16", d_type, "none", accumulate=True, bias="f32"), 5, n, 520, 3):
            dg.bf16_gemm_nt(a, b, output.tensor, c.to(dtype), bias=bias)
        output.assert_intact()
        assert_accurate(output.tensor, gemm_reference(a, b, bias=bias, c=c.to(dtype)))


@pytest.mark.parametrize(
    ("d_type", "m", "n", "k", "parts"),
    these(
        [
            (d_type, *sizes)
            for sizes in ((33, 384, 1040, 3), (9, 640, 1280, 5), (5, 128, 640, 2))
            for d_type in ("e4m3", "e5m2", "bf16")
        ],
        [("e4m3", 33, 384, 1040, 3), ("e5m2", 9, 640, 1280, 5), ("bf16", 33, 384, 1040, 3)],
    ),
)
def test_activated_and_quantised(d_type, m, n, k, parts):
    """The second pass does what the epilogue would, under the sanitizer: bias, activation, scales of 128 columns."""
    a, b = gemm_problem(m, 2 * n, k)
    bias = torch.randn(2 * n, generator=torch.Generator().manual_seed(0)) * 10
    reference = gemm_reference(a, b, bias=bias, epilogue="silu_and_mul")
    kind = GemmKind(d_type=d_type, activation="silu_and_mul", bias="f32")
    output = GuardedOutput(m, n, dtype=torch.bfloat16 if d_type == "bf16" else getattr(torch, f"float8_{d_type}fnuz"))
    scales = GuardedOutput(m, n // 128, dtype=torch.float32)
    with in_parts(kind, m, n, k, parts):
        d = output.tensor if d_type == "bf16" else (output.tensor, scales.tensor)
        dg.fp8_gemm_nt(a, b, d, bias=bias, epilogue="silu_and_mul")
    output.assert_intact()
    if d_type == "bf16":
        assert_accurate(output.tensor, reference)
    else:
        scales.assert_intact()
        assert_accurately_quantised((output.tensor, scales.tensor), reference)


@pytest.mark.parametrize("n", [1, 66, 130, 259, 515])
def test_quantised_ragged_columns(n):
    """Lanes beyond the last column take no part in a row's scale, in whatever layout scales are."""
    a, b = activations(5, 520), weights(2 * n, 520)
    output = GuardedOutput(5, n, dtype=torch.float8_e4m3fnuz)
    scales = torch.full((-(-n // 128), 5), torch.nan).T
    with in_parts(GemmKind("bf16", "bf16", "e4m3", "none", activation="silu_and_mul"), 5, n, 520, 3):
        dg.bf16_gemm_nt(a, b, (output.tensor, scales), epilogue="silu_and_mul")
    output.assert_intact()
    assert_accurately_quantised((output.tensor, scales), gemm_reference(a, b, epilogue="silu_and_mul"))


def test_scales_far_apart():
    """A row's scales may be spread over more than 2 GiB, of which only a few pages are ever touched."""
    a, b = activations(5, 256), weights(4096, 256)
    output = GuardedOutput(5, 4096, dtype=torch.float8_e4m3fnuz)
    scales = torch.empty_strided((5, 32), (1, 2**25)).fill_(torch.nan)
    with in_parts(GemmKind("bf16", "bf16", "e4m3", "none"), 5, 4096, 256, 2):
        dg.bf16_gemm_nt(a, b, (output.tensor, scales))
    output.assert_intact()
    assert_accurately_quantised((output.tensor, scales), gemm_reference(a, b))


def test_rows_of_zeros_and_nans():
    """As per_token_cast_to_fp8: the least normal scale, and a NaN that makes a row's 128 columns NaN."""
    a, b = activations(4, 512).float(), weights(256, 512)
    a[1] = 0
    a[2, 7] = torch.nan
    d = (torch.zeros(4, 256).to(torch.float8_e4m3fnuz), torch.zeros(4, 2))
    with in_parts(GemmKind("bf16", "bf16", "e4m3", "none"), 4, 256, 512, 2):
        dg.bf16_gemm_nt(a.bfloat16(), b, d)
    assert (d[1][1] == torch.finfo(torch.float32).tiny).all()
    assert (d[0][1].float() == 0).all()
    assert d[1][2].isnan().all()
    assert d[0][2].float().isnan().all()
    assert d[0][[0, 3]].float().isfinite().all()


def test_scales_of_rows():
    a8, b8 = (activations(16, 1024) / 8).to(torch.float8_e4m3fnuz), weights(64, 1024).to(torch.float8_e4m3fnuz)
    sfa, sfb = torch.linspace(0.5, 2, 16)[:, None], torch.linspace(1, 3, 64)[:, None]
    d = torch.empty(16, 64).bfloat16()
    with in_parts(GemmKind(scaling="rows"), 16, 64, 1024, 3):
        dg.fp8_gemm_nt((a8, sfa), (b8, sfb), d, recipe=(1, 1, None))
    assert_accurate(d, gemm_reference((a8, sfa), (b8, sfb), recipe=(1, 1, None)))


def test_parts_without_k():
    a, b = gemm_problem(3, 8, 256)
    d = torch.full((3, 8), torch.nan)
    with in_parts(GemmKind(d_type="f32"), 3, 8, 256, 4):
        dg.fp8_gemm_nt(a, b, d)
    assert_accurate(d, gemm_reference(a, b))


def test_the_same_bits_with_fewer_compute_units():
    a, b = gemm_problem(16, 128, 16384)
    assert splits_of(GemmKind(), 16, 128, 16384) > 1
    results = []
    for num_sms in (304, 38, 1):
        dg.set_num_sms(num_sms)
        results.append(dg.gemm_fp8(a, b))
    assert all(torch.equal(result, results[0]) for result in results)
    assert_accurate(results[0], gemm_reference(a, b))


def test_only_problems_of_few_tiles_and_long_k_are_split():
    assert splits_of(GemmKind(), 16, 128, 16384) > 1
    assert splits_of(GemmKind(), 4096, 4096, 7168) == 1
    assert splits_of(GemmKind(), 64, 32768, 512) == 1
    assert splits_of(GemmKind(activation="silu_and_mul"), 128, 7168, 16384) == 1
    activated = GemmKind("bf16", "bf16", scaling="none", activation="silu_and_mul")
    assert {splits_of(activated, m, n, 16384) for m in (1, 64, 128) for n in (64, 512, 5120)} == {1}
    assert splits_of(GemmKind(d_type="e4m3", activation="silu_and_mul"), 64, 512, 7168) > 1
    assert splits_of(GemmKind(d_type="e4m3"), 4096, 4096, 7168) == 1

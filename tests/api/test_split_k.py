"""Dense GEMM with split K: results, their independence of the number of CUs, and when K is split."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import choose_dense, choose_gemm_config, forced
from deep_gemm_rocm.heuristics.gemm_problem import Choice, with_tail
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.testing import (
    GuardedOutput,
    activations,
    assert_accurate,
    gemm_problem,
    gemm_reference,
    weights,
)

D_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def in_parts(kind: GemmKind, m: int, n: int, k: int, parts: int) -> contextlib.AbstractContextManager[None]:
    """Forces K of these problems to be split into ``parts``, with the heuristic's configuration for parts."""
    of_parts = choose_gemm_config(dataclasses.replace(kind, grouping="split_k"), m, n, k, num_groups=parts)
    return forced(Choice(dataclasses.replace(of_parts, kind=with_tail(kind, k)), parts))


def splits_of(kind: GemmKind, m: int, n: int, k: int) -> int:
    return choose_dense(kind, m, n, k).splits


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [(1, 64, 1024, 2), (33, 136, 1040, 3), (7, 259, 640, 5), (9, 1300, 384, 3), (130, 40, 272, 3), (5, 4, 2176, 17)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8(m, n, k, parts, dtype):
    a, b = gemm_problem(m, n, k)
    bias = torch.randn(n, generator=torch.Generator().manual_seed(0))
    output = GuardedOutput(m, n, dtype=dtype)
    with in_parts(GemmKind(d_type=D_TYPES[dtype], bias="f32"), m, n, k, parts):
        dg.fp8_gemm_nt(a, b, output.tensor, bias=bias)
    output.assert_intact()
    assert_accurate(output.tensor, gemm_reference(a, b, bias=bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
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


@pytest.mark.parametrize("n", [1, 2, 3, 5, 66, 259, 518, 1031])
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
    assert splits_of(GemmKind(d_type="e4m3"), 128, 7168, 16384) == 1

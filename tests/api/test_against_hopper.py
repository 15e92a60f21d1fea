"""Compares gemm_fp8's error with that of DeepGEMM on Hopper, whose tensor cores keep fewer bits of FP8 sums."""

from __future__ import annotations

import pytest
import torch
from mmasim.nv_ptx import WGMMA

import deep_gemm_rocm as dg
from deep_gemm_rocm.problems.layout import Pair
from deep_gemm_rocm.testing import activations, gemm_reference, weights

M, N, K, BLOCK = 64, 64, 1024, 128


def in_both_formats(data: torch.Tensor) -> torch.Tensor:
    """Replaces values that only one of e4m3fnuz and e4m3fn can hold by 0."""
    values = data.float()
    return torch.where(values.to(torch.float8_e4m3fn).float() == values, values, 0.0)


def deep_gemm_on_hopper(a: Pair, b: Pair) -> torch.Tensor:
    """DeepGEMM's arithmetic: for each K-block four WGMMAs, as mmasim models them, promoted by an FP32 FMA."""
    wgmma = WGMMA("Hopper", f"m64n{N}k32.f32.e4m3.e4m3")
    (a_data, sfa), (b_data, sfb) = a, b
    a_data, b_data = (data.float().to(torch.float8_e4m3fn) for data in (a_data, b_data))
    total = torch.zeros(M, N)
    for block in range(K // BLOCK):
        partial = torch.zeros(M, N)
        for k in range(block * BLOCK, (block + 1) * BLOCK, 32):
            partial = wgmma(a_data[:, k : k + 32], b_data[:, k : k + 32].T, partial)
        scale = sfa[:, block, None] * sfb[:, block].repeat_interleave(BLOCK)[:N]
        total = (scale.double() * partial.double() + total.double()).float()
    return total.bfloat16()


@pytest.mark.parametrize("cancelling", [False, True])
def test_error_is_no_larger(cancelling: bool) -> None:
    a, b = dg.per_token_cast_to_fp8(activations(M, K)), dg.per_block_cast_to_fp8(weights(N, K))
    a_data, b_data = in_both_formats(a[0]), in_both_formats(b[0])
    if cancelling:  # sums are small differences of large products
        a_data[:, K // 2 :], b_data[:, K // 2 :] = a_data[:, : K // 2], -b_data[:, : K // 2]
        a_data[:, -1] += 1
        a[1][:, K // BLOCK // 2 :], b[1][:, K // BLOCK // 2 :] = a[1][:, : K // BLOCK // 2], b[1][:, : K // BLOCK // 2]
    a, b = (a_data.to(torch.float8_e4m3fnuz), a[1]), (b_data.to(torch.float8_e4m3fnuz), b[1])
    exact = gemm_reference(a, b).exact
    ours, theirs = ((result.double() - exact).abs() for result in (dg.gemm_fp8(a, b), deep_gemm_on_hopper(a, b)))
    assert ours.max() <= theirs.max()
    assert ours.mean() < theirs.mean()

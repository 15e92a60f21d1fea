"""Norms and activations that quantise for the next GEMM."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.api.host_casts import cast_blocks
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import rms_norm_reference, silu_and_mul_reference

FP8 = torch.float8_e4m3fnuz


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def bits(data: torch.Tensor) -> torch.Tensor:
    return data.view(torch.uint8)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def assert_normed(x, weight, residual=None, gran_k=128, eps=1e-6, fp8_max=240.0, use_ue8m0=False):
    data, scales, *total = dg.rms_norm_cast_to_fp8(
        x, weight, eps, residual, gran_k=gran_k, fp8_max=fp8_max, use_ue8m0=use_ue8m0
    )
    normed, expected_total = rms_norm_reference(x, weight, eps, residual)
    expected, expected_scales = cast_blocks(normed, 1, gran_k or x.shape[1], use_ue8m0, fp8_max)
    assert bits(data).equal(bits(expected))
    assert same(scales, expected_scales)
    assert len(total) == (residual is not None)
    if total:
        assert total[0].dtype == x.dtype
        assert same(total[0], expected_total)


@pytest.mark.parametrize(
    ("shape", "dtype", "with_residual", "gran_k"),
    [
        ((1, 512), torch.bfloat16, False, 128),
        ((9, 1000), torch.float16, True, None),
        pytest.param((9, 1000), torch.float32, True, 128, marks=pytest.mark.slow),
        ((5, 2049), torch.float32, False, None),
        pytest.param((2, 7168), torch.bfloat16, True, 128, marks=pytest.mark.slow),
        ((2, 7168), torch.bfloat16, False, None),
        ((3, 12000), torch.bfloat16, True, 128),
        pytest.param((1, 65536), torch.bfloat16, False, None, marks=pytest.mark.slow),
    ],
)
def test_norm(shape, dtype, with_residual, gran_k):
    x = randn(*shape, dtype=dtype) * 30
    residual = randn(*shape, dtype=dtype, seed=1) if with_residual else None
    assert_normed(x, randn(shape[1], dtype=dtype), residual, gran_k)


def test_norm_with_weights_of_fp32():
    assert_normed(randn(6, 256), randn(256, dtype=torch.float32), randn(6, 256, seed=1), fp8_max=224.0, use_ue8m0=True)


@pytest.mark.parametrize("gran_k", [128, None])
def test_norm_of_special_values(gran_k):
    x, residual = randn(12, 384), randn(12, 384, seed=1)
    x[1, 3], x[2, 200], x[3, 4], residual[3, 4] = math.nan, math.inf, math.inf, -math.inf
    x[4], residual[4] = 0, 0
    x[5], residual[5] = -0.0, 0
    x[6], residual[6] = 1e-38, 1e-40
    x[7], residual[7] = 3e38, 1e38  # their sum overflows in bf16
    x[8] = 1e30
    weight = randn(384)
    weight[9] = 0
    assert_normed(x, weight, residual, gran_k)
    assert_normed(x, weight, None, gran_k)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 20),
    columns=st.integers(1, 1000),  # kernels of one pass
    strides=st.sampled_from(["dense", "padded", "transposed", "expanded"]),
    with_residual=st.booleans(),
)
def test_norm_of_any_strides(rows, columns, strides, with_residual):
    x = {
        "dense": lambda: randn(rows, columns),
        "padded": lambda: randn(rows, columns + 9)[:, 1 : columns + 1],
        "transposed": lambda: randn(columns, rows).T,
        "expanded": lambda: randn(1, columns).expand(rows, -1),
    }[strides]()
    residual = randn(columns, rows, seed=1).T if with_residual else None
    assert_normed(x, randn(columns), residual)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": randn(4, 128).double()}, TypeError, "x must be bfloat16, float16 or float32"),
        ({"x": randn(128)}, ValueError, "x must be a matrix"),
        ({"x": torch.zeros(1, 65537).bfloat16()}, ValueError, "at most 65536 columns"),
        ({"weight": randn(127)}, ValueError, r"weight must have shape \(128\)"),
        ({"weight": randn(128).half()}, TypeError, "weight must be float32 or have the dtype of x"),
        ({"weight": randn(256)[::2]}, ValueError, "weight must be contiguous"),
        ({"residual": randn(4, 128).float()}, TypeError, "residual must be bfloat16 as x"),
        ({"residual": randn(3, 128)}, ValueError, "residual must have the shape of x"),
        ({"eps": 0.0}, ValueError, "eps must be positive"),
        ({"eps": 1e-300}, ValueError, "eps must be positive, from 1.17549e-38 to .* got 1e-300"),
        ({"gran_k": 64}, ValueError, "gran_k must be 128 or None"),
        ({"gran_k": 128.0}, TypeError, "gran_k must be an int, got float"),
        ({"fp8_max": 448.0}, ValueError, "fp8_max must be .* to 240, got 448"),
        ({"fp8_max": 1e-46}, ValueError, "fp8_max must be positive, from 1.17549e-38 to .* got 1e-46"),
    ],
)
def test_norm_refuses(change, error, message):
    with pytest.raises(error, match=message):
        dg.rms_norm_cast_to_fp8(**{"x": randn(4, 128), "weight": randn(128)} | change)


ACTIVATIONS = ({}, {"limit": 1.5}, {"alpha": 1.702, "limit": 7.0}, {"alpha": 1.702})


def assert_activated(data, scales, x, **options):
    """Scales are within fp32's error of the activation, and each value within that of one rounding to FP8."""
    exact = silu_and_mul_reference(x, **options)
    _, expected_scales = cast_blocks(exact.float(), 1, 128)
    assert ((scales - expected_scales).abs() <= expected_scales * 2.0**-20).all()
    spread = scales.double().repeat_interleave(128, 1)[:, : data.shape[1]]
    error = (data.double() * spread - exact).abs()
    assert (error <= torch.maximum(exact.abs() / 16, spread * 2.0**-11) * (1 + 2.0**-18)).all()


@pytest.mark.parametrize(
    ("options", "dtype"),
    [*((options, torch.float32) for options in ACTIVATIONS), ({}, torch.bfloat16), ({}, torch.float16)],
)
@pytest.mark.parametrize("shape", [(1, 128), (67, 401), (130, 264), (3, 132)])
def test_activation(shape, dtype, options):
    x = randn(shape[0], 2 * shape[1], dtype=dtype) * 3
    assert_activated(*dg.silu_and_mul_cast_to_fp8(x, **options), x, **options)


@pytest.mark.parametrize("options", ACTIVATIONS)
def test_activation_of_special_values(options):
    numbers = torch.tensor([0.0, -0.0, 1.0, -1.0, 30.0, -30.0, math.inf, -math.inf, math.nan])
    gate, up = (part.flatten() for part in torch.meshgrid(numbers, numbers, indexing="ij"))
    x = torch.cat([gate[:, None].expand(-1, 128), up[:, None].expand(-1, 128)], dim=1)
    data, scales = dg.silu_and_mul_cast_to_fp8(x, **options)
    wanted = silu_and_mul_reference(x, **options)
    expected, expected_scales = cast_blocks(wanted.float(), 1, 128)
    assert bits(data).equal(bits(expected))
    infinite = expected_scales.isinf()
    assert scales[infinite].equal(expected_scales[infinite])
    assert scales.isnan().equal(expected_scales.isnan())
    assert torch.allclose(scales[~infinite], expected_scales[~infinite], rtol=2.0**-20, equal_nan=True)


def test_activation_of_groups():
    x = randn(4, 70, 520)
    counts = torch.tensor([0, 70, 33, -5], dtype=torch.int32)
    data, scales = dg.silu_and_mul_cast_to_fp8(x, counts)
    assert scales.stride() == (72 * 3, 1, 72)
    for group, count in enumerate(counts.clamp_min(0)):
        alone, its_scales = dg.silu_and_mul_cast_to_fp8(x[group, :count])
        assert bits(data[group, :count]).equal(bits(alone))
        assert scales[group, :count].equal(its_scales)


def test_rows_behind_a_groups_last_one_are_not_written():
    x, counts = randn(2, 70, 256), torch.tensor([0, 65], dtype=torch.int32)
    dg.silu_and_mul_cast_to_fp8(x, counts)
    with hip.runtime().capture() as graph:
        data, scales = dg.silu_and_mul_cast_to_fp8(x, counts)
    bits(data).fill_(0x55)
    scales.fill_(-7)
    graph.replay()
    for group, count in enumerate(counts):
        assert (bits(data[group, count:]) == 0x55).all()
        assert (scales[group, count:] == -7).all()
        assert (scales[group, :count] > 0).all()


@pytest.mark.parametrize("rows", [0, 3])
def test_activation_of_any_strides(rows):
    x = randn(512, rows).T
    data, scales = dg.silu_and_mul_cast_to_fp8(x)
    dense, its_scales = dg.silu_and_mul_cast_to_fp8(x.contiguous())
    assert bits(data).equal(bits(dense))
    assert scales.equal(its_scales)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": randn(4, 127)}, ValueError, r"x must be \[M, 2 I\] without masked_m"),
        ({"x": randn(2, 4, 128)}, ValueError, r"x must be \[M, 2 I\] without masked_m"),
        ({"masked_m": torch.zeros(4, dtype=torch.int32)}, ValueError, r"x must be \[G, M, 2 I\] with masked_m"),
        ({"x": randn(4, 128).to(FP8)}, TypeError, "x must be bfloat16"),
        ({"x": randn(2, 4, 128), "masked_m": torch.zeros(2)}, TypeError, "masked_m must be int32"),
        ({"limit": -1.0}, ValueError, "limit must be positive"),
        ({"alpha": "1"}, TypeError, "alpha must be a number"),
        ({"alpha": 1e39}, ValueError, "alpha must be positive, from 1.17549e-38 to .* got 1e.39"),
        ({"limit": 1e-46}, ValueError, "limit must be positive, from 1.17549e-38 to .* got 1e-46"),
    ],
)
def test_activation_refuses(change, error, message):
    with pytest.raises(error, match=message):
        dg.silu_and_mul_cast_to_fp8(**{"x": randn(4, 128)} | change)

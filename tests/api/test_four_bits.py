"""Four-bit weights as FP8, against their formats' definitions in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.int4_packings import PACKINGS, int4, words_of
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import assert_accurate, gemm_reference

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mxfp4(n: int, k: int, spread: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random bytes, exponents that differ by up to ``spread``, and the values in fp64."""
    data = torch.randint(0, 256, (n, k // 2), generator=generator(seed), dtype=torch.uint8)
    exponents = torch.randint(120 - spread, 121, (n, k // 32), generator=generator(seed + 1)).byte()
    values = E2M1[torch.stack((data & 15, data >> 4), -1).flatten(1).int()]
    return data, exponents, values * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)


def dequantised(data: torch.Tensor, scales: torch.Tensor, scale_rows: int) -> torch.Tensor:
    n, k = data.shape[-2:]
    return (
        data.double()
        * scales.double().repeat_interleave(scale_rows, -2)[..., :n, :].repeat_interleave(128, -1)[..., :k]
    )


@pytest.mark.parametrize("scale_rows", [1, 128])
@pytest.mark.parametrize(("n", "k"), [(1, 32), (130, 256), (128, 2880), (5, 96)])
def test_mxfp4_is_exact_where_exponents_differ_by_up_to_14(n, k, scale_rows):
    data, exponents, values = mxfp4(n, k, 14)
    converted, scales = dg.convert_fp4_to_fp8(data, exponents, scale_rows)
    assert (converted.dtype, scales.dtype) == (torch.float8_e4m3fnuz, torch.float32)
    assert scales.shape == (math.ceil(n / scale_rows), math.ceil(k / 128))
    assert torch.equal(dequantised(converted, scales, scale_rows), values)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.integers(15, 110), scale_rows=st.sampled_from([1, 128]))
def test_mxfp4_of_a_wide_spread_rounds_only_the_smallest(seed, spread, scale_rows):
    data, exponents, values = mxfp4(3, 256, spread, seed)
    found = dequantised(*dg.convert_fp4_to_fp8(data, exponents, scale_rows), scale_rows)
    blocks = values.abs().view(3, 2, 128).amax((0, 2) if scale_rows > 1 else 2, keepdim=True)
    assert ((found - values).view(3, 2, 128).abs() <= blocks * 2.0**-18).all()


def test_every_pair_of_value_and_relative_exponent():
    """All 16 values beside a largest value of 6, for each exponent from the same down to 14 less."""
    data = torch.arange(16, dtype=torch.uint8).view(1, 16) * 17
    for less in range(15):
        both = torch.cat((torch.full((1, 16), 0x77, dtype=torch.uint8), data), 1)
        exponents = torch.tensor([[130, 130 - less]], dtype=torch.uint8)
        converted, scales = dg.convert_fp4_to_fp8(both, exponents)
        expected = E2M1.repeat_interleave(2) * 2.0 ** (3 - less)
        assert torch.equal(dequantised(converted, scales, 128)[0, 32:], expected), less


@pytest.mark.parametrize("exponent", [0, 1, 253, 254])
def test_the_least_and_largest_scales(exponent):
    data = torch.full((1, 16), 0x75, dtype=torch.uint8)  # 3 and 6
    converted, scales = dg.convert_fp4_to_fp8(data, torch.full((1, 1), exponent, dtype=torch.uint8))
    found = dequantised(converted, scales, 128)[0]
    assert torch.equal(found, torch.tensor([3.0, 6.0]).double().repeat(16) * 2.0 ** (exponent - 127))


def test_tiny_fp32_scales_round_to_half_a_step_of_the_least_scale():
    data = torch.arange(16, dtype=torch.uint8).repeat(64, 4) * 17
    factors = torch.exp2(torch.linspace(-149, -110, 64 * 4)).view(64, 4)
    found = dequantised(*dg.convert_fp4_to_fp8(data, factors, 1), 1)
    expected = E2M1.double().repeat_interleave(2).repeat(64, 4) * factors.double().repeat_interleave(32, 1)
    allowed = torch.maximum(expected.abs() / 16, expected.abs().amax(1, keepdim=True) * 2.0**-18).clamp_min(2.0**-137)
    assert ((found - expected).abs() <= allowed).all()


def test_nan_and_zeros_spoil_nothing_else():
    data, exponents, values = mxfp4(2, 128, 3)
    exponents[0, 1] = 255
    data[1] = 0x80  # 0 and -0
    converted, scales = dg.convert_fp4_to_fp8(data, exponents)
    found = dequantised(converted, scales, 128)
    assert found[0, 32:64].isnan().all()
    assert torch.equal(found[0, :32], values[0, :32])
    assert torch.equal(found[0, 64:], values[0, 64:])
    assert (found[1] == 0).all()


def test_fp32_scales_round_by_a_sixteenth():
    data, _, _ = mxfp4(4, 256, 0)
    factors = torch.rand(4, 8, generator=generator(3)) + 0.01
    values = E2M1[torch.stack((data & 15, data >> 4), -1).flatten(1).int()] * factors.double().repeat_interleave(32, 1)
    for scale_rows in (1, 128):
        found = dequantised(*dg.convert_fp4_to_fp8(data.view(torch.int8), factors, scale_rows), scale_rows)
        assert ((found - values).abs() <= values.abs() / 16).all()


def test_experts_are_converted_one_by_one():
    parts = [mxfp4(130, 256, 5, seed) for seed in range(3)]
    data, scales = dg.convert_fp4_to_fp8(*(torch.stack(part) for part in list(zip(*parts, strict=True))[:2]))
    assert scales.shape == (3, 2, 2)
    assert torch.equal(dequantised(data, scales, 128), torch.stack([values for *_, values in parts]))


def test_the_cast_of_this_library_comes_back():
    x = torch.randn(16, 256, generator=generator())
    packed, factors = dg.per_token_cast_to_fp4(x, True, 32)
    found = dequantised(*dg.convert_fp4_to_fp8(packed, factors, 1), 1)
    assert torch.equal(found, dg.cast_back_from_fp4(packed, factors, 32).double())


@pytest.mark.parametrize("scale_rows", [1, 128])
def test_gemm_takes_converted_weights(scale_rows):
    """The product with the four-bit weights themselves, within the bound of the FP8 kernel."""
    data, exponents, values = mxfp4(160, 384, 6)
    a = dg.per_token_cast_to_fp8(torch.randn(20, 384, generator=generator(5)).bfloat16())
    b, recipe = dg.convert_fp4_to_fp8(data, exponents, scale_rows), (1, scale_rows, 128)
    out = dg.gemm_fp8(a, b, recipe=recipe)
    reference = gemm_reference(a, b, recipe=recipe)
    torch.testing.assert_close(reference.exact, dequantised(*a, 1) @ values.T, rtol=1e-12, atol=0)
    assert_accurate(out, reference)


# ---- int4


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize("group", [128, 256])
def test_int4_of_large_groups_is_exact(packing, with_zeros, group):
    weight = int4(packing, 24, 512, group, with_zeros)
    data, scales = dg.convert_int4_to_fp8(*weight.arguments, packing=packing)
    assert torch.equal(dequantised(data, scales, 1), weight.values)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("group", "scale_rows"), [(32, 1), (64, 1), (128, 128), (32, 128)])
def test_int4_of_small_groups_rounds_by_a_sixteenth(packing, group, scale_rows):
    weight = int4(packing, 136, 256, group, True, torch.bfloat16)
    found = dequantised(*dg.convert_int4_to_fp8(*weight.arguments, packing=packing, scale_rows=scale_rows), scale_rows)
    assert ((found - weight.values).abs() <= weight.values.abs() / 16).all()


@pytest.mark.parametrize("spread", [13, 40])
@pytest.mark.parametrize("scale_rows", [1, 128])
def test_int4_with_powers_of_two(spread, scale_rows):
    """Exact up to 2^13, from there on within 2^-18 of the block's largest: the zero point of 16 has 5 bits below."""
    codes = torch.arange(16).repeat(8, 32)
    words = words_of(codes)
    zeros = torch.tensor([[1, 5, 8, 15], [16, 16, 1, 16]]).repeat(4, 4)
    exponents = torch.randint(-spread, 1, zeros.shape, generator=generator(spread))
    exponents[:, ::4], exponents[:, 1::4] = 0, -spread
    scales = torch.exp2(exponents.double())
    values = (codes - zeros.repeat_interleave(32, 1)) * scales.repeat_interleave(32, 1)
    stored = words_of(zeros.T - 1)
    arguments = (words.T, scales.T.float(), stored)
    found = dequantised(*dg.convert_int4_to_fp8(*arguments, packing="gptq", scale_rows=scale_rows), scale_rows)
    if spread <= 13:
        assert torch.equal(found, values)
    else:
        blocks = values.abs().view(8, 4, 128).amax((0, 2) if scale_rows > 1 else 2, keepdim=True)
        assert ((found - values).view(8, 4, 128).abs() <= blocks * 2.0**-18).all()
        assert not torch.equal(found, values)


@pytest.mark.parametrize("packing", ["compressed-tensors", "gptq"])
@pytest.mark.parametrize("scale_rows", [1, 128])
def test_int4_in_order_of_activations(packing, scale_rows):
    """Rows of any groups side by side, as with desc_act: each value has its own group's scale and zero point."""
    weight = int4(packing, 24, 256, 32, True)
    g_idx = (torch.arange(256, dtype=torch.int32) // 32)[torch.randperm(256, generator=generator(4))]
    values = (weight.codes - weight.zeros[:, g_idx]).double() * weight.scales.double()[:, g_idx]
    converted = dg.convert_int4_to_fp8(*weight.arguments, packing=packing, scale_rows=scale_rows, g_idx=g_idx)
    found = dequantised(*converted, scale_rows)
    assert ((found - values).abs() <= values.abs() / 16).all()
    assert ((found - weight.values).abs() > weight.values.abs() / 16).any()


@pytest.mark.parametrize("scale_rows", [1, 128])
def test_int4_of_experts(scale_rows):
    weights = [int4("gptq", 130, 256, 32, True, seed=seed) for seed in range(2)]
    stacked = map(torch.stack, zip(*(weight.arguments for weight in weights), strict=True))
    data, scales = dg.convert_int4_to_fp8(*stacked, packing="gptq", scale_rows=scale_rows)
    for expert, weight in enumerate(weights):
        alone = dg.convert_int4_to_fp8(*weight.arguments, packing="gptq", scale_rows=scale_rows)
        assert torch.equal(data[expert].view(torch.uint8), alone[0].view(torch.uint8))
        assert torch.equal(scales[expert], alone[1])


FP4 = {"data": torch.zeros(4, 32, dtype=torch.int8), "scales": torch.ones(4, 2)}
INT4 = {"weight": torch.zeros(8, 8).int(), "scales": torch.ones(8, 2), "packing": "compressed-tensors"}


@pytest.mark.parametrize(
    ("function", "change", "error", "message"),
    [
        ("fp4", {"data": torch.zeros(4, 32)}, TypeError, "data must be int8 or uint8, two FP4 values to a byte"),
        ("fp4", {"data": torch.zeros(32).char()}, ValueError, r"data must be \[N, K/2\]"),
        ("fp4", {"scales": torch.ones(4, 2).half()}, TypeError, "scales must be uint8 or float8_e8m0fnu"),
        ("fp4", {"scales": torch.ones(5, 2)}, ValueError, "as many rows as data"),
        ("fp4", {"scales": torch.ones(4, 3)}, ValueError, "equal groups of the 64 values of a row, got 3"),
        ("fp4", {"scales": torch.ones(4, 0)}, ValueError, "equal groups of the 64 values of a row, got 0"),
        ("fp4", {"scale_rows": 64}, ValueError, "scale_rows must be 1 or 128, got 64"),
        ("fp4", {"data": FP4["data"][None][:0], "scales": FP4["scales"][None][:0]}, ValueError, "at least one expert"),
        ("fp4", {"data": [1]}, TypeError, "data must be"),
        ("int4", {"weight": torch.zeros(8, 8)}, TypeError, "weight must be int32, eight values to an element"),
        ("int4", {"scale_rows": 2}, ValueError, "scale_rows must be 1 or 128"),
    ],
)
def test_errors_name_the_argument(function, change, error, message):
    good, call = (FP4, dg.convert_fp4_to_fp8) if function == "fp4" else (INT4, dg.convert_int4_to_fp8)
    call(**good)
    with pytest.raises(error, match=message):
        call(**{**good, **change})


@pytest.mark.parametrize("shape", [(0, 32), (3, 0)])
def test_nothing_to_convert(shape):
    n, half = shape
    data, scales = dg.convert_fp4_to_fp8(torch.zeros(shape, dtype=torch.int8), torch.ones(n, half // 16))
    assert data.shape == (n, 2 * half)
    assert scales.shape == (-(-n // 128), -(-2 * half // 128))

"""FP8 casts and the conversion from OCP FP8."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deep_gemm_rocm as dg

FP8 = torch.float8_e4m3fnuz
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# (cast, rows that share a scale).
CASTS = [(dg.per_token_cast_to_fp8, 1), (dg.per_block_cast_to_fp8, 128)]

every_cast = pytest.mark.parametrize(("cast", "block_rows"), CASTS)


def dequantise(data, scales, block_rows):
    spread = scales.double().repeat_interleave(block_rows, 0).repeat_interleave(128, 1)
    return data.double() * spread[: data.shape[0], : data.shape[1]]


@every_cast
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 128), (3, 16), (128, 256), (130, 272), (257, 400), (0, 128), (4, 0)])
def test_casts_keep_values_to_fp8_precision(cast, block_rows, dtype, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    data, scales = cast(x)
    assert (data.dtype, scales.dtype) == (FP8, torch.float32)
    assert (data.shape, scales.shape) == (x.shape, (-(-shape[0] // block_rows), -(-shape[1] // 128)))
    assert data.is_contiguous()
    assert scales.is_contiguous() if block_rows > 1 else dg.get_mn_major_tma_aligned_tensor(scales) is scales
    # The format has three bits of fraction; below its normal range, from 2^-7 on, the error is half of 2^-10.
    spread = dequantise(torch.ones_like(data.float()), scales, block_rows)
    error = (dequantise(data, scales, block_rows) - x.double()).abs()
    assert (error <= torch.maximum(x.double().abs() / 16, spread * 2.0**-11) * 1.0001).all()


@every_cast
def test_the_largest_value_of_a_block_becomes_the_largest_of_the_format(cast, block_rows):
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(1))
    data, scales = cast(x)
    largest = data.float().abs().unflatten(0, (-1, block_rows)).unflatten(2, (-1, 128)).amax(dim=(1, 3))
    assert (largest == 240).all()
    assert torch.equal(scales, x.abs().unflatten(0, (-1, block_rows)).unflatten(2, (-1, 128)).amax(dim=(1, 3)) / 240)
    assert cast(x, fp8_max=224.0)[0].float().abs().max() == 224


@every_cast
def test_zeros_and_tiny_values_give_no_nan(cast, block_rows):
    x = torch.zeros(128, 512)
    x[:, 128:256] = 1e-45
    x[:, 256:384] = 1e-30
    x[0, 384] = 3e38
    data, scales = cast(x)
    assert not data.float().isnan().any()
    assert scales.isfinite().all()
    assert (scales > 0).all()
    assert (data[:, :256].float() == 0).all()
    assert (data[:, 256:384].float() == 240).all()


@every_cast
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_block_nan(cast, block_rows, value):
    x = torch.ones(256, 256)
    x[200, 130] = value
    block = dequantise(*cast(x), block_rows)
    bad = torch.zeros(256, 256, dtype=torch.bool)
    first = 200 // block_rows * block_rows
    bad[first : first + block_rows, 128:] = True
    assert block[bad].isnan().all()
    assert ((block[~bad] - 1).abs() < 1e-6).all()


@every_cast
def test_any_strides(cast, block_rows):
    x = torch.randn(96, 64, generator=torch.Generator().manual_seed(2))
    for a, b in zip(cast(x.T), cast(x.T.contiguous()), strict=True):
        assert torch.equal(a.float(), b.float())


@every_cast
@pytest.mark.parametrize(
    ("x", "fp8_max", "error", "message"),
    [
        (torch.zeros(4, 4, dtype=torch.float64), 240, TypeError, r"x must be .*float64"),
        (torch.zeros(4), 240, ValueError, r"x must be a matrix, got shape \(4,\)"),
        (torch.zeros(4, 4), 448, ValueError, "fp8_max must be positive"),
        (torch.zeros(4, 4), 0, ValueError, "fp8_max must be positive"),
    ],
)
def test_casts_refuse(cast, block_rows, x, fp8_max, error, message):
    with pytest.raises(error, match=message):
        cast(x, fp8_max=fp8_max)


def test_conversion_of_every_ocp_byte():
    ocp = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.tensor([0.25])
    data, doubled = dg.convert_fp8_fn_to_fnuz(ocp, scales)
    assert data.dtype == FP8
    before, after = ocp.float() * scales, data.float() * doubled
    nan = torch.zeros(256, dtype=torch.bool)
    nan[[0x7F, 0xFF]] = True
    assert torch.equal(before.isnan(), nan)
    assert torch.equal(after.isnan(), nan)
    assert torch.equal(before[~nan], after[~nan])
    assert data.view(torch.uint8)[0x80] == 0
    assert ocp.view(torch.uint8)[0x80] == 0x80, "the original must not change"


@pytest.mark.parametrize("shape", [(128, 3), (130, 40), (1, 1), (0, 4), (256, 0)])
def test_per_channel_cast_is_the_transpose_of_per_token_cast(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).bfloat16()
    data, scales = dg.per_channel_cast_to_fp8(x)
    expected_data, expected_scales = dg.per_token_cast_to_fp8(x.T)
    assert (data.dtype, scales.dtype) == (FP8, torch.float32)
    assert (data.shape, scales.shape) == (x.shape, (-(-shape[0] // 128), shape[1]))
    assert data.is_contiguous()
    assert scales.is_contiguous()
    assert torch.equal(data.view(torch.uint8), expected_data.view(torch.uint8).T)
    assert torch.equal(scales, expected_scales.T)


def test_per_channel_cast_refuses():
    with pytest.raises(ValueError, match=r"x must be a matrix, got shape \(4,\)"):
        dg.per_channel_cast_to_fp8(torch.zeros(4))


@given(x=st.integers(0, 2**40), element_size=st.sampled_from([1, 2, 4, 8, 16]))
def test_tma_aligned_size(x, element_size):
    aligned = dg.get_tma_aligned_size(x, element_size)
    assert aligned * element_size % 16 == 0
    assert x <= aligned < x + 16 // element_size


@pytest.mark.parametrize("shape", [(1, 3), (4, 1), (7, 56), (3, 7, 5), (2, 8, 1), (0, 3), (3, 0)])
def test_mn_major_scales(shape):
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(4))
    pitch = -(-shape[-2] // 4) * 4
    for sf in (scales, scales.mT.contiguous().mT):
        aligned = dg.get_mn_major_tma_aligned_tensor(sf)
        assert torch.equal(aligned, scales)
        assert aligned.stride() == (pitch * shape[-1], 1, pitch)[-len(shape) :]
        assert dg.get_col_major_tma_aligned_tensor(aligned) is aligned


@pytest.mark.parametrize(
    ("sf", "error", "message"),
    [
        (torch.zeros(4, 4).int(), TypeError, "sf must be float32, got torch.int32"),
        ([1.0], TypeError, r"sf must be a torch\.Tensor, got list"),
        (torch.zeros(4), ValueError, r"two dimensions, or three with groups, got shape \(4,\)"),
    ],
)
def test_mn_major_scales_refuse(sf, error, message):
    with pytest.raises(error, match=message):
        dg.get_mn_major_tma_aligned_tensor(sf)


def test_tma_aligned_size_refuses():
    with pytest.raises(ValueError, match="element_size must be 1, 2, 4, 8 or 16 bytes, got 3"):
        dg.get_tma_aligned_size(5, 3)


@pytest.mark.parametrize(
    ("data", "scales"),
    [
        (torch.zeros(2, dtype=FP8), torch.ones(1)),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), torch.ones(1, dtype=torch.float64)),
    ],
)
def test_conversion_refuses_other_types(data, scales):
    with pytest.raises(TypeError, match=r"must be float(8_e4m3fn|32), got"):
        dg.convert_fp8_fn_to_fnuz(data, scales)


@given(x=st.integers(0, 2**40), y=st.integers(1, 2**20))
def test_ceil_div(x, y):
    assert (dg.ceil_div(x, y) - 1) * y < x <= dg.ceil_div(x, y) * y


@pytest.mark.parametrize("cast", [dg.per_token_cast_to_fp8, dg.per_block_cast_to_fp8])
def test_casts_refuse_what_is_no_tensor(cast):
    for x in ([[1.0]], None):
        with pytest.raises(TypeError, match=r"x must be a torch\.Tensor, got"):
            cast(x)
    with pytest.raises(TypeError, match="fp8_max must be a number, got str"):
        cast(torch.ones(2, 2), fp8_max="240")


@pytest.mark.parametrize(("shape", "dims"), [((5, 70), (0,)), ((5, 70), (1,)), ((3, 4, 20), (0, 2)), ((6, 8), ())])
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_a_scale_for_each_index_of_some_dimensions(shape, dims, use_ue8m0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    data, scales = dg.per_custom_dims_cast_to_fp8(x, dims, use_ue8m0)
    assert (data.dtype, data.shape, scales.shape) == (FP8, x.shape, tuple(shape[dim] for dim in dims))
    spread = scales.double().view([size if dim in dims else 1 for dim, size in enumerate(shape)])
    largest = x.double().abs().amax(dim=[dim for dim in range(len(shape)) if dim not in dims], keepdim=True) / 240
    expected = torch.exp2(largest.log2().ceil()) if use_ue8m0 else largest
    torch.testing.assert_close(spread, expected.broadcast_to(spread.shape), rtol=1e-7, atol=0)
    error = (data.double() * spread - x.double()).abs()
    assert (error <= torch.maximum(x.double().abs() / 16, spread * 2.0**-11) * 1.0001).all()


@pytest.mark.parametrize(
    ("shape", "dims", "error", "message"),
    [
        ((4, 5), (2,), ValueError, "dims must be at most 1"),
        ((4, 5), (0, 1), ValueError, "dims must leave elements"),
        ((0, 5), (1,), ValueError, "dims must leave elements"),
        ((4, 5), (0.0,), TypeError, "dims must be an int"),
    ],
)
def test_bad_dimensions(shape, dims, error, message):
    with pytest.raises(error, match=message):
        dg.per_custom_dims_cast_to_fp8(torch.ones(shape), dims, False)


def test_custom_dimensions_take_a_bool():
    with pytest.raises(TypeError, match="use_ue8m0 must be a bool, got str"):
        dg.per_custom_dims_cast_to_fp8(torch.ones(2, 3), (0,), "x")

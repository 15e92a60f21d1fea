"""Casts to FP8 by kernels have the bits of torch's operators."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.api import casts
from deep_gemm_rocm.api.host_casts import cast_blocks
from deep_gemm_rocm.runtime import hip

FP8 = torch.float8_e4m3fnuz
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# Rows and columns that share a scale; None for all of them.
CASTS = {
    dg.per_token_cast_to_fp8: (1, 128),
    dg.per_block_cast_to_fp8: (128, 128),
    dg.per_channel_cast_to_fp8: (128, 1),
    dg.per_row_cast_to_fp8: (1, None),
    dg.per_tensor_cast_to_fp8: (None, None),
}

every_cast = pytest.mark.parametrize("cast", CASTS, ids=lambda cast: cast.__name__)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def expected(cast, x, use_ue8m0=False, fp8_max=240.0):
    sizes = (size if shared is None else shared for size, shared in zip(x.shape, CASTS[cast], strict=True))
    return cast_blocks(x, *sizes, use_ue8m0, fp8_max)


def assert_same(actual, wanted):
    for name, one, other in zip(("data", "scales"), actual, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        same = one.view(torch.uint8) == other.view(torch.uint8) if one.dtype == FP8 else one == other
        assert (same | (one.isnan() & other.isnan() if one.dtype != FP8 else same)).all(), f"{name} differ"


@every_cast
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 128), (70, 1000), (129, 257), *(pytest.param(s, marks=pytest.mark.slow) for s in ((3, 9), (1, 4500)))]
)
def test_bits(cast, dtype, shape):
    x = randn(*shape, dtype=dtype) * torch.logspace(-6, 3, shape[0])[:, None].to(dtype)
    assert_same(cast(x), expected(cast, x))
    assert_same(cast(x, True), expected(cast, x, True))


def special(dtype: torch.dtype) -> torch.Tensor:
    x = randn(40, 300, dtype=dtype)
    x[1, 5], x[2, 200], x[3, 130], x[3, 131] = math.inf, math.nan, -math.inf, math.nan
    x[4], x[5], x[6] = 0, -0.0, torch.finfo(dtype).smallest_normal
    x[7] = torch.finfo(dtype).smallest_normal / 2
    x[8, 7], x[9, 7] = torch.finfo(dtype).max, -torch.finfo(dtype).max
    x[10, ::2] = -torch.nextafter(torch.tensor(0.0), torch.tensor(1.0)).to(dtype)
    return x


@every_cast
@pytest.mark.parametrize(
    ("dtype", "fp8_max"),
    [*((dtype, 240.0) for dtype in DTYPES), *((torch.float32, most) for most in (224.0, 232.0, 1e-30))],
)
def test_bits_of_special_values(cast, dtype, fp8_max):
    # 232 is halfway between two FP8 numbers, so it has kernels of its own; with 1e-30, scales overflow.
    x = special(dtype)
    assert_same(cast(x, fp8_max=fp8_max), expected(cast, x, fp8_max=fp8_max))
    assert_same(cast(x, True, fp8_max=fp8_max), expected(cast, x, True, fp8_max=fp8_max))
    # Rows that aren't contiguous: with a scale for all of them, these have a kernel of their own.
    apart = torch.nn.functional.pad(x, (0, 20))[:, : x.shape[1]]
    numbers = x[11:]
    for values in (apart, numbers, apart[11:]):
        assert_same(cast(values, fp8_max=fp8_max), expected(cast, values, fp8_max=fp8_max))


@every_cast
def test_quotients_are_rounded_as_by_division(cast):
    """Scales of all exponents, and values beside the halves between FP8 numbers."""
    exponents = torch.arange(-140, 120)
    halves = torch.cat([torch.arange(16, 32) / 16, torch.tensor([2.0**-11, 1.5 * 2**-10, 15.5, 232.0])])
    scales = torch.exp2(exponents.float()) * torch.linspace(1, 1.99, len(exponents))
    x = torch.zeros(len(scales), 128)
    for i, half in enumerate(halves):
        x[:, 3 * i] = (half.double() * scales.double()).float()
        for j, neighbour in ((1, -math.inf), (2, math.inf)):
            x[:, 3 * i + j] = torch.nextafter(x[:, 3 * i], torch.tensor(neighbour))
    x[:, 100] = 240 * scales
    if cast in (dg.per_block_cast_to_fp8, dg.per_channel_cast_to_fp8):
        x = x.T.contiguous()
    assert_same(cast(x), expected(cast, x))


@pytest.mark.slow
def test_quotients_by_half_a_million_scales_are_on_the_right_side_of_halves():
    """divisor_of() in fp8_scale.h relies on this. fp64 stands for fused operations. All 2^23 scales pass, too."""
    for mantissas in torch.arange(2**23, 2**24, 17, dtype=torch.int32).split(2**17):
        scales = mantissas.double() / 2**23
        reciprocals = 1 / scales
        high = reciprocals.float()
        low = (reciprocals - high.double()).float()
        for half in torch.arange(16, 32) / 16:
            middle = (half.double() * scales).float()
            for distance in range(-2, 3):
                values = (middle.view(torch.int32) + distance).view(torch.float32)
                quotients = (values.double() * high.double() + (values * low).double()).float()
                assert torch.equal((values / scales.float()).sub(half).sign(), quotients.sub(half).sign())


@every_cast
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 140),
    columns=st.integers(0, 400),
    strides=st.sampled_from(["dense", "padded", "shifted", "transposed", "strided", "expanded"]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_strides(cast, rows, columns, strides, dtype):
    x = {
        "dense": lambda: randn(rows, columns, dtype=dtype),
        "padded": lambda: randn(rows, columns + 24, dtype=dtype)[:, :columns],
        "shifted": lambda: randn(rows, columns + 1, dtype=dtype)[:, 1:],
        "transposed": lambda: randn(columns, rows, dtype=dtype).T,
        "strided": lambda: randn(2 * rows, 3 * columns, dtype=dtype)[::2, ::3],
        "expanded": lambda: randn(1, columns, dtype=dtype).expand(rows, -1),
    }[strides]()
    actual = cast(x)
    if x.numel():
        assert_same(actual, expected(cast, x))
    else:
        assert actual[0].shape == x.shape


@every_cast
def test_a_row_has_the_same_bits_alone_and_in_a_view(cast):
    x = randn(300, 512)
    again = cast(x)
    assert_same(cast(x), again)  # a repeated call
    if CASTS[cast][0] == 1:
        assert_same(cast(x[77:78]), tuple(part[77:78] for part in again))


@pytest.mark.parametrize("rows", [1, 3, 4, 130])
def test_scales_of_rows_are_as_gemms_read_them_fastest(rows):
    _, scales = dg.per_token_cast_to_fp8(randn(rows, 300))
    assert dg.get_mn_major_tma_aligned_tensor(scales) is scales
    assert dg.per_token_cast_to_fp8(randn(rows, 300))[1].stride() == scales.stride()  # of a repeated call


@pytest.mark.parametrize("cast", [dg.per_row_cast_to_fp8, dg.per_tensor_cast_to_fp8])
@pytest.mark.parametrize("shape", [(0, 128), (3, 0), (0, 0)])
def test_scales_without_values_are_numbers(cast, shape):
    data, scales = cast(torch.empty(shape))
    assert data.shape == shape
    assert (scales > 0).all()


@every_cast
def test_tensors_that_no_kernel_can_access_are_cast_on_the_host(cast, monkeypatch):
    def no_device():
        raise hip.NoDeviceError("none")

    x = randn(130, 200)
    by_kernel = cast(x)
    monkeypatch.setattr(casts.hip, "runtime", no_device)
    monkeypatch.setattr(casts, "cast_launch", None)
    monkeypatch.setattr(casts, "row_cast_launch", None)
    on_host = casts.__dict__[cast.__name__].__wrapped__(x)[0]
    assert_same(on_host, by_kernel)
    assert on_host[1].stride() == by_kernel[1].stride()


def test_casting_back():
    x = randn(5, 300)
    data, scales = dg.per_token_cast_to_fp8(x)
    expected = torch.empty(5, 300)
    for row in range(5):
        for column in range(300):
            expected[row, column] = data[row, column].float() * scales[row, column // 128]
    assert torch.equal(dg.cast_back_from_fp8(data, scales), expected)
    powers = torch.exp2(torch.arange(40).view(5, 8) - 20.0)
    packed = dg.pack_ue8m0_to_int(powers)
    ocp = x[:, :256].to(torch.float8_e4m3fn)
    restored = dg.cast_back_from_fp8(ocp, packed, 32, use_packed_ue8m0=True)
    assert torch.equal(restored, (ocp.float().view(5, 8, 32) * powers[..., None]).view(5, 256))
    with pytest.raises(TypeError, match="x_fp8 must be float8_e4m3fnuz or float8_e4m3fn"):
        dg.cast_back_from_fp8(x, scales)
    with pytest.raises(ValueError, match="each of 5 rows and 10 blocks of 32 columns"):
        dg.cast_back_from_fp8(data, scales, 32)


@pytest.mark.parametrize("cast", [dg.per_token_cast_to_fp8, dg.per_block_cast_to_fp8, dg.per_channel_cast_to_fp8])
def test_columns_of_a_scale_are_an_int(cast):
    x = randn(20, 200)
    cast(x, gran_k=128)
    for refused, error in ((128.0, TypeError), (True, TypeError), (0, ValueError), (64, NotImplementedError)):
        with pytest.raises(error, match="gran_k must be"):
            cast(x, gran_k=refused)


@every_cast
def test_the_largest_number_is_one_of_fp32(cast):
    x = randn(20, 200)
    for refused in (0, -1, 1e-46, 7e-46, 240.00001, 448, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"fp8_max must be .*got {refused}"):
            cast(x, fp8_max=refused)
    assert_same(cast(x, fp8_max=2.0**-126), expected(cast, x, fp8_max=2.0**-126))


def test_too_long_rows_are_refused():
    with pytest.raises(ValueError, match="x must have at most 65536 columns"):
        dg.per_row_cast_to_fp8(torch.zeros(1, 65537))
    with pytest.raises(ValueError, match=r"x must have at most 8388607 columns and 16777088 tiles"):
        dg.per_token_cast_to_fp8(torch.zeros(1, 1, dtype=torch.bfloat16).expand(1, 2**23))


@pytest.mark.parametrize("columns", [1024, 2049, 8192, 8200, 16385, 65536])
def test_rows_of_every_length(columns):
    x = randn(3, columns)
    assert_same(dg.per_row_cast_to_fp8(x), expected(dg.per_row_cast_to_fp8, x))


@every_cast
def test_a_captured_cast_reads_new_values(cast):
    x = randn(20, 256)
    cast(x)
    with hip.runtime().capture() as graph:
        data, scales = cast(x)
    x.copy_(randn(21, 256)[1:])
    graph.replay()
    assert_same((data, scales), expected(cast, x))

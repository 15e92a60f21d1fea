"""FP4 casts and packed scales, against arithmetic in fp64; kernels have the bits of torch's operators."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.api import casts
from deep_gemm_rocm.api.host_casts import cast_to_fp4
from deep_gemm_rocm.runtime import hip

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
OPTIONS = [(False, False), (True, False), (True, True)]  # use_ue8m0, use_packed_ue8m0

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def codes_of(packed):
    both = packed.view(torch.uint8).int()
    return torch.stack((both % 16, both // 16), -1).flatten(1)


def nearest(x):
    """Codes of the nearest FP4 numbers, halfway cases to the smaller magnitude, as DeepGEMM rounds."""
    distances = (x.double().abs()[..., None] - VALUES[:8]).abs()
    codes = distances.argmin(-1)  # the first of equals
    return codes + 8 * ((x < 0) & (codes > 0))


def assert_as_on_the_host(x, use_ue8m0, gran_k, packed):
    actual = dg.per_token_cast_to_fp4(x, use_ue8m0, gran_k, packed)
    expected = cast_to_fp4(x, use_ue8m0, gran_k, packed)
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        same = (one == other) | (one != one) & (other != other)  # NaNs
        assert same.all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "k", "gran_k"), [(3, 64, 32), (5, 130, 32), (1, 2, 32), (70, 300, 128), (0, 64, 32), (2, 0, 32)]
)
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_cast_takes_the_nearest_numbers(dtype, rows, k, gran_k, use_ue8m0):
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(k)).to(dtype)
    packed, scales = dg.per_token_cast_to_fp4(x, use_ue8m0, gran_k)
    blocks = -(-k // gran_k)
    assert (packed.dtype, packed.shape, scales.shape) == (torch.int8, (rows, k // 2), (rows, blocks))
    for row in range(rows):
        for block in range(blocks):
            values = x[row, block * gran_k : (block + 1) * gran_k].float()
            scale = values.abs().max().clamp_min(1e-4) / 6
            scale = 2.0 ** math.ceil(math.log2(scale)) if use_ue8m0 else scale
            assert scales[row, block] == scale
            codes = codes_of(packed)[row, block * gran_k : (block + 1) * gran_k]
            assert torch.equal(codes, nearest(values * (1 / scales[row, block])))
    spread = scales.repeat_interleave(gran_k, 1)[:, :k]
    assert torch.equal(dg.cast_back_from_fp4(packed, scales, gran_k), (VALUES[codes_of(packed)] * spread).float())


def test_every_halfway_case_and_its_neighbours():
    halfway = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    above, below = (torch.nextafter(halfway, torch.tensor(to)) for to in (9.0, 0.0))
    x = torch.cat([torch.cat((below, halfway, above)), torch.tensor([6.0])])
    x = torch.cat((x, -x))[None]  # 44 columns, whose scale is 1
    packed, scales = dg.per_token_cast_to_fp4(x, False, 128)
    assert scales.item() == 1
    lower, upper = list(range(7)), list(range(1, 8))
    expected = [*lower, *lower, *upper, 7]
    assert codes_of(packed)[0].tolist() == expected + [code + 8 if code else 0 for code in expected]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 70),
    half=st.integers(1, 150),
    strides=st.sampled_from(["dense", "padded", "shifted", "transposed", "strided", "expanded"]),
    dtype=st.sampled_from(DTYPES),
    gran_k=st.sampled_from([32, 128]),
    options=st.sampled_from(OPTIONS),
)
def test_any_strides(rows, half, strides, dtype, gran_k, options):
    k, random = 2 * half, torch.Generator().manual_seed(rows * half)

    def randn(*shape):
        return torch.randn(shape, generator=random).to(dtype)

    x = {
        "dense": lambda: randn(rows, k),
        "padded": lambda: randn(rows, k + 24)[:, :k],
        "shifted": lambda: randn(rows, k + 1)[:, 1:],
        "transposed": lambda: randn(k, rows).T,
        "strided": lambda: randn(2 * rows, 3 * k)[::2, ::3],
        "expanded": lambda: randn(1, k).expand(rows, -1),
    }[strides]()
    assert_as_on_the_host(x, options[0], gran_k, options[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gran_k", [32, 128])
@pytest.mark.parametrize("options", OPTIONS)
def test_magnitudes_of_all_exponents(dtype, gran_k, options):
    """Each row has a largest value of its own, from subnormal numbers to the largest, NaN and infinities."""
    exponents = torch.linspace(*{torch.float16: (-24, 15)}.get(dtype, (-149, 127)), 140)
    largest = torch.exp2(exponents) * torch.linspace(1, 1.99, 140)
    x = (torch.randn(140, 256, generator=torch.Generator().manual_seed(0)).clamp(-1, 1) * largest[:, None]).to(dtype)
    x[0], x[1], x[2] = 0, -0.0, torch.finfo(dtype).max
    x[3, 5], x[4, 130], x[5, 2], x[5, 3], x[6, 7] = math.nan, -math.nan, math.inf, math.nan, -math.inf
    x[7, ::3] = -torch.finfo(dtype).tiny
    x[8, :16] = 6 * torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))  # scales just above a power of two
    assert_as_on_the_host(x, options[0], gran_k, options[1])


def test_quotients_are_products_with_the_reciprocal():
    """Products beside the halves between FP4 numbers, where a division would round to the other side."""
    scales = torch.exp2(torch.arange(-12, 30).float()) * torch.linspace(1, 1.99, 42)
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    x = (halves * scales[:, None]).repeat_interleave(4, 1)
    for shift, towards in ((1, math.inf), (2, -math.inf), (3, 0.0)):
        x[:, shift::4] = torch.nextafter(x[:, shift::4], torch.tensor(towards))
    x = torch.cat((x, 6 * scales[:, None], x, -x, torch.zeros(42, 43)), 1)
    for gran_k in (32, 128):
        assert_as_on_the_host(x, False, gran_k, False)


@pytest.mark.parametrize("options", OPTIONS)
def test_on_the_host(options, monkeypatch):
    def no_device():
        raise hip.NoDeviceError("none")

    x = torch.randn(5, 200)
    by_kernel = dg.per_token_cast_to_fp4(x, options[0], 32, options[1])
    monkeypatch.setattr(casts.hip, "runtime", no_device)
    monkeypatch.setattr(casts, "fp4_cast_launch", None)
    on_host = dg.per_token_cast_to_fp4.__wrapped__(x, options[0], 32, options[1])[0]
    assert all(map(torch.equal, on_host, by_kernel))


def test_a_captured_cast_reads_new_values():
    x = torch.randn(20, 256)
    dg.per_token_cast_to_fp4(x, True, 32, True)
    with hip.runtime().capture() as graph:
        results = dg.per_token_cast_to_fp4(x, True, 32, True)
    x.copy_(torch.randn(20, 256))
    graph.replay()
    assert all(map(torch.equal, results, cast_to_fp4(x, True, 32, True)))


@pytest.mark.parametrize("gran_k", [32, 128])
@pytest.mark.parametrize("k", [256, 298])
def test_under_the_sanitizer(gran_k, k, monkeypatch):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    for use_ue8m0, packed in OPTIONS:
        assert_as_on_the_host(torch.randn(70, k).bfloat16(), use_ue8m0, gran_k, packed)


def test_the_first_value_lies_in_the_low_half():
    packed, _ = dg.per_token_cast_to_fp4(torch.tensor([[6.0, -0.5]]), True, 32)
    assert packed.view(torch.uint8).item() == 0x97


def test_blocks_without_values():
    """What DeepGEMM 2.6 makes of NaNs, infinities, zeros and negative ones."""
    x = torch.zeros(1, 160)
    x[0, 40], x[0, 41], x[0, 70], x[0, 71] = math.nan, 1, -math.inf, 2
    x[0, 96:128] = -0.0
    x[0, 128:130] = torch.tensor([-1e-45, -1e-6])
    least = torch.tensor(1e-4) / 6
    for use_ue8m0, expected in (
        (False, [least, math.nan, math.inf, least, least]),
        (True, [2.0**-15, 2.0**127, 2.0**127, 2.0**-15, 2.0**-15]),
    ):
        packed, scales = dg.per_token_cast_to_fp4(x, use_ue8m0, 32)
        torch.testing.assert_close(scales[0], torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
        codes = codes_of(packed)[0].unflatten(0, (5, 32))
        # A NaN becomes 6, and so does 1 / inf times inf.
        assert (codes[1] == torch.full((32,), 7) if not use_ue8m0 else codes[1, 8] == 7 and codes[1].sum() == 7).all()
        assert codes[2, 6] == (15 if use_ue8m0 else 7)
        assert codes[2].sum() == codes[2, 6]
        assert (codes[[0, 3, 4]] == 0).all()
        values = dg.cast_back_from_fp4(packed, scales, 32)[0].unflatten(0, (5, 32))
        assert (values[[0, 3, 4]].view(torch.int32) == 0).all()  # never -0
        assert not values[1, 8].isfinite()
        assert not values[2, 6].isfinite()


def test_packed_scales_are_filled_up():
    x = torch.randn(3, 192)
    packed, scales = dg.per_token_cast_to_fp4(x, True, 32)
    same, in_ints = dg.per_token_cast_to_fp4(x, True, 32, use_packed_ue8m0=True)
    assert torch.equal(same, packed)
    assert (in_ints.dtype, in_ints.shape) == (torch.int32, (3, 2))
    exponents = in_ints.contiguous().view(torch.uint8)
    assert torch.equal(torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)[:, :6], scales)
    assert (exponents[:, 6:] == 127).all()
    restored = dg.cast_back_from_fp4(packed, in_ints, 32, use_packed_ue8m0=True)
    assert torch.equal(restored, dg.cast_back_from_fp4(packed, scales, 32))


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_transposing(half_rows, half_columns, strided):
    codes = torch.randint(0, 256, (2 * half_rows, half_columns), dtype=torch.uint8)
    packed = codes.view(torch.int8)
    packed = packed.T.contiguous().T if strided else packed
    turned = dg.transpose_packed_fp4(packed)
    assert turned.is_contiguous()
    assert torch.equal(codes_of(turned), codes_of(packed.contiguous()).T)


def test_powers_of_two():
    x = torch.tensor([0, 1e-45, 2.0**-126, 2.0**-126 * 1.5, -1, 1.0000001, 3, 4, 2.0**127, 3e38, math.inf, math.nan])
    expected = [-126, -126, -126, -125, 0, 1, 2, 2, 127, 127, 127, 127]
    powers = dg.ceil_to_ue8m0(x)
    assert torch.equal(powers, torch.tensor([2.0**exponent for exponent in expected]))
    assert dg.pack_ue8m0_to_int(powers.view(3, 4)[:, :0]).shape == (3, 0)
    packed = dg.pack_ue8m0_to_int(powers)
    assert packed.view(torch.uint8).tolist() == [exponent + 127 for exponent in expected]
    assert torch.equal(dg.unpack_ue8m0_from_int(packed), powers)
    assert torch.equal(dg.ceil_to_ue8m0(x.view(3, 4).T), powers.view(3, 4).T)
    assert dg.ceil_to_ue8m0(torch.tensor(3.0, dtype=torch.bfloat16)) == 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dg.per_token_cast_to_fp4(torch.zeros(2, 3), True), ValueError, "even number of columns"),
        (lambda: dg.per_token_cast_to_fp4(torch.zeros(2), True), ValueError, "must be a matrix"),
        (lambda: dg.per_token_cast_to_fp4(torch.zeros(2, 4).int(), True), TypeError, "got torch.int32"),
        (lambda: dg.per_token_cast_to_fp4(torch.zeros(2, 4), True, 0), ValueError, "gran_k must be at least 1"),
        (
            lambda: dg.per_token_cast_to_fp4(torch.zeros(2, 4), True, 16),
            NotImplementedError,
            "gran_k must be 32 or 128",
        ),
        (lambda: dg.per_token_cast_to_fp4(torch.zeros(2, 4), False, 32, True), ValueError, "needs use_ue8m0"),
        (lambda: dg.cast_back_from_fp4(torch.zeros(2, 4), torch.ones(2, 1)), TypeError, "packed must be int8"),
        (lambda: dg.cast_back_from_fp4(torch.zeros(2, 32).char(), torch.ones(2, 1), 32), ValueError, "2 blocks of 32"),
        (lambda: dg.cast_back_from_fp4(torch.zeros(2, 4).char(), torch.ones(3, 1)), ValueError, "each of 2 rows"),
        (
            lambda: dg.cast_back_from_fp4(torch.zeros(2, 4).char(), torch.ones(2, 1).int()),
            TypeError,
            "use_packed_ue8m0",
        ),
        (lambda: dg.transpose_packed_fp4(torch.zeros(3, 4).char()), ValueError, "even number of rows"),
        (lambda: dg.ceil_to_ue8m0(torch.zeros(4).int()), TypeError, "floating point"),
        (lambda: dg.pack_ue8m0_to_int(torch.tensor([1.0, 2, 3, 4])), ValueError, "ceil_to_ue8m0"),
        (lambda: dg.pack_ue8m0_to_int(torch.tensor([1.0, 2, -4, 4])), ValueError, "powers of two"),
        (lambda: dg.pack_ue8m0_to_int(torch.ones(6)), ValueError, "multiple of 4"),
        (lambda: dg.unpack_ue8m0_from_int(torch.ones(6)), TypeError, "must be int32"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()

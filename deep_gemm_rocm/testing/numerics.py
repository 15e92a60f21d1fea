"""References for GEMM: fp64 results on the dequantised operands, and an error bound for each element.

The bound follows the hardware's accumulation step by step. Unless products cancel, it is a few hundredths of a unit in
the last place of the bf16 output. A dropped K-block, a neighbour's scale or one wrong 16 x 16 tile exceed it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from ..api.fp4 import FP4_VALUES, pack_codes, unpack_codes
from ..api.int4 import INT4_ZERO, ZERO_BITS
from ..checks import check_tensor
from ..problems.four_bits import DTYPES_OF, INT4_DTYPES, SHUFFLED_DTYPES, has_short_groups
from ..problems.gemm_kind import GROUP
from ..problems.layout import SCALE_BLOCK, Pair, ceil_div, data_and_scales
from ..runtime.arrays import through_host

_ROUNDING = 2.0**-24  # half a unit in the last place of fp32, relative to the value rounded

# Error of the matrix cores' sum over one K-block, in units of 2^-24 times the sum of the products' magnitudes, from the
# model in arXiv 2511.10909. For each 16 values along K, 16 products are truncated to 24 fractional bits of the largest
# one's exponent, and two partial sums are floored likewise: 18 times the largest product, which over all groups is at
# most the whole sum. Then the accumulator is floored to 24 fractional bits and the total rounded: 2 times the running
# total, in each of 8 groups. In all this a subnormal number counts as the least normal one.
_MATRIX_CORE_GROUPS = SCALE_BLOCK // 16  # a group is 16 FP8 or 8 wider values; a K-block is 128 bytes
MATRIX_CORE_ERROR = 18 + 2 * _MATRIX_CORE_GROUPS

# Powers of two among scales of four bits that a round of multiplying them takes at least, see
# grouped_fragment_loader.h. Each round is promoted by itself.
_OF_ROUND = 25
_ROUNDED_TO_BF16 = 2.0**-8  # the most that a number times a scale changes, relative to itself

_SECOND_ORDER = 2.0**-8  # margin for products of errors

# The smallest subnormal of fp32, which a product of scales, or of a scale and a sum, may lose to underflow.
_UNDERFLOW = 2.0**-149
_LEAST_NORMAL = 2.0**-126

_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)

_TILE = 16
_CHUNK_ROWS = 512  # rows dequantised at once; a multiple of the rows of a scale block


@dataclasses.dataclass(frozen=True)
class GemmReference:
    """Attributes:
    exact: fp64 [M, N], the exact result.
    error: fp64 [M, N], the bound of the fp32 accumulator's error, before it is rounded to the output's type.
    """

    exact: torch.Tensor
    error: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How far a result is from its reference.

    Attributes:
        max_error: the largest absolute error.
        max_error_over_bound: the largest ratio of an element's error and its bound, which is the accumulation's error
            plus half a unit in the last place of the output's type. It is at most 1 for a correct result, and close to
            1 for a large one.
        max_tile_diff: the largest ``calc_diff`` of any 16 x 16 tile.
        failures: the number of elements outside their bound, or NaN in only one of result and reference.
        first_failure: row and column of the first failure.
    """

    max_error: float
    max_error_over_bound: float
    max_tile_diff: float
    failures: int
    first_failure: tuple[int, int] | None


def gemm_reference(
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    *,
    recipe: tuple[int | None, int | None, int | None] = (1, SCALE_BLOCK, SCALE_BLOCK),
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    epilogue: str = "identity",
) -> GemmReference:
    """The reference for ``gemm_fp8`` with these arguments or, without scales, for ``bf16_gemm_nt``.

    With ``b`` of four bits it is for ``fp8_fp4_gemm_nt``, ``bf16_fp4_gemm_nt``, ``fp8_int4_gemm_nt`` or
    ``bf16_int4_gemm_nt``, with the default recipe.

    It is computed on the CPU. Intermediate sums must not overflow fp32.
    """
    (a_data, sfa), (b_data, sfb) = data_and_scales(a), data_and_scales(b)
    a_data, b_data = a_data.cpu(), b_data.cpu()
    k = a_data.shape[1]
    dequantised_a = _dequantised(a_data, sfa, recipe[0], recipe[2])
    factors, b_data = None, unshuffled(b_data, sfb)
    if b_data.dtype in INT4_DTYPES:
        assert sfb is not None
        dequantised_b = int4_values(b_data, sfb.cpu())
    elif b_data.dtype in DTYPES_OF["e2m1"]:
        assert sfb is not None
        factors = scales_of_four_bits(sfb.cpu(), 2 * b_data.shape[1])
        values = torch.tensor(FP4_VALUES, dtype=torch.float64)
        dequantised_b = values[unpack_codes(b_data).int()] * factors.repeat_interleave(GROUP, 1)
    else:
        dequantised_b = _dequantised(b_data, sfb, recipe[1], recipe[2])
    k_block = SCALE_BLOCK // a_data.dtype.itemsize
    is_int4 = b_data.dtype in INT4_DTYPES
    keeps_integers = is_int4 and sfb is not None and (sfa is not None or sfb.shape[1] < k // GROUP)
    if is_int4 and sfb is not None and sfa is not None:
        k_block = min(k_block, k // max(sfb.shape[1], 1)) or k_block  # each group is promoted by itself
    promoted = (sfa is not None and recipe[2] is not None) or keeps_integers
    exact = torch.zeros(len(a_data), len(b_data), dtype=torch.float64)
    running = torch.zeros_like(exact)
    for first in range(0, k, k_block):
        block = slice(first, first + k_block)
        block_a, block_b = dequantised_a[:, block], dequantised_b[:, block]
        if promoted:
            exact.addmm_(block_a, block_b.T)
            running += exact.abs()
            if factors is not None:
                running += _more_rounds(factors) * (exact.abs() + block_a.abs() @ block_b.abs().T)
        else:
            # The matrix cores round their total after each group of the block.
            running += _MATRIX_CORE_GROUPS * 2 * (exact.abs() + block_a.abs() @ block_b.abs().T)
            exact.addmm_(block_a, block_b.T)
    magnitude = dequantised_a.abs() @ dequantised_b.abs().T
    dtype_of_b = torch.float8_e4m3fnuz if is_int4 else torch.float8_e5m2fnuz if factors is not None else b_data.dtype
    counted_a = _dequantised(_as_counted(a_data, dtype_of_b), sfa, recipe[0], recipe[2])
    counted_b = dequantised_b  # numbers of four bits become normal ones
    if dtype_of_b == b_data.dtype:
        counted_b = _dequantised(_as_counted(b_data, a_data.dtype), sfb, recipe[1], recipe[2])
    counted = magnitude
    if not (torch.equal(counted_a, dequantised_a) and torch.equal(counted_b, dequantised_b)):
        counted = counted_a.abs() @ counted_b.abs().T
    # Errors of sums and of the scales' product are relative to the magnitude, that of a multiply-add to its result.
    error = _ROUNDING * (MATRIX_CORE_ERROR * counted + magnitude + running) * (1 + _SECOND_ORDER)
    if sfa is not None:
        products = SCALE_BLOCK * torch.finfo(a_data.dtype).max * torch.finfo(dtype_of_b).max
        error += ceil_div(k, k_block) * _UNDERFLOW * (products + 1)
        if not promoted:
            error += 2 * _ROUNDING * exact.abs()  # two products with the scales
    elif (is_int4 and not keeps_integers) or (factors is not None and not (torch.frexp(factors).mantissa == 0.5).all()):
        error += _ROUNDED_TO_BF16 * magnitude
    if bias is not None:
        exact = exact + bias.cpu().double()
        error += _ROUNDING * (exact.abs() + error)
    if epilogue == "silu_and_mul":
        exact, error = _silu_and_mul(exact, error)
    if c is not None:
        exact = exact + c.cpu().double()
        error += _ROUNDING * (exact.abs() + error)
    return GemmReference(exact, error)


def scales_of_four_bits(scales: torch.Tensor, k: int) -> torch.Tensor:
    """The scales of a four-bit operand, in any of their forms, as fp64 [rows, K/32]."""
    if scales.dtype == torch.float32:
        return scales.double()
    exponents = scales.contiguous().view(torch.uint8)[:, : k // GROUP].double()
    return torch.exp2(exponents - 127).masked_fill(exponents == 0, 0.0).masked_fill(exponents == 255, torch.nan)


def unshuffled(data: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """The data that ``shuffle_weight`` took, of FP4 but for -0, which is 0 now; or other data, as they are."""
    if data.dtype not in SHUFFLED_DTYPES:
        return data
    words = data.contiguous().view(torch.int32)
    codes = []
    for value in range(8):
        byte, is_last = value % 4, value >= 4
        sign = words >> (8 * ((byte + 1) % 4) + 3 if is_last else 8 * byte + 7) & 1
        magnitude = words >> (8 * byte + 4 * is_last) & 7
        codes.append((magnitude ^ (7 * sign if data.dtype in INT4_DTYPES else 0)) | sign << 3)
    if data.dtype not in INT4_DTYPES:
        return pack_codes(torch.stack(codes, dim=-1).flatten(-2).to(torch.uint8))
    of_word = [code << (8 * (value % 4) + 4 * (value >= 4)) for value, code in enumerate(codes)]
    in_order = torch.stack(of_word).sum(0, dtype=torch.int32)
    assert scales is not None
    is_in_order = not has_short_groups(in_order, scales)
    return in_order if is_in_order else in_order.unflatten(-1, (-1, 4, 4)).mT.flatten(-3)


def int4_values(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values of a matrix that ``repack_int4`` made, before they are rounded, in fp64."""
    halves = torch.tensor([[8 * byte + 4 * half for byte in range(4)] for half in range(2)], dtype=torch.int32)
    codes = ((data[..., None] >> halves.flatten() & 15) ^ INT4_ZERO).flatten(-2).double()
    group = codes.shape[-1] // max(scales.shape[-1], 1)
    factors, zeros = scales.double(), torch.full(scales.shape, float(INT4_ZERO), dtype=torch.float64)
    if scales.dtype == torch.int32:
        factors, zeros = (scales & ~ZERO_BITS).view(torch.float32).double(), (scales & ZERO_BITS).double()
    return (codes - zeros.repeat_interleave(group, -1)) * factors.repeat_interleave(group, -1)


def _more_rounds(factors: torch.Tensor) -> int:
    """How many rounds more than one a K-block takes at most; one may be to find the scales' size."""
    exponents = torch.frexp(factors[(factors > 0) & factors.isfinite()]).exponent
    return 1 + int(exponents.max() - exponents.min()) // _OF_ROUND if len(exponents) else 0


def _silu_and_mul(sums: torch.Tensor, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``silu_and_mul`` of sums with these errors, and the error of the result."""
    gate, up = sums.chunk(2, dim=1)
    gate_error, up_error = error.chunk(2, dim=1)
    silu = torch.nn.functional.silu(gate)
    # The slope of silu is below 1.1. Rounded are the exponent, the exponential, the sum, the reciprocal and two
    # products.
    relative = 2 * _ROUNDING * (gate.abs() + 6)
    silu_error = 1.1 * gate_error + silu.abs() * relative + _LEAST_NORMAL * gate.abs()
    return silu * up, silu_error * (up.abs() + up_error) + silu.abs() * up_error


def _as_counted(data: torch.Tensor, other: torch.dtype) -> torch.Tensor:
    """The operand, in fp64, with subnormal numbers as large as the matrix cores count them: the least normal one.

    They give a subnormal number the exponent of that one, and truncate all products of a group to 24 bits below the
    largest exponent. Products of two numbers of the same FP8 type need nothing more: in e4m3 no bits are that low, and
    in e5m2 those of a group that are lost come to less than what the bound has for normal numbers, a fourth as large.
    """
    values = data.double()
    if data.dtype == other and data.dtype.itemsize == 1:
        return values
    least_normal = torch.finfo(data.dtype).smallest_normal
    is_subnormal = (values != 0) & (values.abs() < least_normal)
    return torch.where(is_subnormal, least_normal, values)


def _dequantised(
    data: torch.Tensor, scales: torch.Tensor | None, shared_rows: int | None, shared_k: int | None
) -> torch.Tensor:
    """The dequantised operand, fp64 [rows, k]."""
    if scales is None:
        return data.double()
    rows, k = data.shape
    spread = scales.cpu().double().repeat_interleave(rows if shared_rows is None else shared_rows, dim=0)
    spread = spread.repeat_interleave(k if shared_k is None else shared_k, dim=1)
    return data.double() * spread[:rows, :k]


def measure(actual: torch.Tensor, reference: GemmReference) -> Accuracy:
    """Compares a bf16, f16 or fp32 [M, N] result with its reference, element by element and tile by tile."""
    exact = reference.exact
    dtype = actual.dtype
    if dtype not in _OUTPUTS or actual.shape != exact.shape:
        raise ValueError(f"actual must be one of {_OUTPUTS}, {tuple(exact.shape)}, got {dtype} {tuple(actual.shape)}")
    # An accumulator within its error rounds to a number between the rounded ends of the interval. The last term is for
    # torch, which rounds fp64 to fp32 first.
    slack = reference.error + _ROUNDING * exact.abs()
    lowest, highest = ((exact + sign * slack).to(dtype).double() for sign in (-1, 1))
    actual = actual.cpu().double()
    same = (actual == exact) | (actual.isnan() & exact.isnan())
    inside = same | ((lowest <= actual) & (actual <= highest))
    failing = (~inside).nonzero()

    error = torch.where(same, 0.0, (actual - exact).abs())
    bound = slack + _half_unit(exact.abs() + slack, dtype)
    finite = bound.isfinite() & error.isfinite()
    return Accuracy(
        max_error=_largest(error.nan_to_num(nan=torch.inf)),
        max_error_over_bound=_largest(torch.where(finite, error / bound, torch.where(inside, 0.0, torch.inf))),
        max_tile_diff=_largest(_tile_diffs(actual, exact)),
        failures=len(failing),
        first_failure=tuple(failing[0].tolist()) if len(failing) else None,
    )


def assert_accurately_quantised(actual: Pair, reference: GemmReference) -> None:
    """Raises AssertionError unless quantised data, with a scale for each row and 128 columns, is within the bound."""
    data, scales = (tensor.cpu().double() for tensor in actual)
    if data.numel() == 0:
        return
    dtype = actual[0].dtype
    columns = data.shape[1]
    exact, error = (
        torch.nn.functional.pad(values, (0, -columns % SCALE_BLOCK)).unflatten(1, (-1, SCALE_BLOCK))
        for values in (reference.exact, reference.error)
    )
    format_max = torch.finfo(dtype).max
    expected = (exact.abs().amax(2) / format_max).clamp_min(_LEAST_NORMAL)
    allowed = error.amax(2) / format_max + 4 * _ROUNDING * expected
    wrong = ~((scales - expected).abs() <= allowed) & ~(scales.isnan() & expected.isnan())
    assert not wrong.any(), f"{int(wrong.sum())} scales are wrong, the first at {tuple(wrong.nonzero()[0].tolist())}"
    spread = scales.repeat_interleave(SCALE_BLOCK, 1)[:, :columns]
    scaled = reference.exact / spread
    slack = reference.error / spread + 4 * _ROUNDING * scaled.abs()
    bound = slack + _half_unit(scaled.abs() + slack, dtype)
    wrong = ~((data - scaled).abs() <= bound) & ~(data.isnan() & scaled.isnan())
    assert not wrong.any(), f"{int(wrong.sum())} values are wrong, the first at {tuple(wrong.nonzero()[0].tolist())}"


def assert_accurate(actual: torch.Tensor, reference: GemmReference) -> Accuracy:
    """Raises AssertionError, with the first failure and the number of all, unless ``actual`` is within the bound."""
    accuracy = measure(actual, reference)
    if accuracy.failures:
        index = accuracy.first_failure
        raise AssertionError(
            f"{accuracy.failures} of {actual.numel()} elements are outside the bound, the first at {index}: "
            f"{actual[index].item()} where {reference.exact[index].item()} is exact; {accuracy}"
        )
    return accuracy


def assert_accurate_in_sums(
    actual: torch.Tensor,
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    *,
    recipe: tuple[int | None, int | None, int | None] = (1, SCALE_BLOCK, SCALE_BLOCK),
    c: torch.Tensor | None = None,
) -> None:
    """Checks, in every row, the sums of each 16 columns with random signs; raises AssertionError if one is wrong.

    This is for outputs that are too large for ``gemm_reference``: it takes a sixteenth of the products. Every element
    counts, but an error shows only if it exceeds the rounding errors of 16 elements. All results must be finite.
    """
    (a_data, sfa), (b_data, sfb) = data_and_scales(a), data_and_scales(b)
    k = a_data.shape[1]
    signs = torch.randint(0, 2, (len(b_data),), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    sums_of_b, magnitudes_of_b = [], []
    for rows in _chunks(len(b_data)):
        values = _dequantised_rows(b_data, sfb, recipe[1], recipe[2], rows) * signs[rows, None]
        sums_of_b.append(_sums_of_tiles(values.T).T)
        magnitudes_of_b.append(_sums_of_tiles(values.abs().T).T)
    b_sums, b_magnitudes = torch.cat(sums_of_b).T, torch.cat(magnitudes_of_b).T
    # As in ``gemm_reference``, but with the magnitude of the whole sum instead of that of partial sums.
    k_blocks = ceil_div(k, SCALE_BLOCK // a_data.dtype.itemsize)
    promoted = sfa is not None and recipe[2] is not None
    running = k_blocks if promoted else _MATRIX_CORE_GROUPS * 2 * (k_blocks + 1) + 2
    relative_error = _ROUNDING * (MATRIX_CORE_ERROR + 1 + running) * (1 + _SECOND_ORDER)
    info = torch.finfo(actual.dtype)
    for rows in _chunks(len(a_data)):
        values = _dequantised_rows(a_data, sfa, recipe[0], recipe[2], rows)
        exact, error = values @ b_sums, relative_error * (values.abs() @ b_magnitudes)
        if c is not None:
            added = c[rows].cpu().double()
            exact += _sums_of_tiles(added * signs)
            error += _ROUNDING * (1 + _SECOND_ORDER) * (_sums_of_tiles(added.abs()) + values.abs() @ b_magnitudes)
        written = actual[rows].cpu().double()
        error += (1 + info.eps) * info.eps / 2 * _sums_of_tiles(written.abs()) + _TILE * info.tiny * info.eps
        wrong = ~((_sums_of_tiles(written * signs) - exact).abs() <= error) | ~error.isfinite()
        if wrong.any():
            row, tile = wrong.nonzero()[0].tolist()
            raise AssertionError(
                f"{int(wrong.sum())} sums of {_TILE} columns are outside the bound, the first in row "
                f"{rows.start + row}, columns {tile * _TILE} to {(tile + 1) * _TILE - 1}"
            )


def _chunks(size: int) -> Iterator[slice]:
    return (slice(first, min(first + _CHUNK_ROWS, size)) for first in range(0, size, _CHUNK_ROWS))


def _dequantised_rows(
    data: torch.Tensor, scales: torch.Tensor | None, shared_rows: int | None, shared_k: int | None, rows: slice
) -> torch.Tensor:
    """``_dequantised`` for some rows, which begin where a block of scales begins."""
    if scales is not None and shared_rows is not None:
        scales = scales[rows.start // shared_rows : ceil_div(rows.stop, shared_rows)]
    return _dequantised(data[rows].cpu(), scales, shared_rows, shared_k)


def _sums_of_tiles(values: torch.Tensor) -> torch.Tensor:
    """Sums each 16 columns: [rows, columns] becomes [rows, ceil(columns/16)]."""
    return torch.nn.functional.pad(values, (0, -values.shape[1] % _TILE)).unflatten(1, (-1, _TILE)).sum(2)


@through_host
def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """DeepGEMM's measure of similarity, ``1 - 2·Σxy / Σ(x² + y²)``: 0 for equal tensors, even if both are all zeros.

    It tells little about single elements: a large tensor with a few wrong tiles is still close to 0.

    Raises:
        TypeError, ValueError: ``x`` and ``y`` are not real tensors of one shape on one device.
    """
    for name, tensor in (("x", x), ("y", y)):
        check_tensor(name, tensor)
        if tensor.is_complex():
            raise TypeError(f"{name} must have real numbers, got {tensor.dtype}")
        if tensor.is_meta:
            raise ValueError(f"{name} must hold data, got a tensor on the meta device")
    if x.shape != y.shape or x.device != y.device:
        came = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in (x, y))
        raise ValueError(f"x and y must agree in shape and device, got {came}")
    x, y = x.double(), y.double()
    squares = (x * x + y * y).sum()
    return 0.0 if squares == 0 else (1 - 2 * (x * y).sum() / squares).item()


def _half_unit(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place of the values in ``dtype``."""
    info = torch.finfo(dtype)
    # torch.finfo has 2^-3 for e5m2fnuz, which is wrong: it has two bits of mantissa.
    eps = 2.0**-2 if dtype == torch.float8_e5m2fnuz else info.eps
    _, exponent = torch.frexp(values.clamp_min(info.smallest_normal))
    return torch.exp2(exponent.double() - 2) * eps


def _tile_diffs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``calc_diff`` of each tile."""
    padding = (0, -x.shape[1] % _TILE, 0, -x.shape[0] % _TILE)

    def tile_sums(values: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(values, padding)
        tiles_m, tiles_n = (size // _TILE for size in padded.shape)
        return padded.view(tiles_m, _TILE, tiles_n, _TILE).sum(dim=(1, 3))

    squares = tile_sums(x * x + y * y)
    return torch.where(squares == 0, 0.0, 1 - 2 * tile_sums(x * y) / squares)


def _largest(values: torch.Tensor) -> float:
    return values.max().item() if values.numel() else 0.0

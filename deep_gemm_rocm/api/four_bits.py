"""Four-bit weights of checkpoints, re-encoded as FP8 with scales for blocks, which every FP8 GEMM takes.

gfx942 has no four-bit matrix instructions. A value of four bits times the quotient of its scale and the block's is a
number of FP8, exactly wherever that quotient is a power of two in range.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..checks import check_int, check_tensor
from ..problems.four_bits import E8M0_DTYPES
from ..problems.layout import FP8, SCALE_BLOCK, ceil_div
from ..problems.tensors import check_one_device
from ..runtime.arrays import through_host
from .fp4 import FP4_VALUES, unpack_codes
from .int4 import INT4_ZERO, groups_of_columns, in_one_layout, values_of_scale

_LARGEST_EXPONENT = 7  # the largest magnitude of a block becomes 128 to 240, the largest of FP8
_E8M0_NAN = 255
_EXPONENT_SHIFT, _BITS_OF_LEAST = 23, 1 << 22  # of fp32; 2^-127 is subnormal there
_LEAST_SCALE = 2.0**-126  # normal numbers only
_SCALE_ROWS = (1, SCALE_BLOCK)


@through_host
def convert_fp4_to_fp8(
    data: torch.Tensor, scales: torch.Tensor, scale_rows: int = SCALE_BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts FP4 weights, such as MXFP4, to FP8 with scales for 128 columns, once when a model is loaded.

    Data times scales stays exact if scales that come to share one are powers of two that differ by at most 2^14.
    Beyond, values change by at most 2^-18 of the block's largest. With scales that aren't powers of two, values are
    rounded to FP8: by at most 1/16 of themselves, or 2^-18 of the block's largest, or 2^-137. Weights take twice the
    memory.

    Args:
        data: int8 or uint8 [N, K/2] or, for experts, [G, N, K/2], any strides: two e2m1 values to a byte, the first in
            the low half, as ``per_token_cast_to_fp4`` makes them.
        scales: [N, K/g] or [G, N, K/g] for groups of g values, any strides. Of OCP's MXFP4, uint8 or float8_e8m0fnu:
            exponents with a bias of 127, where 255 is NaN. Or fp32.
        scale_rows: how many rows share a scale of the result: 128, for the default recipe (1, 128, 128), or 1, for
            (1, 1, 128).

    Returns:
        float8_e4m3fnuz of [N, K] and fp32 scales [ceil(N/128), ceil(K/128)] or, with ``scale_rows=1``,
        [N, ceil(K/128)]; with a dimension before these for experts. Where a scale is NaN or infinite, values are NaN.

    Raises:
        TypeError, ValueError: an argument is not as above.
    """
    check_tensor("data", data)
    check_tensor("scales", scales)
    check_one_device({"data": data, "scales": scales})
    if data.dtype not in (torch.int8, torch.uint8):
        raise TypeError(f"data must be int8 or uint8, two FP4 values to a byte, got {data.dtype}")
    if scales.dtype not in (torch.float32, *E8M0_DTYPES):
        raise TypeError(f"scales must be uint8 or float8_e8m0fnu, as of MXFP4, or float32, got {scales.dtype}")
    if data.dim() not in (2, 3):
        raise ValueError(f"data must be [N, K/2], or [G, N, K/2] for experts, got shape {tuple(data.shape)}")
    *rows, half_k = data.shape
    if [*scales.shape[:-1]] != rows or scales.dim() != data.dim():
        raise ValueError(f"scales must have as many rows as data {tuple(data.shape)}, got shape {tuple(scales.shape)}")
    group = values_of_scale("scales", scales, 2 * half_k)
    _check_scale_rows(scale_rows)
    of_codes = torch.tensor(FP4_VALUES, device=data.device)

    def converted(data: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factors = _of_e8m0(scales) if scales.dtype in E8M0_DTYPES else scales
        return _in_fp8(of_codes[unpack_codes(data).int()], factors.repeat_interleave(group, 1), scale_rows)

    return _by_expert("data", converted, data, scales)


@through_host
def convert_int4_to_fp8(
    weight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    packing: str,
    scale_rows: int = 1,
    g_idx: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts int4 weights to FP8 with scales for 128 columns, once when a model is loaded.

    ``(code - zero) · scale`` stays exact with ``scale_rows=1`` where groups have 128 values or a multiple of it, and
    wherever scales that come to share one differ by powers of two, up to 2^13, if the block's largest value is at least
    2^-118. Otherwise values are rounded to FP8: by at most 1/16 of themselves, or 2^-18 of the block's largest, or
    2^-137. Weights take twice the memory.

    Args:
        weight, scales, zeros, packing: as for ``repack_int4``.
        g_idx: None, or int32 or int64 [K]: the group of each row of GPTQ or compressed-tensors, in any order, as of
            weights quantised in order of activations (``desc_act``).
        scale_rows: how many rows share a scale of the result: 1, for the recipe (1, 1, 128), or 128, for (1, 128, 128).

    Returns:
        float8_e4m3fnuz [N, K] and fp32 scales [N, ceil(K/128)] or, with ``scale_rows=128``,
        [ceil(N/128), ceil(K/128)]; with a dimension before these for experts. Where a scale is NaN or infinite, values
        are NaN.

    Raises:
        TypeError, ValueError: an argument is not as above.
    """
    _check_scale_rows(scale_rows)
    codes, factors, zero_codes = in_one_layout(weight, scales, zeros, packing)
    groups = groups_of_columns(g_idx, factors, 2 * codes.shape[-1])
    if zero_codes is None:
        zero_codes = torch.full_like(factors, INT4_ZERO, dtype=torch.uint8)

    def converted(codes: torch.Tensor, factors: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = unpack_codes(codes).float() - zeros[:, groups].float()
        return _in_fp8(values, factors[:, groups].float(), scale_rows)

    return _by_expert("weight", converted, codes, factors, zero_codes)


def _check_scale_rows(scale_rows: int) -> None:
    if check_int("scale_rows", scale_rows, 1) not in _SCALE_ROWS:
        raise ValueError(f"scale_rows must be 1 or {SCALE_BLOCK}, got {scale_rows}")


def _of_e8m0(scales: torch.Tensor) -> torch.Tensor:
    exponents = scales.view(torch.uint8).int()
    bits = (exponents << _EXPONENT_SHIFT).masked_fill(exponents == 0, _BITS_OF_LEAST)
    return bits.view(torch.float32).masked_fill(exponents == _E8M0_NAN, torch.nan)


def _by_expert(
    name: str, converted: Callable[..., tuple[torch.Tensor, torch.Tensor]], data: torch.Tensor, *others: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts a matrix, or that of each expert, one by one to save memory."""
    if data.dim() == 2:
        return converted(data, *others)
    if not len(data):
        raise ValueError(f"{name} must have at least one expert")
    experts, scales = zip(*map(converted, data, *others), strict=True)
    return torch.stack(experts), torch.stack(scales)


def _in_fp8(values: torch.Tensor, factors: torch.Tensor, scale_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``values`` [N, K] times ``factors`` of the same shape, as FP8 and scales."""
    n, k = values.shape
    rows, columns = ceil_div(n, scale_rows), ceil_div(k, SCALE_BLOCK)
    padding = (0, columns * SCALE_BLOCK - k, 0, rows * scale_rows - n)

    def in_blocks(tensor: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(tensor, padding)
        return padded.view(rows, scale_rows, columns, SCALE_BLOCK).transpose(1, 2).flatten(2)

    magnitudes, finite = in_blocks(values.abs()), in_blocks(factors.abs().nan_to_num(0, 0, 0))
    # The block's scale is that of its largest value, times a power of two.
    largest = (magnitudes.double() * finite).argmax(2, keepdim=True)
    magnitude, factor = (tensor.gather(2, largest)[..., 0] for tensor in (magnitudes, finite))
    exponents = torch.frexp(magnitude).exponent - 1
    scales = torch.ldexp(factor, exponents - _LARGEST_EXPONENT).clamp_min(_LEAST_SCALE)
    scales = scales.masked_fill(magnitude * factor == 0, 1.0)
    of_blocks = scales.repeat_interleave(scale_rows, 0)[:n].repeat_interleave(SCALE_BLOCK, 1)[:, :k]
    return (values * (factors / of_blocks)).to(FP8), scales

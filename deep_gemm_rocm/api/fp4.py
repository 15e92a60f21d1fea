"""FP4 data (e2m1) and scales that are powers of two (UE8M0), in the formats of DeepGEMM's utilities.

FP4 stands for 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, two values in a byte with the first in the low half. The
OCP Microscaling specification's MXFP4 is this with a UE8M0 scale for 32 values.
"""

from __future__ import annotations

import torch

from ..checks import check_bool, check_int, check_tensor
from ..problems.layout import SCALE_BLOCK, ceil_div
from ..runtime.arrays import through_host

FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# -0 dequantises to +0.
FP4_VALUES = (*FP4_MAGNITUDES, 0.0, *(-magnitude for magnitude in FP4_MAGNITUDES[1:]))
_EXPONENT_SHIFT, _FRACTION = 23, 2**23 - 1  # of fp32
EXPONENTS_IN_INT = 4


@through_host
def cast_back_from_fp4(
    packed: torch.Tensor, sf: torch.Tensor, gran_k: int = SCALE_BLOCK, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """The values of FP4 data with their scales; DeepGEMM's function of this name.

    Args:
        packed: int8 [M, K/2], any strides.
        sf: fp32 [M, ceil(K/gran_k)] or more columns; int32 as by ``pack_ue8m0_to_int`` with ``use_packed_ue8m0``.
        gran_k: how many columns share a scale.

    Returns:
        fp32 [M, K].

    Raises:
        TypeError, ValueError: an argument is not as above.
    """
    _check_packed("packed", packed)
    k = 2 * packed.shape[1]
    values = torch.tensor(FP4_VALUES, device=packed.device)[unpack_codes(packed).int()]
    return values * scales_of_columns(sf, packed.shape[0], k, gran_k, use_packed_ue8m0)


@through_host
def transpose_packed_fp4(a: torch.Tensor) -> torch.Tensor:
    """Transposes a matrix of FP4 data; DeepGEMM's function of this name.

    Args:
        a: int8 [M, K/2], any strides; M is even.

    Returns:
        int8 [K, M/2], contiguous.

    Raises:
        TypeError, ValueError: ``a`` is not as above.
    """
    _check_packed("a", a)
    if a.shape[0] % 2:
        raise ValueError(f"a must have an even number of rows, two to a byte of the result, got shape {tuple(a.shape)}")
    return pack_codes(unpack_codes(a).T)


@through_host
def ceil_to_ue8m0(x: torch.Tensor) -> torch.Tensor:
    """Magnitudes rounded up to powers of two; DeepGEMM's function of this name.

    Args:
        x: floating point, any shape and strides. fp64 is rounded to fp32 before.

    Returns:
        fp32 of the same shape, from 2^-126 to 2^127; that for infinities and NaN as well.

    Raises:
        TypeError: ``x`` is no tensor of floating point numbers.
    """
    check_tensor("x", x)
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}")
    bits = x.float().abs().contiguous().view(torch.int32)
    exponents = (bits >> _EXPONENT_SHIFT) + (bits & _FRACTION != 0)
    return (exponents.clamp(1, 254) << _EXPONENT_SHIFT).view(torch.float32)


@through_host
def pack_ue8m0_to_int(x: torch.Tensor) -> torch.Tensor:
    """Packs the exponents of powers of two, four to an int32; DeepGEMM's function of this name.

    Args:
        x: fp32 [..., n], n a multiple of 4, of powers of two from 2^-126 on, 0 (as 2^-127) and infinity (as 2^128).
            On a GPU this waits for them.

    Returns:
        int32 [..., n/4], contiguous, the first exponent in the low byte, each with a bias of 127.

    Raises:
        TypeError, ValueError: ``x`` is not as above.
    """
    check_tensor("x", x)
    if x.dtype != torch.float32:
        raise TypeError(f"x must be float32, got {x.dtype}")
    if not x.dim() or x.shape[-1] % EXPONENTS_IN_INT:
        raise ValueError(f"x must have a multiple of {EXPONENTS_IN_INT} columns, got shape {tuple(x.shape)}")
    if not x.numel():
        return x.new_empty(*x.shape[:-1], x.shape[-1] // EXPONENTS_IN_INT, dtype=torch.int32)
    bits = x.contiguous().view(torch.int32)
    if not x.is_meta and ((bits < 0) | (bits & _FRACTION != 0)).any():
        raise ValueError("x must be powers of two; ceil_to_ue8m0 makes them")
    return (bits >> _EXPONENT_SHIFT).to(torch.uint8).view(torch.int32)


@through_host
def unpack_ue8m0_from_int(packed_sf: torch.Tensor) -> torch.Tensor:
    """The powers of two that ``pack_ue8m0_to_int`` packed; DeepGEMM's function of this name.

    Args:
        packed_sf: int32 [..., n], any strides.

    Returns:
        fp32 [..., 4n], contiguous.

    Raises:
        TypeError, ValueError: ``packed_sf`` is not as above.
    """
    check_tensor("packed_sf", packed_sf)
    if packed_sf.dtype != torch.int32:
        raise TypeError(f"packed_sf must be int32, got {packed_sf.dtype}")
    if not packed_sf.dim():
        raise ValueError("packed_sf must have at least one dimension, got a scalar")
    exponents = packed_sf.contiguous().view(torch.uint8).int()
    return (exponents << _EXPONENT_SHIFT).view(torch.float32)


def scales_of_columns(sf: torch.Tensor, rows: int, columns: int, gran_k: int, use_packed_ue8m0: bool) -> torch.Tensor:
    """The scale of each value of a matrix, from that of each ``gran_k`` columns of a row.

    Raises:
        TypeError, ValueError: an argument is not as ``cast_back_from_fp4`` documents it.
    """
    check_int("gran_k", gran_k, 1)
    scales = unpack_ue8m0_from_int(sf) if check_bool("use_packed_ue8m0", use_packed_ue8m0) else sf
    check_tensor("sf", scales)
    if scales.dtype != torch.float32:
        raise TypeError(f"sf must be float32, got {scales.dtype}; packed scales need use_packed_ue8m0=True")
    if scales.dim() != 2 or scales.shape[0] != rows or scales.shape[1] < ceil_div(columns, gran_k):
        raise ValueError(
            f"sf must have a scale for each of {rows} rows and {ceil_div(columns, gran_k)} blocks of {gran_k} columns, "
            f"got shape {tuple(sf.shape)}"
        )
    return scales[:, torch.arange(columns, device=scales.device) // gran_k]


def _check_packed(name: str, packed: torch.Tensor) -> None:
    check_tensor(name, packed)
    if packed.dtype != torch.int8:
        raise TypeError(f"{name} must be int8, two FP4 values to a byte, got {packed.dtype}")
    if packed.dim() != 2:
        raise ValueError(f"{name} must be a matrix, got shape {tuple(packed.shape)}")


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """Codes as uint8 [..., columns], two to a byte."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).contiguous().view(torch.int8)


def unpack_codes(packed: torch.Tensor) -> torch.Tensor:
    """The other way round."""
    both = packed.contiguous().view(torch.uint8)
    return torch.stack((both & 0x0F, both >> 4), dim=-1).flatten(-2)


def as_words(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bytes as a contiguous tensor of another dtype, also without any, of which torch makes no view."""
    return data.contiguous().view(dtype) if data.shape[-1] else data.new_empty(data.shape, dtype=dtype)

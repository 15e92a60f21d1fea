"""Weights of four bits in the orders that kernels load and widen the fastest."""

from __future__ import annotations

import torch

from ..checks import check_tensor, one_of
from ..problems.four_bits import (
    FP4_DTYPES,
    FP4_SCALES,
    INT4_GROUPS,
    PACKED_EXPONENTS,
    SHUFFLED_EXPONENTS,
    SHUFFLED_INT4_SCALES,
    has_short_groups,
    values_of_element,
)
from ..problems.gemm_kind import GROUP
from ..problems.layout import SCALE_BLOCK, Pair, ceil_div
from ..problems.tensors import check_one_device
from ..runtime.arrays import through_host
from .fp4 import EXPONENTS_IN_INT, as_words, unpack_codes
from .int4 import by_columns

_SIGN, _MAGNITUDE, _CODE, _CODE_BITS = 8, 7, 15, 4
_OF_HALF_WORD = 4
_EXPONENT_OF_ONE, _NO_POWER_OF_TWO = 127, 255
_LANE_GROUPS = _MFMAS = 4  # of 16 rows, and of a K-block of FP8
_EXPONENT_SHIFT, _FRACTION = 23, 2**23 - 1  # of fp32


@through_host
def shuffle_weight(data: torch.Tensor, scales: torch.Tensor) -> Pair:
    """Brings a weight of four bits into the order that kernels load and widen the fastest, once when a model is loaded.

    MXFP4 is for all functions that take it. int4 is for FP8 activations (``fp8_int4_gemm_nt``, its grouped versions,
    and ``fused_moe``). The same values are multiplied, and the weight takes the same memory. Parts of K begin and end
    at multiples of 128. For MXFP4, it waits for the device. Take experts together, for ``torch.stack`` changes the
    layout of scales. See docs/kernels.md and docs/numerics.md.

    Args:
        data: any strides. MXFP4 is int8 or uint8 [N, K/2], as for ``fp8_fp4_gemm_nt``, where K is a multiple of 32.
            int4 is int32 [N, K/8], as ``repack_int4`` returns it, where K is a multiple of 128. For experts, there is a
            dimension G before these.
        scales: any strides. For MXFP4 as for ``fp8_fp4_gemm_nt``, int32 [N, ceil(K/128)], or uint8, float8_e8m0fnu or
            fp32 [N, K/32]: powers of two from 2^-24 to 2^3 for all groups of 32 values that aren't all 0. For int4,
            bf16 or f16 [N, K/32], or fp32 [N, K/32], [N, K/64] or [N, K/128], without zeros. For experts, there is a
            dimension G before these.

    Returns:
        A pair. For MXFP4, int64 [N, K/16] of sixteen values to an element, contiguous, and int32 [N, ceil(K/128)] of
        four exponents with a bias of 127 each, contiguous along N. For int4, int16 [N, K/4] of four values to an
        element, contiguous, and the same scales, contiguous along N. For experts, there is a dimension G before these.

    Raises:
        TypeError, ValueError: an argument is not as above. Other scales need the weight as it is.
    """
    check_tensor("data", data)
    check_tensor("scales", scales)
    check_one_device({"data": data, "scales": scales})
    if data.dtype not in (*FP4_DTYPES, torch.int32):
        raise TypeError(f"data must be {one_of((*FP4_DTYPES, torch.int32))}, got {data.dtype}")
    return _shuffled_int4(data, scales) if data.dtype == torch.int32 else _shuffled_fp4(data, scales)


def _shuffled_fp4(data: torch.Tensor, scales: torch.Tensor) -> Pair:
    _check_fp4(data, scales)
    k = 2 * data.shape[-1]
    codes = unpack_codes(data).unflatten(-1, (k // GROUP, GROUP))
    exponents = _exponents(scales)[..., : k // GROUP]
    is_zero = (exponents == 0) | (codes & _MAGNITUDE == 0).all(-1)
    low, high = SHUFFLED_EXPONENTS
    is_far = ~is_zero & ((exponents < low) | (exponents > high))
    if not data.is_meta and is_far.any():
        raise ValueError(
            f"scales must be powers of two from 2^{low - _EXPONENT_OF_ONE} to 2^{high - _EXPONENT_OF_ONE}, got others "
            f"for {int(is_far.sum())} of {is_far.numel()} groups; functions take the weight unshuffled"
        )
    codes = codes.masked_fill(is_zero[..., None] | (codes & _MAGNITUDE == 0), 0)  # so there is no -0
    first, last = codes.flatten(-2).unflatten(-1, (-1, 2, _OF_HALF_WORD)).unbind(-2)
    return _in_words(first, last, torch.int64), _packed_by_columns(exponents.masked_fill(is_zero, _EXPONENT_OF_ONE))


def _shuffled_int4(data: torch.Tensor, scales: torch.Tensor) -> Pair:
    _check_int4(data, scales)
    factors = by_columns(scales)
    if has_short_groups(data, scales):  # an MFMA takes only one of them
        data = data.unflatten(-1, (-1, _MFMAS, _LANE_GROUPS)).mT.flatten(-3)
    of_words = data.contiguous().view(torch.uint8).unflatten(-1, (-1, _OF_HALF_WORD))
    first, last = (_with_magnitude(codes) for codes in (of_words & _CODE, of_words >> _CODE_BITS))
    return _in_words(first, last, torch.int16), factors


def _with_magnitude(integers: torch.Tensor) -> torch.Tensor:
    """Integers of four bits as a sign and a magnitude, from which 1 is subtracted if they are negative."""
    return torch.where(integers & _SIGN != 0, integers ^ _MAGNITUDE, integers)


def _check_int4(data: torch.Tensor, scales: torch.Tensor) -> None:
    if scales.dtype not in SHUFFLED_INT4_SCALES:
        raise TypeError(f"scales must be {one_of(SHUFFLED_INT4_SCALES)} for int4, got {scales.dtype}")
    *rows, words = data.shape
    k = values_of_element(data.dtype) * words
    if data.dim() not in (2, 3) or k % SCALE_BLOCK:
        raise ValueError(
            f"data must be [N, K/8], or [G, N, K/8] for experts, and K a multiple of {SCALE_BLOCK}, got shape "
            f"{tuple(data.shape)}"
        )
    groups = INT4_GROUPS if scales.dtype == torch.float32 else (GROUP,)
    shapes = [(*rows, k // group) for group in groups]
    if scales.shape not in shapes:
        raise ValueError(
            f"scales must have shape {' or '.join(map(str, shapes))} for {' or '.join(map(str, groups))} of K, got "
            f"{tuple(scales.shape)}"
        )


def _check_fp4(data: torch.Tensor, scales: torch.Tensor) -> None:
    if scales.dtype not in FP4_SCALES:
        raise TypeError(f"scales must be {one_of(FP4_SCALES)} for FP4, got {scales.dtype}")
    if data.dim() not in (2, 3) or 2 * data.shape[-1] % GROUP:
        raise ValueError(
            f"data must be [N, K/2], or [G, N, K/2] for experts, and K a multiple of {GROUP}, got shape "
            f"{tuple(data.shape)}"
        )
    of_scale = SCALE_BLOCK if scales.dtype == PACKED_EXPONENTS else GROUP
    expected = (*data.shape[:-1], ceil_div(2 * data.shape[-1], of_scale))
    if scales.shape != expected:
        raise ValueError(f"scales must have shape {expected} for {of_scale} of K, got {tuple(scales.shape)}")


def _exponents(scales: torch.Tensor) -> torch.Tensor:
    """The exponents of scales plus 127, as int32; 255 for those that are no powers of two."""
    if scales.dtype != torch.float32:
        return scales.contiguous().view(torch.uint8).int()
    bits = scales.contiguous().view(torch.int32)
    is_power = (bits >= 0) & (bits & _FRACTION == 0)
    return (bits >> _EXPONENT_SHIFT).masked_fill(~is_power, _NO_POWER_OF_TWO)


def _packed_by_columns(exponents: torch.Tensor) -> torch.Tensor:
    """Exponents [..., N, K/32] as int32 [..., N, ceil(K/128)] of four, of which those of a column are contiguous."""
    padding = (0, -exponents.shape[-1] % EXPONENTS_IN_INT)
    padded = torch.nn.functional.pad(exponents, padding, value=_EXPONENT_OF_ONE).to(torch.uint8)
    return by_columns(as_words(padded, torch.int32))


def _in_words(first: torch.Tensor, last: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Words of eight codes, which types.h describes (``ShuffledE2M1``), as elements of ``dtype``.

    Args:
        first, last: the first and the last four codes of each word, uint8 [..., words, 4].
    """
    signs = (first & _SIGN) << _CODE_BITS | (last & _SIGN).roll(1, -1)
    of_bytes = first & _MAGNITUDE | (last & _MAGNITUDE) << _CODE_BITS | signs
    return as_words(of_bytes.flatten(-2), dtype)

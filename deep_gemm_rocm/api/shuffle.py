"""MXFP4 weights in the order of bits that kernels widen with the fewest instructions."""

from __future__ import annotations

import torch

from ..checks import check_tensor, one_of
from ..problems.four_bits import FP4_DTYPES, FP4_SCALES, PACKED_EXPONENTS, SHUFFLED_EXPONENTS
from ..problems.gemm_kind import GROUP
from ..problems.layout import SCALE_BLOCK, Pair, ceil_div
from ..runtime.arrays import through_host
from .fp4 import EXPONENTS_IN_INT, as_words, unpack_codes

_SIGN, _MAGNITUDE = 8, 7  # of a code
_OF_HALF_WORD = 4
_EXPONENT_OF_ONE, _NO_POWER_OF_TWO = 127, 255
_EXPONENT_SHIFT, _FRACTION = 23, 2**23 - 1  # of fp32


@through_host
def shuffle_weight(data: torch.Tensor, scales: torch.Tensor) -> Pair:
    """Brings an MXFP4 weight into the order that kernels load and widen the fastest, once when a model is loaded.

    Functions that take FP4 weights take the result as well. The same values are multiplied, and it takes the same
    memory. It waits for the device. See docs/kernels.md and docs/numerics.md.

    Args:
        data: int8 or uint8 [N, K/2] or, for experts, [G, N, K/2], any strides: as for ``fp8_fp4_gemm_nt``. K is a
            multiple of 32.
        scales: any strides, as for ``fp8_fp4_gemm_nt``: int32 [N, ceil(K/128)], or uint8, float8_e8m0fnu or fp32
            [N, K/32]; for experts with a dimension before these. Powers of two from 2^-24 to 2^3 for all groups of 32
            values that aren't all 0.

    Returns:
        A pair: int64 [N, K/16] of sixteen values to an element, contiguous, and int32 [N, ceil(K/128)] of four
        exponents with a bias of 127 each, contiguous along N; for experts with a dimension before these.

    Raises:
        TypeError, ValueError: an argument is not as above. Other scales need the weight as it is.
    """
    _check(data, scales)
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
    return _in_words(codes.flatten(-2)), _by_columns(exponents.masked_fill(is_zero, _EXPONENT_OF_ONE))


def _check(data: torch.Tensor, scales: torch.Tensor) -> None:
    for name, tensor, dtypes in (("data", data, FP4_DTYPES), ("scales", scales, FP4_SCALES)):
        check_tensor(name, tensor)
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} must be {one_of(dtypes)}, got {tensor.dtype}")
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


def _by_columns(exponents: torch.Tensor) -> torch.Tensor:
    """Exponents [..., N, K/32] as int32 [..., N, ceil(K/128)] of four, of which those of a column are contiguous."""
    padding = (0, -exponents.shape[-1] % EXPONENTS_IN_INT)
    padded = torch.nn.functional.pad(exponents, padding, value=_EXPONENT_OF_ONE).to(torch.uint8)
    return as_words(padded, torch.int32).mT.contiguous().mT


def _in_words(codes: torch.Tensor) -> torch.Tensor:
    """Codes [..., K] as int64 [..., K/16], in the order that ``ShuffledE2M1`` in types.h describes."""
    first, last = codes.unflatten(-1, (-1, 2, _OF_HALF_WORD)).unbind(-2)
    signs = (first & _SIGN) << 4 | (last & _SIGN).roll(1, -1)
    of_bytes = first & _MAGNITUDE | (last & _MAGNITUDE) << 4 | signs
    return as_words(of_bytes.flatten(-2), torch.int64)

"""int4 weights of checkpoints, in the one form that kernels take.

Codes are unsigned, from 0 to 15, as packers store them. The code that stands for 0 is the zero point.
"""

from __future__ import annotations

import torch

from ..checks import check_tensor
from ..problems.four_bits import INT4_GROUPS
from ..problems.layout import Pair, ceil_div
from ..runtime.arrays import through_host
from .fp4 import as_words, pack_codes, unpack_codes

INT4_ZERO = 8  # stands for 0 where there are no zero points
PACKINGS = ("compressed-tensors", "awq", "gptq", "gptq_v2")
_SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_OF_WORD = 8  # codes in an int32
ZERO_BITS = 0x1F  # the bits of a scale that hold its zero point
_IN_ORDER = tuple(range(_OF_WORD))
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where columns lie in a word of AWQ


@through_host
def repack_int4(
    weight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    packing: str,
    g_idx: torch.Tensor | None = None,
) -> Pair:
    """Brings int4 weights of a checkpoint into the form of ``bf16_int4_gemm_nt``, once when a model is loaded.

    The value of row n and column k is ``(code[n, k] - zero[n, k // g]) · scale[n, k // g]``. It waits for the device.
    Take experts together, for ``torch.stack`` changes the layout of scales.

    Args:
        weight: int32 of eight codes, any strides. [N, K/8] as compressed-tensors packs it (``pack-quantized``), or
            [K, N/8] as AWQ's GEMM version does, or [K/8, N] as GPTQ does; for experts with a dimension before these,
            as ``scales`` and ``zeros`` then.
        scales: bf16, f16 or fp32, any strides: [N, K/g] for groups of g values, and [K/g, N] of AWQ and GPTQ. g is a
            multiple of 32; whole rows are one group.
        zeros: int32, each group's code that stands for 0, packed: [ceil(N/8), K/g], and [K/g, ceil(N/8)] of AWQ and
            GPTQ. None for 8 everywhere.
        packing: ``compressed-tensors``, ``awq``, ``gptq`` or ``gptq_v2``. ``gptq`` stores zeros less by 1.
        g_idx: int32 or int64 [K], the group of each row of GPTQ or compressed-tensors. It must be ``k // g``: weights
            quantised in order of activations (``desc_act``) are refused, since their groups aren't neighbours;
            ``convert_int4_to_fp8`` takes them.

    Returns:
        A pair. int32 [N, K/8] of eight codes along K, less 8 and so from -8 to 7, contiguous: byte i has code i in its
        low half, and code i + 4 in its high half. And scales [N, K/h] for h values, where h is the largest of 128, 64
        and 32 that divides g, contiguous along N. If all zeros are 8, scales of 32 values have their dtype, others are
        fp32. Where there are other zeros, scales are int32: fp32 scales with zeros in the last five bits. That is exact
        for bf16 and f16, and rounds fp32 by at most 2^-19.

    Raises:
        TypeError, ValueError: an argument is not as above.
    """
    codes, factors, zero_codes = in_one_layout(weight, scales, zeros, packing)
    for name, tensor in (("zeros", zeros), ("g_idx", g_idx)):
        if tensor is not None and codes.is_meta:
            raise ValueError(f"{name} must be None for meta tensors, for the result depends on its values")
    k = 2 * codes.shape[-1]
    group = values_of_scale("scales", factors, k)
    in_order = groups_of_columns(None, factors, k)
    if g_idx is not None and not torch.equal(groups_of_columns(g_idx, factors, k), in_order):
        raise ValueError(
            f"g_idx must be k // {group} for row k: these weights were quantised in "
            "order of activations, and their groups aren't neighbours; convert_int4_to_fp8 takes them"
        )
    kernel_group = next((size for size in reversed(INT4_GROUPS) if group % size == 0), None)
    if k and kernel_group is None:
        raise ValueError(
            f"scales must be for groups of a multiple of {INT4_GROUPS[0]} values, got one for {group}; "
            "convert_int4_to_fp8 takes them"
        )
    if zero_codes is not None and bool((zero_codes != INT4_ZERO).any()):
        factors = _with_zeros(factors, zero_codes)
    elif kernel_group != INT4_GROUPS[0]:
        factors = factors.float()
    if kernel_group:
        factors = factors.repeat_interleave(group // kernel_group, -1)
    data = _in_halves(codes)
    return data, by_columns(factors)


def by_columns(scales: torch.Tensor) -> torch.Tensor:
    """The scales contiguous along N, as kernels load them the fastest: a wave's lanes load neighbours."""
    return scales.mT.contiguous().mT


def _in_halves(codes: torch.Tensor) -> torch.Tensor:
    """Words of eight codes minus 8. The first four are in the low halves of bytes, the others in the high halves."""
    first, last = (unpack_codes(codes) ^ INT4_ZERO).unflatten(-1, (codes.shape[-1] // 4, 2, 4)).unbind(-2)
    return as_words((first | last << 4).flatten(-2), torch.int32)


def _with_zeros(scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """fp32 scales with the zero points ``zeros`` in their last bits, for which the scales are rounded to nearest."""
    bits = scales.float().view(torch.int32)
    half_unit = (ZERO_BITS + 1) // 2
    return torch.where(scales.isfinite(), bits + half_unit, bits) & ~ZERO_BITS | zeros.int()


def in_one_layout(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, packing: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The arguments of ``repack_int4`` in one layout.

    Returns:
        int8 [N, K/2], two codes to a byte, the first in the low half; scales [N, K/g]; and zeros as uint8 [N, K/g], or
        None as given. All contiguous.

    Raises:
        TypeError, ValueError: an argument is not as documented there.
    """
    if packing not in PACKINGS:
        raise ValueError(f"packing must be one of {', '.join(PACKINGS)}, got {packing!r}")
    _check(weight, scales, zeros)
    by_rows = packing == "compressed-tensors"
    if packing == "awq":
        if weight.shape[-2] % 2:
            raise ValueError(f"weight must have an even number of rows, K, got shape {tuple(weight.shape)}")
        codes = pack_codes(_unpacked(weight, _AWQ_ORDER).to(torch.uint8).mT)
    else:
        codes = as_words(weight if by_rows else weight.mT, torch.int8)
    factors = (scales if by_rows else scales.mT).contiguous()
    if factors.shape[:-1] != codes.shape[:-1]:
        where = "[N, K/g]" if by_rows else "[K/g, N]"
        raise ValueError(f"scales must be {where} with N={codes.shape[-2]}, got shape {tuple(scales.shape)}")
    values_of_scale("scales", factors, 2 * codes.shape[-1])
    if zeros is None:
        return codes, factors, None
    *experts, n, groups = factors.shape
    words = zeros.mT if by_rows else zeros
    if words.shape != (*experts, groups, ceil_div(n, _OF_WORD)):
        where = "[ceil(N/8), K/g]" if by_rows else "[K/g, ceil(N/8)]"
        raise ValueError(f"zeros must be {where} for scales {tuple(scales.shape)}, got shape {tuple(zeros.shape)}")
    of_groups = _unpacked(words, _AWQ_ORDER if packing == "awq" else _IN_ORDER)[..., :n].mT
    return codes, factors, (of_groups + (packing == "gptq")).to(torch.uint8).contiguous()


def values_of_scale(name: str, scales: torch.Tensor, k: int) -> int:
    """How many values along K share a scale.

    Raises:
        ValueError: they aren't equally many.
    """
    groups = scales.shape[-1]
    if k and (not groups or k % groups):
        raise ValueError(
            f"{name} must have a scale for equal groups of the {k} values of a row, got {groups} for each row"
        )
    return k // groups if k else 1


def groups_of_columns(g_idx: torch.Tensor | None, scales: torch.Tensor, k: int) -> torch.Tensor:
    """The group of each of ``k`` columns, int64: as ``g_idx`` says, or in order. Waits for the device.

    Raises:
        TypeError, ValueError: ``g_idx`` doesn't have a group of ``scales`` for each column.
    """
    if g_idx is None:
        return torch.arange(k, device=scales.device) // values_of_scale("scales", scales, k)
    check_tensor("g_idx", g_idx)
    if g_idx.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"g_idx must be int32 or int64, got {g_idx.dtype}")
    if g_idx.shape != (k,):
        raise ValueError(f"g_idx must be the group of each of {k} rows, got shape {tuple(g_idx.shape)}")
    if g_idx.is_meta:
        raise ValueError("g_idx must have values, got a meta tensor")
    groups = scales.shape[-1]
    if ((g_idx < 0) | (g_idx >= groups)).any():
        raise ValueError(f"g_idx must be from 0 to {groups - 1}, the groups that have scales")
    return g_idx.to(scales.device, torch.int64)


def _check(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> None:
    for name, tensor in (("weight", weight), ("scales", scales), *((("zeros", zeros),) if zeros is not None else ())):
        check_tensor(name, tensor)
        if tensor.dim() not in (2, 3) or tensor.dim() != weight.dim():
            raise ValueError(
                f"{name} must be a matrix, or as all others one for each expert, got shape {tuple(tensor.shape)}"
            )
        if tensor.device != weight.device:
            raise ValueError(f"{name} must be on the device of weight, {weight.device}, got {tensor.device}")
        if name != "scales" and tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, eight values to an element, got {tensor.dtype}")
    if scales.dtype not in _SCALE_DTYPES:
        raise TypeError(f"scales must be bfloat16, float16 or float32, got {scales.dtype}")


def _unpacked(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The eight codes of each word of the last dimension, beside each other."""
    shifts = 4 * torch.tensor(order, device=words.device, dtype=torch.int32)
    return ((words[..., None] >> shifts) & 0xF).flatten(-2)

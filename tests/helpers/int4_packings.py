"""int4 weights as checkpoints have them, packed value by value as the packers of the formats document it."""

from __future__ import annotations

from typing import NamedTuple

import torch

PACKINGS = ["compressed-tensors", "awq", "gptq", "gptq_v2"]
_AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ: which of eight columns lies in the word's i-th four bits


class Int4(NamedTuple):
    """A weight: codes [N, K], zeros and scales [N, K/g], its values in fp64, and the arguments in its packing."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    values: torch.Tensor
    arguments: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def words_of(codes: torch.Tensor, columns: list[int] | None = None) -> torch.Tensor:
    """int32 words of eight neighbouring columns, the last filled up with zeros."""
    rows, width = codes.shape
    words = torch.zeros(rows, -(-width // 8), dtype=torch.int64)
    for column in range(width):
        place = column % 8 if columns is None else columns.index(column % 8)
        words[:, column // 8] |= codes[:, column].long() << 4 * place
    return torch.where(words >= 2**31, words - 2**32, words).int()


def int4(
    packing: str, n: int, k: int, group: int, with_zeros: bool, dtype: torch.dtype = torch.float16, seed: int = 1
) -> Int4:
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=random)
    scales = (torch.rand(n, k // group, generator=random) + 0.1).to(dtype)
    zeros = torch.randint(1, 16, scales.shape, generator=random) if with_zeros else torch.full(scales.shape, 8)
    differences = codes - zeros.repeat_interleave(group, 1)
    values = differences.double() * scales.double().repeat_interleave(group, 1)
    packed_zeros = None
    if packing == "compressed-tensors":  # weights in words along K, zeros in words along N
        if with_zeros:
            packed_zeros = words_of(zeros.T).T
        arguments = (words_of(codes), scales, packed_zeros)
    elif packing == "awq":  # both in words along N, in an order of its own
        if with_zeros:
            packed_zeros = words_of(zeros.T, _AWQ_COLUMNS)
        arguments = (words_of(codes.T, _AWQ_COLUMNS), scales.T, packed_zeros)
    else:  # weights in words along K, zeros in words along N; AutoGPTQ takes 1 from them
        if with_zeros:
            packed_zeros = words_of(zeros.T - 1 if packing == "gptq" else zeros.T)
        arguments = (words_of(codes).T, scales.T, packed_zeros)
    return Int4(codes, zeros, scales, values, arguments)

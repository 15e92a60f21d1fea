"""Checks of the tensors that say where tokens of sequences are: block tables, slots, and ends of packed sequences."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from .arguments import Contents
from .tensors import check_data, check_form

MAX_PAGE_SIZE = 256
MAX_TOKENS = 2**28  # kernels add several token counts in 32-bit integers


def check_pages(
    batch: int,
    num_pages: int,
    page_size: int,
    block_table: Any,
    context_lens: Any,
    *,
    per_query: int | None = None,
) -> tuple[Contents, ...]:
    """Checks a block table and context lengths.

    Args:
        per_query: the queries of a sequence if ``context_lens`` is [batch, queries] rather than [batch].

    Returns:
        the check of their contents; none on a GPU, since reading them would wait for it.
    """
    check_form("block_table", block_table, torch.int32, (batch, None))
    check_form("context_lens", context_lens, torch.int32, (batch,) if per_query is None else (batch, per_query))
    if block_table.shape[1] * page_size > MAX_TOKENS:
        raise ValueError(f"block_table must name up to {MAX_TOKENS} tokens, got shape {tuple(block_table.shape)}")
    if context_lens.device.type != "cpu" or block_table.device.type != "cpu":
        return ()
    contents = Contents(functools.partial(_check_used_pages, num_pages, page_size), ("block_table", "context_lens"))
    contents.check(block_table, context_lens)
    return (contents,)


def _check_used_pages(num_pages: int, page_size: int, block_table: torch.Tensor, context_lens: torch.Tensor) -> None:
    longest = context_lens if context_lens.dim() == 1 else context_lens.amax(dim=1)
    _check_context_lens(longest, page_size, block_table)
    if block_table.numel() == 0:
        return
    least, largest = (entry.item() for entry in block_table.aminmax())
    if least < 0 or largest >= num_pages:  # entries past a sequence's end may be anything
        used = torch.arange(block_table.shape[1])[None] * page_size < longest[:, None]
        wrong = used & ((block_table < 0) | (block_table >= num_pages))
        if wrong.any():
            sequence, block = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"block_table must name blocks below {num_pages}, got {int(block_table[sequence, block])} as block "
                f"{block} of sequence {sequence}"
            )


def _check_context_lens(context_lens: torch.Tensor, page_size: int, block_table: torch.Tensor) -> None:
    room = block_table.shape[1] * page_size
    for sequence, tokens in enumerate(context_lens.tolist()):
        if tokens < 0:
            raise ValueError(f"context_lens must not be negative, got {tokens} for sequence {sequence}")
        if tokens > room:
            raise ValueError(
                f"context_lens must fit block_table, whose {block_table.shape[1]} blocks hold {room} tokens, got "
                f"{tokens} for sequence {sequence}"
            )


def check_page_size(cache: str, page_size: int, page_sizes: tuple[int, ...]) -> None:
    """
    Raises:
        ValueError: blocks of the cache have another number of tokens.
    """
    if page_size not in page_sizes:
        raise ValueError(f"a block of {cache} must have one of {page_sizes} tokens, got {page_size}")


def compiled_page_size(page_size: int) -> int:
    """A page's tokens if a kernel must be compiled for just this number; 0 for powers of two, which share a kernel."""
    return page_size if page_size & (page_size - 1) else 0


def check_slots(slots: Any, tokens: int) -> None:
    """Checks the slots of a cache that tokens are written to."""
    check_data("slots", slots)
    if slots.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"slots must be int32 or int64, got {slots.dtype}")
    check_form("slots", slots, slots.dtype, (tokens,))


def check_cu_seqlens(name: str, cu_seqlens: Any, tensor: torch.Tensor, of: str) -> tuple[Contents, ...]:
    """Checks the ends of the sequences in ``tensor``, the argument ``of``.

    Returns:
        the check of their contents; none on a GPU, since reading them would wait for it.
    """
    check_data(name, cu_seqlens)
    if cu_seqlens.dtype != torch.int32:
        raise TypeError(f"{name} must be int32, got {cu_seqlens.dtype}")
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.stride() != (1,):
        raise ValueError(
            f"{name} must be contiguous, of shape (sequences + 1,), got shape {tuple(cu_seqlens.shape)} and strides "
            f"{cu_seqlens.stride()}"
        )
    if cu_seqlens.device.type != "cpu":
        return ()
    contents = Contents(functools.partial(_check_ends, name, of), (name, of))
    contents.check(cu_seqlens, tensor)
    return (contents,)


def _check_ends(name: str, of: str, cu_seqlens: torch.Tensor, tensor: torch.Tensor) -> None:
    ends, tokens = cu_seqlens.tolist(), len(tensor)
    if ends[0] != 0 or ends[-1] != tokens:
        raise ValueError(
            f"{name} must start with 0 and end with the tokens of {of}, {tokens}, got {ends[0]} and {ends[-1]}"
        )
    for sequence, (begin, end) in enumerate(itertools.pairwise(ends)):
        if end < begin:
            raise ValueError(f"{name} must not decrease: sequence {sequence} has {end - begin} tokens")

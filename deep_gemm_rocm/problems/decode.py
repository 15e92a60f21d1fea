"""Checks of the arguments of decoding: few queries of each sequence, keys and values in pages."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .arguments import Contents
from .descales import are_of_tokens, check_head_descale, check_token_descale, forms_of_tokens, layout_of_keys
from .heads import (
    WIDTHS,
    check_groups,
    check_heads,
    check_keys,
    check_output,
    check_pages_of_runs,
    check_sink,
    check_softcap,
    check_softmax_scale,
    check_widths,
    check_window,
    seen_keys,
)
from .layout import TYPES
from .sequences import check_pages

MAX_DECODE_TOKENS = 8
MAX_SPLITS = 4096  # of a sequence's keys; more than enough to fill the device with a single sequence
_LEAST_BLOCK = 32  # keys in the smallest block of a decode kernel
_BLOCKS_TO_BEGIN = 6  # largest fixed cost of a sequence, counted in blocks; see decode_schedule.h


class Decode(NamedTuple):
    """Attention of the last ``tokens_q`` tokens of ``batch`` sequences to keys and values in a paged cache."""

    batch: int
    tokens_q: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    type: str
    out_type: str
    page_size: int
    num_pages: int
    pages_of_sequence: int
    softmax_scale: float
    window_left: int
    descales: dict[str, torch.Tensor | None]  # expanded to [batch, heads, 1]; of tokens, to [blocks, heads, tokens]
    softcap: float = 0
    layout: str = "plain"  # of the caches, see DecodeConfig
    contents: tuple[Contents, ...] = ()

    @property
    def most_keys(self) -> int:
        """The most keys that a sequence may have."""
        return self.pages_of_sequence * self.page_size


def check_decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    context_lens: Any,
    softmax_scale: Any,
    window: Any,
    descales: dict[str, Any],
    attn_sink: Any,
    softcap: Any,
    out: Any,
) -> Decode:
    """Checks the arguments of ``flash_attention_decode``.

    Raises:
        TypeError, ValueError: an argument is not as ``flash_attention_decode`` documents it.
    """
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    check_heads({"q": q}, packed=False)
    check_keys("k_cache", k_cache, q.dtype)
    check_keys("v_cache", v_cache, q.dtype, k=("k_cache", k_cache))
    if v_cache.shape[:-1] != k_cache.shape[:-1]:
        raise ValueError(
            "v_cache must have as many blocks, tokens and heads as k_cache, "
            f"got {tuple(v_cache.shape)} and {tuple(k_cache.shape)}"
        )
    batch, tokens_q, heads, head_dim = q.shape
    num_pages, page_size, kv_heads, _ = k_cache.shape
    if k_cache.shape[-1] != head_dim:
        raise ValueError(f"k_cache must have the head dim of q, {head_dim}, got shape {tuple(k_cache.shape)}")
    check_widths(head_dim, v_cache.shape[-1], WIDTHS)
    check_groups(heads, kv_heads)
    for name in ("k_cache", "v_cache"):
        check_pages_of_runs(name, tensors[name])
    check_decode_tokens(tokens_q, MAX_DECODE_TOKENS)
    contents = check_pages(batch, num_pages, page_size, block_table, context_lens)
    tensors |= {"block_table": block_table, "context_lens": context_lens}
    expanded = {"q_descale": check_head_descale("q_descale", descales["q_descale"], "q", q.dtype, batch, heads)}
    layout = layout_of_keys(q, k_cache, are_of_tokens(descales["k_descale"], descales["v_descale"]))
    for name, of in (("k_descale", "k_cache"), ("v_descale", "v_cache")):
        if layout == "e4m3_tokens":
            expanded[name] = check_token_descale(name, descales[name], k_cache)
        else:
            expanded[name] = check_head_descale(
                name, descales[name], of, k_cache.dtype, batch, kv_heads, forms_of_tokens(q, k_cache)
            )
    tensors |= {name: tensor for name, tensor in expanded.items() if tensor is not None}
    check_sink(attn_sink, heads, tensors)
    out_type = check_output(out, (*q.shape[:-1], v_cache.shape[-1]), tensors)
    problem = decode_of(q, k_cache, v_cache.shape[-1], block_table, softmax_scale, TYPES[q.dtype])
    left, _ = seen_keys(check_window(True, window), problem.window_left)
    return problem._replace(
        out_type=out_type,
        window_left=left,
        descales=expanded,
        softcap=check_softcap(softcap),
        layout=layout,
        contents=contents,
    )


def decode_of(
    q: torch.Tensor, cache: torch.Tensor, value_dim: int, block_table: torch.Tensor, scale: Any, type_: str
) -> Decode:
    """The problem that checked tensors describe, without a window and factors."""
    batch, tokens_q, heads, head_dim = q.shape
    num_pages, page_size, kv_heads, _ = cache.shape
    pages_of_sequence = block_table.shape[1]
    return Decode(
        batch=batch,
        tokens_q=tokens_q,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        type=type_,
        out_type=type_,
        page_size=page_size,
        num_pages=num_pages,
        pages_of_sequence=pages_of_sequence,
        softmax_scale=check_softmax_scale(scale, head_dim),
        window_left=pages_of_sequence * page_size + tokens_q,
        descales={},
    )


def check_decode_tokens(tokens_q: int, most_tokens: int) -> None:
    if not 1 <= tokens_q <= most_tokens:
        raise ValueError(f"q must have 1 to {most_tokens} tokens for each sequence, got {tokens_q}")


def check_dealt(batch: int, kv_heads: int, most_keys: int) -> None:
    """Checks that the schedule without ``num_splits`` can count all blocks of keys in 32 bits.

    Raises:
        ValueError: there are too many.
    """
    blocks = batch * kv_heads * (most_keys // _LEAST_BLOCK + _BLOCKS_TO_BEGIN)
    if blocks >= 2**31:
        raise ValueError(
            f"num_splits must be given where {batch} sequences of {kv_heads} heads can have up to {most_keys} keys "
            "each, which are too many to be shared out"
        )


def check_splits(num_splits: int, batch: int, kv_heads: int) -> None:
    """Checks that kernels can count the splits of all sequences and heads of keys in 32 bits.

    Raises:
        ValueError: there are too many.
    """
    if num_splits * batch * kv_heads >= 2**31:
        raise ValueError(
            f"num_splits must be less than 2^31 over {batch} sequences of {kv_heads} heads of keys, got {num_splits}"
        )

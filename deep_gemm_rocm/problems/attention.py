"""Checks of the arguments of attention to whole sequences."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from .arguments import Contents
from .descales import (
    are_of_tokens,
    check_descale,
    check_head_descale,
    check_token_descale,
    check_tokens_or_sequences,
    forms_of_tokens,
    have_shape_of_tokens,
    layout_of_keys,
)
from .heads import (
    BLOCK_TOKENS,
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
    fits_blocks,
    seen_keys,
)
from .layout import TYPES
from .sequences import check_cu_seqlens, check_pages


class Attention(NamedTuple):
    """Attention of ``batch`` sequences. ``tokens_q`` and ``tokens_k`` are per sequence or, if packed, totals.

    If keys are in pages, ``tokens_k`` is the most that a sequence may have. Otherwise the number of pages is 0.
    """

    batch: int
    tokens_q: int
    tokens_k: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    type: str
    out_type: str
    softmax_scale: float
    window_left: int
    window_right: int
    descales: dict[str, torch.Tensor | None]  # expanded to [batch or pages, heads, blocks or tokens]
    softcap: float
    page_size: int
    num_pages: int
    layout: str  # of keys and values, see AttentionConfig
    contents: tuple[Contents, ...]
    is_good_in_any_size: bool  # whether all checks hold for other numbers of tokens and sequences


def check_attention(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: Any,
    causal: Any,
    window: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    block_table: Any,
    context_lens: Any,
    descales: dict[str, Any],
    attn_sink: Any,
    softcap: Any,
    out: Any,
) -> Attention:
    """Checks the arguments of ``flash_attention``.

    Raises:
        TypeError, ValueError: an argument is not as ``flash_attention`` documents it.
    """
    paged = block_table is not None or context_lens is not None
    if paged and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k must be None with block_table and context_lens")
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    tensors = {"q": q, "k": k, "v": v}
    check_heads({"q": q}, packed)
    check_keys("k", k, q.dtype, packed=packed and not paged)
    check_keys("v", v, q.dtype, packed=packed and not paged, k=("k", k))
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v must have as many tokens and heads as k, got {tuple(v.shape)} and {tuple(k.shape)}")
    if not packed and not paged and k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have the batch size of q, {q.shape[0]}, got shape {tuple(k.shape)}")
    widths = (q.shape[-1], v.shape[-1])
    if k.shape[-1] != widths[0]:
        raise ValueError(f"k must have the head dim of q, {widths[0]}, got shape {tuple(k.shape)}")
    check_widths(*widths, WIDTHS)
    check_groups(q.shape[-2], k.shape[-2])

    contents: tuple[Contents, ...] = ()
    if packed:
        contents += check_cu_seqlens("cu_seqlens_q", cu_seqlens_q, q, "q")
        batch = len(cu_seqlens_q) - 1
        tensors["cu_seqlens_q"] = cu_seqlens_q
    else:
        batch = q.shape[0]
    page_size, num_pages, tokens_k = 1, 0, k.shape[-3]
    if paged:
        num_pages, page_size = k.shape[:2]
        for name in ("k", "v"):
            check_pages_of_runs(name, tensors[name])
        contents += check_pages(batch, num_pages, page_size, block_table, context_lens)
        tokens_k = block_table.shape[1] * page_size if num_pages else 0
        tensors |= {"block_table": block_table, "context_lens": context_lens}
    elif packed:
        contents += check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, k, "k")
        if len(cu_seqlens_k) - 1 != batch:
            raise ValueError(
                f"cu_seqlens_k must have as many sequences as cu_seqlens_q, {batch}, got {len(cu_seqlens_k) - 1}"
            )
        tensors["cu_seqlens_k"] = cu_seqlens_k
    of_keys = {name: descales[name] for name in ("k_descale", "v_descale")}
    if packed and not paged and k.dtype != q.dtype:
        check_tokens_or_sequences(k, batch, of_keys)
    of_tokens = are_of_tokens if paged else functools.partial(have_shape_of_tokens, k, batch)
    layout = layout_of_keys(q, k, of_tokens(*of_keys.values()))
    expanded = {"q_descale": check_descale("q_descale", descales["q_descale"], "q", q, batch, packed)}
    of_each = forms_of_tokens(q, k)
    for name, of, tensor in (("k_descale", "k", k), ("v_descale", "v", v)):
        if layout == "e4m3_tokens":
            expanded[name] = check_token_descale(name, descales[name], tensor, of_cache=paged)
        elif paged:
            expanded[name] = check_head_descale(name, descales[name], of, k.dtype, batch, k.shape[-2], of_each)
        else:
            expanded[name] = check_descale(name, descales[name], of, tensor, batch, packed, of_each)
    tensors |= {name: tensor for name, tensor in expanded.items() if tensor is not None}
    check_sink(attn_sink, q.shape[-2], tensors)
    out_type = check_output(out, (*q.shape[:-1], widths[1]), tensors)

    tokens_q = q.shape[-3]
    left, right = seen_keys(check_window(causal, window), tokens_q + tokens_k)
    return Attention(
        batch=batch,
        tokens_q=tokens_q,
        tokens_k=tokens_k,
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        head_dim=widths[0],
        value_dim=widths[1],
        type=TYPES[q.dtype],
        out_type=out_type,
        softmax_scale=check_softmax_scale(softmax_scale, widths[0]),
        window_left=left,
        window_right=right,
        descales=expanded,
        softcap=check_softcap(softcap),
        page_size=page_size,
        num_pages=num_pages,
        layout=layout,
        contents=contents,
        is_good_in_any_size=(
            ((paged and layout == "e4m3_tokens") or all(d is None or d.dim() == 1 for d in descales.values()))
            and all(tensor is None or fits_blocks(tensor, BLOCK_TOKENS) for tensor in (q, k, v, out))
        ),
    )

"""Checks of the arguments of sparse MLA: attention to chosen tokens of a latent cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..checks import one_of
from .heads import check_sink, check_softmax_scale
from .latent import LATENT_FP8_DTYPES, LATENT_PAGE_SIZES, check_latent_strides
from .sequences import MAX_TOKENS
from .tensors import (
    ALIGNMENT,
    check_aligned,
    check_data,
    check_form,
    check_last_dimension,
    check_not_shared,
    check_one_device,
)

_VALUE_DIM = 512
_MAX_SLOTS = 2**31 - 1
# By dtype and width of the cache: the kernels' name of the layout, the width of q, and bytes from token to token.
_BYTES = {656: ("e4m3_656", 576, 656), 584: ("e4m3_584", 512, 576)}
_HEAD_DIMS = (576, 512)


class ChosenTokens(NamedTuple):
    """Tokens of a cache, listed by rows of slots.

    Attributes:
        cache: [pages, page, 1, width].
        indices: [queries, slots].
        lengths: how many of the first slots of a row count, or None for all.
        token_stride: from token to token of a page, in elements of the cache.
        queries_of_length: neighbouring queries that share an entry of ``lengths``.
    """

    cache: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor | None
    token_stride: int
    queries_of_length: int

    @property
    def num_pages(self) -> int:
        return self.cache.shape[0]

    @property
    def page_size(self) -> int:
        return self.cache.shape[1]

    @property
    def most_tokens(self) -> int:
        """The most tokens that a query may have; 0 if the cache has no pages."""
        return self.indices.shape[1] if self.num_pages else 0


class SparseMla(NamedTuple):
    """Attention of queries to tokens that rows of slots list.

    Attributes:
        layout: ``plain``, ``e4m3_656`` or ``e4m3_584``.
        is_ocp: whether FP8 values are OCP's.
        tokens: those of the first cache.
        extra: those of the second cache, if there is one.
    """

    queries: int
    heads: int
    head_dim: int
    layout: str
    is_ocp: bool
    tokens: ChosenTokens
    extra: ChosenTokens | None
    softmax_scale: float
    value_dim: int = _VALUE_DIM

    @property
    def top_k(self) -> int:
        """Slots of a query, in both caches."""
        return self.tokens.indices.shape[1] + (0 if self.extra is None else self.extra.indices.shape[1])


def check_sparse_mla(
    q: Any,
    kv_cache: Any,
    indices: Any,
    topk_length: Any,
    attn_sink: Any,
    softmax_scale: Any,
    fp8_dtype: Any,
    of_extra: tuple[Any, Any, Any],
    out: Any,
) -> SparseMla:
    """Checks the arguments of ``sparse_mla``.

    Args:
        of_extra: ``extra_kv_cache``, ``extra_indices`` and ``extra_topk_length``.

    Raises:
        TypeError, ValueError: an argument is not as ``sparse_mla`` documents it.
    """
    check_form("q", q, torch.bfloat16, (None, None, None))
    queries, heads, head_dim = q.shape
    if head_dim not in _HEAD_DIMS or not heads or max(queries, heads) > MAX_TOKENS:
        raise ValueError(f"q must be [queries, heads, 576 or 512] with at least one head, got {tuple(q.shape)}")
    check_aligned("q", q)
    layout, token_stride = _check_cache("kv_cache", kv_cache, head_dim)
    if fp8_dtype not in LATENT_FP8_DTYPES:
        raise TypeError(f"fp8_dtype must be {one_of(LATENT_FP8_DTYPES)}, got {fp8_dtype!r}")
    tensors = {"q": q, "kv_cache": kv_cache}
    queries_of_length = _check_slots("", indices, topk_length, queries, tensors)
    tokens = ChosenTokens(kv_cache, indices, topk_length, token_stride, queries_of_length)
    extra = _check_extra(*of_extra, head_dim, layout, queries, tensors)
    if extra is not None and tokens.indices.shape[1] + extra.indices.shape[1] > MAX_TOKENS:
        raise ValueError(f"indices and extra_indices must name up to {MAX_TOKENS} tokens together")
    check_sink(attn_sink, heads, tensors)
    if out is not None:
        check_form("out", out, torch.bfloat16, (queries, heads, _VALUE_DIM))
        check_aligned("out", out)
        check_not_shared("out", out, tensors)
        tensors["out"] = out
    check_one_device(tensors)
    return SparseMla(
        queries=queries,
        heads=heads,
        head_dim=head_dim,
        layout=layout,
        is_ocp=layout != "plain" and fp8_dtype == torch.float8_e4m3fn,
        tokens=tokens,
        extra=extra,
        softmax_scale=check_softmax_scale(softmax_scale, head_dim),
    )


def _check_slots(prefix: str, indices: Any, topk_length: Any, queries: int, tensors: dict[str, torch.Tensor]) -> int:
    """Checks a cache's rows of slots, adds them to ``tensors``, and returns the queries that share a length."""
    name = f"{prefix}indices"
    check_form(name, indices, torch.int32, (queries, None))
    if indices.shape[1] > MAX_TOKENS:
        raise ValueError(f"{name} must name up to {MAX_TOKENS} tokens, got shape {tuple(indices.shape)}")
    tensors[name] = indices
    if topk_length is None:
        return 1
    name = f"{prefix}topk_length"
    check_form(name, topk_length, torch.int32, (None,))
    lengths = len(topk_length)
    if queries % max(lengths, 1) or (queries and not lengths):
        raise ValueError(f"{name} must have a number of entries that divides {queries} queries, got {lengths}")
    tensors[name] = topk_length
    return max(queries // max(lengths, 1), 1)


def _check_extra(
    cache: Any,
    indices: Any,
    topk_length: Any,
    head_dim: int,
    layout: str,
    queries: int,
    tensors: dict[str, torch.Tensor],
) -> ChosenTokens | None:
    """Checks the second cache, which may be None together with its slots."""
    if cache is None:
        if indices is not None or topk_length is not None:
            raise ValueError("extra_indices and extra_topk_length must be None without extra_kv_cache")
        return None
    layout_of_extra, token_stride = _check_cache("extra_kv_cache", cache, head_dim)
    if layout_of_extra != layout:
        raise TypeError(
            f"extra_kv_cache must have the dtype of kv_cache, {tensors['kv_cache'].dtype}, got {cache.dtype}"
        )
    tensors["extra_kv_cache"] = cache
    queries_of_length = _check_slots("extra_", indices, topk_length, queries, tensors)
    return ChosenTokens(cache, indices, topk_length, token_stride, queries_of_length)


def _check_cache(name: str, cache: Any, head_dim: int) -> tuple[str, int]:
    """Returns the layout, and the elements from token to token."""
    check_data(name, cache)
    if cache.dtype not in (torch.bfloat16, torch.uint8):
        raise TypeError(f"{name} must be bfloat16 or uint8, got {cache.dtype}")
    if cache.dim() != 4 or cache.shape[2] != 1:
        raise ValueError(f"{name} must be [pages, page, 1, width], got shape {tuple(cache.shape)}")
    pages, page_size, _, width = cache.shape
    is_plain = cache.dtype == torch.bfloat16
    layout, of_q, token_stride = ("plain", width, cache.stride(1)) if is_plain else _BYTES.get(width, ("", 0, 0))
    if of_q != head_dim:
        expected = f"{head_dim} in bfloat16 or {656 if head_dim == 576 else 584} in uint8"
        raise ValueError(f"{name} must have width {expected} for a q of {head_dim}, got {width} in {cache.dtype}")
    if page_size not in LATENT_PAGE_SIZES:
        raise ValueError(f"a page of {name} must have one of {LATENT_PAGE_SIZES} tokens, got {page_size}")
    if pages * page_size > _MAX_SLOTS:
        raise ValueError(f"{name} must have up to {_MAX_SLOTS} tokens, got shape {tuple(cache.shape)}")
    if pages and not is_plain and not cache[0].is_contiguous():
        raise ValueError(f"each page of {name} must be contiguous, got strides {cache.stride()}")
    if is_plain:
        check_aligned(name, cache)
        check_last_dimension(name, cache)
    elif cache.numel() and (cache.data_ptr() % ALIGNMENT or cache.stride(0) % 8):
        raise ValueError(f"pages of {name} must start at multiples of 8 bytes, got strides {cache.stride()}")
    check_latent_strides(name, cache)
    return layout, token_stride

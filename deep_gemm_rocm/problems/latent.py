"""Checks of the arguments of attention to a latent cache (MLA)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..checks import check_int, one_of
from .decode import Decode, check_decode_tokens, decode_of
from .heads import check_groups, check_heads, check_heads_shape, check_output
from .layout import TYPES
from .sequences import MAX_PAGE_SIZE, check_pages
from .tensors import check_aligned, check_data, check_form

LATENT_FP8_DTYPES = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)
LATENT_PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # powers of two, which share a kernel
LATENT_RUN_TOKENS = 8  # neighbours that a wave loads at once if they are in one page; kWaveKeys in latent_loader.h
MAX_LATENT_TOKENS = 8
_LATENT_BYTES = 656
_LATENT_DTYPES = (torch.bfloat16, torch.float16)
_WIDTHS = (576, 512)
_LATENT_PAGE_BITS, _LATENT_TOKEN_BITS = 32, 24  # of strides in bytes, which LanePages in paged_cache.h multiplies


class Latent(NamedTuple):
    """How a latent cache holds tokens.

    Attributes:
        cache: [blocks, block_size, 1, width].
        layout: ``plain``, in the type of q; ``e4m3``; or ``e4m3_656``.
        is_ocp: whether its FP8 values are OCP's.
        has_fp8_queries: whether queries are in the format of its FP8 values, too.
    """

    cache: torch.Tensor
    layout: str
    is_ocp: bool
    has_fp8_queries: bool


def check_latent_decode(
    q: Any,
    kv_cache: Any,
    d_v: Any,
    block_table: Any,
    context_lens: Any,
    softmax_scale: Any,
    q_descale: Any,
    kv_descale: Any,
    fp8_dtype: Any,
    out: Any,
) -> tuple[Decode, Latent]:
    """Checks the arguments of ``mla_decode``.

    Raises:
        TypeError, ValueError: an argument is not as ``mla_decode`` documents it.
    """
    check_heads({"q": q}, packed=False, dtypes=(*_LATENT_DTYPES, *LATENT_FP8_DTYPES))
    cache, layout, is_ocp = _check_latent_cache(kv_cache, q, fp8_dtype)
    batch, tokens_q, heads, head_dim = q.shape
    num_pages, page_size, _, _ = cache.shape
    if (head_dim, check_int("d_v", d_v, 1)) != _WIDTHS:
        known, given = (f"{width} and {value_width}" for width, value_width in (_WIDTHS, (head_dim, d_v)))
        raise ValueError(f"q's last dimension and d_v must be {known}, got {given}")
    check_groups(heads, 1)
    if not 1 <= page_size <= MAX_PAGE_SIZE:
        raise ValueError(f"a block of kv_cache must have 1 to {MAX_PAGE_SIZE} tokens, got {page_size}")
    check_decode_tokens(tokens_q, MAX_LATENT_TOKENS)
    contents = check_pages(batch, num_pages, page_size, block_table, context_lens)
    tensors = {"q": q, "kv_cache": kv_cache, "block_table": block_table, "context_lens": context_lens}
    has_fp8_queries = q.dtype in LATENT_FP8_DTYPES
    if q_descale is not None:
        if not has_fp8_queries:
            raise ValueError(f"q_descale must be None, for q is {q.dtype} and has no scales")
        check_form("q_descale", q_descale, torch.float32, (1,))
        tensors["q_descale"] = q_descale
    check_latent_descale(kv_descale, layout, tensors)
    dtype = torch.bfloat16 if has_fp8_queries else q.dtype
    check_output(out, (*q.shape[:-1], d_v), tensors, (dtype,))
    problem = decode_of(q, cache, d_v, block_table, softmax_scale, TYPES[dtype])
    descales = {"q_descale": q_descale, "k_descale": kv_descale}
    expanded = {name: None if descale is None else descale.expand(1, 1, 1) for name, descale in descales.items()}
    latent = Latent(cache, layout, is_ocp, has_fp8_queries)
    return problem._replace(descales=expanded, contents=contents), latent


def _check_latent_cache(kv_cache: Any, q: torch.Tensor, fp8_dtype: Any) -> tuple[torch.Tensor, str, bool]:
    """Returns the cache with four dimensions, its layout, and whether FP8 values are OCP's."""
    check_data("kv_cache", kv_cache)
    if fp8_dtype not in LATENT_FP8_DTYPES:
        raise TypeError(f"fp8_dtype must be {one_of(LATENT_FP8_DTYPES)}, got {fp8_dtype!r}")
    if kv_cache.dtype not in (*_LATENT_DTYPES, *LATENT_FP8_DTYPES, torch.uint8):
        raise TypeError(
            f"kv_cache must be {one_of((*_LATENT_DTYPES, *LATENT_FP8_DTYPES, torch.uint8))}, got {kv_cache.dtype}"
        )
    is_plain = kv_cache.dtype in _LATENT_DTYPES
    is_bytes = kv_cache.dtype == torch.uint8
    dtype = fp8_dtype if is_bytes else kv_cache.dtype
    if is_plain and q.dtype != dtype:
        raise TypeError(f"kv_cache must have the dtype of q, {q.dtype}, got {dtype}")
    if not is_plain and q.dtype not in (torch.bfloat16, dtype):
        raise TypeError(f"kv_cache must be in FP8 only with q in {one_of((torch.bfloat16, dtype))}, got {q.dtype}")
    width = _LATENT_BYTES if is_bytes else q.shape[-1]
    cache = kv_cache.unsqueeze(2) if kv_cache.dim() == 3 else kv_cache
    if cache.dim() != 4 or cache.shape[2:] != (1, width):
        raise ValueError(
            f"kv_cache must be [blocks, block_size, 1, {width}] or [blocks, block_size, {width}], got shape "
            f"{tuple(kv_cache.shape)}"
        )
    check_heads_shape("kv_cache", cache, packed=False)
    check_aligned("kv_cache", cache)
    check_latent_strides("kv_cache", cache)
    if is_plain:
        return cache, "plain", False
    return cache, "e4m3_656" if is_bytes else "e4m3", dtype == torch.float8_e4m3fn


def check_latent_descale(kv_descale: Any, layout: str, tensors: dict[str, torch.Tensor]) -> None:
    """Checks the factor of a cache in this layout, which may be None, and adds it to ``tensors``."""
    if kv_descale is None:
        return
    if layout != "e4m3":
        raise ValueError("kv_descale must be None, for only a cache of 576 FP8 values has it")
    check_form("kv_descale", kv_descale, torch.float32, (1,))
    tensors["kv_descale"] = kv_descale


def check_latent_strides(name: str, cache: torch.Tensor) -> None:
    """Checks that pages of a latent cache, and tokens of a page, are not too far apart for kernels."""
    steps = (("pages", 0, _LATENT_PAGE_BITS), ("tokens of a page", 1, _LATENT_TOKEN_BITS))
    for what, dim, bits in steps:
        distance = cache.stride(dim) * cache.element_size()
        if cache.shape[dim] > 1 and distance >= 2**bits:
            raise ValueError(
                f"{what} of {name} must be less than 2^{bits} bytes apart, got {distance}, from strides "
                f"{cache.stride()}; .contiguous() it"
            )

"""Checks of attention's arguments. Bad input is rejected here, before anything is compiled, launched or written."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
from typing import Any, NamedTuple

import torch

from ..checks import check_bool, check_int, check_tensor, one_of, share_memory
from .arguments import Contents
from .layout import SCALE_BLOCK, ceil_div
from .tensors import ALIGNMENT

# Head dims of q and k, and of v.
_WIDTHS = ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 192), (256, 256), (192, 128))
_LATENT_WIDTHS = ((576, 512),)
_LATENT_DTYPES = (torch.bfloat16, torch.float16)
LATENT_FP8_DTYPES = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)
_LATENT_BYTES = 656
LATENT_PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # that need no kernels of their own
MAX_PAGE_SIZE = 256
MAX_LATENT_TOKENS = 8
LATENT_RUN_TOKENS = 8  # neighbours that a wave loads from one page, if all are in it; kWaveKeys in latent_loader.h
_RUN_TOKENS = 16  # that kernels load from one page; kRunTokens in sequence_tokens.h
MAX_DECODE_TOKENS = 8
_LEAST_BLOCK = 32  # keys in the smallest block of a decode kernel
_BLOCKS_TO_BEGIN = 6  # largest fixed cost of a sequence, counted in blocks; see decode_schedule.h
MAX_SPLITS = 4096  # of a sequence's keys; more than enough to fill the device with a single sequence
_DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fnuz)
_OCP_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
_FP8 = torch.float8_e4m3fnuz
_FP8_OUTPUTS = (torch.bfloat16, torch.float16)
MAX_TOKENS = 2**28  # kernels add several token counts in 32-bit integers
_BLOCK_TOKENS = 256  # kernels address this many tokens with 32-bit offsets
_BLOCK_BYTES = 2**31 - 2**12
_LATENT_PAGE_BITS, _LATENT_TOKEN_BITS = 32, 24  # of distances in bytes, which kernels multiply with numbers of a lane
# Kernels compute tanh with an error of some 1e-7, which the cap multiplies.
_LEAST_SOFTCAP, _LARGEST_SOFTCAP = 2.0**-64, 2.0**12
_LEAST_SOFTMAX_SCALE = 2.0**-126  # smaller ones may be 0 in fp32
_MAX_SOFTMAX_SCALE = 2.0**127  # kernels multiply it with log2(e), in fp32

_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fnuz: "e4m3"}


class Attention(NamedTuple):
    """Attention of ``batch`` sequences. ``tokens_q`` and ``tokens_k`` are per sequence or, if packed, totals.

    ``tokens_k`` is the most that a sequence may have if keys are in pages; else there are 0 pages.
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
    _check_heads({"q": q}, packed)
    _check_keys("k", k, q.dtype, packed=packed and not paged)
    _check_keys("v", v, q.dtype, packed=packed and not paged, k=("k", k))
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v must have as many tokens and heads as k, got {tuple(v.shape)} and {tuple(k.shape)}")
    if not packed and not paged and k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have the batch size of q, {q.shape[0]}, got shape {tuple(k.shape)}")
    widths = (q.shape[-1], v.shape[-1])
    if k.shape[-1] != widths[0]:
        raise ValueError(f"k must have the head dim of q, {widths[0]}, got shape {tuple(k.shape)}")
    check_widths(*widths, _WIDTHS)
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
            _check_pages_of_runs(name, tensors[name])
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
        _check_tokens_or_sequences(k, batch, of_keys)
    of_tokens = are_of_tokens if paged else functools.partial(_have_shape_of_tokens, k, batch)
    layout = _layout_of_keys(q, k, of_tokens(*of_keys.values()))
    expanded = {"q_descale": _check_descale("q_descale", descales["q_descale"], "q", q, batch, packed)}
    of_each = _forms_of_tokens(q, k)
    for name, of, tensor in (("k_descale", "k", k), ("v_descale", "v", v)):
        if layout == "e4m3_tokens":
            expanded[name] = check_token_descale(name, descales[name], tensor, of_cache=paged)
        elif paged:
            expanded[name] = _check_head_descale(name, descales[name], of, k.dtype, batch, k.shape[-2], of_each)
        else:
            expanded[name] = _check_descale(name, descales[name], of, tensor, batch, packed, of_each)
    tensors |= {name: tensor for name, tensor in expanded.items() if tensor is not None}
    check_sink(attn_sink, q.shape[-2], tensors)
    out_type = _check_output(out, (*q.shape[:-1], widths[1]), tensors)

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
        type=_TYPES[q.dtype],
        out_type=out_type,
        softmax_scale=check_softmax_scale(softmax_scale, widths[0]),
        window_left=left,
        window_right=right,
        descales=expanded,
        softcap=_check_softcap(softcap),
        page_size=page_size,
        num_pages=num_pages,
        layout=layout,
        contents=contents,
        is_good_in_any_size=(
            ((paged and layout == "e4m3_tokens") or all(d is None or d.dim() == 1 for d in descales.values()))
            and all(tensor is None or _fits_blocks(tensor, _BLOCK_TOKENS) for tensor in (q, k, v, out))
        ),
    )


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
    _check_heads({"q": q}, packed=False)
    _check_keys("k_cache", k_cache, q.dtype)
    _check_keys("v_cache", v_cache, q.dtype, k=("k_cache", k_cache))
    if v_cache.shape[:-1] != k_cache.shape[:-1]:
        raise ValueError(
            "v_cache must have as many blocks, tokens and heads as k_cache, "
            f"got {tuple(v_cache.shape)} and {tuple(k_cache.shape)}"
        )
    batch, tokens_q, heads, head_dim = q.shape
    num_pages, page_size, kv_heads, _ = k_cache.shape
    if k_cache.shape[-1] != head_dim:
        raise ValueError(f"k_cache must have the head dim of q, {head_dim}, got shape {tuple(k_cache.shape)}")
    check_widths(head_dim, v_cache.shape[-1], _WIDTHS)
    check_groups(heads, kv_heads)
    for name in ("k_cache", "v_cache"):
        _check_pages_of_runs(name, tensors[name])
    _check_decode_tokens(tokens_q, MAX_DECODE_TOKENS)
    contents = check_pages(batch, num_pages, page_size, block_table, context_lens)
    tensors |= {"block_table": block_table, "context_lens": context_lens}
    expanded = {"q_descale": _check_head_descale("q_descale", descales["q_descale"], "q", q.dtype, batch, heads)}
    layout = _layout_of_keys(q, k_cache, are_of_tokens(descales["k_descale"], descales["v_descale"]))
    for name, of in (("k_descale", "k_cache"), ("v_descale", "v_cache")):
        if layout == "e4m3_tokens":
            expanded[name] = check_token_descale(name, descales[name], k_cache)
        else:
            expanded[name] = _check_head_descale(
                name, descales[name], of, k_cache.dtype, batch, kv_heads, _forms_of_tokens(q, k_cache)
            )
    tensors |= {name: tensor for name, tensor in expanded.items() if tensor is not None}
    check_sink(attn_sink, heads, tensors)
    out_type = _check_output(out, (*q.shape[:-1], v_cache.shape[-1]), tensors)
    problem = _decode(q, k_cache, v_cache.shape[-1], block_table, softmax_scale, _TYPES[q.dtype])
    left, _ = seen_keys(check_window(True, window), problem.window_left)
    return problem._replace(
        out_type=out_type,
        window_left=left,
        descales=expanded,
        softcap=_check_softcap(softcap),
        layout=layout,
        contents=contents,
    )


def _layout_of_keys(q: torch.Tensor, k: torch.Tensor, of_tokens: bool) -> str:
    """How keys are held, see AttentionConfig. Only FP8 under other queries may have factors of tokens."""
    if k.dtype == q.dtype:
        return "plain"
    return "e4m3_tokens" if of_tokens else "e4m3"


def _forms_of_tokens(q: torch.Tensor, k: torch.Tensor) -> tuple[str, ...]:
    """The form of factors of tokens, for an error message, if there may be any."""
    return () if k.dtype == q.dtype else (f"{_shape_of_tokens(k)}, one for each token and head",)


def _check_keys(
    name: str, keys: Any, dtype_of_q: torch.dtype, *, packed: bool = False, k: tuple[str, torch.Tensor] | None = None
) -> None:
    """Checks keys on their own, of q's dtype or in FP8 for q in bf16; or values, of the dtype of the keys ``k``."""
    check_data(name, keys)
    allowed = (dtype_of_q, _FP8) if dtype_of_q == torch.bfloat16 else (dtype_of_q,)
    expected = f"be {one_of(allowed)} for q in {one_of((dtype_of_q,))}"
    if k is not None:
        allowed, expected = (k[1].dtype,), f"have the dtype of {k[0]}, {one_of((k[1].dtype,))}"
    if keys.dtype not in allowed:
        advice = "; convert it with convert_fp8_fn_to_fnuz" if _FP8 in allowed and keys.dtype in _OCP_DTYPES else ""
        raise TypeError(f"{name} must {expected}, got {keys.dtype}{advice}")
    _check_heads_shape(name, keys, packed)
    check_aligned(name, keys)


def _decode(
    q: torch.Tensor, cache: torch.Tensor, value_dim: int, block_table: torch.Tensor, scale: Any, type_: str
) -> Decode:
    """The problem of checked tensors, without a window and factors."""
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
    _check_heads({"q": q}, packed=False, dtypes=(*_LATENT_DTYPES, *LATENT_FP8_DTYPES))
    cache, layout, is_ocp = _check_latent_cache(kv_cache, q, fp8_dtype)
    batch, tokens_q, heads, head_dim = q.shape
    num_pages, page_size, _, _ = cache.shape
    check_widths(head_dim, check_int("d_v", d_v, 1), _LATENT_WIDTHS)
    check_groups(heads, 1)
    if not 1 <= page_size <= MAX_PAGE_SIZE:
        raise ValueError(f"a block of kv_cache must have 1 to {MAX_PAGE_SIZE} tokens, got {page_size}")
    _check_decode_tokens(tokens_q, MAX_LATENT_TOKENS)
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
    _check_output(out, (*q.shape[:-1], d_v), tensors, (dtype,))
    problem = _decode(q, cache, d_v, block_table, softmax_scale, _TYPES[dtype])
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
    _check_heads_shape("kv_cache", cache, packed=False)
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


def compiled_page_size(page_size: int) -> int:
    """The tokens of a page if kernels are compiled for this number; 0 for powers of two, which share a kernel."""
    return page_size if page_size & (page_size - 1) else 0


def _check_decode_tokens(tokens_q: int, most_tokens: int) -> None:
    if not 1 <= tokens_q <= most_tokens:
        raise ValueError(f"q must have 1 to {most_tokens} tokens for each sequence, got {tokens_q}")


def _check_pages_of_runs(name: str, cache: torch.Tensor) -> None:
    """Checks that runs of tokens are in one page, and that kernels can address a page with 32-bit offsets.

    Raises:
        ValueError: they aren't, or kernels can't.
    """
    page_size = cache.shape[1]
    if page_size == 0 or page_size % _RUN_TOKENS:
        raise ValueError(f"a block of {name} must have a multiple of {_RUN_TOKENS} tokens, got {page_size}")
    if not _fits_blocks(cache, page_size):
        raise ValueError(
            f"a block of {name} must be within 2 GiB, got {page_size} tokens with strides {cache.stride()}; "
            ".contiguous() it"
        )


def check_page_size(cache: str, page_size: int, page_sizes: tuple[int, ...]) -> None:
    """
    Raises:
        ValueError: blocks of the cache have another number of tokens.
    """
    if page_size not in page_sizes:
        raise ValueError(f"a block of {cache} must have one of {page_sizes} tokens, got {page_size}")


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


def check_widths(head_dim: int, value_dim: int, allowed: tuple[tuple[int, int], ...]) -> None:
    """Checks that there are kernels for heads of these widths."""
    if (head_dim, value_dim) not in allowed:
        known = ", ".join(f"{head}/{value}" for head, value in allowed)
        raise ValueError(f"head dims of q and k / of v must be one of {known}, got {head_dim}/{value_dim}")


def check_data(name: str, tensor: Any) -> None:
    """Checks that ``tensor`` holds its own values and needs no gradient."""
    check_tensor(name, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for there is no backward; .detach() it or call under torch.no_grad()"
        )


def check_form(name: str, tensor: Any, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Checks dtype and shape (None allows any size), and that the last dimension is contiguous."""
    check_data(name, tensor)
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {str(dtype).removeprefix('torch.')}, got {tensor.dtype}")
    fits = tensor.dim() == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {tuple(tensor.shape)}")
    check_last_dimension(name, tensor)


def check_last_dimension(name: str, tensor: torch.Tensor) -> None:
    """Checks that it is contiguous. An empty tensor may have any strides; they are 0 if it comes from NumPy."""
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous along its last dimension, got strides {tensor.stride()}")


def check_slots(slots: Any, tokens: int) -> None:
    """Checks the slots of a cache that tokens are written to."""
    check_data("slots", slots)
    if slots.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"slots must be int32 or int64, got {slots.dtype}")
    check_form("slots", slots, slots.dtype, (tokens,))


def check_softmax_scale(softmax_scale: Any, head_dim: int) -> float:
    """Returns the checked scale; 1/sqrt(head_dim) for None."""
    if softmax_scale is None:
        return 1 / math.sqrt(head_dim)
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, numbers.Real):
        raise TypeError(f"softmax_scale must be a number, got {type(softmax_scale).__name__}")
    # As it is, since an int may be too large for a float. The second negation catches NaN.
    if softmax_scale < _LEAST_SOFTMAX_SCALE or not softmax_scale < _MAX_SOFTMAX_SCALE:
        raise ValueError(
            f"softmax_scale must be positive, from {_LEAST_SOFTMAX_SCALE:g} to {_MAX_SOFTMAX_SCALE:g}, got "
            f"{softmax_scale}; negate q for a negative one"
        )
    return float(softmax_scale)


def _check_softcap(softcap: Any) -> float:
    """Returns the checked cap; 0 for none."""
    if isinstance(softcap, bool) or not isinstance(softcap, numbers.Real):
        raise TypeError(f"softcap must be a number, got {type(softcap).__name__}")
    if softcap != 0 and (softcap < _LEAST_SOFTCAP or not softcap <= _LARGEST_SOFTCAP):  # the negation catches NaN
        raise ValueError(
            f"softcap must be 0 for none, or from {_LEAST_SOFTCAP:g} to {_LARGEST_SOFTCAP:g}, got {softcap}"
        )
    return float(softcap)


def check_sink(attn_sink: Any, heads: int, tensors: dict[str, Any]) -> None:
    """Checks the sinks, which may be None, and adds them to ``tensors``."""
    if attn_sink is not None:
        check_form("attn_sink", attn_sink, torch.float32, (heads,))
        tensors["attn_sink"] = attn_sink


def check_groups(heads: int, kv_heads: int) -> None:
    """Checks that heads of q divide evenly among those of k and v."""
    if heads == 0 or kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"heads of q must be a multiple of those of k and v, got {heads} and {kv_heads}")


def check_one_device(tensors: dict[str, torch.Tensor]) -> None:
    """Checks that all tensors are on the device of the first."""
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if tensor.device != tensors[first].device:
            raise ValueError(f"{name} must be on the device of {first}, {tensors[first].device}, got {tensor.device}")


def check_not_shared(name: str, output: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
    """Checks that ``output`` shares no memory with ``tensors`` and that its elements don't overlap."""
    reach = 1
    for stride, size in sorted(zip(output.stride(), output.shape, strict=True)):
        if size > 1 and stride < reach:
            raise ValueError(f"elements of {name} must not overlap, got strides {output.stride()}")
        reach += (size - 1) * stride
    if output.is_meta:
        return
    for other, tensor in tensors.items():
        if other != name and share_memory(output, tensor):
            raise ValueError(f"{name} must not share memory with {other}, which is read while {name} is written")


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


def _check_heads(tensors: dict[str, Any], packed: bool, dtypes: tuple[torch.dtype, ...] = _DTYPES) -> None:
    """Checks that all tensors are heads."""
    for name, tensor in tensors.items():
        check_data(name, tensor)
        if tensor.dtype not in dtypes:
            advice = (
                "; convert it with convert_fp8_fn_to_fnuz" if _FP8 in dtypes and tensor.dtype in _OCP_DTYPES else ""
            )
            raise TypeError(f"{name} must be {one_of(dtypes)}, got {tensor.dtype}{advice}")
        _check_heads_shape(name, tensor, packed)
        check_aligned(name, tensor)


def check_aligned(name: str, tensor: torch.Tensor) -> None:
    unit = ALIGNMENT // tensor.element_size()
    misaligned = [
        stride
        for stride, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
        if size > 1 and (stride % unit or stride < 0)
    ]
    if tensor.numel() and (misaligned or tensor.data_ptr() % ALIGNMENT):
        raise ValueError(
            f"tokens and heads of {name} must start at multiples of {ALIGNMENT} bytes, got strides {tensor.stride()} "
            f"at {tensor.data_ptr():#x}; .clone() it"
        )


def _check_heads_shape(name: str, tensor: torch.Tensor, packed: bool) -> None:
    dims = "[total, heads, head dim]" if packed else "[batch, tokens, heads, head dim]"
    if tensor.dim() != (3 if packed else 4):
        raise ValueError(f"{name} must be {dims}, got shape {tuple(tensor.shape)}")
    check_last_dimension(name, tensor)
    if max(tensor.shape) > MAX_TOKENS:
        raise ValueError(f"{name} must have dimensions of up to {MAX_TOKENS}, got shape {tuple(tensor.shape)}")
    if not _fits_blocks(tensor, min(tensor.shape[-3], _BLOCK_TOKENS)):
        raise ValueError(
            f"{name} must have {_BLOCK_TOKENS} tokens within 2 GiB, got strides {tensor.stride()}; .contiguous() it"
        )


def _fits_blocks(tensor: torch.Tensor, tokens: int) -> bool:
    """Whether kernels can address so many of its tokens with 32-bit offsets."""
    return tokens * tensor.stride(-3) * tensor.element_size() <= _BLOCK_BYTES


def _check_output(
    out: Any, shape: tuple[int, ...], tensors: dict[str, torch.Tensor], dtypes: tuple[torch.dtype, ...] = ()
) -> str:
    """Checks ``out``, which may be None, and that it and ``tensors`` are on one device; returns the output's type.

    Args:
        dtypes: those that the output may have; by default those for the dtype of q.
    """
    dtype = tensors["q"].dtype
    allowed = dtypes or (_FP8_OUTPUTS if dtype == _FP8 else (dtype,))
    if out is None:
        check_one_device(tensors)
        return _TYPES[allowed[0]]
    check_data("out", out)
    if out.dtype not in allowed:
        raise TypeError(f"out must be {one_of(allowed)}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    _check_heads_shape("out", out, packed=len(shape) == 3)
    check_aligned("out", out)
    check_one_device({**tensors, "out": out})
    check_not_shared("out", out, tensors)
    return _TYPES[out.dtype]


def _check_descale(
    name: str, descale: Any, of: str, tensor: torch.Tensor, batch: int, packed: bool, other_forms: tuple[str, ...] = ()
) -> torch.Tensor | None:
    """Returns the checked factors, expanded to [batch, heads, blocks]; None if there are none.

    Args:
        other_forms: those that ``descale`` might have had instead, for the error message.
    """
    heads = tensor.shape[-2]
    if not _has_descale(name, descale, of, tensor.dtype):
        return None
    expanded = _of_whole_heads(descale, batch, heads)
    if expanded is not None:
        return expanded
    blocks = ceil_div(tensor.shape[-3], SCALE_BLOCK)
    has_blocks = descale.dim() == 3 and descale.shape[:2] == (batch, heads)
    if has_blocks and (descale.shape[2] == blocks or (packed and descale.shape[2] > 0)):
        return descale
    expected = "blocks of the longest sequence" if packed else str(blocks)
    of_blocks = f"({batch}, {heads}, {expected}), one for each {SCALE_BLOCK} tokens as well"
    may_be_of_tokens = packed and bool(other_forms) and len(tensor) == batch > 1  # [batch, heads] is refused then
    of_sequences = (batch, heads, 1) if may_be_of_tokens else (batch, heads)
    raise _wrong_form(name, descale, of_sequences, (of_blocks, *other_forms))


def _check_head_descale(
    name: str, descale: Any, of: str, dtype: torch.dtype, batch: int, heads: int, other_forms: tuple[str, ...] = ()
) -> torch.Tensor | None:
    """Returns the checked factors, expanded to [batch, heads, 1]; None if there are none. The rest as above."""
    if not _has_descale(name, descale, of, dtype):
        return None
    expanded = _of_whole_heads(descale, batch, heads)
    if expanded is None:
        raise _wrong_form(name, descale, (batch, heads), other_forms)
    return expanded


def _wrong_form(
    name: str, descale: torch.Tensor, of_sequences: tuple[int, ...], other_forms: tuple[str, ...]
) -> ValueError:
    *forms, last = (
        "(1,), one factor for all",
        f"({of_sequences[1]},), one for each head",
        f"{of_sequences}, one for each sequence and head",
        *other_forms,
    )
    return ValueError(f"{name} must have shape {'; '.join(forms)}; or {last}; got {tuple(descale.shape)}")


def are_of_tokens(*descales: Any) -> bool:
    """Whether the factors of keys or of values have the shape of those of tokens."""
    return any(isinstance(descale, torch.Tensor) and descale.dim() == 3 for descale in descales)


def _have_shape_of_tokens(k: torch.Tensor, batch: int, *descales: Any) -> bool:
    """The same for keys that aren't in pages. A single token's factors have the shape of its sequence's, and count as
    these.
    """
    shape, heads = k.shape[:-1], (batch, k.shape[-2])
    of_tokens = {shape, (1, *shape)} - {heads, (*heads, 1)}
    return any(isinstance(descale, torch.Tensor) and descale.shape in of_tokens for descale in descales)


def _check_tokens_or_sequences(k: torch.Tensor, batch: int, descales: dict[str, Any]) -> None:
    """Checks that the shape of factors tells those of tokens from those of sequences, for packed keys ``k``."""
    tokens, heads = k.shape[:-1]
    for name, descale in descales.items():
        if tokens == batch > 1 and isinstance(descale, torch.Tensor) and descale.shape == (tokens, heads):
            raise ValueError(
                f"{name} must have shape (1, {tokens}, {heads}), one factor for each token and head, or "
                f"({batch}, {heads}, 1), one for each sequence and head, as k has as many tokens as sequences; got "
                f"{tuple(descale.shape)}"
            )


def _shape_of_tokens(k: torch.Tensor) -> tuple[int, ...]:
    """The shape of factors of tokens; of packed ones, that which is always clear."""
    shape = tuple(k.shape[:-1])
    return shape if len(shape) == 3 else (1, *shape)


def check_token_descale(name: str, descale: Any, keys: torch.Tensor, *, of_cache: bool = True) -> torch.Tensor:
    """Checks factors of FP8 tokens, [blocks, block_size, heads] of a cache or as many as ``keys`` or values have; those
    of packed ones may be [1, tokens, heads].

    Args:
        of_cache: whether ``keys`` are in pages.

    Returns:
        them as [blocks, heads, block_size]; those of packed tokens as [1, heads, tokens].
    """
    check_data(name, descale)
    if descale.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {descale.dtype}")
    shape = tuple(keys.shape[:-1])
    if len(shape) == 2 and descale.shape == (1, *shape):
        descale = descale[0]
    if descale.shape != shape:
        if of_cache:
            expected, condition = shape, "it or the other one has 3 dimensions"
        else:  # other factors may have as many dimensions
            expected, condition = _shape_of_tokens(keys), "the other one has factors of tokens"
        raise ValueError(
            f"{name} must have shape {expected}, a factor for each token and head, if {condition}, got "
            f"{tuple(descale.shape)}"
        )
    tokens = shape[-2] if of_cache else min(shape[-2], _BLOCK_TOKENS)
    if tokens * descale.stride(-2) * descale.element_size() > _BLOCK_BYTES:
        raise ValueError(
            f"{name} must have {tokens} tokens within 2 GiB, got strides {descale.stride()}; .contiguous() it"
        )
    blocks = descale.as_strided((1, *shape), (0, *descale.stride())) if descale.dim() == 2 else descale
    return blocks.transpose(1, 2)


def _has_descale(name: str, descale: Any, of: str, dtype: torch.dtype) -> bool:
    if descale is None:
        if dtype == _FP8:
            raise ValueError(f"{name} must be given for {of} of float8_e4m3fnuz: what its values are multiplied with")
        return False
    if dtype != _FP8:
        raise ValueError(f"{name} must be None, for {of} is {dtype} and has no scales")
    check_data(name, descale)
    if descale.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {descale.dtype}")
    return True


def _of_whole_heads(descale: torch.Tensor, batch: int, heads: int) -> torch.Tensor | None:
    """Expands factors for the whole tensor, of heads, or of sequences and heads, to [batch, heads, 1]; else None."""
    if descale.numel() == 1 and descale.dim() < 2:
        return descale.as_strided((batch, heads, 1), (0, 0, 0))
    if descale.shape == (heads,):
        return descale.as_strided((batch, heads, 1), (0, *descale.stride(), 0))
    if descale.shape == (batch, heads):
        return descale.as_strided((batch, heads, 1), (*descale.stride(), 0))
    return None


def check_window(causal: Any, window: Any) -> tuple[int, int]:
    """Returns how many keys a query sees on its left and on its right, negative for all."""
    check_bool("causal", causal)
    if window is None:
        window = (-1, -1)
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window must be a pair of ints (left, right), got {window!r}")
    left, right = (check_int(f"window[{side}]", keys, -1) for side, keys in enumerate(window))
    return left, 0 if causal else right


def seen_keys(window: tuple[int, int], unlimited: int) -> tuple[int, int]:
    """How many keys a query sees of a window as ``check_window`` returns it, ``unlimited`` for all."""
    left, right = window
    return unlimited if left < 0 else min(left, unlimited), unlimited if right < 0 else min(right, unlimited)

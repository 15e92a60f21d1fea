"""Attention to chosen tokens of DeepSeek's latent cache, also under FlashMLA's names."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch

from ..checks import check_bool, check_int, is_traced
from ..heuristics import AttentionCase, DecodeConfig, choose_attention, is_busy_unsplit
from ..launch.decode import Dealt, sparse_mla_launch
from ..launch.launch import Launch, Sizes
from ..launch.repeated import Described, describing, launches_of_rows
from ..problems.decode import MAX_SPLITS
from ..problems.sparse_mla import check_sparse_mla
from ..problems.tensors import check_form
from ..runtime import settings
from .decode import mla_decode

_FNUZ = torch.float8_e4m3fnuz
Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@launches_of_rows("q", "indices", "topk_length", "extra_indices", "extra_topk_length", "out")
def sparse_mla(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    fp8_dtype: torch.dtype = _FNUZ,
    extra_kv_cache: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    num_splits: int | None = None,
    out: torch.Tensor | None = None,
) -> Described[Results]:
    """Attention of each query to the tokens of a latent cache that its row of slots names.

    A value is the first 512 elements of its key. FP8 values are multiplied with their scales and rounded to the nearest
    bf16, ties away from zero, on the way into LDS. The semantics are those of FlashMLA's sparse functions.

    Args:
        q: bf16 [queries, H, 576], or [queries, H, 512] for a cache of 512 elements or 584 bytes. Heads start at
            multiples of 16 bytes.
        kv_cache: [pages, page, 1, width], page a power of two from 1 to 256, as ``append_mla_cache`` writes it:
            bf16 with the width of q;
            uint8 with width 656, for a q of 576;
            or uint8 with width 584, for a q of 512.
            Pages are less than 2^32 bytes apart, tokens of a page less than 2^24.
        indices: int32 [queries, topk]: page number · page + offset. A slot that isn't in the cache, like -1, names no
            token. A token that is named twice counts twice.
        topk_length: int32 [L], how many of the first slots of a row count; L divides the queries, and an entry is for
            so many neighbouring ones. None for all.
        attn_sink: fp32 [H], natural logarithm of a further summand in the sum of exponentials, which has no value. -inf
            has no effect, and inf makes the output zeros. Not part of the returned lse.
        softmax_scale: factor of the logits, positive; 1/sqrt of the width of q if None.
        fp8_dtype: the format of FP8 values, torch.float8_e4m3fnuz or torch.float8_e4m3fn.
        extra_kv_cache, extra_indices, extra_topk_length: a second cache, of the dtype and width of the first one, maybe
            with other pages, and what each query attends to there, in the same softmax; none if None.
        num_splits: into how many equal parts a query's tokens are split, 1 to 4096. If None, there are parts where few
            queries would leave compute units without work; none with ``set_batch_invariant(True)``.
        out: bf16 [queries, H, 512] to write into; a new tensor if None.

    Returns:
        ``out``, zeros for a query without tokens; fp32 [queries, H], the natural logarithm of the sum of
        ``exp(logit)``, inf for a query without tokens; fp32 [queries, H], the largest logit, with the factor, -inf for
        a query without tokens.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        out = _new_output(q) if out is None else out
        lse, max_logits = torch.ops.deep_gemm_rocm.sparse_mla(
            q, kv_cache, indices, topk_length, attn_sink, softmax_scale, fp8_dtype, extra_kv_cache, extra_indices,
            extra_topk_length, num_splits, out,
        )  # fmt: skip
        return (out, lse, max_logits), None
    of_extra = (extra_kv_cache, extra_indices, extra_topk_length)
    problem = check_sparse_mla(q, kv_cache, indices, topk_length, attn_sink, softmax_scale, fp8_dtype, of_extra, out)
    if num_splits is not None:
        check_int("num_splits", num_splits, 1, MAX_SPLITS)
    case = AttentionCase(
        family="mla_decode", type="bf16", out_type="bf16", head_dim=problem.head_dim, value_dim=problem.value_dim,
        causal=True, batch=problem.queries, heads=problem.heads, kv_heads=1, tokens_q=1, tokens_k=problem.top_k,
    )  # fmt: skip
    tokens = "indexed" if problem.extra is None else "indexed_twice"
    traits = {"layout": problem.layout, "is_ocp": problem.is_ocp, "tokens": tokens}
    deal = functools.partial(_dealt, case, traits, num_splits)
    lse, max_logits = (q.new_empty(q.shape[:2], dtype=torch.float32) for _ in range(2))
    made = {"lse": lse, "max_logits": max_logits}
    if out is None:
        out = made["out"] = _new_output(q)
    return (out, lse, max_logits), sparse_mla_launch(deal, problem, q, attn_sink, out, lse, max_logits, made)


def _dealt(case: AttentionCase, traits: dict[str, Any], num_splits: int | None, queries: int) -> Dealt:
    """The kernel for this number of queries, and how it splits their tokens."""
    choice = choose_attention(case._replace(batch=queries))
    config, pieces = cast(DecodeConfig, choice.config)._replace(**traits), choice.pieces
    if num_splits is None and (settings.values().batch_invariant or is_busy_unsplit(config, queries, case.heads)):
        num_splits = 1
    return Dealt(config, num_splits, pieces if num_splits is None else num_splits * queries)


def _new_output(q: torch.Tensor) -> torch.Tensor:
    return q.new_empty(*q.shape[:-1], 512)


@launches_of_rows("q", "indices", "topk_length", "out")
def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Described[Results]:
    """FlashMLA's sparse prefill: ``sparse_mla`` over keys that are not in pages.

    Args:
        q: bf16 [s_q, h_q, 576 or 512], any number of heads.
        kv: bf16 [s_kv, 1, width of q], tokens less than 2^32 bytes apart.
        indices: int32 [s_q, 1, topk]; -1 and numbers from s_kv on name no token.
        sm_scale: factor of the logits.
        d_v: 512.
        attn_sink, out: as for ``sparse_mla``.
        topk_length: int32 [s_q].

    Returns:
        The output [s_q, h_q, 512], the largest logits and the log-sum-exp, both fp32 [s_q, h_q]. The log-sum-exp is
        natural, and inf for a query without tokens, as in FlashMLA's reference.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    check_int("d_v", d_v, 512, 512)
    check_form("q", q, torch.bfloat16, (None, None, None))
    check_form("kv", kv, torch.bfloat16, (None, 1, None))
    check_form("indices", indices, torch.int32, (None, 1, None))
    if topk_length is not None:
        check_form("topk_length", topk_length, torch.int32, (len(q),))
    names = {"kv_cache": "kv", "softmax_scale": "sm_scale"}
    (out, lse, max_logits), launch = describing(sparse_mla, names)(
        q, kv.unsqueeze(1), indices.squeeze(1), topk_length=topk_length, attn_sink=attn_sink, softmax_scale=sm_scale,
        out=out,
    )  # fmt: skip
    return (out, max_logits, lse), _with_results(launch, names, {})


@dataclasses.dataclass(unsafe_hash=True)  # so that calls with it are remembered
class FlashMLASchedMeta:
    """FlashMLA's object between two calls. Kernels here find their schedule themselves, so nothing is in it."""

    have_initialized: bool = False


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """FlashMLA's function of this name. Arguments are not used, as there."""
    return FlashMLASchedMeta(), None


@launches_of_rows(
    "q",
    "block_table",
    "cache_seqlens",
    "indices",
    "topk_length",
    "extra_indices_in_kvcache",
    "extra_topk_length",
    "out",
)
def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
    *,
    fp8_dtype: torch.dtype = _FNUZ,
) -> Described[tuple[torch.Tensor, torch.Tensor]]:
    """FlashMLA's decoding over a paged cache: ``mla_decode``, or with ``indices`` ``sparse_mla``.

    Args:
        q: bf16 [B, s_q, H, 576 or 512]. Kernels take B and s_q as one dimension, without ``indices`` and ``causal``
            s_q and H. Where strides don't allow that, here and in indices, they work on a copy.
        k_cache: [pages, page, 1, width], see ``mla_decode`` and ``sparse_mla``.
        block_table, cache_seqlens: those of ``mla_decode``; not used with ``indices``.
        head_dim_v: 512.
        tile_scheduler_metadata, num_splits, is_fp8_kvcache: accepted and not used: the dtype and width of the cache
            tell its layout.
        softmax_scale: 1/sqrt of the width of q if None.
        causal: without ``indices``, whether query i sees only the keys up to ``cache_seqlens - s_q + i``.
        indices: int32 [B, s_q, topk], see ``sparse_mla``.
        attn_sink, topk_length: as for ``sparse_mla``, the latter int32 [B]; only with ``indices``.
        extra_k_cache, extra_indices_in_kvcache, extra_topk_length: a second cache [pages, page, 1, width], int32
            [B, s_q, topk] and [B], see ``sparse_mla``; only with ``indices``.
        out: bf16 [B, s_q, H, 512], contiguous, to write into; a new tensor if None.
        enable_batch_invariant: whether a result must not depend on the other sequences.
        fp8_dtype: the format of FP8 values in a uint8 cache, torch.float8_e4m3fnuz or torch.float8_e4m3fn.

    Returns:
        The output [B, s_q, H, 512], and the natural log-sum-exp, fp32 [B, H, s_q]. A query without tokens has zeros,
        and inf as its log-sum-exp, as in FlashMLA's reference.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    check_int("head_dim_v", head_dim_v, 512, 512)
    check_form("q", q, torch.bfloat16, (None, None, None, None))
    batch, tokens, heads, _ = q.shape
    check_bool("causal", causal)
    check_bool("enable_batch_invariant", enable_batch_invariant)
    if out is not None:
        check_form("out", out, torch.bfloat16, (batch, tokens, heads, 512))
    of_sparse = attn_sink, topk_length, extra_k_cache, extra_indices_in_kvcache, extra_topk_length
    if indices is None:
        if any(argument is not None for argument in of_sparse):
            raise ValueError("attn_sink, topk_length and arguments of an extra cache must be None without indices")
    else:
        if causal:
            raise ValueError("causal must be False with indices, which say what a query sees")
        check_form("indices", indices, torch.int32, (batch, tokens, None))
        for name, lengths in (("topk_length", topk_length), ("extra_topk_length", extra_topk_length)):
            if lengths is not None:
                check_form(name, lengths, torch.int32, (batch,))
        if extra_indices_in_kvcache is not None:
            check_form("extra_indices_in_kvcache", extra_indices_in_kvcache, torch.int32, (batch, tokens, None))
    if not causal:
        of_queries = q, indices, extra_indices_in_kvcache
        joinable = tuple(_joinable(tensor, 1 if indices is None else 0) for tensor in of_queries)
        if any(copy is not tensor for copy, tensor in zip(joinable, of_queries, strict=True)):
            q, indices, extra_indices_in_kvcache = cast(torch.Tensor, joinable[0]), *joinable[1:]
            return flash_mla_with_kvcache(
                q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale=softmax_scale, causal=causal,
                is_fp8_kvcache=is_fp8_kvcache, indices=indices, attn_sink=attn_sink, extra_k_cache=extra_k_cache,
                extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length,
                extra_topk_length=extra_topk_length, out=out, enable_batch_invariant=enable_batch_invariant,
                fp8_dtype=fp8_dtype,
            ), None  # fmt: skip
    if indices is None:
        return _dense(
            q, k_cache, block_table, cache_seqlens, softmax_scale, causal, out, enable_batch_invariant, fp8_dtype
        )
    extra_indices = extra_indices_in_kvcache
    if extra_indices is not None:
        extra_indices = extra_indices.view(batch * tokens, extra_indices.shape[-1])
    result = _new_output(q) if out is None else out
    names = {"kv_cache": "k_cache", "extra_kv_cache": "extra_k_cache", "extra_indices": "extra_indices_in_kvcache"}
    (_, lse, _), launch = describing(sparse_mla, names)(
        q.view(batch * tokens, heads, q.shape[-1]), k_cache, indices.view(batch * tokens, indices.shape[-1]),
        topk_length=topk_length, attn_sink=attn_sink, softmax_scale=softmax_scale, fp8_dtype=fp8_dtype,
        extra_kv_cache=extra_k_cache, extra_indices=extra_indices, extra_topk_length=extra_topk_length,
        num_splits=1 if enable_batch_invariant else None, out=_viewed("out", result, batch * tokens, heads, 512),
    )  # fmt: skip
    made = {"lse": lse.view(batch, tokens, heads).transpose(1, 2)}
    if out is None:
        made["out"] = result
    return (result, made["lse"]), _with_results(launch, names, made, tokens)


def _with_results(
    launch: Launch | list[Launch] | None,
    names: dict[str, str],
    made: dict[str, torch.Tensor],
    rows_of_sequence: int = 1,
) -> Launch | None:
    """The launch with FlashMLA's names, and new results of FlashMLA's shapes.

    Args:
        rows_of_sequence: rows of the launch for each sequence.
    """
    if not isinstance(launch, Launch):  # traced, without a launch
        return None
    renamed = launch.renamed(**names)
    assert launch.sizes is not None
    sizes = functools.partial(_sizes_of_sequences, launch.sizes, rows_of_sequence)
    return renamed._replace(made={**renamed.made, **made}, sizes=sizes)


def _sizes_of_sequences(sizes_of: Callable[[int], Sizes], rows_of_sequence: int, sequences: int) -> Sizes:
    sizes = sizes_of(sequences * rows_of_sequence)
    return sizes._replace(made={**sizes.made, "out.data": sequences, "lse": sequences})


def _joinable(tensor: torch.Tensor | None, dim: int) -> torch.Tensor | None:
    """The tensor if a view of it can join ``dim`` and the next dimension; else a copy for which that is possible."""
    if tensor is None or tensor.numel() == 0 or 1 in tensor.shape[dim : dim + 2]:
        return tensor
    return tensor if tensor.stride(dim) == tensor.shape[dim + 1] * tensor.stride(dim + 1) else tensor.contiguous()


def _viewed(name: str, tensor: torch.Tensor, *shape: int) -> torch.Tensor:
    try:
        return tensor.view(shape)
    except RuntimeError as error:
        expected = f"{name} must be a view of shape {shape}"
        raise ValueError(f"{expected}, got {tuple(tensor.shape)} with strides {tensor.stride()}") from error


def _dense(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    out: torch.Tensor | None,
    enable_batch_invariant: bool,
    fp8_dtype: torch.dtype,
) -> Described[tuple[torch.Tensor, torch.Tensor]]:
    """Attention to whole sequences. Without a causal mask the tokens of a sequence are like heads of one token."""
    if block_table is None or cache_seqlens is None:
        raise ValueError("block_table and cache_seqlens must be given without indices")
    batch, tokens, heads, width = q.shape
    shape = (batch, tokens, heads) if causal else (batch, 1, tokens * heads)
    result = _new_output(q) if out is None else out
    names = {"kv_cache": "k_cache", "context_lens": "cache_seqlens"}
    (_, lse), launch = describing(mla_decode, names)(
        q.view(*shape, width), k_cache, block_table=block_table, context_lens=cache_seqlens,
        softmax_scale=softmax_scale, fp8_dtype=fp8_dtype, out=_viewed("out", result, *shape, 512),
        return_lse=True,  # type: ignore[arg-type]  # mypy sees the first overload only
        num_splits=1 if enable_batch_invariant else None,
    )  # fmt: skip
    if isinstance(launch, Launch):
        launch.arguments.lse_of_none = math.inf
    else:  # traced, without a launch
        lse = lse.masked_fill(lse == -math.inf, math.inf)
    made = {"lse": lse if causal else lse.view(batch, tokens, heads).transpose(1, 2)}
    if out is None:
        made["out"] = result
    return (result, made["lse"]), _with_results(launch, names, made)

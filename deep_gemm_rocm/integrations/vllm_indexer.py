"""vLLM's sparse indexer on ROCm: the logits of its queries and keys, and the largest of them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from vllm._aiter_ops import rocm_aiter_ops
from vllm.v1.attention.ops import rocm_aiter_mla_sparse as sparse

from ..api.mqa_logits import MAX_DECODE_TOKENS, fp8_mqa_logits, fp8_paged_mqa_logits
from ..api.top_k import MAX_COLUMNS, MAX_K, top_k_per_row
from .parts import check_parameters, check_replaces
from .sparse_indexer import fits, has_fitting_pages


def _logits(original: Any) -> Any:
    @functools.wraps(original)
    def rocm_fp8_mqa_logits(
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        weights: torch.Tensor,
        cu_seqlen_ks: torch.Tensor,
        cu_seqlen_ke: torch.Tensor,
    ) -> Any:
        if not fits(q):
            return original(q, kv, weights, cu_seqlen_ks, cu_seqlen_ke)
        keys, scales = kv
        return fp8_mqa_logits(q, (keys, scales.flatten()), weights, cu_seqlen_ks, cu_seqlen_ke, clean_logits=False)

    return rocm_fp8_mqa_logits


def _paged_logits(original: Any) -> Any:
    @functools.wraps(original)
    def rocm_fp8_paged_mqa_logits(
        q_fp8: torch.Tensor,
        kv_cache_fp8: torch.Tensor,
        weights: torch.Tensor,
        context_lens: torch.Tensor,
        block_tables: torch.Tensor,
        schedule_metadata: torch.Tensor,
        max_model_len: int,
        *,
        compress_ratio: int = 1,
    ) -> Any:
        page = kv_cache_fp8.shape[1]
        if not (has_fitting_pages(kv_cache_fp8) and fits(q_fp8) and q_fp8.shape[1] <= MAX_DECODE_TOKENS):
            arguments = (q_fp8, kv_cache_fp8, weights, context_lens, block_tables, schedule_metadata, max_model_len)
            return original(*arguments, compress_ratio=compress_ratio)
        # vLLM shuffles the keys of larger pages for AITER's kernels, but not those of compressed caches.
        is_shuffled = page > 1 and not sparse._indexer_k_is_c4a_block_flat(compress_ratio)
        # Sequences of a batch with fewer tokens than others get queries that fill them up, but no weights.
        lacking = q_fp8.shape[0] * q_fp8.shape[1] - len(weights)
        if lacking > 0:
            weights = torch.nn.functional.pad(weights, (0, 0, 0, lacking))
        return fp8_paged_mqa_logits(
            q_fp8,
            kv_cache_fp8,
            weights,
            context_lens,
            block_tables,
            None,
            max_model_len,
            shuffled_keys=is_shuffled,
        )

    return rocm_fp8_paged_mqa_logits


def _is_top_k_supported(
    cls: Any,
    *,
    is_prefill: bool,
    compress_ratio: int,
    num_rows: int,
    max_valid_seq_len: int | None = None,
    topk_tokens: int | None = None,
) -> bool:
    return topk_tokens is not None and topk_tokens <= MAX_K


def _prefers_native_top_k(*, num_rows: int, num_columns: int, topk_tokens: int) -> bool:
    return False


def _top_k_prefill(
    logits: torch.Tensor, row_starts: torch.Tensor, row_ends: torch.Tensor, indices: torch.Tensor, topk_tokens: int
) -> None:
    if logits.shape[1] > MAX_COLUMNS:
        strides = logits.stride()
        torch.ops._C.top_k_per_row_prefill(logits, row_starts, row_ends, indices, len(logits), *strides, topk_tokens)
        return
    top_k_per_row(logits, topk_tokens, starts=row_starts, ends=row_ends, out=indices)


def _top_k_decode(
    logits: torch.Tensor, next_n: int, seq_lens: torch.Tensor, topk_indices: torch.Tensor, topk_tokens: int
) -> None:
    ends = seq_lens.reshape(-1)
    if logits.shape[1] > MAX_COLUMNS:
        strides = logits.stride()
        torch.ops._C.top_k_per_row_decode(logits, next_n, ends, topk_indices, len(logits), *strides, topk_tokens)
        return
    if next_n > 1:  # lengths of sequences, whose last tokens the rows are
        last = torch.arange(next_n, dtype=ends.dtype, device=ends.device) - (next_n - 1)
        ends = (ends[:, None] + last).flatten()
    top_k_per_row(logits, topk_tokens, ends=ends, out=topk_indices)


def install() -> None:
    """Puts this package's logits and top k where vLLM's ROCm path calls AITER's.

    Raises:
        MovedError, AttributeError, ImportError: this vLLM's indexer is another one.
    """
    if sparse._launch_aiter_top_k_per_row_prefill is _top_k_prefill:
        return
    logits, paged = _logits(sparse.rocm_fp8_mqa_logits), _paged_logits(sparse.rocm_fp8_paged_mqa_logits)
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (sparse, "rocm_fp8_mqa_logits", logits),
        (sparse, "rocm_fp8_paged_mqa_logits", paged),
        (sparse, "_launch_aiter_top_k_per_row_prefill", _top_k_prefill),
        (rocm_aiter_ops, "is_indexer_top_k_supported", classmethod(_is_top_k_supported)),
        (rocm_aiter_ops, "dsv4_indexer_prefers_native_top_k", staticmethod(_prefers_native_top_k)),
        (rocm_aiter_ops, "indexer_top_k_decode", staticmethod(_top_k_decode)),
    )
    for owner, name, ours in replaced:
        check_replaces(inspect.getattr_static(owner, name), ours)
    check_parameters(sparse._indexer_k_is_c4a_block_flat, "compress_ratio")
    for owner, name, ours in replaced:
        setattr(owner, name, ours)

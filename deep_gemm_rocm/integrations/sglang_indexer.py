"""SGLang's sparse indexer on ROCm: the logits of its queries and keys, and the slots of the largest of them."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import torch
from sglang.kernels.ops.attention.dsa import paged_mqa_logits
from sglang.srt.environ import envs
from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend, TopkTransformMethod
from sglang.srt.layers.attention.dsa_backend import DSAMetadata

from ..api.mqa_logits import fp8_mqa_logits, fp8_paged_mqa_logits
from ..api.top_k import MAX_COLUMNS, MAX_K, top_k_per_row
from . import parts
from .sparse_indexer import fits, has_fitting_pages

_LOGGER = logging.getLogger("sglang.deep_gemm_rocm")
_MARK = "_deep_gemm_rocm"


def _logits_in_front_of(aiter: Any) -> Any:
    @functools.wraps(aiter)
    def in_front(
        Q: torch.Tensor,  # noqa: N803
        KV: torch.Tensor,  # noqa: N803
        kv_scales: torch.Tensor,
        weights: torch.Tensor,
        cu_starts: torch.Tensor,
        cu_ends: torch.Tensor,
        clean_logits: bool = True,
    ) -> Any:
        if not fits(Q) or weights.dtype != torch.float32:
            return aiter(Q, KV, kv_scales, weights, cu_starts, cu_ends, clean_logits)
        return fp8_mqa_logits(Q, (KV, kv_scales), weights, cu_starts, cu_ends, clean_logits)

    return in_front


@functools.cache
def _replace_logits_of_prompts() -> dict[str, str]:
    def install_logits() -> None:
        module: Any = importlib.import_module("aiter.ops.triton.fp8_mqa_logits")
        theirs = module.fp8_mqa_logits
        parts.check_parameters(theirs, "Q", "KV", "kv_scales", "weights", "cu_starts", "cu_ends", "clean_logits")
        module.fp8_mqa_logits = _logits_in_front_of(theirs)

    return parts.install({"the sparse indexer's logits of prompts": install_logits}, "AITER", _LOGGER)


def _prompts_in_front_of(original: Any) -> Any:
    @functools.wraps(original)
    def _get_topk_ragged(
        self: Any,
        enable_dual_stream: bool,
        forward_batch: Any,
        layer_id: int,
        q_fp8: torch.Tensor,
        weights: torch.Tensor,
        metadata: Any,
        topk_result: torch.Tensor | None = None,
    ) -> Any:
        # SGLang imports AITER for this method, and other models may run without it. So it isn't imported before.
        _replace_logits_of_prompts()
        return original(self, enable_dual_stream, forward_batch, layer_id, q_fp8, weights, metadata, topk_result)

    return _get_topk_ragged


def _is_of(rows: int, tensor: Any) -> bool:
    """Whether a tensor has an int32 for each row."""
    return isinstance(tensor, torch.Tensor) and tensor.shape == (rows,) and tensor.dtype == torch.int32


def _paged_logits_in_front_of(aiter: Any) -> Any:
    @functools.wraps(aiter)
    def aiter_paged_mqa_logits(
        q_fp8: torch.Tensor,
        kv_cache_fp8: torch.Tensor,
        weights: torch.Tensor,
        seq_lens: torch.Tensor,
        block_tables: torch.Tensor,
        max_seq_len: int,
        *,
        preshuffle: bool,
        kv_block_size: int,
    ) -> Any:
        rows = len(q_fp8)
        is_ours = (
            fits(q_fp8)
            and has_fitting_pages(kv_cache_fp8)
            and q_fp8.is_contiguous()
            and weights.dtype == torch.float32
            and _is_of(rows, seq_lens)
            and len(block_tables) == len(weights) == rows
        )
        if not is_ours:
            given = (q_fp8, kv_cache_fp8, weights, seq_lens, block_tables, max_seq_len)
            return aiter(*given, preshuffle=preshuffle, kv_block_size=kv_block_size)
        return fp8_paged_mqa_logits(
            q_fp8.unsqueeze(1),
            kv_cache_fp8,
            weights,
            seq_lens,
            block_tables,
            None,
            max_seq_len,
            shuffled_keys=preshuffle,
        )

    return aiter_paged_mqa_logits


def _selects(backend: Any, logits: torch.Tensor, lengths: torch.Tensor, k: int, starts: torch.Tensor | None) -> bool:
    rows, columns = logits.shape
    return (
        backend.is_sgl_kernel()  # a user may choose others
        and logits.dtype == torch.float32
        and 1 <= k <= MAX_K
        and columns <= MAX_COLUMNS
        and _is_of(rows, lengths)
        and (starts is None or _is_of(rows, starts))
    )


def _select(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    starts: torch.Tensor | None,
    block_table: torch.Tensor | None = None,
    sequences: torch.Tensor | None = None,
) -> torch.Tensor:
    ends = lengths if starts is None else starts + lengths
    return top_k_per_row(logits, k, starts=starts, ends=ends, block_table=block_table, sequences=sequences)


def _top_k_in_front_of(original: Any) -> Any:
    @functools.wraps(original)
    def topk_func(
        self: Any, score: torch.Tensor, lengths: torch.Tensor, topk: int, row_starts: torch.Tensor | None = None
    ) -> Any:
        if not _selects(self, score, lengths, topk, row_starts):
            return original(self, score, lengths, topk, row_starts)
        return _select(score, lengths, topk, row_starts)

    return topk_func


def _slots(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    starts: torch.Tensor | None,
    attn_metadata: Any,
    batch_idx_list: Any,
) -> torch.Tensor | None:
    """Slots of the cache, or None where it isn't told whose queries the rows are."""
    table, rows = attn_metadata.page_table_1, len(logits)
    sequences = attn_metadata.token_to_batch_idx if batch_idx_list is None else batch_idx_list
    if table is None:
        return None
    if _is_of(rows, sequences) or (sequences is None and len(table) == rows):
        return _select(logits, lengths, k, starts, table, sequences)
    return None


def _slots_in_front_of(original: Any) -> Any:
    @functools.wraps(original)
    def topk_transform(
        self: Any,
        logits: torch.Tensor,
        lengths: torch.Tensor,
        topk: int,
        topk_transform_method: Any,
        attn_metadata: Any,
        cu_seqlens_q_topk: torch.Tensor | None = None,
        topk_indices_offset: torch.Tensor | None = None,
        row_starts: torch.Tensor | None = None,
        batch_idx_list: Any = None,
        force_unfused_topk: bool = False,
    ) -> Any:
        # Otherwise SGLang looks slots up by itself, and calls topk_func for the positions.
        is_fused = envs.SGLANG_DSA_FUSE_TOPK.get() and not force_unfused_topk
        chosen = None
        if is_fused and _selects(self, logits, lengths, topk, row_starts):
            if topk_transform_method == TopkTransformMethod.PAGED:
                chosen = _slots(logits, lengths, topk, row_starts, attn_metadata, batch_idx_list)
            elif topk_indices_offset is not None and _is_of(len(logits), topk_indices_offset):
                positions = _select(logits, lengths, topk, row_starts)
                chosen = torch.where(positions < 0, positions, positions + topk_indices_offset[:, None])
        if chosen is not None:
            return chosen
        of_rows = (cu_seqlens_q_topk, topk_indices_offset, row_starts, batch_idx_list)
        return original(self, logits, lengths, topk, topk_transform_method, attn_metadata, *of_rows, force_unfused_topk)

    return topk_transform


def install() -> None:
    """Puts this package's logits and top k where SGLang's ROCm path calls AITER's and its own.

    AITER's logits of prompts are replaced when SGLang first imports AITER for them.

    Raises:
        MovedError, AttributeError, ImportError: this SGLang's indexer is another one.
    """
    theirs = paged_mqa_logits.aiter_paged_mqa_logits
    if hasattr(theirs, _MARK):
        return
    paged = _paged_logits_in_front_of(theirs)
    methods = (
        (Indexer, "_get_topk_ragged", _prompts_in_front_of),
        (DSATopKBackend, "topk_func", _top_k_in_front_of),
        (DSATopKBackend, "topk_transform", _slots_in_front_of),
    )
    replaced = [(owner, name, in_front_of(getattr(owner, name))) for owner, name, in_front_of in methods]
    parts.check_replaces(theirs, paged)
    for owner, name, ours in replaced:
        parts.check_replaces(getattr(owner, name), ours)
    parts.check_fields(DSAMetadata, "page_table_1", "token_to_batch_idx")
    setattr(paged, _MARK, True)
    parts.replace_wherever_imported(paged)
    for owner, name, ours in replaced:
        setattr(owner, name, ours)

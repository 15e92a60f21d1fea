"""Logits of the sparse indexer, which selects the keys for attention, under DeepGEMM's names."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import check_bool, check_int, is_traced
from ..launch.families import Size
from ..launch.mqa_logits import mqa_logits_launch, paged_logits_schedule_launch, paged_mqa_logits_launch
from ..launch.repeated import Described, launches_of_rows, launches_of_sizes
from ..problems.arguments import Argument
from ..problems.layout import FP8, Pair
from ..problems.sequences import MAX_TOKENS, check_page_size, check_pages
from ..problems.tensors import ALIGNMENT, check_data, check_form, check_one_device
from ..runtime import settings

HEADS = range(8, 129, 8)
HEAD_DIMS = (32, 64, 128)
PAGE_SIZES = (1, 16, 32, 64, 128)
_TILE = 16  # tokens of shuffled keys
MAX_DECODE_TOKENS = 8
_SCALE_BYTES = 4
_MAX_UNITS = 2**16


_MOST_SIZE = 2**20  # queries or keys of a family of calls
_DIFFERING = {name: {0: Size(0)} for name in ("q", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end")}
_DIFFERING |= {name: {0: Size(1)} for name in ("kv[0]", "kv[1]")}


@launches_of_sizes(lambda _: _DIFFERING, [_MOST_SIZE] * 2)
def fp8_mqa_logits(
    q: torch.Tensor,
    kv: Pair,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    *,
    logits_dtype: torch.dtype = torch.float32,
) -> Described[torch.Tensor]:
    """``logits[s, j] = kv_scale[j] · Σ_h weights[s, h] · max(q[s, h] · kv[j], 0)`` for keys j that query s sees.

    DeepGEMM's function of this name. The matrix cores sum over D; heads are summed in fp32. A logit's bits
    depend on its query and key only.

    Args:
        q: float8_e4m3fnuz [S, H, D], H a multiple of 8 up to 128, D 32, 64 or 128; heads contiguous, queries any
            multiple of 16 bytes apart. Its scales are to be multiplied into ``weights``.
        kv: float8_e4m3fnuz [Skv, D], rows any multiple of 16 bytes apart, and their scales, fp32 [Skv], contiguous.
        weights: fp32 [S, H], rows contiguous.
        cu_seq_len_k_start, cu_seq_len_k_end: int32 [S]: query s sees the keys from its start up to, but not including,
            its end. Keys outside [0, Skv) are ignored.
        clean_logits: whether logits of keys that a query doesn't see are -inf; otherwise they are undefined.
        max_seqlen_k: if positive, the result is compressed to ``max_seqlen_k`` columns, up to 2^28, whose first is the
            first key that the query sees. Then ``clean_logits`` must be False.
        logits_dtype: fp32 or bf16, to which the fp32 logits are rounded.

    Returns:
        [S, Skv] of ``logits_dtype``, or compressed [S, max_seqlen_k].

    Raises:
        TypeError, ValueError: an argument is not as above.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        traced: torch.Tensor = torch.ops.deep_gemm_rocm.fp8_mqa_logits(
            q, *kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits, max_seqlen_k, logits_dtype
        )
        return traced, None
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        raise TypeError(f"kv must be a pair (FP8 data, scales), got {type(kv).__name__}")
    keys, key_scales = kv
    _check_q(q, 3)
    queries, heads, head_dim = q.shape
    check_form("kv[0]", keys, FP8, (None, head_dim))
    check_form("kv[1]", key_scales, torch.float32, (len(keys),))
    check_form("weights", weights, torch.float32, (queries, heads))
    check_form("cu_seq_len_k_start", cu_seq_len_k_start, torch.int32, (queries,))
    check_form("cu_seq_len_k_end", cu_seq_len_k_end, torch.int32, (queries,))
    _check_aligned("q", q)
    _check_aligned("kv[0]", keys)
    tensors = {
        "q": Argument("q", q),
        "keys": Argument("kv[0]", keys),
        "key_scales": Argument("kv[1]", key_scales),
        "weights": Argument("weights", weights),
        "begin": Argument("cu_seq_len_k_start", cu_seq_len_k_start),
        "end": Argument("cu_seq_len_k_end", cu_seq_len_k_end),
    }
    check_one_device(dict(tensors.values()))
    columns = check_int("max_seqlen_k", max_seqlen_k, 0, MAX_TOKENS)
    check_bool("clean_logits", clean_logits)
    if columns and clean_logits:
        raise ValueError("clean_logits must be False for compressed logits (max_seqlen_k > 0)")
    _check_logits_dtype(logits_dtype)
    logits = q.new_empty(queries, columns or len(keys), dtype=logits_dtype)
    return logits, mqa_logits_launch(tensors, logits, clean=clean_logits, compressed=columns > 0)


@launches_of_rows("context_lens", "indices")
def get_paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None = None
) -> Described[torch.Tensor]:
    """Computes how ``fp8_paged_mqa_logits`` distributes its work to compute units; DeepGEMM's function of this name.

    Args:
        context_lens: int32 [B] or [B, next_n], as for ``fp8_paged_mqa_logits``; any strides.
        block_kv: tokens of a block of the cache, 1, 16, 32, 64 or 128.
        num_sms: compute units to use, up to 65536.
        indices: as for ``fp8_paged_mqa_logits``.

    Returns:
        int32 [num_sms + 1, 2] on the device of ``context_lens``, computed without waiting for it. Row i is where the
        work of unit i begins: a sequence, and a segment of 256 tokens in it. Row i + 1 is where it ends.

    Raises:
        TypeError, ValueError: an argument is not as above.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        traced: torch.Tensor = torch.ops.deep_gemm_rocm.get_paged_mqa_logits_metadata(
            context_lens, block_kv, num_sms, indices
        )
        return traced, None
    check_data("context_lens", context_lens)
    if context_lens.dtype != torch.int32:
        raise TypeError(f"context_lens must be int32, got {context_lens.dtype}")
    if context_lens.dim() not in (1, 2) or context_lens.shape[1:] == (0,):
        raise ValueError(f"context_lens must be [batch] or [batch, next_n], got shape {tuple(context_lens.shape)}")
    if indices is not None:
        check_form("indices", indices, torch.int32, (len(context_lens),))
    if check_int("block_kv", block_kv, 1) not in PAGE_SIZES:
        raise ValueError(f"block_kv must be one of {PAGE_SIZES}, got {block_kv}")
    units = check_int("num_sms", num_sms, 1, _MAX_UNITS)
    schedule = context_lens.new_empty((units + 1, 2))
    if not context_lens.shape[0]:
        return schedule.fill_(0), None
    return schedule, paged_logits_schedule_launch(context_lens, schedule)


_DIFFERING_PAGED = {name: {0: Size(0)} for name in ("q", "context_lens", "block_table", "indices")}
_DIFFERING_PAGED |= {"weights": {0: Size(0, is_multiple=True)}}


@launches_of_sizes(lambda _: _DIFFERING_PAGED, [_MOST_SIZE])
def fp8_paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    indices: torch.Tensor | None = None,
    *,
    logits_dtype: torch.dtype = torch.float32,
    shuffled_keys: bool = False,
) -> Described[torch.Tensor]:
    """``fp8_mqa_logits`` for each sequence's last tokens, with keys in a paged cache; DeepGEMM's function of this name.

    Args:
        q: float8_e4m3fnuz [B, next_n, H, D], next_n from 1 to 8; H and D as for ``fp8_mqa_logits``. Contiguous.
        kv_cache: uint8 [blocks, tokens, 1, D + 4], tokens 1, 16, 32, 64 or 128. A block holds all its values,
            [tokens, D] float8_e4m3fnuz, and then all their scales, [tokens] fp32. Each block is contiguous; blocks are
            any multiple of 16 bytes apart, and those of one token any multiple of 4.
        weights: fp32 [B · next_n, H], rows contiguous.
        context_lens: int32 [B, next_n], the number of keys that each query sees; or [B], the tokens of each sequence
            including its last next_n, of which query i sees the first ``context_len - next_n + 1 + i``.
        block_table: int32 [B, blocks of a sequence], rows contiguous.
        schedule_meta: what ``get_paged_mqa_logits_metadata`` returned for ``context_lens``; None if the kernel is to
            share out its work itself, which takes less time than a kernel before it.
        max_context_len: columns of the result, up to 2^28.
        clean_logits: whether logits of keys that a query doesn't see are -inf; otherwise they are undefined.
        indices: int32 [B], checked and not used. In DeepGEMM, with next_n 1, neighbours with equal indices are tokens
            of one sequence with equal rows of ``block_table``. Its SM100 kernels then read the keys once for all.
        logits_dtype: fp32 or bf16, to which the fp32 logits are rounded.
        shuffled_keys: whether values of a block are in tiles of 16 tokens and 16 elements, [tokens / 16, D / 16, 16,
            16], for blocks of 16 tokens and more. So vLLM and SGLang have them for AITER's kernels.

    Returns:
        [B · next_n, max_context_len] of ``logits_dtype``.

    Raises:
        TypeError, ValueError: an argument is not as above.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        traced: torch.Tensor = torch.ops.deep_gemm_rocm.fp8_paged_mqa_logits(
            q,
            kv_cache,
            weights,
            context_lens,
            block_table,
            schedule_meta,
            max_context_len,
            clean_logits,
            indices,
            logits_dtype,
            shuffled_keys,
        )
        return traced, None
    _check_q(q, 4)
    batch, next_n, heads, head_dim = q.shape
    if not 1 <= next_n <= MAX_DECODE_TOKENS:
        raise ValueError(f"q must have 1 to {MAX_DECODE_TOKENS} tokens for each sequence, got {next_n}")
    if not q.is_contiguous() or q.data_ptr() % ALIGNMENT:
        raise ValueError(f"q must be contiguous and start at a multiple of {ALIGNMENT} bytes, got {q.stride()}")
    check_form("kv_cache", kv_cache, torch.uint8, (None, None, 1, head_dim + _SCALE_BYTES))
    page_tokens = kv_cache.shape[1]
    check_page_size("kv_cache", page_tokens, PAGE_SIZES)
    if check_bool("shuffled_keys", shuffled_keys) and page_tokens % _TILE:
        raise ValueError(f"kv_cache must have blocks of {_TILE} tokens or more for shuffled_keys, got {page_tokens}")
    is_contiguous = page_tokens == 1 or kv_cache.stride(1) == head_dim + _SCALE_BYTES
    overlap = len(kv_cache) > 1 and kv_cache.stride(0) < page_tokens * (head_dim + _SCALE_BYTES)
    if not is_contiguous or overlap:
        raise ValueError(f"each block of kv_cache must be contiguous, got strides {kv_cache.stride()}")
    alignment = _SCALE_BYTES if page_tokens == 1 else ALIGNMENT
    if kv_cache.data_ptr() % ALIGNMENT or (len(kv_cache) > 1 and kv_cache.stride(0) % alignment):
        raise ValueError(f"blocks of kv_cache must start at multiples of {alignment} bytes; .clone() it")
    check_form("weights", weights, torch.float32, (batch * next_n, heads))
    check_data("context_lens", context_lens)
    per_query = context_lens.dim() == 2
    contents = check_pages(
        batch, len(kv_cache), page_tokens, block_table, context_lens, per_query=next_n if per_query else None
    )
    if not context_lens.is_contiguous():
        raise ValueError(f"context_lens must be contiguous, got strides {context_lens.stride()}")
    if indices is not None:
        check_form("indices", indices, torch.int32, (batch,))
    columns = check_int("max_context_len", max_context_len, 0, MAX_TOKENS)
    check_bool("clean_logits", clean_logits)
    tensors = {
        "q": Argument("q", q),
        "cache": Argument("kv_cache", kv_cache),
        "weights": Argument("weights", weights),
        "context_lens": Argument("context_lens", context_lens),
        "block_table": Argument("block_table", block_table),
    }
    if schedule_meta is not None:
        _check_schedule(schedule_meta)
        tensors["schedule"] = Argument("schedule_meta", schedule_meta)
    check_one_device(dict(tensors.values()))
    _check_logits_dtype(logits_dtype)
    shape = (batch * next_n, columns)
    logits = q.new_empty(shape, dtype=logits_dtype)
    if logits.numel() == 0 or len(kv_cache) == 0:
        return logits.fill_(-torch.inf) if clean_logits else logits, None
    units = settings.num_cus() if schedule_meta is None else len(schedule_meta) - 1
    launch = paged_mqa_logits_launch(
        tensors, logits, contents, num_workgroups=units, clean=clean_logits, shuffled=shuffled_keys
    )
    return logits, launch


def _check_schedule(schedule_meta: Any) -> None:
    check_form("schedule_meta", schedule_meta, torch.int32, (None, 2))
    if len(schedule_meta) < 2 or not schedule_meta.is_contiguous():
        raise ValueError(f"schedule_meta must be contiguous [num_sms + 1, 2], got shape {tuple(schedule_meta.shape)}")


def _check_logits_dtype(dtype: Any) -> None:
    if dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"logits_dtype must be float32 or bfloat16, got {dtype!r}")


def _check_q(q: Any, dims: int) -> None:
    check_form("q", q, FP8, (None,) * dims)
    heads, head_dim = q.shape[-2:]
    if heads not in HEADS or head_dim not in HEAD_DIMS:
        raise ValueError(
            f"q must have a multiple of 8 heads, up to 128, of {HEAD_DIMS} elements, got shape {tuple(q.shape)}"
        )


def _check_aligned(name: str, tensor: torch.Tensor) -> None:
    """Checks that rows are contiguous and start at multiples of the 16 bytes that a lane loads."""
    misaligned = tensor.stride(0) % ALIGNMENT or tensor.data_ptr() % ALIGNMENT
    if tensor.numel() and (misaligned or not tensor[0].is_contiguous()):
        raise ValueError(
            f"rows of {name} must be contiguous and start at multiples of {ALIGNMENT} bytes, got strides "
            f"{tensor.stride()}; .clone() it"
        )

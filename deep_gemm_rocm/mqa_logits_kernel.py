"""The kernels behind the sparse indexer's logits: their arguments and their launch."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int, c_int64, c_void_p

import torch

from . import arrays, jit, warm


class MqaLogitsArguments(Structure):
    """The structure of the same name in mqa_logits.h."""

    _fields_ = (
        ("q", c_void_p),
        ("keys", c_void_p),
        ("key_scales", c_void_p),
        ("weights", c_void_p),
        ("begin", c_void_p),
        ("end", c_void_p),
        ("logits", c_void_p),
        ("q_stride", c_int64),
        ("key_stride", c_int64),
        ("weights_stride", c_int64),
        ("logits_stride", c_int64),
        ("num_queries", c_int),
        ("num_keys", c_int),
        ("clean", c_int),
        ("compressed_columns", c_int),
    )


class PagedMqaLogitsArguments(Structure):
    """The structure of the same name in mqa_logits.h."""

    _fields_ = (
        ("q", c_void_p),
        ("cache", c_void_p),
        ("weights", c_void_p),
        ("context_lens", c_void_p),
        ("block_table", c_void_p),
        ("schedule", c_void_p),
        ("logits", c_void_p),
        ("q_stride", c_int64),
        ("page_bytes", c_int64),
        ("weights_stride", c_int64),
        ("block_table_stride", c_int64),
        ("logits_stride", c_int64),
        ("batch", c_int),
        ("next_n", c_int),
        ("per_query_lens", c_int),
        ("num_pages", c_int),
        ("pages_of_sequence", c_int),
        ("columns", c_int),
        ("num_workgroups", c_int),
    )


def launch_mqa_logits(
    q: torch.Tensor,
    keys: torch.Tensor,
    key_scales: torch.Tensor,
    weights: torch.Tensor,
    begin: torch.Tensor,
    end: torch.Tensor,
    logits: torch.Tensor,
    *,
    clean: bool,
    compressed: bool,
) -> None:
    """Launches the kernel on arguments of ``fp8_mqa_logits`` that were checked; ``logits`` [S, columns] is written."""
    tensors = {
        "q": q, "kv[0]": keys, "kv[1]": key_scales, "weights": weights, "cu_seq_len_k_start": begin,
        "cu_seq_len_k_end": end, "logits": logits,
    }  # fmt: skip
    arguments = MqaLogitsArguments(
        *(tensor.data_ptr() for tensor in tensors.values()),
        q_stride=q.stride(0),
        key_stride=keys.stride(0),
        weights_stride=weights.stride(0),
        logits_stride=logits.stride(0),
        num_queries=q.shape[0],
        num_keys=keys.shape[0],
        clean=clean,
        compressed_columns=logits.shape[1] if compressed else 0,
    )
    arrays.runtime_of(q).check_residence("q", q)  # before a compile; the others are on the same device
    kernel = jit.get_kernel("mqa_logits.hip.j2", _values("mqa_logits", q), (c_void_p, c_void_p))
    warm.launch(kernel, arguments, tensors, written=("logits",), aligned=("q", "kv[0]"))


def launch_paged_mqa_logits(
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Launches the kernel on arguments of ``fp8_paged_mqa_logits`` that were checked; it writes into ``logits``."""
    tensors = {
        "q": q, "kv_cache": cache, "weights": weights, "context_lens": context_lens, "block_table": block_table,
        "schedule_meta": schedule, "logits": logits,
    }  # fmt: skip
    arguments = PagedMqaLogitsArguments(
        *(tensor.data_ptr() for tensor in tensors.values()),
        q_stride=q.stride(1),
        page_bytes=cache.stride(0),
        weights_stride=weights.stride(0),
        block_table_stride=block_table.stride(0),
        logits_stride=logits.stride(0),
        batch=q.shape[0],
        next_n=q.shape[1],
        per_query_lens=context_lens.dim() == 2,
        num_pages=cache.shape[0],
        pages_of_sequence=block_table.shape[1],
        columns=logits.shape[1],
        num_workgroups=len(schedule) - 1,
    )
    arrays.runtime_of(q).check_residence("q", q)
    argtypes = (POINTER(PagedMqaLogitsArguments), c_void_p)
    kernel = jit.get_kernel("paged_mqa_logits.hip.j2", _values("paged_mqa_logits", q), argtypes)
    warm.launch(kernel, arguments, tensors)


def _values(family: str, q: torch.Tensor) -> dict[str, int | str | bool]:
    heads, head_dim = q.shape[-2:]
    return {"heads": heads, "head_dim": head_dim, "kernel_name": f"{family}_h{heads}_d{head_dim}"}

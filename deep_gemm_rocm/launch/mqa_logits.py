"""Arguments and launches of the kernels for the sparse indexer's logits."""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_uint, c_void_p

import torch

from ..heuristics.gemm_config import NUM_CUS
from ..jit import Request
from ..problems.arguments import Argument, Arguments, Contents
from ..problems.layout import ceil_div
from .launch import Launch, Sizes

_WORKGROUP_KEYS = 512  # kKeys in mqa_logits.hip.j2
_MOST_QUERIES = 64  # MqaLogits::kMostQueries
_GENERATION = 2 * NUM_CUS  # workgroups that run at once: a round


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
        ("has_bf16_logits", c_int),
        ("workgroup_queries", c_int),
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
        ("page_shift", c_int),
        ("columns", c_int),
        ("num_workgroups", c_int),
        ("clean", c_int),
        ("has_bf16_logits", c_int),
    )


class PagedLogitsScheduleArguments(Structure):
    """The structure of the same name in paged_logits_schedule.h."""

    _fields_ = (
        ("lengths", c_void_p),
        ("schedule", c_void_p),
        ("sequence_stride", c_int64),
        ("length_stride", c_int64),
        ("sequences", c_int),
        ("lengths_of_sequence", c_int),
        ("units", c_uint),
    )


def mqa_logits_launch(tensors: Arguments, logits: torch.Tensor, *, clean: bool, compressed: bool) -> Launch:
    """Describes the launch for checked tensors of ``fp8_mqa_logits``; ``logits`` is a new one, [S, columns]."""
    q, keys, weights = (tensors[role].tensor for role in ("q", "keys", "weights"))
    request = Request("mqa_logits.hip.j2", _values("mqa_logits", q))
    columns = logits.shape[1] if compressed else 0

    def sizes_of(num_queries: int, num_keys: int) -> Sizes:
        row = columns or num_keys
        fields = {
            "logits_stride": row,
            "num_queries": num_queries,
            "num_keys": num_keys,
            "workgroup_queries": _workgroup_queries(num_queries, num_keys),
        }
        return Sizes(request, fields, {"logits": (num_queries, row)})

    arguments = MqaLogitsArguments(
        **sizes_of(len(q), len(keys)).fields,
        q_stride=q.stride(0),
        key_stride=keys.stride(0),
        weights_stride=weights.stride(0),
        clean=clean,
        compressed_columns=columns,
        has_bf16_logits=logits.dtype == torch.bfloat16,
    )
    return Launch(
        request,
        arguments,
        {**tensors, "logits": Argument("logits", logits)},
        made={"logits": logits},
        written=("logits",),
        aligned=("q", "keys"),
        sizes=sizes_of,
    )


def paged_mqa_logits_launch(
    tensors: Arguments,
    logits: torch.Tensor,
    contents: tuple[Contents, ...],
    *,
    num_workgroups: int,
    clean: bool,
    shuffled: bool,
) -> Launch:
    """Describes the launch for checked tensors of ``fp8_paged_mqa_logits``.

    Args:
        logits: a new tensor.
        contents: as in ``Launch``.
        num_workgroups: what the schedule is for, or how many share out the work where there is none.
        clean: whether logits of keys that a query doesn't see are -inf.
        shuffled: whether keys are in tiles.
    """
    q, cache, weights = (tensors[role].tensor for role in ("q", "cache", "weights"))
    context_lens, block_table = (tensors[role].tensor for role in ("context_lens", "block_table"))
    arguments = PagedMqaLogitsArguments(
        q_stride=q.shape[2] * q.shape[3],  # stride(1) may be anything if next_n is 1
        page_bytes=cache.stride(0),
        weights_stride=weights.stride(0),
        block_table_stride=block_table.stride(0),
        logits_stride=logits.stride(0),
        batch=q.shape[0],
        next_n=q.shape[1],
        per_query_lens=context_lens.dim() == 2,
        num_pages=cache.shape[0],
        pages_of_sequence=block_table.shape[1],
        page_shift=cache.shape[1].bit_length() - 1,
        columns=logits.shape[1],
        num_workgroups=num_workgroups,
        clean=clean,
        has_bf16_logits=logits.dtype == torch.bfloat16,
    )
    values = _values("paged_mqa_logits", q) | {"shuffled": shuffled}
    if shuffled:
        values["kernel_name"] = f"{values['kernel_name']}_shuffled"
    request, next_n = Request("paged_mqa_logits.hip.j2", values), q.shape[1]
    return Launch(
        request,
        arguments,
        {**tensors, "logits": Argument("logits", logits)},
        made={"logits": logits},
        written=("logits",),
        aligned=("q", "cache"),
        contents=contents,
        sizes=lambda batch: Sizes(request, {"batch": batch}, {"logits": batch * next_n}),
    )


def paged_logits_schedule_launch(context_lens: torch.Tensor, schedule: torch.Tensor) -> Launch:
    """Describes the launch for checked ``context_lens`` of ``get_paged_mqa_logits_metadata``, with a sequence at least.

    Args:
        schedule: a new tensor.
    """
    sequence_stride, length_stride = (*context_lens.stride(), 0)[:2]
    arguments = PagedLogitsScheduleArguments(
        sequence_stride=sequence_stride,
        length_stride=length_stride,
        sequences=context_lens.shape[0],
        lengths_of_sequence=context_lens.shape[1] if context_lens.dim() == 2 else 1,
        units=len(schedule) - 1,
    )
    request = Request("paged_logits_schedule.hip.j2", {"kernel_name": "paged_mqa_logits_schedule"})
    return Launch(
        request,
        arguments,
        {"lengths": Argument("context_lens", context_lens), "schedule": Argument("schedule_meta", schedule)},
        made={"schedule_meta": schedule},
        written=("schedule",),
        sizes=lambda sequences: Sizes(request, {"sequences": sequences}, {}),
    )


def _workgroup_queries(queries: int, keys: int) -> int:
    """The queries of a workgroup, chosen so that workgroups fill the device in whole rounds."""
    key_tiles = max(ceil_div(keys, _WORKGROUP_KEYS), 1)
    tiles = key_tiles * ceil_div(queries, _MOST_QUERIES)
    generations = max(ceil_div(tiles, _GENERATION), 1)
    return min(ceil_div(queries, max(generations * _GENERATION // key_tiles, 1)), _MOST_QUERIES) or 1


def _values(family: str, q: torch.Tensor) -> dict[str, int | str | bool]:
    heads, head_dim = q.shape[-2:]
    return {"heads": heads, "head_dim": head_dim, "kernel_name": f"{family}_h{heads}_d{head_dim}"}

"""Arguments and launches of the kernels before and after the GEMMs of a layer of experts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from ctypes import Structure, c_int, c_int64, c_void_p
from typing import TypeVar

import torch

from ..jit import Request
from ..problems.arguments import present
from ..problems.layout import ceil_div
from .cast import CastArguments
from .launch import Launch, Sizes

_T = TypeVar("_T")

_IDS_OF_CHUNK = 1024  # kIdsOfChunk in sort_by_expert.h
_BYTES_OF_CHUNK = 512 * 4  # of its counts


class SortArguments(Structure):
    """The structure of the same name in sort_by_expert.h."""

    _fields_ = (
        ("ids", c_void_p),
        ("expert_map", c_void_p),
        ("ends", c_void_p),
        ("tokens", c_void_p),
        ("rows", c_void_p),
        ("counts", c_void_p),
        ("num_ids", c_int),
        ("top_k", c_int),
        ("num_mapped", c_int),
        ("num_experts", c_int),
    )


class SortAndCastArguments(Structure):
    """The structure of the same name in sort_and_cast.h."""

    _fields_ = (("sort", SortArguments), ("cast", CastArguments))


class SumOfExpertsArguments(Structure):
    """The structure of the same name in sum_of_experts.h."""

    _fields_ = (
        ("results", c_void_p),
        ("weights", c_void_p),
        ("rows", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("tokens", c_int),
        ("columns", c_int),
        ("top_k", c_int),
    )


def sort_launch(
    ids: torch.Tensor, expert_map: torch.Tensor | None, ends: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor
) -> Launch:
    """Describes the launch that sorts ``ids`` [tokens, top_k] for as many experts as ``ends`` has elements.

    Args:
        ends, tokens, rows: new tensors: one past each expert's last row, the token of each row, the row of each id.
    """
    num_experts, has_map = len(ends), expert_map is not None
    name = f"sort_by_expert{'_mapped' if has_map else ''}"
    request = Request("sort_by_expert.hip.j2", {"kernel_name": name, "has_map": has_map, "casts": False})
    sizes_of = functools.partial(_sizes_of_sort, request, ids.shape[1])
    sizes = sizes_of(len(ids))
    return Launch(
        request,
        SortArguments(
            **sizes.fields,
            top_k=ids.shape[1],
            num_mapped=num_experts if expert_map is None else len(expert_map),
            num_experts=num_experts,
        ),
        present(
            ids=("topk_ids", ids),
            expert_map=("expert_map", expert_map),
            ends=("ends", ends),
            tokens=("tokens", tokens),
            rows=("rows", rows),
        ),
        scratch=sizes.scratch,
        made={"ends": ends, "tokens": tokens, "rows": rows},
        written=("ends", "tokens", "rows"),
        sizes=sizes_of,
    )


def _sizes_of_sort(request: Request, top_k: int, tokens: int) -> Sizes:
    ids = tokens * top_k
    chunks = ceil_div(ids, _IDS_OF_CHUNK)
    scratch = {"counts": chunks * _BYTES_OF_CHUNK} if chunks > 1 else {}
    return Sizes(request, {"num_ids": ids}, {"tokens": ids, "rows": ids}, {}, scratch)


def sort_and_cast_launch(sort: Launch, cast: Launch) -> Launch:
    """Describes one launch that does the work of both: of ``sort_launch``, and of a ``cast_launch`` of rows of bf16 to
    scales of 128 columns.
    """
    name = f"{sort.kernel.values['kernel_name']}_and_{cast.kernel.values['kernel_name']}"
    request = sort.kernel._replace(values={**sort.kernel.values, "kernel_name": name, "casts": True})
    assert sort.sizes is not None
    assert cast.sizes is not None
    return Launch(
        request,
        SortAndCastArguments(sort.arguments, cast.arguments),
        {**_below("sort", sort.pointers), **_below("cast", cast.pointers)},
        scratch=_below("sort", sort.scratch),
        made={**sort.made, **cast.made},
        written=(*_below("sort", dict.fromkeys(sort.written)), *_below("cast", dict.fromkeys(cast.written))),
        aligned=tuple(_below("cast", dict.fromkeys(cast.aligned))),
        sizes=functools.partial(_sizes_of_both, request, sort.sizes, cast.sizes),
    )


def _sizes_of_both(
    request: Request, sizes_of_sort: Callable[[int], Sizes], sizes_of_cast: Callable[[int], Sizes], tokens: int
) -> Sizes:
    # One by one, since a loop over paths takes several microseconds.
    _, of_sort, made_by_sort, _, scratch = sizes_of_sort(tokens)
    _, of_cast, _, strides, _ = sizes_of_cast(tokens)
    return Sizes(
        request,
        {
            "sort.num_ids": of_sort["num_ids"],
            "cast.rows": tokens,
            "cast.scales.row_stride": of_cast["scales.row_stride"],
            "cast.scales.column_stride": of_cast["scales.column_stride"],
        },
        {
            "sort.tokens": made_by_sort["tokens"],
            "sort.rows": made_by_sort["rows"],
            "cast.data.data": tokens,
            "cast.scales.data": tokens,
        },
        {"cast.scales.data": strides["scales.data"]},
        {"sort.counts": scratch["counts"]} if scratch else scratch,
    )


def _below(name: str, by_path: Mapping[str, _T]) -> dict[str, _T]:
    """The same by paths that lead through a structure of this name."""
    return {f"{name}.{path}": value for path, value in by_path.items()}


def sum_of_experts_launch(
    results: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor, out: torch.Tensor
) -> Launch:
    """Describes the launch that adds up rows of bf16 ``results``, contiguous, for each token of ``out``."""
    tokens, columns = out.shape
    request = Request("sum_of_experts.hip.j2", {"kernel_name": "sum_of_experts"})
    return Launch(
        request,
        SumOfExpertsArguments(out_stride=out.stride(0), tokens=tokens, columns=columns, top_k=weights.shape[1]),
        present(results=("results", results), weights=("topk_weights", weights), rows=("rows", rows), out=("out", out)),
        written=("out",),
        aligned=("results", "out"),
        sizes=lambda tokens: Sizes(request, {"tokens": tokens}, {"out": tokens}),
    )

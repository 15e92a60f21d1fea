"""Arguments and launches of the kernels that select the largest logits of each row."""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import present
from ..problems.layout import TYPES
from ..problems.sequences import compiled_page_size
from ..runtime import settings
from .launch import Launch, Sizes


class TopKArguments(Structure):
    """The structure of the same name in top_k_arguments.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("starts", c_void_p),
        ("ends", c_void_p),
        ("block_table", c_void_p),
        ("sequences", c_void_p),
        ("out", c_void_p),
        ("logits_stride", c_int64),
        ("block_table_stride", c_int64),
        ("out_stride", c_int64),
        ("rows", c_int),
        ("columns", c_int),
        ("k", c_int),
        ("has_block_table", c_int),
        ("rows_of_sequence", c_int),
        ("pages_of_sequence", c_int),
        ("page_shift", c_int),
        ("sequences_of_table", c_int),
        ("compute_units", c_int),
    )


def top_k_launch(
    logits: torch.Tensor,
    k: int,
    starts: torch.Tensor | None,
    ends: torch.Tensor | None,
    block_table: torch.Tensor | None,
    page_size: int,
    sequences: torch.Tensor | None,
    out: torch.Tensor,
    *,
    is_new: bool,
) -> Launch:
    """Describes the launch for checked arguments of ``top_k_per_row``.

    Args:
        is_new: whether ``out`` was made by this call.
    """
    rows, columns = logits.shape
    arguments = TopKArguments(
        logits_stride=logits.stride(0),
        out_stride=out.stride(0),
        rows=rows,
        columns=columns,
        k=k,
        rows_of_sequence=rows,
        compute_units=settings.num_cus(),
        has_block_table=block_table is not None,
    )
    if block_table is not None:
        arguments.block_table_stride = block_table.stride(0)
        if sequences is None:
            arguments.rows_of_sequence = rows // len(block_table)
        else:
            arguments.sequences_of_table = len(block_table)
        arguments.pages_of_sequence = block_table.shape[1]
        arguments.page_shift = page_size.bit_length() - 1
    pointers = present(
        logits=("logits", logits),
        starts=("starts", starts),
        ends=("ends", ends),
        block_table=("block_table", block_table),
        sequences=("sequences", sequences),
        out=("out", out),
    )
    type_, compiled = TYPES[logits.dtype], compiled_page_size(page_size)
    name = f"top_k_{type_}_pages{compiled}" if compiled else f"top_k_{type_}"
    request = Request("top_k.hip.j2", {"type": type_, "page_size": compiled, "kernel_name": name})
    has_pages = block_table is not None

    # In a family, a block table has a row for each row of logits, and no sequences are given.
    def sizes(rows: int) -> Sizes:
        fields = {"rows": rows, "rows_of_sequence": 1 if has_pages else rows}
        return Sizes(request, fields, {"out": rows})

    return Launch(
        request,
        arguments,
        pointers,
        made={"out": out} if is_new else {},
        written=("out",),
        sizes=sizes if sequences is None else None,
    )

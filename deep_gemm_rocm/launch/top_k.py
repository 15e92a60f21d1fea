"""Arguments and launches of the kernels that select the largest logits of each row."""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import present
from ..problems.layout import ceil_div
from ..runtime import settings
from .launch import Launch, Sizes

_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_WORD = 4  # bytes of the scratch's int32
_MOST_HELD = {torch.float32: 2**15, torch.bfloat16: 2**16 - 1}  # LogitsRow::kMostElements


class TopKArguments(Structure):
    """The structure of the same name in top_k_arguments.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("starts", c_void_p),
        ("ends", c_void_p),
        ("block_table", c_void_p),
        ("out", c_void_p),
        ("slice_values", c_void_p),
        ("slice_positions", c_void_p),
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
        ("slices", c_int),
        ("room_of_slice", c_int),
        ("compute_units", c_int),
    )


def top_k_launch(
    logits: torch.Tensor,
    k: int,
    starts: torch.Tensor | None,
    ends: torch.Tensor | None,
    block_table: torch.Tensor | None,
    page_size: int,
    out: torch.Tensor,
    *,
    is_new: bool,
) -> Launch:
    """Describes the launch for checked arguments of ``top_k_per_row``.

    Args:
        is_new: whether ``out`` was made by this call.
    """
    rows, columns = logits.shape
    slices = max(ceil_div(columns, _MOST_HELD[logits.dtype]), 1)  # a workgroup holds one
    room = min(k + k // 4 + 256, _MOST_HELD[logits.dtype] // slices)  # for what the sample makes a slice list
    arguments = TopKArguments(
        logits_stride=logits.stride(0),
        out_stride=out.stride(0),
        rows=rows,
        columns=columns,
        k=k,
        rows_of_sequence=rows,
        slices=slices,
        room_of_slice=room,
        compute_units=settings.num_cus(),
        has_block_table=block_table is not None,
    )
    if block_table is not None:
        arguments.block_table_stride = block_table.stride(0)
        arguments.rows_of_sequence = rows // len(block_table)
        arguments.pages_of_sequence = block_table.shape[1]
        arguments.page_shift = page_size.bit_length() - 1
    pointers = present(
        logits=("logits", logits),
        starts=("starts", starts),
        ends=("ends", ends),
        block_table=("block_table", block_table),
        out=("out", out),
    )
    type_ = _TYPES[logits.dtype]
    request = Request("top_k.hip.j2", {"type": type_, "kernel_name": f"top_k_{type_}"})
    listed, itemsize = (slices * room if slices > 1 else 0), logits.element_size()  # of a row
    has_pages = block_table is not None

    # In a family, a block table has a row for each row of logits.
    def sizes(rows: int) -> Sizes:
        fields = {"rows": rows, "rows_of_sequence": 1 if has_pages else rows}
        scratch = {"slice_values": rows * listed * itemsize, "slice_positions": rows * listed * _WORD} if listed else {}
        return Sizes(request, fields, {"out": rows}, scratch=scratch)

    return Launch(
        request,
        arguments,
        pointers,
        scratch=sizes(rows).scratch,
        made={"out": out} if is_new else {},
        written=("out",),
        sizes=sizes,
    )

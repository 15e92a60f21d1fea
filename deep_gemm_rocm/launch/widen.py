"""Arguments and launches of the kernels that widen rows with a scale for 32 values along K to bf16."""

from __future__ import annotations

from ctypes import Structure, c_int64, c_uint, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import Argument, present
from ..problems.gemm_kind import GROUP
from ..problems.layout import TYPES, Pair
from .gemm import Scales
from .launch import Launch

VECTOR = 8  # values of a lane


class WidenArguments(Structure):
    """The structure of the same name in widen_rows.h."""

    _fields_ = (
        ("data", c_void_p),
        ("group_bytes", c_int64),
        ("row_bytes", c_int64),
        ("scales", Scales),
        ("out", c_void_p),
        ("group_rows", c_void_p),
        ("vectors", c_uint),
        ("vectors_of_row", c_uint),
        ("rows_of_group", c_uint),
    )


def widen_launch(name: str, narrow: Pair, out: Argument, group_rows: torch.Tensor | None) -> Launch:
    """Describes the launch for a checked pair, of at least one value.

    Args:
        name: the pair's name in the public function.
        out: a new tensor, bf16, contiguous: [M, K], or with groups [G, M, K].
        group_rows: int32 [G], how many rows of each group are widened; None for all.
    """
    data, scales = narrow
    *groups, rows, k = out.tensor.shape
    has_exponents = scales.dtype != torch.float32
    arguments = WidenArguments(
        group_bytes=data.stride(0) if groups else 0,  # data have one byte
        row_bytes=data.stride(-2),
        vectors=out.tensor.numel() // VECTOR,
        vectors_of_row=k // VECTOR,
        rows_of_group=rows,
    )
    arguments.scales.take_strides_of_groups(scales, GROUP, has_exponents)
    values = {"type": TYPES.get(data.dtype, "e2m1"), "scale_type": "e8m0" if has_exponents else "f32"}
    request = Request("widen_rows.hip.j2", values | {"kernel_name": "widen_rows_{type}_{scale_type}".format(**values)})
    pointers = {"data": Argument(f"{name}[0]", data), "scales.data": Argument(f"{name}[1]", scales), "out": out}
    return Launch(
        request,
        arguments,
        pointers | present(group_rows=("masked_m", group_rows)),
        made={out.name: out.tensor},
        written=("out",),
        aligned=("data", "out"),
    )

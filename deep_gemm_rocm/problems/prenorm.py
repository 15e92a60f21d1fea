"""Checks of the arguments of ``tf32_hc_prenorm_gemm``."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import check_int
from .arguments import Arguments, present
from .gemm_kind import Gemm, GemmKind
from .matrices import (
    check_aligned_lines,
    check_aligned_start,
    check_no_shared_memory,
    check_operand,
    check_output,
    check_same_device,
    major_of,
    meta_of,
)
from .tensors import ALIGNMENT


def check_prenorm_gemm(a: Any, b: Any, d: Any, sqr_sum: Any, num_splits: Any) -> tuple[Gemm, Arguments]:
    """Checks the arguments of ``tf32_hc_prenorm_gemm``.

    Returns:
        The GEMM, whose groups are the ``num_splits`` parts of K, and its arguments as ``check_gemm`` returns them.
        ``sqr_sum`` is returned as ``square_sums``.
    """
    splits = () if num_splits is None else (check_int("num_splits", num_splits, 1),)
    tensors = {"a": a, "b": b, "d": d, "sqr_sum": sqr_sum}
    metas = {name: meta_of(name, tensor) for name, tensor in tensors.items()}
    m, k = check_operand("a", metas["a"], (torch.bfloat16,), grouped=False)
    n, k_of_b = check_operand("b", metas["b"], (torch.float32,), grouped=False)
    if k != k_of_b:
        raise ValueError(f"a and b must agree in K, their last dimension, got ({m}, {k}) and ({n}, {k_of_b})")
    if n == 0:
        raise ValueError(f"b must have at least one row, got shape ({n}, {k})")
    values = ALIGNMENT // torch.bfloat16.itemsize
    if k % values:
        raise ValueError(f"K must be a multiple of {values}, got {k}; pad a and b with zeros")
    for name in ("a", "b"):
        if major_of(metas[name]) != "k":
            raise ValueError(f"rows of {name} must be contiguous, got strides {metas[name].strides}; .contiguous() it")
        check_aligned_lines(name, metas[name])
        check_aligned_start(name, tensors[name])
    check_output("d", metas["d"], (*splits, m, n), (torch.float32,))
    check_output("sqr_sum", metas["sqr_sum"], (*splits, m), (torch.float32,))
    if not sqr_sum.is_contiguous():
        raise ValueError(f"sqr_sum must be contiguous, got strides {metas['sqr_sum'].strides}")
    for name in ("b", "d", "sqr_sum"):
        check_same_device(name, metas[name], "a", metas["a"])
    for name in ("d", "sqr_sum"):
        check_no_shared_memory(name, tensors)
    kind = GemmKind("bf16", "f32", "f32", "none", grouping="split_k", sums_squares=True)
    arguments = present(a=("a", a), b=("b", b), d=("d", d), square_sums=("sqr_sum", sqr_sum))
    return Gemm(m, n, k, num_splits or 1, kind), arguments

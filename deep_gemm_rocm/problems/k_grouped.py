"""Checks of the arguments of GEMMs whose K is split into groups."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import check_tensor
from .arguments import Argument, Arguments, present
from .gemm_kind import Gemm, GemmKind
from .layout import SCALE_BLOCK, TYPES, ceil_div
from .matrices import (
    OUTPUT_DTYPES,
    TensorMeta,
    check_aligned_lines,
    check_aligned_start,
    check_contiguous_rows,
    check_dtype,
    check_layout,
    check_no_shared_memory,
    check_operand,
    check_output,
    check_same_device,
    check_same_type,
    check_scales,
    meta_of,
)
from .operands import group_sizes, pair_of
from .recipe import VECTORS
from .tensors import ALIGNMENT


def check_k_grouped_gemm(
    a: Any,
    b: Any,
    d: Any,
    ks: Any,
    layout: Any,
    c: Any,
    *,
    dtypes: tuple[torch.dtype, ...],
    scaled: bool,
    packed: bool,
) -> tuple[Gemm, Arguments]:
    """Checks the arguments of a GEMM whose K is split into groups of ``ks``, ``d[g] = a_g · b_gᵀ + c[g]``.

    Args:
        a, b: operands, [ΣK, rows]; if ``packed``, each group's [rows, K_g] flattened. Pairs if ``scaled``.

    Returns:
        The GEMM, whose k is the sum of all groups' K, and its arguments as ``check_gemm`` returns them. The operands
        are returned as [rows, K].
    """
    sizes = group_sizes("ks_cpu", ks, ALIGNMENT if packed else 1)
    total, blocks = sum(sizes), sum(ceil_div(k, SCALE_BLOCK) for k in sizes)
    shape = tuple(meta_of("d", d).shape)
    if shape[:-2] != (len(sizes),):
        raise ValueError(f"d must be one matrix for each of {len(sizes)} groups, got shape {shape}")
    check_output("d", meta_of("d", d), shape, OUTPUT_DTYPES)
    arguments = {"d": Argument("d", d), "grouped_layout": Argument("grouped_layout", layout), **present(c=("c", c))}
    tensors = dict(arguments.values())
    data: Any
    scales: Any
    for name, operand, rows in (("a", a, shape[1]), ("b", b, shape[2])):
        data, scales = pair_of(name, operand) if scaled else (operand, None)
        data_name = f"{name}[0]" if scaled else name
        check_tensor(data_name, data)
        _check_operand(data_name, meta_of(data_name, data), dtypes, total, rows, packed)
        check_aligned_start(data_name, data)
        tensors[data_name] = data
        arguments[name] = Argument(data_name, data.view(1, -1) if packed else data.mT)
        if scaled:
            scales_name = f"{name}[1]"
            check_tensor(scales_name, scales)
            meaning = f"one scale for each row or column and {SCALE_BLOCK} of each group's K"
            scales_shape = (rows, blocks) if packed else (blocks, rows)
            check_scales(scales_name, meta_of(scales_name, scales), scales_shape, meaning)
            tensors[scales_name] = scales
            arguments[f"sf{name}"] = Argument(scales_name, scales if packed else scales.mT)
    metas = {name: meta_of(name, tensor) for name, tensor in tensors.items()}
    check_layout("grouped_layout", metas["grouped_layout"], len(sizes), "group")
    if c is not None:
        check_output("c", metas["c"], shape, (d.dtype,))
    a_name, b_name = arguments["a"].name, arguments["b"].name
    for name, meta in metas.items():
        check_same_device(name, meta, a_name, metas[a_name])
    check_same_type(a_name, metas[a_name], b_name, metas[b_name])
    check_no_shared_memory("d", tensors)
    major = "k" if packed else "rows"
    kind = GemmKind(
        a_type=TYPES[metas[a_name].dtype],
        b_type=TYPES[metas[b_name].dtype],
        d_type=TYPES[d.dtype],
        scaling=VECTORS.scaling if scaled else "none",
        accumulate=c is not None,
        grouping="k_grouped",
        a_major=major,
        b_major=major,
    )
    return Gemm(shape[1], shape[2], total, len(sizes), kind), arguments


def _check_operand(
    name: str, meta: TensorMeta, dtypes: tuple[torch.dtype, ...], total_k: int, rows: int, packed: bool
) -> None:
    if packed:
        check_dtype(name, meta, dtypes)
        if meta.shape != (total_k * rows,) or (total_k * rows > 1 and meta.strides != (1,)):
            raise ValueError(
                f"{name} must be contiguous and have shape ({total_k * rows},), all groups' [{rows}, K_g] flattened, "
                f"got {tuple(meta.shape)}; .view(-1) it"
            )
    else:
        if meta.shape != (total_k, rows):
            raise ValueError(
                f"{name} must have shape ({total_k}, {rows}), the sum of ks_cpu and a dimension of d, "
                f"got {tuple(meta.shape)}"
            )
        # Check it as [rows, K], like other operands. With a K of 1, its stride doesn't matter.
        stride = meta.strides[0] if total_k > 1 else rows
        if total_k and rows > 1 and meta.strides[1] != 1:
            raise ValueError(f"rows of {name} must be contiguous, got strides {meta.strides}; .contiguous() it")
        turned = meta._replace(shape=torch.Size((rows, total_k)), strides=(1, stride))
        check_operand(name, turned, dtypes, grouped=False)
        check_contiguous_rows(name, turned)
        if total_k > 1:
            check_aligned_lines(name, turned)

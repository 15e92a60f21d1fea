"""Checks of the arguments of GEMMs whose K is split into groups."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import check_tensor
from .arguments import Argument, Arguments, present
from .gemm_kind import Gemm, GemmKind
from .layout import SCALE_BLOCK, ceil_div
from .operands import group_sizes, pair_of
from .recipe import VECTORS
from .tensors import (
    ALIGNMENT,
    OUTPUT_DTYPES,
    TYPES,
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
    named = {"d": meta_of("d", d)}
    if named["d"].shape[:-2] != (len(sizes),):
        raise ValueError(f"d must be one matrix for each of {len(sizes)} groups, got shape {tuple(named['d'].shape)}")
    shape = tuple(named["d"].shape)
    check_output("d", named["d"], shape, OUTPUT_DTYPES)
    tensors = {"d": d, "grouped_layout": layout}
    arguments = present(d=("d", d), grouped_layout=("grouped_layout", layout), c=("c", c))
    data_names = []
    for name, operand, rows in (("a", a, shape[1]), ("b", b, shape[2])):
        data, scales = pair_of(name, operand) if scaled else (operand, None)
        data_name = f"{name}[0]" if scaled else name
        data_names.append(data_name)
        check_tensor(data_name, data)
        tensors[data_name] = data
        named[data_name] = meta_of(data_name, data)
        _k_grouped_operand(data_name, named[data_name], dtypes, total, rows, packed)
        check_aligned_start(data_name, data)
        arguments[name] = Argument(data_name, data.view(1, -1) if packed else data.mT)
        if scales is not None:
            scales_name = f"{name}[1]"
            check_tensor(scales_name, scales)
            tensors[scales_name] = scales
            named[scales_name] = meta_of(scales_name, scales)
            meaning = f"one scale for each row or column and {SCALE_BLOCK} of each group's K"
            check_scales(scales_name, named[scales_name], (rows, blocks) if packed else (blocks, rows), meaning)
            arguments[f"sf{name}"] = Argument(scales_name, scales if packed else scales.mT)
    named["grouped_layout"] = meta_of("grouped_layout", layout)
    check_layout("grouped_layout", named["grouped_layout"], len(sizes), "group")
    if c is not None:
        tensors["c"] = c
        named["c"] = meta_of("c", c)
        check_output("c", named["c"], shape, (d.dtype,))
    a_name, b_name = data_names
    for name, meta in named.items():
        check_same_device(name, meta, a_name, named[a_name])
    check_same_type(a_name, named[a_name], b_name, named[b_name])
    check_no_shared_memory("d", tensors, named)
    major = "k" if packed else "rows"
    kind = GemmKind(
        a_type=TYPES[named[a_name].dtype],
        b_type=TYPES[named[b_name].dtype],
        d_type=TYPES[d.dtype],
        scaling=VECTORS.scaling if scaled else "none",
        accumulate=c is not None,
        grouping="k_grouped",
        a_major=major,
        b_major=major,
    )
    return Gemm(shape[1], shape[2], total, len(sizes), kind), arguments


def _k_grouped_operand(
    name: str, meta: TensorMeta, dtypes: tuple[torch.dtype, ...], total_k: int, rows: int, packed: bool
) -> None:
    if packed:
        check_dtype(name, meta, dtypes)
        if meta.shape != (total_k * rows,) or meta.strides != (1,):
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
        if rows > 1 and meta.strides[1] != 1:
            raise ValueError(f"rows of {name} must be contiguous, got strides {meta.strides}; .contiguous() it")
        turned = meta._replace(shape=torch.Size((rows, total_k)), strides=(1, stride))
        check_operand(name, turned, dtypes, grouped=False)
        check_contiguous_rows(name, turned)
        if total_k > 1:
            check_aligned_lines(name, turned)

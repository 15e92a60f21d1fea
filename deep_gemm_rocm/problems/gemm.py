"""Checks of GEMM's arguments. Bad input is rejected here, before anything is compiled, launched or written.

A failed check raises one TypeError or ValueError, which names the argument, what was expected, what came, and what to
do.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from ..checks import one_of
from .arguments import Argument, Arguments, present
from .four_bits import (
    DTYPES_OF,
    check_int4_fits,
    check_k_of_four_bits,
    check_scales_of_groups,
    forms_of_scales,
    type_of_data,
)
from .gemm_kind import EPILOGUES, PARTS_OF_B, ROWS_OF_SIGNAL, Gemm, GemmKind
from .layout import SCALE_BLOCK, TYPES, ceil_div
from .matrices import (
    FP8_DTYPES,
    OUTPUT_DTYPES,
    TILE_BYTES,
    TILE_ROWS,
    TensorMeta,
    check_aligned_lines,
    check_aligned_start,
    check_layout,
    check_no_shared_memory,
    check_operand,
    check_output,
    check_plain,
    check_same_device,
    check_same_type,
    check_scales,
    major_of,
    meta_of,
)
from .operands import pair_of
from .recipe import BLOCKS, Recipe, check_scales_of
from .tensors import ALIGNMENT, overlaps

_GROUPS_OF_A = ("batched", "summed", "masked")  # groupings whose a is one matrix for each group
_GROUPS_OF_ROWS = ("contiguous", "psum", "masked")
_WITHOUT_M = ("b", "b[0]", "b[1]", "bias")  # arguments whose sizes don't depend on M, besides descriptions of groups
_ONE_SCALE = (1, 1)  # the shape of a's scales if all of a shares one

_Family = tuple[tuple[Any, ...], ...]  # names, whether M was left out of the shape, and the rest of ``TensorMeta``


class _Signature(NamedTuple):
    """What a public function expects of its tensors."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    recipe: Recipe | None  # None for operands without scales
    four_bits: str  # b_type of a four-bit b, else empty
    grouping: str  # as in GemmKind
    layout_name: str
    d_name: str
    head_splits: tuple[int, int, int] | None
    epilogue: str

    @property
    def scaling(self) -> str:
        """The value of ``GemmKind.scaling``."""
        if self.four_bits:
            return "groups"
        return "none" if self.recipe is None else self.recipe.scaling


def check_gemm(
    a: Any,
    b: Any,
    d: Any,
    *,
    dtypes: tuple[torch.dtype, ...],
    recipe: Recipe | None = None,
    four_bits: str = "",
    c: Any = None,
    grouping: str = "dense",
    layout: Any = None,
    layout_name: str = "",
    d_name: str = "d",
    head_splits: tuple[int, int, int] | None = None,
    bias: Any = None,
    epilogue: Any = "identity",
    signal: Any = None,
) -> tuple[Gemm, Arguments]:
    """Checks the arguments of a GEMM, ``d = epilogue(a · bᵀ + bias) + c``.

    Args:
        a, b: the operands; pairs with their scales where there is a ``recipe``.
        d: the output. A pair is FP8 data and its scales. None, for a new bf16 tensor, is allowed if ``d_name`` is
            ``out``.
        dtypes: allowed dtypes of the operands.
        recipe: how the operands' scales are shared; None for operands without scales.
        four_bits: ``e2m1`` or ``int4`` if ``b`` is a pair of such data and scales of groups; then ``recipe`` is for
            ``a``.
        grouping: as in ``GemmKind``.
        layout: the int32 tensor that describes the groups.
        head_splits: columns of each head in ``d``: left, in the gap that isn't written, and right.
        signal: counters of finished tiles of masked groups; None if they aren't counted.

    Returns:
        The GEMM, and those of its arguments that are present: ``a``, ``sfa``, ``b``, ``sfb``, ``grouped_layout``,
        ``c``, ``bias``, ``signals``, ``d`` and ``sfd``.
    """
    if d is None and d_name == "d":
        raise TypeError("d must be a torch.Tensor, got NoneType")
    epilogue = "identity" if epilogue is None else epilogue  # DeepGEMM's default
    if epilogue not in EPILOGUES:
        raise ValueError(f"epilogue must be one of {EPILOGUES}, got {epilogue!r}")
    arguments = {"a": Argument("a", a)} if recipe is None else _scaled("a", a)
    if recipe is None and not four_bits:
        arguments["b"] = Argument("b", b)
    else:
        arguments |= _scaled("b", b, four_bits)
    if layout_name:
        arguments["grouped_layout"] = Argument(layout_name, layout)
    arguments |= present(c=("c", c), bias=("bias", bias), signals=("signal", signal))
    is_quantised = isinstance(d, (tuple, list)) and d_name == "d" and head_splits is None
    if is_quantised:
        arguments |= _scaled("d", d)
    elif d is not None:
        arguments["d"] = Argument(d_name, d)
    tensors = {name: tensor for name, tensor in arguments.values()}  # quicker than dict()
    signature = _Signature(dtypes, recipe, four_bits, grouping, layout_name, d_name, head_splits, epilogue)
    gemm = _check_for_any_m(signature, tensors)
    for operand in ("a", "b"):
        check_aligned_start(*arguments[operand])
    for output in ("d", "sfd", "signals"):
        if output in arguments:
            check_no_shared_memory(arguments[output].name, tensors)
    return gemm, arguments


def _scaled(name: str, pair: Any, four_bits: str = "") -> Arguments:
    data, scales = pair_of(name, pair, four_bits)
    return {name: Argument(f"{name}[0]", data), f"sf{name}": Argument(f"{name}[1]", scales)}


def _check_for_any_m(signature: _Signature, tensors: dict[str, torch.Tensor]) -> Gemm:
    """``_check_metas``, but where M doesn't matter, it is done only once for all M."""
    for name, tensor in tensors.items():
        check_plain(name, tensor)
    a = next(iter(tensors.values()))
    family = _of_any_m(signature, a, tensors)
    if family is None:
        family = tuple([(name, False, t.dtype, t.shape, t.stride(), t.device) for name, t in tensors.items()])
    gemm = _checked_family(signature, family)
    if gemm is None:
        return _check_metas(signature, {name: meta_of(name, tensor) for name, tensor in tensors.items()})
    return Gemm(a.shape[-2], *gemm[1:])


def _of_any_m(signature: _Signature, a: torch.Tensor, tensors: dict[str, torch.Tensor]) -> _Family | None:
    """A key that calls share which differ only in M; None where M matters to checks.

    Tensors must agree in M, and rows be farther apart than columns. Then what holds for ``TILE_ROWS`` rows holds for
    fewer and for more. Scales of ``a`` may lie in any way.
    """
    if a.dim() != 2 or a.shape[0] >= 2**31:
        return None
    m = a.shape[0]
    without_m = _WITHOUT_M if signature.grouping == "contiguous" else (*_WITHOUT_M, signature.layout_name)
    family: list[tuple[Any, ...]] = []
    for name, tensor in tensors.items():
        dtype, shape, strides, device = tensor.dtype, tensor.shape, tensor.stride(), tensor.device
        if name in without_m or (name == "a[1]" and shape == _ONE_SCALE):
            family.append((name, False, dtype, shape, strides, device))
            continue
        if not shape or shape[0] != m:
            return None
        if name == "a[1]":
            strides = (1, TILE_ROWS) if strides[0] == 1 else strides
        elif len(shape) > 1 and strides[0] <= strides[1]:
            return None
        family.append((name, True, dtype, tuple(shape)[1:], strides, device))
    return tuple(family)


@functools.lru_cache(maxsize=1024)
def _checked_family(signature: _Signature, family: _Family) -> Gemm | None:
    """``_check_metas``, with ``TILE_ROWS`` rows where M doesn't matter; None if the tensors are wrong."""
    metas = {
        name: TensorMeta(dtype, torch.Size((TILE_ROWS, *shape)) if has_m else shape, strides, device)
        for name, has_m, dtype, shape, strides, device in family
    }
    try:
        return _check_metas(signature, metas)
    except (TypeError, ValueError, NotImplementedError):
        return None


def _check_metas(signature: _Signature, named: dict[str, TensorMeta]) -> Gemm:
    a_name = "a" if signature.recipe is None else "a[0]"
    b_name = "b[0]" if signature.four_bits else f"b{a_name[1:]}"
    a = named[a_name]
    *groups_of_a, m, k = check_operand(a_name, a, signature.dtypes, grouped=signature.grouping in _GROUPS_OF_A)
    b = named[b_name]
    b_major = _major_of_weight(signature, b_name, b)
    groups = list(b.shape[:-2])
    _check_operands_fit(signature, a_name, a, groups_of_a, b_name, b)
    if signature.recipe is not None:
        check_scales_of("a", named["a[1]"], (*groups_of_a, m, k), signature.recipe.m, signature.recipe.k)
    n = _columns_of_output(signature, b_name, b, named.get("b[1]"))
    if signature.four_bits == "int4":
        check_int4_fits(b_name, b, is_a_fp8=signature.recipe is not None)
    if signature.layout_name:
        of_rows = signature.grouping == "contiguous"
        size, unit = (m, f"row of {a_name}") if of_rows else (groups[0], f"group of {b_name}")
        check_layout(signature.layout_name, named[signature.layout_name], size, unit)
    groups_of_d = [] if signature.grouping == "summed" else groups_of_a
    d_dtype = _check_outputs(signature, named, (*groups_of_d, m, n + _columns_in_gaps(b_name, n, signature)))
    if "bias" in named:
        check_bias("bias", named["bias"], b.shape[:-1], b_name)
    if "signal" in named:
        least = groups[0] * ceil_div(m, ROWS_OF_SIGNAL)
        _check_signal(named["signal"], least)
    for name, meta in named.items():
        check_same_device(name, meta, a_name, a)
    kind = GemmKind(
        a_type=TYPES[a.dtype],
        b_type=type_of_data(b.dtype) if signature.four_bits else TYPES[b.dtype],
        d_type=TYPES[d_dtype],
        scaling=signature.scaling,
        accumulate="c" in named,
        grouping=signature.grouping,
        a_major=major_of(a),
        b_major=b_major,
        skips_head_mid=signature.head_splits is not None,
        bias=TYPES[named["bias"].dtype] if "bias" in named else "none",
        activation=signature.epilogue,
        signals="signal" in named,
        **(forms_of_scales(b, named["b[1]"]) if signature.four_bits else {}),
    )
    return Gemm(m, n, k, groups[0] if groups else 1, kind)


def _check_operands_fit(
    signature: _Signature, a_name: str, a: TensorMeta, groups_of_a: list[int], b_name: str, b: TensorMeta
) -> None:
    k = a.shape[-1]
    if signature.four_bits:
        check_k_of_four_bits(a_name, a, b_name, b)
    else:
        check_same_type(a_name, a, b_name, b)
    if not signature.four_bits and k != b.shape[-1]:
        raise ValueError(
            f"{a_name} and {b_name} must agree in K, their last dimension, got {tuple(a.shape)} and {tuple(b.shape)}; "
            f"{b_name} is {_shape_text(b, 'NK')}, transpose and copy a {_shape_text(b, 'KN')} weight"
        )
    if groups_of_a and groups_of_a != list(b.shape[:-2]):
        raise ValueError(
            f"{a_name} and {b_name} must agree in groups, their first dimension, "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    a_major = major_of(a)
    values = ALIGNMENT // a.dtype.itemsize
    if k % values and "k" in (a_major, major_of(b)):
        raise ValueError(f"K must be a multiple of {values}, got {k}; pad {a_name} and {b_name} with zeros")
    if k > 0:
        check_aligned_lines(a_name, a)
        check_aligned_lines(b_name, b)
    if signature.grouping in _GROUPS_OF_ROWS and a_major != "k":
        raise ValueError(
            f"{a_name} must be contiguous along K, its last dimension, got strides {a.strides}; .contiguous() it"
        )


def _check_outputs(signature: _Signature, named: dict[str, TensorMeta], shape: tuple[int, ...]) -> torch.dtype:
    """Checks d, or its data and scales, and c. Returns d's dtype."""
    d_name = signature.d_name
    data = named.get(f"{d_name}[0]")
    d = named.get(d_name, data)
    if data is not None and signature.four_bits:
        raise NotImplementedError(f"{d_name} must be a tensor, not a pair: no kernel quantises products of four bits")
    if data is not None:
        _check_quantised_output(d_name, data, named[f"{d_name}[1]"], shape)
    elif d is not None:
        check_output(d_name, d, shape, OUTPUT_DTYPES)
    dtype = d.dtype if d is not None else torch.bfloat16
    if "c" in named:
        if data is not None or signature.epilogue != "identity":
            raise ValueError(f"c must be None where {d_name} is a pair or epilogue is not identity; add it afterwards")
        check_output("c", named["c"], shape, (dtype,))
    return dtype


def _major_of_weight(signature: _Signature, name: str, b: TensorMeta) -> str:
    """Checks ``b`` on its own. Returns its contiguous dimension."""
    dtypes = DTYPES_OF.get(signature.four_bits, signature.dtypes)
    check_operand(name, b, dtypes, grouped=signature.grouping != "dense")
    return major_of(b)


def _columns_of_output(signature: _Signature, b_name: str, b: TensorMeta, scales: TensorMeta | None) -> int:
    """Columns of the output: b's rows divided by the number of parts that the epilogue combines."""
    if 0 in b.shape[:-2] and signature.grouping not in ("batched", "summed"):
        raise ValueError(f"{b_name} must have at least one group, got shape {tuple(b.shape)}")
    parts = PARTS_OF_B[signature.epilogue]
    rows_of_b = b.shape[-2]
    between = rows_of_b // parts * (b.strides[-2] if major_of(b) == "k" else 1) * b.dtype.itemsize
    if parts > 1 and between > TILE_BYTES // 2:
        raise ValueError(f"{b_name} must have its parts within 1 GiB, got strides {b.strides}; .contiguous() it")
    unit = parts * SCALE_BLOCK if signature.recipe == BLOCKS and parts > 1 else parts
    if rows_of_b % unit:
        raise ValueError(f"{b_name} must have a multiple of {unit} rows for {signature.epilogue}, got {rows_of_b}")
    if signature.four_bits:
        assert scales is not None
        check_scales_of_groups("b", b, scales)
    elif signature.recipe is not None:
        assert scales is not None
        check_scales_of("b", scales, b.shape, signature.recipe.n, signature.recipe.k)
    return rows_of_b // parts


def _check_quantised_output(name: str, data: TensorMeta, scales: TensorMeta, shape: tuple[int, ...]) -> None:
    check_output(f"{name}[0]", data, shape, FP8_DTYPES)
    meaning = f"one scale for each row and {SCALE_BLOCK} columns of {name}[0]"
    check_scales(f"{name}[1]", scales, (*shape[:-1], ceil_div(shape[-1], SCALE_BLOCK)), meaning)
    if overlaps(scales.shape, scales.strides):
        raise ValueError(f"{name}[1] must have elements that don't overlap, got strides {scales.strides}")


def check_bias(name: str, meta: TensorMeta, shape: tuple[int, ...], b_name: str) -> None:
    """Checks a bias, which has a number for each row of ``b``. ``shape`` is that of ``b`` without K."""
    if meta.dtype not in OUTPUT_DTYPES:
        raise TypeError(f"{name} must be {one_of(OUTPUT_DTYPES)}, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(
            f"{name} must have shape {tuple(shape)}, a number for each row of {b_name}, got {tuple(meta.shape)}"
        )
    if shape[-1] > 1 and meta.strides[-1] != 1:
        raise ValueError(f"{name} must be contiguous, got strides {meta.strides}; .contiguous() it")


def _check_signal(meta: TensorMeta, least: int) -> None:
    if meta.dtype != torch.int32:
        raise TypeError(f"signal must be int32, got {meta.dtype}")
    if len(meta.shape) != 1 or meta.shape[0] < least:
        raise ValueError(
            f"signal must have shape ({least},) or more, a number for each group and {ROWS_OF_SIGNAL} rows, "
            f"got {tuple(meta.shape)}"
        )
    if meta.shape[0] > 1 and meta.strides != (1,):
        raise ValueError(f"signal must be contiguous, got strides {meta.strides}; .contiguous() it")


def _shape_text(meta: TensorMeta, matrix: str) -> str:
    return f"[{', '.join(('G' if len(meta.shape) == 3 else '') + matrix)}]"


def _columns_in_gaps(b_name: str, n: int, signature: _Signature) -> int:
    if signature.head_splits is None:
        return 0
    left, mid, right = signature.head_splits
    if n % (left + right):
        parts = PARTS_OF_B[signature.epilogue]
        raise ValueError(
            f"{b_name} must have a multiple of {parts * (left + right)} rows, the left and right columns of whole "
            f"heads, got {parts * n}"
        )
    return n // (left + right) * mid

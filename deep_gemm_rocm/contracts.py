"""Checks of arguments. Every bad input ends here, before anything is compiled, launched or written.

A check that fails raises one TypeError or ValueError that names the argument, what was expected, what came, and what to
do. Nearly all depend on the tensors' types, shapes and strides only and are made once for each combination of them, so
that a warm call is cheap.
"""

from __future__ import annotations

import functools
import numbers
from typing import Any, NamedTuple

import torch

from .layout import FP8, SCALE_BLOCK, ceil_div

ALIGNMENT = 16  # bytes that a lane loads at once

# Kernels address a tile with 32-bit offsets from its first row, and a tile has at most this many rows. They prefetch
# some K-blocks past the last one, which must not wrap around.
_TILE_ROWS = 256
_TILE_BYTES = 2**31 - 2**12

Pair = tuple[torch.Tensor, torch.Tensor]


class _Meta(NamedTuple):
    """What the checks that are made once depend on."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


class Gemm(NamedTuple):
    """Sizes of a GEMM: [m, k] with [n, k], for each of ``groups`` (1 where there are none)."""

    m: int
    n: int
    k: int
    groups: int


class _Checked(NamedTuple):
    gemm: Gemm
    input_extents: tuple[int, ...]
    out_extent: int


_INPUTS = ("a[0]", "a[1]", "b[0]", "b[1]")
_RECIPE = (1, SCALE_BLOCK, SCALE_BLOCK)  # rows of a, rows of b, and values along K that share a scale


def check_fp8_gemm_nt(a: Any, b: Any, out: Any, out_name: str) -> Gemm:
    """Checks the arguments of a dense FP8 GEMM, ``out = (a · sfa) · (b · sfb)ᵀ``; ``out`` may be None."""
    return _check("dense", a, b, out, out_name)


def check_m_grouped_fp8_gemm_nt(grouping: str, a: Any, b: Any, d: Any, layout: Any, layout_name: str) -> Gemm:
    """Checks the arguments of a grouped FP8 GEMM; ``grouping`` as in ``GemmConfig``."""
    if d is None:
        raise TypeError("d must be a torch.Tensor, got NoneType")
    return _check(grouping, a, b, d, "d", layout, layout_name)


def check_recipes(function: str, recipe: Any, recipe_a: Any, recipe_b: Any) -> None:
    """
    Raises:
        NotImplementedError: a recipe other than that of ``function``.
        TypeError: no recipe at all.
    """
    for name, value, supported in (
        ("recipe", recipe, _RECIPE),
        ("recipe_a", recipe_a, (_RECIPE[0], _RECIPE[2])),
        ("recipe_b", recipe_b, (_RECIPE[1], _RECIPE[2])),
    ):
        if value is not None and not isinstance(value, (tuple, list)):
            raise TypeError(f"{name} must be a tuple of ints, got {type(value).__name__}")
        if value is not None and tuple(value) != supported:
            raise NotImplementedError(f"{function} supports {name}={supported} only for now, got {value}")


def check_int(name: str, value: Any, least: int) -> int:
    """``value`` as an int.

    Raises:
        TypeError, ValueError: it is none, or less than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def _check(grouping: str, a: Any, b: Any, out: Any, out_name: str, *layout_and_name: Any) -> Gemm:
    inputs = (*_pair("a", a), *_pair("b", b), *layout_and_name[:1])
    names = (*_INPUTS, *layout_and_name[1:])
    metas = tuple(map(_meta, names, inputs))
    checked = _check_metas(grouping, names, metas, None if out is None else _meta(out_name, out), out_name)
    addresses = [tensor.data_ptr() for tensor in inputs]
    for name, address in (("a[0]", addresses[0]), ("b[0]", addresses[2])):
        if address % ALIGNMENT:
            raise ValueError(f"{name} must start at a multiple of {ALIGNMENT} bytes, got {address:#x}; .clone() it")
    if out is not None:
        begin = out.data_ptr()
        end = begin + checked.out_extent
        for name, address, extent in zip(names, addresses, checked.input_extents, strict=True):
            if begin < address + extent and address < end:
                raise ValueError(
                    f"{out_name} must not share memory with {name}, which is read while {out_name} is written"
                )
    return checked.gemm


@functools.lru_cache(maxsize=4096)
def _check_metas(
    grouping: str, names: tuple[str, ...], inputs: tuple[_Meta, ...], out: _Meta | None, out_name: str
) -> _Checked:
    a, sfa, b, sfb, *layouts = inputs
    *groups_of_a, m, k = _fp8_matrices("a[0]", a, grouped=grouping == "masked")
    *groups, n, k_of_b = _fp8_matrices("b[0]", b, grouped=grouping != "dense")
    if k != k_of_b:
        raise ValueError(
            f"a[0] and b[0] must agree in K, their last dimension, got {tuple(a.shape)} and {tuple(b.shape)}; "
            f"b is {_shape_text(b, 'NK')}, transpose and copy a {_shape_text(b, 'KN')} weight"
        )
    if groups_of_a and groups_of_a != groups:
        raise ValueError(
            f"a[0] and b[0] must agree in groups, their first dimension, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if groups == [0]:
        raise ValueError(f"b[0] must have at least one group, got shape {tuple(b.shape)}")
    if k % ALIGNMENT:
        raise ValueError(f"K must be a multiple of {ALIGNMENT}, got {k}; pad a[0] and b[0] with zeros")
    if k > 0:
        _aligned_rows("a[0]", a)
        _aligned_rows("b[0]", b)
    k_blocks = ceil_div(k, SCALE_BLOCK)
    _scales("a[1]", sfa, (*groups_of_a, m, k_blocks), f"one scale for each row of a[0] and {SCALE_BLOCK} of K")
    block = f"{SCALE_BLOCK} x {SCALE_BLOCK}"
    _scales("b[1]", sfb, (*groups, ceil_div(n, SCALE_BLOCK), k_blocks), f"one scale for each {block} of b[0]")
    for layout in layouts:
        _layout(names[-1], layout, *((m, "row of a[0]") if grouping == "contiguous" else (groups[0], "group of b[0]")))
    for name, meta in zip(names[1:], inputs[1:], strict=True):
        _same_device(name, meta, a)
    if out is not None:
        _output(out_name, out, (*groups_of_a, m, n))
        _same_device(out_name, out, a)
    extents = tuple(meta.extent for meta in inputs)
    return _Checked(Gemm(m, n, k, *(groups or [1])), extents, out.extent if out else 0)


def _pair(name: str, pair: Any) -> Pair:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        came = f"a {type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, (tuple, list)) else "")
        cast = "per_token_cast_to_fp8" if name == "a" else "per_block_cast_to_fp8"
        raise TypeError(f"{name} must be a pair (FP8 data, scales) as {cast} returns it, got {came}")
    return pair[0], pair[1]


def _meta(name: str, tensor: Any) -> _Meta:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a strided tensor, got layout {tensor.layout}; convert it with .to_dense()")
    if tensor.is_neg():
        raise ValueError(f"{name} must hold its own values, got a lazily negated view; .resolve_neg() it")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for this GEMM has no backward; .detach() it or call under torch.no_grad()"
        )
    return _Meta(tensor.dtype, tensor.shape, tensor.stride(), tensor.device)


def _shape_text(meta: _Meta, matrix: str) -> str:
    return f"[{', '.join(('G' if len(meta.shape) == 3 else '') + matrix)}]"


def _matrices(name: str, meta: _Meta, grouped: bool) -> None:
    if meta.device.type == "meta":
        raise ValueError(f"{name} must hold data, got a tensor on the meta device")
    if len(meta.shape) != 2 + grouped:
        expected = "one matrix for each group, three dimensions" if grouped else "a matrix"
        raise ValueError(f"{name} must be {expected}, got shape {tuple(meta.shape)}")
    rows, columns = meta.shape[-2:]
    tile_bytes = (min(rows - 1, _TILE_ROWS - 1) * meta.strides[-2] + columns) * meta.dtype.itemsize
    if max(meta.shape) >= 2**31 or tile_bytes > _TILE_BYTES:
        raise ValueError(
            f"{name} must have dimensions below 2^31 and {_TILE_ROWS} rows within 2 GiB, "
            f"got shape {tuple(meta.shape)} and strides {meta.strides}; .contiguous() it"
        )


def _fp8_matrices(name: str, meta: _Meta, grouped: bool) -> torch.Size:
    if meta.dtype != FP8:
        advice = ""
        if meta.dtype == torch.float8_e4m3fn:
            advice = "; gfx942 has another FP8 format, convert data and scales with convert_fp8_fn_to_fnuz"
        raise TypeError(f"{name} must be {FP8}, got {meta.dtype}{advice}")
    _matrices(name, meta, grouped)
    rows, k = meta.shape[-2:]
    stride, stride_k = meta.strides[-2:]
    if k > 1 and stride_k != 1:
        raise ValueError(
            f"{name} must be contiguous along K, its last dimension, got strides {meta.strides}; .contiguous() it"
        )
    if rows > 1 and stride < k:
        raise ValueError(f"rows of {name} must not overlap, got strides {meta.strides}; .contiguous() it")
    return meta.shape


def _aligned_rows(name: str, meta: _Meta) -> None:
    for unit, size, distance in zip(("rows", "groups"), meta.shape[-2::-1], meta.strides[-2::-1], strict=False):
        if size > 1 and distance % ALIGNMENT:
            raise ValueError(
                f"{unit} of {name} must be a multiple of {ALIGNMENT} bytes apart, got strides {meta.strides}; "
                ".contiguous() it"
            )


def _scales(name: str, meta: _Meta, shape: tuple[int, ...], meaning: str) -> None:
    if meta.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}, got {tuple(meta.shape)}")
    _matrices(name, meta, len(shape) == 3)


def _layout(name: str, meta: _Meta, size: int, meaning: str) -> None:
    if meta.dtype != torch.int32:
        raise TypeError(f"{name} must be int32, got {meta.dtype}")
    if meta.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), one number for each {meaning}, got {tuple(meta.shape)}")
    if meta.device.type == "meta":
        raise ValueError(f"{name} must hold data, got a tensor on the meta device")
    if size > 1 and meta.strides != (1,):
        raise ValueError(f"{name} must be contiguous, got strides {meta.strides}; .contiguous() it")


def _output(name: str, meta: _Meta, shape: tuple[int, ...]) -> None:
    if meta.dtype != torch.bfloat16:
        raise TypeError(f"{name} must be bfloat16, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(meta.shape)}")
    _matrices(name, meta, len(shape) == 3)
    if (shape[-1] > 1 and meta.strides[-1] != 1) or _overlaps(meta):
        raise ValueError(f"{name} must have contiguous rows that don't overlap, got strides {meta.strides}")


def _overlaps(meta: _Meta) -> bool:
    """Whether elements may share memory: a dimension's stride is within the reach of those with smaller ones."""
    reach = 1
    for stride, size in sorted(zip(meta.strides, meta.shape, strict=True)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _same_device(name: str, meta: _Meta, first: _Meta) -> None:
    if meta.device != first.device:
        raise ValueError(f"{name} must be on the device of a[0], {first.device}, got {meta.device}")

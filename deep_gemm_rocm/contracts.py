"""Checks of arguments. Every bad input ends here, before anything is compiled, launched or written.

A check that fails raises one TypeError or ValueError that names the argument, what was expected, what came, and what to
do. Nearly all depend on the tensors' types, shapes and strides only and are made once for each combination of them, so
that a warm call is cheap.
"""

from __future__ import annotations

import functools
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


class _Gemm(NamedTuple):
    m: int
    n: int
    k: int
    input_extents: tuple[int, int, int, int]
    out_extent: int


_INPUTS = ("a[0]", "a[1]", "b[0]", "b[1]")


def check_fp8_gemm_nt(a: Any, b: Any, out: Any, out_name: str) -> tuple[int, int, int]:
    """Checks the arguments of a dense FP8 GEMM, ``out = (a · sfa) · (b · sfb)ᵀ``; ``out`` may be None.

    Returns:
        M, N and K.
    """
    inputs = (*_pair("a", a), *_pair("b", b))
    metas = map(_meta, _INPUTS, inputs)
    gemm = _check_fp8_gemm_nt(*metas, None if out is None else _meta(out_name, out), out_name)
    addresses = [tensor.data_ptr() for tensor in inputs]
    for name, address in (("a[0]", addresses[0]), ("b[0]", addresses[2])):
        if address % ALIGNMENT:
            raise ValueError(f"{name} must start at a multiple of {ALIGNMENT} bytes, got {address:#x}; .clone() it")
    if out is not None:
        begin = out.data_ptr()
        end = begin + gemm.out_extent
        for name, address, extent in zip(_INPUTS, addresses, gemm.input_extents, strict=True):
            if begin < address + extent and address < end:
                raise ValueError(
                    f"{out_name} must not share memory with {name}, which is read while {out_name} is written"
                )
    return gemm[:3]


@functools.lru_cache(maxsize=4096)
def _check_fp8_gemm_nt(a: _Meta, sfa: _Meta, b: _Meta, sfb: _Meta, out: _Meta | None, out_name: str) -> _Gemm:
    m, k = _fp8_matrix("a[0]", a)
    n, k_of_b = _fp8_matrix("b[0]", b)
    if k != k_of_b:
        raise ValueError(
            f"a[0] and b[0] must agree in K, their second dimension, got {tuple(a.shape)} and {tuple(b.shape)}; "
            "b is [N, K], transpose and copy a [K, N] weight"
        )
    if k % ALIGNMENT:
        raise ValueError(f"K must be a multiple of {ALIGNMENT}, got {k}; pad a[0] and b[0] with zeros")
    for name, matrix in (("a[0]", a), ("b[0]", b)):
        if matrix.shape[0] > 1 and k > 0 and matrix.strides[0] % ALIGNMENT:
            raise ValueError(
                f"rows of {name} must be a multiple of {ALIGNMENT} bytes apart, got strides {matrix.strides}; "
                ".contiguous() it"
            )
    k_blocks = ceil_div(k, SCALE_BLOCK)
    _scales("a[1]", sfa, (m, k_blocks), f"one scale for each row of a[0] and {SCALE_BLOCK} of K")
    block = f"{SCALE_BLOCK} x {SCALE_BLOCK}"
    _scales("b[1]", sfb, (ceil_div(n, SCALE_BLOCK), k_blocks), f"one scale for each {block} of b[0]")
    for name, meta in zip(_INPUTS[1:], (sfa, b, sfb), strict=True):
        _same_device(name, meta, a)
    if out is not None:
        _output(out_name, out, (m, n))
        _same_device(out_name, out, a)
    return _Gemm(m, n, k, (a.extent, sfa.extent, b.extent, sfb.extent), out.extent if out else 0)


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
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for this GEMM has no backward; .detach() it or call under torch.no_grad()"
        )
    return _Meta(tensor.dtype, tensor.shape, tensor.stride(), tensor.device)


def _matrix(name: str, meta: _Meta) -> None:
    if meta.device.type == "meta":
        raise ValueError(f"{name} must hold data, got a tensor on the meta device")
    if len(meta.shape) != 2:
        raise ValueError(f"{name} must be a matrix, got shape {tuple(meta.shape)}")
    rows, columns = meta.shape
    itemsize = meta.dtype.itemsize
    tile_bytes = (min(rows - 1, _TILE_ROWS - 1) * meta.strides[0] + columns) * itemsize
    if max(rows, columns) >= 2**31 or tile_bytes > _TILE_BYTES:
        raise ValueError(
            f"{name} must have dimensions below 2^31 and {_TILE_ROWS} rows within 2 GiB, "
            f"got shape {tuple(meta.shape)} and strides {meta.strides}; .contiguous() it"
        )


def _fp8_matrix(name: str, meta: _Meta) -> tuple[int, int]:
    if meta.dtype != FP8:
        advice = ""
        if meta.dtype == torch.float8_e4m3fn:
            advice = "; gfx942 has another FP8 format, convert data and scales with convert_fp8_fn_to_fnuz"
        raise TypeError(f"{name} must be {FP8}, got {meta.dtype}{advice}")
    _matrix(name, meta)
    (rows, k), (stride, stride_k) = meta.shape, meta.strides
    if k > 1 and stride_k != 1:
        raise ValueError(
            f"{name} must be contiguous along K, its last dimension, got strides {meta.strides}; .contiguous() it"
        )
    if rows > 1 and stride < k:
        raise ValueError(f"rows of {name} must not overlap, got strides {meta.strides}; .contiguous() it")
    return rows, k


def _scales(name: str, meta: _Meta, shape: tuple[int, int], meaning: str) -> None:
    if meta.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}, got {tuple(meta.shape)}")
    _matrix(name, meta)


def _output(name: str, meta: _Meta, shape: tuple[int, int]) -> None:
    if meta.dtype != torch.bfloat16:
        raise TypeError(f"{name} must be bfloat16, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(meta.shape)}")
    _matrix(name, meta)
    (rows, columns), (stride, stride_n) = meta.shape, meta.strides
    if (columns > 1 and stride_n != 1) or (rows > 1 and stride < columns):
        raise ValueError(f"{name} must have contiguous rows that don't overlap, got strides {meta.strides}")


def _same_device(name: str, meta: _Meta, first: _Meta) -> None:
    if meta.device != first.device:
        raise ValueError(f"{name} must be on the device of a[0], {first.device}, got {meta.device}")

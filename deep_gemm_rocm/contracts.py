"""Checks of arguments. Every bad input ends here, before anything is compiled, launched or written.

A check that fails raises one TypeError or ValueError that names the argument, what was expected, what came, and what to
do.
"""

from __future__ import annotations

from typing import Any

import torch

from .layout import FP8, SCALE_BLOCK, ceil_div

ALIGNMENT = 16  # bytes that a lane loads at once

# Kernels address a tile with 32-bit offsets from its first row, and a tile has at most this many rows.
_TILE_ROWS = 256
_TILE_BYTES = 2**31

Pair = tuple[torch.Tensor, torch.Tensor]


def check_fp8_gemm_nt(a: Any, b: Any, out: Any, out_name: str) -> tuple[int, int, int]:
    """Checks the arguments of a dense FP8 GEMM, ``out = (a · sfa) · (b · sfb)ᵀ``; ``out`` may be None.

    Returns:
        M, N and K.
    """
    a_data, sfa = _pair("a", a)
    b_data, sfb = _pair("b", b)
    m, k = _fp8_matrix("a[0]", a_data)
    n, k_of_b = _fp8_matrix("b[0]", b_data)
    if k != k_of_b:
        raise ValueError(
            f"a[0] and b[0] must agree in K, their second dimension, got {_shape(a_data)} and {_shape(b_data)}; "
            "b is [N, K], transpose and copy a [K, N] weight"
        )
    if k % ALIGNMENT:
        raise ValueError(f"K must be a multiple of {ALIGNMENT}, got {k}; pad a[0] and b[0] with zeros")
    k_blocks = ceil_div(k, SCALE_BLOCK)
    _scales("a[1]", sfa, (m, k_blocks), f"one scale for each row of a[0] and {SCALE_BLOCK} of K")
    _scales(
        "b[1]", sfb, (ceil_div(n, SCALE_BLOCK), k_blocks), f"one scale for each {SCALE_BLOCK} x {SCALE_BLOCK} of b[0]"
    )
    inputs = {"a[0]": a_data, "a[1]": sfa, "b[0]": b_data, "b[1]": sfb}
    for name, tensor in inputs.items():
        _same_device(name, tensor, a_data)
    if out is not None:
        _output(out_name, out, (m, n), inputs)
    return m, n, k


def _pair(name: str, pair: Any) -> Pair:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        came = f"a {type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, (tuple, list)) else "")
        cast = "per_token_cast_to_fp8" if name == "a" else "per_block_cast_to_fp8"
        raise TypeError(f"{name} must be a pair (FP8 data, scales) as {cast} returns it, got {came}")
    return pair[0], pair[1]


def _tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a strided tensor, got layout {tensor.layout}; convert it with .to_dense()")
    if tensor.is_meta:
        raise ValueError(f"{name} must hold data, got a tensor on the meta device")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for this GEMM has no backward; .detach() it or call under torch.no_grad()"
        )


def _fp8_matrix(name: str, tensor: Any) -> tuple[int, int]:
    _tensor(name, tensor)
    if tensor.dtype != FP8:
        advice = ""
        if tensor.dtype == torch.float8_e4m3fn:
            advice = "; gfx942 has another FP8 format, convert data and scales with convert_fp8_fn_to_fnuz"
        raise TypeError(f"{name} must be {FP8}, got {tensor.dtype}{advice}")
    if tensor.dim() != 2:
        raise ValueError(f"{name} must be a matrix, got shape {_shape(tensor)}")
    rows, k = tensor.shape
    stride, stride_k = tensor.stride()
    if k > 1 and stride_k != 1:
        raise ValueError(
            f"{name} must be contiguous along K, its last dimension, got {_strides(tensor)}; .contiguous() it"
        )
    if tensor.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"{name} must start at a multiple of {ALIGNMENT} bytes, got {tensor.data_ptr():#x}; .clone() it"
        )
    if rows > 1 and k > 0:
        if stride < k:
            raise ValueError(f"rows of {name} must not overlap, got {_strides(tensor)}; .contiguous() it")
        # K itself is checked later, with an advice of its own.
        if stride % ALIGNMENT and not (stride == k and k % ALIGNMENT):
            raise ValueError(
                f"rows of {name} must be a multiple of {ALIGNMENT} bytes apart, got {_strides(tensor)}; "
                ".contiguous() it"
            )
    _addressable(name, tensor)
    return rows, k


def _scales(name: str, tensor: Any, shape: tuple[int, int], meaning: str) -> None:
    _tensor(name, tensor)
    if tensor.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {tensor.dtype}")
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}, got {_shape(tensor)}")
    _addressable(name, tensor)


def _output(name: str, out: Any, shape: tuple[int, int], inputs: dict[str, torch.Tensor]) -> None:
    _tensor(name, out)
    if out.dtype != torch.bfloat16:
        raise TypeError(f"{name} must be bfloat16, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {_shape(out)}")
    stride, stride_n = out.stride()
    if (shape[1] > 1 and stride_n != 1) or (shape[0] > 1 and stride < shape[1]):
        raise ValueError(f"{name} must have contiguous rows that don't overlap, got {_strides(out)}")
    _addressable(name, out)
    _same_device(name, out, inputs["a[0]"])
    begin, end = _extent(out)
    for input_name, tensor in inputs.items():
        input_begin, input_end = _extent(tensor)
        if begin < input_end and input_begin < end:
            raise ValueError(f"{name} must not share memory with {input_name}, which is read while {name} is written")


def _same_device(name: str, tensor: torch.Tensor, first: torch.Tensor) -> None:
    if tensor.device != first.device:
        raise ValueError(f"{name} must be on the device of a[0], {first.device}, got {tensor.device}")


def _addressable(name: str, tensor: torch.Tensor) -> None:
    rows, columns = tensor.shape
    row_bytes = tensor.stride(0) * tensor.element_size()
    tile_bytes = min(rows - 1, _TILE_ROWS - 1) * row_bytes + columns * tensor.element_size()
    if max(rows, columns) >= 2**31 or tile_bytes > _TILE_BYTES:
        raise ValueError(
            f"{name} must have dimensions below 2^31 and {_TILE_ROWS} rows within 2 GiB, "
            f"got shape {_shape(tensor)} and {_strides(tensor)}; .contiguous() it"
        )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First address of the tensor's elements and the one after the last."""
    if tensor.numel() == 0:
        return 0, 0
    begin = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _strides(tensor: torch.Tensor) -> str:
    return f"strides {tensor.stride()}"

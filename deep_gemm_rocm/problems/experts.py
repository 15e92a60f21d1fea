"""Checks of the arguments of ``fused_moe``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..checks import check_positive
from .four_bits import FOUR_BIT_DTYPES, INT4_DTYPES, check_int4_fits, check_scales_of_groups, values_of_element
from .gemm import check_bias
from .gemm_kind import GROUP
from .layout import FP8, SCALE_BLOCK, Pair, ceil_div
from .matrices import TILE_BYTES, TILE_ROWS, check_extent, meta_of
from .routing import MAX_EXPERTS
from .tensors import check_data, check_form, check_not_shared, check_one_device

MAX_TOKENS = 2**16
MAX_TOP_K = 16
_ALIGNMENT = 16  # bytes that a lane loads at once
_MOST_BYTES_OF_PART = 2**30  # from gate_up's first row to its middle


class Experts(NamedTuple):
    """A layer of experts.

    Attributes:
        scaling: ``blocks`` of 128 x 128 elements of an FP8 weight, ``rows``, ``groups`` along K of four bits, or
            ``none`` for bf16.
        is_fp8: whether activations are FP8 when they are multiplied, not bf16.
        clamps: ``alpha`` and ``limit`` of the activation, see ``fused_moe``.
        takes_any_tokens: whether ``x`` and ``out`` may have any number of tokens up to ``MAX_TOKENS``.
    """

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    scaling: str
    is_fp8: bool
    clamps: tuple[float | None, float | None] = (None, None)
    takes_any_tokens: bool = True

    @property
    def is_clamped(self) -> bool:
        return self.clamps != (None, None)


def check_experts(
    x: Any,
    gate_up: Any,
    down: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: Any,
    expert_map: Any,
    out: Any,
    clamps: tuple[Any, Any] = (None, None),
    gate_up_bias: Any = None,
    down_bias: Any = None,
) -> Experts:
    """
    Raises:
        TypeError, ValueError: an argument is not as ``fused_moe`` documents it.
    """
    if activation != "silu_and_mul":
        raise ValueError(f"activation must be silu_and_mul, got {activation!r}")
    tensors = {**_named("x", x), **_named("gate_up", gate_up), **_named("down", down)}
    tokens, hidden, intermediate, experts = sizes = _check_layers(tensors)
    scaling = _check_scales(tensors, sizes) if "gate_up[1]" in tensors else "none"
    for name, value in zip(("alpha", "limit"), clamps, strict=True):
        if value is not None:
            check_positive(name, value)
    _check_biases(tensors, sizes, gate_up_bias, down_bias)
    top_k = _check_routing(topk_weights, topk_ids, tokens)
    tensors |= {"topk_weights": topk_weights, "topk_ids": topk_ids}
    if expert_map is not None:
        check_form("expert_map", expert_map, torch.int32, (None,))
        if len(expert_map) == 0:
            raise ValueError("expert_map must have an element for each expert of the model, got none")
        tensors["expert_map"] = expert_map
    if out is not None:
        check_form("out", out, torch.bfloat16, (tokens, hidden))
        _check_rows("out", out)
        check_not_shared("out", out, tensors)
        tensors["out"] = out
    check_one_device(tensors)
    is_fp8 = scaling in ("blocks", "rows") or "x[1]" in tensors
    data = next(iter(tensors.values()))
    of_rows = (data, tensors.get("x[1]"), out)
    longest = max(tensor.stride(0) * tensor.itemsize for tensor in of_rows if tensor is not None)
    takes_any = longest * MAX_TOKENS <= min(TILE_BYTES, 2 * _MOST_BYTES_OF_PART)
    return Experts(tokens, hidden, intermediate, experts, top_k, scaling, is_fp8, clamps, takes_any)


def _check_layers(tensors: dict[str, torch.Tensor]) -> tuple[int, int, int, int]:
    """Checks the data of x and both weights. Returns tokens, hidden, intermediate and experts."""
    is_pair = "gate_up[1]" in tensors
    if is_pair != ("down[1]" in tensors):
        forms = ("a pair" if f"{name}[1]" in tensors else type(tensors[name]).__name__ for name in ("gate_up", "down"))
        raise TypeError(
            "gate_up and down must both be pairs (FP8 or four-bit data, scales), or both bf16 tensors, got "
            + " and ".join(forms)
        )
    if "x[1]" in tensors and not is_pair:
        raise TypeError("x must be a bf16 tensor for bf16 weights, got a pair")
    data = [name for name in tensors if not name.endswith("[1]")]
    x_name, gate_up_name, down_name = data
    check_data(gate_up_name, tensors[gate_up_name])
    dtype = tensors[gate_up_name].dtype
    has_four_bits = is_pair and dtype in FOUR_BIT_DTYPES
    if not has_four_bits:
        dtype = FP8 if is_pair else torch.bfloat16
    values = values_of_element(dtype) if has_four_bits else 1
    check_form(x_name, tensors[x_name], FP8 if "x[1]" in tensors else torch.bfloat16, (None, None))
    tokens, hidden = tensors[x_name].shape
    check_form(gate_up_name, tensors[gate_up_name], dtype, (None, None, hidden // values))
    experts, rows, _ = tensors[gate_up_name].shape
    intermediate = rows // 2
    unit = GROUP if has_four_bits else _ALIGNMENT // dtype.itemsize
    if rows % 2 or intermediate % unit or intermediate == 0:
        raise ValueError(f"{gate_up_name} must have twice a multiple of {unit} rows, gate before up, got {rows}")
    if hidden % unit or hidden == 0:
        raise ValueError(f"{x_name} must have a multiple of {unit} columns, got {hidden}; pad x and gate_up with zeros")
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"{gate_up_name} must have 1 to {MAX_EXPERTS} experts, got {experts}")
    if tokens > MAX_TOKENS:
        raise ValueError(f"{x_name} must have at most {MAX_TOKENS} rows, got {tokens}; call it in parts")
    check_form(down_name, tensors[down_name], dtype, (experts, hidden, intermediate // values))
    for name in data:
        _check_rows(name, tensors[name])
    return tokens, hidden, intermediate, experts


def _check_biases(
    tensors: dict[str, torch.Tensor], sizes: tuple[int, int, int, int], gate_up_bias: Any, down_bias: Any
) -> None:
    """Checks the biases that there are, and adds them to ``tensors``."""
    _, hidden, intermediate, experts = sizes
    for name, bias, rows in (("gate_up", gate_up_bias, 2 * intermediate), ("down", down_bias, hidden)):
        if bias is not None:
            check_bias(f"{name}_bias", meta_of(f"{name}_bias", bias), (experts, rows), name)
            tensors[f"{name}_bias"] = bias


def _check_routing(topk_weights: Any, topk_ids: Any, tokens: int) -> int:
    """Returns the number of experts of a token."""
    check_form("topk_ids", topk_ids, torch.int32, (tokens, None))
    top_k: int = topk_ids.shape[1]
    if not 1 <= top_k <= MAX_TOP_K:
        raise ValueError(f"topk_ids must have 1 to {MAX_TOP_K} columns, got {top_k}")
    check_form("topk_weights", topk_weights, torch.float32, (tokens, top_k))
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}; .contiguous() it")
    return top_k


def _named(name: str, operand: torch.Tensor | Pair) -> dict[str, torch.Tensor]:
    """A tensor, or a pair's two, by their names."""
    if not isinstance(operand, (tuple, list)):
        return {name: operand}
    if len(operand) != 2:
        raise TypeError(
            f"{name} must be a tensor or a pair (FP8 or four-bit data, scales), got a {type(operand).__name__} of "
            f"{len(operand)}"
        )
    return {f"{name}[0]": operand[0], f"{name}[1]": operand[1]}


def _check_rows(name: str, tensor: torch.Tensor) -> None:
    """Checks that lanes can load 16 bytes at a time, and kernels reach with 32 bits what they need."""
    if tensor.data_ptr() % _ALIGNMENT if not tensor.is_meta else False:
        raise ValueError(
            f"{name} must start at a multiple of {_ALIGNMENT} bytes, got {tensor.data_ptr():#x}; .clone() it"
        )
    for dimension in range(tensor.dim() - 1):
        distance = tensor.stride(dimension) * tensor.itemsize
        if tensor.shape[dimension] > 1 and distance % _ALIGNMENT:
            raise ValueError(
                f"rows of {name} must be a multiple of {_ALIGNMENT} bytes apart, got strides {tensor.stride()}; "
                ".contiguous() it"
            )
    row_bytes = tensor.stride(-2) * tensor.itemsize
    rows = tensor.shape[-2]
    if tensor.dim() == 2 and rows * row_bytes > TILE_BYTES:
        raise ValueError(f"{name} must take less than 2 GiB, got {rows} rows of {row_bytes} bytes; call it in parts")
    if min(rows, TILE_ROWS) * row_bytes > TILE_BYTES or rows // 2 * row_bytes > _MOST_BYTES_OF_PART:
        raise ValueError(
            f"an expert of {name} must take less than 2 GiB, got strides {tensor.stride()}; .contiguous() it"
        )


def _check_scales(tensors: dict[str, torch.Tensor], sizes: tuple[int, int, int, int]) -> str:
    """Checks the scales, and returns which elements share them."""
    tokens, hidden, intermediate, experts = sizes
    if tensors["gate_up[0]"].dtype in FOUR_BIT_DTYPES:
        for name in ("gate_up", "down"):
            data, scales = (meta_of(part, tensors[part]) for part in (f"{name}[0]", f"{name}[1]"))
            check_scales_of_groups(name, data, scales)
            if data.dtype in INT4_DTYPES:
                check_int4_fits(f"{name}[0]", data, is_a_fp8="x[1]" in tensors)
        if "x[1]" in tensors:
            _check_fp32("x[1]", tensors["x[1]"], (tokens, ceil_div(hidden, SCALE_BLOCK)))
        return "groups"
    weights = {"gate_up[1]": (2 * intermediate, hidden), "down[1]": (hidden, intermediate)}
    of_blocks: dict[str, tuple[int, ...]] = {
        name: (experts, *(ceil_div(size, SCALE_BLOCK) for size in shape)) for name, shape in weights.items()
    }
    of_rows: dict[str, tuple[int, ...]] = {name: (experts, rows, 1) for name, (rows, _) in weights.items()}
    of_blocks["x[1]"], of_rows["x[1]"] = (tokens, ceil_div(hidden, SCALE_BLOCK)), (tokens, 1)
    first = tensors["gate_up[1]"]
    check_data("gate_up[1]", first)
    has_rows = tuple(first.shape) == of_rows["gate_up[1]"]
    for name, shape in (of_rows if has_rows else of_blocks).items():
        if name not in tensors:
            continue
        other = f", or {of_rows[name]} for a scale of each row" if name == "gate_up[1]" else ""
        _check_fp32(name, tensors[name], shape, other)
    return "rows" if has_rows else "blocks"


def _check_fp32(name: str, scales: torch.Tensor, shape: tuple[int, ...], other: str = "") -> None:
    check_data(name, scales)
    if scales.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {scales.dtype}")
    if tuple(scales.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}{other}, got {tuple(scales.shape)}")
    of = "" if scales.dim() == 2 else "an expert of "
    check_extent(f"{of}{name}", shape, scales.stride(), scales.itemsize)

"""Checks of what all kinds of attention take: heads of queries, keys and values, scale, cap, sinks and window."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from ..checks import check_bool, check_int, one_of
from .layout import FP8, OCP_DTYPES, TYPES
from .sequences import MAX_TOKENS
from .tensors import check_aligned, check_data, check_form, check_last_dimension, check_not_shared, check_one_device

# Pairs of the head dim of q and k, and that of v.
WIDTHS = ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 192), (256, 256), (192, 128))
_DTYPES = (torch.bfloat16, torch.float16, FP8)
_FP8_OUTPUTS = (torch.bfloat16, torch.float16)
BLOCK_TOKENS = 256  # kernels address this many tokens with 32-bit offsets
BLOCK_BYTES = 2**31 - 2**12
_RUN_TOKENS = 16  # that kernels load from one page; kRunTokens in sequence_tokens.h
# Kernels compute tanh with an error of some 1e-7, which the cap multiplies.
_LEAST_SOFTCAP, _LARGEST_SOFTCAP = 2.0**-64, 2.0**12
_LEAST_SOFTMAX_SCALE = 2.0**-126  # smaller ones may be 0 in fp32
_MAX_SOFTMAX_SCALE = 2.0**127  # kernels multiply it with log2(e), in fp32


def check_heads(tensors: dict[str, Any], packed: bool, dtypes: tuple[torch.dtype, ...] = _DTYPES) -> None:
    """Checks that all tensors are heads."""
    for name, tensor in tensors.items():
        check_data(name, tensor)
        if tensor.dtype not in dtypes:
            advice = "; convert it with convert_fp8_fn_to_fnuz" if FP8 in dtypes and tensor.dtype in OCP_DTYPES else ""
            raise TypeError(f"{name} must be {one_of(dtypes)}, got {tensor.dtype}{advice}")
        check_heads_shape(name, tensor, packed)
        check_aligned(name, tensor)


def check_keys(
    name: str, keys: Any, dtype_of_q: torch.dtype, *, packed: bool = False, k: tuple[str, torch.Tensor] | None = None
) -> None:
    """Checks keys on their own, of q's dtype or in FP8 for q in bf16; or values, of the dtype of the keys ``k``."""
    check_data(name, keys)
    allowed = (dtype_of_q, FP8) if dtype_of_q == torch.bfloat16 else (dtype_of_q,)
    expected = f"be {one_of(allowed)} for q in {one_of((dtype_of_q,))}"
    if k is not None:
        allowed, expected = (k[1].dtype,), f"have the dtype of {k[0]}, {one_of((k[1].dtype,))}"
    if keys.dtype not in allowed:
        advice = "; convert it with convert_fp8_fn_to_fnuz" if FP8 in allowed and keys.dtype in OCP_DTYPES else ""
        raise TypeError(f"{name} must {expected}, got {keys.dtype}{advice}")
    check_heads_shape(name, keys, packed)
    check_aligned(name, keys)


def check_heads_shape(name: str, tensor: torch.Tensor, packed: bool) -> None:
    dims = "[total, heads, head dim]" if packed else "[batch, tokens, heads, head dim]"
    if tensor.dim() != (3 if packed else 4):
        raise ValueError(f"{name} must be {dims}, got shape {tuple(tensor.shape)}")
    check_last_dimension(name, tensor)
    if max(tensor.shape) > MAX_TOKENS:
        raise ValueError(f"{name} must have dimensions of up to {MAX_TOKENS}, got shape {tuple(tensor.shape)}")
    if not fits_blocks(tensor, min(tensor.shape[-3], BLOCK_TOKENS)):
        raise ValueError(
            f"{name} must have {BLOCK_TOKENS} tokens within 2 GiB, got strides {tensor.stride()}; .contiguous() it"
        )


def fits_blocks(tensor: torch.Tensor, tokens: int) -> bool:
    """Whether kernels can address so many of its tokens with 32-bit offsets."""
    return tokens * tensor.stride(-3) * tensor.element_size() <= BLOCK_BYTES


def check_pages_of_runs(name: str, cache: torch.Tensor) -> None:
    """Checks that runs of tokens are in one page, and that kernels can address a page with 32-bit offsets.

    Raises:
        ValueError: they aren't, or kernels can't.
    """
    page_size = cache.shape[1]
    if page_size == 0 or page_size % _RUN_TOKENS:
        raise ValueError(f"a block of {name} must have a multiple of {_RUN_TOKENS} tokens, got {page_size}")
    if not fits_blocks(cache, page_size):
        raise ValueError(
            f"a block of {name} must be within 2 GiB, got {page_size} tokens with strides {cache.stride()}; "
            ".contiguous() it"
        )


def check_widths(head_dim: int, value_dim: int, allowed: tuple[tuple[int, int], ...]) -> None:
    """Checks that there are kernels for heads of these widths."""
    if (head_dim, value_dim) not in allowed:
        known = ", ".join(f"{head}/{value}" for head, value in allowed)
        raise ValueError(f"head dims of q and k / of v must be one of {known}, got {head_dim}/{value_dim}")


def check_groups(heads: int, kv_heads: int) -> None:
    """Checks that heads of q divide evenly among those of k and v."""
    if heads == 0 or kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"heads of q must be a multiple of those of k and v, got {heads} and {kv_heads}")


def check_softmax_scale(softmax_scale: Any, head_dim: int) -> float:
    """Returns the checked scale; 1/sqrt(head_dim) for None."""
    if softmax_scale is None:
        return 1 / math.sqrt(head_dim)
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, numbers.Real):
        raise TypeError(f"softmax_scale must be a number, got {type(softmax_scale).__name__}")
    # Compares softmax_scale before it becomes a float, since an int may be too large for one. `not <` also catches NaN.
    if softmax_scale < _LEAST_SOFTMAX_SCALE or not softmax_scale < _MAX_SOFTMAX_SCALE:
        raise ValueError(
            f"softmax_scale must be positive, from {_LEAST_SOFTMAX_SCALE:g} to {_MAX_SOFTMAX_SCALE:g}, got "
            f"{softmax_scale}; negate q for a negative one"
        )
    return float(softmax_scale)


def check_softcap(softcap: Any) -> float:
    """Returns the checked cap; 0 for none."""
    if isinstance(softcap, bool) or not isinstance(softcap, numbers.Real):
        raise TypeError(f"softcap must be a number, got {type(softcap).__name__}")
    if softcap != 0 and (softcap < _LEAST_SOFTCAP or not softcap <= _LARGEST_SOFTCAP):  # the negation catches NaN
        raise ValueError(
            f"softcap must be 0 for none, or from {_LEAST_SOFTCAP:g} to {_LARGEST_SOFTCAP:g}, got {softcap}"
        )
    return float(softcap)


def check_sink(attn_sink: Any, heads: int, tensors: dict[str, Any]) -> None:
    """Checks the sinks, which may be None, and adds them to ``tensors``."""
    if attn_sink is not None:
        check_form("attn_sink", attn_sink, torch.float32, (heads,))
        tensors["attn_sink"] = attn_sink


def check_window(causal: Any, window: Any) -> tuple[int, int]:
    """Returns how many keys a query sees on its left and on its right, negative for all."""
    check_bool("causal", causal)
    if window is None:
        window = (-1, -1)
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window must be a pair of ints (left, right), got {window!r}")
    left, right = (check_int(f"window[{side}]", keys, -1) for side, keys in enumerate(window))
    return left, 0 if causal else right


def seen_keys(window: tuple[int, int], unlimited: int) -> tuple[int, int]:
    """How many keys a query sees of a window as ``check_window`` returns it, ``unlimited`` for all."""
    left, right = window
    return unlimited if left < 0 else min(left, unlimited), unlimited if right < 0 else min(right, unlimited)


def check_output(
    out: Any, shape: tuple[int, ...], tensors: dict[str, torch.Tensor], dtypes: tuple[torch.dtype, ...] = ()
) -> str:
    """Checks ``out``, which may be None, and that it and ``tensors`` are on one device; returns the output's type.

    Args:
        dtypes: those that the output may have; by default those for the dtype of q.
    """
    dtype = tensors["q"].dtype
    allowed = dtypes or (_FP8_OUTPUTS if dtype == FP8 else (dtype,))
    if out is None:
        check_one_device(tensors)
        return TYPES[allowed[0]]
    check_data("out", out)
    if out.dtype not in allowed:
        raise TypeError(f"out must be {one_of(allowed)}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    check_heads_shape("out", out, packed=len(shape) == 3)
    check_aligned("out", out)
    check_one_device({**tensors, "out": out})
    check_not_shared("out", out, tensors)
    return TYPES[out.dtype]

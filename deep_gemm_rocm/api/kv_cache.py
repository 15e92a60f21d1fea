"""Writing a paged cache of keys and values."""

from __future__ import annotations

from typing import Any, cast

import torch

from ..checks import is_traced, one_of
from ..launch.kv_cache import append_kv_launch
from ..launch.repeated import Described, launches_of_rows
from ..problems.descales import are_of_tokens, check_token_descale
from ..problems.layout import FP8, TYPES
from ..problems.sequences import check_slots
from ..problems.tensors import (
    check_aligned,
    check_data,
    check_form,
    check_last_dimension,
    check_not_shared,
    check_one_device,
)

_INPUTS = (torch.bfloat16, torch.float16)
_UNIT = 16  # elements that a width is a multiple of
_MOST_SLOTS = 2**31 - 1
_MAX_TOKENS = 2**22
_WIDEST_WITH_FACTOR = 512  # what a wave loads at once


@launches_of_rows("k", "v", "slots")
def append_kv_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
) -> Described[None]:
    """Writes keys and values of tokens to a paged cache as ``flash_attention_decode`` takes it.

    In an FP8 cache a value is divided by its factor and rounded to nearest. What exceeds 240, the largest number,
    becomes 240; a NaN stays one. Factors of tokens are written: the largest magnitude of the token's head divided by
    240, at least 2^-126. If one of its values is a NaN or an infinity, all of them read as NaN.

    Args:
        k: bf16 or f16 [tokens, Hk, D], up to 2^22 tokens.
        v: of the same dtype, [tokens, Hk, Dv].
        k_cache: of the same dtype, or float8_e4m3fnuz, [blocks, block_size, Hk, D], written in place.
        v_cache: of the dtype of ``k_cache``, [blocks, block_size, Hk, Dv], written in place.
        slots: int32 or int64 [tokens], contiguous: block · block_size + offset. A token whose slot is negative, or not
            in the cache, is not written. Slots must be different.
        k_descale, v_descale: factors of FP8 values, fp32: given ones, positive, [1] for all, or [Hk] for each head,
            contiguous; or of tokens, both [blocks, block_size, Hk], of any strides, written in place; 1 if None, and
            None for other caches.

    D and Dv are positive multiples of 16, with factors of tokens up to 512. The last dimension of all other tensors is
    contiguous. Their other strides are any multiples of 16 bytes. What is written shares no memory with any other
    argument. The two caches may lie between each other, like halves of a [blocks, 2, block_size, Hk, D], if their
    strides are equal.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        torch.ops.deep_gemm_rocm.append_kv_cache(k, v, k_cache, v_cache, slots, k_descale, v_descale)
        return None, None
    _check_tokens("k", k, None)
    _check_tokens("v", v, k)
    tokens = len(k)
    if tokens > _MAX_TOKENS:
        raise ValueError(f"k must have up to {_MAX_TOKENS} tokens, got {tokens}")
    _check_cache("k_cache", k_cache, k, (k.dtype, FP8), None)
    _check_cache("v_cache", v_cache, v, (k_cache.dtype,), k_cache)
    check_slots(slots, tokens)
    tensors = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": slots}
    descales = {"k_descale": k_descale, "v_descale": v_descale}
    of_tokens = are_of_tokens(k_descale, v_descale)
    if of_tokens and max(k.shape[2], v.shape[2]) > _WIDEST_WITH_FACTOR:
        raise ValueError(
            f"k and v must have up to {_WIDEST_WITH_FACTOR} elements with factors of tokens, got {k.shape[2]} and "
            f"{v.shape[2]}"
        )
    for name, descale in descales.items():
        if of_tokens or descale is not None:
            _check_descale(name, descale, k_cache, of_tokens)
            tensors[name] = cast(torch.Tensor, descale)
    check_one_device(tensors)
    for name in ("k_cache", "v_cache", *(descales if of_tokens else ())):
        check_not_shared(name, tensors[name], tensors)
    if tokens == 0 or k_cache.numel() == 0:
        return None, None
    types = TYPES[k.dtype], TYPES[k_cache.dtype]
    return None, append_kv_launch(k, v, k_cache, v_cache, slots, k_descale, v_descale, *types, of_tokens)


def _check_tokens(name: str, tensor: Any, k: torch.Tensor | None) -> None:
    check_data(name, tensor)
    allowed = _INPUTS if k is None else (k.dtype,)
    if tensor.dtype not in allowed:
        raise TypeError(f"{name} must be {one_of(allowed)}, got {tensor.dtype}")
    expected = "(tokens, heads" if k is None else f"({k.shape[0]}, {k.shape[1]}"
    if tensor.dim() != 3 or (k is not None and tensor.shape[:2] != k.shape[:2]) or not _is_width(tensor.shape[2]):
        raise ValueError(
            f"{name} must have shape {expected}, a positive multiple of {_UNIT}), got {tuple(tensor.shape)}"
        )
    _check_strides(name, tensor)


def _is_width(width: int) -> bool:
    return width > 0 and width % _UNIT == 0


def _check_cache(
    name: str, cache: Any, tokens: torch.Tensor, dtypes: tuple[torch.dtype, ...], k_cache: torch.Tensor | None
) -> None:
    check_data(name, cache)
    if cache.dtype not in dtypes:
        raise TypeError(f"{name} must be {one_of(dtypes)}, got {cache.dtype}")
    if cache.dim() != 4 or cache.shape[2:] != tokens.shape[1:]:
        raise ValueError(
            f"{name} must have shape (blocks, block_size, {tokens.shape[1]}, {tokens.shape[2]}), got "
            f"{tuple(cache.shape)}"
        )
    if k_cache is not None and cache.shape[:2] != k_cache.shape[:2]:
        raise ValueError(
            f"{name} must have the blocks of k_cache, {tuple(k_cache.shape[:2])}, got {tuple(cache.shape)}"
        )
    if cache.shape[0] * cache.shape[1] > _MOST_SLOTS:
        raise ValueError(f"{name} must have up to {_MOST_SLOTS} tokens, got {tuple(cache.shape)}")
    _check_strides(name, cache)


def _check_descale(name: str, descale: Any, k_cache: torch.Tensor, of_tokens: bool) -> None:
    check_data(name, descale)
    if k_cache.dtype != FP8:
        raise ValueError(f"{name} must be None, for the cache is {k_cache.dtype} and has no scales")
    if of_tokens:
        check_token_descale(name, descale, k_cache)
    else:
        check_form(name, descale, torch.float32, (1,) if descale.numel() == 1 else (k_cache.shape[2],))


def _check_strides(name: str, tensor: torch.Tensor) -> None:
    check_last_dimension(name, tensor)
    check_aligned(name, tensor)

"""Checks of descale factors: what FP8 queries, keys and values are multiplied with."""

from __future__ import annotations

from typing import Any

import torch

from .heads import BLOCK_BYTES, BLOCK_TOKENS
from .layout import FP8, SCALE_BLOCK, ceil_div
from .tensors import check_data


def layout_of_keys(q: torch.Tensor, k: torch.Tensor, of_tokens: bool) -> str:
    """The layout of keys, see AttentionConfig. Only FP8 keys for bf16 queries may have factors of tokens."""
    if k.dtype == q.dtype:
        return "plain"
    return "e4m3_tokens" if of_tokens else "e4m3"


def check_descale(
    name: str, descale: Any, of: str, tensor: torch.Tensor, batch: int, packed: bool, other_forms: tuple[str, ...] = ()
) -> torch.Tensor | None:
    """Returns the checked factors, expanded to [batch, heads, blocks]; None if there are none.

    Args:
        other_forms: those that ``descale`` might have had instead, for the error message.
    """
    heads = tensor.shape[-2]
    if not _has_descale(name, descale, of, tensor.dtype):
        return None
    expanded = _of_whole_heads(descale, batch, heads)
    if expanded is not None:
        return expanded
    blocks = ceil_div(tensor.shape[-3], SCALE_BLOCK)
    has_blocks = descale.dim() == 3 and descale.shape[:2] == (batch, heads)
    if has_blocks and (descale.shape[2] == blocks or (packed and descale.shape[2] > 0)):
        return descale
    expected = "blocks of the longest sequence" if packed else str(blocks)
    of_blocks = f"({batch}, {heads}, {expected}), one for each {SCALE_BLOCK} tokens as well"
    may_be_of_tokens = packed and bool(other_forms) and len(tensor) == batch > 1  # [batch, heads] is refused then
    of_sequences = (batch, heads, 1) if may_be_of_tokens else (batch, heads)
    raise _wrong_form(name, descale, of_sequences, (of_blocks, *other_forms))


def check_head_descale(
    name: str, descale: Any, of: str, dtype: torch.dtype, batch: int, heads: int, other_forms: tuple[str, ...] = ()
) -> torch.Tensor | None:
    """``check_descale`` for factors of heads; returns them expanded to [batch, heads, 1], None if there are none."""
    if not _has_descale(name, descale, of, dtype):
        return None
    expanded = _of_whole_heads(descale, batch, heads)
    if expanded is None:
        raise _wrong_form(name, descale, (batch, heads), other_forms)
    return expanded


def _has_descale(name: str, descale: Any, of: str, dtype: torch.dtype) -> bool:
    if descale is None:
        if dtype == FP8:
            raise ValueError(f"{name} must be given for {of} of float8_e4m3fnuz: what its values are multiplied with")
        return False
    if dtype != FP8:
        raise ValueError(f"{name} must be None, for {of} is {dtype} and has no scales")
    check_data(name, descale)
    if descale.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {descale.dtype}")
    return True


def _of_whole_heads(descale: torch.Tensor, batch: int, heads: int) -> torch.Tensor | None:
    """Expands factors of whole heads to [batch, heads, 1]; returns None for other factors.

    There may be one for the whole tensor, one for each head, or one for each sequence and head.
    """
    if descale.numel() == 1 and descale.dim() < 2:
        return descale.as_strided((batch, heads, 1), (0, 0, 0))
    if descale.shape == (heads,):
        return descale.as_strided((batch, heads, 1), (0, *descale.stride(), 0))
    if descale.shape == (batch, heads):
        return descale.as_strided((batch, heads, 1), (*descale.stride(), 0))
    return None


def _wrong_form(
    name: str, descale: torch.Tensor, of_sequences: tuple[int, ...], other_forms: tuple[str, ...]
) -> ValueError:
    *forms, last = (
        "(1,), one factor for all",
        f"({of_sequences[1]},), one for each head",
        f"{of_sequences}, one for each sequence and head",
        *other_forms,
    )
    return ValueError(f"{name} must have shape {'; '.join(forms)}; or {last}; got {tuple(descale.shape)}")


def check_token_descale(name: str, descale: Any, keys: torch.Tensor, *, of_cache: bool = True) -> torch.Tensor:
    """Checks factors of FP8 tokens: one for each token and head of ``keys``, which may be values.

    They have the shape of ``keys`` without the last dimension, [blocks, block_size, heads] for a cache. Those of packed
    tokens may be [1, tokens, heads], too.

    Args:
        of_cache: whether ``keys`` are in pages.

    Returns:
        the factors as [blocks, heads, block_size]; those of packed tokens as [1, heads, tokens].
    """
    check_data(name, descale)
    if descale.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {descale.dtype}")
    shape = tuple(keys.shape[:-1])
    if len(shape) == 2 and descale.shape == (1, *shape):
        descale = descale[0]
    if descale.shape != shape:
        if of_cache:
            expected, condition = shape, "k_descale or v_descale has 3 dimensions"
        else:  # other factors may have as many dimensions
            expected, condition = _shape_of_tokens(keys), "the other one has factors of tokens"
        raise ValueError(
            f"{name} must have shape {expected}, a factor for each token and head, if {condition}, got "
            f"{tuple(descale.shape)}"
        )
    tokens = shape[-2] if of_cache else min(shape[-2], BLOCK_TOKENS)
    if tokens * descale.stride(-2) * descale.element_size() > BLOCK_BYTES:
        raise ValueError(
            f"{name} must have {tokens} tokens within 2 GiB, got strides {descale.stride()}; .contiguous() it"
        )
    blocks = descale.as_strided((1, *shape), (0, *descale.stride())) if descale.dim() == 2 else descale
    return blocks.transpose(1, 2)


def are_of_tokens(*descales: Any) -> bool:
    """Whether the factors of keys or of values have the shape of factors of tokens of a cache."""
    return any(isinstance(descale, torch.Tensor) and descale.dim() == 3 for descale in descales)


def have_shape_of_tokens(k: torch.Tensor, batch: int, *descales: Any) -> bool:
    """``are_of_tokens`` for keys that aren't in pages.

    Factors of a single token have the same shape as those of its sequence, and are taken for these.
    """
    shape, heads = k.shape[:-1], (batch, k.shape[-2])
    of_tokens = {shape, (1, *shape)} - {heads, (*heads, 1)}
    return any(isinstance(descale, torch.Tensor) and descale.shape in of_tokens for descale in descales)


def check_tokens_or_sequences(k: torch.Tensor, batch: int, descales: dict[str, Any]) -> None:
    """Checks that the shape of factors for packed keys ``k`` says whether they are of tokens or of sequences."""
    tokens, heads = k.shape[:-1]
    for name, descale in descales.items():
        if tokens == batch > 1 and isinstance(descale, torch.Tensor) and descale.shape == (tokens, heads):
            raise ValueError(
                f"{name} must have shape (1, {tokens}, {heads}), one factor for each token and head, or "
                f"({batch}, {heads}, 1), one for each sequence and head, as k has as many tokens as sequences; got "
                f"{tuple(descale.shape)}"
            )


def _shape_of_tokens(k: torch.Tensor) -> tuple[int, ...]:
    """The shape of factors of tokens; for packed tokens, the one that can't be taken for anything else."""
    shape = tuple(k.shape[:-1])
    return shape if len(shape) == 3 else (1, *shape)


def forms_of_tokens(q: torch.Tensor, k: torch.Tensor) -> tuple[str, ...]:
    """The shape of factors of tokens for an error message, if these keys may have them."""
    return () if k.dtype == q.dtype else (f"{_shape_of_tokens(k)}, one for each token and head",)

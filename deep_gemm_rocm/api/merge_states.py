"""Merging results of attention over different keys."""

from __future__ import annotations

import torch

from ..checks import is_traced, one_of
from ..launch.families import Size
from ..launch.merge_states import VECTOR, merge_states_launch, num_vectors
from ..launch.repeated import Described, launches_of_sizes
from ..problems.tensors import check_aligned, check_data, check_not_shared, check_one_device
from .attention import new_lse

_DTYPES = (torch.bfloat16, torch.float16)
_MOST_TOKENS = 2**20  # of a family of calls
_DIFFERING = {name: {-3: Size(0)} for name in ("first", "second", "out")}
_DIFFERING |= {name: {-1: Size(0)} for name in ("first_lse", "second_lse")}


@launches_of_sizes(lambda _: _DIFFERING, [_MOST_TOKENS])
def merge_attention_states(
    first: torch.Tensor,
    first_lse: torch.Tensor,
    second: torch.Tensor,
    second_lse: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> Described[tuple[torch.Tensor, torch.Tensor]]:
    """Merges attention of the same queries to two sets of keys, which gives attention to all of these keys.

    Chunks of a long prompt, or a shared prefix and the rest, are computed one by one with ``return_lse=True`` and then
    merged: ``out = (exp(first_lse) · first + exp(second_lse) · second) / (exp(first_lse) + exp(second_lse))``, in fp32.
    vLLM's ``merge_attn_states`` computes the same.

    Args:
        first, second: bf16 or f16 [B, S, H, D] or packed [total, H, D], as attention returns them. D is a multiple of 8
            and contiguous; strides of tokens and heads are any multiples of 16 bytes.
        first_lse, second_lse: fp32 [B, H, S] or packed [H, total], any strides: natural logarithms of the sums. -inf is
            that of a query that sees no key, and so is inf, as FlashMLA has it; its values don't count then.
        out: a tensor of the same form to write into, which may be ``first`` or ``second`` itself; a new one if None.

    Returns:
        ``out``, zeros for a query that sees no key at all, and the new log-sum-exp, fp32, contiguous, of the shape of
        ``first_lse``; -inf for such a query.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        out = torch.empty_like(first, memory_format=torch.contiguous_format) if out is None else out
        lse = torch.ops.deep_gemm_rocm.merge_attention_states(first, first_lse, second, second_lse, out)
        return (out, lse), None
    _check_states({"first": first, "second": second} | ({} if out is None else {"out": out}))
    sums = {"first_lse": first_lse, "second_lse": second_lse}
    _check_sums(sums, first)
    inputs = {"first": first, "second": second, **sums}
    check_one_device(inputs | ({} if out is None else {"out": out}))
    made = {"out_lse": new_lse(first)}
    if out is None:
        out = made["out"] = first.new_empty(first.shape)
    else:
        in_place = (name for name in ("first", "second") if _is_same(out, inputs[name]))
        check_not_shared("out", out, {name: inputs[name] for name in inputs.keys() - set(in_place)})
    result = out, made["out_lse"]
    if first.numel() == 0:
        return result, None
    states = {"first": first, "second": second, "out": out}
    return result, merge_states_launch(states, sums | {"out_lse": made["out_lse"]}, made)


def _check_states(states: dict[str, torch.Tensor]) -> None:
    for name, tensor in states.items():
        check_data(name, tensor)
        of_first = states["first"]
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{name} must be {one_of(_DTYPES)}, got {tensor.dtype}")
        if tensor.dtype != of_first.dtype:
            raise TypeError(f"{name} must have the dtype of first, {of_first.dtype}, got {tensor.dtype}")
        if tensor.dim() not in (3, 4):
            raise ValueError(f"{name} must be [B, S, H, D], or [total, H, D], got shape {tuple(tensor.shape)}")
        if tensor.shape != of_first.shape:
            raise ValueError(f"{name} must have the shape of first, {tuple(of_first.shape)}, got {tuple(tensor.shape)}")
        if not tensor.shape[-1] or tensor.shape[-1] % VECTOR or (tensor.numel() and tensor.stride(-1) != 1):
            raise ValueError(
                f"{name} must have a multiple of {VECTOR} contiguous values for each head, got shape "
                f"{tuple(tensor.shape)} and strides {tensor.stride()}"
            )
        num_vectors(name, tensor.shape)
        check_aligned(name, tensor)


def _check_sums(sums: dict[str, torch.Tensor], first: torch.Tensor) -> None:
    *batch, tokens, heads, _ = first.shape
    for name, tensor in sums.items():
        check_data(name, tensor)
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} must be float32, got {tensor.dtype}")
        if tensor.shape != (*batch, heads, tokens):
            raise ValueError(f"{name} must have shape {(*batch, heads, tokens)}, got {tuple(tensor.shape)}")


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()

"""Checks of tensors that don't depend on which arguments they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..checks import check_tensor, share_memory

ALIGNMENT = 16  # bytes that a lane loads at once


def check_data(name: str, tensor: Any) -> None:
    """Checks that ``tensor`` holds its own values and needs no gradient."""
    check_tensor(name, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for there is no backward; .detach() it or call under torch.no_grad()"
        )


def check_form(name: str, tensor: Any, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Checks dtype and shape (None allows any size), and that the last dimension is contiguous."""
    check_data(name, tensor)
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {str(dtype).removeprefix('torch.')}, got {tensor.dtype}")
    fits = tensor.dim() == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {tuple(tensor.shape)}")
    check_last_dimension(name, tensor)


def check_last_dimension(name: str, tensor: torch.Tensor) -> None:
    """Checks that it is contiguous. An empty tensor may have any strides; they are 0 if it comes from NumPy."""
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous along its last dimension, got strides {tensor.stride()}")


def check_aligned(name: str, tensor: torch.Tensor) -> None:
    """Checks that rows, whether of tokens or of heads, start where lanes load 16 bytes at once."""
    unit = ALIGNMENT // tensor.element_size()
    misaligned = [
        stride
        for stride, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
        if size > 1 and (stride % unit or stride < 0)
    ]
    if tensor.numel() and (misaligned or tensor.data_ptr() % ALIGNMENT):
        raise ValueError(
            f"tokens and heads of {name} must start at multiples of {ALIGNMENT} bytes, got strides {tensor.stride()} "
            f"at {tensor.data_ptr():#x}; .clone() it"
        )


def check_one_device(tensors: dict[str, torch.Tensor]) -> None:
    """Checks that all tensors are on the device of the first."""
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if tensor.device != tensors[first].device:
            raise ValueError(f"{name} must be on the device of {first}, {tensors[first].device}, got {tensor.device}")


def check_not_shared(name: str, output: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
    """Checks that ``output`` shares no memory with ``tensors`` and that its elements don't overlap."""
    if overlaps(output.shape, output.stride()):
        raise ValueError(f"elements of {name} must not overlap, got strides {output.stride()}")
    if output.is_meta:
        return
    for other, tensor in tensors.items():
        if other != name and share_memory(output, tensor):
            raise ValueError(f"{name} must not share memory with {other}, which is read while {name} is written")


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may share memory: a stride lies within the extent of the dimensions with smaller strides."""
    if 0 in shape:
        return False
    reached = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride < reached:
            return True
        reached += (size - 1) * stride
    return False

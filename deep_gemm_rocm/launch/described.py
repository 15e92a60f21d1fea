"""Reads from a call's arguments everything that its launch depends on.

A C function does it five times as fast. It leaves unusual arguments to Python, and is missing where torch or Python is
too old or too unusual for it; see ``csrc/describe.cpp``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..runtime import arrays

# The key of the call, the arguments that are tensors, and their addresses; None if the call can't be remembered.
Described = tuple[tuple[Any, ...], list[torch.Tensor], tuple[int, ...]] | None
Describe = Callable[[object, object, tuple[Any, ...], dict[str, Any]], Described]

_is_grad_enabled = torch.is_grad_enabled
_address = torch.Tensor.data_ptr
_DEVICE_TENSOR = arrays.DeviceTensor
_TENSOR, _PARAMETER, _FLOAT32, _FLOAT16 = torch.Tensor, torch.nn.Parameter, torch.float32, torch.float16


def described_by_python(function: object, values: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
    """Describes a call of ``function`` under the settings ``values``.

    Two calls with equal keys have tensors of the same dtypes, shapes, strides and devices, and other arguments of the
    same types and values. Tensors are in the order of ``names_of_tensors``.
    """
    tensors: list[torch.Tensor] = []
    key: list[Any] = [function, values, *kwargs]
    is_torchs = True
    parts = [*args, *kwargs.values()]
    try:
        for part in parts:
            kind = type(part)
            if kind is _TENSOR or kind is _PARAMETER:
                dtype = part.dtype
                # Only real and imaginary parts of complex tensors may be negated lazily.
                is_negated = (dtype is _FLOAT32 or dtype is _FLOAT16) and part.is_neg()
                if is_negated or (part.requires_grad and _is_grad_enabled()):
                    return None
                tensors.append(part)
                # Contiguous tensors of one shape may differ in strides only where the size is 1, which doesn't matter.
                key += (dtype, part.shape, part.is_contiguous() or part.stride(), part.get_device())
            elif kind is tuple or kind is list:
                key.append(len(part))
                parts += part
            elif kind is _DEVICE_TENSOR:
                tensors.append(part)
                strides = part.is_contiguous() or part.stride()
                key += (kind, part.dtype, part.shape, strides, part.get_device(), part.is_read_only)
                is_torchs = False
            else:
                key += (kind, part)  # the type tells 1 from True
        addresses = tuple(map(_address, tensors) if is_torchs else [tensor.data_ptr() for tensor in tensors])
    except RuntimeError:  # a tensor has no strides or no address
        return None
    return tuple(key), tensors, addresses


def names_of_tensors(positional: Iterable[tuple[str, Any]], keywords: dict[str, Any]) -> list[str]:
    """The names of the tensors in a call's arguments, in their order in ``Described``."""
    names, parts = [], [*positional, *keywords.items()]
    for name, part in parts:
        if isinstance(part, (tuple, list)):
            parts += [(f"{name}[{i}]", element) for i, element in enumerate(part)]
        elif isinstance(part, torch.Tensor):
            names.append(name)
    return names


def _fastest() -> Describe:
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if api is not None:
        with contextlib.suppress(ImportError):
            from ._describe import describe, use

            if use(api, torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, described_by_python):
                return describe
    return described_by_python


described = _fastest()

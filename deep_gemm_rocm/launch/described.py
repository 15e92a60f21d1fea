"""Reads from a call's arguments everything that its launches depend on, makes its new tensors, and calls kernels.

C functions do this in a fifth of the time, apart from torch's. They leave unusual arguments to Python, and are missing
where torch or Python is too old or too unusual for them; see ``csrc/describe.cpp``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..runtime import arrays
from ..runtime.hip import EntryPoint

# The key of the call, the arguments that are tensors, and their addresses; None if the call can't be remembered.
Described = tuple[tuple[Any, ...], list[torch.Tensor], tuple[int, ...]] | None
Describe = Callable[[object, object, tuple[Any, ...], dict[str, Any]], Described]

# The arguments of ``torch.empty_strided``, positional and by name.
Form = tuple[tuple[Sequence[int], Sequence[int]], dict[str, Any]]
Make = Callable[[list[Form], list[torch.Tensor], tuple[int, ...]], tuple[int, ...]]

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
            if kind is _TENSOR or issubclass(kind, _PARAMETER):
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
            elif issubclass(kind, _TENSOR):
                return None  # it may have no memory of its own
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
        if isinstance(part, torch.Tensor):
            names.append(name)
        elif isinstance(part, (tuple, list)):
            parts += [(f"{name}[{i}]", element) for i, element in enumerate(part)]
    return names


def form_of(tensor: torch.Tensor) -> Form:
    """What ``make`` takes for another tensor like this one."""
    return (tensor.shape, tensor.stride()), {"dtype": tensor.dtype, "device": tensor.device}


def form_of_bytes(size: int, beside: torch.Tensor) -> Form:
    """What ``make`` takes for bytes on the device of ``beside``."""
    return ((size,), (1,)), {"dtype": torch.uint8, "device": beside.device}


def made_by_python(forms: list[Form], tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> tuple[int, ...]:
    """Makes tensors beside the first one, and appends them.

    Returns:
        ``addresses`` and those of the new tensors.
    """
    like = tensors[0]
    made = [like.new_empty_strided(*sizes, dtype=options["dtype"]) for sizes, options in forms]
    tensors += made
    return (*addresses, *[tensor.data_ptr() for tensor in made])


def _c_functions() -> tuple[Describe, Make, Callable[[int], EntryPoint]] | None:
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if api is not None:
        with contextlib.suppress(ImportError):
            from ._describe import describe, entry_point, make, use

            types, in_python = (torch.Tensor, torch.nn.Parameter), (described_by_python, made_by_python)
            if use(api, *types, torch.is_grad_enabled, torch.empty_strided, *in_python):
                return describe, make, entry_point
    return None


in_c = _c_functions()
described, make = (described_by_python, made_by_python) if in_c is None else in_c[:2]


def quick_entry_point(entry_point: EntryPoint) -> EntryPoint:
    """The same function. If it is one of ctypes, C calls it, in a fifth of the time."""
    if in_c is None or not isinstance(entry_point, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return entry_point
    _, _, at_address = in_c
    return at_address(ctypes.c_size_t.from_buffer(entry_point).value)

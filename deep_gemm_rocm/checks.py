"""Checks of single arguments. Errors name the argument."""

from __future__ import annotations

import functools
import numbers
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from typing import Any, ParamSpec, TypeVar

import torch

_LEAST_OF_FP32, _MOST_OF_FP32 = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
_P = ParamSpec("_P")
_R = TypeVar("_R")


def is_traced() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` traces the code that asks.

    ``torch.compiler.is_compiling()`` alone is also true for other threads, which run calls while one compiles, and for
    operators that a compiler runs itself. Without Dynamo, tracing has a mode for operators on the thread's stack.
    """
    return torch.compiler.is_dynamo_compiling() or (
        torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0
    )


def renaming(function: Callable[_P, _R], names: Mapping[str, str]) -> Callable[_P, _R]:
    """The function for callers that have other names for these arguments: its errors have those names.

    Args:
        names: those names, by the function's own, which are words or parts of a pair such as ``a[0]``. A message that
            is about ``a`` as a whole begins with it.
    """

    def other(name: re.Match[str]) -> str:
        if name[0] == "a" and name.start():
            return "a"  # the article
        return names.get(name[0]) or names.get(name["word"], name["word"]) + name["part"]

    def named(text: object) -> str:
        return re.sub(r"(?P<word>\w+)(?P<part>(\[\d\])?)", other, str(text))

    @functools.wraps(function)
    def renamed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            error.args = tuple(map(named, error.args))
            raise

    return renamed


def is_int(value: Any) -> bool:
    """Whether the value is an integer, of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_int(name: str, value: Any, least: int, most: int = 2**31 - 1) -> int:
    """Returns ``value`` as an int; by default ``most`` is the largest 32-bit integer.

    Raises:
        TypeError, ValueError: ``value`` is not an int from ``least`` to ``most``.
    """
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    number = int(value)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def check_number(name: str, value: Any) -> float:
    """Returns ``value`` as a float.

    Raises:
        TypeError, ValueError: ``value`` is not a finite number, which fp64 can represent.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not abs(value) <= sys.float_info.max:  # the negation catches NaN
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def check_positive(name: str, value: Any, most: float = _MOST_OF_FP32) -> float:
    """Returns ``value`` as a float. Kernels round it to fp32; by default ``most`` is the largest number of fp32.

    Raises:
        TypeError, ValueError: ``value`` is not a number up to ``most``, or not a positive normal one of fp32.
    """
    number = check_number(name, value)
    if number > most or c_float(number).value < _LEAST_OF_FP32:
        raise ValueError(f"{name} must be positive, from {_LEAST_OF_FP32:g} to {most:g}, got {value}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """
    Raises:
        TypeError: ``value`` is no bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def check_is_tensor(name: str, tensor: object) -> None:
    """
    Raises:
        TypeError: ``tensor`` is no torch tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        is_array = hasattr(tensor, "__dlpack__") or hasattr(tensor, "__cuda_array_interface__")
        advice = "; pass it through as_tensor" if is_array else ""
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}{advice}")


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """
    Raises:
        TypeError, ValueError: ``tensor`` is not a strided torch tensor, only stands for one (``FakeTensorMode``), is a
            lazily negated view, or its storage was resized or freed, which torch itself doesn't notice.
    """
    check_is_tensor(name, tensor)
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a strided tensor, got layout {tensor.layout}; convert it with .to_dense()")
    if is_traced():
        return  # traced tensors have no storage
    _check_has_values(name, tensor)
    check_storage(name, tensor)
    if tensor.is_neg():
        raise ValueError(f"{name} must hold its own values, got a lazily negated view; .resolve_neg() it")


def _check_has_values(name: str, tensor: torch.Tensor) -> None:
    if tensor.untyped_storage().device.type != tensor.device.type:
        raise TypeError(
            f"{name} must have values, got a {type(tensor).__name__}; of FakeTensorMode's tensors, only the operators "
            "in torch.ops.deep_gemm_rocm can tell what results look like"
        )


def check_storage(name: str, tensor: torch.Tensor) -> None:
    """
    Raises:
        ValueError: the tensor reaches beyond the end of its storage.
    """
    reached = reach(tensor.shape, tensor.stride())
    needed = (tensor.storage_offset() + reached) * tensor.element_size() if reached else 0
    held = tensor.untyped_storage().nbytes()
    if needed > held:
        raise ValueError(f"{name} needs {needed} bytes of its storage, which has {held}: it was resized or freed")


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements in memory from the first to the last, both included."""
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return last + 1


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    return tensor.nbytes if tensor.is_contiguous() else reach(tensor.shape, tensor.stride()) * tensor.itemsize


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether some byte belongs to both tensors. Where their strides differ, the bytes between elements count, too."""
    if one.numel() == 0 or other.numel() == 0:
        return False
    return _meet(_spans(one), _spans(other), other.data_ptr() - one.data_ptr())


_Spans = list[tuple[int, int]]  # stride and count, of dimensions in bytes, the largest stride first


def _spans(tensor: torch.Tensor) -> _Spans:
    size = tensor.itemsize
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    spans = [(stride * size, count) for stride, count in dimensions if count != 1 and stride != 0]
    return [*sorted(spans, reverse=True), (1, size)]


def _meet(one: _Spans, other: _Spans, distance: int) -> bool:
    """Whether bytes of ``one``, from 0 on, and of ``other``, from ``distance`` on, are the same."""
    if distance >= _reach(one) or distance + _reach(other) <= 0:
        return False
    if not one or not other or one[0][0] != other[0][0]:
        return True
    (stride, count), (_, other_count) = one[0], other[0]
    if max(_reach(one[1:]), _reach(other[1:])) > stride:
        return True
    nearest = -(distance // stride)  # rows so many numbers apart begin nearest to each other
    return any(
        -count < step < other_count and _meet(one[1:], other[1:], distance + step * stride)
        for step in (nearest - 1, nearest)
    )


def _reach(spans: _Spans) -> int:
    return 0 if any(count == 0 for _, count in spans) else 1 + sum((count - 1) * stride for stride, count in spans)


def one_of(dtypes: tuple[torch.dtype, ...]) -> str:
    """The dtypes' names, for an error message."""
    *others, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return f"{', '.join(others)} or {last}" if others else last

"""Makes calls cheap that are like an earlier one.

A call's checks, its choice of a kernel and nearly all of the kernel's arguments hang only on the types, shapes and
strides of its tensors and on its other arguments. So a function that is ``repeatable`` does all that once; a call that
differs from an earlier one in nothing but addresses only exchanges these. Whatever is out of the ordinary goes the long
way, which also finds the words for errors.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from ctypes import Structure, c_void_p
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from . import changes, hip, planning
from .jit import Kernel

_P = ParamSpec("_P")
_R = TypeVar("_R")

_TENSOR, _PARAMETER, _FLOAT32, _FLOAT16 = torch.Tensor, torch.nn.Parameter, torch.float32, torch.float16

_MOST_CALLS = 65536  # that are remembered
_ALIGNMENT = 16
_WORD = 8


@dataclass(frozen=True)
class _Launch:
    """What a function launched."""

    kernel: Kernel
    arguments: Structure
    tensors: Mapping[str, torch.Tensor]
    written: tuple[str, ...]
    aligned: tuple[str, ...]


_noted: ContextVar[list[_Launch] | None] = ContextVar("noted", default=None)


def launch(
    kernel: Kernel,
    arguments: Structure,
    tensors: Mapping[str, torch.Tensor],
    *,
    written: tuple[str, ...],
    aligned: tuple[str, ...],
) -> None:
    """Launches a kernel on the current stream.

    Args:
        kernel: takes ``arguments`` by reference, and the stream's handle.
        tensors: all that it works on, by the names of the function's arguments.
        written: which of them it writes, if they are among them.
        aligned: which of them begin at multiples of 16 bytes.
    """
    noted = _noted.get()
    if noted is not None:
        noted.append(_Launch(kernel, arguments, tensors, written, aligned))
    with hip.runtime().launching(**tensors) as stream:
        kernel(ctypes.byref(arguments), stream)


class _Call:
    """A launch whose addresses are still to be filled in.

    Attributes:
        kernel, runtime: what is launched, and by which runtime.
        last: the addresses of the latest call, and the kernel's arguments then.
        places: in these, with the number of the tensor whose address belongs there.
        names: of what it works on.
        used: the number of the tensor of each name.
        aligned: numbers of tensors that must begin at a multiple of 16 bytes.
        same: numbers of two tensors that must be the same.
        outputs: numbers of tensors that are written, their sizes, and numbers and sizes of those that they must not
            share memory with.
    """

    __slots__ = ("aligned", "kernel", "last", "names", "outputs", "places", "runtime", "same", "used")

    def __init__(self, launch: _Launch, tensors: list[torch.Tensor], addresses: list[int]) -> None:
        """
        Raises:
            ValueError: the kernel takes something else than ``tensors``.
        """
        self.kernel, self.runtime = launch.kernel, hip.runtime()
        words = array("Q", bytes(launch.arguments))
        pointers = [place for place in _pointers(type(launch.arguments)) if words[place]]
        self.places = [(place, addresses.index(words[place])) for place in pointers]
        self.last = addresses, words
        self.names = tuple(launch.tensors)
        self.used = [addresses.index(tensor.data_ptr()) for tensor in launch.tensors.values()]
        self.aligned = [index for name, index in zip(self.names, self.used, strict=True) if name in launch.aligned]
        self.same = [(i, j) for i, j in itertools.combinations(range(len(tensors)), 2) if addresses[i] == addresses[j]]
        sizes = [_extent(tensor) for tensor in tensors]
        self.outputs = []
        for name, output in zip(self.names, self.used, strict=True):
            if name in launch.written:
                others = [i for i in range(len(tensors)) if addresses[i] != addresses[output]]
                self.outputs.append((output, sizes[output], [(i, sizes[i]) for i in others]))

    def repeat(self, tensors: list[torch.Tensor], addresses: list[int]) -> bool:
        """Launches it on other tensors; False if their addresses don't allow that."""
        last_addresses, words = self.last
        if addresses != last_addresses:
            if not self._allows(addresses):
                return False
            words = words[:]
            for place, index in self.places:
                words[place] = addresses[index]
            self.last = addresses, words
        self.runtime.relaunch(self.kernel, words.buffer_info()[0], tensors, self.names, self.used)
        return True

    def _allows(self, addresses: list[int]) -> bool:
        for index in self.aligned:
            if addresses[index] % _ALIGNMENT:
                return False
        for output, size, others in self.outputs:
            begin = addresses[output]
            end = begin + size
            for other, other_size in others:
                other_begin = addresses[other]
                if other_begin < end and begin < other_begin + other_size:
                    return False
        return all(addresses[one] == addresses[other] for one, other in self.same)


_calls: dict[tuple[Any, ...], _Call] = {}


def repeatable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """For functions that return None and launch at most one kernel, by ``launch``, on tensors that they are given."""

    @functools.wraps(function)
    def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling() or planning.current() is not None:
            return function(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        try:
            parts: list[Any] = [function, changes.count, *kwargs]
            _describe(args, parts, tensors)
            if kwargs:
                _describe(tuple(kwargs.values()), parts, tensors)
            key = tuple(parts)
            call = _calls.get(key)
            addresses = [tensor.data_ptr() for tensor in tensors]
        except (_UnusualError, TypeError, RuntimeError):  # of what has no hash, strides or address
            return function(*args, **kwargs)
        if call is not None and call.repeat(tensors, addresses):
            return None  # type: ignore[return-value]
        noted: list[_Launch] = []
        token = _noted.set(noted)
        try:
            result = function(*args, **kwargs)
        finally:
            _noted.reset(token)
        if len(noted) == 1 and call is None:
            _remember(key, noted[0], tensors, addresses)
        return result

    return repeated


class _UnusualError(Exception):
    """A call that nothing is remembered of."""


def _describe(arguments: tuple[Any, ...], key: list[Any], tensors: list[torch.Tensor]) -> None:
    """Adds what a launch hangs on, and the tensors, whose addresses it doesn't hang on.

    Raises:
        _UnusualError: nothing should be remembered of a call with these.
    """
    for argument in arguments:
        is_tuple = type(argument) is tuple
        for part in argument if is_tuple else (argument,):
            kind = type(part)
            if kind is _TENSOR or kind is _PARAMETER:
                dtype = part.dtype
                # Parts of complex numbers may be negated lazily.
                if part.requires_grad or ((dtype is _FLOAT32 or dtype is _FLOAT16) and part.is_neg()):
                    raise _UnusualError
                tensors.append(part)
                key += (dtype, part.shape, part.stride(), part.get_device())
            else:
                key += (kind, part)  # for 1 == True
        if is_tuple:
            key.append(len(argument))


def _remember(key: tuple[Any, ...], launch: _Launch, tensors: list[torch.Tensor], addresses: list[int]) -> None:
    try:
        call = _Call(launch, tensors, addresses)
    except ValueError:
        return
    if len(_calls) >= _MOST_CALLS:
        _calls.clear()
    _calls[key] = call


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


@functools.cache
def _pointers(structure: type[Structure]) -> tuple[int, ...]:
    """Where pointers lie in it, in words."""
    return tuple(offset // _WORD for offset in _pointer_offsets(structure))


def _pointer_offsets(structure: type[Structure]) -> Iterator[int]:
    for name, kind, *_ in structure._fields_:
        offset = getattr(structure, name).offset
        if kind is c_void_p:
            yield offset
        elif issubclass(kind, Structure):
            yield from (offset + inner for inner in _pointer_offsets(kind))

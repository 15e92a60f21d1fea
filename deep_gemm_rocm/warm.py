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
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from . import arrays, changes, hip, planning, settings, workspace
from .jit import Kernel

_P = ParamSpec("_P")
_R = TypeVar("_R")

_is_traced, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_address = torch.Tensor.data_ptr
_DEVICE_TENSOR = arrays.DeviceTensor
_TENSOR, _PARAMETER, _FLOAT32, _FLOAT16 = torch.Tensor, torch.nn.Parameter, torch.float32, torch.float16

_MOST_CALLS = 65536  # that are remembered
_MOST_ADDRESSES = 128  # of each of them
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


class Scratch(NamedTuple):
    """Memory that a function's first kernel writes for its second one.

    Attributes:
        address: where it begins.
        size: in bytes.
        holder: whose memory it is, if it isn't a ``workspace``.
    """

    address: int
    size: int
    holder: torch.Tensor | None = None


@dataclass
class _Notes:
    """What a function did."""

    launches: list[_Launch] = field(default_factory=list)
    made: list[torch.Tensor] = field(default_factory=list)
    scratch: Scratch | None = None


_noted: ContextVar[_Notes | None] = ContextVar("noted", default=None)


def output(*size: int, dtype: torch.dtype, beside: torch.Tensor) -> torch.Tensor:
    """A new tensor, which the function returns, on the device of the tensor ``beside`` it."""
    made = beside.new_empty(size, dtype=dtype)
    notes = _noted.get()
    if notes is not None:
        notes.made.append(made)
    return made


def scratch(size: int, beside: torch.Tensor) -> Scratch:
    """``size`` bytes for one launch of the function, on the device of the tensor ``beside`` it."""
    if planning.current() is not None:
        return Scratch(0, size)
    if isinstance(beside, _DEVICE_TENSOR):
        made = Scratch(arrays.scratch(size, beside).data_ptr(), size)
    else:
        runtime = hip.runtime()
        if runtime.is_capturing(beside.get_device()):  # a graph may run beside later launches of this thread
            holder = torch.empty(size, dtype=torch.uint8, device=beside.device)
            return Scratch(holder.data_ptr(), size, holder)
        address = workspace.address(runtime, size, beside.get_device(), runtime.current_stream(beside))
        made = Scratch(address, size)
    notes = _noted.get()
    if notes is not None:
        notes.scratch = made
    return made


def launch(
    kernel: Kernel,
    arguments: Structure,
    tensors: Mapping[str, torch.Tensor],
    *,
    written: tuple[str, ...] = (),
    aligned: tuple[str, ...] = (),
) -> None:
    """Launches a kernel on the current stream, unless ``set_compile_mode`` says otherwise.

    Args:
        kernel: takes ``arguments`` by reference, and the stream's handle.
        tensors: all that it works on, by the names of the function's arguments.
        written, aligned: which of them, if they are among these, it writes and, for functions that are
            ``repeatable``, which begin at multiples of 16 bytes.
    """
    for name in written:
        arrays.check_writable(name, tensors.get(name))
    with arrays.runtime_of(*tensors.values()).launching(**tensors) as stream:
        if settings.get_compile_mode():
            return
        notes = _noted.get()
        if notes is not None:
            notes.launches.append(_Launch(kernel, arguments, tensors, written, aligned))
        kernel(ctypes.byref(arguments), stream)


class _Call:
    """What a call launches, for tensors of the same forms. Tensors that it makes have numbers behind those given.

    Attributes:
        runtime: what launches.
        kernel: what is launched.
        words: its arguments.
        places: in these, with the number of the tensor whose address belongs there.
        used: the number and a name of each tensor that it works on.
        made: examples of the tensors that the function makes.
        scratch: bytes of the memory that it needs beside, whose address comes behind those of all tensors; or 0.
        result: the number of the tensor that it returns, if it returns any.
        filled: the launch, by the addresses that were filled in; a model's layers take turns.
        aligned: numbers of tensors that must begin at a multiple of 16 bytes.
        same: numbers of two tensors that must be the same.
        outputs: numbers of tensors that are written, their sizes, and numbers and sizes of those that they must not
            share memory with.
    """

    __slots__ = (
        "aligned", "filled", "kernel", "made", "outputs", "places", "result", "runtime", "same", "scratch", "used",
        "words",
    )  # fmt: skip

    def __init__(self, notes: _Notes, tensors: list[torch.Tensor], addresses: tuple[int, ...], result: object) -> None:
        """
        Raises:
            ValueError: there were several launches; or a kernel takes, or the function returns, something else than
                tensors that it was given or made.
        """
        (launch,) = notes.launches
        self.runtime = arrays.runtime_of(*tensors)
        self.made = [made.new_empty(1).expand(made.shape) for made in notes.made]  # as large without its memory
        self.scratch = notes.scratch.size if notes.scratch else 0
        is_result = [tensor is result for tensor in (*tensors, *notes.made)]
        self.result = None if result is None else is_result.index(True)
        known = addresses + tuple(made.data_ptr() for made in notes.made)
        known += (notes.scratch.address,) if notes.scratch else ()
        self.kernel = launch.kernel
        self.words = array("Q", bytes(launch.arguments))
        pointers = [place for place in _pointers(type(launch.arguments)) if self.words[place]]
        self.places = [(place, known.index(self.words[place])) for place in pointers]
        numbers = {name: known.index(tensor.data_ptr()) for name, tensor in launch.tensors.items()}
        self.used = {number: name for name, number in numbers.items()}
        self.filled: dict[tuple[int, ...], hip.Launch] = {}
        given = range(len(tensors))
        self.same = [(i, j) for i, j in itertools.combinations(given, 2) if addresses[i] == addresses[j]]
        sizes = [_extent(tensor) for tensor in tensors]
        aligned, written = (
            {numbers[name] for name in names if name in numbers} for names in (launch.aligned, launch.written)
        )
        self.aligned = sorted(aligned.intersection(given))
        self.outputs = [
            (output, sizes[output], [(i, sizes[i]) for i in given if addresses[i] != addresses[output]])
            for output in sorted(written.intersection(given))
        ]

    def repeat(self, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> bool:
        """Launches it on other tensors, to which those that it makes are added; False if that isn't allowed."""
        for example in self.made:
            made = torch.empty_like(example)
            tensors.append(made)
            addresses += (made.data_ptr(),)
        if self.scratch:
            if isinstance(tensors[0], _DEVICE_TENSOR):
                addresses += (arrays.scratch(self.scratch, tensors[0]).data_ptr(),)
            elif self.runtime.is_capturing(tensors[0].get_device()):
                return False
            else:
                stream = self.runtime.current_stream(tensors[0])
                addresses += (workspace.address(self.runtime, self.scratch, tensors[0].get_device(), stream),)
        launch = self.filled.get(addresses)
        if launch is None:
            if not self._allows(addresses):
                return False
            launch = self._filled_in(addresses)
            if len(self.filled) >= _MOST_ADDRESSES:
                self.filled.clear()
            self.filled[addresses] = launch
        self.runtime.relaunch(launch, tensors, self.used)
        return True

    def _filled_in(self, addresses: tuple[int, ...]) -> hip.Launch:
        words = self.words[:]
        for place, number in self.places:
            words[place] = addresses[number]
        return self.kernel.entry_point, words.tobytes()

    def _allows(self, addresses: tuple[int, ...]) -> bool:
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
    """For functions that do nothing but ``launch`` a kernel, on tensors that they are given, an ``output`` and a
    ``scratch``; they return None or one of these tensors. What tensors hold must not matter to them."""

    @functools.wraps(function)
    def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if _is_traced() or planning.current() is not None:
            return function(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        try:
            described: list[Any] = [function, changes.count, *kwargs]
            _describe([*args, *kwargs.values()], described, tensors)
            key = tuple(described)
            call = _calls.get(key)
            addresses = tuple(map(_address, tensors))
        except (_UnusualError, TypeError, RuntimeError):  # of what has no hash, strides or address
            return function(*args, **kwargs)
        if call is not None and call.repeat(tensors, addresses):
            return None if call.result is None else tensors[call.result]  # type: ignore[return-value]
        if any(part is _DEVICE_TENSOR for part in described):
            return _on_arrays(function, args, kwargs)
        return _noticed(function, args, kwargs, None if call else key, tensors, addresses)

    return repeated


class _UnusualError(Exception):
    """A call that nothing is remembered of."""


def _describe(parts: list[Any], key: list[Any], tensors: list[torch.Tensor]) -> None:
    """Adds what a launch hangs on, and the tensors, whose addresses it doesn't hang on.

    Args:
        parts: the arguments; what is in tuples and lists is added to them.

    Raises:
        _UnusualError: nothing should be remembered of a call with these.
    """
    for part in parts:
        kind = type(part)
        if kind is _TENSOR or kind is _PARAMETER:
            dtype = part.dtype
            # Parts of complex numbers may be negated lazily.
            is_negated = (dtype is _FLOAT32 or dtype is _FLOAT16) and part.is_neg()
            if is_negated or (part.requires_grad and _is_grad_enabled()):
                raise _UnusualError
            tensors.append(part)
            # Contiguous tensors of a shape differ in strides of single elements at most, which mean nothing.
            key += (dtype, part.shape, part.is_contiguous() or part.stride(), part.get_device())
        elif kind is tuple or kind is list:
            key.append(len(part))
            parts += part
        else:
            key += (kind, part)  # for 1 == True


def _on_arrays(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A call of a function that is ``repeatable`` with arrays that aren't torch's."""
    key: list[Any] = [function, changes.count, *kwargs]
    tensors: list[torch.Tensor] = []
    try:
        _describe_arrays([*args, *kwargs.values()], key, tensors)
        call = _calls.get(tuple(key))
    except (_UnusualError, TypeError):
        return function(*args, **kwargs)
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    if call is not None and call.repeat(tensors, addresses):
        return None if call.result is None else tensors[call.result]
    return _noticed(function, args, kwargs, None if call else tuple(key), tensors, addresses)


def _describe_arrays(parts: list[Any], key: list[Any], tensors: list[torch.Tensor]) -> None:
    """As ``_describe``."""
    for part in parts:
        kind = type(part)
        if kind is _DEVICE_TENSOR:
            tensors.append(part)
            strides = part.is_contiguous() or part.stride()
            key += (kind, part.dtype, part.shape, strides, part.get_device(), part.is_read_only)
        elif kind is tuple or kind is list:
            key.append(len(part))
            parts += part
        elif isinstance(part, torch.Tensor):
            raise _UnusualError
        else:
            key += (kind, part)


def _noticed(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: tuple[Any, ...] | None,
    tensors: list[torch.Tensor],
    addresses: tuple[int, ...],
) -> Any:
    """Calls the function, and remembers what it did if there is a ``key``."""
    notes = _Notes()
    token = _noted.set(notes)
    try:
        result = function(*args, **kwargs)
    finally:
        _noted.reset(token)
    if notes.launches and key is not None:
        _remember(key, notes, tensors, addresses, result)
    return result


def _remember(
    key: tuple[Any, ...], notes: _Notes, tensors: list[torch.Tensor], addresses: tuple[int, ...], result: object
) -> None:
    try:
        call = _Call(notes, tensors, addresses, result)
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

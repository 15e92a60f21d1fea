"""Runs the launch that a public function describes, and repeats it cheaply for similar calls.

A call's checks, its choice of a kernel and nearly all of the kernel's arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. The launch is remembered by these. A call that differs from an earlier
one only in addresses exchanges the addresses. All other calls run the function itself, which also raises all errors.
"""

from __future__ import annotations

import functools
import inspect
from array import array
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from .. import forking
from ..jit import Kernel
from ..runtime import arrays, hip, session, settings
from . import planning, scratch
from .launch import Launch, offset_of, run

_P = ParamSpec("_P")
_R = TypeVar("_R")

Described = tuple[_R, Launch | None]  # a function's result, and its launch unless nothing is to be computed

_is_traced, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_address = torch.Tensor.data_ptr
_DEVICE_TENSOR = arrays.DeviceTensor
_TENSOR, _PARAMETER, _FLOAT32, _FLOAT16 = torch.Tensor, torch.nn.Parameter, torch.float32, torch.float16

_MOST_BYTES = 16 * 2**20  # of memory for the remembered calls of a session
_MOST_BYTES_OF_CALL = _MOST_BYTES // 16
# Estimated sizes of Python objects: a call with its key, and a launch with its addresses, without its arguments.
_BYTES_OF_CALL = 3072
_BYTES_OF_LAUNCH = 512
_ALIGNMENT = 16
_WORD = 8


class Calls(session.Part):
    """The remembered calls.

    Their memory is bounded by the CLOCK algorithm: the oldest call is forgotten, unless it was repeated since its last
    turn.

    Attributes:
        known: the calls, by everything that their launches depend on.
        settings: the session's settings, part of every key.
        bytes: an estimate of the memory of ``known``.
    """

    rests_on_choices = True

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], _Call] = {}
        self.settings = session.current().of(settings.Settings)
        self.bytes = 0
        self._changing = forking.Lock()

    def add(self, key: tuple[Any, ...], call: _Call) -> None:
        """Remembers a call."""
        with self._changing:
            replaced = self.known.pop(key, None)
            self.bytes += call.bytes - (replaced.bytes if replaced else 0)
            self.known[key] = call
            self._shrink()

    def add_launch(self, call: _Call, addresses: tuple[int, ...], launch: hip.Launch) -> None:
        """Remembers the launch of a call for some addresses."""
        with self._changing:
            before = call.bytes
            call.filled[addresses] = launch
            while call.bytes > _MOST_BYTES_OF_CALL:
                del call.filled[next(iter(call.filled))]
            self.bytes += call.bytes - before
            self._shrink()

    def _shrink(self) -> None:
        while self.bytes > _MOST_BYTES and len(self.known) > 1:
            key = next(iter(self.known))
            call = self.known.pop(key)
            if call.was_repeated:
                call.was_repeated = False
                self.known[key] = call
            else:
                self.bytes -= call.bytes


def launches(function: Callable[_P, Described[_R]]) -> Callable[_P, _R]:
    """Turns a function that describes its launch into a public function, which runs it and returns the result.

    The function must have no other effects, since a repeated call doesn't call it.
    """
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def launching(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if _is_traced():
            return function(*args, **kwargs)[0]
        calls = session.current().of(Calls)
        tensors: list[torch.Tensor] = []
        parts: list[Any] = [function, calls.settings.values, *kwargs]
        key, call = None, None
        try:
            is_torchs = _describe([*args, *kwargs.values()], parts, tensors)
            addresses = tuple(map(_address, tensors) if is_torchs else [tensor.data_ptr() for tensor in tensors])
            call = calls.known.get(key := tuple(parts))
        except (_UnusualError, TypeError, RuntimeError):  # an argument has no hash, strides or address
            key = None
        if call is not None and planning.current() is None and call.repeat(tensors, addresses, calls):
            return call.result_among(tensors)
        result, launch = function(*args, **kwargs)
        if launch is None:
            return result
        kernel = run(launch)
        if kernel is not None and key is not None and call is None and launch.repeats:
            given = _named([*zip(names, args, strict=False), *kwargs.items()])
            calls.add(key, _Call(launch, kernel, given, tensors, result))
        return result

    launching.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return launching


def _public_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature for callers: ``Described[X]`` is returned as ``X``."""
    signature = inspect.signature(function)
    described = str(signature.return_annotation)
    return signature.replace(return_annotation=described.removeprefix("Described[").removesuffix("]"))


class _UnusualError(Exception):
    """The call can't be remembered."""


def _describe(parts: list[Any], key: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Appends to ``key`` everything that the launch depends on, and to ``tensors`` the arguments that are tensors.

    Args:
        parts: the arguments. The elements of tuples and lists are appended to it.

    Returns:
        Whether all tensors are torch's own.

    Raises:
        _UnusualError: a call with these arguments can't be remembered.
    """
    is_torchs = True
    for part in parts:
        kind = type(part)
        if kind is _TENSOR or kind is _PARAMETER:
            dtype = part.dtype
            # Only real and imaginary parts of complex tensors may be negated lazily.
            is_negated = (dtype is _FLOAT32 or dtype is _FLOAT16) and part.is_neg()
            if is_negated or (part.requires_grad and _is_grad_enabled()):
                raise _UnusualError
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
    return is_torchs


def _named(parts: list[tuple[str, Any]]) -> list[str]:
    """The names of the tensors in the arguments, in the order of ``_describe``."""
    names = []
    for name, part in parts:
        if isinstance(part, torch.Tensor):
            names.append(name)
        elif isinstance(part, (tuple, list)):
            parts += ((f"{name}[{i}]", element) for i, element in enumerate(part))
    return names


class _Call:
    """A remembered launch, for tensors of the same dtypes, shapes and strides.

    Tensors are numbered: first the tensors among the arguments, then those that the call makes.

    Attributes:
        runtime: the HIP runtime to launch with.
        kernel: the kernel to launch.
        words: the kernel's arguments as words of 8 bytes.
        places: pairs of a word that is an address, and the number of its tensor.
        scratch: pairs of a word that is an address of scratch memory, and its offset in the scratch memory.
        scratch_bytes: the size of the scratch memory; 0 for none.
        used: number and name of each tensor that the kernel works on.
        made: an example without elements, shape and strides of each tensor that the call makes.
        result: the number of the tensor that the call returns, or several in a tuple; None if it returns None.
        filled: complete launches by their addresses, since the layers of a model recur.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
        aligned: numbers of the tensors that must start at a multiple of 16 bytes.
        same: an output, and a tensor that must start where the output starts, as in the remembered call.
        outputs: for each tensor that is written, its number and size, and the numbers and sizes of the tensors with
            which it must not share memory.
    """

    __slots__ = (
        "aligned", "filled", "kernel", "made", "outputs", "places", "result", "runtime", "same", "scratch",
        "scratch_bytes", "used", "was_repeated", "words",
    )  # fmt: skip

    def __init__(
        self, launch: Launch, kernel: Kernel, names: list[str], tensors: list[torch.Tensor], result: object
    ) -> None:
        """
        Args:
            names: the names of the function's arguments that are ``tensors``.
            result: the function's result: None, one of ``tensors`` or a new tensor, or a tuple of such.
        """
        addresses = [tensor.data_ptr() for tensor in tensors]
        numbers = {name: number for number, name in enumerate([*names, *launch.made])}
        structure = type(launch.arguments)
        self.runtime = arrays.runtime_of(*tensors)
        self.kernel = kernel
        self.words = array("Q", bytes(launch.arguments))
        self.places = [
            (offset_of(structure, path) // _WORD, numbers[name]) for path, (name, _) in launch.pointers.items()
        ]
        self.scratch = [(offset_of(structure, path) // _WORD, at) for path, at in launch.scratch_offsets.items()]
        self.scratch_bytes = launch.scratch_bytes
        self.used = {numbers[name]: name for name in launch.tensors}
        self.made = [(made.new_empty(0), made.shape, made.stride()) for made in launch.made.values()]
        self.result = _numbers(result, [*tensors, *launch.made.values()])
        self.filled: dict[tuple[int, ...], hip.Launch] = {}
        self.was_repeated = False

        given = range(len(tensors))
        for name, tensor in launch.pointers.values():
            begins = numbers[name] not in given or tensor.data_ptr() == addresses[numbers[name]]
            assert begins, f"{name} must be passed on from its beginning"
        aligned, written = (
            {numbers[launch.pointers[path].name] for path in paths if path in launch.pointers}.intersection(given)
            for paths in (launch.aligned, launch.written)
        )
        sizes = [_extent(tensor) for tensor in tensors]
        self.aligned = sorted(aligned)
        self.outputs = [
            (output, sizes[output], [(i, sizes[i]) for i in given if addresses[i] != addresses[output]])
            for output in sorted(written)
        ]
        self.same = [(output, i) for output, _, others in self.outputs for i in given if i not in dict(others)]

    @property
    def bytes(self) -> int:
        """An estimate of the call's memory."""
        of_launch = len(self.words) * _WORD + _BYTES_OF_LAUNCH
        return _BYTES_OF_CALL + len(self.filled) * of_launch

    def repeat(self, tensors: list[torch.Tensor], addresses: tuple[int, ...], calls: Calls) -> bool:
        """Launches on other tensors, and appends those that it makes; False, without a launch, for unfit addresses.

        Args:
            calls: the session's calls, which remember this one.
        """
        for example, shape, strides in self.made:
            tensors.append(made := example.new_empty_strided(shape, strides))
            addresses += (made.data_ptr(),)
        if self.scratch_bytes:
            memory = scratch.memory(self.runtime, self.scratch_bytes, tensors[0])
            addresses += (memory.address,)
        launch = self.filled.get(addresses)
        if launch is None:
            if not self._allows(addresses):
                del tensors[len(tensors) - len(self.made) :]
                return False
            launch = self._filled_in(addresses)
            calls.add_launch(self, addresses, launch)
        self.was_repeated = True
        self.runtime.relaunch(launch, tensors, self.used)
        return True

    def result_among(self, tensors: list[torch.Tensor]) -> Any:
        """The result of a repeated call, after ``repeat`` has appended the new tensors."""
        result = self.result
        if type(result) is tuple:
            return tuple([tensors[number] for number in result])
        return None if result is None else tensors[result]

    def _filled_in(self, addresses: tuple[int, ...]) -> hip.Launch:
        words = self.words[:]
        for place, number in self.places:
            words[place] = addresses[number]
        for place, offset in self.scratch:
            words[place] = addresses[-1] + offset
        return self.kernel.entry_point, words.tobytes()

    def _allows(self, addresses: tuple[int, ...]) -> bool:
        if 0 in addresses:  # a tensor without elements, or without memory, as on the meta device
            return False
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


def _numbers(result: object, tensors: list[torch.Tensor]) -> Any:
    """The number of the tensor that is ``result``; a tuple of numbers for a tuple, None for None."""
    if isinstance(result, tuple):
        return tuple(_numbers(part, tensors) for part in result)
    return None if result is None else [tensor is result for tensor in tensors].index(True)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize

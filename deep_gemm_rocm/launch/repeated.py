"""Runs the launch that a public function describes, and repeats it cheaply for similar calls.

A call's checks, its choice of a kernel and nearly all of the kernel's arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. The launch is remembered by these. A call that differs from an earlier
one only in addresses exchanges the addresses. All other calls run the function itself, which also raises all errors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from .. import forking
from ..checks import extent
from ..jit import Kernel
from ..runtime import arrays, hip, session, settings
from . import described, planning, scratch
from .launch import Launch, run, words_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

Described = tuple[_R, Launch | None]  # a function's result, and its launch unless nothing is to be computed

_is_traced = torch.compiler.is_dynamo_compiling

_MOST_BYTES = 16 * 2**20  # of memory for the remembered calls of a session
_MOST_BYTES_OF_CALL = _MOST_BYTES // 16
# Estimated sizes of Python objects: a call with its key, and a launch with its addresses, without its arguments.
_BYTES_OF_CALL = 3072
_BYTES_OF_LAUNCH = 512
_ALIGNMENT = 16


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
        calls, call, found = session.current().of(Calls), None, None
        if planning.current() is None:
            found = described.described(function, calls.settings.values, args, kwargs)
        if found is not None:
            key, tensors, addresses = found
            try:
                call = calls.known.get(key)
            except TypeError:  # an argument has no hash
                found = None
        if call is not None and call.repeat(tensors, addresses, calls):
            return call.result_among(tensors)
        result, launch = function(*args, **kwargs)
        if launch is None:
            return result
        kernel = run(launch)
        if kernel is not None and found is not None and call is None and launch.repeats:
            given = described.names_of_tensors({**dict(zip(names, args, strict=False)), **kwargs})
            calls.add(key, _Call(launch, kernel, given, tensors, addresses, result))
        return result

    launching.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return launching


def _public_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature for callers: ``Described[X]`` is returned as ``X``."""
    signature = inspect.signature(function)
    described = str(signature.return_annotation)
    return signature.replace(return_annotation=described.removeprefix("Described[").removesuffix("]"))


class _Form(NamedTuple):
    """How launches use their tensors, whatever the sizes are.

    Tensors are numbered: first the tensors among the call's arguments, then those that the call makes.

    Attributes:
        places: pairs of a word that is an address, and the number of its tensor.
        used: number and name of each tensor that the kernel works on.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written.
    """

    places: tuple[tuple[int, int], ...]
    used: dict[int, str]
    aligned: tuple[int, ...]
    written: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _form(
    words: tuple[int, ...],
    paths: tuple[str, ...],
    names: tuple[str, ...],
    given: tuple[str, ...],
    made: tuple[str, ...],
    aligned: tuple[str, ...],
    written: tuple[str, ...],
) -> _Form:
    """
    Args:
        words, paths, names: the word, the path and the tensor's name of each pointer, as in ``Launch.pointers``.
        given, made: names of the tensors in the order of their numbers.
        aligned, written: as in ``Launch``.
    """
    numbers = {name: number for number, name in enumerate((*given, *made))}
    of_pointers = [numbers[name] for name in names]
    among_given = dict(zip(paths, of_pointers, strict=True))
    aligned_numbers, written_numbers = (
        tuple(sorted({among_given[path] for path in chosen if path in among_given} & set(range(len(given)))))
        for chosen in (aligned, written)
    )
    return _Form(
        tuple(zip(words, of_pointers, strict=True)), dict(zip(of_pointers, names, strict=True)),
        aligned_numbers, written_numbers,
    )  # fmt: skip


class _Call:
    """A remembered launch, for tensors of the same dtypes, shapes and strides.

    Attributes:
        runtime: the HIP runtime to launch with.
        kernel: the kernel to launch.
        form: how the launch uses its tensors.
        words: the kernel's arguments as words of 8 bytes.
        scratch: pairs of a word that is an address of scratch memory, and its offset in the scratch memory.
        scratch_bytes: the size of the scratch memory; 0 for none.
        made: an example without elements, shape and strides of each tensor that the call makes.
        result: the number of the tensor that the call returns, or several in a tuple; None if it returns none.
        constant: what the call returns if it returns no tensors: None, or numbers.
        filled: complete launches by their addresses, since the layers of a model recur.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
        sizes: bytes of each given tensor, from its first element to the end of its last.
        apart: pairs of a tensor that is written, and one with which it must not share memory.
        fixed: a tensor that is written, one within its extent, and how far behind it that must start, as in the
            remembered call.
    """

    __slots__ = (
        "apart", "constant", "filled", "fixed", "form", "kernel", "made", "result", "runtime", "scratch",
        "scratch_bytes", "sizes", "was_repeated", "words",
    )  # fmt: skip

    def __init__(
        self,
        launch: Launch,
        kernel: Kernel,
        names: list[str],
        tensors: list[torch.Tensor],
        addresses: tuple[int, ...],
        result: object,
    ) -> None:
        """
        Args:
            names: the names of the function's arguments that are ``tensors``.
            addresses: those of ``tensors``.
            result: the function's result: None, one of ``tensors`` or a new tensor, a tuple of such, or of numbers.
        """
        pointers = launch.pointers
        names_of_pointers, pointed = zip(*pointers.values(), strict=True)
        self.runtime = arrays.runtime_of(*tensors)
        self.kernel = kernel
        self.words = launch.words
        words = words_of(launch, pointers)
        self.form = _form(
            words, tuple(pointers), names_of_pointers, tuple(names), tuple(launch.made), launch.aligned, launch.written
        )
        *offsets, self.scratch_bytes = launch.scratch_offsets
        self.scratch = tuple(zip(words_of(launch, launch.scratch), offsets, strict=True))
        self.made = [(made.new_empty(0), made.shape, made.stride()) for made in launch.made.values()]
        self.constant = None if _has_tensors(result) else result
        self.result = _numbers(result, [*tensors, *launch.made.values()]) if _has_tensors(result) else None
        self.filled: dict[tuple[int, ...], hip.Launch] = {}
        self.was_repeated = False
        for (_, number), name, tensor in zip(self.form.places, names_of_pointers, pointed, strict=True):
            begins = number >= len(addresses) or tensor.data_ptr() == addresses[number]
            assert begins, f"{name} must be passed on from its beginning"
        self.sizes = tuple(map(extent, tensors))
        apart: list[tuple[int, int]] = []
        fixed: list[tuple[int, int, int]] = []
        for output in self.form.written:
            for other in range(len(addresses)):
                if other == output:
                    continue
                if self._are_apart(addresses, output, other):
                    apart.append((output, other))
                else:
                    fixed.append((output, other, addresses[other] - addresses[output]))
        self.apart, self.fixed = tuple(apart), tuple(fixed)

    @property
    def bytes(self) -> int:
        """An estimate of the call's memory."""
        of_launch = len(self.words) * self.words.itemsize + _BYTES_OF_LAUNCH
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
        self.runtime.relaunch(launch, tensors, self.form.used)
        return True

    def result_among(self, tensors: list[torch.Tensor]) -> Any:
        """The result of a repeated call, after ``repeat`` has appended the new tensors."""
        result = self.result
        if type(result) is tuple:
            return tuple([tensors[number] for number in result])
        return self.constant if result is None else tensors[result]

    def _filled_in(self, addresses: tuple[int, ...]) -> hip.Launch:
        words = self.words[:]
        for place, number in self.form.places:
            words[place] = addresses[number]
        for place, offset in self.scratch:
            words[place] = addresses[-1] + offset
        return self.kernel.entry_point, words.tobytes()

    def _allows(self, addresses: tuple[int, ...]) -> bool:
        if 0 in addresses:  # a tensor without elements, or without memory, as on the meta device
            return False
        for index in self.form.aligned:
            if addresses[index] % _ALIGNMENT:
                return False
        for output, other in self.apart:
            if not self._are_apart(addresses, output, other):
                return False
        return all(addresses[other] - addresses[output] == distance for output, other, distance in self.fixed)

    def _are_apart(self, addresses: tuple[int, ...], one: int, other: int) -> bool:
        begin, other_begin = addresses[one], addresses[other]
        return other_begin >= begin + self.sizes[one] or begin >= other_begin + self.sizes[other]


def _has_tensors(result: object) -> bool:
    first = result[0] if isinstance(result, tuple) else result
    return isinstance(first, torch.Tensor)


def _numbers(result: object, tensors: list[torch.Tensor]) -> Any:
    """The number of the tensor that is ``result``; a tuple of numbers for a tuple."""
    if isinstance(result, tuple):
        return tuple(_numbers(part, tensors) for part in result)
    return [tensor is result for tensor in tensors].index(True)

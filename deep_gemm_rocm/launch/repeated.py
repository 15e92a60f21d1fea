"""Runs the launch that a public function describes, and repeats it cheaply for similar calls.

A call's checks, its choice of a kernel and nearly all of the kernel's arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. The launch is remembered by these. A call that differs from an earlier
one only in addresses exchanges the addresses. All other calls run the function itself, which also raises all errors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from ctypes import Structure
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch

from .. import forking
from ..checks import extent
from ..jit import Kernel
from ..runtime import hip, session, settings
from . import described, planning, scratch
from .launch import Launch, ready_kernel, words_of

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
        known: the calls, by everything that their launches or checks depend on.
        settings: the session's settings, part of every key.
        bytes: an estimate of the memory of ``known``.
    """

    rests_on_choices = True

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], _Call | _Checked[Any]] = {}
        self.settings = session.current().of(settings.Settings)
        self.bytes = 0
        self._changing = forking.Lock()

    def add(self, key: tuple[Any, ...], call: _Call | _Checked[Any]) -> None:
        """Remembers a call."""
        with self._changing:
            replaced = self.known.pop(key, None)
            if replaced is not None:
                self._forget(replaced)
            self.bytes += call.bytes
            self.known[key] = call
            call.is_known = True
            self._shrink()

    def add_launch(self, call: _Call, addresses: tuple[int, ...], launch: hip.Launch) -> None:
        """Remembers the launch of a call for some addresses."""
        with self._changing:
            before = call.bytes
            call.filled[addresses] = launch
            while call.bytes > _MOST_BYTES_OF_CALL:
                del call.filled[next(iter(call.filled))]
            if call.is_known:  # another thread may have forgotten it meanwhile
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
                self._forget(call)

    def _forget(self, call: _Call | _Checked[Any]) -> None:
        self.bytes -= call.bytes
        call.is_known = False


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
        if type(call) is _Call and call.repeat(tensors, addresses, calls):
            return call.result_among(tensors)
        result, launch = function(*args, **kwargs)
        if launch is None:
            return result
        ready = ready_kernel(launch)
        if ready is None:
            return result
        if found is None or call is not None or not launch.repeats:
            used = {name: tensor for name, tensor in launch.tensors.items() if name not in launch.made}
            _Call(launch, *ready, list(used)).begin(launch, list(used.values()))
            return result
        given = described.names_of_tensors(zip(names, args, strict=False), kwargs)
        call = _Call(launch, *ready, given)
        call.begin(launch, tensors)
        call.remember_result(result, [*tensors, *launch.made.values()])
        calls.add(key, call)
        return result

    launching.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return launching


def checked_once(check: Callable[_P, _R], *, aligned: tuple[str, ...], written: tuple[str, ...]) -> Callable[_P, _R]:
    """Turns a function that checks arguments into one that does so once for similar calls, and returns the same again.

    It is for public functions of several launches, each of which is remembered by itself.

    Args:
        aligned, written: as in ``_Addresses``, but names.
    """
    names = tuple(inspect.signature(check).parameters)

    @functools.wraps(check)
    def checking(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        calls, known = session.current().of(Calls), None
        found = described.described(check, calls.settings.values, args, kwargs)
        if found is None:
            return check(*args, **kwargs)
        key, tensors, addresses = found
        try:
            known = calls.known.get(key)
        except TypeError:  # an argument has no hash
            return check(*args, **kwargs)
        if type(known) is _Checked and known.addresses.allow(tensors, addresses):
            known.was_repeated = True
            return known.result
        result = check(*args, **kwargs)
        if known is None and 0 not in addresses:  # of tensors on the meta device, for one
            given = described.names_of_tensors(zip(names, args, strict=False), kwargs)
            numbers = ([number for number, name in enumerate(given) if name in chosen] for chosen in (aligned, written))
            calls.add(key, _Checked(result, _Addresses(addresses, *map(tuple, numbers))))
        return result

    return checking


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
        scratch: words that are addresses of scratch memory.
        used: number and name of each tensor that the kernel works on.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written.
    """

    places: tuple[tuple[int, int], ...]
    scratch: tuple[int, ...]
    used: dict[int, str]
    aligned: tuple[int, ...]
    written: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _form(
    structure: type[Structure],
    paths: tuple[str, ...],
    names: tuple[str, ...],
    scratch: tuple[str, ...],
    given: tuple[str, ...],
    made: tuple[str, ...],
    aligned: tuple[str, ...],
    written: tuple[str, ...],
) -> _Form:
    """
    Args:
        structure: the type of the kernel's arguments.
        paths, names: the path and the tensor's name of each pointer, as in ``Launch.pointers``.
        scratch, aligned, written: paths as in ``Launch``.
        given, made: names of the tensors in the order of their numbers.
    """
    numbers = {name: number for number, name in enumerate((*given, *made))}
    of_pointers = [numbers[name] for name in names]
    among_given = dict(zip(paths, of_pointers, strict=True))
    aligned_numbers, written_numbers = (
        tuple(sorted({among_given[path] for path in chosen if path in among_given} & set(range(len(given)))))
        for chosen in (aligned, written)
    )
    return _Form(
        tuple(zip(words_of(structure, paths), of_pointers, strict=True)), words_of(structure, scratch),
        dict(zip(of_pointers, names, strict=True)), aligned_numbers, written_numbers,
    )  # fmt: skip


class _Addresses:
    """Where tensors may start in calls that are similar to a checked one.

    Attributes:
        checked: the addresses of the checked call.
        aligned: numbers of the tensors that must start at a multiple of 16 bytes.
        written: numbers of the tensors that are written. They share no memory with others, except with those with which
            they did in the checked call, at the same distance.
        pairs: pairs of a tensor that is written and another one, and the distance between their addresses, None if they
            must not share memory; None until they are needed.
        sizes: bytes of each tensor, from its first element to the end of its last.
    """

    __slots__ = ("aligned", "checked", "pairs", "sizes", "written")

    def __init__(self, checked: tuple[int, ...], aligned: tuple[int, ...], written: tuple[int, ...]) -> None:
        self.checked = checked
        self.aligned = aligned
        self.written = written
        self.pairs: list[tuple[int, int, int | None]] | None = None
        self.sizes: tuple[int, ...] = ()

    def allow(self, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> bool:
        """Whether tensors may be at these addresses. Further tensors may follow those of the checked call."""
        if 0 in addresses:  # a tensor without elements, or without memory, as on the meta device
            return False
        for index in self.aligned:
            if addresses[index] % _ALIGNMENT:
                return False
        for output, other, distance in self._pairs(tensors):
            if distance is None:
                if not self._are_apart(addresses, output, other):
                    return False
            elif addresses[other] - addresses[output] != distance:
                return False
        return True

    def _pairs(self, tensors: list[torch.Tensor]) -> list[tuple[int, int, int | None]]:
        if self.pairs is None:
            checked = self.checked
            self.sizes = tuple(map(extent, tensors[: len(checked)]))
            self.pairs = [
                (output, other, None if self._are_apart(checked, output, other) else checked[other] - checked[output])
                for output in self.written
                for other in range(len(checked))
                if other != output
            ]
        return self.pairs

    def _are_apart(self, addresses: tuple[int, ...], one: int, other: int) -> bool:
        begin, other_begin = addresses[one], addresses[other]
        return other_begin >= begin + self.sizes[one] or begin >= other_begin + self.sizes[other]


class _Call:
    """A remembered launch, for tensors of the same dtypes, shapes and strides.

    Attributes:
        runtime: the HIP runtime to launch with.
        kernel: the kernel to launch.
        form: how the launch uses its tensors.
        words: the kernel's arguments as words of 8 bytes.
        offsets: of each part of the scratch memory.
        scratch_bytes: the size of the scratch memory; 0 for none.
        made: shape, strides and dtype of each tensor that the call makes.
        result: the number of the tensor that the call returns, or several in a tuple; None if it returns none.
        constant: what the call returns if it returns no tensors: None, or numbers.
        filled: complete launches by their addresses, since the layers of a model recur.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
        is_known: whether it is among ``Calls.known``.
        contents: checks of contents, and the numbers of the tensors that they take.
        addresses: where the given tensors may start.
    """

    __slots__ = (
        "addresses", "constant", "contents", "filled", "form", "is_known", "kernel", "made", "offsets", "result",
        "runtime", "scratch_bytes", "was_repeated", "words",
    )  # fmt: skip

    def __init__(self, launch: Launch, runtime: hip.Runtime, kernel: Kernel, names: list[str]) -> None:
        """
        Args:
            runtime, kernel: as ``ready_kernel`` returns them.
            names: the names of the tensors that are given, in the order of their numbers.
        """
        names_of_pointers = tuple([name for name, _ in launch.pointers.values()])
        self.runtime = runtime
        self.kernel = kernel
        self.words = launch.words
        self.form = _form(
            type(launch.arguments), tuple(launch.pointers), names_of_pointers, tuple(launch.scratch),
            tuple(names), tuple(launch.made), launch.aligned, launch.written,
        )  # fmt: skip
        *self.offsets, self.scratch_bytes = launch.scratch_offsets
        self.made = [(made.shape, made.stride(), made.dtype) for made in launch.made.values()]
        self.result: Any = None
        self.constant: Any = None
        self.contents = [(check, [names.index(name) for name in of]) for check, of in launch.contents]
        self.filled: dict[tuple[int, ...], hip.Launch] = {}
        self.was_repeated = False
        self.is_known = False

    def begin(self, launch: Launch, given: list[torch.Tensor]) -> None:
        """Launches for the first time, on the tensors of ``launch``, some of which are ``given``."""
        tensors = [*given, *launch.made.values()]
        addresses = tuple([tensor.data_ptr() for tensor in tensors])
        for (_, number), (name, tensor) in zip(self.form.places, launch.pointers.values(), strict=True):
            if tensor is not tensors[number]:
                begins = tensor.data_ptr() == addresses[number] or tensor.numel() == 0
                assert begins, f"{name} must be passed on from its beginning"
        self.addresses = _Addresses(addresses[: len(given)], self.form.aligned, self.form.written)
        if self.scratch_bytes:
            addresses += (self._scratch_address(tensors[0]),)
        self.filled[addresses] = filled_in = self._filled_in(addresses)
        self.runtime.relaunch(filled_in, tensors, self.form.used)

    @property
    def bytes(self) -> int:
        """An estimate of the call's memory."""
        of_launch = len(self.words) * self.words.itemsize + _BYTES_OF_LAUNCH
        return _BYTES_OF_CALL + len(self.filled) * of_launch

    def repeat(self, tensors: list[torch.Tensor], addresses: tuple[int, ...], calls: Calls) -> bool:
        """Launches on other tensors, and appends those that it makes; False, without a launch, for unfit addresses.

        Args:
            calls: the session's calls, which remember this one.

        Raises:
            ValueError: the contents of a tensor are wrong.
        """
        for check, numbers in self.contents:
            check(*[tensors[number] for number in numbers])
        like = tensors[0]
        for shape, strides, dtype in self.made:
            tensors.append(made := like.new_empty_strided(shape, strides, dtype=dtype))
            addresses += (made.data_ptr(),)
        if self.scratch_bytes:
            addresses += (self._scratch_address(tensors[0]),)
        launch = self.filled.get(addresses)
        if launch is None:
            if not self.addresses.allow(tensors, addresses):
                del tensors[len(tensors) - len(self.made) :]
                return False
            launch = self._filled_in(addresses)
            calls.add_launch(self, addresses, launch)
        self.was_repeated = True
        self.runtime.relaunch(launch, tensors, self.form.used)
        return True

    def remember_result(self, result: object, tensors: list[torch.Tensor]) -> None:
        """
        Args:
            result: None, one of ``tensors``, a tuple of such, or of numbers.
        """
        if _has_tensors(result):
            self.result = _numbers(result, tensors)
        else:
            self.constant = result

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
        for place, offset in zip(self.form.scratch, self.offsets, strict=True):
            words[place] = addresses[-1] + offset
        return self.kernel.entry_point, words.tobytes()

    def _scratch_address(self, tensor: torch.Tensor) -> int:
        return scratch.memory(self.runtime, self.scratch_bytes, tensor).address


class _Checked(Generic[_R]):
    """The remembered result of a check of arguments.

    Attributes:
        result: what the check returned.
        addresses: where the tensors may start.
        was_repeated, is_known: as of ``_Call``.
    """

    __slots__ = ("addresses", "is_known", "result", "was_repeated")

    bytes = _BYTES_OF_CALL

    def __init__(self, result: _R, addresses: _Addresses) -> None:
        self.result = result
        self.addresses = addresses
        self.was_repeated = False
        self.is_known = False


def _has_tensors(result: object) -> bool:
    first = result[0] if isinstance(result, tuple) else result
    return isinstance(first, torch.Tensor)


def _numbers(result: object, tensors: list[torch.Tensor]) -> Any:
    """The number of the tensor that is ``result``; a tuple of numbers for a tuple."""
    if isinstance(result, tuple):
        return tuple(_numbers(part, tensors) for part in result)
    return [tensor is result for tensor in tensors].index(True)

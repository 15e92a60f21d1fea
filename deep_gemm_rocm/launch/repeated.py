"""Runs the launches that a public function describes, and repeats them cheaply for similar calls.

A call's checks, its choice of kernels and nearly all of the kernels' arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. The launches are remembered by these. A call that differs from an earlier
one only in addresses exchanges the addresses. All other calls run the function itself, which also raises all errors.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from array import array
from collections.abc import Callable, Sequence
from ctypes import Structure
from operator import itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from .. import forking
from ..checks import extent
from ..jit import Kernel
from ..runtime import hip, session, settings
from . import described, planning, scratch
from .launch import SCRATCH_ALIGNMENT, Launch, ready_kernels, words_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

# A function's result and its launches, in their order; None if nothing is to be computed.
Described = tuple[_R, Launch | list[Launch] | None]

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
        self.known: dict[tuple[Any, ...], _Call] = {}
        self.settings = session.current().of(settings.Settings)
        self.bytes = 0
        self._changing = forking.Lock()

    def add(self, key: tuple[Any, ...], call: _Call) -> None:
        """Remembers a call."""
        with self._changing:
            replaced = self.known.pop(key, None)
            if replaced is not None:
                self._forget(replaced)
            self.bytes += call.bytes
            self.known[key] = call
            call.is_known = True
            self._shrink()

    def add_launches(self, call: _Call, addresses: tuple[int, ...], launches: tuple[hip.Launch, ...]) -> None:
        """Remembers the launches of a call for some addresses."""
        with self._changing:
            before = call.bytes
            call.filled[addresses] = launches
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

    def _forget(self, call: _Call) -> None:
        self.bytes -= call.bytes
        call.is_known = False


def launches(function: Callable[_P, Described[_R]]) -> Callable[_P, _R]:
    """Turns a function that describes its launches into a public function, which runs them and returns the result.

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
        result, to_launch = function(*args, **kwargs)
        if to_launch is None:
            return result
        in_order = [to_launch] if isinstance(to_launch, Launch) else to_launch
        ready = ready_kernels(in_order)
        if ready is None:
            return result
        if found is None or call is not None or not all([launch.repeats for launch in in_order]):
            _launch(in_order, *ready)
            return result
        given = described.names_of_tensors(zip(names, args, strict=False), kwargs)
        call = _Call(in_order, *ready, given, tensors, addresses, result)
        if call.made:  # not as in repeated calls, since the tensors are there already
            _launch(in_order, *ready)
        else:
            call.launch(tensors, addresses)
        calls.add(key, call)
        return result

    launching.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return launching


def _public_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature for callers: ``Described[X]`` is returned as ``X``."""
    signature = inspect.signature(function)
    described = str(signature.return_annotation)
    return signature.replace(return_annotation=described.removeprefix("Described[").removesuffix("]"))


def _launch(launches: list[Launch], runtime: hip.Runtime, kernels: list[Kernel]) -> None:
    """Launches on the tensors that the launches name."""
    filled: list[hip.Launch] = []
    tensors: list[torch.Tensor] = []
    used: list[dict[int, str]] = []
    for launch, kernel in zip(launches, kernels, strict=True):
        words, structure = launch.words, type(launch.arguments)
        used.append({})
        for place, (name, tensor) in zip(
            words_of(structure, tuple(launch.pointers)), launch.pointers.values(), strict=True
        ):
            words[place] = tensor.data_ptr()
            used[-1][len(tensors)] = name
            tensors.append(tensor)
        *offsets, size = launch.scratch_offsets
        if size:
            begin = scratch.memory(runtime, size, tensors[0]).address
            for place, offset in zip(words_of(structure, tuple(launch.scratch)), offsets, strict=True):
                words[place] = begin + offset
        filled.append((kernel.entry_point, words.tobytes()))
    runtime.relaunch(filled, tensors, used)


class _Form(NamedTuple):
    """How a launch uses a call's tensors, which have numbers, whatever their sizes are.

    Attributes:
        places: of each word that is an address, its index, the number of the tensor, and 0.
        scratch: words that are addresses of scratch memory.
        used: number and name of each tensor that the kernel works on.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written.
    """

    places: tuple[tuple[int, int, int], ...]
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
    by_path = dict(zip(paths, of_pointers, strict=True))
    aligned_numbers, written_numbers = (
        tuple(sorted({by_path[path] for path in chosen if path in by_path} & set(range(len(given)))))
        for chosen in (aligned, written)
    )
    places = zip(words_of(structure, paths), of_pointers, itertools.repeat(0), strict=False)
    used = dict(zip(of_pointers, names, strict=True))
    return _Form(tuple(places), words_of(structure, scratch), used, aligned_numbers, written_numbers)


class _Step(NamedTuple):
    """One launch of a call, without addresses.

    Attributes:
        entry_point: the kernel's.
        words: its arguments as words of 8 bytes.
        places: of each word that is an address, its index, the number of a tensor, and bytes from that one's beginning.
        scratch: of each word that is an address of scratch memory, its index, and bytes from the memory's beginning.
        used: number and name of each tensor that the kernel works on.
    """

    entry_point: hip.EntryPoint
    words: array[int]
    places: tuple[tuple[int, int, int], ...]
    scratch: tuple[tuple[int, int], ...]
    used: dict[int, str]

    def filled_in(self, addresses: Sequence[int]) -> hip.Launch:
        """
        Args:
            addresses: of each tensor, by its number, and of the scratch memory.
        """
        words = self.words[:]
        for place, number, offset in self.places:
            words[place] = addresses[number] + offset
        for place, offset in self.scratch:
            words[place] = addresses[-1] + offset
        return self.entry_point, words.tobytes()

    def moved(self, where: Sequence[tuple[int, int]]) -> _Step:
        """
        Args:
            where: for the number of each tensor, that of another, and how many bytes behind its beginning it begins.
        """
        places = [(place, where[number][0], where[number][1] + offset) for place, number, offset in self.places]
        used = {where[number][0]: name for number, name in self.used.items()}
        return self._replace(places=tuple(places), used=used)


def _places(
    form: _Form, launch: Launch, tensors: list[torch.Tensor], num_given: int
) -> tuple[tuple[int, int, int], ...]:
    """``places`` of a step on ``tensors``, of which the launch may use views."""
    places = form.places
    for index, (name, tensor) in enumerate(launch.pointers.values()):
        place, number, _ = places[index]
        if tensor is not tensors[number] and tensor.numel():
            offset = tensor.data_ptr() - tensors[number].data_ptr()
            assert offset == 0 or number >= num_given, f"{name} must be passed on from its beginning"
            places = (*places[:index], (place, number, offset), *places[index + 1 :])
    return places


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
    """Remembered launches, for tensors of the same dtypes, shapes and strides.

    Tensors are numbered: first those among the call's arguments, then new ones that the call returns. If the call
    makes more, all of these are parts of one more.

    Attributes:
        runtime: the HIP runtime to launch with.
        steps: the launches.
        used: ``used`` of all steps.
        scratch_bytes: the size of the scratch memory; 0 for none.
        made: of each tensor that the call makes, the arguments of ``torch.empty_strided``.
        result_among: takes all tensors and gives what the call returns.
        contents: checks of contents, and the numbers of the tensors that they take.
        addresses: where the given tensors may start.
        filled: complete launches by their addresses, since the layers of a model recur.
        bytes_of_call, bytes_of_launches: estimates of the memory without ``filled``, and of each entry of it.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
        is_known: whether it is among ``Calls.known``.
    """

    __slots__ = (
        "addresses", "bytes_of_call", "bytes_of_launches", "contents", "filled", "is_known", "made", "result_among",
        "runtime", "scratch_bytes", "steps", "used", "was_repeated",
    )  # fmt: skip

    def __init__(
        self,
        launches: list[Launch],
        runtime: hip.Runtime,
        kernels: list[Kernel],
        names: list[str],
        given: list[torch.Tensor],
        addresses: tuple[int, ...],
        result: Any,
    ) -> None:
        """
        Args:
            launches: those of the first call.
            runtime, kernels: as ``ready_kernels`` returns them.
            names, given, addresses: the tensors among the call's arguments.
            result: None, a tensor, a tuple of tensors, or anything without tensors.
        """
        made: dict[str, torch.Tensor] = {}
        for launch in launches:
            made.update(launch.made)
        tensors = [*given, *made.values()]
        self.runtime = runtime
        self.steps: list[_Step] = []
        self.scratch_bytes = self.bytes_of_launches = 0
        self.contents: list[tuple[Callable[..., None], list[int]]] = []
        aligned: tuple[int, ...] = ()
        written: tuple[int, ...] = ()
        for launch, kernel in zip(launches, kernels, strict=True):
            form = _form(
                type(launch.arguments), tuple(launch.pointers), tuple([name for name, _ in launch.pointers.values()]),
                tuple(launch.scratch), tuple(names), tuple(made), launch.aligned, launch.written,
            )  # fmt: skip
            *offsets, size = launch.scratch_offsets
            words, places = launch.words, _places(form, launch, tensors, len(given))
            in_scratch = tuple(zip(form.scratch, offsets, strict=True)) if size else ()
            entry_point = described.quick_entry_point(kernel.entry_point)
            self.steps.append(_Step(entry_point, words, places, in_scratch, form.used))
            self.scratch_bytes = max(self.scratch_bytes, size)
            self.bytes_of_launches += len(words) * words.itemsize + _BYTES_OF_LAUNCH
            for check, of in launch.contents:
                self.contents.append((check, [names.index(name) for name in of]))
            aligned += form.aligned
            written += form.written
        self.bytes_of_call = len(launches) * _BYTES_OF_CALL
        self.addresses = _Addresses(addresses, aligned, written)
        self.made: list[described.Form] = []
        if made:
            tensors = self._make(tensors, len(given), result)
        self.used = [step.used for step in self.steps]
        self.result_among = _result_among(result, tensors)
        self.filled: dict[tuple[int, ...], tuple[hip.Launch, ...]] = {}
        self.was_repeated = False
        self.is_known = False

    def _make(self, tensors: list[torch.Tensor], num_given: int, result: Any) -> list[torch.Tensor]:
        """Prepares what repeated calls make in place of the ``tensors`` behind ``num_given``.

        Returns:
            the tensors that have a number of their own in repeated calls.
        """
        results = {id(part) for part in (result if isinstance(result, tuple) else (result,))}
        returned = [tensor for tensor in tensors[num_given:] if id(tensor) in results]
        own = tensors[:num_given] + returned
        self.made += [described.form_of(tensor) for tensor in returned]
        if len(own) < len(tensors):
            size, where, numbers = 0, [], itertools.count()
            for number, tensor in enumerate(tensors):
                if number < num_given or id(tensor) in results:
                    where.append((next(numbers), 0))
                else:
                    where.append((len(own), size))
                    size += -(-extent(tensor) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
            self.steps = [step.moved(where) for step in self.steps]
            self.made.append(described.form_of_bytes(size, tensors[0]))
        return own

    @property
    def bytes(self) -> int:
        """An estimate of the call's memory."""
        return self.bytes_of_call + len(self.filled) * self.bytes_of_launches

    def launch(self, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> None:
        """Launches for the first time, if the call makes no tensors."""
        if self.scratch_bytes:
            addresses += (scratch.memory(self.runtime, self.scratch_bytes, tensors[0]).address,)
        self.filled[addresses] = launches = tuple([step.filled_in(addresses) for step in self.steps])
        self.runtime.relaunch(launches, tensors, self.used)

    def repeat(self, tensors: list[torch.Tensor], addresses: tuple[int, ...], calls: Calls) -> bool:
        """Launches on other tensors, and appends those that it makes; False, without a launch, for unfit addresses.

        Args:
            calls: the session's calls, which remember this one.

        Raises:
            ValueError: the contents of a tensor are wrong.
        """
        for check, numbers in self.contents:
            check(*[tensors[number] for number in numbers])
        if self.made:
            addresses = described.make(self.made, tensors, addresses)
        if self.scratch_bytes:
            addresses += (scratch.memory(self.runtime, self.scratch_bytes, tensors[0]).address,)
        launches = self.filled.get(addresses)
        if launches is None:
            if not self.addresses.allow(tensors, addresses):
                return False
            launches = tuple([step.filled_in(addresses) for step in self.steps])
            calls.add_launches(self, addresses, launches)
        self.was_repeated = True
        self.runtime.relaunch(launches, tensors, self.used)
        return True


def _result_among(result: object, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], Any]:
    """A function that takes tensors in the same order, and gives what ``result`` would be among these."""
    if isinstance(result, torch.Tensor):
        return itemgetter(_number(result, tensors))
    if isinstance(result, tuple) and len(result) > 1 and isinstance(result[0], torch.Tensor):
        return itemgetter(*[_number(part, tensors) for part in result])
    return lambda _: result


def _number(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    return [other is tensor for other in tensors].index(True)

"""Runs the launches that a public function describes, and repeats them cheaply for similar calls.

A call's checks, its choice of kernels and nearly all of the kernels' arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. The launches are remembered by these. A call that differs from an earlier
one only in addresses exchanges the addresses. All other calls run the function itself, which also raises all errors.
"""

from __future__ import annotations

import functools
import inspect
import itertools
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
# Estimated sizes of objects: a call with its key, and a launch, without its arguments.
_BYTES_OF_CALL = 3072
_BYTES_OF_LAUNCH = 2048
_SCRATCH = -1  # in place of a tensor's number


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
                self.bytes -= replaced.bytes
            self.bytes += call.bytes
            self.known[key] = call
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
            if call is not None and call.repeat(tensors, addresses):
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


def describing(function: Callable[_P, _R]) -> Callable[_P, Described[_R]]:
    """What ``launches`` made this public function of, for another one with the same launches."""
    if _is_traced():  # torch 2.4 can't trace what a function wraps
        return lambda *args, **kwargs: (function(*args, **kwargs), None)
    described: Callable[_P, Described[_R]] = function.__wrapped__  # type: ignore[attr-defined]
    return described


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
    most_scratch = max(launch.scratch_offsets[-1] for launch in launches)
    some_tensor = next(iter(launches[0].tensors.values()))
    begin = scratch.memory(runtime, most_scratch, some_tensor).address if most_scratch else 0
    for launch, kernel in zip(launches, kernels, strict=True):
        words, structure = launch.words, type(launch.arguments)
        used.append({})
        for place, (name, tensor) in zip(
            words_of(structure, tuple(launch.pointers)), launch.pointers.values(), strict=True
        ):
            words[place] = tensor.data_ptr()
            used[-1][len(tensors)] = name
            tensors.append(tensor)
        for place, offset in zip(words_of(structure, tuple(launch.scratch)), launch.scratch_offsets, strict=False):
            words[place] = begin + offset
        filled.append((kernel.entry_point, words.tobytes()))
    runtime.relaunch(filled, tensors, used)


class _Form(NamedTuple):
    """How a launch uses a call's tensors, which have numbers, whatever their sizes are.

    Attributes:
        places: as of a ``Step`` on the tensors themselves, not views.
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


class _Call:
    """Remembered launches, for tensors of the same dtypes, shapes and strides.

    Tensors are numbered: first those among the call's arguments, then new ones that the call returns. If the call
    makes more, all of these are parts of one more.

    Attributes:
        runtime: the HIP runtime to launch with.
        steps: the launches.
        used: ``used`` of all steps.
        scratch_bytes: the size of the scratch memory; 0 for none.
        made: what each tensor that the call makes is like.
        result_among: takes all tensors and gives what the call returns.
        contents: checks of contents, and the numbers of the tensors that they take.
        checked: the addresses of the given tensors in the first call.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written. They share no memory with others, except with those with
            which they did in the first call, at the same distance.
        fill: fills in the launches; None until the first repetition.
        bytes: an estimate of the memory.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
    """

    __slots__ = (
        "aligned", "bytes", "checked", "contents", "fill", "made", "result_among", "runtime", "scratch_bytes", "steps",
        "used", "was_repeated", "written",
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
        self.steps: list[described.Step] = []
        self.used: list[dict[int, str]] = []
        self.scratch_bytes = 0
        self.bytes = _BYTES_OF_CALL
        self.contents: list[tuple[Callable[..., None], list[int]]] = []
        self.checked = addresses
        self.aligned: tuple[int, ...] = ()
        self.written: tuple[int, ...] = ()
        for launch, kernel in zip(launches, kernels, strict=True):
            form = _form(
                type(launch.arguments), tuple(launch.pointers), tuple([name for name, _ in launch.pointers.values()]),
                tuple(launch.scratch), tuple(names), tuple(made), launch.aligned, launch.written,
            )  # fmt: skip
            *offsets, size = launch.scratch_offsets
            places = _places(form, launch, tensors, len(given))
            if size:
                places += tuple((place, _SCRATCH, offset) for place, offset in zip(form.scratch, offsets, strict=True))
            entry_point, arguments = described.quick_entry_point(kernel.entry_point), bytes(launch.arguments)
            self.steps.append(described.Step(entry_point, arguments, places))
            self.used.append(form.used)
            self.scratch_bytes = max(self.scratch_bytes, size)
            self.bytes += 2 * len(arguments) + _BYTES_OF_LAUNCH
            for check, of in launch.contents:
                self.contents.append((check, [names.index(name) for name in of]))
            self.aligned += form.aligned
            self.written += form.written
        self.made: list[described.Form] = []
        if made:
            tensors = self._make(tensors, len(given), result)
        self.result_among = _result_among(result, tensors)
        self.fill: described.Fill | None = None
        self.was_repeated = False

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
            where.append((_SCRATCH, 0))
            self.steps = [_moved(step, where) for step in self.steps]
            self.used = [{where[number][0]: name for number, name in used.items()} for used in self.used]
            self.made.append(described.form_of_bytes(size, tensors[0]))
        return own

    def launch(self, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> None:
        """Launches for the first time, if the call makes no tensors."""
        addresses = self._with_scratch(tensors, addresses)
        self.runtime.relaunch([step.filled_in(addresses) for step in self.steps], tensors, self.used)

    def repeat(self, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> bool:
        """Launches on other tensors, and appends those that it makes; False, without a launch, for unfit addresses.

        Raises:
            ValueError: the contents of a tensor are wrong.
        """
        for check, numbers in self.contents:
            check(*[tensors[number] for number in numbers])
        fill = self.fill
        if fill is None:
            fill = self.fill = self._filler(tensors)
        if self.made:
            addresses = described.make(self.made, tensors, addresses)
        if self.scratch_bytes:
            addresses = self._with_scratch(tensors, addresses)
        launches = fill(addresses)
        if launches is None:
            return False
        self.was_repeated = True
        self.runtime.relaunch(launches, tensors, self.used)
        return True

    def _with_scratch(self, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> tuple[int, ...]:
        if not self.scratch_bytes:
            return addresses
        return (*addresses, scratch.memory(self.runtime, self.scratch_bytes, tensors[0]).address)

    def _filler(self, tensors: list[torch.Tensor]) -> described.Fill:
        """Fills in addresses of tensors like the given ``tensors``."""
        checked, apart, together = self.checked, [], []
        sizes = list(map(extent, tensors))
        pairs = [(one, other) for one in self.written for other in range(len(checked)) if other != one]
        for one, other in pairs:
            distance = checked[other] - checked[one]
            if distance >= sizes[one] or -distance >= sizes[other]:
                apart.append((one, other, sizes[one], sizes[other]))
            else:
                together.append((one, other, distance))
        return described.filler(self.steps, self.aligned, apart, together)


def _moved(step: described.Step, where: Sequence[tuple[int, int]]) -> described.Step:
    """
    Args:
        where: for the number of each tensor, that of another, and how many bytes behind its beginning it begins.
    """
    places = [(place, where[number][0], where[number][1] + offset) for place, number, offset in step.places]
    return step._replace(places=tuple(places))


def _result_among(result: object, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], Any]:
    """A function that takes tensors in the same order, and gives what ``result`` would be among these."""
    if isinstance(result, torch.Tensor):
        return itemgetter(_number(result, tensors))
    if isinstance(result, tuple) and len(result) > 1 and isinstance(result[0], torch.Tensor):
        return itemgetter(*[_number(part, tensors) for part in result])
    return lambda _: result


def _number(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    return [other is tensor for other in tensors].index(True)

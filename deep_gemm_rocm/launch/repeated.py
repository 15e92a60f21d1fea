"""Runs the launches that a public function describes, and repeats them cheaply for similar calls.

A call's checks, its choice of kernels and nearly all of the kernels' arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. The launches are remembered by these. A call that differs from an earlier
one only in addresses exchanges the addresses. One of another size also exchanges what depends on this, if the function
says what that is. All other calls run the function itself, which also raises all errors.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import Structure
from operator import itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from .. import forking
from ..checks import extent
from ..jit import Kernel, Kernels
from ..runtime import hip, session, settings
from . import fast_path, planning
from .launch import SCRATCH_ALIGNMENT, Launch, packers_of, ready_kernels, scratch_offsets, words_of
from .scratch import Scratch

_P = ParamSpec("_P")
_R = TypeVar("_R")

# A function's result and its launches, in their order; None if nothing is to be computed.
Described = tuple[_R, Launch | list[Launch] | None]

# Finds the family of a call under settings, with positional arguments and keywords, from its key and addresses.
_FamilyOf = Callable[
    [object, tuple[Any, ...], dict[str, Any], tuple[Any, ...], tuple[int, ...]], "fast_path.Family | None"
]

_is_traced = torch.compiler.is_dynamo_compiling

_MOST_BYTES = 16 * 2**20  # of memory for the remembered calls of a session
# Estimated sizes of objects: a call or a family with its key, and a launch, without its arguments.
_BYTES_OF_CALL = 3072
_BYTES_OF_KEY = 1024
_BYTES_OF_LAUNCH = 2048
_SCRATCH = -1  # in place of a tensor's number


class Calls(session.Part):
    """The remembered calls.

    Their memory is bounded by the CLOCK algorithm: the oldest call is forgotten, unless it was repeated since its last
    turn.

    Attributes:
        known: each ``_Call``, by everything that its launches or checks depend on, or ``_SEEN``, and each ``_Family``,
            by all of this but its size.
        settings: the session's settings, part of every key.
        bytes: an estimate of the memory of ``known``.
    """

    rests_on_choices = True

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Any] = {}
        self.settings = session.current().of(settings.Settings)
        self.bytes = 0
        self._changing = forking.Lock()

    def add(self, key: tuple[Any, ...], call: _Call | _Family | _Seen) -> None:
        """Remembers a call, a family, or that a call was seen."""
        with self._changing:
            replaced = self.known.pop(key, None)
            if replaced is not None:
                self.bytes -= replaced.bytes
            self.bytes += call.bytes
            self.known[key] = call
            self._shrink()

    def add_family(self, found: fast_path.Family, family: _Family) -> None:
        """Remembers a family, if nothing but what it knows depends on the size."""
        if family.is_known(found.columns) and family.is_in_place:
            self.add(found.key, family)

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
    return _launching(function, None)


def launches_of_rows(*rows: str) -> Callable[[Callable[_P, Described[_R]]], Callable[_P, _R]]:
    """``launches`` for a function that takes any number of rows from 2 on if it takes one.

    ``Launch.sizes`` refuses exceptions.

    Args:
        rows: the names of all tensors whose shapes depend on the number of rows, which is their first dimension.
    """
    return lambda function: _launching(function, fast_path.FamilyOfRows(_parameters(function), rows))


def launches_of_number(name: str) -> Callable[[Callable[_P, Described[_R]]], Callable[_P, _R]]:
    """``launches`` for a function whose argument of this name, an int, decides only what ``Launch.sizes`` tells."""
    return lambda function: _launching(
        function,
        functools.partial(fast_path.family_of_number, function, _parameters(function).index(name), name),
    )


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _launching(function: Callable[_P, Described[_R]], family_of: _FamilyOf | None) -> Callable[_P, _R]:
    parameters = _parameters(function)

    @functools.wraps(function)
    def launching(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if _is_traced():
            return function(*args, **kwargs)[0]
        calls, call, found, family = session.current().of(Calls), None, None, None
        if planning.current() is None:
            asked = function, calls.settings.values, calls.known, args, kwargs
            found, again = fast_path.recall(*asked)
            if again is not None:
                call, tensors, launches = again
                return call.repeat(tensors, launches)
        if found is not None:
            key, tensors, addresses = found
            call = calls.known.get(key)
            if call is None or call is _SEEN:
                family = None if family_of is None else family_of(calls.settings.values, args, kwargs, key, addresses)
                like = None if family is None else calls.known.get(family.key)
                if family is None or like is None:
                    call = None
                elif call is _SEEN:
                    calls.add(key, call := like.call(family))
                elif like.launch_once(family, tensors, addresses):
                    calls.add(key, _SEEN)
                    return like.plan.result_among(tensors)
            if call is not None and call.fill is None:
                call.prepare(key, tensors)
                _, again = fast_path.recall(*asked)
                if again is not None:
                    return call.repeat(*again[1:])
        result, to_launch = function(*args, **kwargs)
        if to_launch is None:
            return result
        in_order = [to_launch] if isinstance(to_launch, Launch) else to_launch
        ready = ready_kernels(in_order)
        if ready is None:
            return result
        if found is None:
            names, tensors = _named(in_order)
        else:
            names = fast_path.names_of_tensors(zip(parameters, args, strict=False), kwargs)
        plan = _Plan(in_order, ready[0], names, tensors, result)
        first = plan.launch(in_order, ready[1], tensors)
        if found is not None and call is None:
            fast_path.keep_names(kwargs)
            calls.add(key, plan.call(first, *plan.made(), first_addresses=addresses))
            if family is not None and family.is_clear:
                calls.add_family(family, _Family(plan, in_order, tensors, addresses))
        return result

    launching.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return launching


def _named(launches: list[Launch]) -> tuple[list[str], list[torch.Tensor]]:
    """Names and tensors that launches take and don't make."""
    made = {name for launch in launches for name in launch.made}
    named = {name: tensor for launch in launches for name, tensor in launch.tensors.items() if name not in made}
    return list(named), list(named.values())


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


# A launch without addresses: a kernel, its arguments, and its scratch memory as in ``Launch``.
_Filled = tuple[hip.EntryPoint, bytes, Mapping[str, int]]


class _Uses(NamedTuple):
    """How a launch uses a call's tensors, which have numbers, whatever their sizes are.

    Attributes:
        places: as of a ``Step`` on the tensors themselves, not views.
        used: number and name of each tensor that the kernel works on.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written.
    """

    places: fast_path.Places
    used: dict[int, str]
    aligned: tuple[int, ...]
    written: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _uses(
    structure: type[Structure],
    paths: tuple[str, ...],
    names: tuple[str, ...],
    given: tuple[str, ...],
    made: tuple[str, ...],
    aligned: tuple[str, ...],
    written: tuple[str, ...],
) -> _Uses:
    """
    Args:
        structure: the type of the kernel's arguments.
        paths, names: the path and the tensor's name of each pointer, as in ``Launch.pointers``.
        aligned, written: paths as in ``Launch``.
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
    return _Uses(tuple(places), used, aligned_numbers, written_numbers)


def _places(uses: _Uses, launch: Launch, tensors: list[torch.Tensor], num_given: int) -> fast_path.Places:
    """``places`` of a step on ``tensors``, of which the launch may use views."""
    places = uses.places
    for index, (name, tensor) in enumerate(launch.pointers.values()):
        place, number, _ = places[index]
        if tensor is not tensors[number] and tensor.numel():
            offset = tensor.data_ptr() - tensors[number].data_ptr()
            assert offset == 0 or number >= num_given, f"{name} must be passed on from its beginning"
            places = (*places[:index], (place, number, offset), *places[index + 1 :])
    return places


class _Plan:
    """How the launches of a call use tensors, whatever the sizes of these are.

    Tensors are numbered: first those among the call's arguments, then new ones. Repeated calls number new ones in
    another way: first those that the call returns, then one more, which consists of all others, then these.

    Attributes:
        runtime: the HIP runtime to launch with.
        contents: checks of contents, and the numbers of the tensors that they take.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written. They share no memory with others, except with those with
            which they did in the first call, at the same distance.
        returned: forms of the first call's new tensors that it returns.
        between: forms of the others, which lie between launches, by their names.
        filled: the number of each new tensor that is filled before the launches, in repeated calls, and with what.
        used: number and name of each tensor that a launch works on, in repeated calls.
        result_among: takes all tensors of a repeated call and gives what it returns.
    """

    __slots__ = (
        "_block", "_made", "_num_given", "_places", "_places_again", "_structures", "_used", "aligned", "between",
        "contents", "filled", "result_among", "returned", "runtime", "used", "written",
    )  # fmt: skip

    def __init__(
        self, launches: list[Launch], runtime: hip.Runtime, names: list[str], given: list[torch.Tensor], result: Any
    ) -> None:
        """
        Args:
            launches: those of the first call.
            names, given: the tensors among the call's arguments.
            result: None, a tensor, a tuple of tensors, or anything without tensors.
        """
        assert len(names) == len(given)
        made: dict[str, torch.Tensor] = {}
        for launch in launches:
            made.update(launch.made)
        self._num_given, self._made = len(given), list(made.values())
        tensors = given + self._made
        self.runtime = runtime
        self.contents: list[tuple[Callable[..., None], list[int]]] = []
        self.aligned: tuple[int, ...] = ()
        self.written: tuple[int, ...] = ()
        self._places: list[fast_path.Places] = []
        self._structures: list[type[Structure]] = []
        self._used: list[dict[int, str]] = []
        for launch in launches:
            uses = _uses(
                type(launch.arguments), tuple(launch.pointers), tuple([name for name, _ in launch.pointers.values()]),
                tuple(names), tuple(made), launch.aligned, launch.written,
            )  # fmt: skip
            self._places.append(_places(uses, launch, tensors, len(given)))
            self._structures.append(type(launch.arguments))
            self._used.append(uses.used)
            for check, of in launch.contents:
                self.contents.append((check, [names.index(name) for name in of]))
            self.aligned += uses.aligned
            self.written += uses.written
        self.returned: dict[str, fast_path.TensorForm] = {}
        self.between: dict[str, fast_path.TensorForm] = {}
        self.filled: list[tuple[int, float]] = []
        self.used, own = self._used, given
        self._places_again = self._places
        if made:
            own = self._number_again(launches, made, given, result)
        self.result_among = _result_among(result, own)

    def _number_again(
        self, launches: list[Launch], made: dict[str, torch.Tensor], given: list[torch.Tensor], result: Any
    ) -> list[torch.Tensor]:
        """Numbers the new tensors as repeated calls do, and returns the tensors that have a number of their own."""
        results = {id(part) for part in (result if isinstance(result, tuple) else (result,))}
        for name, tensor in made.items():
            (self.returned if id(tensor) in results else self.between)[name] = fast_path.form_of(tensor)
        own = given + [made[name] for name in self.returned]
        numbers = {name: number for number, name in enumerate(self.returned, len(given))}
        self.filled = [
            (numbers[launch.pointers[path].name], value) for launch in launches for path, value in launch.filled.items()
        ]
        numbers |= {name: number for number, name in enumerate(self.between, len(own) + 1)}
        again = [*range(len(given)), *[numbers[name] for name in made]]
        self._block = fast_path.form_of_bytes(0, given[0])
        self.used = [{min(again[number], len(own)): name for number, name in used.items()} for used in self._used]
        self._places_again = [
            tuple([(word, again[number], offset) for word, number, offset in places]) for places in self._places
        ]
        return own

    def launch(self, launches: Sequence[Launch], kernels: Sequence[Kernel], given: list[torch.Tensor]) -> list[_Filled]:
        """Launches for the first time, when all tensors are there already."""
        filled = [
            (fast_path.quick_entry_point(kernel.entry_point), bytes(launch.arguments), launch.scratch)
            for launch, kernel in zip(launches, kernels, strict=True)
        ]
        steps, scratch_bytes = self._steps(filled, self._places)
        tensors = given + self._made
        self._made = []
        for launch in launches if self.filled else ():
            for path, value in launch.filled.items():
                launch.pointers[path].tensor.fill_(value)
        addresses = [tensor.data_ptr() for tensor in tensors]
        if scratch_bytes:
            memory = session.current().of(Scratch).memory(self.runtime, scratch_bytes, tensors[0])
            addresses.append(memory.address)
        self.runtime.relaunch([step.filled_in(addresses) for step in steps], tensors, self._used)
        return filled

    def _steps(
        self, launches: Sequence[_Filled], places_of: list[fast_path.Places]
    ) -> tuple[list[fast_path.Step], int]:
        """The launches with these places of tensors, and bytes of scratch memory."""
        places_of, scratch_bytes = self._with_scratch(launches, places_of)
        steps = [fast_path.Step(*launch[:2], places) for launch, places in zip(launches, places_of, strict=True)]
        return steps, scratch_bytes

    def _with_scratch(
        self, launches: Sequence[_Filled], places_of: list[fast_path.Places]
    ) -> tuple[list[fast_path.Places], int]:
        """Adds places of scratch memory; also returns its bytes."""
        all_places, scratch_bytes = [*places_of], 0
        for number, (_, _, sizes) in enumerate(launches):
            if sizes:
                *starts, size = scratch_offsets(sizes)
                scratch_bytes = max(scratch_bytes, size)
                of_scratch = words_of(self._structures[number], tuple(sizes))
                places = [(word, _SCRATCH, start) for word, start in zip(of_scratch, starts, strict=True)]
                all_places[number] += tuple(places)
        return all_places, scratch_bytes

    def made(self) -> tuple[list[fast_path.TensorForm], list[int]]:
        """Forms of the first call's new tensors that it returns, and bytes of the others."""
        return list(self.returned.values()), [form.extent for form in self.between.values()]

    def call(
        self,
        launches: Sequence[_Filled],
        returned: list[fast_path.TensorForm],
        between: list[int],
        **known: Any,
    ) -> _Call:
        """A call to be repeated.

        Args:
            returned: forms of the new tensors that it returns.
            between: bytes of the others.
            known: the last arguments of ``_Call``.
        """
        made, parts = self._made_for(returned, between)
        places_of, block = self._places_again, self._num_given + len(returned)
        if parts:
            places_of = [
                tuple(
                    [
                        place if place[1] <= block else (place[0], block, parts[place[1] - block - 1] + place[2])
                        for place in places
                    ]
                )
                for places in places_of
            ]
        return _Call(self, *self._steps(launches, places_of), made, **known)

    def launch_once(
        self,
        launches: Sequence[_Filled],
        returned: list[fast_path.TensorForm],
        between: list[int],
        together: _Together,
        tensors: list[torch.Tensor],
        addresses: tuple[int, ...],
    ) -> bool:
        """Launches a call that isn't remembered, and appends its new tensors to others.

        Returns:
            False, without a launch, for unfit addresses.

        Args:
            returned, between: as for ``call``.
            together: see ``fast_path.filler_by_python``.
            tensors, addresses: the given tensors.

        Raises:
            ValueError: the contents of a tensor are wrong.
        """
        if not fast_path.is_allowed(addresses, self.aligned, self.apart(tensors, together), together):
            return False
        for check, numbers in self.contents:
            check(*[tensors[number] for number in numbers])
        places_of, scratch_bytes = self._with_scratch(launches, self._places_again)
        steps = [
            (entry_point, arguments, places)
            for (entry_point, arguments, _), places in zip(launches, places_of, strict=True)
        ]
        made, parts = self._made_for(returned, between)
        filled = fast_path.filled_in(steps, tensors, addresses, made, parts, self.scratch(scratch_bytes))
        if filled is None:
            del tensors[self._num_given :]
            return False
        for number, value in self.filled:
            tensors[number].fill_(value)
        self.runtime.relaunch(filled, tensors, self.used)
        return True

    def _made_for(
        self, returned: list[fast_path.TensorForm], between: list[int]
    ) -> tuple[list[fast_path.TensorForm], list[int]]:
        """Forms of the new tensors of repeated calls, and where the parts of the last one begin."""
        if not between:
            return returned, []
        size, begins = 0, []
        for one in between:
            begins.append(size)
            size += -(-one // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        return [*returned, self._block.of_rows(size, None)], begins

    def apart(self, tensors: Sequence[torch.Tensor], together: _Together) -> list[tuple[int, int, int, int]]:
        """Which given tensors must not share memory, and bytes of each; see ``fast_path.filler_by_python``."""
        if not self.written:
            return []
        meeting = {rule[:2] for rule in together}
        sizes = list(map(extent, tensors))
        return [
            (one, other, sizes[one], sizes[other])
            for one, other in itertools.product(self.written, range(len(tensors)))
            if one != other and (one, other) not in meeting
        ]

    def scratch(self, size: int) -> Callable[[torch.Tensor], int] | None:
        """Tells the address of as much scratch memory on a tensor's device; None if there is none."""
        return session.current().of(Scratch).address_of(self.runtime, size) if size else None


class _Call:
    """Remembered launches, for tensors of the same dtypes, shapes and strides.

    Attributes:
        plan: how they use tensors.
        runtime, contents, filled, used, result_among: those of the plan.
        scratch_bytes: the size of the scratch memory; 0 for none.
        fill: what fills in the launches for ``fast_path.recall``; None until the first repetition.
        bytes: an estimate of the memory.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
    """

    __slots__ = (
        "_first_addresses", "_made", "_steps", "_together", "bytes", "contents", "fill", "filled", "plan",
        "result_among", "runtime", "scratch_bytes", "used", "was_repeated",
    )  # fmt: skip

    def __init__(
        self,
        plan: _Plan,
        steps: list[fast_path.Step],
        scratch_bytes: int,
        made: list[fast_path.TensorForm],
        *,
        first_addresses: Sequence[int] = (),
        together: _Together | None = None,
    ) -> None:
        """
        Args:
            steps: the launches.
            made: what each tensor that the call makes is like.
            first_addresses: those of the given tensors in the first call, if ``together`` isn't known yet.
            together: see ``fast_path.filler_by_python``.
        """
        self.plan, self._steps, self.scratch_bytes, self._made = plan, steps, scratch_bytes, tuple(made)
        self.runtime, self.contents, self.used = plan.runtime, plan.contents, plan.used
        self.filled, self.result_among = plan.filled, plan.result_among
        self._first_addresses, self._together = first_addresses, together
        self.fill: Any = None
        self.bytes = _BYTES_OF_CALL + sum([2 * len(step.arguments) + _BYTES_OF_LAUNCH for step in steps])
        self.was_repeated = False

    def prepare(self, key: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
        """Makes ``fill`` for the call's key and tensors like the given ones."""
        steps, plan, together = self._steps, self.plan, self._together
        if not steps:  # another thread was quicker
            return
        if together is None:
            together = _together(plan.written, tensors, self._first_addresses)
        self.fill = fast_path.filler_of(key)(
            steps, len(tensors), plan.aligned, plan.apart(tensors, together), together, self._made,
            plan.scratch(self.scratch_bytes),
        )  # fmt: skip
        self._steps = []

    def repeat(self, tensors: list[torch.Tensor], launches: fast_path.Launches) -> Any:
        """Launches on the tensors, among which are new ones, and returns the result.

        Raises:
            ValueError: the contents of a tensor are wrong.
        """
        for check, numbers in self.contents:
            check(*[tensors[number] for number in numbers])
        for number, value in self.filled:
            tensors[number].fill_(value)
        self.was_repeated = True
        self.runtime.relaunch(launches, tensors, self.used)
        return self.result_among(tensors)


class _Seen:
    """A call of a family that was made once. Most calls of many sizes aren't repeated, so none is remembered before."""

    fill = None
    was_repeated = False
    bytes = _BYTES_OF_KEY


_SEEN: Any = _Seen()
_Together = list[tuple[int, int, int]]  # as in fast_path.filler_by_python


def _together(written: Sequence[int], tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> _Together:
    """Which written tensors share memory with others, and at which distance."""
    together = []
    sizes = list(map(extent, tensors)) if written else []
    for one, other in itertools.product(written, range(len(addresses))):
        distance = addresses[other] - addresses[one]
        if one != other and -sizes[other] < distance < sizes[one]:
            together.append((one, other, distance))
    return together


class _Family:
    """Remembered launches, for calls that are alike apart from a size: the number of rows, or an argument.

    Attributes:
        plan: how they use tensors.
        bytes, was_repeated: as of ``_Call``.
    """

    def __init__(
        self, plan: _Plan, launches: Sequence[Launch], given: Sequence[torch.Tensor], addresses: Sequence[int]
    ) -> None:
        """
        Args:
            plan, launches: those of a call of some size.
            given, addresses: the tensors among its arguments.
        """
        self.plan = plan
        self._returned, self._between = plan.made()
        self._launches = [_Template(launch, plan) for launch in launches]
        self._together = _together(plan.written, given, addresses)
        self.bytes = _BYTES_OF_CALL + sum([2 * len(launch.arguments) + _BYTES_OF_LAUNCH for launch in self._launches])
        self.was_repeated = False

    def is_known(self, columns: Iterable[str]) -> bool:
        """Whether all launches tell what depends on the size, and some what on the columns of these matrices."""
        known = {name for launch in self._launches for name in launch.strides}
        return known.issuperset(columns) and all(launch.sizes is not None for launch in self._launches)

    @property
    def is_in_place(self) -> bool:
        """Whether tensors that share memory begin at the same address, as then they do in any size."""
        return all(distance == 0 for _, _, distance in self._together)

    def call(self, found: fast_path.Family) -> _Call:
        """The call of a size, to be remembered.

        Raises:
            ValueError, jit.JitError: the size isn't allowed, a compile failed.
        """
        returned, between = list(self._returned), list(self._between)
        launches = self._filled_in(found, returned, between)
        return self.plan.call(launches, returned, between, together=self._together)

    def launch_once(self, found: fast_path.Family, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> bool:
        """Launches the call of a size, which isn't remembered; see ``_Plan.launch_once``.

        Raises:
            ValueError, jit.JitError: as ``call``, or the contents of a tensor are wrong.
        """
        returned, between = list(self._returned), list(self._between)
        launches = self._filled_in(found, returned, between)
        return self.plan.launch_once(launches, returned, between, self._together, tensors, addresses)

    def _filled_in(
        self, found: fast_path.Family, returned: list[fast_path.TensorForm], between: list[int]
    ) -> list[_Filled]:
        self.was_repeated = True
        _, size, columns, _ = found
        kernels = session.current().of(Kernels)
        return [launch.filled_in(size, columns, kernels, returned, between) for launch in self._launches]


class _Template:
    """A launch of a family's first call, of which those of others are made.

    Attributes:
        sizes: as of ``Launch``.
        arguments: the kernel's.
        strides: the path of the distance between columns, by the name of the matrix.
    """

    __slots__ = ("_between", "_last", "_packers", "_returned", "arguments", "sizes", "strides")

    def __init__(self, launch: Launch, plan: _Plan) -> None:
        self.sizes = launch.sizes
        self.arguments = bytes(launch.arguments)
        self.strides = {
            launch.pointers[of].name: path for of, path in launch.column_strides.items() if of in launch.pointers
        }
        self._packers = packers_of(type(launch.arguments))
        made = {path: name for path, (name, _) in launch.pointers.items() if name in launch.made}
        returned, between = list(plan.returned), list(plan.between)
        self._returned = {path: returned.index(name) for path, name in made.items() if name in plan.returned}
        self._between = {
            path: (between.index(name), plan.between[name], *plan.between[name].bytes_of_rows)
            for path, name in made.items()
            if name in plan.between
        }
        self._last: tuple[object, hip.EntryPoint | None] = None, None  # a kernel's values and itself

    def filled_in(
        self,
        size: int,
        columns: Mapping[str, int],
        kernels: Kernels,
        returned: list[fast_path.TensorForm],
        between: list[int],
    ) -> _Filled:
        """The launch for another size, and for these distances between columns.

        Args:
            returned, between: as for ``_Plan.call``. Those that this launch makes are exchanged.
        """
        assert self.sizes is not None
        kernel, fields, made, strides, scratch = self.sizes(size)
        filled, packers = bytearray(self.arguments), self._packers
        for path, number in fields.items():
            pack, offset = packers[path]
            pack(filled, offset, number)
        for name, distance in columns.items():
            if name in self.strides:
                pack, offset = packers[self.strides[name]]
                pack(filled, offset, distance)
        for path, rows in made.items():
            other_strides = strides.get(path) if strides else None
            if path in self._returned:
                number = self._returned[path]
                returned[number] = returned[number].of_rows(rows, other_strides)
            elif path in self._between:
                number, form, row_bytes, last_bytes = self._between[path]
                between[number] = (
                    (rows - 1) * row_bytes + last_bytes
                    if other_strides is None
                    else form.extent_of(rows, other_strides)
                )
        values, entry_point = self._last
        if entry_point is None or values is not kernel.values:
            entry_point = fast_path.quick_entry_point(kernels.get(kernel).entry_point)
            self._last = kernel.values, entry_point
        return entry_point, bytes(filled), scratch


def _result_among(result: object, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], Any]:
    """A function that takes tensors in the same order, and gives what ``result`` would be among these."""
    if isinstance(result, torch.Tensor):
        return itemgetter(_number(result, tensors))
    if isinstance(result, tuple) and len(result) > 1 and isinstance(result[0], torch.Tensor):
        return itemgetter(*[_number(part, tensors) for part in result])
    return lambda _: result


def _number(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    return [other is tensor for other in tensors].index(True)

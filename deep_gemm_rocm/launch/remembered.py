"""Remembered launches: how they use a call's tensors, and how a similar call repeats them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from ctypes import Structure, sizeof
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from ..checks import extent
from ..jit import Kernel
from ..runtime import hip, session
from . import fast_path
from .launch import SCRATCH_ALIGNMENT, Launch, scratch_offsets, words_of
from .scratch import Scratch

# Estimated sizes of objects: a call or a family with its key, and a launch, without its arguments.
BYTES_OF_CALL = 3072
BYTES_OF_LAUNCH = 2048
_SCRATCH = -1  # in place of a tensor's number

Together = list[tuple[int, int, int]]  # as in fast_path.filler_by_python


def together_among(written: Sequence[int], tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> Together:
    """Which written tensors share memory with others, and at which distance."""
    together = []
    sizes = list(map(extent, tensors)) if written else []
    for one, other in itertools.product(written, range(len(addresses))):
        distance = addresses[other] - addresses[one]
        if one != other and -sizes[other] < distance < sizes[one]:
            together.append((one, other, distance))
    return together


# A launch without addresses: a kernel, its arguments, and its scratch memory as in ``Launch``.
Filled = tuple[hip.EntryPoint, bytes, Mapping[str, int]]


class _Uses(NamedTuple):
    """How a launch uses a call's tensors, which are numbered. It holds for tensors of any sizes.

    Attributes:
        places: those of a step, on the tensors themselves, not views.
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


class Plan:
    """How the launches of a call use tensors. It holds for tensors of any sizes.

    Tensors are numbered: first those among the call's arguments, then new ones. Repeated calls number new ones in
    another way: first those that the call returns; then one tensor, in which all other new ones lie; then these.

    Attributes:
        runtime: the HIP runtime to launch with.
        bytes_of_call: an estimate of the memory of a ``Call``, or a family.
        contents: checks of contents, and the numbers of the tensors that they take.
        aligned: numbers of the given tensors that must start at a multiple of 16 bytes.
        written: numbers of the given tensors that are written. They must not share memory with others, except with
            those with which they shared it in the first call, at the same distance.
        returned: forms of the first call's new tensors that it returns.
        between: forms of the others, which lie between launches, by their names.
        used: number and name of each tensor that a launch works on, in repeated calls.
        result_among: takes all tensors of a repeated call, and returns the call's result.
    """

    __slots__ = (
        "_block", "_made", "_num_given", "_places", "_places_again", "_structures", "_used", "aligned", "between",
        "bytes_of_call", "contents", "result_among", "returned", "runtime", "used", "written",
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
        self.bytes_of_call = BYTES_OF_CALL + sum([2 * sizeof(one.arguments) + BYTES_OF_LAUNCH for one in launches])
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
        numbers |= {name: number for number, name in enumerate(self.between, len(own) + 1)}
        again = [*range(len(given)), *[numbers[name] for name in made]]
        self._block = fast_path.form_of_bytes(0, given[0])
        self.used = [{min(again[number], len(own)): name for number, name in used.items()} for used in self._used]
        self._places_again = [
            tuple([(word, again[number], offset) for word, number, offset in places]) for places in self._places
        ]
        return own

    def launch(self, launches: Sequence[Launch], kernels: Sequence[Kernel], given: list[torch.Tensor]) -> list[Filled]:
        """Launches for the first time, when all tensors are there already."""
        filled = [
            (fast_path.quick_entry_point(kernel.entry_point), bytes(launch.arguments), launch.scratch)
            for launch, kernel in zip(launches, kernels, strict=True)
        ]
        steps, scratch_bytes = self._steps(filled, self._places)
        tensors = given + self._made
        self._made = []
        addresses = [tensor.data_ptr() for tensor in tensors]
        if scratch_bytes:
            memory = session.current().of(Scratch).memory(self.runtime, scratch_bytes, tensors[0])
            addresses.append(memory.address)
        self.runtime.relaunch(fast_path.launches_at(steps, addresses), tensors, self._used)
        return filled

    def _steps(self, launches: Sequence[Filled], places_of: list[fast_path.Places]) -> tuple[list[fast_path.Step], int]:
        """The launches with these places of tensors, and bytes of scratch memory."""
        steps, scratch_bytes = [], 0
        for number, (entry_point, arguments, sizes) in enumerate(launches):
            places = places_of[number]
            *starts, size = scratch_offsets(sizes)
            if size:
                scratch_bytes = max(scratch_bytes, size)
                of_scratch = words_of(self._structures[number], tuple(sizes))
                places += tuple([(word, _SCRATCH, start) for word, start in zip(of_scratch, starts, strict=True)])
            steps.append((entry_point, arguments, places))
        return steps, scratch_bytes

    def made(self) -> tuple[list[fast_path.TensorForm], list[int]]:
        """Forms of the first call's new tensors that it returns, and bytes of the others."""
        return list(self.returned.values()), [form.extent for form in self.between.values()]

    def call(
        self,
        launches: Sequence[Filled],
        returned: list[fast_path.TensorForm],
        between: list[int],
        **known: Any,
    ) -> Call:
        """A call to be repeated.

        Args:
            returned: forms of the new tensors that it returns.
            between: bytes of the others.
            known: the last arguments of ``Call``.
        """
        made, parts = self._made_for(returned, between)
        return Call(self, *self._steps(launches, self._places_again), made, parts, **known)

    def run(self, launches: fast_path.Launches, tensors: list[torch.Tensor]) -> Any:
        """Launches a repeated call on its tensors, among which are new ones, and returns the result.

        Raises:
            ValueError: the contents of a tensor are wrong.
        """
        for check, numbers in self.contents:
            check(*[tensors[number] for number in numbers])
        self.runtime.relaunch(launches, tensors, self.used)
        return self.result_among(tensors)

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
        return [*returned, self._block.resized(size)], begins

    def apart(self, tensors: Sequence[torch.Tensor], together: Together) -> list[tuple[int, int, int, int]]:
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
        """Returns a function for the address of so much scratch memory on a tensor's device; None if none is needed."""
        return session.current().of(Scratch).address_of(self.runtime, size) if size else None


class Call:
    """Remembered launches, for tensors of the same dtypes, shapes and strides.

    Attributes:
        plan: how they use tensors.
        scratch_bytes: the size of the scratch memory; 0 for none.
        fill: what fills in the launches for ``fast_path.recall``; None until the first repetition.
        bytes: an estimate of the memory.
        was_repeated: whether the call was repeated since its last turn in ``Calls``.
    """

    __slots__ = (
        "_first_addresses", "_made", "_parts", "_steps", "_together", "bytes", "fill", "plan", "scratch_bytes",
        "was_repeated",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        steps: list[fast_path.Step],
        scratch_bytes: int,
        made: list[fast_path.TensorForm],
        parts: list[int],
        *,
        first_addresses: Sequence[int] = (),
        together: Together | None = None,
    ) -> None:
        """
        Args:
            steps: the launches.
            made: the form of each tensor that the call makes.
            parts: see ``fast_path.filler_by_python``.
            first_addresses: those of the given tensors in the first call, if ``together`` isn't known yet.
            together: see ``fast_path.filler_by_python``.
        """
        self.plan, self._steps, self.scratch_bytes, self._made = plan, steps, scratch_bytes, tuple(made)
        self._parts = parts
        self._first_addresses, self._together = first_addresses, together
        self.fill: Any = None
        self.bytes = plan.bytes_of_call
        self.was_repeated = False

    def prepared(
        self, key: tuple[Any, ...], tensors: list[torch.Tensor], addresses: tuple[int, ...]
    ) -> tuple[fast_path.Launches, list[torch.Tensor]] | None:
        """Makes ``fill``, if another thread hasn't, and fills in the launches for the first time.

        Args:
            key: the call's.
            tensors, addresses: the given tensors.

        Returns:
            The launches, and all of their tensors; None if the given ones may not be there.
        """
        steps = self._steps
        if steps:
            self._prepare(steps, key, tensors)
        launches = fast_path.fill(self.fill, given := [*tensors], addresses)
        return None if launches is None else (launches, given)

    def _prepare(self, steps: list[fast_path.Step], key: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
        plan, together = self.plan, self._together
        if together is None:
            together = together_among(plan.written, tensors, self._first_addresses)
        self.fill = fast_path.filler_of(key)(
            steps, len(tensors), plan.aligned, plan.apart(tensors, together), together, self._made, self._parts,
            plan.scratch(self.scratch_bytes),
        )  # fmt: skip
        self._steps = []


def _result_among(result: object, tensors: list[torch.Tensor]) -> Callable[[list[torch.Tensor]], Any]:
    """A function that takes tensors in the same order, and picks those that ``result`` has, in the same structure."""
    if isinstance(result, torch.Tensor):
        return itemgetter(_number(result, tensors))
    if isinstance(result, tuple) and len(result) > 1 and isinstance(result[0], torch.Tensor):
        return itemgetter(*[_number(part, tensors) for part in result])
    return lambda _: result


def _number(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    return [other is tensor for other in tensors].index(True)

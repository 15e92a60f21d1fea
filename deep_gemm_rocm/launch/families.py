"""Families: calls that differ only in some sizes: their number of rows, other dimensions, or an argument.

The first call of new sizes is derived from a remembered one of its family, by replacing what depends on the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..jit import Kernels
from ..runtime import hip, session
from . import fast_path
from .launch import Launch, number_places
from .remembered import Call, Filled, Plan, together_among

_WORD = 8  # bytes


class Found(NamedTuple):
    """A call's place among calls that differ from one another only in sizes and in addresses.

    Attributes:
        key: their key.
        sizes: this call's: dimensions of tensors, such as the number of rows, or an argument that is a number.
        columns: distances between columns, by the names of matrices whose rows are neighbours. They aren't in the key.
        is_elsewhere: whether a size that may differ equals some other dimension, which might then depend on it, too;
            None if nothing else can depend on the sizes.
    """

    key: tuple[Any, ...]
    sizes: tuple[int, ...]
    columns: dict[str, int]
    is_elsewhere: bool | None

    @property
    def is_clear(self) -> bool:
        """Whether no size that may differ occurs elsewhere among the arguments, too."""
        if self.is_elsewhere is None:
            return True
        return not (self.is_elsewhere or any(size > 1 and size in self.key for size in self.sizes))


class Size(NamedTuple):
    """A dimension that may differ among the calls of a family.

    Attributes:
        number: of the size, which dimensions of several tensors may share.
        more: how much larger the dimension is.
        is_multiple: whether the dimension is any multiple of the size, the same in all calls of the family.
    """

    number: int
    more: int = 0
    is_multiple: bool = False


# Dimensions that may differ: by the tensor's name, sizes by the dimension's index, which may count from the end.
Differing = Mapping[str, Mapping[int, Size]]


class FamilyOfSizes:
    """Finds the family of a call that C described.

    A dimension of 1 stays in the key, since the stride of a single row tells nothing. A call has no family if all its
    sizes are 1, or if its rows lie between others.
    """

    def __init__(
        self,
        parameters: Sequence[str],
        differing: Callable[[Collection[str]], Differing],
        most: Sequence[int],
        *,
        is_complete: bool,
    ) -> None:
        """
        Args:
            parameters: names of the function's parameters.
            differing: returns the dimensions that may differ, given the names of all tensors among the arguments.
            most: the largest value of each size.
            is_complete: whether no other dimension can depend on the sizes, unless ``Launch.sizes`` is None.
        """
        self._parameters, self._differing, self._most, self._is_complete = parameters, differing, most, is_complete
        self._places: dict[bytes, tuple[list[str], list[fast_path.PlaceOfSize]]] = {}

    def __call__(
        self,
        _values: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: tuple[Any, ...],
        addresses: tuple[int, ...],
    ) -> Found | None:
        """
        Args:
            args, kwargs: as for ``recall``.
            key, addresses: what that describes the call by.
        """
        if fast_path.in_c is None or not fast_path.is_described_by_c(key):
            return None
        *others, words = key
        names, places = self._places_in(words[: _WORD * words[0]], args, kwargs)
        found = fast_path.in_c.without_sizes(words, places, self._most)
        if found is None:
            return None
        words, sizes, distances, is_elsewhere = found
        columns = {}
        if any(distances):
            columns = {name: distance for name, distance in zip(names, distances, strict=True) if distance}
        return Found((*others, words, _alike(addresses)), sizes, columns, None if self._is_complete else is_elsewhere)

    def _places_in(
        self, types: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[str], list[fast_path.PlaceOfSize]]:
        """Dimensions that may differ: names of their tensors, and places as C takes them, multiples of sizes last.

        Args:
            types: C's description of the types of arguments, from which the names follow.
        """
        places = self._places.get(types)
        if places is None:
            fast_path.keep_names(kwargs)
            names = fast_path.names_of_tensors(zip(self._parameters, args, strict=False), kwargs)
            differing = self._differing(names)
            found = [
                (name, (index, dim, *size))
                for index, name in enumerate(names)
                for dim, size in differing.get(name, {}).items()
            ]
            found.sort(key=lambda place: place[1][-1])
            self._places[types] = places = [name for name, _ in found], [place for _, place in found]
        return places


def family_of_number(
    function: object,
    place: int,
    name: str,
    values: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    _key: tuple[Any, ...],
    addresses: tuple[int, ...],
) -> Found | None:
    """The family of a call whose size is an argument, if that is an int.

    Args:
        place, name: the argument's position and name.
        function, values, args, kwargs: as for ``recall``.
        addresses: of its tensors.
    """
    is_positional = place < len(args)
    number = args[place] if is_positional else kwargs.get(name)
    if type(number) is not int:
        return None
    if is_positional:
        described, _ = fast_path.recall(function, values, {}, (*args[:place], None, *args[place + 1 :]), kwargs)
    else:
        described, _ = fast_path.recall(function, values, {}, args, {**kwargs, name: None})
    return None if described is None else Found((described[0], _alike(addresses)), (number,), {}, None)


def _alike(addresses: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which tensors begin where others begin; None if none does."""
    return None if len({*addresses}) == len(addresses) else tuple(map(addresses.index, addresses))


class Family:
    """Remembered launches of calls that differ only in sizes: dimensions, or an argument.

    Attributes:
        plan: how they use tensors.
        bytes, was_repeated: as of ``Call``.
    """

    def __init__(
        self, plan: Plan, launches: Sequence[Launch], given: Sequence[torch.Tensor], addresses: Sequence[int]
    ) -> None:
        """
        Args:
            plan, launches: those of a call of some size.
            given, addresses: the tensors among its arguments.
        """
        self.plan = plan
        self._returned, self._between = plan.made()
        self._launches = [_Template(launch, plan) for launch in launches]
        self._together = together_among(plan.written, given, addresses)
        self.bytes = plan.bytes_of_call
        self.was_repeated = False

    def is_known(self, columns: Iterable[str]) -> bool:
        """Whether all launches say what depends on the sizes, and some say what depends on these matrices' columns."""
        known = {name for launch in self._launches for name in launch.strides}
        return known.issuperset(columns) and all(launch.sizes is not None for launch in self._launches)

    @property
    def is_in_place(self) -> bool:
        """Whether tensors that share memory begin at the same address, as then they do in any size."""
        return all(distance == 0 for _, _, distance in self._together)

    def call(self, found: Found) -> Call:
        """The call of a size, to be remembered.

        Raises:
            ValueError, jit.JitError: the size isn't allowed, a compile failed.
        """
        self.was_repeated = True
        _, sizes, columns, _ = found
        returned, between = list(self._returned), list(self._between)
        launches = [launch.filled_in(sizes, columns, returned, between) for launch in self._launches]
        return self.plan.call(launches, returned, between, together=self._together)


class _Template:
    """A launch of a family's first call, from which the launches of other calls are derived.

    Attributes:
        sizes: as of ``Launch``.
        arguments: the kernel's.
        strides: the path of the distance between columns, by the name of the matrix.
    """

    __slots__ = ("_between", "_last", "_places", "_returned", "arguments", "sizes", "strides")

    def __init__(self, launch: Launch, plan: Plan) -> None:
        self.sizes = launch.sizes
        self.arguments = bytes(launch.arguments)
        self.strides = {
            launch.pointers[of].name: path for of, path in launch.column_strides.items() if of in launch.pointers
        }
        self._places = number_places(type(launch.arguments))
        made = {path: name for path, (name, _) in launch.pointers.items() if name in launch.made}
        returned, between = list(plan.returned), list(plan.between)
        self._returned = [(path, returned.index(name)) for path, name in made.items() if name in plan.returned]
        self._between = [
            (path, between.index(name), plan.between[name], *plan.between[name].bytes_of_rows)
            for path, name in made.items()
            if name in plan.between
        ]
        self._last: tuple[object, hip.EntryPoint | None] = None, None  # a kernel's values and itself

    def filled_in(
        self,
        sizes: tuple[int, ...],
        columns: Mapping[str, int],
        returned: list[fast_path.TensorForm],
        between: list[int],
    ) -> Filled:
        """The launch for other sizes, and for these distances between columns.

        Args:
            returned, between: as for ``Plan.call``. Those that this launch makes are exchanged.
        """
        assert self.sizes is not None
        kernel, fields, made, strides, scratch = self.sizes(*sizes)
        if columns:
            distances = {self.strides[name]: distance for name, distance in columns.items() if name in self.strides}
            fields = {**fields, **distances}
        arguments = fast_path.with_numbers(self.arguments, fields, self._places)
        for path, number in self._returned:
            if path in made:
                returned[number] = returned[number].resized(made[path], strides.get(path))
        for path, number, form, row_bytes, last_bytes in self._between:
            if path in made:
                rows, other_strides = made[path], strides.get(path)
                between[number] = (
                    (rows - 1) * row_bytes + last_bytes
                    if other_strides is None and isinstance(rows, int)
                    else form.extent_of(rows, other_strides)
                )
        values, entry_point = self._last
        if entry_point is None or values is not kernel.values:
            entry_point = fast_path.quick_entry_point(session.current().of(Kernels).get(kernel).entry_point)
            self._last = kernel.values, entry_point
        return entry_point, arguments, scratch

"""Families: calls that are alike apart from a size, their number of rows or an argument.

The first call of another size is made of a remembered one, by exchanging what depends on the size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..jit import Kernels
from ..runtime import hip, session
from . import fast_path
from .launch import Launch, packers_of
from .remembered import BYTES_OF_CALL, BYTES_OF_LAUNCH, Call, Filled, Plan, together_among

_LEAST_ROWS, _MOST_ROWS = 2, 2**16  # of a family; the stride of a single row tells nothing


class Found(NamedTuple):
    """A call's place among calls that differ from one another only in a size and in addresses.

    Attributes:
        key: their key.
        size: this call's: how many rows it has, or an argument that is a number.
        columns: distances between columns, by the names of matrices whose rows are neighbours. They aren't in the key.
        shapes: C's words for the call, without the size; None if the size is an argument.
    """

    key: tuple[Any, ...]
    size: int
    columns: dict[str, int]
    shapes: array[int] | None

    @property
    def is_clear(self) -> bool:
        """Whether the number of rows is no other number among the arguments as well."""
        if self.shapes is None:
            return True
        numbers = [*self.key]
        for shape, dims, _ in _described_tensors(self.shapes):
            numbers += self.shapes[shape : shape + dims]
        return self.size not in numbers


def _described_tensors(words: array[int]) -> list[tuple[int, int, int]]:
    """For each tensor in C's words, as ``describe_tensor`` writes them: where its shape begins, its number of
    dimensions, and where its words end. If it isn't contiguous, strides follow the shape.
    """
    at, all_words, found = words[0], len(words), []
    while at < all_words:
        form = words[at + 2]  # dimensions, and in the last bit whether it is contiguous
        shape, dims = at + 3, form >> 1
        at = shape + (dims if form & 1 else 2 * dims)
        found.append((shape, dims, at))
    return found


class FamilyOfRows:
    """Tells the family of a call that C described and that has at least two rows, none of which lies between others."""

    def __init__(self, parameters: Sequence[str], of_rows: Sequence[str]) -> None:
        """
        Args:
            parameters: names of the function's parameters.
            of_rows: names of tensors whose first dimension are the rows.
        """
        self._parameters, self._of_rows = parameters, of_rows
        self._names: dict[bytes, list[str | None]] = {}

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
        if not fast_path.is_described_by_c(key):
            return None
        *others, words = key
        described = array("q", words)
        rows, columns = 0, {}
        names = self._names_of_rows(words[: 8 * described[0]], args, kwargs)
        for name, (shape, dims, end) in zip(names, _described_tensors(described), strict=True):
            if name is None:
                continue
            if not dims or (rows and described[shape] != rows):
                return None
            rows, described[shape] = described[shape], 0
            if end == shape + dims:  # contiguous
                continue
            strides = described[shape + dims : end]
            if dims == 2 and strides[0] == 1 and strides[1] >= rows:
                columns[name], described[end - 1] = strides[1], -1  # no stride is negative
            elif strides[0] < max(strides):
                return None
        if not _LEAST_ROWS <= rows <= _MOST_ROWS:
            return None
        return Found((*others, described.tobytes(), _alike(addresses)), rows, columns, described)

    def _names_of_rows(self, types: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str | None]:
        """The name of each tensor that has rows; None for others.

        Args:
            types: what C says of the types of arguments, which tells the names.
        """
        names = self._names.get(types)
        if names is None:
            fast_path.keep_names(kwargs)
            all_names = fast_path.names_of_tensors(zip(self._parameters, args, strict=False), kwargs)
            names = self._names[types] = [name if name in self._of_rows else None for name in all_names]
        return names


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
    return None if described is None else Found((described[0], _alike(addresses)), number, {}, None)


def _alike(addresses: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which tensors begin where others begin; None if none does."""
    return None if len({*addresses}) == len(addresses) else tuple(map(addresses.index, addresses))


class Family:
    """Remembered launches, for calls that are alike apart from a size: the number of rows, or an argument.

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
        self.bytes = BYTES_OF_CALL + sum([2 * len(launch.arguments) + BYTES_OF_LAUNCH for launch in self._launches])
        self.was_repeated = False

    def is_known(self, columns: Iterable[str]) -> bool:
        """Whether all launches tell what depends on the size, and some what on the columns of these matrices."""
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
        returned, between = list(self._returned), list(self._between)
        launches = self._filled_in(found, returned, between)
        return self.plan.call(launches, returned, between, together=self._together)

    def fill_once(
        self, found: Found, tensors: list[torch.Tensor], addresses: tuple[int, ...]
    ) -> fast_path.Launches | None:
        """The launches of a size's call, which isn't remembered; see ``Plan.fill_once``.

        Raises:
            ValueError, jit.JitError: as ``call``.
        """
        returned, between = list(self._returned), list(self._between)
        launches = self._filled_in(found, returned, between)
        return self.plan.fill_once(launches, returned, between, self._together, tensors, addresses)

    def _filled_in(self, found: Found, returned: list[fast_path.TensorForm], between: list[int]) -> list[Filled]:
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

    def __init__(self, launch: Launch, plan: Plan) -> None:
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
    ) -> Filled:
        """The launch for another size, and for these distances between columns.

        Args:
            returned, between: as for ``Plan.call``. Those that this launch makes are exchanged.
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

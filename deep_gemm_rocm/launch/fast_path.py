"""The fast path of a call: describes the arguments by all that launches depend on, finds the remembered call, makes new
tensors, and fills in addresses.

Functions in C++ do this in a fifth of the time, apart from torch's share. They leave unusual arguments to Python, and
are missing where torch or Python is too old or too unusual for them; see ``csrc/repeat/repeat.cpp``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import math
import operator
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..checks import reach
from ..runtime import arrays
from ..runtime.hip import EntryPoint, Launch

# The key of the call, the arguments that are tensors, and their addresses; None if the call can't be remembered.
Described = tuple[tuple[Any, ...], list[torch.Tensor], tuple[int, ...]] | None


class TensorForm(NamedTuple):
    """The form of a new tensor, as C takes it.

    Attributes:
        args, options: the arguments of ``torch.empty_strided``, positional and by name.
        quick: torch's function for code of its compiler, which makes a tensor on the current device in less than half
            the time; None if there is none.
        quick_args: its sizes, strides and dtype.
        device: the number of the GPU; -1 for the CPU, which is always the current one.
    """

    args: tuple[tuple[int, ...], tuple[int, ...]]
    options: dict[str, Any]
    quick: Callable[..., torch.Tensor] | None
    quick_args: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    device: int

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        return reach(*self.args) * self.quick_args[-1].itemsize

    def new(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of this form, beside a similar one."""
        if self.quick is not None and type(like) is not _DEVICE_TENSOR:
            try:
                made = self.quick(*self.quick_args)
            except RuntimeError:  # the current device may have no memory left, and be another one
                made = None
            if made is not None and (self.device < 0 or made.get_device() == self.device):
                return made
        return like.new_empty_strided(*self.args, dtype=self.options["dtype"])

    @property
    def bytes_of_rows(self) -> tuple[int, int]:
        """Bytes from one index of the first dimension to the next, and those of the last."""
        sizes, strides = self.args
        itemsize = self.quick_args[-1].itemsize
        return strides[0] * itemsize, reach(sizes[1:], strides[1:]) * itemsize

    def resized(self, size: int | tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorForm:
        """The form with another first dimension (``size`` is an int) or another shape (a tuple).

        Args:
            strides: if None, they stay the same for another first dimension, and another shape is contiguous.
        """
        _, options, quick, (*_, dtype), device = self
        args = self._args_of(size, strides)
        return TensorForm(args, options, quick, (*args, dtype), device)

    def extent_of(self, size: int | tuple[int, ...], strides: tuple[int, ...] | None) -> int:
        """``extent`` of what ``resized`` returns."""
        return reach(*self._args_of(size, strides)) * self.quick_args[-1].itemsize

    def _args_of(
        self, size: int | tuple[int, ...], strides: tuple[int, ...] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape, before = self.args
        if isinstance(size, int):
            return (size, *shape[1:]), strides or before
        if strides is None:
            strides = tuple(itertools.accumulate(size[:0:-1], operator.mul, initial=1))[::-1]
        return size, strides


# Where addresses go among a launch's arguments: the index of a word, the number of the tensor whose address it takes
# (-1 for the scratch memory), and how many bytes to add.
Places = tuple[tuple[int, int, int], ...]


# One launch of a call, without addresses: the kernel's entry point, its arguments, words of 8 bytes, and their places.
Step = tuple[EntryPoint, bytes, Places]

Launches = tuple[Launch, ...]
# Returns the launches for tensors at these addresses, and appends the call's new tensors to the list; None if the
# tensors break a rule of ``filler_by_python``.
Fill = Callable[[list[torch.Tensor], tuple[int, ...]], Launches | None]

# Two results, one of them None: the description of a call that isn't remembered or isn't ready, and the remembered call
# with its tensors and launches. Both are None if the call can't be remembered.
Recalled = tuple[Described, tuple[Any, list[torch.Tensor], Launches] | None]
Recall = Callable[[object, object, dict[tuple[Any, ...], Any], tuple[Any, ...], dict[str, Any]], Recalled]

_ALIGNMENT = 16
_MOST_PARTS = 2**16  # of a call that is remembered; a list that contains itself has no end

_is_grad_enabled = torch.is_grad_enabled
_address = torch.Tensor.data_ptr
_DEVICE_TENSOR = arrays.DeviceTensor
_TENSOR, _PARAMETER, _FLOAT32, _FLOAT16 = torch.Tensor, torch.nn.Parameter, torch.float32, torch.float16


def described_by_python(function: object, values: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
    """Describes a call of ``function`` under the settings ``values``.

    Two calls with equal keys have tensors of the same dtypes, shapes, strides and devices, and other arguments of the
    same types and values. Tensors are in the order of ``names_of_tensors``.
    """
    tensors: list[torch.Tensor] = []
    key: list[Any] = [function, values, *kwargs]
    is_torchs = True
    parts = [*args, *kwargs.values()]
    try:
        for part in parts:
            kind = type(part)
            if kind is _TENSOR or issubclass(kind, _PARAMETER):
                dtype = part.dtype
                # Only real and imaginary parts of complex tensors may be negated lazily.
                is_negated = (dtype is _FLOAT32 or dtype is _FLOAT16) and part.is_neg()
                if is_negated or (part.requires_grad and _is_grad_enabled()):
                    return None
                tensors.append(part)
                # Contiguous tensors of one shape may differ in strides only where the size is 1, which doesn't matter.
                key += (dtype, part.shape, part.is_contiguous() or part.stride(), part.get_device())
            elif issubclass(kind, tuple | list):
                key.append(len(part))
                parts += part
                if len(parts) > _MOST_PARTS:
                    return None
            elif kind is _DEVICE_TENSOR:
                tensors.append(part)
                strides = part.is_contiguous() or part.stride()
                key += (kind, part.dtype, part.shape, strides, part.get_device(), part.is_read_only)
                is_torchs = False
            elif issubclass(kind, _TENSOR):
                return None  # it may have no memory of its own
            else:
                key += (kind, part)  # the type tells 1 from True
                if issubclass(kind, float):
                    key.append(math.copysign(1.0, part))  # 0.0 equals -0.0
        addresses = tuple(map(_address, tensors) if is_torchs else [tensor.data_ptr() for tensor in tensors])
    except RuntimeError:  # a tensor has no strides or no address
        return None
    if 0 in addresses and any(tensor.numel() and not at for tensor, at in zip(tensors, addresses, strict=True)):
        return None  # its memory was freed
    return tuple(key), tensors, addresses


def recalled_by_python(
    function: object,
    values: object,
    known: dict[tuple[Any, ...], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recalled:
    """Describes a call of ``function`` under the settings ``values``, and finds it among the ``known`` ones.

    A known call has an attribute ``fill``: what ``filler_of`` made for it, or None if it isn't ready yet.
    """
    described = described_by_python(function, values, args, kwargs)
    if described is None:
        return None, None
    key, tensors, addresses = described
    try:
        call = known.get(key)
    except TypeError:  # an argument has no hash
        return None, None
    if call is None or call.fill is None:
        return described, None
    launches = call.fill(given := [*tensors], addresses)
    return (described, None) if launches is None else (None, (call, given, launches))


def names_of_tensors(positional: Iterable[tuple[str, Any]], keywords: dict[str, Any]) -> list[str]:
    """The names of the tensors in a call's arguments, in their order in ``Described``."""
    names, parts = [], [*positional, *keywords.items()]
    for name, part in parts:
        if isinstance(part, torch.Tensor):
            names.append(name)
        elif isinstance(part, (tuple, list)):
            parts += [(f"{name}[{i}]", element) for i, element in enumerate(part)]
    return names


def form_of(tensor: torch.Tensor) -> TensorForm:
    """What ``filler_of`` takes for another tensor like this one."""
    return _form(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor)


def form_of_bytes(size: int, beside: torch.Tensor) -> TensorForm:
    """What ``filler_of`` takes for bytes on the device of ``beside``."""
    return _form((size,), (1,), torch.uint8, beside)


def _form(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, beside: torch.Tensor) -> TensorForm:
    options = {"dtype": dtype, "device": beside.device}
    quick = _quick_empty(beside.device.type)
    return TensorForm((sizes, strides), options, quick, (sizes, strides, dtype), beside.get_device())


@functools.cache
def _quick_empty(device_type: str) -> Callable[..., torch.Tensor] | None:
    quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{device_type}", None)
    try:
        return quick if quick is not None and quick((0,), (1,), torch.uint8).device.type == device_type else None
    except RuntimeError:  # torch was built without it
        return None


def filler_by_python(
    steps: Sequence[Step],
    num_given: int,
    aligned: Sequence[int],
    apart: Sequence[tuple[int, int, int, int]],
    together: Sequence[tuple[int, int, int]],
    made: tuple[TensorForm, ...],
    parts: Sequence[int],
    scratch: Callable[[torch.Tensor], int] | None,
) -> Fill:
    """A function that fills in launches. All tensors have an address, and some of them follow rules.

    Args:
        num_given: how many tensors the call is given. Their numbers come first.
        aligned: numbers of tensors that must start at a multiple of 16 bytes.
        apart: pairs of tensors that must not share memory, and the bytes of each from its first element to the end of
            its last.
        together: pairs of tensors, and how many bytes after the one the other must begin.
        made: new tensors that the call makes.
        parts: where parts of the last one begin, in bytes. Their numbers follow that one's.
        scratch: returns the address of the scratch memory on a tensor's device; None if the call needs none.
    """

    def fill(tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> Launches | None:
        assert len(tensors) == num_given
        if not _is_allowed(addresses, aligned, apart, together):
            return None
        like, in_order = tensors[0], addresses
        for form in made:
            tensors.append(new := form.new(like))
            in_order += (new.data_ptr(),)
        if 0 in in_order:
            return None
        in_order += tuple([in_order[-1] + begin for begin in parts])
        if scratch is not None:
            in_order += (scratch(like),)
        return launches_at(steps, in_order)

    return fill


def _is_allowed(
    addresses: tuple[int, ...],
    aligned: Sequence[int],
    apart: Sequence[tuple[int, int, int, int]],
    together: Sequence[tuple[int, int, int]],
) -> bool:
    """Whether the given tensors have an address, and follow the rules of ``filler_by_python``."""
    return (
        0 not in addresses  # a tensor without elements, or without memory, as on the meta device
        and not any([addresses[number] % _ALIGNMENT for number in aligned])
        and not any([-b_size < addresses[b] - addresses[a] < a_size for a, b, a_size, b_size in apart])
        and all([addresses[b] - addresses[a] == distance for a, b, distance in together])
    )


def launches_at(steps: Sequence[Step], addresses: Sequence[int]) -> Launches:
    """Fills in addresses.

    Args:
        addresses: of each tensor, by its number, and of the scratch memory.
    """
    launches = []
    for entry_point, arguments, places in steps:
        words = array("Q", arguments)
        for place, number, offset in places:
            words[place] = addresses[number] + offset
        launches.append((entry_point, words.tobytes()))
    return tuple(launches)


Filler = Callable[..., Any]  # ``filler_by_python``, or C's function of the same arguments


def _with_numbers_by_python(
    arguments: bytes, numbers: Mapping[str, int], places: Mapping[str, tuple[int, int]]
) -> bytes:
    """A copy of a kernel's arguments with other numbers.

    Args:
        numbers: by the paths of fields.
        places: as ``NumberPlaces``.

    Raises:
        OverflowError: a number doesn't fit.
    """
    filled = bytearray(arguments)
    for path, number in numbers.items():
        offset, width = places[path]
        filled[offset : offset + abs(width)] = number.to_bytes(abs(width), "little", signed=width < 0)
    return bytes(filled)


PlaceOfSize = tuple[int, int, int, int, bool]  # tensor, dimension, and as ``families.Size``

# Takes sizes out of C's words. Arguments are the words, places of sizes, and the largest sizes; results are the words
# without the sizes, these, for each place the distance between columns or 0, and whether a size larger than 1 is a
# dimension elsewhere. None if the sizes don't agree or are too large, all are 1, or rows lie between others.
WithoutSizes = Callable[
    [bytes, Sequence[PlaceOfSize], Sequence[int]], "tuple[bytes, tuple[int, ...], tuple[int, ...], bool] | None"
]


class _Functions(NamedTuple):
    """Functions of C. ``without_sizes`` is C's alone."""

    recall: Recall
    filler: Filler
    fill: Callable[[Any, list[torch.Tensor], tuple[int, ...]], Launches | None]
    without_sizes: WithoutSizes
    with_numbers: Callable[[bytes, Mapping[str, int], Mapping[str, tuple[int, int]]], bytes]
    entry_point: Callable[[int], EntryPoint]


def _c_functions() -> _Functions | None:
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if api is not None:
        try:
            c = importlib.import_module("._repeat", __package__)
        except ImportError:  # it was built for another Python, or not at all
            return None
        types = torch.Tensor, torch.nn.Parameter
        if c.use(api, *types, torch.is_grad_enabled, torch.empty_strided, recalled_by_python):
            return _Functions(*[getattr(c, name) for name in _Functions._fields])
    return None


in_c = _c_functions()
recall = recalled_by_python if in_c is None else in_c.recall
with_numbers = _with_numbers_by_python if in_c is None else in_c.with_numbers
_names_of_keywords: set[str] = set()


def is_described_by_c(key: tuple[Any, ...]) -> bool:
    """Whether the key is one of C's. Others begin with the called function."""
    return key[0] is recalled_by_python


def filler_of(key: tuple[Any, ...]) -> Filler:
    """Makes what ``recall`` takes to repeat a call with this key."""
    return in_c.filler if in_c is not None and is_described_by_c(key) else filler_by_python


def fill(filler: Any, tensors: list[torch.Tensor], addresses: tuple[int, ...]) -> Launches | None:
    """Fills in the launches that a ``Filler`` prepared, as ``recall`` does for a remembered call."""
    if in_c is None or callable(filler):
        return filler(tensors, addresses)
    return in_c.fill(filler, tensors, addresses)


def keep_names(kwargs: dict[str, Any]) -> None:
    """Keeps the names of keywords, for which addresses stand in C's keys. Python's keys have other kinds of strings."""
    _names_of_keywords.update([sys.intern(name) for name in kwargs if type(name) is str])


def quick_entry_point(entry_point: EntryPoint) -> EntryPoint:
    """The same function. If it is one of ctypes, C calls it, in a fifth of the time."""
    if in_c is None or not isinstance(entry_point, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return entry_point
    return in_c.entry_point(ctypes.c_size_t.from_buffer(entry_point).value)

"""The description of a launch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from ctypes import Structure
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ..jit import Kernel, Kernels, Request
from ..problems.arguments import Argument, Contents
from ..runtime import arrays, hip, session, settings
from . import planning

SCRATCH_ALIGNMENT = 256
_WORD = 8


class Sizes(NamedTuple):
    """The part of a launch that depends on how many rows a call has, or on other sizes.

    Attributes:
        kernel, scratch: as in ``Launch``.
        fields: numbers among the arguments, by their paths.
        made: the first dimension of each new tensor where it depends on the rows, or the shape of a contiguous one, by
            the path of the pointer.
        strides: the strides of new tensors where they depend on the rows, by the path of the pointer.
    """

    kernel: Request
    fields: Mapping[str, int]
    made: Mapping[str, int | tuple[int, ...]]
    strides: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    scratch: Mapping[str, int] = MappingProxyType({})


class Launch(NamedTuple):
    """One launch of a kernel.

    Attributes:
        kernel: the kernel; it takes ``arguments`` by reference, and the stream's handle.
        arguments: the kernel's argument structure, with null pointers.
        pointers: the tensor for each pointer, by the path of the field in ``arguments``, such as ``a.data``.
        scratch: bytes of scratch memory for each pointer to it, by the path of the field.
        made: new tensors among ``pointers``, which are not arguments of the public function, by their names.
        written: paths of pointers that the kernel writes to. Those that aren't in ``pointers`` are ignored.
        aligned: paths of pointers that must be multiples of 16.
        contents: checks that calls which repeat this launch have to make, too.
        column_strides: the path of the distance between columns, by the path of the pointer, of matrices where nothing
            else depends on it.
        sizes: returns what differs for another number of rows, or other sizes. It keeps no tensor and nothing that
            callers can change, and raises the public function's error where there are too many rows. None if more
            depends on the sizes than ``Sizes`` can express.
    """

    kernel: Request
    arguments: Structure
    pointers: Mapping[str, Argument]
    scratch: Mapping[str, int] = MappingProxyType({})
    made: Mapping[str, torch.Tensor] = MappingProxyType({})
    written: tuple[str, ...] = ()
    aligned: tuple[str, ...] = ()
    contents: tuple[Contents, ...] = ()
    column_strides: Mapping[str, str] = MappingProxyType({})
    sizes: Callable[..., Sizes] | None = None

    def renamed(self, **names: str) -> Launch:
        """The same launch for a function that has other names for these tensors."""
        return self._replace(
            pointers={path: Argument(names.get(name, name), tensor) for path, (name, tensor) in self.pointers.items()},
            made={names.get(name, name): made for name, made in self.made.items()},
            contents=tuple([contents.renamed(names) for contents in self.contents]),
        )

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that the kernel works on, by the names of the function's arguments."""
        return {name: tensor for name, tensor in self.pointers.values()}  # quicker than dict()


def scratch_offsets(scratch: Mapping[str, int]) -> tuple[int, ...]:
    """The offset of each part of the scratch in one block of memory, and the block's size, 0 without scratch."""
    offsets = [0]
    for size in scratch.values():
        offsets.append(offsets[-1] - -size // SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT)
    return tuple(offsets)


def ready_kernels(launches: list[Launch]) -> tuple[hip.Runtime, list[Kernel]] | None:
    """Compiles or loads the kernels if they can access the tensors, which all are of one runtime.

    Returns:
        The runtime and the kernels; None in ``planning`` and in compile mode (``set_compile_mode``), where nothing is
        launched.

    Raises:
        ValueError: kernels can't access a tensor, or can't write an output.
        hip.NoDeviceError, jit.JitError: there is no device, a compile failed.
    """
    plan = planning.current()
    if plan is not None:
        plan.update({launch.kernel.key: launch.kernel for launch in launches})
        return None
    runtime = arrays.runtime_of(*launches[0].tensors.values())
    for launch in launches:
        for path in launch.written:
            if path in launch.pointers:
                arrays.check_writable(*launch.pointers[path])
        runtime.check_tensors(launch.tensors)
    known = session.current().of(Kernels)
    kernels = [known.get(launch.kernel) for launch in launches]
    return None if settings.values().compile_mode else (runtime, kernels)


@functools.lru_cache(maxsize=1024)
def words_of(structure: type[Structure], paths: tuple[str, ...]) -> tuple[int, ...]:
    """The index of each pointer in arguments of this type, in words of 8 bytes; paths are as in ``Launch``."""
    return tuple(offset_of(structure, path) // _WORD for path in paths)


class NumberPlaces(dict[str, tuple[int, int]]):
    """By the path of a number in arguments of a type: its offset, and its bytes, below zero if it has a sign."""

    def __init__(self, structure: type[Structure]) -> None:
        super().__init__()
        self._structure = structure

    def __missing__(self, path: str) -> tuple[int, int]:
        kind: Any = self._structure
        for name in path.split("."):
            kind = next(entry[1] for entry in kind._fields_ if entry[0] == name)
        is_signed = kind(-1).value < 0
        self[path] = place = offset_of(self._structure, path), ctypes.sizeof(kind) * (-1 if is_signed else 1)
        return place


@functools.cache
def number_places(structure: type[Structure]) -> NumberPlaces:
    """The places of numbers in arguments of this type."""
    return NumberPlaces(structure)


def offset_of(structure: type[Structure], path: str) -> int:
    """The offset of a field in bytes; its path, such as ``a.data``, may lead through nested structures."""
    name, _, rest = path.partition(".")
    offset: int = getattr(structure, name).offset
    if not rest:
        return offset
    inner = next(entry[1] for entry in structure._fields_ if entry[0] == name)
    assert issubclass(inner, Structure)
    return offset + offset_of(inner, rest)


assert ctypes.sizeof(ctypes.c_void_p) == _WORD

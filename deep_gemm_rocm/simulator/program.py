"""Runs kernels of any gfx942 code object on the simulated MI300X."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Iterator, Sequence
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ..checks import is_int
from .extent import Extent, three
from .kernel_names import kernel_names, listed_names, matching, source_name
from .library import introspect, library
from .source_lines import Place, SourceLines, symbol_address

_CData = ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array
Argument: TypeAlias = (
    "np.ndarray | np.generic | torch.Tensor | int | float | bool"
    " | ctypes._SimpleCData[Any] | ctypes.Structure | ctypes.Union | ctypes.Array[Any] | None"
)


class SimulatorError(RuntimeError):
    """The simulator refused a code object, or a kernel failed on it; the message says where and why.

    Attributes:
        place: the source line of the failed instruction, where the code object has debug information (``-g``).
        callers: the calls through which the compiler inlined that line, to the kernel's.
        other_place: the source line of the other access of a race, where it is known.
        operand: the argument and the element that the access at fault was to, as in
            ``x[517] of 512, float32, argument 2``; None where it was to none.
    """

    place: Place | None = None
    callers: tuple[Place, ...] = ()
    other_place: Place | None = None
    operand: str | None = None


@dataclass(frozen=True)
class Parameter:
    """A kernel argument as the code object's metadata describe it: bytes in the kernarg segment.

    ``name`` is empty where the compiler dropped it.
    """

    size: int
    is_pointer: bool
    name: str


def launch(
    code_object: str | Path | bytes,
    kernel: str,
    grid: Extent,
    block: Extent,
    args: Sequence[Argument],
    dynamic_lds: int = 0,
    cooperative: bool = False,
) -> None:
    """Runs one kernel of a gfx942 code object and waits for its end.

    Args:
        code_object: the ELF file, or an offload bundle that holds one for gfx942: its path or its bytes.
        kernel: the kernel's symbol, or its name in C++ source, with or without template arguments.
        grid: workgroups in x, y and z; an int is x.
        block: work-items of a workgroup in x, y and z; at most 1024 in total.
        args: one for each explicit argument of the kernel, laid out by its metadata. numpy arrays and torch CPU tensors
            are passed by pointer and updated in place; the kernel may access no other memory. ints and floats (Python's
            or NumPy's) are converted to the argument's size (a float to 2, 4 or 8 bytes). ctypes scalars, structures
            and arrays are passed by value and must have that size. None is a null pointer.
        dynamic_lds: bytes of dynamic LDS; 64 KiB at most with those that the kernel declares.
        cooperative: whether the kernel synchronises its grid (``cooperative_groups::this_grid().sync()``); all
            workgroups must fit on the chip at once.

    Raises:
        SimulatorError: the code object can't be loaded, has no such kernel, or the kernel failed (memory fault, illegal
            instruction, trap, limits); the message names instruction, offset, workgroup, wave and lane, the argument
            that was accessed, and source lines if the code object has debug information.
        ValueError, TypeError: the arguments don't fit the kernel's.
        FileNotFoundError: the simulator isn't built.
    """
    if not (is_int(dynamic_lds) and 0 <= dynamic_lds < 2**32):
        raise ValueError(f"dynamic_lds: expected a number of bytes below 2**32, got {dynamic_lds!r}")
    image = read_image(code_object)
    symbol = kernel_symbol(image, kernel)
    with loaded_kernel(image, symbol) as function:
        parameters = parameters_of(function)
        require_count(kernel, args, parameters)
        values = [_encode(index, *pair) for index, pair in enumerate(zip(args, parameters, strict=True))]
        pointers = (c_void_p * (len(values) + 1))(*[ctypes.addressof(value) for value in values], None)
        with _registered(args):
            extents = (*three("grid", grid), *three("block", block))
            if cooperative:
                launched = library().hipModuleLaunchCooperativeKernel
                status = launched(function, *extents, c_uint(dynamic_lds), None, pointers)
            else:
                launched = library().hipModuleLaunchKernel
                status = launched(function, *extents, c_uint(dynamic_lds), None, pointers, None)
            if status:
                raise _failure(image, symbol, function, args, parameters)
            _check(library().hipDeviceSynchronize())


def require_count(kernel: str, args: Sequence[Argument], parameters: Sequence[Parameter]) -> None:
    """Raises ValueError unless there is an argument for each parameter."""
    if len(args) != len(parameters):
        raise ValueError(f"args: kernel {kernel} takes {len(parameters)} arguments, got {len(args)}")


def disassemble(code: bytes) -> str:
    """gfx942 machine code (a ``.text`` section) as text: a line for each instruction, with its offset."""
    return introspect("dgSimDisassemble", code, c_size_t(len(code)))


def disassemble_kernel(code_object: str | Path | bytes, kernel: str) -> str:
    """A kernel of a code object as text, from its first instruction to the end of the code segment that holds it.

    Raises:
        SimulatorError: the code object can't be loaded or has no such kernel.
    """
    image = read_image(code_object)
    with loaded_kernel(image, kernel_symbol(image, kernel)) as function:
        code, size, entry = c_void_p(), c_size_t(), c_size_t()
        library().dgSimKernelCode(function, byref(code), byref(size), byref(entry))
        return disassemble(ctypes.string_at((code.value or 0) + entry.value, size.value - entry.value))


def read_image(code_object: str | Path | bytes) -> bytes:
    """The bytes of a code object that is given as bytes or by its path."""
    return code_object if isinstance(code_object, bytes) else Path(code_object).read_bytes()


def _check(status: int) -> None:
    if status:
        raise SimulatorError(library().dgSimLastMessage().decode())


@contextlib.contextmanager
def loaded_kernel(image: bytes, kernel: str) -> Iterator[c_void_p]:
    module, function = c_void_p(), c_void_p()
    _check(library().hipModuleLoadDataEx(byref(module), ctypes.create_string_buffer(image, len(image)), 0, None, None))
    try:
        _check(library().hipModuleGetFunction(byref(function), module, kernel.encode()))
        yield function
    finally:
        library().hipModuleUnload(module)


def kernel_symbol(image: bytes, kernel: str) -> str:
    names = kernel_names(image)
    found = matching(names, kernel)
    if len(found) == 1 or not names:
        return found[0] if found else kernel
    problem = "is the name of several kernels" if found else "is no kernel of this code object"
    raise SimulatorError(f"{kernel} {problem}; it has {listed_names(names)}")


def parameters_of(function: c_void_p) -> list[Parameter]:
    lines = introspect("dgSimKernelArguments", function).splitlines()
    fields = (line.split(" ", 2) for line in lines)
    # Clang passes structures in parts of this name.
    return [Parameter(int(size), kind == "pointer", name.removesuffix(".coerce")) for size, kind, name in fields]


_NOWHERE = 2**64 - 1


def _failure(
    image: bytes, symbol: str, function: c_void_p, args: Sequence[Argument], parameters: Sequence[Parameter]
) -> SimulatorError:
    """The error of the thread's last launch, with source lines and the argument that it is about."""
    message = library().dgSimLastMessage().decode()
    lines = [message.replace(f"kernel {symbol}:", f"kernel {source_name(symbol)}:")]
    offset, other_offset, address = c_uint64(), c_uint64(), c_uint64()
    error = SimulatorError()
    if library().dgSimLastFailure(byref(offset), byref(other_offset), byref(address)):
        error.operand = _operand(address.value, args, parameters)
        if error.operand:
            lines.append(f"the access is to {error.operand}")
        frames = _backtrace(image, function, symbol, offset.value)
        error.place, error.callers = next(iter(frames), None), tuple(frames[1:])
        error.other_place = next(iter(_backtrace(image, function, symbol, other_offset.value)), None)
        calls = [("called at", caller) for caller in error.callers]
        for text, place in (("at", error.place), *calls, ("the other access is at", error.other_place)):
            if place:
                lines.append(f"{text} {place}" + (f": {place.text}" if place.text else ""))
    error.args = ("\n  ".join(lines),)
    return error


def _backtrace(image: bytes, function: c_void_p, symbol: str, offset: int) -> list[Place]:
    """The source line at an offset from the start of the code, and the calls that led to it."""
    if offset == _NOWHERE or (lines := SourceLines.of(image)) is None:
        return []
    address = code_address(image, function, symbol)
    return [] if address is None else lines.backtrace(address + offset)


def code_address(image: bytes, function: c_void_p, symbol: str) -> int | None:
    """The ELF file's address of the first byte of the code segment that holds the kernel."""
    code, size, entry = c_void_p(), c_size_t(), c_size_t()
    library().dgSimKernelCode(function, byref(code), byref(size), byref(entry))
    address = symbol_address(image, symbol)
    return None if address is None else address - entry.value


def _operand(address: int, args: Sequence[Argument], parameters: Sequence[Parameter]) -> str | None:
    """Names the array that is nearest to an address, within a page of it, and the element there."""
    page = 4096
    nearest: tuple[int, str] | None = None
    for index, (value, parameter) in enumerate(zip(args, parameters, strict=True)):
        if not isinstance(value, (np.ndarray, torch.Tensor)):
            continue
        start, begin, size = _memory("", value)
        distance = max(begin - address, address - (begin + size) + 1, 0)
        if distance > page or (nearest is not None and nearest[0] <= distance):
            continue
        itemsize = value.dtype.itemsize
        count = value.size if isinstance(value, np.ndarray) else value.numel()
        element, byte = divmod(address - start, itemsize)
        within = f"byte {byte} of " if byte else ""
        dtype = str(value.dtype).removeprefix("torch.")
        named = f"{parameter.name}[{element}]" if parameter.name else f"element {element}"
        nearest = distance, f"{within}{named} of {count}, {dtype}, argument {index}"
    return nearest[1] if nearest else None


def _encode(index: int, value: Argument, parameter: Parameter) -> ctypes.Array[ctypes.c_char]:
    """The argument's bytes in the kernarg segment."""
    name = f"args[{index}]"
    if parameter.is_pointer and isinstance(value, float):
        raise TypeError(f"{name}: expected an array, a tensor, an address or None for a pointer, got {value}")
    return ctypes.create_string_buffer(_bytes(name, value, parameter.size), parameter.size)


def _bytes(name: str, value: Argument, size: int) -> bytes:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (np.ndarray, torch.Tensor)) or value is None:
        if size != 8:
            raise TypeError(f"{name}: the kernel takes {size} bytes by value, got {type(value).__name__}")
        return (0 if value is None else _memory(name, value)[0]).to_bytes(8, "little")
    if isinstance(value, _CData):
        if ctypes.sizeof(value) != size:
            raise ValueError(
                f"{name}: the kernel takes {size} bytes, got {type(value).__name__} of {ctypes.sizeof(value)}"
            )
        return bytes(value)
    if isinstance(value, int):
        if not -(2 ** (8 * size - 1)) <= value < 2 ** (8 * size):
            raise ValueError(f"{name}: {value} doesn't fit the {size} bytes that the kernel takes")
        return value.to_bytes(size, "little", signed=value < 0)
    if isinstance(value, float):
        if size not in (2, 4, 8):
            raise TypeError(f"{name}: the kernel takes {size} bytes, which no float has")
        try:
            return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
        except OverflowError:
            raise ValueError(f"{name}: {value} doesn't fit a float of {size} bytes") from None
    raise TypeError(
        f"{name}: expected an array, a tensor, a number, a value of ctypes or None, got {type(value).__name__}"
    )


def _memory(name: str, value: np.ndarray | torch.Tensor) -> tuple[int, int, int]:
    """The address of the first element, and the begin and size of the memory that the array spans."""
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            raise ValueError(f"{name}: expected a writable array, got a read-only one")
        reach = [(size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True)]
        before, after = sum(min(step, 0) for step in reach), sum(max(step, 0) for step in reach)
        size = after - before + value.itemsize if value.size else 0
        return value.ctypes.data, value.ctypes.data + before, size
    if value.device.type != "cpu":
        raise ValueError(f"{name}: expected a CPU tensor, got one on {value.device}")
    storage = value.untyped_storage()
    return value.data_ptr(), storage.data_ptr(), storage.nbytes()


@contextlib.contextmanager
def _registered(args: Sequence[Argument]) -> Iterator[None]:
    """Registers the memory of arrays and tensors with the simulator during a launch."""
    spans = {_memory("", value)[1:] for value in args if isinstance(value, (np.ndarray, torch.Tensor))}
    with contextlib.ExitStack() as stack:
        for begin, size in spans:
            if size == 0:
                continue
            _check(library().hipHostRegister(c_void_p(begin), c_size_t(size), 0))
            stack.callback(library().hipHostUnregister, c_void_p(begin))
        yield

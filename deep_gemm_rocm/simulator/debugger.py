"""Stops one wave of a kernel: ``with Debugger(code, "gemm", grid, block, args, wave=1) as debugger: ...``."""

from __future__ import annotations

import ctypes
import queue
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from .extent import Extent, three
from .library import library
from .program import (
    Argument,
    Parameter,
    SimulatorError,
    code_address,
    disassemble,
    kernel_symbol,
    launch,
    loaded_kernel,
    parameters_of,
    read_image,
    require_count,
)
from .register_types import as_type, bytes_of, dwords_of
from .source_lines import Place, SourceLines
from .variables import Lanes, Variable, variables

_SCALARS = {"flat_scratch": (102, 2), "vcc": (106, 2), "m0": (124, 1), "exec": (126, 2)}


class _StoppedWave(ctypes.Structure):
    """StoppedWave of csrc/engine.h."""

    _fields_ = [
        ("offset", c_uint64),
        ("executed", c_uint64),
        ("scalars", POINTER(c_uint32)),
        ("vectors", POINTER(c_uint32)),
        ("accumulators", POINTER(c_uint32)),
        ("scalar_count", c_uint32),
        ("vector_count", c_uint32),
        ("accumulator_count", c_uint32),
        ("scc", c_uint32),
        ("mode", c_uint32),
        ("lds_bytes", c_uint32),
        ("scratch_bytes", c_uint32),
        ("lds", c_void_p),
        ("scratch", c_void_p),
        ("failure", c_char_p),
    ]


_Callback = CFUNCTYPE(c_int, POINTER(_StoppedWave))


@dataclass(frozen=True)
class Stop:
    """Where the wave stands.

    Attributes:
        offset: of the instruction that executes next, in bytes from the kernel's entry.
        text: that instruction.
        place: its source line; None without debug information.
        executed: instructions that the wave has executed.
        failure: the message where the instruction failed, after which the wave can't go on; else None.
    """

    offset: int
    text: str
    place: Place | None
    executed: int
    failure: str | None = None


@dataclass(frozen=True)
class Breakpoint:
    """Where the wave stops: ``offsets`` are in bytes from the kernel's entry."""

    number: int
    where: str
    offsets: tuple[int, ...]


@dataclass
class _Code:
    """A kernel's code. Offsets are in bytes from the start of the code segment."""

    entry: int
    size: int
    texts: dict[int, str]
    parameters: list[Parameter]
    lines: SourceLines | None
    address: int | None  # of the segment in the ELF file

    def place(self, offset: int) -> Place | None:
        return next(iter(self.backtrace(offset)), None)

    def backtrace(self, offset: int) -> list[Place]:
        return [] if self.lines is None or self.address is None else self.lines.backtrace(self.address + offset)


@dataclass
class _Going:
    """The launch under way, in a thread of its own."""

    thread: threading.Thread
    stops: queue.Queue[ctypes._Pointer[_StoppedWave] | SimulatorError | BaseException | None] = field(
        default_factory=queue.Queue
    )
    goes_on: queue.Queue[bool] = field(default_factory=queue.Queue)


class Debugger:
    """Runs one kernel of a gfx942 code object, and stops one of its waves.

    The launch begins with the first call that lets the wave go on (``run``, ``step``, ``next_line``), and these return
    where it stops next, or None when the kernel has ended. While it is stopped, the other waves of its workgroup are
    too; other workgroups may go on. The sanitizer and the timing model work as in other launches.

    Args:
        code_object, kernel, grid, block, args, dynamic_lds, cooperative: as in ``simulator.launch``.
        workgroup: the wave's workgroup in x, y and z; an int is x.
        wave: the wave's number in the workgroup.

    Raises:
        SimulatorError: the code object can't be loaded or has no such kernel; from the calls that go on: the launch was
            refused, or another wave failed.
        ValueError: there is no such wave, or the number of arguments is wrong.
    """

    def __init__(
        self,
        code_object: str | Path | bytes,
        kernel: str,
        grid: Extent,
        block: Extent,
        args: Sequence[Argument],
        *,
        workgroup: Extent = 0,
        wave: int = 0,
        dynamic_lds: int = 0,
        cooperative: bool = False,
    ) -> None:
        image = read_image(code_object)
        grid_sizes, block_sizes = ([size.value for size in three(*pair)] for pair in (("grid", grid), ("block", block)))
        place = three("workgroup", workgroup, rest=0)
        waves = -(-int(np.prod(block_sizes)) // 64)
        if not all(at.value < size for at, size in zip(place, grid_sizes, strict=True)) or not 0 <= wave < waves:
            at = tuple(part.value for part in place)
            raise ValueError(f"no wave {wave} of workgroup {at}: the grid is {tuple(grid_sizes)}, with {waves} waves")
        self._code = _code_of(image, kernel)
        require_count(kernel, args, self._code.parameters)
        self._args = list(args)
        self._stops = np.zeros(self._code.size // 4 + 1, np.uint8)
        self._callback = _Callback(self._on_stop)
        self._where = (*place, c_uint32(wave))
        self._launch: Callable[[], None] = lambda: launch(
            image, kernel, grid, block, args, dynamic_lds=dynamic_lds, cooperative=cooperative
        )
        self._going: _Going | None = None
        self._view: _StoppedWave | None = None
        self._stays: Callable[[int], bool] | None = None  # whether a stop at this offset is passed over
        self._has_ended = False
        self.breakpoints: list[Breakpoint] = []

    def __enter__(self) -> Debugger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the launch where it stands."""
        if self._going is None:
            return
        self._view = None
        self._going.goes_on.put(False)  # also for a stop to come, of which nobody waited for
        self._going.thread.join()
        self._going, self._has_ended = None, True

    # ---- Going on ----

    def run(self) -> Stop | None:
        """Goes on to the next breakpoint, or to where the wave fails."""
        return self._go()

    def step(self, count: int = 1) -> Stop | None:
        """Executes ``count`` instructions; the first step of a launch only begins it."""
        left = count

        def stays(offset: int) -> bool:
            nonlocal left
            left -= 1
            return left > 0

        return self._go(stays)

    def next_line(self) -> Stop | None:
        """Goes on to another source line, or to another instruction where there are no lines."""
        before = self.stop.place if self._view is not None else None

        def stays(offset: int) -> bool:
            place = self._code.place(offset)
            return before is not None and (place is None or (place.file, place.line) == (before.file, before.line))

        return self._go(stays)

    def break_at(self, where: str) -> Breakpoint:
        """Adds a breakpoint.

        Args:
            where: ``"14"`` or ``"gemm.hip:14"``, a source line; or ``"*0x98"``, an instruction's offset from the
                kernel's entry.

        Raises:
            ValueError: there is no such instruction, or the line has no code; the message names lines that have.
        """
        offsets = self._offsets(where)
        number = 1 + max((known.number for known in self.breakpoints), default=0)
        added = Breakpoint(number, where, tuple(offset - self._code.entry for offset in offsets))
        self.breakpoints.append(added)
        self._set_stops()
        return added

    def delete(self, number: int) -> None:
        """Removes a breakpoint.

        Raises:
            ValueError: there is none of that number.
        """
        if all(known.number != number for known in self.breakpoints):
            raise ValueError(f"no breakpoint {number}")
        self.breakpoints = [known for known in self.breakpoints if known.number != number]
        self._set_stops()

    # ---- The stopped wave ----

    @property
    def stop(self) -> Stop:
        """Where the wave stands.

        Raises:
            ValueError: it hasn't begun, or has ended.
        """
        view = self._stopped()
        offset, failure = view.offset, view.failure.decode() if view.failure else None
        text = self._code.texts.get(offset, "?")
        return Stop(offset - self._code.entry, text, self._code.place(offset), view.executed, failure)

    def backtrace(self) -> list[Place]:
        """The source line of the next instruction, then the calls through which the compiler inlined it."""
        return self._code.backtrace(self._stopped().offset)

    def instructions(self, before: int = 3, after: int = 6) -> list[tuple[int, str]]:
        """Offsets from the kernel's entry, and texts, of instructions around the next one."""
        offsets = sorted(self._code.texts)
        at = offsets.index(self._stopped().offset)
        shown = offsets[max(0, at - before) : at + after + 1]
        return [(offset - self._code.entry, self._code.texts[offset]) for offset in shown]

    @property
    def exec(self) -> np.ndarray:
        """Which of the 64 lanes are active: booleans."""
        mask = self.scalar("exec", "u64")
        return np.array([int(mask) >> lane & 1 for lane in range(64)], dtype=bool)

    def vector(self, name: str, type: str = "u32") -> np.ndarray:
        """Values of a vector register in all lanes.

        Args:
            name: ``"v7"``, or ``"a7"`` for an AccVGPR. Types of 8 bytes take the next one, too.
            type: ``"f32"``, ``"f64"``, ``"i32"``, ``"u32"``, ``"i64"``, ``"u64"``; or a packed one, ``"f16x2"``,
                ``"bf16x2"``, ``"i16x2"``, ``"fp8x4"`` (e4m3) and ``"bf8x4"`` (e5m2), both FNUZ as on the MI300X,
                ``"ocp_fp8x4"``, ``"ocp_bf8x4"``, ``"i8x4"``, ``"u8x4"``.

        Returns:
            [64], or [64, 2] and [64, 4] for packed types.
        """
        match = re.fullmatch(r"([va])(\d+)", name)
        if match is None:
            raise ValueError(f"expected a vector register as in v7 or a7, got {name}")
        view, first = self._stopped(), int(match[2])
        is_vector = match[1] == "v"
        rows, count = (view.vectors, view.vector_count) if is_vector else (view.accumulators, view.accumulator_count)
        dwords = dwords_of(type)
        if first + dwords > count:
            raise ValueError(f"{name}: the kernel has {count} registers of this kind")
        values = np.ctypeslib.as_array(rows, (count, 64))[first : first + dwords]
        return as_type(np.ascontiguousarray(values.T), type)

    def scalar(self, name: str, type: str = "u32") -> np.ndarray | np.generic:
        """The value of a scalar register: ``s0`` to ``s101``, ``vcc``, ``exec``, ``flat_scratch``, ``m0`` or ``scc``.

        Args:
            type: as for ``vector``. Types of 8 bytes take the next register, too.
        """
        view = self._stopped()
        if name == "scc":
            return np.uint32(view.scc)
        match = re.fullmatch(r"s(\d+)", name)
        first, count = (int(match[1]), 102) if match else _SCALARS.get(name, (-1, 0))
        dwords = dwords_of(type)
        if first < 0 or (match is not None and first + dwords > count):
            raise ValueError(f"expected s0 to s101, vcc, exec, flat_scratch, m0 or scc, got {name}")
        values = np.ctypeslib.as_array(view.scalars, (view.scalar_count,))[first : first + dwords].copy()
        value: np.ndarray | np.generic = as_type(values[None], type)[0]
        return value

    def lds(self, offset: int, shape: tuple[int, int], type: str = "f32", row_bytes: int | None = None) -> np.ndarray:
        """A matrix in the workgroup's LDS.

        Args:
            offset: of its first element, in bytes.
            shape: rows and columns.
            type: of an element: ``"f32"``, ``"f16"``, ``"bf16"``, ``"fp8"``, ``"i32"``, ``"u8"`` and so on.
            row_bytes: from one row to the next; by default the rows touch.
        """
        view = self._stopped()
        rows, columns = shape
        size = bytes_of(type)
        stride = columns * size if row_bytes is None else row_bytes
        end = offset + (rows - 1) * stride + columns * size
        if min(offset, stride) < 0 or min(rows, columns) < 1 or end > view.lds_bytes:
            raise ValueError(f"bytes {offset} to {end} of LDS: the workgroup has {view.lds_bytes}")
        data = np.ctypeslib.as_array(ctypes.cast(view.lds or 0, POINTER(ctypes.c_uint8)), (view.lds_bytes,))
        picked = np.stack([data[offset + row * stride :][: columns * size] for row in range(rows)])
        return as_type(picked, type)

    def variables(self) -> list[Variable]:
        """The variables in scope, the innermost first, with their values in all lanes where the debug information has
        them. Parameters of the kernel that it doesn't have keep the value that was passed."""
        view = self._stopped()
        if self._code.lines is None or self._code.address is None:
            return []
        lanes = Lanes(
            scalars=np.ctypeslib.as_array(view.scalars, (view.scalar_count,)),
            vectors=np.ctypeslib.as_array(view.vectors, (view.vector_count, 64)),
            scratch=np.ctypeslib.as_array(ctypes.cast(view.scratch, POINTER(ctypes.c_uint8)), (64, view.scratch_bytes))
            if view.scratch_bytes
            else np.zeros((64, 0), np.uint8),
        )
        passed = {parameter.name: value for parameter, value in zip(self._code.parameters, self._args, strict=True)}
        return variables(self._code.lines, self._code.address + view.offset, lanes, passed)

    # ---- Inside ----

    def _stopped(self) -> _StoppedWave:
        if self._view is None:
            state = "has ended" if self._has_ended else "has not begun"
            raise ValueError(f"the wave {state}")
        return self._view

    def _set_stops(self) -> None:
        self._stops[1:] = 0
        for known in self.breakpoints:
            for offset in known.offsets:
                self._stops[1 + (offset + self._code.entry) // 4] = 1

    def _offsets(self, where: str) -> list[int]:
        code = self._code
        if where.startswith("*"):
            try:
                offset = int(where[1:], 0) + code.entry
            except ValueError:
                raise ValueError(f"expected an offset as in *0x98, got {where}") from None
            if offset not in code.texts:
                raise ValueError(f"no instruction begins at {where[1:]}")
            return [offset]
        match = re.fullmatch(r"(?:(.+):)?(\d+)", where)
        if match is None:
            raise ValueError(f"expected a line as in 14 or gemm.hip:14, or an offset as in *0x98, got {where}")
        if code.lines is None or code.address is None:
            raise ValueError("no source lines: compile with debug information (-g), and `pip install pyelftools`")
        starts = [
            (address - code.address, place)
            for address, place in code.lines.starts()
            if code.address <= address < code.address + code.size
            and (match[1] is None or Path(place.file).name == Path(match[1]).name)
        ]
        found = [offset for offset, place in starts if place.line == int(match[2])]
        if not found:
            known = ", ".join(map(str, sorted({place.line for _, place in starts})))
            raise ValueError(f"no code at {where}; lines with code: {known or 'none'}")
        return found

    def _go(self, stays: Callable[[int], bool] | None = None) -> Stop | None:
        """Goes on; to breakpoints, and where ``stays`` is given also to the first instruction where it is false."""
        if self._has_ended:
            raise ValueError("the wave has ended")
        self._stays = stays
        self._stops[0] = stays is not None
        if self._going is None:
            self._begin()
        else:
            self._view = None
            self._going.goes_on.put(True)
        assert self._going is not None
        found = self._going.stops.get()
        if isinstance(found, ctypes._Pointer):
            self._view = found.contents
            return self.stop
        self._going.thread.join()
        self._going, self._has_ended = None, True
        if found is not None:
            raise found
        return None

    def _begin(self) -> None:
        def work() -> None:
            library().dgSimDebugWave(
                self._callback, *self._where, c_void_p(self._stops.ctypes.data), c_size_t(self._stops.size)
            )
            try:
                self._launch()
            except BaseException as error:
                going.stops.put(error)
            else:
                going.stops.put(None)
            finally:
                library().dgSimDebugWave(None, *self._where, None, c_size_t(0))

        self._going = going = _Going(threading.Thread(target=work, name="debugged launch", daemon=True))
        going.thread.start()

    def _passes(self, wave: _StoppedWave) -> bool:
        """Whether the wave need not stop here after all."""
        if wave.failure or self._stays is None or self._stops[1 + wave.offset // 4]:
            return False
        return self._stays(wave.offset)

    def _on_stop(self, view: ctypes._Pointer[_StoppedWave]) -> int:
        """Called by the engine."""
        going = self._going
        assert going is not None
        try:
            if self._passes(view.contents):
                return 1
        except Exception as error:
            going.stops.put(error)
            return 0
        going.stops.put(view)
        return int(going.goes_on.get())


def _code_of(image: bytes, kernel: str) -> _Code:
    symbol = kernel_symbol(image, kernel)
    with loaded_kernel(image, symbol) as function:
        code, size, entry = c_void_p(), c_size_t(), c_size_t()
        library().dgSimKernelCode(function, byref(code), byref(size), byref(entry))
        text = disassemble(ctypes.string_at(code.value or 0, size.value))
        parameters, address = parameters_of(function), code_address(image, function, symbol)
    return _Code(entry.value, size.value, dict(_listing(text)), parameters, SourceLines.of(image), address)


def _listing(text: str) -> Iterator[tuple[int, str]]:
    for line in text.splitlines():
        offset, _, instruction = line.partition(" ")
        yield int(offset, 16), instruction

"""Source lines of instructions, from a code object's debug information (DWARF)."""

from __future__ import annotations

import bisect
import functools
import io
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """A place in a kernel's source.

    Attributes:
        file: the path that the compiler noted.
        line, column: from 1; 0 where the compiler noted none.
        function: the function that the line is part of; empty where unknown.
    """

    file: str
    line: int
    column: int
    function: str = ""

    @property
    def name(self) -> str:
        """The file as messages show it: relative to the working directory if it lies there."""
        if not os.path.exists(self.file):
            return os.path.basename(self.file)
        relative = os.path.relpath(self.file)
        return self.file if relative.startswith("..") else relative

    @property
    def text(self) -> str:
        """The line itself, stripped; empty where the file isn't there."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        column = f":{self.column}" if self.column else ""
        within = f" in {self.function}" if self.function else ""
        return f"{self.name}:{self.line}{column}{within}"


class SourceLines:
    """The line table of a code object, and which functions were inlined where.

    Addresses are those of the ELF file's symbols.
    """

    def __init__(self, dwarf: Any) -> None:
        self.dwarf = dwarf
        self._rows: list[tuple[int, int, Place | None]] = []  # address, number of its unit, place
        self._units = list(dwarf.iter_CUs())
        for number, unit in enumerate(self._units):
            self._rows += [(address, number, place) for address, place in _rows(dwarf, unit)]
        self._rows.sort(key=lambda row: row[0])
        self._addresses = [row[0] for row in self._rows]

    @classmethod
    def of(cls, image: bytes) -> SourceLines | None:
        """None where the code object has no debug information, or pyelftools isn't installed."""
        try:
            return _lines_of(image)
        except ImportError:
            return None

    def frames(self, address: int) -> list[Place]:
        """The instruction's place, then the calls through which the compiler inlined it, to the outermost."""
        place, unit = self._row(address)
        if place is None:
            return []
        names, calls = ["?"], []
        for die in _chain(self.dwarf, unit.get_top_DIE(), address):
            if die.tag == "DW_TAG_inlined_subroutine":
                calls.append(_call(self.dwarf, unit, die))
            names.append(function_name(die))
        places = [place, *reversed(calls)]
        return [
            Place(at.file, at.line, at.column, name)
            for at, name in zip(places, reversed(names[1:] or [""]), strict=False)
        ]

    def unit(self, address: int) -> Any | None:
        """The compilation unit that an instruction belongs to."""
        return self._row(address)[1]

    def _row(self, address: int) -> tuple[Place | None, Any]:
        """The place and the compilation unit in the last row of the line table that isn't behind an instruction."""
        index = bisect.bisect_right(self._addresses, address) - 1
        if index < 0:
            return None, None
        _, unit, place = self._rows[index]
        return place, None if place is None else self._units[unit]

    @functools.cache  # noqa: B019 - objects of this class are kept anyway
    def starts(self) -> list[tuple[int, Place]]:
        """The addresses at which another line begins, outside HIP's headers."""
        found: list[tuple[int, Place]] = []
        last: Place | None = None
        for address, _, row in self._rows:
            place = self.place(address) if row else None
            if place is not None and (last is None or (place.file, place.line) != (last.file, last.line)):
                found.append((address, place))
            last = place
        return found

    def backtrace(self, address: int) -> list[Place]:
        """The frames from the innermost outside HIP's headers on; all of them where they lie in these."""
        frames = self.frames(address)
        own = next((index for index, place in enumerate(frames) if not is_header(place.file)), 0)
        return frames[own:]

    def place(self, address: int) -> Place | None:
        """The innermost place outside HIP's headers; None where the instruction has no line."""
        return next(iter(self.backtrace(address)), None)


def is_header(file: str) -> bool:
    """True for the headers of HIP, ROCm's or this package's, whose lines are not the user's."""
    return "/include/hip/" in os.path.normpath(file) or os.path.basename(file).startswith("__clang_hip")


@functools.lru_cache(maxsize=8)
def _lines_of(image: bytes) -> SourceLines | None:
    from elftools.common.exceptions import DWARFError, ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(image))
        if not elf.has_dwarf_info():
            return None
        return SourceLines(elf.get_dwarf_info())
    except (ELFError, DWARFError, ValueError):
        return None


def symbol_address(image: bytes, symbol: str) -> int | None:
    """The address of a symbol in an ELF file; None where it has none."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return None
    try:
        table: Any = ELFFile(io.BytesIO(image)).get_section_by_name(".dynsym")
        found = table.get_symbol_by_name(symbol) if table else None
    except ELFError:
        return None
    return found[0]["st_value"] if found else None


def _rows(dwarf: Any, unit: Any) -> Iterator[tuple[int, Place | None]]:
    """The addresses at which the line changes. None ends a sequence; code without a line keeps the one before."""
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return
    last: Place | None = None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if state.end_sequence:
            last = None
        elif state.line:
            last = Place(source_file(program, unit, state.file), state.line, state.column)
        yield state.address, last


def source_file(program: Any, unit: Any, index: int) -> str:
    """DWARF 5 counts files and folders from 0, the first folder being that of the compilation; earlier versions count
    from 1, and 0 is that folder (DWARF 5, 6.2.4)."""
    header = program.header
    is_old = header["version"] < 5
    entry = header["file_entry"][index - 1 if is_old else index]
    folder = text_of(attribute(unit.get_top_DIE(), "DW_AT_comp_dir") or b"")
    if not is_old or entry.dir_index > 0:
        within = text_of(header["include_directory"][entry.dir_index - 1 if is_old else entry.dir_index])
        folder = os.path.join(folder, within)
    return os.path.normpath(os.path.join(folder, text_of(entry.name)))


def _chain(dwarf: Any, die: Any, address: int) -> Iterator[Any]:
    """The function and the inlined calls that hold the address, from the outermost."""
    for child in die.iter_children():
        is_function = child.tag in ("DW_TAG_subprogram", "DW_TAG_inlined_subroutine")
        if child.tag not in ("DW_TAG_lexical_block", "DW_TAG_namespace") and not is_function:
            continue
        if child.tag != "DW_TAG_namespace" and not any(low <= address < high for low, high in spans(dwarf, child)):
            continue
        if is_function:
            yield child
        yield from _chain(dwarf, child, address)


def spans(dwarf: Any, die: Any) -> Iterator[tuple[int, int]]:
    if (low := attribute(die, "DW_AT_low_pc")) is not None:
        high = die.attributes.get("DW_AT_high_pc")
        if high is not None:
            yield low, high.value if high.form == "DW_FORM_addr" else low + high.value
    elif (offset := attribute(die, "DW_AT_ranges")) is not None:
        base = attribute(die.cu.get_top_DIE(), "DW_AT_low_pc") or 0
        for entry in dwarf.range_lists().get_range_list_at_offset(offset, die.cu):
            if hasattr(entry, "base_address"):
                base = entry.base_address
            else:
                start = 0 if getattr(entry, "is_absolute", False) else base
                yield start + entry.begin_offset, start + entry.end_offset


def _call(dwarf: Any, unit: Any, die: Any) -> Place:
    program = dwarf.line_program_for_CU(unit)
    file = source_file(program, unit, attribute(die, "DW_AT_call_file"))
    return Place(file, attribute(die, "DW_AT_call_line") or 0, attribute(die, "DW_AT_call_column") or 0)


def function_name(die: Any) -> str:
    for link in ("DW_AT_abstract_origin", "DW_AT_specification"):
        if "DW_AT_name" not in die.attributes and link in die.attributes:
            die = die.get_DIE_from_attribute(link)
    return text_of(attribute(die, "DW_AT_name") or b"")


def attribute(die: Any, attribute: str) -> Any:
    found = die.attributes.get(attribute)
    return None if found is None else found.value


def text_of(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")

"""Variables of a stopped wave, from DWARF debug information.

Locations are what clang writes for AMDGPU: registers, constants, offsets from the frame in scratch, simple arithmetic
on these, and pieces. Clang adds an address space (`lit1, swap, xderef`) to each variable that was on the stack once,
also where it keeps the value in a register; it is left out here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .register_types import as_type, bytes_of
from .source_lines import SourceLines, attribute, function_name, is_header, source_file, spans, text_of

OPTIMISED_OUT = "optimised out"

_LANES = 64
_ENCODINGS = {2: "u", 4: "f", 5: "i", 6: "i", 7: "u", 8: "u", 16: "u"}  # DW_ATE_: boolean, float, signed, char, ...


@dataclass(frozen=True)
class Lanes:
    """The registers of a wave and the scratch of its lanes."""

    scalars: np.ndarray  # [128] uint32, by operand encoding
    vectors: np.ndarray  # [registers, 64] uint32
    scratch: np.ndarray  # [64, bytes] uint8


@dataclass(frozen=True)
class Variable:
    """A variable in scope.

    Attributes:
        name, type: as in the source.
        values: [64], or [64, elements] for arrays and vectors; None where they aren't known.
        note: why they aren't known, or where they come from.
    """

    name: str
    type: str
    values: np.ndarray | None
    note: str = ""

    def in_lane(self, lane: int) -> str:
        """The value in a lane as text."""
        if self.values is None:
            return f"<{self.note}>"
        value = self.values[lane]
        shown = np.array2string(value, separator=", ") if value.ndim else _number(value, self.type)
        return f"{shown}  ({self.note})" if self.note else shown


def _number(value: Any, type: str) -> str:
    if type.endswith("*"):
        return f"{int(value):#x}"
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)


class _UnreadableError(Exception):
    """The debug information has no value, or one in a form that isn't known here."""


def variables(lines: SourceLines, address: int, lanes: Lanes, passed: Mapping[str, Any]) -> list[Variable]:
    """The variables in scope at an instruction, the innermost first; those of HIP's headers are left out.

    Args:
        address: the ELF file's, of the instruction.
        passed: the kernel's arguments by name, for parameters without a location.
    """
    unit = lines.unit(address)
    if unit is None:
        return []
    scopes = list(_scopes(lines.dwarf, unit.get_top_DIE(), address))
    frame = next((die for die in reversed(scopes) if "DW_AT_frame_base" in die.attributes), None)
    own = [scope for scope in scopes if not is_header(_declared_in(lines.dwarf, unit, scope))]
    reader = _Reader(lines.dwarf, unit, address, lanes, frame)
    found: dict[str, Variable] = {}
    for scope in reversed(own):
        takes_arguments = scope.tag == "DW_TAG_subprogram"
        for die in scope.iter_children():
            if die.tag not in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                continue
            variable = reader.variable(die)
            if variable.values is None and takes_arguments and variable.name in passed:
                variable = _passed(variable, passed[variable.name])
            if variable.name:
                found.setdefault(variable.name, variable)
    return list(found.values())


def _passed(variable: Variable, value: Any) -> Variable:
    if isinstance(value, (int, float)):
        return Variable(variable.name, variable.type, np.full(_LANES, value), "as passed")
    shape = list(getattr(value, "shape", ()))
    return Variable(variable.name, variable.type, None, f"{getattr(value, 'dtype', '')}{shape}, as passed")


def _scopes(dwarf: Any, die: Any, address: int) -> Iterator[Any]:
    """The functions, inlined calls and blocks that hold the address, from the outermost."""
    scopes = ("DW_TAG_subprogram", "DW_TAG_inlined_subroutine", "DW_TAG_lexical_block")
    for child in die.iter_children():
        if child.tag == "DW_TAG_namespace":
            yield from _scopes(dwarf, child, address)
        elif child.tag in scopes and any(low <= address < high for low, high in spans(dwarf, child)):
            yield child
            yield from _scopes(dwarf, child, address)


def _declared_in(dwarf: Any, unit: Any, scope: Any) -> str:
    """The file of the function that the scope belongs to."""
    while scope.tag == "DW_TAG_lexical_block":
        scope = scope.get_parent()
    while "DW_AT_decl_file" not in scope.attributes:
        links = ("DW_AT_abstract_origin", "DW_AT_specification")
        link = next((name for name in links if name in scope.attributes), None)
        if link is None:
            return ""
        scope = scope.get_DIE_from_attribute(link)
    program = dwarf.line_program_for_CU(unit)
    return source_file(program, unit, attribute(scope, "DW_AT_decl_file"))


@dataclass
class _Item:
    """A value of DWARF's stack, in each lane."""

    values: np.ndarray  # [64] int64
    register: int | None = None  # the value is this DWARF register, of which wider variables take more
    is_address: bool = False  # in scratch


class _Reader:
    def __init__(self, dwarf: Any, unit: Any, address: int, lanes: Lanes, frame: Any) -> None:
        from elftools.dwarf.dwarf_expr import DWARFExprParser
        from elftools.dwarf.locationlists import LocationParser

        self._unit, self._address, self._lanes = unit, address, lanes
        self._locations = LocationParser(dwarf.location_lists())
        self._expressions = DWARFExprParser(unit.structs)
        self._frame: np.ndarray | None = None
        if frame is not None and (base := self._expression(frame, "DW_AT_frame_base")):
            item = self._evaluated(base)
            self._frame = item.values if isinstance(item, _Item) else None

    def variable(self, die: Any) -> Variable:
        origin = die
        while "DW_AT_type" not in origin.attributes and "DW_AT_abstract_origin" in origin.attributes:
            origin = origin.get_DIE_from_attribute("DW_AT_abstract_origin")
        name = function_name(die)
        if "DW_AT_type" not in origin.attributes:
            return Variable(name, "", None, OPTIMISED_OUT)
        type = _Type.of(origin.get_DIE_from_attribute("DW_AT_type"))
        try:
            return Variable(name, type.name, type.numbers(self._bytes(die, type.size)))
        except _UnreadableError as problem:
            # Clang writes no location for variables in LDS.
            may_be_shared = str(problem) == OPTIMISED_OUT and die.tag == "DW_TAG_variable" and "[" in type.name
            return Variable(name, type.name, None, f"{problem}, or in LDS" if may_be_shared else str(problem))

    def _bytes(self, die: Any, size: int) -> np.ndarray:
        constant = die.attributes.get("DW_AT_const_value")
        if constant is not None and isinstance(constant.value, int):
            return self._taken(_Item(np.full(_LANES, constant.value)), size)
        expression = self._expression(die, "DW_AT_location")
        if not expression:
            raise _UnreadableError(OPTIMISED_OUT)
        found = self._evaluated(expression)
        if isinstance(found, _Item):
            return self._taken(found, size)
        if found.shape[1] < size:
            raise _UnreadableError(OPTIMISED_OUT)
        return found[:, :size]

    def _expression(self, die: Any, name: str) -> list[int]:
        """The location expression that holds at the address; empty where there is none."""
        from elftools.dwarf.locationlists import BaseAddressEntry, LocationExpr

        if name not in die.attributes:
            return []
        parsed: Any = self._locations.parse_from_attribute(die.attributes[name], self._unit["version"], die)
        if isinstance(parsed, LocationExpr):
            return list(parsed.loc_expr)
        base = attribute(self._unit.get_top_DIE(), "DW_AT_low_pc") or 0
        for entry in parsed:
            if isinstance(entry, BaseAddressEntry):
                base = entry.base_address
                continue
            start = 0 if entry.is_absolute else base
            if start + entry.begin_offset <= self._address < start + entry.end_offset:
                return list(entry.loc_expr)
        return []

    def _evaluated(self, expression: list[int]) -> _Item | np.ndarray:
        """The value or address, or the bytes of all pieces."""
        stack: list[_Item] = []
        pieces: list[np.ndarray] = []
        try:
            for operation in self._expressions.parse_expr(expression):
                name, arguments = operation.op_name.removeprefix("DW_OP_"), operation.args
                if name == "piece":
                    pieces.append(self._taken(stack.pop(), arguments[0]))
                elif name != "stack_value":
                    self._execute(stack, name, arguments)
            return np.concatenate(pieces, axis=1) if pieces else stack.pop()
        except (IndexError, KeyError, ValueError, AttributeError) as error:
            raise _UnreadableError("in a form that is not read here") from error

    def _execute(self, stack: list[_Item], name: str, arguments: list[Any]) -> None:
        if name.startswith("lit"):
            stack.append(_Item(np.full(_LANES, int(name[3:]))))
        elif name.startswith("const") and arguments:
            stack.append(_Item(np.full(_LANES, np.uint64(arguments[0] % 2**64)).view(np.int64)))
        elif name in ("regx", "bregx") or name.startswith(("reg", "breg")):
            is_based, has_number = name.startswith("b"), name.endswith("x")
            register = arguments[0] if has_number else int(name.removeprefix("b")[3:])
            offset = arguments[-1] if is_based else 0
            stack.append(_Item(self._row(register) + offset, register if offset == 0 else None))
        elif name == "fbreg":
            if self._frame is None:
                raise ValueError("no frame")
            stack.append(_Item(self._frame + arguments[0], is_address=True))
        elif name == "plus_uconst":
            top = stack.pop()
            stack.append(_Item(top.values + arguments[0], is_address=top.is_address))
        elif name == "dup":
            stack.append(stack[-1])
        elif name == "swap":
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif name == "xderef":
            address = stack.pop()
            stack[-1] = address
        elif name in _UNARY:
            stack.append(_Item(_UNARY[name](stack.pop().values)))
        elif name in _BINARY:
            right, left = stack.pop(), stack.pop()
            stack.append(_Item(_BINARY[name](left.values, right.values), is_address=left.is_address))
        else:
            raise ValueError(name)

    def _row(self, register: int) -> np.ndarray:
        """A register in all lanes (LLVM AMDGPU usage, "Register Identifier", wave64)."""
        lanes = self._lanes
        if 32 <= register <= 95 or 1088 <= register <= 1129:
            number = register - 32 if register <= 95 else register - 1088 + 64
            return np.full(_LANES, int(lanes.scalars[number]))
        if 2560 <= register <= 2815:
            return lanes.vectors[register - 2560].astype(np.int64)
        raise KeyError(register)

    def _taken(self, item: _Item, size: int) -> np.ndarray:
        """The bytes of a variable: [64, size]."""
        if item.is_address:
            scratch = self._lanes.scratch
            begin = int(item.values[0])
            if (item.values != begin).any() or begin < 0 or begin + size > scratch.shape[1]:
                raise _UnreadableError("outside the lane's scratch")
            return scratch[:, begin : begin + size].copy()
        if item.register is not None and size > 4:
            rows = [self._row(item.register + i).astype(np.uint32) for i in range(-(-size // 4))]
            return np.ascontiguousarray(np.stack(rows, axis=1)).view(np.uint8)[:, :size]
        if size > 8:
            raise _UnreadableError("in a form that is not read here")
        return np.ascontiguousarray(item.values.astype(np.int64)[:, None]).view(np.uint8)[:, :size]


_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {"neg": operator.neg, "not": operator.invert}
_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "plus": operator.add,
    "minus": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": lambda value, count: (value.view(np.uint64) >> count.view(np.uint64)).view(np.int64),
    "shra": operator.rshift,
}


@dataclass(frozen=True)
class _Type:
    """A type of the source: its name, size, and the register type of its elements (None where it has none)."""

    name: str
    size: int
    element: str | None

    @classmethod
    def of(cls, die: Any) -> _Type:
        if die.tag == "DW_TAG_pointer_type" or die.tag.endswith("reference_type"):
            target = die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None
            return cls(f"{cls.of(target).name if target else 'void'}*", 8, "u64")
        name, size = text_of(attribute(die, "DW_AT_name") or b""), attribute(die, "DW_AT_byte_size")
        if die.tag == "DW_TAG_base_type":
            kind = "bf" if "bf16" in name else _ENCODINGS.get(attribute(die, "DW_AT_encoding"), "u")
            return cls(name, size, f"{kind}{8 * size}" if size in (1, 2, 4, 8) else None)
        if die.tag == "DW_TAG_array_type":
            element = cls.of(die.get_DIE_from_attribute("DW_AT_type"))
            counts = [_count(child) for child in die.iter_children() if child.tag == "DW_TAG_subrange_type"]
            shape = "".join(f"[{count}]" for count in counts)
            return cls(element.name + shape, element.size * int(np.prod(counts)), element.element)
        members = [child for child in die.iter_children() if child.tag in ("DW_TAG_member", "DW_TAG_inheritance")]
        if die.tag.endswith(("structure_type", "class_type", "union_type")):
            parts = {cls.of(part.get_DIE_from_attribute("DW_AT_type")).element for part in members}
            return cls(name, size or 0, parts.pop() if len(parts) == 1 else None)
        if "DW_AT_type" in die.attributes:  # a typedef, a qualifier or an enumeration
            inner = cls.of(die.get_DIE_from_attribute("DW_AT_type"))
            qualifier = {"DW_TAG_const_type": "const ", "DW_TAG_volatile_type": "volatile "}.get(die.tag, "")
            return cls(name or qualifier + inner.name, inner.size, inner.element)
        return cls(name or "void", size or 0, None)

    def numbers(self, raw: np.ndarray) -> np.ndarray:
        if self.element is None or self.size == 0:
            raise _UnreadableError(f"{self.size} bytes of mixed types")
        values = as_type(np.ascontiguousarray(raw), self.element)
        return values[:, 0] if self.size == bytes_of(self.element) else values


def _count(subrange: Any) -> int:
    count, last = attribute(subrange, "DW_AT_count"), attribute(subrange, "DW_AT_upper_bound")
    return int(count if count is not None else last + 1 if last is not None else 0)

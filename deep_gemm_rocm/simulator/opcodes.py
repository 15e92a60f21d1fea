"""Lists the gfx942 opcodes that the simulator executes, and how faithfully."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from .library import introspect

Status = Literal["exact", "approximate", "missing"]


@dataclass(frozen=True)
class Opcode:
    """One opcode of one encoding, as LLVM names it.

    ``status`` is ``exact`` where the result is the chip's (or what the ISA manual defines), ``approximate`` where
    ``difference`` says what is not, and ``missing`` where a kernel that executes it fails.
    """

    family: str
    number: int
    mnemonic: str
    status: Status
    difference: str = ""


def opcodes() -> list[Opcode]:
    """Every opcode that LLVM knows for gfx942, by encoding family and number.

    Raises:
        FileNotFoundError: the simulator isn't built.
    """
    return [_parse(line) for line in introspect("dgSimOpcodes").splitlines()]


def _parse(line: str) -> Opcode:
    family, number, mnemonic, status, *difference = line.split(" ", 4)
    return Opcode(family, int(number, 16), mnemonic, cast("Status", status), *difference)

"""Tables of configurations that were measured to be the best, and the files that keep them."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_type_hints

from ..files import replacing
from .gemm_config import NUM_CUS

_FLOPS_PER_CLOCK = {1: 4096, 2: 2048, 4: 1024}  # of a CU, by the bytes of an element
_FLAGS = {"True": True, "False": False}
MEASURED_COLUMNS = ("time_us", "error", "device", "clock_mhz", "toolchain", "simulated")


class TableError(ValueError):
    """A table of tuned configurations can't be used; the message names file, line and what is wrong there."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How long a choice takes, and how exact its result is.

    Attributes:
        time_us: time of one call, with inputs that weren't in the Infinity Cache.
        error: largest error of the result, in units of what rounding may cost.
        device, clock_mhz, toolchain: what it was measured with.
        simulated: whether the timing model told the time.
    """

    time_us: float
    error: float
    device: str
    clock_mhz: int
    toolchain: str
    simulated: bool

    def check(self, flops: int, element_bytes: int) -> None:
        """
        Args:
            flops: number of operations that were measured.

        Raises:
            ValueError: no such measurement is possible.
        """
        if self.clock_mhz < 1:
            raise ValueError(f"clock_mhz must be positive, got {self.clock_mhz}")
        if not 0 <= self.error <= 1:
            raise ValueError(f"error must be from 0 to 1, else the result was wrong, got {self.error}")
        if not (self.time_us > 0 and math.isfinite(self.time_us)):
            raise ValueError(f"time_us must be positive, got {self.time_us}")
        peak = _FLOPS_PER_CLOCK[element_bytes] * NUM_CUS * self.clock_mhz  # in FLOP/µs
        if flops > peak * self.time_us:
            raise ValueError(
                f"{flops / self.time_us / 1e6:.0f} TFLOPS are impossible: at {self.clock_mhz} MHz an MI300X has "
                f"{peak / 1e6:.0f}"
            )


def parsed(cls: type, fields: Mapping[str, str]) -> dict[str, Any]:
    """The values that ``fields`` have for attributes of a class: numbers, flags and strings, as it declares them.

    Raises:
        ValueError: a field is none of these.
    """
    values: dict[str, Any] = {}
    for name, type_ in _types(cls).items():
        if name in fields and type_ is bool:
            if fields[name] not in _FLAGS:
                raise ValueError(f"{name} must be True or False, got {fields[name]!r}")
            values[name] = _FLAGS[fields[name]]
        elif name in fields and type_ in (int, float, str):
            try:
                values[name] = type_(fields[name])
            except ValueError as error:
                raise ValueError(f"{name} must be a number, got {fields[name]!r}") from error
    return values


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """The types of a class's attributes, which take long to evaluate."""
    return get_type_hints(cls)


class Row(Protocol):
    """A row of a table."""

    @property
    def key(self) -> tuple[Any, ...]: ...
    def as_fields(self) -> dict[str, Any]: ...
    @classmethod
    def from_fields(cls: type[_Row], fields: Mapping[str, str]) -> _Row: ...


_Row = TypeVar("_Row", bound=Row)
_Table = TypeVar("_Table", bound="Table[Any]")


class Table(Generic[_Row]):
    """Rows by their problems, and the file that keeps them.

    Attributes:
        columns: names of the file's columns.
        row: type of the rows.
    """

    columns: ClassVar[tuple[str, ...]]
    row: ClassVar[type[Any]]

    def __init__(self, rows: Iterable[_Row] = ()) -> None:
        self.rows = {row.key: row for row in rows}

    @classmethod
    def read(cls: type[_Table], path: Path) -> _Table:
        """
        Raises:
            TableError: the file isn't a table, or a row of it is impossible.
            OSError: it can't be read.
        """
        rows = []
        with open(path, newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            try:
                if tuple(next(lines, ())) != cls.columns:
                    raise ValueError(f"expected the columns {', '.join(cls.columns)}")
                for line in lines:
                    if len(line) != len(cls.columns):
                        raise ValueError(f"expected {len(cls.columns)} columns, got {len(line)}")
                    rows.append(cls.row.from_fields(dict(zip(cls.columns, line, strict=True))))
            except (csv.Error, KeyError, TypeError, ValueError) as error:
                raise TableError(f"{path}, line {max(lines.line_num, 1)}: {error}") from error
        return cls(rows)

    def write(self, path: Path) -> None:
        """All rows in order, by way of another file, so that the old one is whole until the new one is."""
        with replacing(path) as new, open(new, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            for key in sorted(self.rows, key=str):
                writer.writerow(self.rows[key].as_fields())

    def has(self, problem: Any) -> bool:
        """Whether there is a row for just this problem."""
        return self.key_of(problem) in self.rows

    @staticmethod
    def key_of(problem: Any) -> tuple[Any, ...]:
        """The key of a row for the problem."""
        raise NotImplementedError

    def with_row(self: _Table, row: _Row) -> _Table:
        return type(self)([*self.rows.values(), row])

"""Configurations that were measured to be the best: a table that comes with the package, or one of the user's own."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from .. import changes
from ..layout import ceil_div
from .gemm_config import GemmConfig, GemmKind

SHIPPED = Path(__file__).resolve().with_name("tuned_gemm.csv")

_CUS = 304
_FLOPS_PER_CLOCK = {1: 4096, 2: 2048, 4: 1024}  # of a CU, by the bytes of an element
MEASURED_COLUMNS = ("time_us", "error", "device", "clock_mhz", "toolchain", "simulated")
_KIND_DEFAULTS = {field.name: field.default for field in dataclasses.fields(GemmKind)}
_CONFIG_FIELDS = {field.name: field.type for field in dataclasses.fields(GemmConfig) if field.name != "kind"}
COLUMNS = (
    "kind", "m", "n", "k", "groups", *_CONFIG_FIELDS, "splits", *MEASURED_COLUMNS,
)  # fmt: skip


class TableError(ValueError):
    """A table of tuned configurations can't be used; the message names file, line and what is wrong there."""


class GemmProblem(NamedTuple):
    """What a configuration is chosen for: the arguments of ``choose_gemm_config``."""

    kind: GemmKind
    m: int
    n: int
    k: int
    num_cus: int
    num_groups: int
    max_block_m: int


class Choice(NamedTuple):
    """How a problem is computed: the configuration, for the problem's kind, and into how many parts K is split."""

    config: GemmConfig
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.config.kernel_name}{f', K in {self.splits} parts' if self.splits > 1 else ''}"


class _Cached(Protocol):
    def cache_clear(self) -> None: ...


_Choose = TypeVar("_Choose", bound=_Cached)


class Finds(Protocol):
    """Something that knows choices."""

    def find(self, problem: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How a choice did.

    Attributes:
        time_us: of one call, with inputs that weren't in the Infinity Cache.
        error: the result's largest, in units of what rounding may cost.
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
        Raises:
            ValueError: no such measurement of so many operations is possible.
        """
        if self.clock_mhz < 1:
            raise ValueError(f"clock_mhz must be positive, got {self.clock_mhz}")
        if not 0 <= self.error <= 1:
            raise ValueError(f"error must be from 0 to 1, else the result was wrong, got {self.error}")
        if not (self.time_us > 0 and math.isfinite(self.time_us)):
            raise ValueError(f"time_us must be positive, got {self.time_us}")
        peak = _FLOPS_PER_CLOCK[element_bytes] * _CUS * self.clock_mhz  # in FLOP/µs
        if flops > peak * self.time_us:
            raise ValueError(
                f"{flops / self.time_us / 1e6:.0f} TFLOPS are impossible: at {self.clock_mhz} MHz an MI300X has "
                f"{peak / 1e6:.0f}"
            )

    @staticmethod
    def fields_of(fields: Mapping[str, str]) -> dict[str, Any]:
        """Its own of a row's.

        Raises:
            ValueError, KeyError: the fields aren't those of a row.
        """
        if fields["simulated"] not in ("True", "False"):
            raise ValueError(f"simulated must be True or False, got {fields['simulated']!r}")
        return {
            "time_us": float(fields["time_us"]),
            "error": float(fields["error"]),
            "device": fields["device"],
            "clock_mhz": int(fields["clock_mhz"]),
            "toolchain": fields["toolchain"],
            "simulated": fields["simulated"] == "True",
        }


@dataclass(frozen=True, kw_only=True)
class TunedRow(Measured):
    """A measurement of the best configuration for a problem.

    Attributes:
        config, splits: as of ``Choice``.
        m, n, k, groups: as of ``choose_gemm_config``.
    """

    config: GemmConfig
    splits: int
    m: int
    n: int
    k: int
    groups: int

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: no such measurement is possible.
        """
        if min(self.m, self.n, self.k, self.groups, self.splits) < 1:
            raise ValueError("m, n, k, groups and splits must be positive")
        if self.splits > 1 and self.config.kind.grouping != "dense":
            raise ValueError(f"only K of dense problems is split, got {self.splits} splits of {self.config.kind.name}")
        groups = 1 if self.config.kind.grouping == "k_grouped" else self.groups
        self.check(2 * self.m * self.n * self.k * groups, self.config.kind.element_bytes)

    @property
    def key(self) -> tuple[Any, ...]:
        return (*_key(self.config.kind, self.n, self.k, self.groups), self.m)

    def as_fields(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in COLUMNS if hasattr(self, name)}
        config = {name: getattr(self.config, name) for name in _CONFIG_FIELDS}
        return {"kind": _kind_text(self.config.kind), **own, **config}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> TunedRow:
        """
        Raises:
            ValueError, KeyError, TypeError: the fields aren't those of a row.
        """
        k = int(fields["k"])
        kind = with_tail(_parsed_kind(fields["kind"]), k)
        values = {name: fields[name] if of == "str" else int(fields[name]) for name, of in _CONFIG_FIELDS.items()}
        return cls(
            config=GemmConfig(kind=kind, **values),  # type: ignore[arg-type]
            splits=int(fields["splits"]),
            m=int(fields["m"]),
            n=int(fields["n"]),
            k=k,
            groups=int(fields["groups"]),
            **cls.fields_of(fields),
        )


class Row(Protocol):
    """What a table has."""

    @property
    def key(self) -> tuple[Any, ...]: ...
    def as_fields(self) -> dict[str, Any]: ...
    @classmethod
    def from_fields(cls: type[_Row], fields: Mapping[str, str]) -> _Row: ...


_Row = TypeVar("_Row", bound=Row)
_Table = TypeVar("_Table", bound="Table[Any]")


class Table(Generic[_Row]):
    """Rows by their problems, in a file of such columns."""

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
        with open(path, newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != cls.columns:
                raise TableError(f"{path}: expected the columns {', '.join(cls.columns)}")
            rows = []
            for fields in reader:
                try:
                    rows.append(cls.row.from_fields(fields))
                except (ValueError, KeyError, TypeError) as error:
                    raise TableError(f"{path}, line {reader.line_num}: {error}") from error
        return cls(rows)

    def write(self, path: Path) -> None:
        """All rows in order, by way of another file, so that the old one is whole until the new one is."""
        temporary = path.with_name(path.name + ".new")
        with open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            for key in sorted(self.rows, key=str):
                writer.writerow(self.rows[key].as_fields())
        temporary.replace(path)

    def has(self, problem: Any) -> bool:
        """Whether there is a row for just this problem."""
        return self.key_of(problem) in self.rows

    @staticmethod
    def key_of(problem: Any) -> tuple[Any, ...]:
        """Of a row for it."""
        raise NotImplementedError

    def with_row(self: _Table, row: _Row) -> _Table:
        return type(self)([*self.rows.values(), row])


class TunedTable(Table[TunedRow]):
    """Of GEMMs."""

    columns = COLUMNS
    row = TunedRow

    def __init__(self, rows: Iterable[TunedRow] = ()) -> None:
        super().__init__(rows)
        self._by_weight: dict[tuple[Any, ...], list[TunedRow]] = {}
        for row in self.rows.values():
            self._by_weight.setdefault(row.key[:-1], []).append(row)

    @staticmethod
    def key_of(problem: GemmProblem) -> tuple[Any, ...]:
        return *_key(problem.kind, problem.n, problem.k, problem.num_groups), problem.m

    def find(self, problem: GemmProblem) -> Choice | None:
        """That of the row with the nearest M whose tiles cover the problem's rows as well, no more and no
        fewer of them; they do the same work then."""
        if problem.num_cus != _CUS:
            return None
        rows = self._by_weight.get(_key(problem.kind, problem.n, problem.k, problem.num_groups), ())
        fitting = [
            row
            for row in rows
            if row.config.block_m <= problem.max_block_m
            and ceil_div(row.m, row.config.block_m) == ceil_div(problem.m, row.config.block_m)
        ]
        nearest = min(fitting, key=lambda row: abs(row.m - problem.m), default=None)
        return Choice(nearest.config, nearest.splits) if nearest else None


def with_tail(kind: GemmKind, k: int) -> GemmKind:
    """The kind for this K, whichever it was for."""
    return dataclasses.replace(kind, k_tail=k * kind.element_bytes % 128 != 0)


def _key(kind: GemmKind, n: int, k: int, groups: int) -> tuple[Any, ...]:
    return dataclasses.replace(kind, k_tail=False), n, k, groups


def _kind_text(kind: GemmKind) -> str:
    """What distinguishes a kind from the default one, as ``a_type=bf16 b_type=bf16``; ``k_tail`` follows from K."""
    own = {name: getattr(kind, name) for name in _KIND_DEFAULTS if name != "k_tail"}
    return " ".join(f"{name}={value}" for name, value in own.items() if value != _KIND_DEFAULTS[name])


def _parsed_kind(text: str) -> GemmKind:
    fields: dict[str, Any] = dict(pair.split("=") for pair in text.split())
    for name, value in fields.items():
        if isinstance(_KIND_DEFAULTS.get(name), bool):
            fields[name] = {"True": True, "False": False}[value]
    return GemmKind(**fields)


_replacement: Finds | None = None
_on_change: list[Callable[[], None]] = []


def table() -> Finds:
    """What ``choose_gemm_config`` asks first: the file that ``DG_TUNED_TABLE`` names, or the package's own.

    Raises:
        TableError, OSError: the file can't be used.
    """
    return replacement() or _read(os.environ.get("DG_TUNED_TABLE") or str(SHIPPED))


def replacement() -> Finds | None:
    """What is asked instead of any table."""
    return _replacement


@functools.cache
def _read(path: str) -> TunedTable:
    return TunedTable.read(Path(path))


def asks_tables(choose: _Choose) -> _Choose:
    """For cached functions, which forget what they returned when they are to ask something else."""
    _on_change.append(choose.cache_clear)
    return choose


@contextlib.contextmanager
def replaced(by: Finds) -> Iterator[None]:
    """Lets functions that choose configurations ask something else, in all threads; for tuning."""
    global _replacement
    before = _replacement
    _replacement = by
    forget()
    try:
        yield
    finally:
        _replacement = before
        forget()


def forget() -> None:
    """Makes functions that choose configurations ask the tables again, and read which tables the environment names."""
    for clear in _on_change:
        clear()
    changes.note()

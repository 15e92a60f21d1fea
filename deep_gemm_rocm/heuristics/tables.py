"""Configurations that were measured to be the best: a table that comes with the package, or one of the user's own."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, get_type_hints

from .. import forking
from ..problems.gemm_kind import GemmKind, changed
from ..problems.layout import align, ceil_div
from ..runtime import session
from .gemm_config import GemmConfig

SHIPPED = Path(__file__).resolve().with_name("tuned_gemm.csv")

_CUS = 304
_FLOPS_PER_CLOCK = {1: 4096, 2: 2048, 4: 1024}  # of a CU, by the bytes of an element
_FLAGS = {"True": True, "False": False}
MEASURED_COLUMNS = ("time_us", "error", "device", "clock_mhz", "toolchain", "simulated")
_KIND_DEFAULTS = {field.name: field.default for field in dataclasses.fields(GemmKind)}
_CONFIG_COLUMNS = tuple(field.name for field in dataclasses.fields(GemmConfig) if field.name not in ("kind", "parts_k"))
COLUMNS = ("kind", "m", "n", "k", "groups", *_CONFIG_COLUMNS, "splits", *MEASURED_COLUMNS)


class TableError(ValueError):
    """A table of tuned configurations can't be used; the message names file, line and what is wrong there."""


KOrder = tuple[int, int]


class GemmProblem(NamedTuple):
    """The arguments of ``choose_gemm_config``.

    Attributes:
        k_order: the ``Choice.k_order`` that choices must have; None for any.
    """

    kind: GemmKind
    m: int
    n: int
    k: int
    num_cus: int
    num_groups: int
    max_block_m: int
    k_order: KOrder | None = None

    def in_parts(self, splits: int) -> GemmProblem:
        """The parts of a dense problem whose K is split."""
        kind = changed(self.kind, grouping="split_k", sums_parts=True)
        return self._replace(kind=kind, num_groups=splits)


class Choice(NamedTuple):
    """How a problem is computed: the configuration, for the problem's kind, and into how many parts K is split."""

    config: GemmConfig
    splits: int = 1

    @property
    def k_order(self) -> KOrder:
        """Into how many parts K is dealt, and each of them again. Of equal orders, results have the same bits.

        Parts are added up in order, whether waves, workgroups or the K loop compute them.
        """
        inner = self.config.waves_k * self.config.parts_k
        # Scales of rows are applied to each part of a split K, but to the sum of all inner parts.
        if inner == 1 and self.config.kind.scaling != "rows":
            return 1, self.splits
        return self.splits, inner

    def __str__(self) -> str:
        return f"{self.config.kernel_name}{f', K in {self.splits} parts' if self.splits > 1 else ''}"


_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST_CHOICES = 4096  # that are remembered, of less than 1 KB each


class Finds(Protocol):
    """A table, or something that takes its place."""

    def find(self, problem: Any) -> Any: ...


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
        peak = _FLOPS_PER_CLOCK[element_bytes] * _CUS * self.clock_mhz  # in FLOP/µs
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
    for name, type_ in get_type_hints(cls).items():
        if name in fields and type_ is bool:
            if fields[name] not in _FLAGS:
                raise ValueError(f"{name} must be True or False, got {fields[name]!r}")
            values[name] = _FLAGS[fields[name]]
        elif name in fields and type_ in (int, float, str):
            values[name] = type_(fields[name])
    return values


@dataclass(frozen=True, kw_only=True)
class TunedRow(Measured):
    """A measurement of the best configuration for a problem.

    Attributes:
        config, splits: those of a ``Choice``.
        m, n, k, groups: sizes of the problem, see ``choose_gemm_config``.
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
        kind = self.config.kind
        if self.splits > 1 and not (kind.grouping == "dense" and kind.can_split_k):
            raise ValueError(f"only K of dense problems that sum is split, got {self.splits} splits of {kind.name}")
        groups = 1 if self.config.kind.grouping == "k_grouped" else self.groups
        self.check(2 * self.m * self.n * self.k * groups, self.config.kind.element_bytes)

    @property
    def choice(self) -> Choice:
        return Choice(self.config, self.splits)

    @property
    def key(self) -> tuple[Any, ...]:
        return (*_key(self.config.kind, self.n, self.k, self.groups), self.m)

    def as_fields(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in COLUMNS if hasattr(self, name)}
        config = {name: getattr(self.config, name) for name in _CONFIG_COLUMNS}
        return {"kind": _kind_text(self.config.kind), **own, **config}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> TunedRow:
        """
        Raises:
            ValueError, KeyError, TypeError: the fields aren't those of a row.
        """
        own = parsed(cls, fields)
        kind = with_tail(_parsed_kind(fields["kind"]), own["k"])
        return cls(config=GemmConfig(kind=kind, **parsed(GemmConfig, fields)), **own)


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
        with open(path, newline="", encoding="utf-8") as file:
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
        with open(temporary, "w", newline="", encoding="utf-8") as file:
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
        """The key of a row for the problem."""
        raise NotImplementedError

    def with_row(self: _Table, row: _Row) -> _Table:
        return type(self)([*self.rows.values(), row])


class TunedTable(Table[TunedRow]):
    """Choices for GEMMs."""

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
        """The choice of the row with the nearest M, among those that take as many tile rows as the problem."""
        if problem.num_cus != _CUS:
            return None
        rows = self._by_weight.get(_key(problem.kind, problem.n, problem.k, problem.num_groups), ())
        add_begins(itertools.chain(*map(_begins_of, rows), _between(rows)))
        fitting = [
            row
            for row in rows
            if row.config.block_m <= problem.max_block_m
            and problem.k_order in (None, row.choice.k_order)
            and ceil_div(row.m, row.config.block_m) == ceil_div(problem.m, row.config.block_m)
        ]
        nearest = min(fitting, key=lambda row: abs(row.m - problem.m), default=None)
        return nearest.choice if nearest else None


_begins: ContextVar[set[int] | None] = ContextVar("begins", default=None)


@contextlib.contextmanager
def collecting_begins() -> Iterator[set[int]]:
    """Collects each M from which on another choice may be made, as far as this thread makes choices inside.

    Choices for a collected M may add others.
    """
    collected: set[int] = set()
    token = _begins.set(collected)
    try:
        yield collected
    finally:
        _begins.reset(token)


def add_begins(begins: Iterable[int]) -> None:
    """Adds to what ``collecting_begins`` collects, if it does."""
    collected = _begins.get()
    if collected is not None:
        collected.update(begins)


def _begins_of(row: TunedRow) -> tuple[int, int]:
    """From which M on, and from which M on no longer, problems take as many tile rows as the row's."""
    end = align(row.m, row.config.block_m) + 1
    return end - row.config.block_m, end


def _between(rows: Iterable[TunedRow]) -> Iterator[int]:
    """From which M on another row is the nearest."""
    for one, other in itertools.combinations(rows, 2):
        middle = (one.m + other.m) // 2
        yield from (middle, middle + 1)


def with_tail(kind: GemmKind, k: int) -> GemmKind:
    """The kind for this K, whichever it was for."""
    return changed(kind, k_tail=k * kind.element_bytes % 128 != 0)


def _key(kind: GemmKind, n: int, k: int, groups: int) -> tuple[Any, ...]:
    return changed(kind, k_tail=False), n, k, groups


def _kind_text(kind: GemmKind) -> str:
    """The fields that differ from the default kind's, as ``a_type=bf16 b_type=bf16``; ``k_tail`` follows from K."""
    own = {name: getattr(kind, name) for name in _KIND_DEFAULTS if name != "k_tail"}
    return " ".join(f"{name}={value}" for name, value in own.items() if value != _KIND_DEFAULTS[name])


def _parsed_kind(text: str) -> GemmKind:
    fields = dict(pair.split("=") for pair in text.split())
    unknown = fields.keys() - _KIND_DEFAULTS
    if unknown:
        raise ValueError(f"a kind has no {', '.join(sorted(unknown))}")
    return GemmKind(**parsed(GemmKind, fields))


class Replacement(session.Part):
    """Something that is asked instead of any table, if there is such."""

    def __init__(self, table: Finds | None = None) -> None:
        self.table = table


class Choices(session.Part):
    """The tables that were read, and the choices that were made.

    Attributes:
        made: results of ``remembered`` functions, by function and arguments, oldest first.
    """

    rests_on_choices = True

    def __init__(self) -> None:
        self.made: dict[tuple[Any, ...], Any] = {}
        self._tables: dict[tuple[type, str], Finds] = {}
        self._changing = forking.Lock()

    def remember(self, key: tuple[Any, ...], choice: Any) -> None:
        with self._changing:
            self.made[key] = choice
            if len(self.made) > _MOST_CHOICES:
                del self.made[next(iter(self.made))]

    def table(self, kind: type[Table[Any]], path: str) -> Finds:
        """The table in a file, unless something else is asked.

        Raises:
            TableError, OSError: the file can't be used.
        """
        replacement = session.current().of(Replacement).table
        if replacement is not None:
            return replacement
        if (kind, path) not in self._tables:
            found: Any = kind.read(Path(path))
            self._tables[kind, path] = found
        return self._tables[kind, path]


def table() -> Finds:
    """The table of GEMMs: the file that ``DG_TUNED_TABLE`` names, or the package's own.

    Raises:
        TableError, OSError: the file can't be used.
    """
    path = os.environ.get("DG_TUNED_TABLE") or str(SHIPPED)
    return session.current().of(Choices).table(TunedTable, path)


def remembered(choose: Callable[_P, _R]) -> Callable[_P, _R]:
    """Calls ``choose`` once for the same arguments in a session."""

    @functools.wraps(choose)
    def chosen(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        choices = session.current().of(Choices)
        key = (choose, args, *kwargs.items())
        choice = choices.made.get(key)
        if choice is None:
            choice = choose(*args, **kwargs)
            choices.remember(key, choice)
        return choice

    return chosen


@contextlib.contextmanager
def replaced(by: Finds) -> Iterator[None]:
    """Lets functions that choose configurations ask something else, in all threads; for tuning."""
    with session.using(session.current().derived(Replacement(by))):
        yield


def is_replaced() -> bool:
    """Whether something else is asked instead of any table."""
    return session.current().of(Replacement).table is not None


def forget() -> None:
    """Makes functions that choose configurations ask the tables again, and read which tables the environment names."""
    session.current().forget_choices()

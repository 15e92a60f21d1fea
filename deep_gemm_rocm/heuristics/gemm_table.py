"""The table of GEMMs: one that comes with the package, or one of the user's own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..problems.gemm_kind import GemmKind, changed
from ..problems.layout import align, ceil_div
from ..runtime import session
from .choices import Choices, Finds, add_begins
from .gemm_config import NUM_CUS, GemmConfig
from .gemm_problem import Choice, GemmProblem, with_tail
from .tables import MEASURED_COLUMNS, Measured, Table, parsed

SHIPPED = Path(__file__).resolve().with_name("tuned_gemm.csv")
_KIND_DEFAULTS = {field.name: field.default for field in dataclasses.fields(GemmKind)}
_CONFIG_COLUMNS = tuple(field.name for field in dataclasses.fields(GemmConfig) if field.name not in ("kind", "parts_k"))
COLUMNS = ("kind", "m", "n", "k", "groups", *_CONFIG_COLUMNS, "splits", *MEASURED_COLUMNS)


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
        if self.splits > 1 and not (kind.grouping == "split_k" and kind.sums_parts):
            raise ValueError(f"only K of dense problems that sum is split, got {self.splits} splits of {kind.name}")
        groups = 1 if self.config.kind.grouping == "k_grouped" else self.groups
        self.check(2 * self.m * self.n * self.k * groups, self.config.kind.element_bytes)

    @property
    def choice(self) -> Choice:
        return Choice(self.config, self.splits)

    @property
    def key(self) -> tuple[Any, ...]:
        return (*_key(self.choice.kind, self.n, self.k, self.groups), self.m)

    def as_fields(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in COLUMNS if hasattr(self, name)}
        config = {name: getattr(self.config, name) for name in _CONFIG_COLUMNS}
        kind = self.choice.kind if self.splits > 1 else self.config.kind
        return {"kind": _kind_text(kind), **own, **config}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> TunedRow:
        """
        Raises:
            ValueError, KeyError, TypeError: the fields aren't those of a row.
        """
        own = parsed(cls, fields)
        kind = with_tail(_parsed_kind(fields["kind"]), own["k"])
        if own["splits"] > 1 and kind.grouping == "dense":
            kind = kind.in_parts
        return cls(config=GemmConfig(kind=kind, **parsed(GemmConfig, fields)), **own)


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
        if problem.num_cus != NUM_CUS:
            return None
        rows = self._by_weight.get(_key(problem.kind, problem.n, problem.k, problem.num_groups), ())
        add_begins(itertools.chain(*map(_begins_of, rows), _between(rows)))
        fitting = [
            row
            for row in rows
            if problem.takes(row.config)
            and problem.k_order in (None, row.choice.k_order)
            and ceil_div(row.m, row.config.block_m) == ceil_div(problem.m, row.config.block_m)
        ]
        nearest = min(fitting, key=lambda row: abs(row.m - problem.m), default=None)
        return nearest.choice if nearest else None

    def tiles(self, problem: GemmProblem) -> tuple[GemmConfig, ...]:
        """The configurations of all rows for the problem's weight, whatever their M, that aren't in parts."""
        rows = self._by_weight.get(_key(problem.kind, problem.n, problem.k, problem.num_groups), ())
        return tuple(row.config for row in rows if not row.choice.is_in_parts and problem.takes(row.config))


def _begins_of(row: TunedRow) -> tuple[int, int]:
    """The first M whose problems take as many tile rows as the row's, and the first larger M that takes more."""
    end = align(row.m, row.config.block_m) + 1
    return end - row.config.block_m, end


def _between(rows: Iterable[TunedRow]) -> Iterator[int]:
    """Each M from which on another row is the nearest."""
    for one, other in itertools.combinations(rows, 2):
        middle = (one.m + other.m) // 2
        yield from (middle, middle + 1)


def _key(kind: GemmKind, n: int, k: int, groups: int) -> tuple[Any, ...]:
    return changed(kind, k_tail=False), n, k, groups


def _kind_text(kind: GemmKind) -> str:
    """The fields that differ from the default kind's, as ``a_type=bf16 b_type=bf16``; ``k_tail`` follows from K."""
    own = {name: getattr(kind, name) for name in _KIND_DEFAULTS if name != "k_tail"}
    return " ".join(f"{name}={value}" for name, value in own.items() if value != _KIND_DEFAULTS[name])


def _parsed_kind(text: str) -> GemmKind:
    pairs = [pair.partition("=") for pair in text.split()]
    fields = {name: value for name, _, value in pairs}
    unknown = fields.keys() - _KIND_DEFAULTS
    if unknown:
        raise ValueError(f"a kind has no {', '.join(sorted(unknown))}")
    return GemmKind(**parsed(GemmKind, fields))


def table() -> Finds:
    """The table of GEMMs: the file that ``DG_TUNED_TABLE`` names, or the package's own.

    Raises:
        TableError, OSError: the file can't be used.
    """
    return session.current().of(Choices).table(TunedTable, "DG_TUNED_TABLE", SHIPPED)

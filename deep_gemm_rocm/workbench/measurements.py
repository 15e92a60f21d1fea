"""What kernels took in simulated time, kept in files and compared: did a change make a kernel faster?"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files import replacing
from ..simulator import KernelCounters, KernelProfile, source_name

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One launch.

    Attributes:
        kernel, grid, block: the launch; measurements of the same ones are compared.
        sustained_us: simulated time under sustained load.
        cycles: clocks at the boost clock.
        instructions: wave instructions executed.
        stalls: clocks of waves by the reason of the stall.
        registers: of a lane, VGPRs and AccVGPRs.
        lds_bytes: of a workgroup.
        waves_per_cu: resident waves of a CU, 32 at most.
        results: a hash of the arrays after the launch.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    sustained_us: float
    cycles: int
    instructions: int
    stalls: Mapping[str, int]
    registers: int
    lds_bytes: int
    waves_per_cu: int
    results: str

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return self.kernel, self.grid, self.block

    @property
    def name(self) -> str:
        """The launch, for tables."""
        return f"{self.kernel} {'x'.join(map(str, self.grid))} of {'x'.join(map(str, self.block))}"

    @classmethod
    def of(cls, profile: KernelProfile, counters: KernelCounters, arrays: Iterable[np.ndarray]) -> Measurement:
        """
        Args:
            profile, counters: of the same launch.
            arrays: its arguments afterwards.
        """
        hashed = hashlib.sha256()
        for array in arrays:
            hashed.update(np.ascontiguousarray(array).tobytes())
        return cls(
            source_name(profile.name),
            profile.grid,
            profile.block,
            profile.sustained_us,
            profile.cycles,
            profile.instructions,
            {name: clocks for name, clocks in profile.stalls.items() if clocks},
            counters.occupancy.registers,
            counters.occupancy.lds_bytes,
            counters.occupancy.waves_per_cu,
            hashed.hexdigest(),
        )


def read(path: Path) -> list[Measurement]:
    """
    Raises:
        OSError, ValueError: the file can't be read, or holds no measurements.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != _FORMAT:
            raise ValueError(f"it has format {stored['format']}, not {_FORMAT}")
        return [
            Measurement(**{**kernel, "grid": tuple(kernel["grid"]), "block": tuple(kernel["block"])})
            for kernel in stored["kernels"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no measurements as `sim profile --json` writes them: {error}") from error


def add(path: Path, measurement: Measurement) -> None:
    """Writes a measurement into a file, in place of one of the same launch. Others in the file are kept.

    Raises:
        OSError, ValueError: as ``read``; or the file can't be written.
    """
    kept = {found.key: found for found in read(path)} if path.exists() else {}
    kept[measurement.key] = measurement
    stored = {"format": _FORMAT, "kernels": [dataclasses.asdict(found) for found in kept.values()]}
    with replacing(path) as new:
        new.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


class Change(NamedTuple):
    """A launch before and after; None where it is missing."""

    before: Measurement | None
    after: Measurement | None

    @property
    def slower(self) -> float:
        """By which share the launch takes longer: 0.1 for 10%; 0 where it is missing before or after."""
        if self.before is None or self.after is None:
            return 0
        return self.after.sustained_us / self.before.sustained_us - 1

    def headline(self) -> str:
        """The launch and its times, in a line."""
        launch = self.after or self.before
        assert launch is not None
        times = [f"{measured.sustained_us:.2f}" if measured else "-" for measured in self]
        percent = f" ({self.slower:+.1%})" if all(self) else ""
        return f"{launch.name}: {' -> '.join(times)} µs{percent}"

    def facts(self) -> Iterator[str]:
        """What changed beside the time, a line each."""
        before, after = self.before, self.after
        if before is None or after is None:
            yield "only after" if before is None else "only before"
            return
        if before.results != after.results:
            yield "results differ"
        for field, what in (
            ("cycles", "cycles"),
            ("instructions", "instructions"),
            ("registers", "registers of a lane"),
            ("lds_bytes", "LDS bytes of a workgroup"),
            ("waves_per_cu", "waves of a CU"),
        ):
            old, new = getattr(before, field), getattr(after, field)
            if old != new:
                yield f"{what} {old:,} -> {new:,}"
        for reason in sorted({*before.stalls, *after.stalls}):
            old, new = before.stalls.get(reason, 0), after.stalls.get(reason, 0)
            if abs(new - old) > 0.05 * max(sum(before.stalls.values()), 1):
                yield f"clocks waited: {reason} {old:,} -> {new:,}"


def changes(before: Iterable[Measurement], after: Iterable[Measurement]) -> list[Change]:
    """Pairs the measurements of the same launches, in the order of the later ones."""
    old, new = ({found.key: found for found in measurements} for measurements in (before, after))
    return [Change(old.get(key), new.get(key)) for key in {**new, **old}]

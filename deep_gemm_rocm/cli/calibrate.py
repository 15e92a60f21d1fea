"""``calibrate``: measures this machine's chip, and writes the constants with which the timing model agrees with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..calibration import PROBES, Finding, Probe, calibrate
from ..runtime import hip
from . import UsageError

_CUS = 304  # of the chips whose constants the model has without `chip`


def run(console: Console, out: Path, names: Sequence[str]) -> bool:
    """Prints what was found and writes the constants to ``out``; returns whether all figures were brought to agree.

    Args:
        names: the constants to find, or none for all of them.
    """
    runtime = hip.runtime()
    if runtime.num_cus != _CUS:
        raise UsageError(f"calibrate is for chips with {_CUS} CUs, MI300X and MI325X; this one has {runtime.num_cus}")
    probes = _chosen(names)
    found = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(probes))
        progress.update(task, description=probes[0].what)
        for following, finding in itertools.zip_longest(probes[1:], calibrate(probes)):
            assert finding is not None
            found.append(finding)
            progress.update(task, advance=1, description=following.what if following else "")
    console.print(_table(found))
    for finding in found:
        if finding.after is None:
            console.print(f"{finding.probe.constant}: no value makes the model agree, so it stays as it is")
    out.write_text(_text(found, runtime.describe()), encoding="utf-8")
    console.print(f"{runtime.describe()}. Use the constants with DG_SIM_TIMING_CONSTANTS={out}")
    return all(finding.after is not None for finding in found)


def _chosen(names: Sequence[str]) -> list[Probe]:
    """The probes of these constants.

    Raises:
        UsageError: a name is no constant's.
    """
    known = [probe.constant for probe in PROBES]
    for name in names:
        if name not in known:
            raise UsageError(f"--only: expected some of {', '.join(known)}; got {name}")
    return [probe for probe in PROBES if not names or probe.constant in names]


def _table(found: Sequence[Finding]) -> Table:
    caption = "* off by more than 10%" if any(finding.disagrees for finding in found) else None
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for header in ("constant", "was", "is", "measured", "modelled", "unit"):
        table.add_column(header, justify="left" if header in ("constant", "unit") else "right")
    for finding in found:
        probe = finding.probe
        after = "" if finding.after is None else f"{finding.after:.5g}"
        modelled = f"{'* ' if finding.disagrees else ''}{finding.modelled:.5g}"
        table.add_row(probe.constant, f"{finding.before:g}", after, f"{finding.measured:.5g}", modelled, probe.unit)
    return table


def _text(found: Iterable[Finding], device: str) -> str:
    """A file for ``DG_SIM_TIMING_CONSTANTS``."""
    lines = [f"# Constants of the timing model, measured on: {device}"]
    solved = [finding for finding in found if finding.after is not None]
    for section, findings in itertools.groupby(solved, key=lambda finding: finding.probe.constant.partition(".")[0]):
        lines += ["", f"[{section}]"]
        for finding in findings:
            name, probe = finding.probe.constant.partition(".")[2], finding.probe
            measured = f"{probe.what}, {finding.measured:.4g} {probe.unit}"
            lines.append(f"{name} = {finding.after:.6g}  # source: measured, {measured}; was {finding.before:g}")
    return "\n".join(lines) + "\n"

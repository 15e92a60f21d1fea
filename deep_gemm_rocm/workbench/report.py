"""A launch's profile as one HTML file: its figures, source lines beside their instructions, and a timeline."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from ..simulator import KernelProfile, LineProfile, Timeline, source_name

_COLUMNS = 800
_COLOURS = {
    "matrix cores": "#1f77b4",
    "vector ALUs": "#2ca02c",
    "LDS": "#9467bd",
    "memory": "#17becf",
    "scalar": "#98df8a",
}
_STALLED = (
    "#d62728",
    "#ff7f0e",
    "#e377c2",
    "#bcbd22",
    "#8c564b",
    "#ffbb78",
    "#ff9896",
    "#c49c94",
    "#dbdb8d",
    "#c7c7c7",
)


def write_html(path: Path, profile: KernelProfile, lines: Sequence[LineProfile]) -> None:
    """Writes a report that needs no other file.

    Args:
        path: the HTML file; it is replaced.
        profile: of a launch, with a timeline.
        lines: ``simulator.profile_lines`` of it.

    Raises:
        ValueError: the profile has no timeline.
        OSError: the file can't be written.
    """
    if profile.timeline is None:
        raise ValueError("the profile has no timeline: ask for it with profile(timeline=CU)")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    grid, block = ("x".join(map(str, extent)) for extent in (profile.grid, profile.block))
    text = environment.get_template("report.html.j2").render(
        title=f"{source_name(profile.name)}, {grid} workgroups of {block}",
        facts=list(_facts(profile)),
        lines=list(_lines(lines)),
        timeline=_timeline(profile, profile.timeline),
    )
    path.write_text(text, encoding="utf-8")


def _facts(profile: KernelProfile) -> Iterator[tuple[str, str]]:
    least, most = profile.interval_us
    yield "time under sustained load", f"{profile.sustained_us:,.2f} µs, {least:,.2f} to {most:,.2f}"
    yield "clock under sustained load", f"{profile.sustained_mhz:,.0f} MHz"
    yield "time if the busiest resource never idled", f"{profile.without_idling_us:,.2f} µs"
    yield "cycles", f"{profile.cycles:,}"
    yield "instructions", f"{profile.instructions:,}"
    yield "clocks of LDS bank conflicts", f"{profile.lds_conflict_cycles:,}"
    yield "bytes of HBM", f"{profile.hbm_bytes:,}"
    for name, share in sorted(profile.busy.items(), key=lambda resource: -resource[1]):
        yield f"busy, where there was work: {name}", f"{share:.1%}"
    total = sum(profile.stalls.values())
    for name, clocks in sorted(profile.stalls.items(), key=lambda stall: -stall[1]):
        if clocks:
            yield f"waves waited: {name}", f"{clocks / total:.1%}"


def _lines(lines: Sequence[LineProfile]) -> Iterator[dict[str, Any]]:
    total = max(sum(line.cycles for line in lines), 1)
    for line in lines:
        yield {
            "percent": 100 * line.cycles / total,
            "executed": line.executed,
            "where": f"{line.place.name}:{line.place.line}" if line.place else "",
            "text": line.place.text if line.place else "(no line)",
            "facts": ", ".join(line.facts()),
            "instructions": [
                {
                    "percent": 100 * instruction.cycles / total,
                    "offset": f"{instruction.offset:#06x}",
                    "text": instruction.text,
                }
                for instruction in line.instructions
            ],
        }


def _timeline(profile: KernelProfile, timeline: Timeline) -> dict[str, Any]:
    unit = {line.offset: line.unit for line in profile.listing}
    stalls = sorted({event["stall"] for event in timeline.events if "stall" in event})
    colours = {**_COLOURS, **dict(zip(stalls, itertools.cycle(_STALLED)))}
    clocks = max((event["end"] for event in timeline.events), default=1)
    used: set[str] = set()
    rows = []
    for events in _tracks(timeline):
        steps: list[Counter[str]] = [Counter() for _ in range(_COLUMNS)]
        for event in events:
            activity = event["stall"] if "stall" in event else unit[event["offset"]]
            _spread(steps, activity, event["begin"] * _COLUMNS / clocks, event["end"] * _COLUMNS / clocks)
        row, begin = [], 0
        for what, group in itertools.groupby(step.most_common(1)[0][0] if step else "" for step in steps):
            width = len(list(group))
            if what:
                used.add(what)
                row.append({"begin": begin, "width": width, "activity": what, "colour": colours[what]})
            begin += width
        rows.append(row)
    legend = [(activity, colour) for activity, colour in colours.items() if activity in used]
    return {"columns": _COLUMNS, "clocks": clocks, "rows": rows, "legend": legend}


def _tracks(timeline: Timeline) -> list[list[Mapping[str, Any]]]:
    """The events of waves, with waves one after the other on a track of their SIMD."""
    waves: dict[tuple[int, int, int], list[Mapping[str, Any]]] = {}
    for event in timeline.events:
        waves.setdefault((event["simd"], event["workgroup"], event["wave"]), []).append(event)
    tracks: list[tuple[int, list[Mapping[str, Any]]]] = []
    for (simd, *_), events in sorted(waves.items(), key=lambda wave: (wave[0][0], wave[1][0]["begin"])):
        free = (track for at, track in tracks if at == simd and track[-1]["end"] <= events[0]["begin"])
        track = next(free, None)
        if track is None:
            tracks.append((simd, list(events)))
        else:
            track += events
    return [track for _, track in tracks]


def _spread(steps: list[Counter[str]], activity: str, begin: float, end: float) -> None:
    """Adds an activity to the steps that it covers, by the share of each."""
    for step in range(int(begin), min(int(end) + 1, len(steps))):
        share = round(1e6 * (min(end, step + 1) - max(begin, step)))
        if share > 0:
            steps[step][activity] += share

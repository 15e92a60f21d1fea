"""Simulated time of kernels on the simulated MI300X: ``with profile() as prof: ...``, then ``prof.kernels``."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .. import forking
from . import power
from .constants import chip_constants, current
from .library import introspect, library


@dataclass(frozen=True)
class InstructionProfile:
    """An instruction of a kernel that was executed at least once.

    Attributes:
        offset: bytes from the kernel's first instruction.
        text: mnemonic and operands.
        executed: times that a wave executed it.
        cycles: clocks of all waves from the instruction before until this one was issued: its own time and what it
            waited for.
    """

    offset: int
    text: str
    executed: int
    cycles: int

    @property
    def unit(self) -> str:
        """The unit that executes it: ``matrix cores``, ``vector ALUs``, ``LDS``, ``memory`` or ``scalar``."""
        family = self.text.partition("_")[0]
        if family == "v":
            return "matrix cores" if self.text.startswith(("v_mfma", "v_smfmac")) else "vector ALUs"
        return {"s": "scalar", "ds": "LDS"}.get(family, "memory")


@dataclass(frozen=True)
class Timeline:
    """The timeline of a launch, in core clocks from its start, without workgroups that sampling left out.

    Attributes:
        residences: ``workgroup``, ``cu``, ``begin`` and ``end`` of each workgroup.
        events: the first 400 000 events of the waves of one CU: ``workgroup``, ``wave``, ``simd``, ``begin``, ``end``,
            and either the ``offset`` of an instruction or a ``stall``.
        requests: the CU's first 400 000 requests to memory beyond its L1 and scalar cache: ``kind`` (load, store,
            atomic, scalar load), ``bytes``, ``begin`` and ``end``, from the request to its answer.
        clock_mhz: the core clock.
    """

    residences: tuple[Mapping[str, int], ...] = field(repr=False)
    events: tuple[Mapping[str, Any], ...] = field(repr=False)
    requests: tuple[Mapping[str, Any], ...] = field(repr=False)
    clock_mhz: float


@dataclass(frozen=True)
class KernelProfile:
    """The timing model's record of one launch; every time is simulated.

    Attributes:
        name: the kernel's symbol.
        grid: workgroups in x, y and z.
        block: work-items of a workgroup in x, y and z.
        sampled_workgroups: workgroups simulated in detail; the others are extrapolated from them.
        sustained_us: the time of the launch if the kernel runs again and again, at the clock that the power limit then
            leaves. Compare this one with measurements.
        sustained_mhz: that clock.
        sustained_joules: the energy of a launch then.
        without_idling_us: sustained_us of a launch that did the same work with its busiest resource never idle.
        cycles: core clocks from the first workgroup's start to the last result in memory, at the boost clock.
        time_us: the same in microseconds at that fixed clock, plus the launch overhead.
        clock_mhz: the boost clock.
        instructions: wave instructions executed.
        mfma_utilization: busy clocks of the matrix cores over the clocks of all SIMDs of the chip.
        valu_busy: the same for the vector ALUs.
        lds_busy: busy clocks of the LDS banks over the clocks of all CUs.
        vmem_busy: busy clocks of the vector L1s over the clocks of all CUs.
        lds_conflict_cycles: clocks that LDS accesses took beyond those without bank conflicts.
        l1_hit_rate, l2_hit_rate, mall_hit_rate: hits over look-ups of 128-byte lines.
        hbm_bytes: bytes read from and written to HBM; also separately as hbm_read_bytes and hbm_write_bytes.
        tlb_misses: L2 requests that missed the TLB.
        occupancy: resident waves over wave slots, averaged over the time and the chip.
        busy: the fraction of the time that ``matrix cores``, ``vector ALUs``, ``LDS`` and ``vector L1`` were busy, over
            the CUs that had workgroups, and ``fabric`` and ``HBM``, by the bytes that they moved.
        activity: what takes energy: busy clocks of matrix cores by type, of vector ALUs and of LDS, bytes through L1,
            L2, Infinity Cache (mall) and HBM, clocks of all CUs.
        stalls: clocks of waves by the reason of the stall.
        listing: the executed instructions in the order of the code.
        timeline: the timeline, if it was asked for.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    sampled_workgroups: int
    sustained_us: float
    sustained_mhz: float
    sustained_joules: float
    without_idling_us: float
    cycles: int
    time_us: float
    clock_mhz: float
    instructions: int
    mfma_utilization: float
    valu_busy: float
    lds_busy: float
    vmem_busy: float
    lds_conflict_cycles: int
    l1_hit_rate: float
    l2_hit_rate: float
    mall_hit_rate: float
    hbm_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    tlb_misses: int
    occupancy: float
    busy: Mapping[str, float]
    activity: Mapping[str, float]
    stalls: Mapping[str, int]
    listing: tuple[InstructionProfile, ...] = field(repr=False)
    timeline: Timeline | None = field(repr=False, default=None)

    @classmethod
    def from_json(cls, line: str, constants: Mapping[str, float]) -> KernelProfile:
        """A profile from the engine's record of a launch, and the constants that it ran with."""
        record = json.loads(line)
        done = record["cycles"], record["activity"], record["busy"], constants
        load = power.sustained(*done)
        record.update(sustained_us=load.microseconds, sustained_mhz=load.mhz, sustained_joules=load.joules)
        record["without_idling_us"] = power.without_idling(*done).microseconds
        record["grid"], record["block"] = tuple(record["grid"]), tuple(record["block"])
        record["listing"] = tuple(InstructionProfile(**entry) for entry in record["listing"])
        if timeline := record.pop("timeline", None):
            lists = {name: tuple(timeline[name]) for name in ("residences", "events", "requests")}
            record["timeline"] = Timeline(**lists, clock_mhz=timeline["clock_mhz"])
        return cls(**record)

    @property
    def interval_us(self) -> tuple[float, float]:
        """Between which times a measurement would lie in nine of ten cases, by the model's errors so far."""
        return power.interval(self.sustained_us)

    @property
    def busiest(self) -> str:
        """The resource that was busy for the largest fraction of the time, as in ``vector L1 83%``."""
        name = max(self.busy, key=lambda resource: self.busy[resource])
        return f"{name} {self.busy[name]:.0%}"

    @property
    def hot_loop(self) -> tuple[InstructionProfile, ...]:
        """The hottest part of the listing: of the runs of instructions that were executed at least half as often as the
        most frequent one, the one that took the most cycles."""
        most = max((line.executed for line in self.listing), default=0)
        runs = [
            tuple(lines)
            for frequent, lines in itertools.groupby(self.listing, lambda line: 2 * line.executed >= most)
            if frequent
        ]
        return max(runs, key=lambda run: sum(line.cycles for line in run), default=())

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline as Chrome trace events in JSON for Perfetto (ui.perfetto.dev): a track for each CU with
        its workgroups, one for each wave of the chosen CU with its instructions and stalls, and a counter of the bytes
        that the CU has asked memory for and that are under way.

        Raises:
            ValueError: the profile wasn't asked for a timeline.
        """
        if self.timeline is None:
            raise ValueError("the profile has no timeline: ask for it with profile(timeline=CU)")
        Path(path).write_text(json.dumps({"traceEvents": list(self._trace_events(self.timeline))}), encoding="utf-8")

    def _trace_events(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        listed = {line.offset: line for line in self.listing}
        for pid, name in ((0, "CUs"), (1, "waves of one CU")):
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}

        def slice_of(pid: int, tid: int, name: str, span: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
            begin, end = (span[key] / timeline.clock_mhz for key in ("begin", "end"))
            return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin, "dur": end - begin, "args": arguments}

        for number in sorted({residence["cu"] for residence in timeline.residences}):
            yield _thread_name(0, number, f"CU {number}")
        # Workgroups that are resident on a CU at the same time need separate tracks.
        free: dict[tuple[int, int], int] = {}
        for residence in sorted(timeline.residences, key=lambda residence: residence["begin"]):
            cu, lane = residence["cu"], 0
            while free.get((cu, lane), 0) > residence["begin"]:
                lane += 1
            free[cu, lane] = residence["end"]
            if lane > 0:
                yield _thread_name(0, cu + 1000 * lane, f"CU {cu}, {lane + 1}")
            yield slice_of(0, cu + 1000 * lane, f"workgroup {residence['workgroup']}", residence)
        tracks: dict[tuple[int, int], int] = {}
        for event in timeline.events:
            wave = event["workgroup"], event["wave"]
            if wave not in tracks:
                tracks[wave] = len(tracks)
                name = f"SIMD {event['simd']}, workgroup {wave[0]}, wave {wave[1]}"
                yield _thread_name(1, tracks[wave], name)
            if "stall" in event:
                yield slice_of(1, tracks[wave], f"({event['stall']})", event)
            else:
                line = listed[event["offset"]]
                about = {"offset": f"{line.offset:#x}", "text": line.text, "unit": line.unit}
                yield slice_of(1, tracks[wave], line.text.split()[0], event, **about)
        yield from _in_flight(timeline)


@dataclass
class Profile:
    """The launches inside a ``with profile()`` block, in order; filled when the block ends."""

    kernels: list[KernelProfile] = field(default_factory=list)


def _in_flight(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """How many bytes of each kind of request are under way, whenever that changes."""
    changes = [(request["begin"], request["kind"], request["bytes"]) for request in timeline.requests]
    changes += [(request["end"], request["kind"], -request["bytes"]) for request in timeline.requests]
    under_way = dict.fromkeys(sorted({kind for _, kind, _ in changes}), 0)
    for time, together in itertools.groupby(sorted(changes), lambda change: change[0]):
        for _, kind, size in together:
            under_way[kind] += size
        when = time / timeline.clock_mhz
        yield {"ph": "C", "pid": 1, "name": "bytes in flight", "ts": when, "args": dict(under_way)}


def _thread_name(pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


@contextlib.contextmanager
def profile(
    constants: Mapping[str, float] | None = None,
    *,
    chip: str | None = None,
    compute: Literal["all", "sampled"] = "all",
    computed: Sequence[str] = (),
    sampling: bool = True,
    timeline: int | None = None,
) -> Iterator[Profile]:
    """Runs the timing model for every launch inside the block and collects its records.

    The Infinity Cache is empty when the block begins.

    Args:
        constants: values that replace those of ``mi300x_timing.toml``, by section and name, as in
            ``{"lds.latency_clocks": 60}``.
        chip: a chip whose constants replace the MI300X's: ``"mi325x"``, ``"mi308x"`` or ``"mi300a"``. Programs still
            see a device with 304 CUs.
        compute: ``"all"`` computes all results. ``"sampled"`` is much faster: workgroups execute only instructions that
            influence addresses and branches, and those that sampling leaves out only what influences branches.
            **Memory holds wrong results afterwards.**
        computed: names of kernels, or patterns with ``*`` and ``?``, that compute all results even so, because branches
            or addresses of later kernels depend on them.
        sampling: allows the model to simulate only some generations of workgroups of a large launch in detail. Of the
            others it counts the instructions. Kernels whose workgroups wait for each other are never sampled.
        timeline: a CU, 0 to 303, whose waves the timeline shows.

    Raises:
        FileNotFoundError: the simulator isn't built.
        ValueError: no such chip.
    """
    result = Profile()
    changes = {**chip_constants(chip or "mi300x"), **(constants or {})}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment("DG_SIM_TIMING", "1"))
        stack.enter_context(_environment("DG_SIM_TIMING_COMPUTE", compute))
        stack.enter_context(_environment("DG_SIM_TIMING_COMPUTED", ",".join(computed)))
        stack.enter_context(_environment("DG_SIM_TIMING_SAMPLING", str(int(sampling))))
        stack.enter_context(_environment("DG_SIM_TIMING_TIMELINE", "" if timeline is None else str(timeline)))
        used = current(changes)
        if changes:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "constants.toml")
            file.write_text("".join(f"{name} = {value!r}\n" for name, value in used.items()), encoding="utf-8")
            stack.enter_context(_environment("DG_SIM_TIMING_CONSTANTS", str(file)))

        def end() -> str:
            library().dgSimCollectProfiles(0)
            return introspect("dgSimTakeProfiles")

        stack.enter_context(forking.undone_in_child(end))
        library().dgSimEmptyCaches()
        library().dgSimCollectProfiles(1)
        try:
            yield result
        finally:
            result.kernels += [KernelProfile.from_json(line, used) for line in end().splitlines()]


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    with forking.undone_in_child(restore):
        os.environ[name] = value
        try:
            yield
        finally:
            restore()

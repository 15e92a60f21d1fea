"""Simulated cycles, stalls, bank conflicts and bytes of source lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .counters import KernelCounters
from .profile import InstructionProfile, KernelProfile
from .program import read_image
from .source_lines import Place, SourceLines, symbol_address


@dataclass(frozen=True)
class LineProfile:
    """What a source line costs: the sums over its instructions.

    Attributes:
        place: the line; None for instructions that the compiler assigned to no line.
        executed: times that waves executed the line's most frequent instruction.
        cycles: clocks of all waves, as in ``InstructionProfile``.
        stalls: clocks that waves of the timeline's CU waited at the line, by reason; a wait at a barrier counts at the
            line of the barrier.
        global_bytes, lds_bytes, scratch_bytes: bytes that lanes asked for; 0 without counters.
        lds_conflict_clocks: clocks lost to bank conflicts; 0 without counters.
        instructions: the line's instructions in the order of the code.
    """

    place: Place | None
    executed: int
    cycles: int
    stalls: Mapping[str, int]
    global_bytes: int
    lds_bytes: int
    scratch_bytes: int
    lds_conflict_clocks: int
    instructions: tuple[InstructionProfile, ...]

    def facts(self) -> Iterator[str]:
        """The reasons of at least 5% of the line's stalls, then bytes and conflicts, as text."""
        stalled = sum(self.stalls.values())
        for name, clocks in sorted(self.stalls.items(), key=lambda stall: -stall[1]):
            if clocks >= 0.05 * stalled:
                yield f"{name} {clocks / stalled:.0%}"
        for name, count in (
            ("global", self.global_bytes),
            ("LDS", self.lds_bytes),
            ("scratch", self.scratch_bytes),
        ):
            if count:
                yield f"{count:,} bytes {name}"
        if self.lds_conflict_clocks:
            yield f"{self.lds_conflict_clocks:,} clocks of bank conflicts"


def profile_lines(
    code_object: str | Path | bytes, profile: KernelProfile, counters: KernelCounters | None = None
) -> list[LineProfile]:
    """The profile of a kernel by source line, in the order of file and line.

    Inlined code counts at its own line, and code from HIP's headers at the line that called it.

    Args:
        code_object: the kernel's ELF file, compiled with ``-g``: its path or its bytes.
        profile: of a launch; stalls need one with a timeline.
        counters: of a launch with the same arguments, for bytes and bank conflicts.

    Raises:
        ValueError: the code object has no debug information, or pyelftools isn't installed.
    """
    image = read_image(code_object)
    lines, start = SourceLines.of(image), symbol_address(image, profile.name)
    if lines is None or start is None:
        raise ValueError(
            "no source lines: compile the kernel with debug information (-g) and `pip install pyelftools` "
            "(both come with `sim compile -g` and the extra deep_gemm_rocm[sim])"
        )
    stalls = _stalls(profile)
    counted = {} if counters is None else {line.offset: line for line in counters.listing}
    groups: dict[tuple[str, int], list[InstructionProfile]] = {}
    places: dict[tuple[str, int], Place | None] = {}
    for instruction in profile.listing:
        place = lines.place(start + instruction.offset)
        key = (place.file, place.line) if place else ("", 0)
        groups.setdefault(key, []).append(instruction)
        places.setdefault(key, place)
    result = []
    for key, instructions in sorted(groups.items()):
        found = [counted[line.offset] for line in instructions if line.offset in counted]
        result.append(
            LineProfile(
                place=places[key],
                executed=max(line.executed for line in instructions),
                cycles=sum(line.cycles for line in instructions),
                stalls=sum((stalls.get(line.offset, Counter()) for line in instructions), Counter()),
                global_bytes=sum(line.global_bytes for line in found),
                lds_bytes=sum(line.lds_bytes for line in found),
                scratch_bytes=sum(line.scratch_bytes for line in found),
                lds_conflict_clocks=sum(line.lds_conflict_clocks for line in found),
                instructions=tuple(instructions),
            )
        )
    return result


def _stalls(profile: KernelProfile) -> dict[int, Counter[str]]:
    """Clocks by reason for each instruction that waves of the timeline's CU waited at. A stall ends when the wave's
    next instruction is issued; a wave waits for a barrier after having issued it."""
    result: dict[int, Counter[str]] = {}
    pending: dict[tuple[int, int], list[Mapping[str, int | str]]] = {}
    before: dict[tuple[int, int], int] = {}
    for event in profile.timeline.events if profile.timeline else ():
        wave = event["workgroup"], event["wave"]
        if "stall" in event:
            pending.setdefault(wave, []).append(event)
            continue
        for stall in pending.pop(wave, ()):
            offset = before.get(wave, event["offset"]) if stall["stall"] == "barrier" else event["offset"]
            result.setdefault(offset, Counter())[str(stall["stall"])] += int(stall["end"]) - int(stall["begin"])
        before[wave] = event["offset"]
    return result

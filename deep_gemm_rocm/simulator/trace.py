"""Traces one wave on the simulated MI300X: ``with trace() as traced: ...``, then ``traced.waves``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import forking
from .extent import Extent, three
from .library import introspect, library


@dataclass(frozen=True)
class TracedInstruction:
    """An instruction that the wave executed.

    Attributes:
        offset: bytes from the kernel's first instruction.
        text: mnemonic and operands.
        exec: the mask of active lanes before it.
        scc: the scalar condition code before it.
        reads: values of the registers that it read, by name (``v7``, ``a0``, ``s4``, ``vcc_lo``): 64 uint32, one for
            each lane, for vector registers and AccVGPRs; one uint32 for scalar registers.
        writes: values of the registers that it wrote, after the instruction.
    """

    offset: int
    text: str
    exec: int
    scc: int
    reads: Mapping[str, np.ndarray]
    writes: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class WaveTrace:
    """The traced wave of one launch; without instructions where the launch has no such wave or failed before it."""

    kernel: str
    workgroup: tuple[int, int, int]
    wave: int
    instructions: tuple[TracedInstruction, ...] = field(repr=False)


@dataclass
class Traced:
    """A wave for each launch inside a ``with trace()`` block, in order; filled when the block ends."""

    waves: list[WaveTrace] = field(default_factory=list)


@contextlib.contextmanager
def trace(workgroup: Extent = 0, wave: int = 0, first: int = 0, count: int = 10_000) -> Iterator[Traced]:
    """Traces one wave of every launch inside the block.

    Args:
        workgroup: the wave's workgroup in x, y and z; an int is x.
        wave: the wave's number in the workgroup.
        first: the first traced instruction.
        count: instructions to trace; each takes some kilobytes.

    Raises:
        FileNotFoundError: the simulator isn't built.
        ValueError: a negative number, or a count of 0.
    """
    place = three("workgroup", workgroup, rest=0)
    for name, number, least in (("wave", wave, 0), ("first", first, 0), ("count", count, 1)):
        if number < least:
            raise ValueError(f"{name}: expected {least} or more, got {number}")
    result = Traced()

    def end() -> str:
        library().dgSimTraceWave(*place, c_uint32(0), c_uint64(0), c_uint64(0))
        return introspect("dgSimTakeTrace")

    with forking.undone_in_child(end):
        library().dgSimTraceWave(*place, c_uint32(wave), c_uint64(first), c_uint64(count))
        try:
            yield result
        finally:
            result.waves += _parse(end())


def _parse(text: str) -> list[WaveTrace]:
    waves: list[tuple[dict[str, Any], list[TracedInstruction]]] = []
    for line in text.splitlines():
        record = json.loads(line)
        if "kernel" in record:
            waves.append((record, []))
        else:
            waves[-1][1].append(_instruction(record))
    return [
        WaveTrace(head["kernel"], tuple(head["workgroup"]), head["wave"], tuple(instructions))
        for head, instructions in waves
    ]


def _instruction(record: dict[str, Any]) -> TracedInstruction:
    reads, writes = ({name: _values(text) for name, text in record[key].items()} for key in ("reads", "writes"))
    return TracedInstruction(record["offset"], record["text"], int(record["exec"], 16), record["scc"], reads, writes)


def _values(text: str) -> np.ndarray:
    """Values of eight hexadecimal digits each."""
    values = np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)
    return values if values.size > 1 else values[0]

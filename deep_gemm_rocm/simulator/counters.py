"""Counts what kernels execute on the simulated MI300X: ``with counters() as counted``, then ``counted.kernels``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .. import forking
from .library import introspect, library


@dataclass(frozen=True)
class Traffic:
    """Bytes that instructions ask for, summed over lanes, before coalescing and caches. ``atomic`` bytes are read and
    written."""

    read: int
    written: int
    atomic: int


@dataclass(frozen=True)
class Occupancy:
    """The resources that a kernel takes of a compute unit (CU), and how many of its workgroups fit.

    Attributes:
        registers: allocated registers of a lane, VGPRs and AccVGPRs together; a SIMD has 512.
        lds_bytes: LDS of a workgroup, dynamic LDS included; a CU has 64 KiB.
        scratch_bytes: scratch of a work-item.
        waves_per_workgroup: waves of 64 lanes.
        workgroups_by_wave_slots, workgroups_by_registers, workgroups_by_lds: workgroups that fit into a CU by each of
            these resources.
    """

    registers: int
    lds_bytes: int
    scratch_bytes: int
    waves_per_workgroup: int
    workgroups_by_wave_slots: int
    workgroups_by_registers: int
    workgroups_by_lds: int

    @property
    def workgroups_per_cu(self) -> int:
        return min(self.workgroups_by_wave_slots, self.workgroups_by_registers, self.workgroups_by_lds)

    @property
    def waves_per_cu(self) -> int:
        """Resident waves of a CU, 32 at most."""
        return self.workgroups_per_cu * self.waves_per_workgroup

    @property
    def limited_by(self) -> str:
        """``registers``, ``LDS`` or ``wave slots``."""
        limits = {
            "wave slots": self.workgroups_by_wave_slots,
            "registers": self.workgroups_by_registers,
            "LDS": self.workgroups_by_lds,
        }
        return min(limits, key=lambda name: limits[name])


@dataclass(frozen=True)
class InstructionCounters:
    """Counters of one instruction of a kernel.

    Attributes:
        offset: bytes from the kernel's first instruction.
        executed: times that a wave executed it.
        global_bytes, lds_bytes, scratch_bytes: bytes that its lanes asked for; of scalar loads as global.
        lds_conflict_clocks: clocks lost to bank conflicts.
    """

    offset: int
    executed: int
    global_bytes: int
    lds_bytes: int
    scratch_bytes: int
    lds_conflict_clocks: int


@dataclass(frozen=True)
class KernelCounters:
    """Counters of the waves of one launch.

    Attributes:
        name: the kernel's symbol.
        grid: workgroups in x, y and z.
        block: work-items of a workgroup in x, y and z.
        instructions: wave instructions executed; also ``by_class``: scalar, scalar_memory, vector, transcendental,
            matrix, lds, vector_memory (global, buffer and scratch), flat, branch, waitcnt, barrier, other.
        vector_instructions: instructions of all classes that act on lanes.
        active_lanes: active lanes of these, summed; 64 for an instruction without masked lanes.
        matrix_instructions: MFMA instructions by mnemonic.
        matrix_operations: multiplications and additions of these (FLOPs for floating-point types); sparse instructions
            count as if A were dense.
        global_bytes: bytes of global, buffer and flat instructions.
        scalar_bytes: bytes of scalar memory instructions.
        lds_bytes: bytes of LDS and flat instructions, and those written by loads to LDS.
        scratch_bytes: bytes of scratch and flat instructions.
        lds_clocks: clocks for which LDS instructions occupied the banks, without flat instructions and loads to LDS.
        lds_conflict_clocks: the part of them lost to bank conflicts.
        occupancy: the kernel's resources and what limits the number of resident workgroups.
        listing: the executed instructions in the order of the code.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    instructions: int
    by_class: Mapping[str, int]
    vector_instructions: int
    active_lanes: int
    matrix_instructions: Mapping[str, int]
    matrix_operations: int
    global_bytes: Traffic
    scalar_bytes: Traffic
    lds_bytes: Traffic
    scratch_bytes: Traffic
    lds_clocks: int
    lds_conflict_clocks: int
    occupancy: Occupancy
    listing: tuple[InstructionCounters, ...] = field(repr=False)

    @property
    def barriers(self) -> int:
        """``s_barrier`` instructions, one for each wave that reached one."""
        return self.by_class["barrier"]

    @property
    def lane_utilization(self) -> float:
        """Active lanes over all lanes of the vector instructions; 1 where there are none."""
        return self.active_lanes / (64 * self.vector_instructions) if self.vector_instructions else 1.0

    @classmethod
    def from_json(cls, line: str) -> KernelCounters:
        record = json.loads(line)
        record["grid"], record["block"] = tuple(record["grid"]), tuple(record["block"])
        for memory in ("global_bytes", "scalar_bytes", "lds_bytes", "scratch_bytes"):
            record[memory] = Traffic(**record[memory])
        record["occupancy"] = Occupancy(**record["occupancy"])
        record["listing"] = tuple(InstructionCounters(**entry) for entry in record["listing"])
        return cls(**record)


@dataclass
class Counted:
    """The launches inside a ``with counters()`` block, in order; filled when the block ends."""

    kernels: list[KernelCounters] = field(default_factory=list)


@contextlib.contextmanager
def counters() -> Iterator[Counted]:
    """Counts what every launch inside the block executes; for a failed launch, up to the failure.

    Raises:
        FileNotFoundError: the simulator isn't built.
    """
    result = Counted()

    def end() -> str:
        library().dgSimCollectCounters(0)
        return introspect("dgSimTakeCounters")

    with forking.undone_in_child(end):
        library().dgSimCollectCounters(1)
        try:
            yield result
        finally:
            result.kernels += map(KernelCounters.from_json, end().splitlines())

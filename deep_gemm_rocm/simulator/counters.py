"""What kernels execute on the simulated MI300X: ``with counters() as counted: ...``, then ``counted.kernels``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .. import forking
from .library import introspect, library


@dataclass(frozen=True)
class Traffic:
    """Bytes that instructions ask for, all lanes together: caches and coalescing don't count. ``atomic`` ones are read
    and written."""

    read: int
    written: int
    atomic: int


@dataclass(frozen=True)
class Occupancy:
    """How much of a compute unit (CU) a kernel takes, and how many of its workgroups fit.

    Attributes:
        registers: of a lane, as allocated: VGPRs and AccVGPRs together, of the 512 that a SIMD has.
        lds_bytes: of a workgroup, dynamic ones included, of 64 KiB.
        scratch_bytes: of a work-item.
        waves_per_workgroup: of 64 lanes each.
        workgroups_by_wave_slots, workgroups_by_registers, workgroups_by_lds: that fit a CU at a time, as far as each of
            these goes.
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
        """Of 32."""
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
class KernelCounters:
    """What the waves of one launch executed.

    Attributes:
        name: the kernel's symbol.
        grid: workgroups in x, y and z.
        block: work-items of a workgroup likewise.
        instructions: wave instructions executed; also ``by_class``: scalar, scalar_memory, vector, transcendental,
            matrix, lds, vector_memory (global, buffer and scratch), flat, branch, waitcnt, barrier, other.
        vector_instructions: those of all classes that act on lanes.
        active_lanes: lanes that these acted on; 64 an instruction where no lane was masked.
        matrix_instructions: MFMA instructions by mnemonic.
        matrix_operations: multiplications and additions of these, FLOPs for floating-point ones; of sparse ones as many
            as if A weren't sparse.
        global_bytes: of global, buffer and flat instructions.
        scalar_bytes: of scalar memory instructions.
        lds_bytes: of LDS and flat instructions, and written by loads to LDS.
        scratch_bytes: of scratch and flat instructions.
        lds_clocks: that LDS instructions occupied the banks, flat ones and loads to LDS left out.
        lds_conflict_clocks: of these, what lanes cost that meet in a bank.
        occupancy: what limits the workgroups that are resident at a time.
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
        return cls(**record)


@dataclass
class Counted:
    """The launches inside a ``with counters()`` block, in order; filled when the block ends."""

    kernels: list[KernelCounters] = field(default_factory=list)


@contextlib.contextmanager
def counters() -> Iterator[Counted]:
    """Counts what every launch inside the block executes, whoever launches; of one that fails, what it got to.

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

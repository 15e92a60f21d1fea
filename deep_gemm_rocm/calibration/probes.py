"""What is measured, and the constant of the timing model that each figure tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .device import ELEMENT_BYTES, REPEATED, WAVE, Device

_KB, _MB = 2**10, 2**20
_LINE = 128
_FAR_APART = 4096  # bytes between loads that no two share a line or a DRAM page
_HOPS = 1600
_STREAM_THREADS = 256
_WORKGROUPS_OF_CU = 4


@dataclasses.dataclass(frozen=True)
class Probe:
    """
    Attributes:
        constant: the constant of the model that decides the figure, by section and name.
        unit: of the figure.
        what: what is measured.
        figure: measures it.
        in_turns: whether the constant is in clocks of whole turns of a SIMD, which are four.
    """

    constant: str
    unit: str
    what: str
    figure: Callable[[Device], float]
    in_turns: bool = False


def _instruction(kernel: str, waves: int = 1, repeats: int = 16) -> Callable[[Device], float]:
    """Clocks of an instruction, of several waves together."""
    return lambda device: device.clocks(kernel, repeats, warm=1, threads=waves * WAVE) / (repeats * REPEATED)


def _chase(
    size: int, stride: int = _LINE, *, page: int | None = None, kernel: str = "vector_chase"
) -> Callable[[Device], float]:
    """Clocks of a load behind another, after all of ``size`` was loaded."""

    def figure(device: Device) -> float:
        return device.clocks(kernel, _HOPS, memory=device.chain(size, stride, page), warm=size // stride) / _HOPS

    return figure


def _cold_chase(size: int, stride: int = _FAR_APART) -> Callable[[Device], float]:
    """Clocks of a load behind another, of memory that no cache holds."""
    return lambda device: device.clocks("vector_chase", _HOPS, memory=device.chain(size, stride), cold=True) / _HOPS


def _stream_into_cu(device: Device) -> float:
    """Bytes a clock that come into a CU from the L2, whole lines, of which a lane loads 16 bytes."""
    steps, threads, size = 64, 512, _MB
    clocks = device.clocks(
        "stream",
        steps,
        memory=device.memory(size),
        warm=size // (threads * _LINE),
        threads=threads,
        spacing=_LINE // ELEMENT_BYTES,
    )
    return steps * threads * _LINE / clocks


def _stream(size: int, steps: int, *, warm: int = 0) -> Callable[[Device], float]:
    """Bytes a nanosecond that all workgroups together read from ``size`` bytes.

    Args:
        steps: loads of a lane; many more on hardware, whose events can't tell a few microseconds.
        warm: loads before them, which bring the memory into caches; without, each load is of other memory.
    """

    def figure(device: Device) -> float:
        count = steps if device.is_simulated else 64 * steps
        workgroups, memory = _WORKGROUPS_OF_CU * device.num_cus, device.memory(size)
        of_step = workgroups * _STREAM_THREADS

        def nanoseconds(count: int, first: int) -> float:
            return device.nanoseconds(
                "stream",
                count,
                memory=memory,
                warm=warm,
                first=first,
                workgroups=workgroups,
                threads=_STREAM_THREADS,
            )

        if warm:
            nanoseconds(0, 0)  # in simulation the Infinity Cache keeps what it holds
        short, long = nanoseconds(count, 0), nanoseconds(2 * count, 0 if warm else count * of_step)
        return count * of_step * ELEMENT_BYTES / (long - short)

    return figure


def _clock_mhz(device: Device) -> float:
    short, long = 64, 1024 if device.is_simulated else 2**17
    clocks = device.clocks("v_add", long) - device.clocks("v_add", short)
    nanoseconds = device.nanoseconds("v_add", long) - device.nanoseconds("v_add", short)
    return 1e3 * clocks / nanoseconds


def _launch_ns(device: Device) -> float:
    few, many = (device.nanoseconds("nothing", 0, launches=launches) for launches in (1, 21))
    return (many - few) / 20


def _clocks_of_workgroup(device: Device) -> float:
    few, many = (device.nanoseconds("nothing", 0, workgroups=count) for count in (2**14, 2**16))
    return (many - few) / (2**16 - 2**14)


PROBES = (
    Probe("chip.clock_mhz", "MHz", "the clock without load", _clock_mhz),
    Probe("alu.vector_clocks", "clocks", "a VALU instruction", _instruction("v_add"), in_turns=True),
    Probe("alu.transcendental_clocks", "clocks", "an exponential", _instruction("v_exp"), in_turns=True),
    Probe("alu.multiply_clocks", "clocks", "a 32-bit integer product", _instruction("v_mul_lo"), in_turns=True),
    Probe("alu.scalar_clocks", "clocks", "a dependent scalar instruction", _instruction("s_add"), in_turns=True),
    Probe("cu.branch_clocks", "clocks", "a branch", _instruction("s_branch"), in_turns=True),
    Probe("cu.barrier_clocks", "clocks", "a barrier of four waves", _instruction("s_barrier", waves=4)),
    Probe("matrix.clocks_per_pass", "clocks", "an MFMA 16x16x32 of FP8", _instruction("mfma_fp8")),
    Probe("lds.latency_clocks", "clocks", "ds_read_b32 and its wait", _instruction("lds_latency")),
    Probe("lds.port_bytes", "clocks", "ds_read_b128 of eight waves", _instruction("lds_rate", waves=8)),
    Probe("l1.hit_clocks", "clocks", "a load from the vector L1 behind another", _chase(16 * _KB)),
    Probe("l1.port_bytes", "clocks", "16 bytes a lane from the vector L1, eight waves", _instruction("l1_rate", 8)),
    Probe("l1.to_lds_bytes", "clocks", "4 bytes a lane from the vector L1 to LDS", _instruction("to_lds_rate", 8)),
    Probe("scalar_cache.hit_clocks", "clocks", "a scalar load behind another", _chase(8 * _KB, kernel="scalar_chase")),
    Probe("scalar_cache.miss_clocks", "clocks", "the same from the L2", _chase(_MB, kernel="scalar_chase")),
    Probe("l2.hit_clocks", "clocks", "a load from the L2 behind another", _chase(2 * _MB)),
    Probe("l1.fill_bytes", "B/clock", "a CU reading from the L2", _stream_into_cu),
    Probe("l2.channel_bytes", "B/ns", "all CUs reading from the L2", _stream(2 * _MB, 32, warm=16)),
    Probe("mall.extra_ns", "clocks", "a load from the Infinity Cache behind another", _chase(8 * _MB)),
    Probe("tlb.miss_ns", "clocks", "the same on other pages", _chase(192 * _MB, _FAR_APART, page=2 * _MB)),
    Probe("hbm.extra_ns", "clocks", "a load from HBM behind another", _cold_chase(1024 * _MB)),
    Probe("fabric.xcd_bytes_per_ns", "B/ns", "reading the Infinity Cache", _stream(128 * _MB, 16, warm=32)),
    Probe("hbm.bytes_per_ns", "B/ns", "reading HBM", _stream(1024 * _MB, 8)),
    Probe("launch.overhead_ns", "ns", "a launch behind another", _launch_ns),
    Probe("launch.workgroup_clocks", "ns", "an empty workgroup", _clocks_of_workgroup),
    Probe("power.matrix_fp8_pj", "MHz", "the clock under FP8 MFMAs", lambda device: device.sustained_mhz("mfma_fp8")),
    Probe("power.matrix_i8_pj", "MHz", "the clock under int8 MFMAs", lambda device: device.sustained_mhz("mfma_i8")),
    Probe(
        "power.matrix_bf16_pj", "MHz", "the clock under bf16 MFMAs", lambda device: device.sustained_mhz("mfma_bf16")
    ),
    Probe("power.matrix_f16_pj", "MHz", "the clock under f16 MFMAs", lambda device: device.sustained_mhz("mfma_f16")),
)
"""In the order in which constants are found: each figure depends only on its own constant and on earlier ones."""

"""The device, real or simulated, on which the kernels of ``timing_probes.hip.j2`` run."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from ctypes import Structure, c_int, c_longlong, c_void_p

import numpy as np
import torch

from .. import simulator
from ..jit import Kernel, get_kernel
from ..runtime import hip
from ..testing.stopwatch import Stopwatch

REPEATED = 256  # instructions in a repetition
KERNELS = (
    "v_add", "v_exp", "v_mul_lo", "s_add", "s_branch", "s_barrier", "mfma_fp8", "mfma_i8", "mfma_bf16", "mfma_f16",
    "lds_latency", "lds_rate", "l1_rate", "to_lds_rate", "vector_chase", "scalar_chase", "stream", "nothing",
)  # fmt: skip
"""The kernels, in the order of their numbers."""

WAVE = 64
ELEMENT_BYTES = 16  # of a stream, which a lane loads at once
_POINTER_BYTES = 8
_MEASUREMENTS = 9  # of hardware, which are not quite alike; their median counts
# On hardware, MFMAs of 16 clocks for a tenth of a second a launch, and for seconds in all, as power management is slow.
_LOAD_REPEATS, _LAUNCHES_OF_LOAD = 2**15, 30


class _Arguments(Structure):
    """``ProbeArguments`` in timing_probes.hip.j2."""

    _fields_ = (
        ("memory", c_void_p),
        ("clocks", c_void_p),
        ("first", c_longlong),
        ("warm", c_int),
        ("repeats", c_int),
        ("mask", c_int),
        ("spacing", c_int),
        ("kernel", c_int),
        ("workgroups", c_int),
        ("threads", c_int),
    )


class Device:
    """Runs the probes' kernels on the device of ``hip.runtime()``."""

    def __init__(self) -> None:
        self._runtime = hip.runtime()
        self._kernel: Kernel = get_kernel("timing_probes.hip.j2", {"repeated": REPEATED})
        self._clocks = torch.zeros(1, dtype=torch.int64, device=self._runtime.tensor_device)
        self._few_bytes = self.memory(2**16)

    @property
    def is_simulated(self) -> bool:
        return self._runtime.is_simulated

    @property
    def num_cus(self) -> int:
        return self._runtime.num_cus

    @contextlib.contextmanager
    def measuring(self, constants: dict[str, float] | None = None) -> Iterator[None]:
        """Inside, the simulated device has times, by these constants; hardware has them anyway."""
        with simulator.profile(constants) if self.is_simulated else contextlib.nullcontext():
            yield

    def memory(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._runtime.tensor_device)

    def chain(self, size: int, stride: int, page: int | None = None) -> torch.Tensor:
        """Pointers, ``stride`` bytes apart, that lead through ``size`` bytes and back to the first.

        Args:
            page: bytes of pages that are visited in turn; None for a random order.
        """
        memory = torch.empty(size // _POINTER_BYTES, dtype=torch.int64, device=self._runtime.tensor_device)
        order = np.arange(size // stride)
        if page is None:
            np.random.default_rng(0).shuffle(order[1:])
        else:
            order = order.reshape(-1, page // stride).T.flatten()
        places = torch.from_numpy(order * (stride // _POINTER_BYTES)).to(memory.device)
        memory[places] = memory.data_ptr() + _POINTER_BYTES * places.roll(-1)
        return memory

    def clocks(
        self,
        kernel: str,
        repeats: int,
        *,
        memory: torch.Tensor | None = None,
        warm: int = 0,
        threads: int = WAVE,
        spacing: int = 1,
        cold: bool = False,
    ) -> float:
        """Clocks of the CU during ``repeats`` repetitions in one workgroup, by the CU's own counter.

        Args:
            memory: what the kernel loads, or a little.
            warm: repetitions before those.
            spacing: elements of 16 bytes from one that a stream loads to the next.
            cold: whether caches of hardware are flushed before.
        """
        stopwatch = Stopwatch()

        def measure() -> float:
            if cold:
                stopwatch.microseconds(lambda: self._launch("nothing", 0))
            self._launch(kernel, repeats, memory=memory, warm=warm, threads=threads, spacing=spacing)
            return float(self._clocks.item())

        return self._median(measure)

    def nanoseconds(
        self,
        kernel: str,
        repeats: int,
        *,
        memory: torch.Tensor | None = None,
        warm: int = 0,
        first: int = 0,
        workgroups: int = 1,
        threads: int = WAVE,
        launches: int = 1,
    ) -> float:
        """The time of some launches, one behind the other, by events. Caches of hardware are flushed before.

        Args:
            memory, warm: as for ``clocks``.
            first: the element with which a stream begins.
        """
        stopwatch = Stopwatch()

        def work() -> None:
            for _ in range(launches):
                self._launch(
                    kernel, repeats, memory=memory, warm=warm, first=first, workgroups=workgroups, threads=threads
                )

        return self._median(lambda: 1e3 * stopwatch.microseconds(work))

    def sustained_mhz(self, kernel: str) -> float:
        """The clock of the CUs while all of them run ``kernel`` for seconds, under the chip's power limit."""
        if self.is_simulated:
            with simulator.profile(compute="sampled") as profile:
                self._launch(kernel, 16, workgroups=self.num_cus, threads=4 * WAVE)
            return profile.kernels[0].sustained_mhz
        stopwatch = Stopwatch()
        for _ in range(_LAUNCHES_OF_LOAD):
            nanoseconds = 1e3 * stopwatch.microseconds(
                lambda: self._launch(kernel, _LOAD_REPEATS, workgroups=self.num_cus, threads=4 * WAVE)
            )
        return 1e3 * float(self._clocks.item()) / nanoseconds

    def _median(self, measure: Callable[[], float]) -> float:
        return statistics.median(measure() for _ in range(1 if self.is_simulated else _MEASUREMENTS))

    def _launch(
        self,
        kernel: str,
        repeats: int,
        *,
        memory: torch.Tensor | None = None,
        warm: int = 0,
        first: int = 0,
        workgroups: int = 1,
        threads: int = WAVE,
        spacing: int = 1,
    ) -> None:
        memory = self._few_bytes if memory is None else memory
        arguments = _Arguments(
            memory=memory.data_ptr(),
            clocks=self._clocks.data_ptr(),
            first=first,
            warm=warm,
            repeats=repeats,
            mask=memory.nbytes // ELEMENT_BYTES - 1,
            spacing=spacing,
            kernel=KERNELS.index(kernel),
            workgroups=workgroups,
            threads=threads,
        )
        with self._runtime.launching(memory=memory, clocks=self._clocks) as stream:
            self._kernel(bytes(arguments), stream)

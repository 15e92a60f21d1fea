"""DeepGEMM's functions that time kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..runtime import hip
from ..simulator import profile
from .stopwatch import Stopwatch

_FLUSHED_BYTES = 2**28  # more than the last level cache of an MI300X has


def bench(fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """The mean device time of a call of ``fn`` in seconds; DeepGEMM's function of this name.

    On hardware it is measured with events, see ``Stopwatch``; in simulation it is that of the timing model, under
    sustained load.

    Args:
        fn: launches kernels on the current stream.
        num_warmups: calls before the timed ones.
        num_tests: timed calls, one after another.
        high_precision: accepted and not used. The host's launch times are always hidden, as in DeepGEMM with this
            option.
    """

    def all_tests() -> None:
        for _ in range(num_tests):
            fn()

    for _ in range(num_warmups):
        fn()
    if not hip.runtime().is_simulated:
        return Stopwatch().microseconds(all_tests) / num_tests / 1e6
    with profile() as collected:
        all_tests()
    return sum(kernel.sustained_us for kernel in collected.kernels) / num_tests / 1e6


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> float | tuple[float, ...]:
    """The mean time of a launch of the named kernels in seconds; DeepGEMM's function of this name.

    On hardware it is measured with torch's profiler, in simulation it is that of the timing model, under
    sustained load.

    Args:
        fn: launches kernels.
        kernel_names: a part of the kernel's name, or a tuple of several kernels' parts.
        num_tests: calls of ``fn``.
        suppress_kineto_output: accepted and not used; nothing is printed.
        trace_path: a file for the profiler's trace; on hardware only.
        flush_l2: whether to flush the caches before each call, on hardware by writing 256 MB.
        with_multiple_kernels: whether a part may match the names of several kernels.
        barrier: called before each call of ``fn``.

    Returns:
        One time, or a tuple with one for each of ``kernel_names``; 0 if no such kernel ran.

    Raises:
        ValueError: a part matches the names of several kernels, and ``with_multiple_kernels`` is False.
        NotImplementedError: a ``trace_path`` in simulation.
    """
    runtime = hip.runtime()
    fn()  # compiles its kernels
    seconds: dict[str, list[float]] = {}
    launches = _simulated_launches if runtime.is_simulated else _measured_launches
    for name, time in launches(fn, num_tests, flush_l2, barrier, trace_path):
        seconds.setdefault(name, []).append(time)
    times = []
    for part in (kernel_names,) if isinstance(kernel_names, str) else kernel_names:
        matching = [name for name in seconds if part in name]
        if len(matching) > 1 and not with_multiple_kernels:
            raise ValueError(f"kernel_names: {part!r} is part of several kernels' names, {', '.join(matching)}")
        of_part = [time for name in matching for time in seconds[name]]
        times.append(sum(of_part) / len(of_part) if of_part else 0.0)
    return times[0] if isinstance(kernel_names, str) else tuple(times)


def _flush_caches() -> None:
    torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda").zero_()


def _simulated_launches(
    fn: Callable[[], Any], num_tests: int, flush_l2: bool, barrier: Callable[[], Any] | None, trace_path: str | None
) -> Iterator[tuple[str, float]]:
    if trace_path is not None:
        raise NotImplementedError(
            "trace_path must be None: torch's profiler sees no simulated kernels; see simulator.profile"
        )
    with profile() as collected:
        for _ in range(num_tests):
            if barrier is not None:
                barrier()
            fn()
    for kernel in collected.kernels:
        yield kernel.name, kernel.sustained_us / 1e6


def _measured_launches(
    fn: Callable[[], Any], num_tests: int, flush_l2: bool, barrier: Callable[[], Any] | None, trace_path: str | None
) -> Iterator[tuple[str, float]]:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as collected:
        for _ in range(num_tests):
            if flush_l2:
                _flush_caches()
            if barrier is not None:
                barrier()
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        collected.export_chrome_trace(trace_path)
    for event in collected.events():
        if event.device_type.name != "CPU":
            yield event.name, event.device_time / 1e6

"""Timing a device that works while the host enqueues, with a model of host and device."""

from __future__ import annotations

import pytest

from deep_gemm_rocm.benchmarks.measure import Sampling, time_calls
from deep_gemm_rocm.testing import bench, stopwatch

FILL = 130.0
EVENT = 4.0  # host time to enqueue an event


class Machine:
    """A host that enqueues work, and a device that executes the queue; times are in microseconds of one clock."""

    is_simulated = False
    tensor_device = "cuda"

    def __init__(self):
        self.host = self.device = 0.0
        self.fills = 0

    def enqueue(self, host, device):
        self.host += host
        self.device = max(self.device, self.host) + device

    def current_stream(self, tensor):
        return 0

    def empty(self, *size, dtype=None, device):
        assert device == "cuda"
        return self

    def zero_(self):
        self.fills += 1
        self.enqueue(10.0, FILL)

    def wait(self):
        self.host = max(self.host, self.device)


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()

    class Event:
        def record(self, stream):
            machine.enqueue(EVENT, 0)
            self.time = machine.device

        def is_reached(self):
            return self.time <= machine.host

        def synchronize(self):
            machine.host = max(machine.host, self.time)

        def milliseconds_since(self, start):
            assert self.time <= machine.host
            return (self.time - start.time) / 1e3

    monkeypatch.setattr(stopwatch.hip, "runtime", lambda: machine)
    monkeypatch.setattr(stopwatch.hip, "Event", Event)
    monkeypatch.setattr(stopwatch.torch, "empty", machine.empty)
    return machine


@pytest.mark.parametrize(("host", "device"), [(20, 5), (20, 500), (1, 1), (2000, 5)])
def test_the_device_is_timed_and_not_the_host(machine, host, device):
    calls = [lambda: machine.enqueue(host, device)] * 3
    timing = time_calls(calls, Sampling(iters=5, cold_iters=2, rotating_mb=0))
    assert (timing.p20_us, timing.median_us, timing.p80_us) == pytest.approx((device, device, device))
    assert bench(calls[0]) == pytest.approx(device / 1e6)
    assert machine.fills > 0


def test_calls_take_turns_however_many_are_in_one_time(machine):
    order = []

    def call(index):
        order.append(index)
        machine.enqueue(20, 30)

    time_calls([lambda index=index: call(index) for index in range(3)], Sampling(iters=4, cold_iters=1, rotating_mb=0))
    assert order == [index % 3 for index in range(len(order))]
    assert len(order) > 4 + 1


def test_what_waits_for_the_device_is_timed_with_a_warning(machine):
    def call():
        machine.enqueue(20, 5)
        machine.wait()
        machine.host += 7

    with pytest.warns(RuntimeWarning, match="Time a captured graph of it"):
        timing = time_calls([call], Sampling(iters=3, cold_iters=1, rotating_mb=0))
    assert timing.median_us > 5

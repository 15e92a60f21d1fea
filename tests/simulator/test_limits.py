"""Launches that don't end by themselves, and invalid settings."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator

SOURCE = 'extern "C" __global__ void wait_for(volatile int* flag) { while (*flag == 0); }'


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.code_object(SOURCE)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Inside, SIGINT interrupts Python, even if a shell started the process with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((1, 64.5), TypeError, "block: expected an int or up to three of them, got 64.5"),
        (("1", 64), TypeError, "grid: expected an int or up to three of them, got '1'"),
        ((1, (4, 4, 4, 1)), ValueError, r"block: expected one to three sizes below 2\*\*32, got \(4, 4, 4, 1\)"),
        ((-1, 64), ValueError, r"grid: expected one to three sizes below 2\*\*32, got -1"),
    ],
)
def test_sizes_that_are_none_are_named(code: bytes, sizes: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulator.launch(code, "wait_for", *sizes, [np.ones(1, np.int32)])


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_a_launch_and_the_next_one_works(code: bytes) -> None:
    def interrupt() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        simulator.launch(code, "wait_for", 1, 64, [np.zeros(1, np.int32)])
    simulator.launch(code, "wait_for", 1, 64, [np.ones(1, np.int32)])


def test_endless_wave_is_given_up_at_the_limit(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "12345")
    with pytest.raises(simulator.SimulatorError, match="12345 instructions without an end"):
        simulator.launch(code, "wait_for", 1, 64, [np.zeros(1, np.int32)])


@pytest.mark.parametrize("name", ["DG_SIM_THREADS", "DG_SIM_MAX_INSTRUCTIONS", "DG_SIM_SANITIZE", "DG_SIM_SEED"])
def test_settings_must_be_numbers(code: bytes, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "many")
    with pytest.raises(simulator.SimulatorError, match=rf"{name}=many: expected a number"):
        simulator.launch(code, "wait_for", 1, 64, [np.ones(1, np.int32)])

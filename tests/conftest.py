"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import torch

from deep_gemm_rocm.heuristics import GemmConfig, forced
from deep_gemm_rocm.launch import repeated, scratch
from deep_gemm_rocm.launch.launch import Launch
from deep_gemm_rocm.runtime import session
from deep_gemm_rocm.runtime.settings import Settings

# A busy machine must not fail a test.
hypothesis.settings.register_profile("without deadlines", deadline=None)
hypothesis.settings.load_profile("without deadlines")

# A kernel with an endless loop fails within seconds. No test's wave executes nearly as many instructions.
os.environ.setdefault("DG_SIM_MAX_INSTRUCTIONS", str(10**7))

# The workers of pytest-xdist share the cores. Idle threads of OpenMP spin, so torch's would take most of the time.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THREADS = max((os.cpu_count() or 1) // _WORKERS, 1)
os.environ.setdefault("DG_SIM_THREADS", str(_THREADS))
os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))  # of programs that tests start
torch.set_num_threads(_THREADS)


@pytest.fixture
def use_config() -> Iterator[Callable[[GemmConfig], None]]:
    """Forces all GEMMs to run a configuration, until the test's end or the next call."""
    with contextlib.ExitStack() as stack:

        def use(config: GemmConfig) -> None:
            stack.close()
            stack.enter_context(forced(config))

        yield use


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Records the launches of all calls instead of running them. Calls that a check should refuse show up here."""
    launches: list[Launch] = []
    monkeypatch.setattr(repeated, "ready_kernels", launches.extend)
    return launches


@pytest.fixture(autouse=True)
def own_session() -> Iterator[session.Session]:
    """Gives each test default settings and no remembered calls; loaded kernels are shared."""
    with session.using(session.current().derived(Settings())) as own:
        yield own


@pytest.fixture(autouse=True)
def tight_scratch(own_session: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """Gives launches no more scratch memory than they ask for: the simulator reports accesses beyond it.

    Returns:
        The function that tells how much they have otherwise.
    """
    room_for = scratch._room_for
    monkeypatch.setattr(scratch, "_room_for", lambda size: size)
    session.current().of(scratch.Scratch).kept().clear()
    return room_for


@pytest.fixture(autouse=True)
def sanitize(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every kernel under the simulator's sanitizer, unless the test is marked or the environment decides."""
    if "DG_SIM_SANITIZE" not in os.environ and request.node.get_closest_marker("unsanitized") is None:
        monkeypatch.setenv("DG_SIM_SANITIZE", "2")

"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

import deep_gemm_rocm as dg
from deep_gemm_rocm import changes
from deep_gemm_rocm.heuristics import GemmConfig, forced

# A kernel whose loop has no end fails within seconds. No wave of a test has nearly as many instructions.
os.environ.setdefault("DG_SIM_MAX_INSTRUCTIONS", str(10**7))

# Workers of pytest-xdist share the cores.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("DG_SIM_THREADS", str(max((os.cpu_count() or 1) // _WORKERS, 1)))


@pytest.fixture
def default_settings():
    """Undoes what the test sets."""
    yield
    dg.set_mk_alignment_for_contiguous_layout(128)
    dg.set_num_sms(0)
    dg.set_tc_util(0)
    dg.set_pdl(False)
    dg.set_compile_mode(0)


@pytest.fixture
def use_config() -> Iterator[Callable[[GemmConfig], None]]:
    """Has all GEMMs run a configuration, from where the test names it to the next one or the test's end."""
    with contextlib.ExitStack() as stack:

        def use(config: GemmConfig) -> None:
            stack.close()
            stack.enter_context(forced(config))

        yield use


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    """What one test has called, the next one doesn't repeat: it may have exchanged the choice of kernels."""
    changes.note()


@pytest.fixture(autouse=True)
def sanitize(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator runs every kernel under its sanitizer, unless the test is marked or the environment decides."""
    if "DG_SIM_SANITIZE" not in os.environ and request.node.get_closest_marker("unsanitized") is None:
        monkeypatch.setenv("DG_SIM_SANITIZE", "2")

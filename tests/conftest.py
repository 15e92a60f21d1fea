"""Fixtures for all tests."""

from __future__ import annotations

import os

import pytest

import deep_gemm_rocm as dg
from deep_gemm_rocm import changes


@pytest.fixture
def default_settings():
    """Undoes what the test sets."""
    yield
    dg.set_mk_alignment_for_contiguous_layout(128)
    dg.set_num_sms(0)
    dg.set_tc_util(0)
    dg.set_pdl(False)
    dg.set_compile_mode(0)


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    """What one test has called, the next one doesn't repeat: it may have exchanged the choice of kernels."""
    changes.note()


@pytest.fixture(autouse=True)
def sanitize(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator runs every kernel under its sanitizer, unless the test is marked or the environment decides."""
    if "DG_SIM_SANITIZE" not in os.environ and request.node.get_closest_marker("unsanitized") is None:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")

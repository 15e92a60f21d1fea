"""Fixtures for tests that call the HIP API themselves."""

from __future__ import annotations

import pytest
from helpers.simulated_hip import Compiler, Hip


@pytest.fixture(scope="session")
def hip() -> Hip:
    return Hip()


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("device_code"))


@pytest.fixture(params=[None, 1, 2], ids=["plain", "sanitized1", "sanitized2"])
def checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test without the sanitizer, and with it under several orders of the waves."""
    monkeypatch.setenv("DG_SIM_SANITIZE", "0" if request.param is None else "1")
    monkeypatch.setenv("DG_SIM_SEED", str(request.param or 0))


@pytest.fixture
def sanitizer_at_level_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets DG_SIM_SANITIZE to 1, instead of the environment's or the default level."""
    monkeypatch.setenv("DG_SIM_SANITIZE", "1")

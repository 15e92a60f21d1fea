"""Fixtures for tests that are HIP programs themselves."""

from __future__ import annotations

import pytest
from simulated_hip import Compiler, Hip


@pytest.fixture(scope="session")
def hip() -> Hip:
    return Hip()


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("device_code"))

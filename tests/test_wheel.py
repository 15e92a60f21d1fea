"""The wheel holds everything, and works where nothing else of this package is."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_every_file_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    kept = ("*.py", "*.json", "*.csv", "*.npz", "*.toml", "py.typed")
    expected = {str(path.relative_to(ROOT)) for pattern in kept for path in (ROOT / "deep_gemm_rocm").rglob(pattern)}
    headers = {path for pattern in ("*.h", "*.j2") for path in (ROOT / "include").rglob(pattern)}
    expected |= {f"deep_gemm_rocm/{path.relative_to(ROOT)}" for path in headers}
    assert {name for name in expected if "/csrc/" not in name} <= packed
    assert any(name.endswith("libamdhip64.so") for name in packed)
    assert not any("csrc" in name or name.startswith("tests") for name in packed)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "selftest"])
def test_the_wheel_works_alone(wheel, tmp_path, command):
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(tmp_path / "site"),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path / "site"), "DG_DEVICE": "sim", "DG_JIT_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "deep_gemm_rocm", command],
        cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulated" in done.stdout

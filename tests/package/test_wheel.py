"""The wheel is complete, and works without the checkout."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
setuptools = pytest.importorskip("setuptools", reason="builds a wheel")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def setup_script(tmp_path, monkeypatch):
    """Runs setup.py with only ``tmp_path`` in PATH; returns its names and the arguments of setup()."""

    def run() -> tuple[dict, dict]:
        arguments: dict = {}
        monkeypatch.setattr(setuptools, "setup", arguments.update)
        return runpy.run_path(str(ROOT / "setup.py")), arguments

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return run


def test_without_a_compiler_ziglang_builds_it(setup_script):
    names, arguments = setup_script()
    assert arguments["setup_requires"] == ["ziglang"]
    toolchain = names["Toolchain"]()
    assert toolchain.compiler == [sys.executable, "-m", "ziglang", "c++"]
    assert toolchain.march("x86-64-v4") == "-march=x86_64_v4"


@pytest.mark.parametrize("name", ["c++", "g++", "clang++"])
def test_a_working_compiler_builds_it(setup_script, tmp_path, name):
    for broken in {"c++", "g++", "clang++"} - {name}:
        script(tmp_path / broken, "exit 1")
    script(tmp_path / name, "echo clang version 19")
    names, arguments = setup_script()
    assert arguments["setup_requires"] == []
    toolchain = names["Toolchain"]()
    assert toolchain.compiler == [name]
    assert not any(flag.startswith("-mmem") for flag in toolchain.flags)  # GCC's


def test_the_compiler_of_the_environment_comes_first(setup_script, tmp_path, monkeypatch):
    script(tmp_path / "g++", "exit 0")
    chosen = script(tmp_path / "another", "echo Free Software Foundation")
    monkeypatch.setenv("CXX", f"{chosen} --some-flag")
    names, arguments = setup_script()
    assert arguments["setup_requires"] == []
    toolchain = names["Toolchain"]()
    assert toolchain.compiler == [str(chosen), "--some-flag"]
    assert any(flag.startswith("-mmem") for flag in toolchain.flags)


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "No such file"), ("echo such nonsense >&2; exit 1", "such nonsense"), ("exit 3", "status 3")],
)
def test_a_chosen_compiler_that_fails_is_named(setup_script, tmp_path, monkeypatch, text, why):
    chosen = tmp_path / "another"
    if text:
        script(chosen, text)
    monkeypatch.setenv("CXX", str(chosen))
    with pytest.raises(SystemExit) as stopped:
        setup_script()
    message = str(stopped.value)
    assert f"CXX={chosen}" in message
    assert why in message
    assert "unset CXX" in message


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("deep_gemm_rocm-*-py3-none-linux_x86_64.whl")
    return built


@pytest.mark.slow
def test_every_file_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    kept = ("*.py", "*.json", "*.csv", "*.npz", "*.toml", "*.h", "py.typed")
    expected = {str(path.relative_to(ROOT)) for pattern in kept for path in (ROOT / "deep_gemm_rocm").rglob(pattern)}
    headers = {path for pattern in ("*.h", "*.j2") for path in (ROOT / "include").rglob(pattern)}
    expected |= {f"deep_gemm_rocm/{path.relative_to(ROOT)}" for path in headers}
    assert {name for name in expected if "/csrc/" not in name} <= packed
    levels = ("x86-64", "x86-64-v3", "x86-64-v4")
    libraries = {"libamdhip64.so", *(f"libmi300x_{level}.so" for level in levels)}
    assert {name for name in packed if name.endswith(".so")} == {f"deep_gemm_rocm/simulator/lib/{x}" for x in libraries}
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

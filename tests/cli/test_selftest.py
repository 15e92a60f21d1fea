"""The selftest command passes if everything works, and finds defects."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.selftest import families, mfma


def invoke():
    return CliRunner().invoke(app, ["selftest"])


def fails() -> None:
    raise AssertionError("3 of 12 elements [are] outside")


def test_the_report_names_what_fails(monkeypatch):
    monkeypatch.setattr(families, "checks", lambda device: {"good": lambda: None, "wrong": fails})
    result = invoke()
    assert result.exit_code == 1
    assert "device         AMD Instinct MI300X (simulated)" in result.output
    lines = {line[:24].strip(): line[24:].split()[0] for line in result.output.splitlines() if line[24:].strip()}
    assert {name: lines[name] for name in ("matrix cores", "compiler, cache", "good", "wrong")} == {
        "matrix cores": "ok", "compiler, cache": "ok", "good": "ok", "wrong": "FAILED",
    }  # fmt: skip
    assert "3 of 12 elements [are] outside" in result.output
    assert "1 of 4 checks failed: wrong" in result.output


def test_a_single_wrong_bit_of_the_matrix_cores_is_found(monkeypatch):
    stored = mfma.vectors()
    stored["16 E4M3 E5M2 d"].view(-1)[201] ^= 1  # a bit of the mantissa
    monkeypatch.setattr(mfma, "vectors", lambda: stored)
    with pytest.raises(AssertionError, match="16 E4M3 E5M2: 1 of 256 results have other bits"):
        mfma.check("cpu")


@pytest.mark.parametrize("name", ["fp8", "graph"])
def test_a_wrong_kernel_is_found(monkeypatch, name):
    monkeypatch.setattr(families, "gemm_reference", lambda a, b: wrong_reference(a, b))
    with pytest.raises(AssertionError, match="elements are outside the bound"):
        families.checks("cpu")[name]()


def wrong_reference(a, b):
    from deep_gemm_rocm.testing import gemm_reference

    reference = gemm_reference(a, b)
    reference.exact[0, 3] *= 1.1
    return reference


@pytest.mark.slow
def test_everything_passes():
    environment = os.environ | {"DG_DEVICE": "sim"}
    command = [sys.executable, "-m", "deep_gemm_rocm", "selftest"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(families.checks("cpu")) + 2  # the matrix cores, and the compiler and its cache
    assert f"all {count} checks passed on AMD Instinct MI300X (simulated)" in done.stdout

"""The plug-in for pytest: the fixture ``mi300x``, the mark ``sanitized``, and baselines of simulated time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deep_gemm_rocm

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.unsanitized, pytest.mark.slow]

TESTS = """
import os
import numpy as np
import pytest

SOURCE = '''
#include <hip/hip_runtime.h>
__global__ void shift(const float* x, float* y) {{
  __shared__ float shared[128];
  for (int n = 0; n < {times}; ++n) {{
    shared[threadIdx.x] = x[threadIdx.x];
    {barrier}
    y[threadIdx.x] = shared[(threadIdx.x + 64) % 128];
    __syncthreads();
  }}
}}
'''

def shifted(mi300x, barrier, times=1):
    code = mi300x.compile(SOURCE.format(barrier=barrier, times=times))
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    return lambda: mi300x.launch(code, "shift", 1, 128, [x, y]), y

@pytest.mark.sanitized(seeds=3)
def test_race(mi300x):
    assert os.environ["DG_SIM_SEED"] in "012"
    call, _ = shifted(mi300x, "")
    call()

@pytest.mark.sanitized
def test_right(mi300x):
    call, y = shifted(mi300x, "__syncthreads();")
    call()
    assert (y == np.roll(np.arange(128), -64)).all()

def test_time(mi300x):
    assert "DG_SIM_SANITIZE" not in os.environ
    call, y = shifted(mi300x, "__syncthreads();", int(os.environ.get("TIMES", "10")))
    (found,) = mi300x.time(call, y)
    assert found.sustained_us > 0
"""


TIMED = ("-m", "not sanitized")


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest on ``TESTS`` in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(deep_gemm_rocm.__file__).parents[1]))
    monkeypatch.delenv("DG_SIM_SANITIZE", raising=False)
    pytester.makepyfile(TESTS)
    return lambda *arguments: pytester.runpytest_subprocess(
        "-p", "deep_gemm_rocm.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers", *arguments
    )


def test_marked_tests_run_under_the_sanitizer_with_each_seed(run):
    done = run("-v", "-k", "race or right")
    done.assert_outcomes(passed=1, failed=3)
    done.stdout.fnmatch_lines(["*test_race?seed0? FAILED*", "*test_race?seed2? FAILED*", "*test_right?seed0? PASSED*"])
    done.stdout.fnmatch_lines(["*race*"])


def test_times_are_compared_with_a_baseline(run, pytester, monkeypatch):
    file = pytester.path / "kept" / "times.json"
    arguments = (*TIMED, f"--sim-baseline={file}")
    missing = run(*arguments)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*not in *times.json; --sim-update adds it*"])
    run(*arguments, "--sim-update").assert_outcomes(passed=1)
    (kept,) = json.loads(file.read_text())["kernels"]
    assert kept["kernel"] == "shift"
    run(*arguments, "--sim-tolerance=0").assert_outcomes(passed=1)
    monkeypatch.setenv("TIMES", "40")
    slower = run(*arguments)
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(["*more than 3% over *times.json", "*cycles * -> *", "*--sim-update accepts it*"])
    run(*arguments, "--sim-tolerance=1000").assert_outcomes(passed=1)


def test_the_baseline_may_stand_in_the_settings(run, pytester):
    refused = run(*TIMED, "--sim-update")
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["*--sim-update needs a file*"])
    pytester.makeini("[pytest]\nsim_baseline = times.json\n")
    run(*TIMED, "--sim-update").assert_outcomes(passed=1)
    assert (pytester.path / "times.json").exists()

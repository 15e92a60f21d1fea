"""A pytest plug-in for kernels on the simulated MI300X: fixture ``mi300x``, mark ``sanitized``, baselines of time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from . import simulator, workbench
from .workbench import measurements
from .workbench.measurements import Measurement

_SEED = "_mi300x_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mi300x", "kernels on the simulated MI300X")
    group.addoption("--sim-baseline", metavar="FILE", help="compare simulated times with those in this file")
    group.addoption("--sim-update", action="store_true", help="write simulated times into the baseline instead")
    group.addoption(
        "--sim-tolerance", type=_percent, default=3, metavar="PERCENT", help="how much longer a launch may take (3)"
    )
    parser.addini("sim_baseline", "the baseline of simulated times, relative to the folder of this file")


def _percent(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0 on, got {text}")
    return number


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sanitized(seeds=1): runs under the simulated MI300X's sanitizer, once for each order of waves"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("sanitized")
    if mark is not None:
        seeds: int = mark.kwargs.get("seeds") or (mark.args or (1,))[0]
        metafunc.fixturenames.append(_SEED)
        metafunc.parametrize(_SEED, range(seeds), ids=[f"seed{seed}" for seed in range(seeds)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    parameters = getattr(item, "callspec", None)
    if parameters is None or _SEED not in parameters.params:
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DG_SIM_SANITIZE", "1")
        environment.setenv("DG_SIM_SEED", str(parameters.params[_SEED]))
        return (yield)


class Chip:
    """The simulated MI300X, as tests use it.

    Attributes:
        compile: ``deep_gemm_rocm.workbench.compile``, from HIP source to a code object.
        run_triton: ``deep_gemm_rocm.workbench.run_triton``.
        launch: ``deep_gemm_rocm.simulator.launch``, which runs a kernel of a code object.
        baseline: the file that times are compared with, if any.
        update: whether times are written there instead.
        tolerance: by how many percent a launch may take longer.
    """

    def __init__(self, baseline: Path | None, *, update: bool, tolerance: float) -> None:
        self.compile, self.run_triton, self.launch = workbench.compile, workbench.run_triton, simulator.launch
        self.baseline, self.update, self.tolerance = baseline, update, tolerance

    def time(self, call: Callable[[], object], *results: np.ndarray) -> list[Measurement]:
        """Measures every launch of ``call``, and compares it with the baseline.

        Args:
            call: makes the launches. It is called twice: once in simulated time, then to count instructions.
            results: arrays whose bits are noted, as they are after the first call.

        Returns:
            A measurement for each launch, in their order.

        Raises:
            pytest.fail.Exception: a launch takes longer than the baseline and the tolerance allow, or isn't in it.
        """
        with simulator.profile() as profile:
            call()
        kept = [result.copy() for result in results]
        with simulator.counters() as counted:
            call()
        found = [
            measurements.Measurement.of(*of_launch, kept)
            for of_launch in zip(profile.kernels, counted.kernels, strict=True)
        ]
        if self.baseline is not None:
            self._compare(self.baseline, found)
        return found

    def _compare(self, baseline: Path, found: list[Measurement]) -> None:
        if self.update:
            baseline.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{baseline}.lock"):  # of pytest-xdist's processes
                for measurement in found:
                    measurements.add(baseline, measurement)
            return
        known = measurements.read(baseline) if baseline.exists() else []
        launches = {measurement.key for measurement in found}
        before = [measurement for measurement in known if measurement.key in launches]
        for change in measurements.changes(before, found):
            if change.before is None:
                pytest.fail(f"{change.headline()}: not in {baseline}; --sim-update adds it", pytrace=False)
            if 100 * change.slower > self.tolerance:
                lines = [f"{change.headline()}, more than {self.tolerance:g}% over {baseline}", *change.facts()]
                pytest.fail("\n    ".join([*lines, "--sim-update accepts it"]), pytrace=False)


@pytest.fixture(scope="session")
def mi300x(pytestconfig: pytest.Config) -> Chip:
    """The simulated MI300X: compiles, launches and times kernels."""
    given, listed = pytestconfig.getoption("--sim-baseline"), pytestconfig.getini("sim_baseline")
    baseline = Path(given) if given else pytestconfig.rootpath / listed if listed else None
    update = pytestconfig.getoption("--sim-update")
    if update and baseline is None:
        raise pytest.UsageError("--sim-update needs a file: --sim-baseline=FILE, or sim_baseline in pytest's settings")
    return Chip(baseline, update=update, tolerance=pytestconfig.getoption("--sim-tolerance"))

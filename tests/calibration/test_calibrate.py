"""Constants of a simulated chip whose constants were changed are found again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.calibration import PROBES, calibrate
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.simulator import constants

pytestmark = [
    pytest.mark.unsanitized,  # kernels that only take time
    pytest.mark.skipif(not hip.runtime().is_simulated, reason="changes the simulated chip"),
]

# Instructions issue every four clocks, and LDS gives whole groups of lanes.
TURNS = ("alu.vector_clocks", "alu.transcendental_clocks", "alu.multiply_clocks", "alu.scalar_clocks")
WHOLE = (
    "cu.branch_clocks", "cu.barrier_clocks", "matrix.clocks_per_pass", "launch.workgroup_clocks", "lds.port_bytes",
)  # fmt: skip


def changed(name: str, generator: random.Random) -> float:
    """Another value of a constant."""
    value = constants.packaged()[name]
    if name in TURNS:
        return value + 4
    if name in WHOLE:
        return value / 2
    return value * generator.choice((generator.uniform(0.75, 0.9), generator.uniform(1.1, 1.3)))


def use(values: dict[str, float], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the simulated chip these constants."""
    file = folder / "chip.toml"
    file.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    monkeypatch.setenv("DG_SIM_TIMING_CONSTANTS", str(file))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("alu.vector_clocks", "launch.overhead_ns"), marks=pytest.mark.slow),
        pytest.param([probe.constant for probe in PROBES], marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_changed_constants_are_found(tmp_path, monkeypatch, names):
    generator = random.Random(0)
    true = {name: changed(name, generator) for name in names}
    use(true, tmp_path, monkeypatch)
    probes = [probe for probe in PROBES if probe.constant in names]
    found = {finding.probe.constant: finding.after for finding in calibrate(probes)}
    assert found == {name: pytest.approx(value, rel=0.05) for name, value in true.items()}


def test_the_command_writes_constants_and_tells_what_disagrees(tmp_path, monkeypatch):
    use({"l1.hit_clocks": 180}, tmp_path, monkeypatch)
    out = tmp_path / "out.toml"
    arguments = ["calibrate", "--only", "l1.hit_clocks,scalar_cache.hit_clocks", "-o", str(out)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if "clocks " in line}
    assert rows["scalar_cache.hit_clocks"] == ["48", "48", "48.035", "48.035", "clocks"]
    assert rows["l1.hit_clocks"][0] == "116"
    assert rows["l1.hit_clocks"][3:5] == ["*", "120.03"]
    monkeypatch.setenv("DG_SIM_TIMING_CONSTANTS", str(out))
    assert constants.current()["l1.hit_clocks"] == pytest.approx(180, rel=0.05)
    assert constants.current()["scalar_cache.hit_clocks"] == 48


@pytest.mark.slow
def test_a_figure_that_depends_on_something_else_is_told(tmp_path, monkeypatch):
    """In the model, looking lines up takes longer than bringing them in that quickly."""
    use({"l1.fill_bytes": 400, "l1.tags_per_clock": 2}, tmp_path, monkeypatch)
    result = CliRunner().invoke(app, ["calibrate", "--only", "l1.fill_bytes", "-o", str(tmp_path / "out.toml")])
    assert result.exit_code == 1
    assert "l1.fill_bytes: no value makes the model agree" in result.output
    assert "fill_bytes" not in (tmp_path / "out.toml").read_text()


def test_an_unknown_constant_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["calibrate", "--only", "l1.speed", "-o", str(tmp_path / "out.toml")])
    assert result.exit_code == 1
    assert "expected some of chip.clock_mhz" in result.output
    assert "got l1.speed" in result.output
    assert not (tmp_path / "out.toml").exists()


def test_a_value_that_the_model_refuses_is_not_found(tmp_path, monkeypatch):
    # On the way to 300 clocks the L1 becomes slower than the model's L2, which comes later.
    use({"l1.hit_clocks": 300, "l2.hit_clocks": 600}, tmp_path, monkeypatch)
    (finding,) = calibrate([probe for probe in PROBES if probe.constant == "l1.hit_clocks"])
    assert finding.after is None

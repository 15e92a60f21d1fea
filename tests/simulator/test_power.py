"""The power model: which clock a launch sustains."""

from __future__ import annotations

from pathlib import Path

import pytest

from deep_gemm_rocm.simulator.constants import chip_constants, chips, current
from deep_gemm_rocm.simulator.power import interval, stretch, sustained, without_idling

CUS = 304
CYCLES = 1_000_000


def busy(cores: float, hbm: float = 0.0) -> dict[str, float]:
    """How busy resources are: the matrix cores and HBM."""
    return {"matrix cores": cores, "LDS": 0.05, "fabric": 0.0, "HBM": hbm}


def activity(of_cu_clock: dict[str, float]) -> dict[str, float]:
    """What a launch does, from what each CU does in a clock."""
    names = ("matrix_fp8_clocks", "matrix_i8_clocks", "matrix_f16_clocks", "matrix_other_clocks", "vector_clocks")
    names += ("lds_clocks", "l1_bytes", "l2_bytes", "mall_bytes", "hbm_bytes")
    return {"cu_clocks": CUS * CYCLES, **{name: CUS * CYCLES * of_cu_clock.get(name, 0) for name in names}}


# hipBLASLt's best tiles, 256x192 and K of 32 or 64 bytes at a time, move about as much in a clock of a CU.
TRAFFIC = {"vector_clocks": 0.3, "lds_clocks": 0.4, "l1_bytes": 15, "l2_bytes": 15, "mall_bytes": 4, "hbm_bytes": 0.9}


@pytest.mark.parametrize(
    ("chip", "operands", "tflops", "flop", "mhz"),
    [
        ("mi300x", "fp8", 1273, 4096, 1230),
        ("mi300x", "other", 708, 2048, 1207),
        ("mi300x", "f16", 654, 2048, 1115),
        ("mi325x", "fp8", 1519, 4096, 1464),
        ("mi325x", "other", 843, 2048, 1447),
        ("mi325x", "f16", 794, 2048, 1354),
    ],
)
def test_max_achievable_rates(chip: str, operands: str, tflops: float, flop: int, mhz: float) -> None:
    """AMD's published clocks at 750 and 1000 W ("measuring max-achievable FLOPs", part 2)."""
    utilization = tflops * 1e6 / (CUS * flop * mhz)
    load = activity({**TRAFFIC, f"matrix_{operands}_clocks": 4 * utilization})
    found = sustained(CYCLES, load, busy(utilization), current(chip_constants(chip)))
    assert found.mhz == pytest.approx(mhz, rel=0.05)


def test_the_limit_holds() -> None:
    constants = current()
    found = sustained(CYCLES, activity({**TRAFFIC, "matrix_fp8_clocks": 3}), busy(0.75), constants)
    assert found.joules / (found.microseconds * 1e-6) == pytest.approx(constants["power.limit_w"], rel=1e-3)
    assert constants["power.least_mhz"] < found.mhz < constants["chip.clock_mhz"]


def test_the_same_work_without_idling() -> None:
    """Half of the time goes, and what CUs take in it. The clock falls until the power limit holds again."""
    constants = current()
    load = activity({**TRAFFIC, "matrix_fp8_clocks": 2})
    now = sustained(CYCLES, load, busy(0.5), constants)
    found = without_idling(CYCLES, load, busy(0.5), constants)
    assert found == sustained(CYCLES / 2, {**load, "cu_clocks": CUS * CYCLES / 2}, busy(1) | {"LDS": 0.1}, constants)
    assert found.microseconds < now.microseconds
    assert found.mhz < now.mhz
    assert without_idling(CYCLES, load, busy(1.0), constants) == sustained(CYCLES, load, busy(1.0), constants)
    assert without_idling(CYCLES, load, dict.fromkeys(busy(0), 0.0), constants).microseconds > 0


@pytest.mark.parametrize(
    "consumer",
    ["matrix_fp8_clocks", "matrix_i8_clocks", "matrix_f16_clocks", "matrix_other_clocks", *TRAFFIC],
)
def test_every_consumer_counts(consumer: str) -> None:
    """The more of anything a launch does, the lower is its clock."""
    base = {**TRAFFIC, "matrix_fp8_clocks": 3, "matrix_i8_clocks": 0}
    more = {**base, consumer: base.get(consumer, 0) + 4}
    mhz = [sustained(CYCLES, activity(load), busy(0.75), current()).mhz for load in (base, more)]
    assert mhz[1] < mhz[0]


def test_memory_has_a_clock_of_its_own() -> None:
    """The time that memory limits doesn't grow when the core's clock falls."""
    load = activity({**TRAFFIC, "matrix_fp8_clocks": 3})
    times = [sustained(CYCLES, load, busy(0.05, hbm), current()).microseconds for hbm in (0.0, 0.5, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[2] == pytest.approx(CYCLES / 2100 + current()["launch.overhead_ns"] / 1000)


@pytest.mark.parametrize(
    ("cores", "hbm", "slower", "time"),
    [
        (0.94, 0.4, 2, 2),  # the cores limit, however busy memory is beside them
        (0.1, 0.9, 1.5, 0.9 + 0.1 * 1.5),
        (0.5, 0.9, 3, 1.5 + 0.1 * 3),  # at a third of the clock, the cores need longer than memory
        (1.1, 1.2, 2, 2),
    ],
)
def test_a_slower_clock_stretches_what_the_cores_limit(cores: float, hbm: float, slower: float, time: float) -> None:
    assert stretch(busy(cores, hbm), 1) == pytest.approx(1)
    assert stretch(busy(cores, hbm), slower) == pytest.approx(time)


def test_light_launches_boost() -> None:
    assert sustained(CYCLES, activity({}), busy(0), current()).mhz == 2100


def test_interval() -> None:
    least, most = interval(100.0)
    assert least < 100 < most


def test_chips() -> None:
    assert {"mi300x", "mi300a", "mi308x", "mi325x"} == set(chips())
    for chip in chips():
        assert chip_constants(chip).keys() <= current().keys(), "a chip has a constant that the models lack"
    with pytest.raises(ValueError, match="chip: expected one of"):
        chip_constants("h100")


def test_constants_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "constants.toml"
    monkeypatch.setenv("DG_SIM_TIMING_CONSTANTS", str(file))
    file.write_text("[power]\nlimit_w = high\n", encoding="utf-8")
    with pytest.raises(ValueError, match="expected name = number"):
        current()
    file.write_text("[power]\nlimit_w = 500  # lower\n", encoding="utf-8")
    assert current()["power.limit_w"] == 500
    assert current({"power.limit_w": 600})["power.limit_w"] == 600


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("power.reference_mhz", 0, "power.reference_mhz: expected a number from 1 to"),
        ("power.limit_w", float("nan"), "power.limit_w: expected a number from 0 to"),
        ("power.hbm_pj", -1, "power.hbm_pj: expected a number from 0 to"),
        ("power.speed", 1, "power.speed is no constant of the power model"),
    ],
)
def test_constants_with_which_the_model_cannot_compute(name: str, value: float, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        current({name: value})

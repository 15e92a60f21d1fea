"""The commands of ``python -m deep_gemm_rocm sim``."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.perfetto import perfetto_answers
from helpers.simulated_hip import Compiler
from typer.testing import CliRunner

from deep_gemm_rocm import simulator
from deep_gemm_rocm.__main__ import app

SOURCE = """
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) z[i] = x[i] + y[i];
}
"""


@pytest.fixture
def code_object(compiler: Compiler, tmp_path: Path) -> Path:
    path = tmp_path / "add.co"
    path.write_bytes(compiler.code_object(SOURCE))
    return path


def run(code_object: Path, *arguments: str):
    options = [option for argument in arguments for option in ("--arg", argument)]
    return CliRunner().invoke(app, ["sim", "run", str(code_object), "--kernel", "add", "--grid", "2", *options])


def test_run_takes_buffers_files_and_numbers(code_object: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.float32))
    done = run(code_object, str(tmp_path / "x.npy"), "float32[100]=0.5", "float32[100]", "100")
    assert done.exit_code == 0, done.output
    assert "arg2 float32[100]: [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5] ..." in done.output


def test_run_saves_arrays(code_object: Path, tmp_path: Path) -> None:
    command = ["sim", "run", str(code_object), "--kernel", "add", "--grid", "2", "--out", str(tmp_path / "out")]
    arguments = ["--arg", "float32[9]=1", "--arg", "float32[9]=2", "--arg", "float32[9]", "--arg", "9"]
    assert CliRunner().invoke(app, [*command, *arguments]).exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "arg2.npy"), np.full(9, 3, np.float32))


def test_a_fault_is_one_message(code_object: Path) -> None:
    done = run(code_object, "float32[100]", "float32[10]", "float32[100]", "100")
    assert done.exit_code == 1
    # Lane 10 of the first workgroup or lane 0 of the second, whichever comes first.
    assert re.search(r"lane (0|10) accesses 4 bytes", done.output)
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "wrong",
    [
        "nothing", "float33[4]", "float32[4]=x", "absent.npy", "int32[99999999999999]", "int8[4]=300", "uint8[4]=-1",
        "int32[4]=2.5", "int32[4]=inf", "uint32[4]=nan", "float16[4]=1e9",
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(code_object: Path, wrong: str) -> None:
    done = run(code_object, wrong, "float32[10]", "float32[100]", "100")
    assert done.exit_code == 2
    message = " ".join(done.output.replace("│", " ").split())
    assert "Invalid value for --arg: expected a number, TYPE[COUNT]" in message
    assert f"got {wrong} (" in message


@pytest.mark.parametrize("grid", ["x", "1,2,3,4", "-1", ""])
def test_a_bad_size_is_named(code_object: Path, grid: str) -> None:
    done = CliRunner().invoke(app, ["sim", "run", str(code_object), "--kernel", "add", f"--grid={grid}"])
    assert done.exit_code == 2
    assert f"expected one to three sizes as in 8 or 8,4,1, got {grid}" in done.output


def test_opcodes_of_a_status() -> None:
    exact, unknown = (CliRunner().invoke(app, ["sim", "opcodes", "--status", of]) for of in ("exact", "good"))
    assert exact.exit_code == 0
    assert {line.split()[3] for line in exact.output.splitlines()} == {"exact"}
    assert unknown.exit_code == 2
    message = " ".join(unknown.output.replace("│", " ").split())
    assert "'good' is not one of 'exact', 'approximate', 'missing'" in message


def test_disasm_begins_at_the_kernel(code_object: Path) -> None:
    done = CliRunner().invoke(app, ["sim", "disasm", str(code_object), "--kernel", "add"])
    assert done.exit_code == 0
    assert done.output.startswith("0 s_load_dword")
    assert "s_endpgm" in done.output


ARGUMENTS = ["--arg", "float32[100]=1", "--arg", "float32[100]=2", "--arg", "float32[100]", "--arg", "100"]


def test_counters(code_object: Path) -> None:
    command = ["sim", "counters", str(code_object), "--kernel", "add", "--grid", "2", *ARGUMENTS]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    cells = [re.split(r"\s*│\s*", line.strip("│ "))[:2] for line in done.output.splitlines() if "│" in line]
    assert ["read", "800"] in cells  # bytes of x and y
    assert ["written", "400"] in cells  # bytes of z
    assert "32 of 32, limited by wave slots" in done.output


def test_trace(code_object: Path) -> None:
    command = ["sim", "trace", str(code_object), "--kernel", "add", "--grid", "2", *ARGUMENTS]
    done = CliRunner().invoke(app, [*command, "--workgroup", "1", "--lanes", "35,36"])
    assert done.exit_code == 0, done.output
    add = done.output.index("v_add_f32")
    assert re.search(
        r"exec=0000000fffffffff.*\n.*< v\d+ +3f800000 ffffffff\n.*< v\d+ +40000000 ffffffff", done.output[add:]
    )
    assert re.search(r"> v\d+ +40400000 ", done.output[add:])


def test_trace_of_what_fails_or_is_missing(code_object: Path) -> None:
    command = ["sim", "trace", str(code_object), "--kernel", "add", "--grid", "2"]
    done = CliRunner().invoke(app, [*command, "--arg", "float32[100]", "--arg", "float32[10]", *ARGUMENTS[4:]])
    assert done.exit_code == 1
    # Lane 10 of the first workgroup or lane 0 of the second, whichever comes first.
    assert re.search(r"lane (0|10) accesses 4 bytes", done.output)
    assert "s_load_dword" in done.output
    done = CliRunner().invoke(app, [*command, *ARGUMENTS, "--workgroup", "2"])
    assert done.exit_code == 1
    assert "no instructions: workgroup 2 has no wave 0" in done.output
    assert CliRunner().invoke(app, [*command, *ARGUMENTS, "--lanes", "64"]).exit_code == 2


def test_profile(code_object: Path, tmp_path: Path) -> None:
    """Shows times, a listing, and a timeline in which the actions of a wave don't overlap."""
    command = ["sim", "profile", str(code_object), "--kernel", "add", "--grid", "2", *ARGUMENTS]
    path = tmp_path / "timeline.json"
    done = CliRunner().invoke(app, [*command, "--timeline", str(path), "--constant", "launch.overhead_ns=5000"])
    assert done.exit_code == 0, done.output
    assert re.search(r"time under sustained load +│ +[56]\.\d\d µs, [45]\.\d\d to [67]\.\d\d", done.output)
    assert re.search(r"time at a fixed 2,100 MHz +│ +[56]\.\d\d µs", done.output)
    assert "global_load_dword" in done.output
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    units = {"global_load_dword": "memory", "s_load_dword": "scalar", "v_add_f32_e32": "vector ALUs"}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
            if event["name"] in units:
                assert event["args"]["unit"] == units[event["name"]]
    assert sum(pid == 0 for pid, _ in tracks) == 2  # workgroups go to two XCDs
    assert sum(pid == 1 for pid, _ in tracks) == 1  # only the first XCD's wave is shown
    for spans in tracks.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans))


TIMELINE_SOURCE = """
extern "C" __global__ void copy(const float* x, float* y, int* sum) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  y[i] = x[i];
  __hip_atomic_fetch_add(sum, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
"""
FIELDS = {  # of Chrome's trace events, by phase
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "C": {"name": str, "pid": int, "ts": float, "args": dict},
}


@pytest.fixture
def timeline(compiler: Compiler, tmp_path: Path) -> Path:
    path = tmp_path / "timeline.json"
    with simulator.profile(timeline=0) as profiled:
        arrays = [np.ones(2048, np.float32), np.zeros(2048, np.float32), np.zeros(1, np.int32)]
        simulator.launch(compiler.code_object(TIMELINE_SOURCE), "copy", 32, 64, arrays)
    profiled.kernels[0].write_timeline(path)
    return path


def test_timelines_are_trace_events(timeline: Path) -> None:
    document = json.loads(timeline.read_text())
    assert list(document) == ["traceEvents"]
    for event in document["traceEvents"]:
        for key, kind in FIELDS[event["ph"]].items():
            assert isinstance(event[key], (int, float) if kind is float else kind), (key, event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_timelines_show_memory_in_flight(timeline: Path) -> None:
    """What is asked for is answered, never less, and a wave of 64 floats reads two lines of 128 bytes."""
    events = json.loads(timeline.read_text())["traceEvents"]
    counts = [event for event in events if event["ph"] == "C"]
    assert [event["ts"] for event in counts] == sorted(event["ts"] for event in counts)
    assert {kind for event in counts for kind in event["args"]} == {"atomic", "load", "scalar load", "store"}
    assert min(size for event in counts for size in event["args"].values()) == 0
    assert set(counts[-1]["args"].values()) == {0}
    assert max(event["args"]["load"] for event in counts) >= 256


def test_timelines_open_in_perfetto(timeline: Path) -> None:
    """In the trace processor that Perfetto's user interface has."""
    names, tracks = perfetto_answers(
        timeline, "select distinct name from slice", "select distinct name from counter_track"
    )
    assert {"workgroup 0", "global_store_dword", "s_endpgm"} <= set(names)
    assert any("bytes in flight" in track for track in tracks)


def test_profile_refuses_unknown_constants(code_object: Path) -> None:
    command = ["sim", "profile", str(code_object), "--kernel", "add", *ARGUMENTS, "--constant", "lds.speed=1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "lds.speed is no constant" in done.output


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("trace", ["--workgroup", "0,x"], "expected one to three sizes"),
        ("run", ["--out", __file__], "is a file"),
        ("run", ["--out", "/proc/missing"], "No such file"),
        ("run", ["--arg", "datetime64[4]"], "no type of numbers"),
    ],
)
def test_wrong_options_end_with_a_message(code_object: Path, command: str, options: list[str], expected: str) -> None:
    done = CliRunner().invoke(app, ["sim", command, str(code_object), "--kernel", "add", *ARGUMENTS, *options])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code != 0
    assert expected in " ".join(done.output.replace("│", " ").split())

"""The debugger: stops, steps, registers, LDS and variables, from Python and by commands."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from deep_gemm_rocm import simulator, workbench
from deep_gemm_rocm.__main__ import app

SOURCE = """#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>

__device__ __forceinline__ float twice(float value) {
  return value * 2;  // in twice
}
__global__ void scale(const float* x, float* y, int n, double factor) {
  __shared__ float kept[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  kept[threadIdx.x] = twice(x[i]);
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 3; ++k) {
    sum += kept[(threadIdx.x + k) % 128];  // in the loop
  }
  if (i < n) y[i] = sum * factor;  // the store
}
__global__ void deep(float* y) {
  for (int i = 0; i < 300; ++i) y[threadIdx.x] += i;
}
__global__ void faulty(float* x) {
  x[threadIdx.x + 100] = 1;  // too far
}
"""
LINE = {
    text: 1 + SOURCE[: SOURCE.index(text)].count("\n")
    for text in ("in twice", "kept[threadIdx.x] =", "__syncthreads", "in the loop", "the store", "too far")
}


@functools.cache
def _code(*flags: str) -> bytes:
    return workbench.compile(SOURCE, debug=True, flags=flags)


def _arguments() -> list[np.ndarray | int | float]:
    return [np.arange(512, dtype=np.float32), np.zeros(512, np.float32), 200, 1.5]


def _scale(flags: Sequence[str] = (), **where: int) -> simulator.Debugger:
    return simulator.Debugger(_code(*flags), "scale", 4, 128, _arguments(), **where)


def _by_name(debugger: simulator.Debugger) -> dict[str, simulator.Variable]:
    return {variable.name: variable for variable in debugger.variables()}


@pytest.mark.parametrize("threads", ["1", "3"])
def test_stops_where_it_should(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("DG_SIM_THREADS", threads)
    arguments = _arguments()
    with simulator.Debugger(_code(), "scale", 4, 128, arguments, workgroup=2, wave=1) as debugger:
        added = debugger.break_at(f"kernel.hip:{LINE['the store']}")
        stop = debugger.run()
        assert stop is not None
        assert stop.place is not None
        assert (stop.place.line, stop.offset in added.offsets, stop.failure) == (LINE["the store"], True, None)
        while stop is not None:
            stop = debugger.run()
    # The other waves have run, too.
    sums = 2 * arguments[0].reshape(4, 128)
    sums = sums + np.roll(sums, -1, axis=1) + np.roll(sums, -2, axis=1)
    np.testing.assert_array_equal(arguments[1][:200], 1.5 * sums.ravel()[:200])


def test_steps_execute_one_instruction_after_the_other() -> None:
    with _scale() as debugger:
        first = debugger.step()
        assert first is not None
        assert (first.offset, first.executed) == (0, 0)
        texts = dict(debugger.instructions(0, 100))
        for executed in range(1, 8):
            stop = debugger.step()
            assert stop is not None
            assert (stop.executed, texts[stop.offset]) == (executed, stop.text)
        stop = debugger.step(5)
        assert stop is not None
        assert stop.executed == 12


def test_next_goes_to_other_lines_and_backtraces_show_inlined_calls() -> None:
    with _scale() as debugger:
        debugger.break_at(str(LINE["in twice"]))
        stop = debugger.run()
        assert stop is not None
        places = [(place.function, place.line) for place in debugger.backtrace()]
        assert places == [("twice", LINE["in twice"]), ("scale", LINE["kept[threadIdx.x] ="])]
        after = debugger.next_line()
        assert after is not None
        assert after.place is not None
        assert after.place.line != LINE["in twice"]


def test_an_address_is_a_breakpoint_and_can_be_deleted() -> None:
    with _scale() as debugger:
        debugger.step()
        third = debugger.instructions(0, 2)[-1][0]
        assert debugger.break_at(f"*{third:#x}").offsets == (third,)
        stop = debugger.run()
        assert stop is not None
        assert stop.offset == third
        debugger.delete(1)
        assert debugger.run() is None
        with pytest.raises(ValueError, match="the wave has ended"):
            debugger.step()


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("1", "no code at 1; lines with code: .*9, 10"),
        ("other.hip:9", "lines with code: none"),
        ("*0x3", "no instruction begins at 0x3"),
        ("*x", r"expected an offset as in \*0x98"),
        ("here", "expected a line as in 14"),
    ],
)
def test_bad_places_are_named(where: str, problem: str) -> None:
    with _scale() as debugger, pytest.raises(ValueError, match=problem):
        debugger.break_at(where)


@pytest.mark.parametrize(("workgroup", "wave"), [(4, 0), (0, 2), (0, -1)])
def test_waves_that_do_not_exist_are_refused(workgroup: int, wave: int) -> None:
    with pytest.raises(ValueError, match="the grid is"):
        _scale(workgroup=workgroup, wave=wave)


def test_a_missing_argument_is_told() -> None:
    with pytest.raises(ValueError, match="takes 4 arguments, got 3"):
        simulator.Debugger(_code(), "scale", 4, 128, _arguments()[:3])


def test_refused_launches_raise() -> None:
    with (
        simulator.Debugger(_code(), "scale", 4, 128, _arguments(), dynamic_lds=65536) as debugger,
        pytest.raises(simulator.SimulatorError, match="a workgroup has 65536"),
    ):
        debugger.step()


@pytest.mark.unsanitized
def test_waves_are_debugged_in_simulated_time() -> None:
    with simulator.profile() as profiled, _scale() as debugger:
        stop = debugger.step(4)
        assert stop is not None
        assert stop.executed == 3
        assert debugger.run() is None
    assert profiled.kernels[0].cycles > 0


def test_registers_lds_and_types() -> None:
    with _scale(workgroup=1, wave=1) as debugger:
        debugger.step()
        # A work-item's place is in v0, ten bits for each dimension.
        np.testing.assert_array_equal(debugger.vector("v0"), np.arange(64, 128))
        np.testing.assert_array_equal(debugger.vector("v0", "i16x2")[:, 0], np.arange(64, 128))
        np.testing.assert_array_equal(debugger.vector("v0", "u8x4")[:, 1], 0)
        np.testing.assert_array_equal(debugger.vector("v0", "f32").view(np.uint32), np.arange(64, 128))
        small = torch.arange(64, 128, dtype=torch.int32).view(torch.float8_e4m3fnuz).float().numpy().reshape(64, 4)
        np.testing.assert_array_equal(debugger.vector("v0", "fp8x4"), small)
        halves = torch.arange(64, 128, dtype=torch.int32).view(torch.bfloat16).float().numpy().reshape(64, 2)
        np.testing.assert_array_equal(debugger.vector("v0", "bf16x2"), halves)
        assert debugger.scalar("exec", "u64") == 2**64 - 1
        assert debugger.exec.all()
        debugger.break_at(str(LINE["in the loop"]))
        debugger.run()
        kept = 2 * np.arange(128, 256, dtype=np.float32)
        np.testing.assert_array_equal(debugger.lds(0, (8, 16)), kept.reshape(8, 16))
        np.testing.assert_array_equal(debugger.lds(4, (2, 3), row_bytes=64), kept.reshape(8, 16)[:2, 1:4])
        refused = [
            lambda: debugger.lds(0, (8, 17)),
            lambda: debugger.vector("v500"),
            lambda: debugger.vector("v0", "f3"),
            lambda: debugger.scalar("s102"),
            lambda: debugger.scalar("v0"),
        ]
        for bad in refused:
            with pytest.raises(ValueError, match=r"the workgroup has 512|the kernel has|expected"):
                bad()


def test_variables_of_unoptimised_code() -> None:
    """All are in scratch, at offsets from the frame."""
    with _scale(("-O0",), workgroup=1, wave=1) as debugger:
        debugger.break_at(str(LINE["in the loop"]))
        for round in range(3):
            assert debugger.run() is not None
            found = _by_name(debugger)
            kept = 2.0 * np.arange(128, 256, dtype=np.float32)
            sums = sum((np.roll(kept, -k)[64:] for k in range(round)), np.zeros(64))
            np.testing.assert_array_equal(found["k"].values, np.full(64, round))
            np.testing.assert_array_equal(found["i"].values, np.arange(192, 256))
            np.testing.assert_array_equal(found["sum"].values, sums)
            assert (found["n"].in_lane(3), found["factor"].in_lane(3)) == ("200", "1.5")
            assert (found["sum"].type, found["x"].type) == ("float", "const float*")


def test_variables_of_optimised_code() -> None:
    """Some are in registers; parameters that aren't keep what was passed, and others are said to be optimised out."""
    with _scale(workgroup=1, wave=1) as debugger:
        debugger.break_at(str(LINE["the store"]))
        debugger.run()
        found = _by_name(debugger)
        np.testing.assert_array_equal(found["i"].values, np.arange(192, 256))
        assert found["n"].in_lane(0) == "200  (as passed)"
        assert found["y"].in_lane(0) == "<float32[512], as passed>"
        assert found["kept"].in_lane(0) == "<optimised out, or in LDS>"


def test_a_launch_can_be_left() -> None:
    y = np.zeros(64, np.float32)
    with simulator.Debugger(_code(), "deep", 1, 64, [y]) as debugger:
        debugger.step(40)
    assert y[0] < sum(range(300))
    simulator.launch(_code(), "deep", 1, 64, [y])  # isn't debugged
    with pytest.raises(ValueError, match="the wave has ended"):
        debugger.vector("v0")


def test_stops_where_the_wave_fails() -> None:
    with simulator.Debugger(_code(), "faulty", 1, 64, [np.zeros(110, np.float32)]) as debugger:
        stop = debugger.run()
        assert stop is not None
        assert stop.failure is not None
        assert stop.place is not None
        assert "lane 10 accesses 4 bytes" in stop.failure
        assert (stop.place.line, "store_dword" in stop.text) == (LINE["too far"], True)
        np.testing.assert_array_equal(debugger.vector("v0")[:3], [0, 4, 8])
        with pytest.raises(simulator.SimulatorError, match=r"the access is to x\[110\] of 110"):
            debugger.run()


def test_commands(tmp_path: Path) -> None:
    source = tmp_path / "kernel.hip"
    source.write_text(SOURCE)
    commands = f"""
        break {LINE["in the loop"]}
        run
        where
        print v0 u32 0-2,63
        print exec
        lds 0 2x4
        variables 1
        backtrace
        list
        step 2
        next
        nonsense
        print v0 f99
        delete 7
        delete 1
        help
        help nothing
        continue
    """.replace("        ", "")
    launch = ["--kernel", "scale", "--grid", "4", "--block", "128", "--workgroup", "1"]
    arguments = ["--arg", "float32[512]=3", "--arg", "float32[512]", "--arg", "200", "--arg", "1.5"]
    command = ["sim", "debug", str(source), *launch, *arguments]
    done = CliRunner().invoke(app, command, input=commands)
    assert done.exit_code == 0, done.output
    for expected in (
        "(sim) where",
        "sum += kept[(threadIdx.x + k) % 128];",
        "v0 u32 lane  0: ",
        "exec hex: 0xffffffffffffffff",
        "  0: 6 6 6 6\n  1: 6 6 6 6",
        "int n = 200  (as passed)",
        "#0 ",
        "-> 0x",
        "no such command, or several: nonsense",
        "got f99",
        "no breakpoint 7",
        "print REGISTER [TYPE] [LANES]: a register",
        "\nTYPE is hex, f32,",
        "no such command: nothing",
        "the kernel has ended",
    ):
        assert expected in done.output, (expected, done.output)


def test_an_interrupt_while_it_waits_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = _scale()
    debugger.step()
    going = debugger._going
    assert going is not None

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(going.stops, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        debugger.step(50)
    closing = threading.Thread(target=debugger.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()

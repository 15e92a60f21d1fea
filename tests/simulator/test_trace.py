"""``simulator.trace()``: the instructions of one wave, and the registers that it reads and writes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.assembly import program
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator
from deep_gemm_rocm.simulator import WaveTrace

BODY = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_lshl_b32 s7, s2, 9
  v_add_u32_e32 v1, s7, v1
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_add_u32_e32 v2, s2, v2
  s_mov_b32 s6, 0
loop:
  s_add_u32 s6, s6, 1
  s_cmp_lt_u32 s6, 3
  s_cbranch_scc1 loop
  v_cmp_lt_u32_e32 vcc, 9, v0
  s_and_saveexec_b64 s[8:9], vcc
  global_store_dword v1, v2, s[4:5]
"""


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.assemble(program({"kernel": BODY}))


def traced(code: bytes, elements: int = 384, **which: int) -> WaveTrace:
    with simulator.trace(**which) as result:
        simulator.launch(code, "kernel", 3, 128, [np.arange(elements, dtype=np.uint32)])
    (wave,) = result.waves
    assert wave.kernel == "kernel"
    return wave


def test_registers_before_and_after(code: bytes) -> None:
    wave = traced(code, workgroup=2, wave=1)
    assert (wave.workgroup, wave.wave) == ((2, 0, 0), 1)
    by_name = {instruction.text.split()[0]: instruction for instruction in wave.instructions}
    element = np.arange(2 * 128 + 64, 3 * 128)
    load = by_name["global_load_dword"]
    np.testing.assert_array_equal(load.reads["v1"], 4 * element)
    np.testing.assert_array_equal(load.writes["v2"], element)
    add = by_name["v_add_u32"]
    assert add.reads["s2"] == 2
    np.testing.assert_array_equal(add.reads["v2"], element)
    np.testing.assert_array_equal(add.writes["v2"], element + 2)
    assert add.exec == 2**64 - 1
    store = by_name["global_store_dword"]
    np.testing.assert_array_equal(store.reads["v2"], element + 2)
    assert store.writes == {}


def test_masks_and_loops(code: bytes) -> None:
    instructions = traced(code).instructions
    assert [int(i.writes["s6"]) for i in instructions if i.text.startswith("s_add_u32")] == [1, 2, 3]
    assert [i.scc for i in instructions if i.text.startswith("s_cbranch")] == [1, 1, 0]
    mask = 2**64 - 2**10
    (compare,) = (i for i in instructions if i.text.startswith("v_cmp"))
    assert compare.writes == {"vcc_lo": mask & 0xFFFFFFFF, "vcc_hi": mask >> 32}
    (store,) = (i for i in instructions if i.text.startswith("global_store"))
    assert store.exec == mask
    assert instructions[-1].text.startswith("s_endpgm")
    assert instructions[0].offset == 0


def test_a_part_of_the_wave(code: bytes) -> None:
    whole = traced(code).instructions
    part = traced(code, first=3, count=4).instructions
    assert [i.text for i in part] == [i.text for i in whole[3:7]]


def test_a_failing_kernel_is_traced_up_to_its_last_instruction(code: bytes) -> None:
    with pytest.raises(simulator.SimulatorError, match="lane 4"), simulator.trace() as result:
        simulator.launch(code, "kernel", 1, 64, [np.zeros(4, np.uint32)])
    assert result.waves[0].instructions[-1].text.startswith("global_load_dword")


@pytest.mark.parametrize("variable", ["DG_SIM_SANITIZE", "DG_SIM_TIMING"])
def test_beside_sanitizer_and_timing_model(code: bytes, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")
    expected = [i.text for i in traced(code).instructions]
    monkeypatch.setenv(variable, "1")
    assert [i.text for i in traced(code).instructions] == expected


def test_waves_that_do_not_exist(code: bytes) -> None:
    assert traced(code, workgroup=3).instructions == ()
    assert traced(code, wave=2).instructions == ()
    with pytest.raises(ValueError, match="count: expected 1 or more, got 0"), simulator.trace(count=0):
        pass
    with pytest.raises(ValueError, match="workgroup"), simulator.trace(workgroup=-1):
        pass


def test_nothing_is_traced_outside_the_block(code: bytes) -> None:
    simulator.launch(code, "kernel", 3, 128, [np.zeros(384, np.uint32)])
    with simulator.trace() as result:
        pass
    assert result.waves == []

"""``simulator.counters()``, against counts by hand of assembly kernels."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers.assembly import program
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator
from deep_gemm_rocm.simulator import KernelCounters, Traffic

PROLOGUE = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  v_lshlrev_b32_e32 v1, 2, v0
"""
BODIES = {
    "streams": """
  s_lshl_b32 s6, s2, 8
  v_add_u32_e32 v1, s6, v1
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  s_mov_b64 exec, 0xff
  global_store_dword v1, v2, s[4:5]
  v_mov_b32_e32 v3, 1
  global_atomic_add v1, v3, s[4:5]
""",
    "multiplies": "\n".join(
        [f"v_mov_b32_e32 v{i}, 0" for i in range(8, 40)]
        + ["s_nop 4"]
        + ["v_mfma_f32_16x16x32_fp8_fp8 v[8:11], v[12:13], v[14:15], 0"] * 3
        + ["v_mfma_f32_32x32x4_2b_f16 a[0:31], v[12:13], v[14:15], 0", "s_nop 15", "s_nop 3"]
    ),
    "meets_in_banks": """
  v_mov_b32_e32 v2, 0
  ds_write_b32 v1, v2
  s_waitcnt lgkmcnt(0)
  v_and_b32_e32 v3, 7, v0
  v_lshlrev_b32_e32 v3, 7, v3
  s_barrier
  ds_read_b32 v4, v3
  s_waitcnt lgkmcnt(0)
""",
    "branches": """
  s_mov_b32 s6, 0
loop:
  s_add_u32 s6, s6, 1
  s_cmp_lt_u32 s6, 10
  s_cbranch_scc1 loop
  v_exp_f32_e32 v2, 0
""",
    "flat": """
  s_mov_b64 s[8:9], src_shared_base
  v_mov_b32_e32 v2, 0
  ds_write_b32 v1, v2
  s_waitcnt lgkmcnt(0)
  v_mov_b32_e32 v6, s4
  v_mov_b32_e32 v7, s5
  v_mov_b32_e32 v8, s9
  v_cmp_gt_u32_e32 vcc, 16, v0
  s_nop 4
  v_cndmask_b32_e32 v4, v6, v1, vcc
  v_cndmask_b32_e32 v5, v7, v8, vcc
  flat_load_dwordx2 v[10:11], v[4:5]
  s_waitcnt vmcnt(0) lgkmcnt(0)
""",
    "buffers": """
  s_mov_b32 s8, s4
  s_mov_b32 s9, s5
  s_mov_b32 s10, 40
  s_mov_b32 s11, 0x00024000
  buffer_load_dword v2, v1, s[8:11], 0 offen
  s_waitcnt vmcnt(0)
""",
    "loads_to_lds": """
  s_mov_b32 m0, 0
  s_nop 0
  global_load_lds_dword v1, s[4:5]
  s_waitcnt vmcnt(0)
""",
    "faults": "  v_mov_b32_e32 v2, 0\n  global_load_dword v2, v1, s[4:5] offset:4095\n  v_mov_b32_e32 v2, 0\n",
}


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.assemble(program({name: PROLOGUE + body for name, body in BODIES.items()}, lds_bytes=2048))


def counted(code: bytes, name: str, grid: int = 1, block: int = 64) -> KernelCounters:
    with simulator.counters() as result:
        simulator.launch(code, name, grid, block, [np.zeros(256, np.uint32)])
    (found,) = result.kernels
    assert (found.name, found.grid, found.block) == (name, (grid, 1, 1), (block, 1, 1))
    assert found.instructions == sum(found.by_class.values())
    return found


def classes(found: KernelCounters) -> dict[str, int]:
    return {name: count for name, count in found.by_class.items() if count}


def test_memory(code: bytes) -> None:
    found = counted(code, "streams", grid=3)
    assert classes(found) == {
        "scalar": 6,
        "scalar_memory": 3,
        "vector": 9,
        "vector_memory": 9,
        "waitcnt": 6,
        "other": 3,
    }
    assert found.global_bytes == Traffic(read=3 * 256, written=3 * 32, atomic=3 * 32)
    assert found.scalar_bytes == Traffic(read=3 * 8, written=0, atomic=0)
    assert found.vector_instructions == 18
    assert found.lane_utilization == (3 * 64 + 3 * 8) / (6 * 64)


def test_matrix_cores(code: bytes) -> None:
    found = counted(code, "multiplies", grid=2)
    assert found.matrix_instructions == {"v_mfma_f32_16x16x32_fp8_fp8": 6, "v_mfma_f32_32x32x4_2b_f16": 2}
    assert found.matrix_operations == 2 * (6 * 16 * 16 * 32 + 2 * 32 * 32 * 4 * 2)
    assert found.by_class["matrix"] == 8


def test_bank_conflicts_and_barriers(code: bytes) -> None:
    """Each half of the wave accesses eight dwords of one bank, which takes eight clocks instead of one."""
    found = counted(code, "meets_in_banks", block=128)
    assert found.barriers == 2
    assert found.lds_bytes == Traffic(read=512, written=512, atomic=0)
    assert found.lds_clocks == 2 * (2 + 16)
    assert found.lds_conflict_clocks == 2 * 14


def test_loops_and_transcendentals(code: bytes) -> None:
    found = counted(code, "branches")
    assert (found.by_class["branch"], found.by_class["scalar"], found.by_class["transcendental"]) == (10, 21, 1)


def test_flat_accesses_count_where_they_go(code: bytes) -> None:
    found = counted(code, "flat")
    assert found.global_bytes.read == 48 * 8
    assert found.lds_bytes == Traffic(read=16 * 8, written=256, atomic=0)


def test_buffers_count_what_is_in_range(code: bytes) -> None:
    assert counted(code, "buffers").global_bytes.read == 40


def test_loads_to_lds_read_there_and_write_here(code: bytes) -> None:
    found = counted(code, "loads_to_lds")
    assert found.global_bytes.read == 256
    assert found.lds_bytes == Traffic(read=0, written=256, atomic=0)


def test_kernels_that_fail_have_counters_too(code: bytes) -> None:
    with pytest.raises(simulator.SimulatorError, match="faults"), simulator.counters() as result:
        simulator.launch(code, "faults", 1, 64, [np.zeros(16, np.uint32)])
    assert result.kernels[0].instructions == 5


def test_occupancy(code: bytes) -> None:
    """The kernels have 64 VGPRs, 64 AccVGPRs and 2 KiB of LDS."""
    occupancy = counted(code, "branches", block=256).occupancy
    assert (occupancy.registers, occupancy.lds_bytes, occupancy.waves_per_workgroup) == (128, 2048, 4)
    assert (occupancy.workgroups_by_registers, occupancy.workgroups_by_wave_slots) == (4, 8)
    assert occupancy.workgroups_by_lds == 32
    assert (occupancy.workgroups_per_cu, occupancy.waves_per_cu, occupancy.limited_by) == (4, 16, "registers")
    with simulator.counters() as result:
        simulator.launch(code, "branches", 1, 256, [np.zeros(1, np.uint32)], dynamic_lds=30 << 10)
    assert result.kernels[0].occupancy.limited_by == "LDS"
    assert result.kernels[0].occupancy.workgroups_per_cu == 2


def test_nobody_counts_outside_the_block(code: bytes) -> None:
    simulator.launch(code, "branches", 1, 64, [np.zeros(1, np.uint32)])
    with simulator.counters() as result:
        pass
    assert result.kernels == []


@pytest.mark.parametrize("variable", ["DG_SIM_SANITIZE", "DG_SIM_TIMING"])
def test_counters_beside_sanitizer_and_timing_model(
    code: bytes, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")
    expected = counted(code, "meets_in_banks", grid=5, block=128)
    monkeypatch.setenv(variable, "1")
    assert counted(code, "meets_in_banks", grid=5, block=128) == expected


def test_launches_of_several_threads(code: bytes) -> None:
    def work() -> None:
        for _ in range(20):
            simulator.launch(code, "branches", 4, 64, [np.zeros(1, np.uint32)])

    expected = counted(code, "branches", grid=4)
    with simulator.counters() as result:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert result.kernels == [expected] * 80

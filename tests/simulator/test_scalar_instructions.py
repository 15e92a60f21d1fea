"""Scalar arithmetic, and scalar memory and control flow beyond what compilers emit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.machine import Machine
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator

WAIT = "\n  s_waitcnt lgkmcnt(0)\n"
U32, U64 = 2**32, 2**64


def signed(value: int, bits: int) -> int:
    return value - 2**bits if value >> (bits - 1) else value


# The value in memory after each atomic.
ATOMICS = {
    "swap": lambda old, data, bits: data,
    "add": lambda old, data, bits: old + data,
    "sub": lambda old, data, bits: old - data,
    "smin": lambda old, data, bits: min(signed(old, bits), signed(data, bits)),
    "umin": lambda old, data, bits: min(old, data),
    "smax": lambda old, data, bits: max(signed(old, bits), signed(data, bits)),
    "umax": lambda old, data, bits: max(old, data),
    "and": lambda old, data, bits: old & data,
    "or": lambda old, data, bits: old | data,
    "xor": lambda old, data, bits: old ^ data,
    "inc": lambda old, data, bits: 0 if old >= data else old + 1,
    "dec": lambda old, data, bits: data if old == 0 or old > data else old - 1,
}
SHOW = "".join(f"  v_mov_b32_e32 v{20 + i}, s{16 + i}\n" for i in range(8))


def atomic_body(name: str, wide: bool, buffer: bool) -> str:
    suffix, data = ("_x2", "s[16:17]") if wide else ("", "s16")
    if name == "cmpswap":
        data = "s[16:19]" if wide else "s[16:17]"
    place = "s_buffer_atomic", "s[24:27]"
    if not buffer:
        place = "s_atomic", "s[6:7]"
    return f"""
  s_mov_b64 s[24:25], s[6:7]
  s_mov_b32 s26, 64
  s_mov_b32 s27, 0x20000
  {place[0]}_{name}{suffix} {data}, {place[1]}, 0x10 glc
  {WAIT}{SHOW}"""


FORK = """
  v_cmp_gt_u32_e32 vcc, 10, v0   ; few lanes pass
  s_mov_b32 s30, 0
  v_mov_b32_e32 v20, 0
  s_getreg_b32 s31, hwreg(HW_REG_MODE, 29, 3)
  s_cbranch_i_fork vcc, 1f
  v_add_u32_e32 v20, 100, v20
  s_add_u32 s30, s30, 1
  s_branch 2f
1:
  v_add_u32_e32 v20, 200, v20
  s_add_u32 s30, s30, 1
2:
  s_cbranch_join s31
  s_mov_b64 exec, -1
  v_add_u32_e32 v20, 1, v20
  v_mov_b32_e32 v21, s30
"""
FORK_BY_ADDRESS = FORK.replace("s_cbranch_i_fork vcc, 1f", "s_cbranch_g_fork vcc, s[28:29]").replace(
    "  s_mov_b32 s30, 0\n",
    "  s_mov_b32 s30, 0\n  s_getpc_b64 s[28:29]\n3:\n  s_add_u32 s28, s28, 1f-3b\n  s_addc_u32 s29, s29, 0\n",
)
SKIP = """
  s_setvskip 1, 0
  v_mov_b32_e32 v20, 1
  ds_write_b32 v1, v10
  global_store_dword v1, v10, s[6:7]
  s_setvskip 1, 3
  v_mov_b32_e32 v21, 2
"""
STORES = f"""
  s_mov_b64 s[24:25], s[6:7]
  s_mov_b32 s26, 44
  s_mov_b32 s27, 0x20000
  s_mov_b32 m0, 4
  s_buffer_store_dword s16, s[24:27], m0
  s_buffer_store_dwordx2 s[16:17], s[24:27], 0x8
  s_buffer_store_dwordx4 s[16:19], s[24:27], 0x20  ; one dword beyond the end is dropped
  s_mov_b32 m0, 1
  s_scratch_store_dwordx2 s[18:19], s[6:7], m0
  s_scratch_store_dword s20, s[6:7], 0x50
  s_dcache_wb{WAIT}
  s_scratch_load_dwordx2 s[16:17], s[6:7], m0{WAIT}{SHOW}"""
KILL = "\n  s_setkill 0\n  v_mov_b32_e32 v20, 1\n"
GETREG = """
  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 0x5
  s_nop 1
  s_getreg_b32 s24, hwreg(HW_REG_MODE, 0, 4)
  s_mov_b32 s25, 0x2
  s_setreg_b32 hwreg(HW_REG_MODE, 2, 2), s25
  s_nop 1
  s_getreg_b32 s26, hwreg(HW_REG_MODE, 0, 8)
  v_mov_b32_e32 v20, s24
  v_mov_b32_e32 v21, s26
"""


def i32(value: int) -> int:
    return signed(value % U32, 32)


# Result and SCC; instructions that don't write SCC leave it 1.
INTEGERS = {
    "s_add_u32": lambda a, b: (a + b, a + b >= U32),
    "s_sub_u32": lambda a, b: (a - b, b > a),
    "s_add_i32": lambda a, b: (a + b, i32(a + b) != i32(a) + i32(b)),
    "s_sub_i32": lambda a, b: (a - b, i32(a - b) != i32(a) - i32(b)),
    "s_addc_u32": lambda a, b: (a + b + 1, a + b + 1 >= U32),
    "s_subb_u32": lambda a, b: (a - b - 1, b + 1 > a),
    "s_min_i32": lambda a, b: (min(i32(a), i32(b)), i32(a) < i32(b)),
    "s_max_i32": lambda a, b: (max(i32(a), i32(b)), i32(a) > i32(b)),
    "s_min_u32": lambda a, b: (min(a, b), a < b),
    "s_max_u32": lambda a, b: (max(a, b), a > b),
    "s_andn2_b32": lambda a, b: (a & ~b, a & ~b != 0),
    "s_nor_b32": lambda a, b: (~(a | b), (a | b) != U32 - 1),
    "s_lshl_b32": lambda a, b: (a << b % 32, (a << b % 32) % U32 != 0),
    "s_lshr_b32": lambda a, b: (a >> b % 32, a >> b % 32 != 0),
    "s_ashr_i32": lambda a, b: (i32(a) >> b % 32, i32(a) >> b % 32 != 0),
    "s_bfm_b32": lambda a, b: ((1 << a % 32) - 1 << b % 32, 1),
    "s_mul_i32": lambda a, b: (a * b, 1),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, 1),
    "s_mul_hi_i32": lambda a, b: (i32(a) * i32(b) >> 32, 1),
    "s_absdiff_i32": lambda a, b: (abs(i32(a - b)), a != b),
    "s_lshl1_add_u32": lambda a, b: (2 * a + b, 2 * a + b >= U32),
    "s_pack_lh_b32_b16": lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, 1),
}


# The new EXEC, from the source and the old EXEC.
SAVE_EXEC = {
    "and": lambda s, exec_: s & exec_,
    "or": lambda s, exec_: s | exec_,
    "xor": lambda s, exec_: s ^ exec_,
    "andn2": lambda s, exec_: s & ~exec_,
    "orn2": lambda s, exec_: s | ~exec_,
    "nand": lambda s, exec_: ~(s & exec_),
    "nor": lambda s, exec_: ~(s | exec_),
    "xnor": lambda s, exec_: ~(s ^ exec_),
    "andn1": lambda s, exec_: ~s & exec_,
    "orn1": lambda s, exec_: ~s | exec_,
}
SAVED = "".join(f"  v_mov_b32_e32 v{20 + i}, s{24 + i}\n" for i in range(5))


def save_exec_body(name: str) -> str:
    return f"""
  s_mov_b64 exec, s[18:19]
  s_{name}_saveexec_b64 s[24:25], s[16:17]
  s_mov_b64 s[26:27], exec
  s_cselect_b32 s28, 1, 0
  s_mov_b64 exec, -1
{SAVED}"""


def integer_body(name: str) -> str:
    return f"""
  s_cmp_eq_u32 s16, s16
  {name} s24, s16, s17
  s_cselect_b32 s25, 1, 0
  v_mov_b32_e32 v20, s24
  v_mov_b32_e32 v21, s25
"""


CASES = [(name, wide, buffer) for name in [*ATOMICS, "cmpswap"] for wide in (False, True) for buffer in (False, True)]
BODIES = [
    FORK,
    FORK_BY_ADDRESS,
    SKIP,
    STORES,
    KILL,
    GETREG,
    *map(integer_body, INTEGERS),
    *map(save_exec_body, SAVE_EXEC),
    *(atomic_body(*case) for case in CASES),
]


@pytest.fixture(scope="module")
def machine(compiler: Compiler) -> Machine:
    return Machine(compiler, BODIES)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(machine: Machine, name: str) -> None:
    values = 0, 1, 33, 0x7FFFFFFF, 0x80000001, 0xFFFFFFFF
    for a, b in itertools.product(values, values):
        outputs = machine.run(integer_body(name), scalars=[a, b])
        result, scc = INTEGERS[name](a, b)
        assert (outputs[0, 0], outputs[1, 0]) == (result % U32, scc), (a, b)


@pytest.mark.parametrize("name", SAVE_EXEC)
def test_saved_exec(machine: Machine, name: str) -> None:
    for source, before in ((0x00FF0F0F33335555, 0x0FF0FFFF0000F00F), (0, U64 - 1), (U64 - 1, 0), (7, 7)):
        scalars = [source % U32, source >> 32, before % U32, before >> 32]
        outputs = [int(output) for output in machine.run(save_exec_body(name), scalars=scalars)[:, 0]]
        after = SAVE_EXEC[name](source, before) % U64
        assert outputs[:5] == [before % U32, before >> 32, after % U32, after >> 32, after != 0]


@pytest.mark.parametrize(("name", "wide", "buffer"), CASES)
def test_atomics(machine: Machine, name: str, wide: bool, buffer: bool) -> None:
    bits = 64 if wide else 32
    rng = np.random.default_rng(5)
    values = [*(int(x) << 32 | 7 for x in rng.integers(0, U32, 2)), 0, 5, 2 ** (bits - 1)]
    for old in (value % 2**bits for value in values):
        for data in (value % 2**bits for value in values):
            memory = np.zeros(16, np.uint32)
            memory[4:6] = old % U32, (old >> 32) if wide else 0xABC
            compare = old if data & 1 else old ^ 1
            scalars = [data % U32, data >> 32, compare % U32, compare >> 32] if wide else [data, compare]
            outputs = machine.run(atomic_body(name, wide, buffer), scalars=scalars, memory=memory)
            new = ATOMICS[name](old, data, bits) if name != "cmpswap" else data if compare == old else old
            got, returned = int(memory[4]), int(outputs[0, 0])
            if wide:
                got, returned = got | int(memory[5]) << 32, returned | int(outputs[1, 0]) << 32
            assert (got, returned) == (new % 2**bits, old)


def test_buffer_and_scratch_stores(machine: Machine) -> None:
    memory = np.zeros(32, np.uint32)
    outputs = machine.run(STORES, scalars=range(1, 9), memory=memory)
    expected = np.zeros(32, np.uint32)
    expected[1], expected[2:4], expected[8:11] = 1, (1, 2), (1, 2, 3)
    expected[16:18], expected[20] = (3, 4), 5
    np.testing.assert_array_equal(memory, expected)
    np.testing.assert_array_equal(outputs[:2, 0], [3, 4])


@pytest.mark.parametrize("body", [FORK, FORK_BY_ADDRESS], ids=["by offset", "by address"])
def test_forks_run_both_ways(machine: Machine, body: str) -> None:
    outputs = machine.run(body)
    np.testing.assert_array_equal(outputs[0], np.where(np.arange(64) < 10, 201, 101))
    assert (outputs[1] == 2).all()


def test_skipped_vector_instructions(machine: Machine) -> None:
    memory = np.full(64, 9, np.uint32)
    outputs = machine.run(SKIP, np.arange(64, dtype=np.uint32), memory=memory)
    assert (memory == 9).all()
    assert (outputs[0] != 1).all()
    assert (outputs[1] == 2).all()


def test_killed_and_halted_waves(machine: Machine, compiler: Compiler) -> None:
    assert (machine.run(KILL)[0] == 1).all()
    bad = Machine(
        compiler, ["\n  s_sethalt 1\n", "\n  s_sendmsghalt 1\n", "\n  s_setkill 1\n  s_trap 2\n", "\n  s_trap 2\n"]
    )
    for body in ("\n  s_sethalt 1\n", "\n  s_sendmsghalt 1\n"):
        with pytest.raises(simulator.SimulatorError, match="halts for ever"):
            bad.run(body)
    with pytest.raises(simulator.SimulatorError, match="s_trap 2"):
        bad.run("\n  s_trap 2\n")
    bad.run("\n  s_setkill 1\n  s_trap 2\n")


def test_mode_register_fields(machine: Machine) -> None:
    outputs = machine.run(GETREG)
    assert outputs[0, 0] == 5
    assert outputs[1, 0] & 15 == 0b1001

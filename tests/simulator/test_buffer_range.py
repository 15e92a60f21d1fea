"""Range checks of buffers: elements out of range read as zeros and are not written. The rules are those that the
authors of AMD's emulator found on the chips (ROCm/rocm-systems, pull request 10928)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.machine import LANES, Machine
from helpers.simulated_hip import Compiler

DWORDS = 512  # size of the memory; the resource covers a part of it
RAW = 0x20000  # word 3: 32-bit data
ADD_TID = RAW | 1 << 23
OFFSETS = (0, 8)  # offset field of the instruction

# s16: stride bits of word 1; s17: num_records; s18: word 3; s19: SOFFSET.
RESOURCE = """
  s_mov_b64 s[24:25], s[6:7]
  s_or_b32 s25, s25, s16
  s_mov_b32 s26, s17
  s_mov_b32 s27, s18
  s_nop 4
"""
WAIT = "\n  s_waitcnt vmcnt(0)\n"
TO_LDS = """
  s_mov_b32 m0, 0
  s_nop 1
  buffer_load_dword v10, s[24:27], s19 offen offset:{imm} lds
  s_waitcnt vmcnt(0)
  ds_read_b32 v20, v1 offset:{imm}
  s_waitcnt lgkmcnt(0)
"""


def registers(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def suffix(dwords: int) -> str:
    return "" if dwords == 1 else f"x{dwords}"


def load(dwords: int, imm: int, mode: str = "offen") -> str:
    address = "v[10:11]" if mode == "idxen offen" else "off" if mode == "" else "v10"
    name = f"buffer_load_dword{suffix(dwords)} {registers(20, dwords)}, {address}"
    return f"{RESOURCE}  {name}, s[24:27], s19 {mode} offset:{imm}{WAIT}"


def store(dwords: int, imm: int) -> str:
    name = f"buffer_store_dword{suffix(dwords)} {registers(12, dwords)}, v10"
    return f"{RESOURCE}  {name}, s[24:27], s19 offen offset:{imm}{WAIT}"


LOADS = {(dwords, imm): load(dwords, imm) for dwords in (1, 2, 3, 4) for imm in OFFSETS}
STORES = {(dwords, imm): store(dwords, imm) for dwords in (1, 2, 3, 4) for imm in OFFSETS}
LDS_LOADS = {imm: RESOURCE + TO_LDS.format(imm=imm) for imm in OFFSETS}
NARROW = f"{RESOURCE}  buffer_load_ushort v20, v10, s[24:27], s19 offen{WAIT}"
ATOMIC = f"{RESOURCE}  v_mov_b32_e32 v12, 1\n  buffer_atomic_add v12, v10, s[24:27], s19 offen{WAIT}"
RETURNING = ATOMIC.replace("offen", "offen sc0").replace(WAIT, f"{WAIT}  v_mov_b32_e32 v20, v12\n")
INDEXED = load(2, 8, "idxen offen")
LANES_AS_INDEX = load(1, 0, "")
BODIES = [*LOADS.values(), *STORES.values(), *LDS_LOADS.values(), NARROW, ATOMIC, RETURNING, INDEXED, LANES_AS_INDEX]

# Bytes of the buffer, and SOFFSET, so that all lanes are in range, all out of range, or some dwords are out of range.
SHAPES = [(1024, 0), (1024, 256), (1024, 700), (1024, 1024), (1024, 1 << 31), (1024, 2**32 - 4), (1022, 10), (0, 0),
          (3, 0)]  # fmt: skip


@pytest.fixture(scope="module")
def machine(compiler: Compiler) -> Machine:
    return Machine(compiler, BODIES)


@pytest.fixture
def memory() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 2**32, DWORDS, np.uint32)


def offsets(kind: str) -> np.ndarray:
    lanes = np.arange(LANES, dtype=np.uint32)
    if kind == "rows":
        return lanes * 16
    wild = np.array([2**32 - 4, 2**32 - 8, 2**32 - 12, 1 << 31, 1020, 1016, 1012, 1008], np.uint32)
    return np.where(lanes % 3 == 0, lanes * 4, wild[lanes % len(wild)])


def places(offset: np.ndarray, imm: int, soffset: int, records: int, dwords: int) -> tuple[np.ndarray, np.ndarray]:
    """[lane, dword]: the bytes from the base, and whether they are in range. Only the sum of the lane's offset and the
    instruction's wraps around."""
    begin = (offset + np.uint32(imm)).astype(np.uint64) + np.uint64(soffset)
    place = begin[:, None] + 4 * np.arange(dwords, dtype=np.uint64)
    return place, place + np.uint64(4) <= np.uint64(records)


@pytest.mark.parametrize("kind", ["rows", "wild"])
@pytest.mark.parametrize(("records", "soffset"), SHAPES)
def test_loads(machine: Machine, memory: np.ndarray, records: int, soffset: int, kind: str) -> None:
    offset = offsets(kind)
    for (dwords, imm), body in LOADS.items():
        place, inside = places(offset, imm, soffset, records, dwords)
        bytes_ = memory.view(np.uint8)
        got = machine.run(body, offset, scalars=[0, records, RAW, soffset], memory=memory.copy())[:dwords].T
        for lane, i in itertools.product(range(LANES), range(dwords)):
            at = int(place[lane, i])
            expected = bytes_[at : at + 4].view(np.uint32)[0] if inside[lane, i] else 0
            assert got[lane, i] == expected, (dwords, imm, lane, i)


@pytest.mark.parametrize(("records", "soffset"), SHAPES)
def test_stores(machine: Machine, memory: np.ndarray, records: int, soffset: int) -> None:
    offset = np.arange(LANES, dtype=np.uint32) * 16
    for (dwords, imm), body in STORES.items():
        place, inside = places(offset, imm, soffset, records, dwords)
        data = np.random.default_rng(1).integers(0, 2**32, (dwords, LANES), np.uint32)
        expected, got = memory.copy(), memory.copy()
        for lane, i in zip(*np.nonzero(inside), strict=True):
            at = int(place[lane, i])
            expected.view(np.uint8)[at : at + 4] = data[i, lane : lane + 1].view(np.uint8)
        nothing = np.zeros(LANES, np.uint32)
        machine.run(body, offset, nothing, *data, scalars=[0, records, RAW, soffset], memory=got)
        np.testing.assert_array_equal(got, expected, f"{dwords} dwords at {imm}")


@pytest.mark.parametrize("kind", ["rows", "wild"])
@pytest.mark.parametrize(("records", "soffset"), SHAPES)
def test_loads_to_lds_write_zeros(machine: Machine, memory: np.ndarray, records: int, soffset: int, kind: str) -> None:
    offset = offsets(kind)
    for imm, body in LDS_LOADS.items():
        place, inside = places(offset, imm, soffset, records, 1)
        got = machine.run(body, offset, scalars=[0, records, RAW, soffset], memory=memory.copy())[0]
        for lane in range(LANES):
            at = int(place[lane, 0])
            expected = memory.view(np.uint8)[at : at + 4].view(np.uint32)[0] if inside[lane, 0] else 0
            assert got[lane] == expected, (imm, lane)


@pytest.mark.parametrize(("records", "soffset"), SHAPES)
def test_narrow_accesses_and_atomics(machine: Machine, memory: np.ndarray, records: int, soffset: int) -> None:
    offset = np.arange(LANES, dtype=np.uint32) * 16
    scalars = [0, records, RAW, soffset]
    got = machine.run(NARROW, offset, scalars=scalars, memory=memory.copy())[0]
    begin = offset.astype(np.uint64) + np.uint64(soffset)
    for lane in range(LANES):
        at = int(begin[lane])
        inside = at + 2 <= records
        assert got[lane] == (memory.view(np.uint8)[at : at + 2].view(np.uint16)[0] if inside else 0)
    if soffset % 4 == 0:
        counted = memory.copy()
        machine.run(ATOMIC, offset, scalars=scalars, memory=counted)
        expected = memory.copy()
        for at in map(int, begin[begin + np.uint64(4) <= np.uint64(records)]):
            expected[at // 4] += np.uint32(1)
        np.testing.assert_array_equal(counted, expected)
        got = machine.run(RETURNING, offset, scalars=scalars, memory=memory.copy())[0]
        for lane, at in enumerate(map(int, begin)):
            assert got[lane] == (memory[at // 4] if at + 4 <= records else 0)


def test_only_an_index_is_checked_as_one(machine: Machine, memory: np.ndarray) -> None:
    stride, records = 16, 40
    index, offset = np.arange(LANES, dtype=np.uint32), np.full(LANES, 4, np.uint32)
    got = machine.run(INDEXED, index, offset, scalars=[stride << 16, records, RAW, 32], memory=memory)
    rows = memory[(np.arange(records) * stride + 4 + 8 + 32) // 4]
    np.testing.assert_array_equal(got[0, :records], rows)
    assert not got[:2, records:].any()
    # With a stride but no index, num_records counts bytes.
    got = machine.run(LOADS[1, 0], index * 4, scalars=[stride << 16, records, RAW, 8], memory=memory)[0]
    np.testing.assert_array_equal(got, np.where(index < (records - 8) // 4, memory[2 : 2 + LANES], 0))


def test_lanes_as_index_are_not_checked(machine: Machine, memory: np.ndarray) -> None:
    got = machine.run(LANES_AS_INDEX, scalars=[4 << 16, 0, ADD_TID & ~0x78000, 64], memory=memory)[0]
    np.testing.assert_array_equal(got, memory[16 : 16 + LANES])

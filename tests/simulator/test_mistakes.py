"""Typical mistakes in compiled kernels: the sanitizer reports each of them, and nothing in the correct kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from ctypes import c_int
from pathlib import Path

import numpy as np
import pytest
from helpers.simulated_hip import HOST_TO_DEVICE, Compiler, Hip, HipCallError

PROGRAM = Path(__file__).with_name("programs") / "mistakes.hip"
BLOCK, N = 256, 1000
RACE = "race: lane .* of LDS, which wave .* has (read|written) \\(offset 0x"
RACE_OF_GROUPS = "race between workgroups: lane"
UNWRITTEN = "(was|were) never written"
MISTAKES = {
    "count_in_lds": RACE,
    "reverse_by_flat_addresses": RACE,
    "sum_of_tiles": RACE,
    "sum_as_a_tree": RACE,
    "copy": "lane 40 accesses 4 bytes .* outside the memory .* workgroup \\(3, 0, 0\\)",
    "neighbours": "lane 63 accesses 4 bytes .*0x400",
    "sums_of_others": UNWRITTEN,
    "shuffle": UNWRITTEN,
    "sum_of_some": UNWRITTEN,
    "write_some": UNWRITTEN,
    "difference": RACE_OF_GROUPS,
    "write_tiles": RACE_OF_GROUPS,
    "rounds": "a barrier that not all waves reach",
    "wait_for_flag": "without an end",
    "sum_in_a_loop": "is used before an s_waitcnt for vmcnt",
}
GROUPS = {"copy": 4, "difference": 3, "write_tiles": 3}  # workgroups; the other kernels have one


@pytest.fixture(scope="module", params=["-O0", "-O3"])
def module(hip: Hip, compiler: Compiler, request: pytest.FixtureRequest):
    return hip.load(compiler.device_code_object(PROGRAM, request.param))


@pytest.fixture
def memory(hip: Hip) -> Iterator[tuple[int, int]]:
    """x with 2048 numbers, of which the first 1024 are written, and y with N."""
    x, y = hip.malloc(4 * 2048), hip.upload(np.zeros(N, np.int32))
    hip.hipMemcpy(x, np.arange(1024, dtype=np.int32), 4 * 1024, HOST_TO_DEVICE)
    yield x, y
    hip.hipFree(x)
    hip.hipFree(y)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_and_what_was_meant_is_clean(hip: Hip, module, memory, monkeypatch, mistake: str) -> None:
    monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "20000")
    bug, fix = (hip.function(module, f"{mistake}_{kind}") for kind in ("bug", "fix"))
    launch = functools.partial(hip.launch, dynamic_lds=BLOCK * 4)
    for seed in "012":
        monkeypatch.setenv("DG_SIM_SEED", seed)
        launch(fix, GROUPS.get(mistake, 1), BLOCK, *memory, c_int(N))
        with pytest.raises(HipCallError, match=f"kernel {mistake}_bug: .*{MISTAKES[mistake]}"):
            launch(bug, GROUPS.get(mistake, 1), BLOCK, *memory, c_int(N))

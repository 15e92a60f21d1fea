"""Thousands of mixed calls from threads and processes: results stay exact, memory and file descriptors don't leak."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.forked import in_children

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import gemm_problem, grouped_weights

CALLS, THREADS, PROCESSES = 600, 4, 3
MIB = 2**20


def dense() -> torch.Tensor:
    return dg.gemm_fp8(*gemm_problem(20, 96, 256))


def wide() -> torch.Tensor:
    d = torch.empty(9, 48)
    dg.bf16_gemm_nt(torch.ones(9, 64).bfloat16(), torch.ones(48, 64).bfloat16(), d)
    return d


def masked() -> torch.Tensor:
    (a, sfa), b = gemm_problem(2 * 16, 64, 128)[0], grouped_weights(2, 64, 128)
    d, counts = torch.zeros(2, 16, 64, dtype=torch.bfloat16), torch.tensor([3, 16], dtype=torch.int32)
    dg.m_grouped_fp8_gemm_nt_masked((a.view(2, 16, 128), sfa.view(2, 16, 1)), b, d, counts, 8)
    return d


def attention() -> torch.Tensor:
    q, k = (torch.ones(1, tokens, 2, 64).bfloat16() for tokens in (5, 40))
    return dg.flash_attention(q, k, k, causal=True)


def refused() -> torch.Tensor:
    with pytest.raises(ValueError, match="K must be a multiple"):
        dg.warmup_kernels("fp8_gemm_nt", [1], 64, 100)
    return torch.zeros(1)


KINDS: tuple[Callable[[], torch.Tensor], ...] = (dense, wide, masked, attention, refused)


def mixed_calls(seed: int, count: int, expected: list[torch.Tensor]) -> None:
    generator = random.Random(seed)
    for _ in range(count):
        which = generator.randrange(len(KINDS))
        assert torch.equal(KINDS[which](), expected[which])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def soak(calls: int) -> None:
    expected = [kind() for kind in KINDS]
    with ThreadPoolExecutor(THREADS) as threads:

        def round_of_calls() -> None:
            list(threads.map(lambda seed: mixed_calls(seed, calls, expected), range(THREADS)))

        round_of_calls()  # fills the allocators' and threads' pools
        memory, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
        round_of_calls()
    grown = resident_bytes() - memory
    assert grown < 16 * MIB, f"{grown / MIB:.1f} MiB more after {calls * THREADS} calls"
    assert len(os.listdir("/proc/self/fd")) <= files


def test_threads_mix_calls():
    soak(15)


@pytest.mark.slow
def test_threads_mix_thousands_of_calls():
    soak(CALLS)


def soak_of_a_worker(calls: int) -> None:
    torch.set_num_threads(1)  # as below
    soak(calls)


@pytest.mark.slow
def test_processes_mix_thousands_of_calls():
    in_children(PROCESSES, soak_of_a_worker, CALLS // PROCESSES)


def calls_of_a_worker(expected: list[torch.Tensor]) -> None:
    torch.set_num_threads(1)  # torch's own pool of threads hangs in a forked child, with or without this package
    mixed_calls(1, 10, expected)


def test_forked_workers_mix_calls():
    """The parent has launched before, so it has threads of the simulator, which its children lack."""
    expected = [kind() for kind in KINDS]
    in_children(PROCESSES, calls_of_a_worker, expected)
    mixed_calls(2, 5, expected)

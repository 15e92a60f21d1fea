"""The order in which workgroups take tiles."""

from __future__ import annotations

import ctypes

import pytest
from host_functions import compile_functions
from hypothesis import example, given
from hypothesis import strategies as st

XCDS = 8

SOURCE = """
#include "deep_gemm_rocm/tile_scheduler.h"
extern "C" {
int contiguous(int workgroup, int tiles, int chunk) { return deep_gemm_rocm::xcd_contiguous(workgroup, tiles, chunk); }
void tile(int workgroup, int tiles_m, int tiles_n, int chunk, int group_m, int* m, int* n) {
  const auto tile = deep_gemm_rocm::grouped_tile(
      deep_gemm_rocm::xcd_contiguous(workgroup, tiles_m * tiles_n, chunk), tiles_m, tiles_n, group_m,
      deep_gemm_rocm::reciprocal(group_m * tiles_n));
  *m = tile.m, *n = tile.n;
}
unsigned quotient(unsigned n, unsigned divisor) {
  return deep_gemm_rocm::quotient(n, divisor, deep_gemm_rocm::reciprocal(divisor));
}
}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    return compile_functions(tmp_path_factory.mktemp("tile_scheduler"), SOURCE)


def tile(functions, *arguments: int) -> tuple[int, int]:
    m, n = ctypes.c_int(), ctypes.c_int()
    functions.tile(*arguments, ctypes.byref(m), ctypes.byref(n))
    return m.value, n.value


@given(tiles_m=st.integers(1, 40), tiles_n=st.integers(1, 40), chunk=st.integers(1, 40), group_m=st.integers(1, 10))
def test_every_tile_is_taken_once(functions, tiles_m, tiles_n, chunk, group_m):
    taken = [tile(functions, workgroup, tiles_m, tiles_n, chunk, group_m) for workgroup in range(tiles_m * tiles_n)]
    assert sorted(taken) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


@given(n=st.integers(0, 2**32 - 1), divisor=st.integers(1, 2**32 - 1), multiple=st.integers(0, 2**32))
@example(n=2**32 - 1, divisor=1, multiple=0)
@example(n=2**32 - 1, divisor=2**31 + 1, multiple=0)
def test_quotient(functions, n, divisor, multiple):
    assert functions.quotient(n, divisor) & 0xFFFFFFFF == n // divisor
    beside = (divisor * multiple - 1) % 2**32
    assert functions.quotient(beside, divisor) & 0xFFFFFFFF == beside // divisor


@given(tiles=st.integers(1, 3000), chunk=st.integers(1, 40))
def test_an_xcd_takes_runs_of_neighbours(functions, tiles, chunk):
    """Hardware deals workgroups round-robin; of each window, an XCD then holds one run, and all runs are as long."""
    window = XCDS * chunk
    order = [functions.contiguous(workgroup, tiles, chunk) for workgroup in range(tiles)]
    for first in range(0, tiles, window):
        runs = [order[first:][:window][xcd::XCDS] for xcd in range(XCDS)]
        assert all(run == list(range(run[0], run[0] + len(run))) for run in runs if run)
        assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_tiles_go_down_a_band_first(functions):
    taken = [tile(functions, workgroup, 3, 4, 1, 2) for workgroup in range(12)]
    # Windows of 8 tiles with chunks of one leave the order as it is.
    assert taken == [
        *((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)),
        *((2, 0), (2, 1), (2, 2), (2, 3)),
    ]

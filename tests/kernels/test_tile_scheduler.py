"""The order in which workgroups take tiles."""

from __future__ import annotations

import ctypes

import pytest
import torch
from helpers.host_functions import compile_functions
from hypothesis import example, given
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.runtime import hip

XCDS = (1, 2, 3, 4, 6, 8)  # MI300X, MI300A and MI308X, whole and in partitions

SOURCE = """
#include "deep_gemm_rocm/tiles/tile_scheduler.h"
template <int kXcds = 8>
int contiguous_on(int xcds, int workgroup, int tiles, int chunk) {
  if constexpr (kXcds > 1) {
    if (xcds < kXcds) return contiguous_on<kXcds - 1>(xcds, workgroup, tiles, chunk);
  }
  return deep_gemm_rocm::xcd_contiguous<kXcds>(workgroup, tiles, chunk);
}
extern "C" {
int contiguous(int xcds, int workgroup, int tiles, int chunk) { return contiguous_on(xcds, workgroup, tiles, chunk); }
void tile(int xcds, int workgroup, int tiles_m, int tiles_n, int chunk, int group_m, int* m, int* n) {
  const auto tile = deep_gemm_rocm::grouped_tile(contiguous_on(xcds, workgroup, tiles_m * tiles_n, chunk), tiles_m,
                                                 tiles_n, group_m, deep_gemm_rocm::reciprocal(group_m * tiles_n));
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


@given(
    xcds=st.sampled_from(XCDS),
    tiles_m=st.integers(1, 40),
    tiles_n=st.integers(1, 40),
    chunk=st.integers(1, 40),
    group_m=st.integers(1, 10),
)
def test_every_tile_is_taken_once(functions, xcds, tiles_m, tiles_n, chunk, group_m):
    workgroups = range(tiles_m * tiles_n)
    taken = [tile(functions, xcds, workgroup, tiles_m, tiles_n, chunk, group_m) for workgroup in workgroups]
    assert sorted(taken) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


@given(n=st.integers(0, 2**32 - 1), divisor=st.integers(1, 2**32 - 1), multiple=st.integers(0, 2**32))
@example(n=2**32 - 1, divisor=1, multiple=0)
@example(n=2**32 - 1, divisor=2**31 + 1, multiple=0)
def test_quotient(functions, n, divisor, multiple):
    assert functions.quotient(n, divisor) & 0xFFFFFFFF == n // divisor
    beside = (divisor * multiple - 1) % 2**32
    assert functions.quotient(beside, divisor) & 0xFFFFFFFF == beside // divisor


@given(xcds=st.sampled_from(XCDS), tiles=st.integers(1, 3000), chunk=st.integers(1, 40))
def test_an_xcd_takes_runs_of_neighbours(functions, xcds, tiles, chunk):
    """XCDs get workgroups round-robin. In each window of tiles, every XCD then has one run of the same length."""
    window = xcds * chunk
    order = [functions.contiguous(xcds, workgroup, tiles, chunk) for workgroup in range(tiles)]
    for first in range(0, tiles, window):
        runs = [order[first:][:window][xcd::xcds] for xcd in range(xcds)]
        assert all(run == list(range(run[0], run[0] + len(run))) for run in runs if run)
        assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_tiles_go_down_a_band_first(functions):
    taken = [tile(functions, 8, workgroup, 3, 4, 1, 2) for workgroup in range(12)]
    # Windows of 8 tiles with chunks of one tile keep the order.
    assert taken == [
        *((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)),
        *((2, 0), (2, 1), (2, 2), (2, 3)),
    ]


@pytest.fixture
def chip_of_six(monkeypatch):
    """Compiles kernels as for MI300A. Returns a list of their sources."""
    source_of, sources = jit.source_of, []
    monkeypatch.setitem(vars(hip.runtime()), "num_xcds", 6)
    monkeypatch.setattr(jit.kernels, "source_of", lambda *given: sources.append(source_of(*given)) or sources[-1])
    jit.forget()
    yield sources
    jit.forget()


def test_kernels_are_compiled_for_the_devices_number_of_xcds(chip_of_six):
    """They compute the same even on a device with another number of XCDs."""
    a, b = (torch.randn(rows, 64).bfloat16() for rows in (600, 160))
    d = torch.full((600, 160), torch.nan, dtype=torch.bfloat16)
    dg.bf16_gemm_nt(a, b, d)
    assert (d.double() - a.double() @ b.double().T).abs().max() < 0.2
    q, k, v = (torch.randn(1, 40, 14, 64).bfloat16() for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)))
    assert (dg.flash_attention(q, k, v).transpose(1, 2) - expected).abs().max() < 0.02
    pages, lens = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    cache = [torch.nn.functional.pad(t, (0, 0, 0, 0, 0, 24)) for t in (k, v)]
    out = dg.flash_attention_decode(q[:, -1:], *cache, block_table=pages, context_lens=lens)
    assert (out.transpose(1, 2) - expected[:, :, -1:]).abs().max() < 0.02
    rendered = "".join(source.kernel for source in chip_of_six)
    assert all(found in rendered for found in ("RunsOfXcds<6, ", "kBlockQ, 6>", "DecodeSchedule<Shape, 6>"))

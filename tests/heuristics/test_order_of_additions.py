"""With set_batch_invariant, all M share an order of additions along K: planned for every M, without running."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator

import pytest
from helpers.default_run import some
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.benchmarks.shapes import DENSE
from deep_gemm_rocm.heuristics import (
    AttentionCase,
    GemmConfig,
    choose_attention,
    choose_dense,
    choose_gemm_config,
    choose_k_splits,
)
from deep_gemm_rocm.heuristics.choices import replaced
from deep_gemm_rocm.heuristics.gemm_problem import Choice
from deep_gemm_rocm.heuristics.gemm_table import SHIPPED, TunedRow, TunedTable
from deep_gemm_rocm.problems.gemm_kind import GemmKind

BF16 = GemmKind("bf16", "bf16", scaling="none")
KINDS = {
    "fp8": GemmKind(),
    "vectors": GemmKind(scaling="vectors"),
    "rows": GemmKind(scaling="rows"),
    "bf16": BF16,
    "nn": dataclasses.replace(BF16, b_major="rows"),
    "activated": GemmKind(activation="silu_and_mul"),
    "quantised": GemmKind(d_type="e4m3"),
}
SHAPES = sorted({(shape.n, shape.k) for shape in DENSE} | {(576, 7168), (24, 1024), (10240, 8192), (57344, 8192)})
ROWS = (*range(1, 130), *range(130, 8193, 31), 8192)


@pytest.fixture(autouse=True)
def _invariant() -> Iterator[None]:
    dg.set_batch_invariant(True)
    return


@pytest.mark.parametrize("kind", some(KINDS.values(), 2), ids=KINDS)
def test_all_rows_share_an_order(kind):
    for n, k in SHAPES:
        orders = {choose_dense(kind, m, n, k).k_order for m in ROWS}
        assert len(orders) == 1, (n, k)


def test_each_m_of_a_shape():
    orders = {choose_dense(GemmKind(), m, 7168, 2048).k_order for m in range(1, 8193)}
    assert orders == {(1, 4)}


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS.values())),
    n=st.integers(1, 300).map(lambda blocks: 128 * blocks),
    k=st.integers(1, 128).map(lambda blocks: 128 * blocks),
    m=st.lists(st.integers(1, 2**20), min_size=2, max_size=6),
    cus=st.sampled_from([304, 304, 80, 16, 1]),
)
def test_any_shape(kind, n, k, m, cus):
    assert len({choose_dense(kind, rows, n, k, cus).k_order for rows in m}) == 1


def test_many_rows_don_t_take_a_second_launch():
    """The parts of an order are added up within a workgroup, for large outputs would be written several times."""
    for kind in KINDS.values():
        assert choose_dense(kind, 8192, 7168, 2048).splits == 1


def test_a_second_launch_must_gain_enough():
    """Two launches would be quicker for few rows, but too little for what many rows would lose."""
    assert choose_dense(BF16, 8192, 4096, 16384).k_order == (1, 4)
    assert choose_dense(BF16, 8192, 576, 7168).k_order == (1, 4)
    assert choose_dense(KINDS["quantised"], 8192, 2112, 7168).k_order == (1, 4)


def test_few_columns_do():
    """A router's outputs are few, and K is all there is to share out."""
    gate = dataclasses.replace(BF16, d_type="f32")
    assert {choose_dense(gate, m, 256, 16384).splits > 1 for m in (1, 64, 500, 8192)} == {True}


def test_tables_decide_nothing_about_bits():
    """Rows that were measured with another order don't count, and those of the same order do."""
    kind = GemmKind()
    own = choose_dense(kind, 64, 7168, 2048)
    assert own.k_order == (1, 4)
    measured = dict(m=64, n=7168, k=2048, groups=1, splits=1, error=0, device="", clock_mhz=2100, toolchain="",
                    time_us=9, simulated=True)  # fmt: skip
    other = GemmConfig(64, 32, 1, 1, 3, "alone", kind=kind)
    with replaced(TunedTable([TunedRow(config=other, **measured)])):
        assert choose_dense(kind, 64, 7168, 2048) == own
        dg.set_batch_invariant(False)
        assert choose_dense(kind, 64, 7168, 2048) == Choice(other)
        dg.set_batch_invariant(True)
    alike = GemmConfig(32, 32, 1, 1, 3, "alone", waves_k=4, kind=kind)
    with replaced(TunedTable([TunedRow(config=alike, **measured)])):
        assert choose_dense(kind, 64, 7168, 2048) == Choice(alike)


def test_the_shipped_table_has_other_orders():
    """Or the test above would be about nothing: the package's own measurements split K by M."""
    with open(SHIPPED, newline="") as file:
        assert len({(row["splits"], row["waves_k"]) for row in csv.DictReader(file)}) > 1


@pytest.mark.parametrize("grouping", ["contiguous", "psum", "masked", "batched", "k_grouped", "summed"])
def test_groups_add_up_in_the_order_of_k(grouping):
    kind = dataclasses.replace(BF16, grouping=grouping, a_major="rows" if grouping == "k_grouped" else "k")
    for m in (1, 7, 64, 300, 5000):
        for groups in (1, 8, 256):
            for max_block_m in (16, 64, 256):
                config = choose_gemm_config(kind, m, 4096, 7168, num_groups=groups, max_block_m=max_block_m)
                assert Choice(config).k_order == (1, 1)


def test_scales_of_rows_make_other_orders():
    """They are applied to each part of a split K, but once to what waves have added up."""
    in_waves = GemmConfig(16, 16, 1, 1, 3, "alone", waves_k=4, kind=GemmKind(scaling="rows"))
    alone = dataclasses.replace(in_waves, waves_k=1)
    assert Choice(alone, 4).k_order != Choice(in_waves).k_order
    blocks = [dataclasses.replace(config, kind=GemmKind()) for config in (alone, in_waves)]
    assert Choice(blocks[0], 4).k_order == Choice(blocks[1]).k_order


def test_parts_of_a_summed_batch():
    assert len({choose_k_splits(m, 256, 4096) for m in (1, 100, 1000, 100000)}) == 1
    dg.set_batch_invariant(False)
    assert len({choose_k_splits(m, 256, 4096) for m in (1, 100, 1000, 100000)}) > 1


@pytest.mark.parametrize(
    ("type_", "out", "width"),
    [("bf16", "bf16", 128), ("e4m3", "bf16", 128), ("bf16", "bf16", 256), ("e4m3", "bf16", 96)],
)
def test_attention_has_the_same_mfma(type_, out, width):
    cases = [
        AttentionCase("flash_attention", type_, out, width, width, True, batch, 32, 8, tokens, tokens)
        for batch in (1, 3, 64)
        for tokens in (1, 50, 100, 1000, 1024, 10000)
    ]
    assert len({choose_attention(case).config.mfma_rows for case in cases}) == 1

"""The candidates for GEMM, and the choice among them."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
from helpers.gemm_configs import (
    BATCHED,
    EXPERTS,
    FOUR_BITS,
    GROUPED,
    INT4,
    OF_EVERY_KIND,
    SPLIT_K,
    SQUARES,
    SUMMED,
)  # fmt: skip
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deep_gemm_rocm.heuristics import GemmConfig, choose_dense, choose_gemm_config, cost, gemm_candidates
from deep_gemm_rocm.heuristics.choices import forget, replaced
from deep_gemm_rocm.heuristics.cost import clocks_by_m, estimated_clocks
from deep_gemm_rocm.heuristics.gemm_choice import ranked_choices
from deep_gemm_rocm.heuristics.gemm_problem import GemmProblem
from deep_gemm_rocm.heuristics.gemm_table import SHIPPED, TunedRow, TunedTable
from deep_gemm_rocm.heuristics.tables import TableError
from deep_gemm_rocm.problems.gemm_kind import GemmKind

VALID = GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=2, num_stages=2)
ALONE = {"block_m": 16, "block_n": 16, "waves_m": 1, "waves_n": 1, "schedule": "alone", "waves_k": 2}
TALLER = {
    "block_m": 128, "waves_m": 4, "num_stages": 3, "schedule": "pingpong", "kind": GemmKind(grouping="masked")
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "magic"}, "schedule"),
        ({"kind": GemmKind(grouping="contiguous"), "block_m": 256}, "128 rows"),
        ({"waves_m": 0}, "waves_m"),
        ({"waves_m": 4, "waves_n": 4}, "threads"),
        ({"block_m": 40}, "divide the tile"),
        ({"block_m": 0}, "divide the tile"),
        ({"block_n": 192, "waves_n": 2, "kind": GemmKind(activation="silu_and_mul")}, "share a scale"),
        ({"num_stages": 0}, "num_stages"),
        ({"group_m": 0}, "group_m"),
        ({"block_m": 256, "num_stages": 3}, "LDS"),
        ({"schedule": "pingpong", "num_stages": 2, "waves_m": 4}, "3 stages"),
        ({"schedule": "pingpong", "num_stages": 3}, "8 waves"),
        ({"schedule": "pingpong", "num_stages": 3, "block_m": 128, "waves_m": 1, "waves_n": 8}, "two halves"),
        ({"waves_k": 0}, "waves_k"),
        ({"waves_k": 2}, "only the alone schedule"),
        ({**ALONE, "block_n": 32, "waves_n": 2}, "one wave"),
        ({**ALONE, "block_n": 128, "waves_n": 2, "waves_k": 1, "kind": GemmKind(d_type="e4m3")}, "quantised"),
        ({**ALONE, "kind": GemmKind(b_major="rows")}, "contiguous along K"),
        ({**ALONE, "kind": GemmKind(grouping="k_grouped")}, "K of their own"),
        ({**ALONE, "block_m": 64, "block_n": 64, "num_stages": 3, "waves_k": 8}, "registers"),
        ({**ALONE, "block_m": 64, "block_n": 128, "waves_k": 1}, "registers"),
        ({**ALONE, "block_m": 128, "block_n": 96}, "registers"),
        ({**ALONE, "block_m": 128, "waves_k": 8}, "LDS"),
        ({**ALONE, "waves_k": 16}, "threads"),
    ],
)
def test_impossible_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        dataclasses.replace(VALID, **changes)
    assert "GemmConfig(" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grouping": "by colour"}, "grouping"),
        ({"a_type": "f32"}, "operands"),
        ({"a_type": "bf16"}, "operands"),
        ({"a_type": "bf16", "b_type": "bf16"}, "only FP8 and four-bit operands have scales"),
        ({"b_type": "e2m1"}, "four-bit operands have scales of groups"),
        ({"scaling": "groups"}, "four-bit operands have scales of groups"),
        ({"b_type": "e2m1", "scaling": "groups", "b_major": "rows"}, "four-bit operands are contiguous along K"),
        ({"b_scale_type": "e8m0"}, "only scales of e2m1 may be e8m0"),
        ({"b_scale_type": "bf16"}, "only scales of int4 may have 16 bits or zeros"),
        ({"group_k": 64}, "only groups of int4 have other than 32 values"),
        *(
            (
                {"b_type": "shuffled_int4", "scaling": "groups", **others},
                "shuffled_int4 is multiplied by FP8, without zeros",
            )
            for others in ({"a_type": "bf16"}, {"b_scale_type": "f32_and_zero"})
        ),
        ({"d_type": "int8"}, "d_type"),
        ({"scaling": "tensor"}, "scaling"),
    ],
)
def test_impossible_kinds_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GemmKind(**changes)


def test_quantised_tiles_have_whole_blocks_of_columns():
    for changes in ({"block_n": 64}, {"block_n": 256, "waves_n": 4}):
        with pytest.raises(ValueError, match="128 columns, which share a scale"):
            dataclasses.replace(VALID, kind=GemmKind(d_type="e4m3"), **changes)


def test_names_spell_out_the_configuration():
    assert VALID.kernel_name == "gemm_nt_e4m3_blocks_bf16_64x128x128_w2x2_mfma16_s2_multistage"
    dealing = dataclasses.replace(VALID, **ALONE)
    assert dealing.kernel_name == "gemm_nt_e4m3_blocks_bf16_16x16x128_w1x1k2_mfma16_s2_alone"
    ordered = dataclasses.replace(VALID, group_m=16)
    assert ordered.kernel_name == "gemm_nt_e4m3_blocks_bf16_64x128x128_w2x2_mfma16_s2_multistage_g16"
    kind = GemmKind("bf16", "bf16", "f32", "none", accumulate=True, grouping="masked", k_tail=True)
    name = "m_grouped_masked_gemm_nt_bf16_f32_c_64x128x64_w2x2_mfma16_s2_multistage_ktail"
    assert dataclasses.replace(VALID, kind=kind).kernel_name == name
    chosen_on_device = dataclasses.replace(VALID, **TALLER)
    name = "m_grouped_masked_gemm_nt_e4m3_blocks_bf16_128or192x128x128_w4x2_mfma16_s3_pingpong"
    assert chosen_on_device.kernel_name == name
    assert chosen_on_device.taller.kernel_name == name.replace("128or192x", "192x")


@given(m=st.integers(1, 2**31 - 1), n=st.integers(1, 2**20), k=st.integers(1, 2**16).map(lambda blocks: 16 * blocks))
def test_every_problem_gets_a_configuration(m, n, k):
    config = choose_gemm_config(GemmKind(), m, n, k)
    assert config in gemm_candidates(config.kind)
    assert config.kind.k_tail == (k % 128 != 0)


@given(
    m=st.integers(1, 256),
    n=st.integers(1, 300).map(lambda columns: 128 * columns),
    k=st.integers(1, 160).map(lambda blocks: 128 * blocks),
    num_cus=st.integers(1, 303),
)
@example(1, 7168, 1536, 100)
@example(1, 576, 7168, 38)
@example(128, 576, 7168, 200)
def test_k_is_dealt_alike_whatever_may_be_used_of_the_chip(m, n, k, num_cus):
    """Therefore results have the same bits."""
    whole, fewer = choose_dense(GemmKind(), m, n, k), choose_dense(GemmKind(), m, n, k, num_cus)
    assert fewer.splits == whole.splits
    assert fewer.k_order == whole.k_order


def test_small_m_gets_small_tiles_and_large_m_large_ones():
    tile_rows = {m: choose_gemm_config(GemmKind(), m, 4096, 7168).block_m for m in (1, 16, 64, 128, 512, 4096)}
    assert tile_rows[1] == tile_rows[16] == 16
    assert all(rows <= m for m, rows in tile_rows.items() if m > 1)
    assert tile_rows[4096] == 224


@given(
    m=st.integers(1, 2**20),
    n=st.integers(1, 2**16),
    groups=st.integers(1, 300),
    max_block_m=st.sampled_from([16, 32, 64, 128, 256]),
)
def test_tiles_of_groups_are_no_larger_than_allowed(m, n, groups, max_block_m):
    config = choose_gemm_config(GemmKind(grouping="masked"), m, n, 7168, num_groups=groups, max_block_m=max_block_m)
    assert config in gemm_candidates(GemmKind(grouping="masked"), max_block_m)
    assert config.block_m <= max_block_m
    assert config.kind.grouping == "masked"


@given(
    kind=st.builds(
        GemmKind,
        scaling=st.sampled_from(["blocks", "vectors", "rows"]),
        grouping=st.sampled_from(["dense", "batched", "contiguous", "psum", "masked"]),
        b_major=st.sampled_from(["k", "rows"]),
        bias=st.sampled_from(["none", "bf16"]),
        d_type=st.sampled_from(["bf16", "f32", "e4m3"]),
        activation=st.sampled_from(["identity", "silu_and_mul"]),
    ),
    m=st.integers(1, 2**20),
    max_block_m=st.sampled_from([16, 32, 64, 128, 256]),
)
@settings(max_examples=500)
def test_every_kind_gets_a_tile_within_the_limit(kind, m, max_block_m):
    assert choose_gemm_config(kind, m, 4096, 7168, num_groups=8, max_block_m=max_block_m).block_m <= max_block_m


def test_a_cu_has_room_for_its_workgroups():
    for config in gemm_candidates(GemmKind()):
        assert config.workgroups_per_cu >= 1
        assert config.workgroups_per_cu * config.lds_bytes <= 64 * 1024
        assert config.workgroups_per_cu * config.num_threads * config.registers <= 512 * 256


def test_at_least_three_configurations_are_in_use():
    shapes = [(m, n) for m in (1, 64, 128, 512, 4096) for n in (576, 2112, 4096, 7168, 24576)]
    assert len({choose_gemm_config(GemmKind(), m, n, 7168) for m, n in shapes}) >= 3


@pytest.fixture
def row():
    config = GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=4, num_stages=3, schedule="pingpong")
    measured = {"time_us": 5.0, "error": 0.9, "device": "MI300X", "clock_mhz": 2100, "toolchain": "clang"}
    return TunedRow(config=config, splits=1, m=100, n=256, k=1024, groups=1, **measured, simulated=True)


def write(path, row, **changes):
    TunedTable([row]).write(path)
    lines = list(csv.DictReader(path.open()))
    lines[0].update(changes)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


def test_a_table_survives_a_file(tmp_path, row):
    kind = GemmKind("bf16", "bf16", "f32", "none", accumulate=True, grouping="batched", k_tail=True)
    other = dataclasses.replace(row, config=dataclasses.replace(row.config, kind=kind), k=1000, groups=3)
    TunedTable([row, other]).write(tmp_path / "table.csv")
    assert TunedTable.read(tmp_path / "table.csv").rows == {row.key: row, other.key: other}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_us": "0.01"}, "TFLOPS are impossible"),
        ({"time_us": "nan"}, "time_us"),
        ({"error": "1.5"}, "wrong"),
        ({"block_m": "48"}, "divide the tile"),
        ({"schedule": "magic"}, "schedule"),
        ({"kind": "colour=red"}, "colour"),
        ({"kind": "zzz"}, "a kind has no zzz"),
        ({"m": "many"}, "m must be a number, got 'many'"),
        ({"clock_mhz": "1e3"}, "clock_mhz must be a number, got '1e3'"),
        ({"simulated": "maybe"}, "simulated"),
        ({"splits": "0"}, "splits"),
        ({"splits": "2", "kind": "grouping=masked"}, "dense"),
        ({"splits": "2", "kind": "skips_head_mid=True"}, "sums over K only"),
    ],
)
def test_impossible_rows_are_refused(tmp_path, row, changes, message):
    path = tmp_path / "table.csv"
    write(path, row, **changes)
    with pytest.raises(TableError, match=message) as error:
        TunedTable.read(path)
    assert f"{path}, line 2" in str(error.value)


def test_tables_of_other_columns_are_refused(tmp_path):
    (tmp_path / "table.csv").write_text("m,n,k\n1,2,3\n")
    with pytest.raises(TableError, match="expected the columns"):
        TunedTable.read(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: text.rindex(b",")], r"line 2: expected 20 columns, got 19"),
        (lambda text: text.rstrip() + b",1", r"line 2: expected 20 columns, got 21"),
        (lambda text: b"\xff\xfe" + text, r"line 1: .*can't decode"),
        (lambda text: b"", r"line 1: expected the columns"),
    ],
    ids=["cut off", "too long", "no text", "empty"],
)
def test_damaged_tables_are_refused(tmp_path, row, damage, message):
    path = tmp_path / "table.csv"
    write(path, row)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TableError, match=message) as error:
        TunedTable.read(path)
    assert str(path) in str(error.value)


def test_a_table_that_is_not_there_is_told_by_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_TUNED_TABLE", str(tmp_path / "absent.csv"))
    with pytest.raises(FileNotFoundError, match=r"DG_TUNED_TABLE can't be read: .*absent\.csv"):
        choose_gemm_config(GemmKind(), 64, 256, 1024)


def test_a_row_serves_problems_of_as_many_tiles(row):
    heuristic = choose_gemm_config(GemmKind(), 100, 256, 1024)
    assert heuristic != row.config
    with replaced(TunedTable([row])):
        for m in (65, 100, 128):
            assert choose_gemm_config(GemmKind(), m, 256, 1024) == row.config
        for changes in ({"m": 64}, {"m": 129}, {"n": 512}, {"k": 2048}, {"num_groups": 2}, {"num_cus": 100}):
            asked = {"m": 100, "n": 256, "k": 1024, **changes}
            assert choose_gemm_config(GemmKind(), **asked) != row.config, changes
        assert choose_gemm_config(GemmKind(), 100, 256, 1024, max_block_m=32).block_m <= 32
        assert choose_gemm_config(GemmKind(d_type="f32"), 100, 256, 1024).kind.d_type == "f32"
    assert choose_gemm_config(GemmKind(), 100, 256, 1024) == heuristic


def test_a_row_may_split_k(row):
    split = dataclasses.replace(row, splits=3, config=dataclasses.replace(row.config, kind=row.config.kind.in_parts))
    with replaced(TunedTable([split])):
        config, splits = choose_dense(GemmKind(d_type="bf16"), 100, 256, 1024)
        assert splits == 3
        assert config == split.config
        # Sums don't depend on how many compute units may be used.
        assert choose_dense(GemmKind(), 100, 256, 1024, 100).splits == 3
    with replaced(TunedTable([row])):
        assert choose_dense(GemmKind(), 100, 256, 1024) == (row.config, 1)


def test_the_nearest_of_several_rows_counts(row):
    near = dataclasses.replace(row, m=70, config=dataclasses.replace(row.config, group_m=4))
    with replaced(TunedTable([row, near])):
        assert choose_gemm_config(GemmKind(), 72, 256, 1024) == near.config
        assert choose_gemm_config(GemmKind(), 99, 256, 1024) == row.config


def test_a_table_of_ones_own(tmp_path, row, monkeypatch):
    TunedTable([row]).write(tmp_path / "table.csv")
    monkeypatch.setenv("DG_TUNED_TABLE", str(tmp_path / "table.csv"))
    forget()
    assert choose_gemm_config(GemmKind(), 100, 256, 1024) == row.config
    monkeypatch.undo()
    forget()


def test_the_shipped_table_is_whole():
    table = TunedTable.read(SHIPPED)
    for row in table.rows.values():
        assert table.find(GemmProblem(row.choice.kind, row.m, row.n, row.k, 304, row.groups, 256)) == (
            row.config,
            row.splits,
        )


@given(m=st.integers(1, 4096), n=st.integers(1, 64), k=st.integers(1, 64), groups=st.integers(1, 64))
def test_a_choice_on_the_device_is_estimated_to_save_time(m, n, k, groups):
    """The device chooses the better of both tile heights."""
    both = dataclasses.replace(VALID, **TALLER)
    problem = GemmProblem(both.kind, m, 128 * n, 128 * k, 304, groups, 256)
    low = dataclasses.replace(both, waves_m=2, waves_n=4)  # the same work, without a choice
    clocks, *others = (estimated_clocks(config, problem) for config in (both, low, both.taller))
    assert clocks <= min(others) * 1.001


def test_memory_bounds_the_estimate():
    n, k, bytes_a_clock = 2**16, 2**14, 2048  # of HBM
    problem = GemmProblem(GemmKind(), 16, n, k, 304, 1, 256)
    for config in gemm_candidates(GemmKind()):
        assert estimated_clocks(config, problem) > n * k / bytes_a_clock


def test_parts_of_k_are_not_too_short():
    """Each part has at least 8 K-blocks."""
    for k, splits in ((1024, {1}), (2048, {1, 2}), (4096, {1, 2, 3, 4})):
        problem = GemmProblem(GemmKind(), 64, 256, k, 304, 1, 256)
        assert {choice.splits for choice in ranked_choices(problem)} == splits


@pytest.fixture
def compute_units_limit(monkeypatch):
    """Neither power nor what all CUs share takes time."""
    for rate in ("_LIMIT_PJ", "_HBM_BYTES", "_CACHE_BYTES", "_L2_BYTES"):
        monkeypatch.setattr(cost, rate, 1e12)


def test_elements_of_two_bytes_take_twice_as_long(compute_units_limit):
    """With one tile for each CU and a large K, the main loop dominates."""
    wide = GemmKind("bf16", "bf16", scaling="none")
    clocks = [
        estimated_clocks(
            dataclasses.replace(VALID, kind=kind), GemmProblem(kind, 64 * 16, 128 * 19, 2**16, 304, 1, 256)
        )
        for kind in (GemmKind(), wide)
    ]
    assert clocks[1] == pytest.approx(2 * clocks[0], rel=0.02)


def test_every_kind_and_tile_has_an_estimate():
    m = np.array([1, 17, 300, 5000])
    for config in {*OF_EVERY_KIND, *GROUPED, *BATCHED, *SUMMED, *SQUARES, *SPLIT_K, *FOUR_BITS, *INT4, *EXPERTS}:
        clocks = clocks_by_m(config, GemmProblem(config.kind, 1, 1000, 4000, 304, 4, 256), m)
        assert (np.isfinite(clocks) & (clocks > 5000)).all(), config


def test_tiles_of_more_rows_widen_four_bits_less_often():
    """128x128 would also have 256 tiles, each of which widens as many columns as one of 256x128 does."""
    kind = GemmKind(b_type="e2m1", scaling="groups", b_scale_type="e8m0")
    chosen = ranked_choices(GemmProblem(kind, 1024, 4096, 7168, 304, 1, 256))[0]
    assert (chosen.config.block_m, chosen.config.block_n, chosen.splits) == (256, 128, 2)


def test_a_last_round_of_few_tiles_takes_as_long_as_a_full_one(compute_units_limit):
    """There is room for 608 workgroups at a time."""
    clocks = [
        estimated_clocks(VALID, GemmProblem(VALID.kind, 64 * rows, 128 * 19, 2**16, 304, 1, 256))
        for rows in (32, 33, 64)
    ]
    assert clocks[1] == pytest.approx(clocks[2], rel=0.02)
    assert clocks[1] == pytest.approx(2 * clocks[0], rel=0.02)


def test_a_last_round_of_few_tiles_is_short_where_waves_deal_k(compute_units_limit):
    """Here, too, there is room for 608 workgroups. One by itself has a compute unit's memory for itself."""
    config = GemmConfig(64, 32, 1, 1, 2, "alone", waves_k=4)
    clocks = [
        estimated_clocks(config, GemmProblem(config.kind, 64 * rows, 32 * 19, 2**16, 304, 1, 256))
        for rows in (32, 33, 48, 49, 64)
    ]
    assert clocks[0] < 0.8 * clocks[1]
    assert clocks[2] < 1.05 * clocks[1]
    assert clocks[2] < 0.8 * clocks[3] < clocks[4]


def test_rounds_of_launches_with_more_rows_than_expected_count():
    """1152 rows make one tile of 128x128 for each CU; 3 in 10 launches that expect 1024 rows have more than 1152."""
    config = dataclasses.replace(VALID, **TALLER | {"waves_m": 2, "waves_n": 4})
    fewer, more = (estimated_clocks(config, GemmProblem(config.kind, m, 4096, 7168, 304, 1, 256)) for m in (768, 1024))
    assert 1.2 * fewer < more < 1.4 * fewer


@given(m=st.integers(1, 2**16), n=st.integers(1, 2**16), k=st.integers(1, 2**10).map(lambda blocks: 16 * blocks))
def test_more_work_is_estimated_to_take_longer(m, n, k):
    def clocks(n, k, *rows):
        problem = GemmProblem(GemmKind(), m, n, k, 304, 1, 256)
        of_configs = [clocks_by_m(config, problem, np.array(rows)) for config in gemm_candidates(GemmKind())]
        return np.stack(of_configs, axis=1)

    less, more_rows = clocks(n, k, m, 2 * m)
    assert (less > 0).all()
    for longer in (more_rows, *clocks(2 * n, k, m), *clocks(n, 4 * k, m)):
        # 2% is for tile rectangles, which share operands differently, and for tiles that a CU computes at once.
        assert (less <= 1.02 * longer).all()

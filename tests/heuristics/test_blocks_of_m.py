"""What is remembered for blocks of M is the choice for each M, whether a table or the cost model made it."""

from __future__ import annotations

import dataclasses

import pytest

from deep_gemm_rocm.heuristics import GemmConfig, choices, gemm_choice
from deep_gemm_rocm.heuristics.gemm_problem import GemmProblem
from deep_gemm_rocm.heuristics.gemm_table import TunedRow, TunedTable
from deep_gemm_rocm.problems.gemm_kind import GemmKind

BF16 = GemmKind("bf16", "bf16", scaling="none")


@pytest.mark.parametrize(
    ("kind", "n", "k", "num_cus"),
    [
        (GemmKind(), 7168, 2048, 304),  # has rows in the table
        (GemmKind(), 2112, 7168, 304),
        (GemmKind(), 2112, 7168, 200),
        (BF16, 576, 7168, 304),
    ],
)
def test_what_is_remembered_for_blocks_of_m_is_the_choice_for_each(kind, n, k, num_cus):
    assert not choices.is_replaced()
    problem = GemmProblem(kind, 0, n, k, num_cus, 1, 256)
    chosen = gemm_choice.dense_choices(kind, n, k, num_cus)
    for m in range(1, 3000):
        assert chosen(m) == gemm_choice._dense_choice(problem._replace(m=m)), m


@pytest.mark.parametrize("rows", [(100,), (65, 128, 129), (1, 2, 3, 1000, 2000), (1023, 1024, 1025)])
def test_rows_of_a_table_are_noticed_in_blocks_of_m(rows, tmp_path, monkeypatch):
    config = GemmConfig(64, 128, 2, 4, 3, "pingpong")
    measured = {"time_us": 9.0, "error": 0.1, "device": "a", "clock_mhz": 2100, "toolchain": "b", "simulated": True}
    table = TunedTable(
        TunedRow(config=dataclasses.replace(config, group_m=i + 1), splits=1, m=m, n=256, k=1024, groups=1, **measured)
        for i, m in enumerate(rows)
    )
    table.write(tmp_path / "table.csv")
    monkeypatch.setenv("DG_TUNED_TABLE", str(tmp_path / "table.csv"))
    problem = GemmProblem(GemmKind(), 0, 256, 1024, 304, 1, 256)
    chosen = gemm_choice.gemm_choices(GemmKind(), 256, 1024)
    for m in range(1, 2200):
        assert chosen(m) == gemm_choice._config(problem._replace(m=m)), m

"""The log says which choice was made, and why."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from deep_gemm_rocm.heuristics import GemmConfig, choose_dense, choose_gemm_config, forced, gemm_candidates
from deep_gemm_rocm.heuristics.attention_choice import AttentionCase, choose_attention
from deep_gemm_rocm.heuristics.choices import replaced
from deep_gemm_rocm.heuristics.cost import estimated_clocks
from deep_gemm_rocm.heuristics.gemm_choice import _candidates, _estimates
from deep_gemm_rocm.heuristics.gemm_problem import GemmProblem
from deep_gemm_rocm.heuristics.gemm_table import SHIPPED, TunedTable
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip

KIND = GemmKind()
CASE = AttentionCase("flash_attention", "bf16", "bf16", 128, 128, False, 3, 4, 4, 77, 77)


@pytest.fixture(autouse=True)
def listening(caplog):
    caplog.set_level(logging.DEBUG, "deep_gemm_rocm.heuristics")


@pytest.fixture
def no_table():
    with replaced(TunedTable()):
        yield


def test_the_cost_models_choice_is_noted_with_its_time(no_table, caplog):
    config = choose_gemm_config(GemmKind(grouping="masked"), 100, 4096, 7168, num_groups=8)
    clocks = estimated_clocks(config, GemmProblem(config.kind, 100, 4096, 7168, 304, 8, 256))
    microseconds = clocks * 1000 / hip.runtime().devices()[0].clock_khz
    assert caplog.messages == [
        f"m=100 n=4096 k=7168 groups=8: {config.kernel_name}, by the cost model, estimated at {microseconds:.1f} us"
    ]


def test_parts_of_k_are_noted(no_table, caplog):
    _, splits = choose_dense(KIND, 16, 512, 32768)
    assert splits > 1
    problem = GemmProblem(KIND, 16, 512, 32768, 304, 1, 256)
    clocks = min(clocks[0] for _, clocks in _estimates(problem, np.array([16]), _candidates, may_split=True))
    microseconds = clocks * 1000 / hip.runtime().devices()[0].clock_khz
    (message,) = caplog.messages
    assert message.endswith(f", K in {splits} parts, by the cost model, estimated at {microseconds:.1f} us")


def test_the_tables_choice_is_noted(caplog):
    rows = TunedTable.read(SHIPPED).rows.values()
    row = next(row for row in rows if row.config.kind.grouping == "dense")
    choose_dense(row.config.kind, row.m, row.n, row.k)
    assert "by the table" in caplog.messages[0]


def test_a_forced_choice_is_noted(caplog):
    config: GemmConfig = gemm_candidates(KIND)[0]
    with forced(config):
        choose_dense(KIND, 5, 4096, 7168)
    assert caplog.messages[0].startswith(f"m=5 n=4096 k=7168: {config.kernel_name}, by the user, ")


def test_a_choice_of_attention_is_noted_once(caplog):
    choice = choose_attention(CASE)
    choose_attention(CASE)
    assert caplog.messages == [f"{CASE}: {choice}, by the heuristic"]
    with forced(choice):
        choose_attention(CASE)
    assert caplog.messages[1:] == [f"{CASE}: {choice}, by the user"]

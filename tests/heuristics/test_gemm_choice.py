"""Choices, which are made for blocks of M at once, against all candidates ranked for a single M."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import deep_gemm_rocm
from deep_gemm_rocm.heuristics import GemmConfig, choices, choose_dense, choose_gemm_config, gemm_candidates
from deep_gemm_rocm.heuristics.choices import remembered, replaced
from deep_gemm_rocm.heuristics.cost import _ROWS_OF_EXPECTED, _groups_of_launches, estimated_clocks, second_pass_clocks
from deep_gemm_rocm.heuristics.gemm_problem import Choice, GemmProblem, with_tail
from deep_gemm_rocm.heuristics.gemm_table import TunedTable
from deep_gemm_rocm.launch import planning
from deep_gemm_rocm.problems.gemm_kind import GemmKind

CUS = 304
SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
BF16 = GemmKind("bf16", "bf16", scaling="none")

rows = st.one_of(st.integers(1, 8192), st.integers(1, 2**31 - 1), st.integers(1, 64).map(lambda block: 1024 * block))
columns = st.one_of(st.integers(1, 300).map(lambda blocks: 128 * blocks), st.integers(1, 2**17))
depths = st.integers(1, 2**12).map(lambda blocks: 16 * blocks)
cus = st.one_of(st.just(CUS), st.integers(1, CUS - 1))


def quickest(configs: list[GemmConfig], problem: GemmProblem) -> GemmConfig:
    return min(configs, key=lambda config: estimated_clocks(config, problem))


def with_fewer_cus(config: GemmConfig, problem: GemmProblem) -> GemmConfig:
    order = Choice(config).k_order
    candidates = gemm_candidates(problem.kind, problem.max_block_m)
    if problem.num_cus == CUS or all(candidate.waves_k != config.waves_k for candidate in candidates):
        return config
    candidates = gemm_candidates(problem.kind, problem.max_block_m, order[1])
    return quickest([candidate for candidate in candidates if Choice(candidate).k_order == order], problem)


def best_config(problem: GemmProblem) -> GemmConfig:
    candidates = gemm_candidates(problem.kind, problem.max_block_m)
    return with_fewer_cus(quickest(list(candidates), problem._replace(num_cus=CUS)), problem)


def best_dense(problem: GemmProblem) -> Choice:
    kind, m, n, k, *_ = problem
    whole = problem._replace(num_cus=CUS)
    found = {Choice(config): estimated_clocks(config, whole) for config in gemm_candidates(kind)}
    tiles, k_blocks = -(-m // 128) * -(-n // 128), -(-k * kind.element_bytes // 128)
    whole_k = (1,) if kind.is_quantised else ()  # whose sums a second kernel quantises
    for splits in (*whole_k, *SPLITS) if kind.can_split_k and tiles < CUS else ():
        if splits == 1 or k_blocks >= 8 * splits:
            parts = whole.in_parts(splits)
            second = second_pass_clocks(np.array([m]), parts.n, splits)[0]
            for config in gemm_candidates(parts.kind):
                found[Choice(config, splits)] = estimated_clocks(config, parts) + second
    best = min(found, key=lambda choice: found[choice])
    computed = problem.in_parts(best.splits) if best.is_in_parts else problem
    return best._replace(config=with_fewer_cus(best.config, computed))


@pytest.fixture(autouse=True)
def no_table(own_session):
    with replaced(TunedTable()):
        yield


@given(
    kind=st.builds(
        GemmKind,
        scaling=st.sampled_from(["blocks", "vectors", "rows"]),
        grouping=st.sampled_from(["batched", "contiguous", "psum", "masked", "split_k", "summed"]),
        d_type=st.sampled_from(["bf16", "f32", "e4m3"]),
        activation=st.sampled_from(["identity", "silu_and_mul"]),
    ),
    m=rows,
    n=columns,
    k=depths,
    num_cus=cus,
    groups=st.integers(1, 300),
    max_block_m=st.sampled_from([16, 32, 64, 128, 256]),
)
@settings(max_examples=200)
def test_a_choice_is_the_candidate_of_the_least_time(kind, m, n, k, num_cus, groups, max_block_m):
    problem = GemmProblem(with_tail(kind, k), m, n, k, num_cus, groups, max_block_m)
    chosen = choose_gemm_config(kind, m, n, k, num_cus, num_groups=groups, max_block_m=max_block_m)
    assert chosen == best_config(problem)


@given(
    kind=st.sampled_from(
        [
            GemmKind(),
            GemmKind(d_type="f32", accumulate=True),
            GemmKind(d_type="e4m3"),
            GemmKind(d_type="e4m3", activation="silu_and_mul"),
            BF16,
        ]
    ),
    m=rows,
    n=columns,
    k=depths,
    num_cus=cus,
)
@example(GemmKind(), 60 * 128, 576, 7168, CUS)  # the most rows for which splits are tried
@example(GemmKind(), 60 * 128 + 1, 576, 7168, CUS)
@example(GemmKind(), 128, 576, 7168, 80)
@settings(max_examples=100, deadline=None)
def test_a_dense_choice_is_the_one_of_the_least_time(kind, m, n, k, num_cus):
    problem = GemmProblem(with_tail(kind, k), m, n, k, num_cus, 1, 256)
    assert choose_dense(kind, m, n, k, num_cus) == best_dense(problem)


@pytest.mark.parametrize(("n", "k", "num_cus"), [(7168, 2048, CUS), (576, 7168, CUS), (2112, 7168, 80)])
def test_choices_change_at_the_right_m(n, k, num_cus):
    """Each M from which on the choice is another one, its neighbours, and the edges of blocks."""
    chosen = {m: choose_dense(GemmKind(), m, n, k, num_cus) for m in range(1, 2100)}
    changes = [m for m in range(2, 2100) if chosen[m] != chosen[m - 1]]
    assert len(changes) > 5
    for m in {1, *changes, 1024, 2048}:
        for near in {max(m - 1, 1), m, m + 1}:
            assert chosen[near] == best_dense(GemmProblem(GemmKind(), near, n, k, num_cus, 1, 256)), near


@pytest.mark.parametrize(("k", "major", "most_rows"), [(7168, "row", 64), (7168, "column", 112), (2048, "row", 112)])
def test_waves_have_fewer_rows_if_scales_of_rows_take_lines_of_their_own(k, major, most_rows):
    m = n = 4096
    a, b = (torch.empty(rows, k, dtype=torch.float8_e4m3fnuz, device="meta") for rows in (m, n))
    scales = torch.empty(m, k // 128, device="meta") if major == "row" else torch.empty(k // 128, m, device="meta").T
    with planning.planning() as plan:
        deep_gemm_rocm.gemm_fp8((a, scales), (b, torch.empty(n // 128, k // 128, device="meta")))
    (kernel,) = plan.values()
    assert kernel.values["block_m"] // kernel.values["waves_m"] == most_rows


@pytest.mark.parametrize("num_groups", [1, 3, 10, 32])
def test_groups_of_a_launch_take_turns_with_the_shares(num_groups):
    shares = range(len(_ROWS_OF_EXPECTED))
    for first, groups in enumerate(_groups_of_launches(num_groups)):
        taken = Counter(islice(cycle(shares), first, first + num_groups))
        assert [taken[share] for share in shares] == groups.tolist()


def test_the_oldest_choice_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(choices, "_MOST_CHOICES", 2)
    calls = []

    @remembered
    def choose(problem: int) -> str:
        calls.append(problem)
        return str(problem)

    with replaced(TunedTable()):
        assert [choose(problem) for problem in (1, 2, 1, 3, 2, 3, 1)] == ["1", "2", "1", "3", "2", "3", "1"]
    assert calls == [1, 2, 3, 1]


def test_shuffled_weights_get_tiles_of_48_columns_where_these_fill_one_round():
    kind = GemmKind(b_type="shuffled_e2m1", scaling="groups", b_scale_type="e8m0")
    config = choose_dense(kind, 64, 7168, 18432).config
    assert (config.block_m, config.block_n, config.waves_k) == (32, 48, 4)
    for m, n, k in ((32, 28672, 4096), (128, 7168, 1024), (160, 5120, 7168)):  # two of them on some CUs
        assert (choose_dense(kind, m, n, k).config.block_m, choose_dense(kind, m, n, k).config.block_n) != (32, 48)

"""``benchmarks/accuracy.py`` as far as it needs no checkout of AITER."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from deep_gemm_rocm.simulator import power
from deep_gemm_rocm.simulator.constants import chips

SCRIPT = Path(__file__).parents[2] / "benchmarks/accuracy.py"


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_rows(accuracy: ModuleType) -> None:
    rows = accuracy.rows()
    assert len(rows) >= 150
    assert max(Counter(row.name for row in rows).values()) == 1
    assert 0.25 < sum(row.fits for row in rows) / len(rows) < 0.42
    for row in rows:
        assert row.kind in accuracy.KINDS
        assert row.chip.lower() in chips()
        flop = 2 * row.m * row.n * row.k * max(1, row.topk)
        assert flop / row.us < 2614.9e6 * (1 if row.chip == "MI325X" else 80 * 1420 / 304 / 2100), row.name


def test_errors(accuracy: ModuleType) -> None:
    row = accuracy.rows()[0]
    found = [(row, power.Sustained(2100, ratio * row.us, 0)) for ratio in (0.5, 1.0, 2.0)]
    assert accuracy.errors(found) == "3 | 50.0% | 1.00 | 0.50 | 2"
    assert accuracy.spread(found * 20) == pytest.approx((0.5, 2.0))


def test_tokens_are_sorted_by_expert(accuracy: ModuleType) -> None:
    row = next(row for row in accuracy.rows() if row.experts and row.m >= 8)
    block = 16
    ids, experts, used = accuracy.sorted_tokens(row, block)
    ids, experts = ids[: used[0]].view(-1, block), experts[: used[0] // block]
    tokens, slots = ids & 0xFFFFFF, ids >> 24
    chosen = tokens < row.m
    assert used[1] == row.m
    assert chosen.sum() == row.m * row.topk
    assert (slots[chosen] < row.topk).all()
    assert (slots[~chosen] == row.topk).all()
    pairs = torch.stack([tokens[chosen], experts.unsqueeze(1).expand_as(tokens)[chosen]])
    assert torch.unique(pairs, dim=1).shape == pairs.shape, "a token chooses each expert once"
    assert (experts.diff() >= 0).all()


def test_grids_cover_the_output(accuracy: ModuleType) -> None:
    for kind in accuracy.KINDS:
        row = min((row for row in accuracy.rows() if row.kind == kind), key=lambda row: row.n * row.k)
        _, launch_of = accuracy.KINDS[kind]
        launch = launch_of(row)
        tile_m, tile_n = accuracy.tile(row)
        columns = row.n // 2 if row.experts else row.n
        workgroups = launch.grid[0] * launch.grid[1] * launch.grid[2]
        assert workgroups * tile_m * tile_n >= row.m * columns * row.split * max(1, row.topk)


def test_intervals_are_those_of_the_page() -> None:
    page = (SCRIPT.parents[1] / "docs/accuracy.md").read_text(encoding="utf-8")
    found = re.search(r"take between ([\d.]+) and ([\d.]+) of the simulated", page)
    assert found
    assert power.interval(1.0) == tuple(map(float, found.groups()))

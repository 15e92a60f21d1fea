"""The helpers that DeepGEMM's own tests import."""

from __future__ import annotations

import os

import pytest
import torch

from deep_gemm_rocm import testing


def test_bytes():
    a, b = torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(5)
    assert testing.count_bytes(a, (b, [a, None]), None) == 24 + 20 + 24


def test_bitwise_equality():
    x = torch.tensor([[1.0, float("nan"), 0.0], [2.0, 3.0, 4.0]])
    testing.assert_bitwise_equal(x, x.T.contiguous().T)
    testing.assert_bitwise_equal(torch.tensor(2), torch.tensor(2))
    other = x.clone()
    other[0, 2], other[1, 1] = -0.0, 5
    with pytest.raises(AssertionError, match=r"here: 2 of 6 elements differ, the first at \(0, 2\): 0.0 and -0.0"):
        testing.assert_bitwise_equal(x, other, "here")
    with pytest.raises(AssertionError, match="shapes"):
        testing.assert_bitwise_equal(x, x.T)
    with pytest.raises(AssertionError, match="float64"):
        testing.assert_bitwise_equal(x, x.double())


def test_conditions(monkeypatch, capsys):
    monkeypatch.setenv("DG_SOME", "1")
    seen = []

    def look(name):
        seen.append((name, os.environ.get("DG_SOME")))

    testing.test_filter(lambda: testing.get_arch_major() == 9)(look)("runs")
    testing.test_filter(lambda: False)(look)("doesn't run")
    testing.ignore_env("DG_SOME", lambda: True)(look)("without")
    testing.ignore_env("DG_SOME", lambda: False)(look)("with")
    assert seen == [("runs", "1"), ("without", None), ("with", "1")]
    assert "look: skipped" in capsys.readouterr().out
    with pytest.raises(ZeroDivisionError):
        testing.ignore_env("DG_SOME", lambda: True)(lambda: 1 / 0)()
    assert os.environ["DG_SOME"] == "1"

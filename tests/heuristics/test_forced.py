"""Forced configurations: calls run exactly these, whatever ran before and runs after."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest
import torch
from helpers.gemm_configs import QUICK_ALL

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator
from deep_gemm_rocm.heuristics import (
    AttentionChoice,
    DecodeConfig,
    ForcedChoiceError,
    attention_tiles,
    forced,
    gemm_candidates,
)
from deep_gemm_rocm.heuristics.choices import replaced
from deep_gemm_rocm.heuristics.gemm_problem import Choice
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip, session
from deep_gemm_rocm.runtime.settings import Settings
from deep_gemm_rocm.testing import assert_accurate, gemm_problem, gemm_reference

CONFIGS = [config for config in QUICK_ALL if config.kind == GemmKind()]  # which other tests compile, too
A, B = gemm_problem(33, 128, 1024)


@pytest.fixture(autouse=True)
def needs_the_simulator():
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")


def executed(call) -> list[str]:
    """Names of the kernels that a call runs on the device."""
    with simulator.counters() as counted:
        call()
    return [kernel.name for kernel in counted.kernels]


def dense() -> list[str]:
    d = torch.full((33, 128), torch.nan).bfloat16()
    names = executed(lambda: dg.fp8_gemm_nt(A, B, d))
    assert_accurate(d, gemm_reference(A, B))
    return names


def test_every_call_runs_what_is_forced():
    """First and repeated calls, also nested; outside, calls run the heuristic's choice."""
    chosen = dense()
    assert dense() == chosen
    for config in CONFIGS[::2]:
        with forced(config):
            assert [dense(), dense()] == [[config.kernel_name]] * 2
            with forced(CONFIGS[0]):
                assert dense() == [CONFIGS[0].kernel_name]
            assert dense() == [config.kernel_name]
        assert dense() == chosen


def test_a_session_inside_runs_it_too():
    config = CONFIGS[0]
    with forced(config), session.using(session.current().derived(Settings())):
        assert dense() == [config.kernel_name]


class Only:
    """A table with one choice."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def find(self, problem: object) -> Choice:
        return self.choice


def test_a_session_inside_asks_the_replaced_table():
    config = CONFIGS[0]
    with replaced(Only(Choice(config))), session.using(session.current().derived(Settings())):
        assert dense() == [config.kernel_name]


def test_parts_of_k():
    with forced(Choice(gemm_candidates(CONFIGS[-1].kind.in_parts)[-1], 2)):
        assert len(dense()) == 2
    assert len(dense()) == 1


def test_an_exception_ends_it():
    def interrupted(config) -> None:
        with forced(config):
            dense()
            raise KeyError

    chosen = dense()
    with pytest.raises(KeyError):
        interrupted(next(config for config in CONFIGS if [config.kernel_name] != chosen))
    assert dense() == chosen


def test_a_choice_that_never_runs_is_an_error():
    config = CONFIGS[0]
    with pytest.raises(ForcedChoiceError, match=f"so {config.kernel_name} never ran"), forced(config):
        pass


def test_a_choice_for_something_else_is_an_error():
    d = torch.full((33, 128), 7.0).bfloat16()
    wide = GemmKind(d_type="f32")
    attention = AttentionChoice(attention_tiles("bf16", "bf16", 64, 64)[0])
    for choice in (gemm_candidates(wide)[0], Choice(gemm_candidates(wide.in_parts)[0], 2), attention):
        with pytest.raises(ForcedChoiceError, match="is forced, which is not for"), forced(choice):
            dg.fp8_gemm_nt(A, B, d)
    assert (d == 7).all()
    q = torch.zeros(1, 5, 2, 64).bfloat16()
    for config in (DecodeConfig("bf16", "bf16", 64, 64), attention_tiles("bf16", "bf16", 128, 128)[0]):
        with pytest.raises(ForcedChoiceError, match="is forced, which is not for"), forced(AttentionChoice(config)):
            dg.flash_attention(q, q, q)


def test_a_tail_needs_a_kernel_for_tails():
    a, b = gemm_problem(33, 128, 1040)
    d = torch.empty(33, 128).bfloat16()
    with pytest.raises(ForcedChoiceError, match="is not for"), forced(CONFIGS[0]):
        dg.fp8_gemm_nt(a, b, d)
    with_tail = next(config for config in QUICK_ALL if config.kind.k_tail)
    with forced(with_tail):
        assert dense() == [with_tail.kernel_name]


def test_one_thread_forces_at_a_time():
    errors = []

    def other() -> None:
        with pytest.raises(ForcedChoiceError, match="another thread") as error, forced(CONFIGS[1]):
            dense()
        errors.append(error)

    with forced(CONFIGS[0]):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert dense() == [CONFIGS[0].kernel_name]
    assert errors


def test_no_test_replaces_a_choice_in_another_way():
    """Patching the heuristic's functions would let repeated calls run the kernels of earlier ones."""
    patched = []
    for path in Path(__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "setattr" in node.func.attr:
                names = [part.value for part in node.args if isinstance(part, ast.Constant)]
                names += [part.attr for part in node.args if isinstance(part, ast.Attribute)]
                patched += [f"{path.name}:{node.lineno}" for name in names if "choose_" in str(name)]
    assert not patched

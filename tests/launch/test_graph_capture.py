"""Calls that are captured into a graph, and replays of the graph."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.heuristics import choose_dense
from deep_gemm_rocm.launch.scratch import Scratch
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip, session
from deep_gemm_rocm.testing import GuardedOutput, assert_accurate, gemm_problem, gemm_reference


def test_a_graph_replays_on_what_tensors_hold_by_then():
    a, b = gemm_problem(20, 48, 256)
    output = GuardedOutput(20, 48)
    dg.fp8_gemm_nt(a, b, output.tensor)
    output.tensor.fill_(torch.nan)
    with hip.runtime().capture() as graph:
        dg.fp8_gemm_nt(a, b, output.tensor)
    assert output.tensor.isnan().all()  # nothing ran yet
    for seed in (1, 2):
        other, _ = gemm_problem(20, 48, 256, seed=seed)
        for held, new in zip(a, other, strict=True):
            held.copy_(new)
        output.tensor.fill_(torch.nan)
        graph.replay()
        output.assert_intact()
        assert_accurate(output.tensor, gemm_reference(a, b))


def test_a_decoding_step_is_captured_once_for_any_counts():
    """Kernels for masked groups read the counts when the graph runs."""
    groups, m, n, k = 3, 32, 128, 256
    (a, sfa), (b, sfb) = gemm_problem(groups * m, n, k)
    a, sfa = a.view(groups, m, k), sfa.view(groups, m, -1)
    weights = b.expand(groups, n, k).clone(), sfb.expand(groups, *sfb.shape).clone()
    hidden = torch.empty(groups, m, n, dtype=torch.float8_e4m3fnuz), torch.empty(groups, m, 1)
    down, d = torch.randn(groups, 64, n).bfloat16(), torch.empty(groups, m, 64, dtype=torch.bfloat16)
    wide = torch.empty(groups, m, n, dtype=torch.bfloat16)
    counts = torch.zeros(groups, dtype=torch.int32)

    def step():
        dg.m_grouped_fp8_gemm_nt_masked((a, sfa), weights, hidden, counts, 10)
        dg.m_grouped_fp8_gemm_nt_masked((a, sfa), weights, wide, counts, 10)
        dg.m_grouped_bf16_gemm_nt_masked(wide, down, d, counts, 10)

    step()
    with hip.runtime().capture() as graph:
        step()
    for rows in ([0, 1, 32], [5, 0, 17]):
        counts.copy_(torch.tensor(rows, dtype=torch.int32))
        outputs = (hidden[0].view(torch.uint8), wide, d)
        for output in outputs:
            output.fill_(99)
        graph.replay()
        replayed = [output.clone() for output in outputs]
        for output in outputs:
            output.fill_(99)
        step()
        assert all(torch.equal(*pair) for pair in zip(replayed, outputs, strict=True))
        assert all((d[group, count:] == 99).all() for group, count in enumerate(rows))


def test_parts_of_a_split_k_are_the_graphs_own(monkeypatch):
    problems = [gemm_problem(16, 128, 16384, seed=seed) for seed in range(2)]
    assert choose_dense(GemmKind(), 16, 128, 16384).splits > 1
    outputs = [torch.full((16, 128), torch.nan, dtype=torch.bfloat16) for _ in problems]
    for _ in range(2):  # the second call is a repeated one
        dg.fp8_gemm_nt(*problems[0], outputs[0])
    with hip.runtime().capture() as graph, monkeypatch.context() as patched:
        patched.setattr(session.current().of(Scratch), "_of_thread", None)  # later launches have that memory, too
        dg.fp8_gemm_nt(*problems[0], outputs[0].fill_(torch.nan))
    assert outputs[0].isnan().all()
    dg.fp8_gemm_nt(*problems[1], outputs[1])
    graph.replay()
    for (a, b), d in zip(problems, outputs, strict=True):
        assert_accurate(d, gemm_reference(a, b))
    (a, b), d = problems[1], torch.full((16, 128), torch.nan, dtype=torch.bfloat16)
    dg.fp8_gemm_nt(a, b, d)
    assert torch.equal(d, outputs[1])


def test_attention_of_a_growing_sequence_is_captured_once():
    """The kernel reads the length when the graph runs. The graph has its own scratch memory for splits of the keys."""
    q, keys, values = torch.randn(1, 1, 4, 64).bfloat16(), torch.randn(3, 64, 2, 64), torch.randn(3, 64, 2, 64)
    caches, length = (keys.bfloat16(), values.bfloat16()), torch.tensor([1], dtype=torch.int32)
    pages = {"block_table": torch.tensor([[2, 0, 1]], dtype=torch.int32), "context_lens": length}

    def step(num_splits):
        return dg.flash_attention_decode(q, *caches, **pages, num_splits=num_splits, return_lse=True)

    step(3)
    with hip.runtime().capture() as graph:
        whole, split = step(1), step(3)
    for tokens in (1, 70, 192):
        length.fill_(tokens)
        graph.replay()
        for num_splits, captured in ((1, whole), (3, split)):
            expected = step(num_splits)
            assert all(torch.equal(*pair) for pair in zip(captured, expected, strict=True))


def test_tokens_are_appended_and_read_where_slots_say_when_the_graph_runs():
    """A cache in FP8 with factors of tokens, keys and values interleaved."""
    fp8 = torch.float8_e4m3fnuz
    k_cache, v_cache = torch.zeros(3, 2, 64, 2, 64).to(fp8).unbind(1)
    k_descale, v_descale = torch.zeros(3, 2, 64, 2).unbind(1)
    factors = {"k_descale": k_descale, "v_descale": v_descale}
    q, k, v = (torch.randn(1, *shape).bfloat16() for shape in ((1, 4, 64), (2, 64), (2, 64)))
    slot, length = torch.tensor([0]), torch.tensor([1], dtype=torch.int32)
    pages = {"block_table": torch.tensor([[2, 0, 1]], dtype=torch.int32), "context_lens": length}

    def step():
        dg.append_kv_cache(k, v, k_cache, v_cache, slot, **factors)
        return dg.flash_attention_decode(q, k_cache, v_cache, **pages, **factors)

    step()
    with hip.runtime().capture() as graph:
        captured = step()
    for token in range(3):
        slot.fill_(2 * 64 + token)
        length.fill_(token + 1)
        k.normal_()
        v.normal_()
        graph.replay()
        assert (k_descale[2, token] == k[0].float().abs().amax(1) / 240).all()
        assert torch.equal(captured, step())


def test_chosen_tokens_are_read_when_the_graph_runs():
    q, cache, extra = torch.randn(2, 4, 576), torch.randn(2, 16, 1, 576), torch.randn(1, 8, 1, 576)
    q, cache, extra = q.bfloat16(), cache.bfloat16(), extra.bfloat16()
    slots, others = torch.tensor([[0, 5, -1], [7, 8, 2]]).int(), torch.tensor([[3], [0]]).int()
    lengths = torch.tensor([3, 3], dtype=torch.int32)

    def step():
        return dg.sparse_mla(q, cache, slots, topk_length=lengths, extra_kv_cache=extra, extra_indices=others)

    step()
    with hip.runtime().capture() as graph:
        captured = step()
    for turn in range(3):
        slots.add_(turn)
        lengths.copy_(torch.tensor([turn, 3]))
        others.fill_(turn)
        graph.replay()
        assert all(torch.equal(*pair) for pair in zip(captured, step(), strict=True))


def test_a_missing_kernel_is_an_error_and_not_a_compile(monkeypatch):
    a, b = gemm_problem(7, 24, 128)
    output = GuardedOutput(7, 24)
    jit.forget()
    monkeypatch.setattr(jit.kernels, "_make", lambda *_: pytest.fail("this must not be reached"))
    with (
        hip.runtime().capture(),
        pytest.raises(jit.CaptureError, match=r"gemm_nt_e4m3\S+ is not loaded.*warmup_kernels"),
    ):
        dg.fp8_gemm_nt(a, b, output.tensor)
    output.assert_untouched()
    monkeypatch.undo()
    dg.warmup_kernels("fp8_gemm_nt", [7], 24, 128)
    with hip.runtime().capture() as graph:
        dg.fp8_gemm_nt(a, b, output.tensor)
    output.assert_untouched()
    graph.replay()
    assert_accurate(output.tensor, gemm_reference(a, b))


def test_a_capture_that_fails_leaves_nothing_behind():
    a, b = gemm_problem(7, 24, 128)
    output = GuardedOutput(7, 24)
    with pytest.raises(ValueError, match="c must have shape"), hip.runtime().capture():
        dg.gemm_fp8(a, b, c=output.tensor.T)
    assert not hip.runtime().is_capturing()
    output.assert_untouched()
    dg.gemm_fp8(a, b, output.tensor)
    assert_accurate(output.tensor, gemm_reference(a, b))


def test_other_threads_go_on_while_one_captures():
    a, b = gemm_problem(7, 24, 128)
    results = []
    dg.gemm_fp8(a, b)
    with hip.runtime().capture():
        thread = threading.Thread(target=lambda: results.append(dg.gemm_fp8(a, b)))
        thread.start()
        thread.join()
        assert hip.runtime().is_capturing()
    assert_accurate(results[0], gemm_reference(a, b))


class Operators(TorchDispatchMode):
    """Records the operators that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.called.append(function)
        return function(*args, **(kwargs or {}))


def test_a_warm_call_runs_no_operator_of_torch():
    """Therefore it allocates nothing, copies nothing and waits for nothing."""
    a, b = gemm_problem(7, 24, 128)
    d, c = torch.zeros(7, 24), torch.zeros(7, 24)
    groups = a[0].view(1, 7, 128), a[1].view(1, 7, 1)
    experts = b[0].view(1, 24, 128), b[1].view(1, 1, 1)
    counts, output = torch.tensor([3], dtype=torch.int32), torch.zeros(1, 7, 24)
    layout = torch.zeros(7, dtype=torch.int32)
    q = torch.zeros(1, 7, 2, 64, dtype=torch.bfloat16)
    attended = torch.zeros_like(q)

    def calls():
        dg.flash_attention(q, q, q, causal=True, out=attended)
        dg.fp8_gemm_nt(a, b, d, c)
        dg.m_grouped_fp8_gemm_nt_masked(groups, experts, output, counts, 3)
        dg.m_grouped_fp8_gemm_nt_contiguous(a, experts, d, layout)

    calls()
    with Operators() as operators:
        calls()
    assert operators.called == []

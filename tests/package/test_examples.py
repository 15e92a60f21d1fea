"""The examples run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deep_gemm_rocm as dg

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = EXAMPLES.parent


@pytest.fixture
def moe(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import moe

    return moe


@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (37, 2), (64, 3)])
def test_moe_is_what_plain_torch_makes(moe, tokens, top_k):
    router, gate_up, down = moe.random_layer(num_experts=4, hidden=128, intermediate=128, device="cpu")
    x = torch.randn(tokens, 128, generator=torch.Generator().manual_seed(tokens)).bfloat16()
    actual = moe.moe(x, router, moe.Experts(gate_up, down), top_k)
    expected = moe.reference(x, router, gate_up, down, top_k)
    # An intermediate value may be rounded to the neighbouring FP8 number.
    torch.testing.assert_close(actual.float(), expected, rtol=2**-5, atol=2**-6)
    assert dg.calc_diff(actual, expected) < 2e-5


def test_experts_are_saved_loaded_and_moved(moe):
    _, gate_up, down = moe.random_layer(num_experts=2, hidden=128, intermediate=128, device="cpu")
    experts, others = moe.Experts(gate_up, down), moe.Experts(down.repeat(1, 2, 1), down)
    saved = experts.state_dict()
    assert set(saved) == {"gate_up", "gate_up_scales", "down", "down_scales"}
    others.load_state_dict(saved)
    rows = dg.per_token_cast_to_fp8(torch.randn(256, 128, generator=torch.Generator().manual_seed(0)))
    expert_of_row = torch.tensor([0, 1]).repeat_interleave(128).int()
    assert torch.equal(others(rows, expert_of_row), experts(rows, expert_of_row))
    assert {buffer.device.type for buffer in experts.to("meta").buffers()} == {"meta"}


@pytest.mark.slow
def test_moes_exit_status_tells_whether_it_was_right(moe, monkeypatch):
    assert "differs from plain torch by" in run_example("moe.py")  # which expects 0
    for wrong in (0, torch.nan):
        monkeypatch.setattr(moe, "reference", lambda x, *_, wrong=wrong, **__: x.float() * wrong)
        with pytest.raises(SystemExit) as stopped:
            moe.main()
        assert stopped.value.code not in (0, None)


@pytest.fixture
def decoder_layer(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import decoder_layer

    return decoder_layer


@pytest.mark.parametrize("model", ["DeepSeek-V3", pytest.param("Qwen3-235B-A22B", marks=pytest.mark.slow)])
def test_decoder_layers_are_what_plain_torch_makes(decoder_layer, model):
    sizes = decoder_layer.FULL[model].cut(16)
    assert decoder_layer.difference(sizes, sequences=3, prompt=66, device="cpu") < 3e-3


def test_a_decoder_layers_exit_status_tells_whether_it_was_right(decoder_layer, monkeypatch):
    right = decoder_layer.Experts.reference
    monkeypatch.setattr(decoder_layer.Experts, "reference", lambda *arguments: 1.2 * right(*arguments))
    monkeypatch.setattr("sys.argv", ["decoder_layer.py", "--model", "Qwen3-235B-A22B"])
    with pytest.raises(SystemExit) as stopped:
        decoder_layer.main()
    assert stopped.value.code not in (0, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decode", "0"], "argument --decode: must be at least 1, got 0"),
        (["--times", "--prompt", "-1"], "argument --prompt: must be at least 1, got -1"),
        (["--times", "--decode", "x"], "argument --decode: invalid positive value: 'x'"),
        (["--cut", "3"], "argument --cut: invalid choice"),
    ],
)
def test_a_decoder_layer_refuses_sizes(decoder_layer, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("sys.argv", ["decoder_layer.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        decoder_layer.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("by", [1, 2, 4, 8, 16, 32])
def test_cut_layers_are_similar(decoder_layer, by):
    for full in decoder_layer.FULL.values():
        cut = full.cut(by)
        assert by > 1 or cut == full
        assert cut.heads * by == full.heads
        assert not any(width % 128 for width in (cut.hidden, cut.intermediate, cut.query_rank))
        assert not cut.kv_heads or cut.heads % cut.kv_heads == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["DeepSeek-V3", "Qwen3-235B-A22B"])
def test_times_of_decoder_layers_are_those_of_all_their_kernels(decoder_layer, model):
    sizes, tokens = decoder_layer.FULL[model].cut(16), decoder_layer.Tokens.after([63, 63], 1, "cpu")
    kernels = decoder_layer.times(sizes, tokens, "cpu")
    assert all(microseconds > 0 for _, microseconds in kernels)
    names = " ".join(name for name, _ in kernels)
    for kernel in ("decode", "route_top_k", "sum_of_experts"):
        assert kernel in names


def test_rows_are_grouped_by_expert(moe):
    experts = torch.tensor([3, 0, 3, 3, 2, 0])
    places, expert_of_place = moe.grouped_rows(experts, 5)
    assert len(expert_of_place) == 3 * 128
    assert expert_of_place[places].tolist() == experts.tolist()
    assert sorted(places.tolist()) == [0, 1, 128, 256, 257, 258]
    assert (expert_of_place >= 0).sum() == len(experts)


def run_example(name: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_experts_of_several_processes(processes):
    printed = run_example("expert_parallel.py", "--processes", str(processes), "--tokens", "20").splitlines()
    assert sorted(line.partition(":")[0] for line in printed) == [f"rank {rank}" for rank in range(processes)]
    assert all("differs from plain torch by" in line for line in printed)


@pytest.mark.slow
def test_arrays_of_hip_python():
    printed = run_example("hip_python.py").splitlines()
    assert [line.partition(":")[0] for line in printed] == ["launched", "replayed"]

"""``workbench.run_triton``: arguments, autotuning, errors. tests/simulator/test_triton.py checks what kernels give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from deep_gemm_rocm import simulator
from deep_gemm_rocm.workbench import run_triton


@triton.jit
def add(x, y, out, n, by, BLOCK: tl.constexpr = 64):  # noqa: N803
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + by * tl.load(y + i, i < n), i < n)


CONFIGURATIONS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 1024)]
tuned = triton.autotune(CONFIGURATIONS, ["n"])(add)


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 128)], ["n"], reset_to_zero=["total"])
@triton.heuristics({"EVEN": lambda values: values["n"] % values["BLOCK"] == 0})
@triton.jit
def sums(x, total, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # noqa: N803
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i) if EVEN else tl.load(x + i, i < n, 0.0)
    tl.atomic_add(total, tl.sum(values))


@triton.jit
def large(x, BLOCK: tl.constexpr):  # noqa: N803
    i, k, j = tl.arange(0, 16)[:, None], tl.arange(0, BLOCK)[None, :], tl.arange(0, 16)[None, :]
    tile = tl.load(x + i * BLOCK + k)
    tl.store(x + i * 16 + j, tl.dot(tile, tl.trans(tile)))


def programs(values):
    return (triton.cdiv(values["n"], values["BLOCK"]),)


@pytest.mark.parametrize(("n", "by"), [(1, 0.5), (100, 2), (128, 1), (1000, -3)])
def test_arguments_by_place_and_name(n: int, by: float) -> None:
    x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), torch.nan)
    compiled = run_triton(add, programs, x, y, out, n, by=by, num_warps=2)
    torch.testing.assert_close(out, x + by * y)
    assert compiled.metadata.num_warps == 2
    again = torch.full((n,), torch.nan)
    simulator.launch(compiled.asm["hsaco"], "add", -(-n // 64), 128, [x, y, again, *_rest(n, by), None, None])
    assert torch.equal(out, again)


def _rest(n: int, by: float) -> list[float]:
    """Arguments that aren't 1, for which the kernel is specialised."""
    return [value for value in (n, by) if value != 1]


def test_the_configuration_with_the_least_sustained_time_runs() -> None:
    n = 1 << 15
    x, y, out = torch.randn(n), torch.randn(n), torch.zeros(n)
    times = {}
    for config in CONFIGURATIONS:
        with simulator.profile() as profiled:
            run_triton(add, programs, x, y, out, n, 3, **config.all_kwargs())
        times[config.kwargs["BLOCK"]] = profiled.kernels[0].sustained_us
    out.zero_()
    with simulator.counters() as counted:
        run_triton(tuned, programs, x, y, out, n, 3)
        run_triton(tuned, programs, x, y, out, n, 3)
    torch.testing.assert_close(out, x + 3 * y)
    assert tuned.best_config.kwargs["BLOCK"] == min(times, key=lambda block: times[block])
    assert len(counted.kernels) == 2 + 1 + 1, "the second call should know its configuration"


def test_heuristics_and_results_that_add_up() -> None:
    for n in (256, 300):
        x, total = torch.randn(n), torch.zeros(1)
        run_triton(sums, programs, x, total, n)
        torch.testing.assert_close(total, x.sum()[None], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_errors_name_the_argument_or_the_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton's own cache returns code whose lines are those of another checkout.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x = torch.zeros(64)
    with pytest.raises(TypeError, match=r"y: expected a tensor .*got str"):
        run_triton(add, 1, x, "y", x, 64, 1)
    with pytest.raises(TypeError, match=r"x: expected a tensor .*got a tensor of torch.complex64"):
        run_triton(add, 1, x.to(torch.complex64), x, x, 64, 1)
    with pytest.raises(TypeError, match="missing a required argument"):
        run_triton(add, 1, x, x)
    with pytest.raises(triton.OutOfResources, match="shared memory"):
        run_triton(large, 1, torch.zeros(16, 2048), BLOCK=2048)
    with pytest.raises(simulator.SimulatorError, match="outside") as caught:
        run_triton(add, 1, x, x, x[:10].clone(), 64, 3)
    assert caught.value.operand == "element 10 of 10, float32, argument 2"
    assert caught.value.place is not None
    assert caught.value.place.text.startswith("tl.store(out + i")
    assert "run" not in vars(add)


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"kernel: expected a function under @triton\.jit"):
        run_triton(len, (1,), torch.zeros(1))

"""The functions as torch operators: traced whole, with honest schemas, and the same results as called directly."""

from __future__ import annotations

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm import ops
from deep_gemm_rocm.testing import assert_accurate, gemm_reference

FP8 = torch.float8_e4m3fnuz
M, N, K, G = 32, 64, 256, 2


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def per_token(*shape: int, seed: int = 0):
    return dg.per_token_cast_to_fp8(randn(*shape, seed=seed))


def per_block(*shape: int, seed: int = 1):
    return dg.per_block_cast_to_fp8(randn(*shape, seed=seed))


def stacked(pairs):
    return tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))


def experts():
    return stacked([per_block(N, K, seed=group) for group in range(G)])


def empty(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


LAYOUT = torch.tensor([0] * 128 + [1] * 128, dtype=torch.int32)
COUNTS = torch.tensor([5, 24], dtype=torch.int32)
KS = [128, 256]
SIZES = torch.tensor(KS, dtype=torch.int32)


def gradients(columns: int):
    return dg.per_channel_cast_to_fp8(randn(sum(KS), columns))


def packed(rows: int):
    pairs = [per_token(rows, k, seed=k) for k in KS]
    return torch.cat([data.view(-1) for data, _ in pairs]), torch.cat([scales for _, scales in pairs], dim=1)


def heads(*shape: int):
    """FP8 with a scale for each row of the first two dimensions and 128 of the last."""
    first, second, columns = shape
    data, scales = per_token(first * second, columns)
    return data.view(shape), scales.view(first, second, -1)


# For each operator, a public function that calls it, and arguments.
CALLS = {
    "fp8_gemm_nt": lambda: (dg.fp8_gemm_nt, (per_token(M, K), per_block(N, K), empty(M, N))),
    "fp8_gemm_nn": lambda: (dg.fp8_gemm_nn, (per_token(M, K), tuple(x.T for x in per_block(N, K)), empty(M, N))),
    "fp8 accumulated": lambda: (
        dg.fp8_gemm_nt,
        (per_token(M, K), per_token(N, K), d := randn(M, N).float(), d.clone(), (1, 1, 128)),
    ),
    "fp8 quantised": lambda: (
        dg.fp8_gemm_nt,
        (per_token(M, K), per_block(N, K), (empty(M, N, dtype=FP8), torch.zeros(M, 1))),
    ),
    "bf16_gemm_nt": lambda: (dg.bf16_gemm_nt, (randn(M, K), randn(N, K), empty(M, N))),
    "bf16_gemm_tn": lambda: (dg.bf16_gemm_tn, (randn(K, M), randn(K, N), empty(M, N, dtype=torch.float32))),
    "f16_gemm_nt": lambda: (dg.f16_gemm_nt, (randn(M, K).half(), randn(N, K).half(), empty(M, N))),
    "fp8_gemm_nt_skip_head_mid": lambda: (
        dg.fp8_gemm_nt_skip_head_mid,
        (per_token(M, K), per_block(N, K), empty(M, 80), (16, 8, 16)),
    ),
    "m_grouped_fp8_gemm_nt_contiguous": lambda: (
        dg.m_grouped_fp8_gemm_nt_contiguous,
        (per_token(256, K), experts(), empty(256, N), LAYOUT),
    ),
    "m_grouped_bf16_gemm_nt_contiguous": lambda: (
        dg.m_grouped_bf16_gemm_nt_contiguous,
        (randn(256, K), randn(G, N, K), empty(256, N), torch.tensor([100, 256], dtype=torch.int32), "nk", True),
    ),
    "m_grouped_fp8_gemm_nt_masked": lambda: (
        dg.m_grouped_fp8_gemm_nt_masked,
        (heads(G, M, K), experts(), empty(G, M, N), COUNTS, 10),
    ),
    "m_grouped_bf16_gemm_nt_masked": lambda: (
        dg.m_grouped_bf16_gemm_nt_masked,
        (randn(G, M, K), randn(G, N, K), empty(G, M, N), COUNTS, 10),
    ),
    "k_grouped_fp8_gemm_tn_contiguous": lambda: (
        dg.k_grouped_fp8_gemm_tn_contiguous,
        (gradients(M), gradients(N), empty(G, M, N, dtype=torch.float32), KS, SIZES),
    ),
    "k_grouped_fp8_gemm_nt_contiguous": lambda: (
        dg.k_grouped_fp8_gemm_nt_contiguous,
        (packed(M), packed(N), empty(G, M, N, dtype=torch.float32), KS, SIZES),
    ),
    "k_grouped_bf16_gemm_tn_contiguous": lambda: (
        dg.k_grouped_bf16_gemm_tn_contiguous,
        (randn(sum(KS), M), randn(sum(KS), N), empty(G, M, N), KS, SIZES),
    ),
    "einsum": lambda: (dg.einsum, ("bhr,hdr->bhd", randn(8, G, K), randn(G, N, K), empty(8, G, N))),
    "fp8_einsum": lambda: (dg.fp8_einsum, ("bhr,hdr->bhd", heads(8, G, K), experts(), empty(8, G, N))),
    "tf32_hc_prenorm_gemm": lambda: (
        dg.tf32_hc_prenorm_gemm,
        (randn(M, K), randn(24, K).float(), empty(M, 24, dtype=torch.float32), torch.zeros(M)),
    ),
}


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, tuple) else []


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first.float(), second.float())


class Recorder(torch.fx.Interpreter):
    """Runs a traced graph and notes which of our operators it calls, and how."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.calls = []

    def call_function(self, target, args, kwargs):
        if "deep_gemm_rocm" in str(target):
            self.calls.append((target, args))
        return super().call_function(target, args, kwargs)


def traced(function, *arguments):
    """The operators that the function called while it ran, traced as a whole."""
    calls = []

    def backend(graph, _):
        def run(*inputs):
            recorder = Recorder(graph)
            result = recorder.run(*inputs)
            calls.extend(recorder.calls)
            return result

        return run

    torch.compile(function, fullgraph=True, backend=backend)(*arguments)
    return calls


@pytest.fixture
def comparable_fp8(monkeypatch):
    """torch compares no FP8 on the CPU, which opcheck does to see what was written."""
    allclose = torch.allclose
    monkeypatch.setattr(torch, "allclose", lambda a, b, **how: allclose(a.float(), b.float(), **how))


@pytest.mark.parametrize("name", CALLS)
def test_a_traced_call_is_one_operator_that_keeps_what_it_declares(name, comparable_fp8):
    function, arguments = CALLS[name]()
    _, again = CALLS[name]()
    function(*arguments)
    ((operator, own_arguments),) = traced(function, *again)
    assert all(same(*pair) for pair in zip(tensors(arguments), tensors(again), strict=True))
    torch.library.opcheck(getattr(operator, "default", operator), own_arguments)


def test_every_operator_is_tried():
    operators = {
        name
        for name, value in vars(ops).items()
        if not name.startswith("_") and isinstance(value, torch.library.CustomOpDef)
    }
    assert operators <= CALLS.keys()


class Projection(torch.nn.Module):
    """Quantises, multiplies and goes on with ordinary torch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scales = per_block(N, K)
        self.down = torch.nn.Parameter(randn(32, N), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = dg.gemm_fp8(dg.per_token_cast_to_fp8(x), (self.weight, self.scales))
        y = torch.empty(x.shape[0], 32, dtype=torch.bfloat16)
        dg.bf16_gemm_nt(torch.nn.functional.silu(hidden), self.down, y)
        return y * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_module_compiles_whole(backend):
    module = Projection()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for m in (M, M + 5, 1):
        x = randn(m, K, seed=m)
        expected = module(x)
        torch.testing.assert_close(compiled(x), expected, rtol=2**-7, atol=1e-2)


def test_what_is_added_may_be_the_output_itself():
    def gradient(a, b, d):
        dg.wgrad_gemm_fp8_fp8_fp32_nt(a, b, d)
        return d + 1

    a, b, before = per_token(M, K), per_token(N, K, seed=1), randn(M, N).float()
    d = before.clone()
    result = torch.compile(gradient, fullgraph=True, backend="inductor")(a, b, d)
    assert_accurate(d, gemm_reference(a, b, c=before, recipe=(1, 1, 128)))
    assert torch.equal(result, d + 1)


def test_an_exported_program_calls_the_operator():
    program = torch.export.export(Projection(), (randn(M, K),))
    assert "deep_gemm_rocm.fp8_gemm_nt" in program.graph_module.code
    x = randn(M, K, seed=3)
    assert torch.equal(program.module()(x), Projection()(x))


def test_errors_come_when_the_program_runs():
    compiled = torch.compile(dg.fp8_gemm_nt, fullgraph=True, backend="eager")
    d = torch.full((M, N + 1), 7.0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="d must have shape"):
        compiled(per_token(M, K), per_block(N, K), d)
    assert (d == 7).all()
    a, b, d = per_token(M, K), per_block(N, K), empty(M, N)
    compiled(a, b, d)
    assert_accurate(d, gemm_reference(a, b))

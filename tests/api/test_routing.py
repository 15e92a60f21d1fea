"""The choice of experts, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import route_top_k_reference


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def assert_routed(logits, top_k, **options):
    weights, ids = dg.route_top_k(logits, top_k, **options)
    expected_weights, expected_ids = route_top_k_reference(logits, top_k, **options)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert ids.equal(expected_ids)
    same_bits = weights.view(torch.int32) == expected_weights.view(torch.int32)  # 0 isn't -0
    assert (same_bits | (weights.isnan() & expected_weights.isnan())).all()


# (experts, top_k, options) of models, and edges.
MODELS = {
    "DeepSeek-V3": (256, 8, {"scoring": "sigmoid", "bias": 1, "num_groups": 8, "top_groups": 4, "scale": 2.5}),
    "DeepSeek-V2": (160, 6, {"num_groups": 8, "top_groups": 3, "renormalize": False, "scale": 16.0}),
    "Kimi-K2": (384, 8, {"scoring": "sigmoid", "bias": 1, "scale": 2.827}),
    "Qwen3": (128, 8, {}),
    "Mixtral": (8, 2, {}),
    "gpt-oss": (32, 4, {}),
    "Qwen2": (60, 4, {"renormalize": False}),
    "softmax with a bias": (72, 5, {"bias": 1}),
    "one expert": (1, 1, {}),
    "most experts": (512, 64, {"scoring": "sigmoid"}),
    "all experts": (64, 64, {"num_groups": 32, "top_groups": 32}),
    "groups of one": (8, 3, {"num_groups": 8, "top_groups": 3}),
}


def options_of(model: str, seed: int = 0):
    experts, top_k, options = MODELS[model]
    return experts, top_k, options | ({"bias": randn(experts, seed=seed) / 8} if "bias" in options else {})


@pytest.mark.parametrize(
    ("model", "dtype"),
    [*((model, torch.float32) for model in MODELS), ("DeepSeek-V3", torch.bfloat16), ("Qwen3", torch.float16)],
)
def test_models(model, dtype):
    experts, top_k, options = options_of(model)
    assert_routed(randn(37, experts).to(dtype) * 2, top_k, **options)  # 16 bits have ties


@pytest.mark.parametrize("model", MODELS)
def test_special_values(model):
    experts, top_k, options = options_of(model)
    x = randn(16, experts)
    x[0, experts // 2], x[1, experts // 3], x[2, -1] = math.nan, math.inf, -math.inf
    x[3], x[4], x[5], x[6], x[7] = 0, math.nan, -math.inf, math.inf, -300.0
    x[8, ::2], x[8, 1::2] = -0.0, 0.0
    x[9, : experts // 2] = math.nan
    x[10] = torch.finfo(torch.float32).max
    x[11] = torch.arange(experts) % 3
    x[12, ::3] = math.inf
    x[13] *= 1e-42
    assert_routed(x, top_k, **options)
    ids = dg.route_top_k(x, top_k, **options)[1]
    assert ((ids >= 0) & (ids < experts)).all()
    assert all(len(set(row)) == top_k for row in ids.tolist())


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits(scoring, renormalize, dtype):
    """Masks are often the lowest number. Scores of 0 are chosen, too, and none of them is -0."""
    x = randn(40, 64)
    x[:, ::3] = torch.finfo(dtype).min
    x[1], x[2, 0], x[3, 1] = -1e17, 1e17, torch.finfo(dtype).max
    x[4:] = torch.logspace(1, 38.5, 36 * 64).view(36, 64)
    x[4:, ::2] *= -1
    x = x.to(dtype)
    options = {"scoring": scoring, "renormalize": renormalize}
    assert_routed(x, 64, **options)
    assert not dg.route_top_k(x, 64, **options)[0].signbit().any()


def test_ties_go_to_the_lower_index():
    _, ids = dg.route_top_k(torch.zeros(1, 256), 8)
    assert ids.tolist() == [list(range(8))]
    bias = torch.zeros(256)
    bias[128:] = -0.0
    options = {"scoring": "sigmoid", "bias": bias, "num_groups": 8, "top_groups": 2}
    assert dg.route_top_k(torch.zeros(1, 256), 40, **options)[1].tolist() == [list(range(40))]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_sizes(data):
    groups = data.draw(st.sampled_from([1, 8]))
    experts = groups * data.draw(st.integers(2, 128 // groups))  # one or two to a lane
    top_groups = data.draw(st.integers(1, groups))
    top_k = data.draw(st.integers(1, min(64, top_groups * experts // groups)))
    tokens = data.draw(st.integers(0, 9))
    logits = {
        "dense": lambda: randn(tokens, experts),
        "transposed": lambda: randn(experts, tokens).T,
        "strided": lambda: randn(2 * tokens, 2 * experts)[::2, ::2],
        "expanded": lambda: randn(1, experts).expand(tokens, -1),
    }[data.draw(st.sampled_from(["dense", "transposed", "strided", "expanded"]))]()
    grouped = {"num_groups": groups, "top_groups": top_groups} if groups > 1 or data.draw(st.booleans()) else {}
    assert_routed(
        logits,
        top_k,
        scoring=data.draw(st.sampled_from(["softmax", "sigmoid"])),
        bias=randn(experts, seed=1) if data.draw(st.booleans()) else None,
        renormalize=data.draw(st.booleans()),
        **grouped,
    )


@pytest.mark.parametrize("groups", [2, 32])
def test_few_and_many_groups(groups):
    logits = randn(20, 96).round(decimals=1)  # with equal experts
    options = {"scoring": "sigmoid", "bias": randn(96, seed=1).round(decimals=1)}
    assert_routed(logits, 3, num_groups=groups, top_groups=groups // 2, **options)


def test_a_token_has_the_same_bits_in_any_batch():
    experts, top_k, options = options_of("DeepSeek-V3")
    logits = randn(300, experts)  # so many have a wave each, and a few a workgroup
    weights, ids = dg.route_top_k(logits, top_k, **options)
    for token in (0, 13, 299):
        alone = dg.route_top_k(logits[token : token + 1], top_k, **options)
        assert alone[0].equal(weights[token : token + 1])
        assert alone[1].equal(ids[token : token + 1])


def test_a_captured_choice_reads_new_logits():
    logits = randn(5, 64)
    dg.route_top_k(logits, 4)
    with hip.runtime().capture() as graph:
        weights, ids = dg.route_top_k(logits, 4)
    logits.copy_(randn(5, 64, seed=1))
    graph.replay()
    expected_weights, expected_ids = route_top_k_reference(logits, 4)
    assert weights.equal(expected_weights)
    assert ids.equal(expected_ids)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": torch.zeros(2, 513)}, ValueError, r"logits must be \[tokens, 1 to 512 experts\]"),
        ({"logits": torch.zeros(2, 0)}, ValueError, r"logits must be \[tokens, 1 to 512 experts\]"),
        ({"logits": torch.zeros(2, 64).double()}, TypeError, "logits must be bfloat16, float16 or float32"),
        ({"top_k": 65}, ValueError, "top_k must be at most 64"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1"),
        ({"top_k": 17, "num_groups": 8, "top_groups": 2}, ValueError, "top_k must be at most 16"),
        ({"scoring": "relu"}, ValueError, "scoring must be one of"),
        ({"bias": torch.zeros(63)}, ValueError, "bias must have shape"),
        ({"bias": torch.zeros(64).half()}, TypeError, "bias must be float32"),
        ({"num_groups": 8}, ValueError, "num_groups and top_groups must be given together"),
        ({"num_groups": 6, "top_groups": 2}, ValueError, "num_groups must be one of"),
        ({"num_groups": 8, "top_groups": 9}, ValueError, "top_groups must be at most 8"),
        ({"scale": math.inf}, ValueError, "scale must be finite"),
        ({"scale": "1"}, TypeError, "scale must be a number"),
        ({"renormalize": 1}, TypeError, "renormalize must be a bool"),
    ],
)
def test_refuses(change, error, message):
    with pytest.raises(error, match=message):
        dg.route_top_k(**{"logits": torch.zeros(2, 64), "top_k": 4} | change)


def test_groups_of_one_have_no_second_expert():
    with pytest.raises(ValueError, match="num_groups must leave two experts in each group"):
        dg.route_top_k(torch.zeros(2, 8), 1, bias=torch.zeros(8), num_groups=8, top_groups=2)

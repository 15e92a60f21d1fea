"""The plug-in in vLLM's real modules.

``DG_TEST_VLLM`` names folders for ``sys.path``, joined like those of PATH: that of an unpacked wheel, and those of what
it imports. ``.ci/servers`` makes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from helpers.int4_packings import int4

import deep_gemm_rocm as dg
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import attention_reference, fused_moe_reference, visible_keys

FOLDERS = os.environ.get("DG_TEST_VLLM")
if not FOLDERS:
    pytest.skip("DG_TEST_VLLM names no unpacked vLLM", allow_module_level=True)
sys.path += [str(Path(__file__).parent / "stand_ins"), *FOLDERS.split(os.pathsep)]
os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}

from deep_gemm_rocm.integrations import vllm_plugin  # noqa: E402  it imports vLLM

OUTCOMES = vllm_plugin.register()

from compressed_tensors.quantization import QuantizationArgs  # noqa: E402
from vllm._aiter_ops import rocm_aiter_ops  # noqa: E402
from vllm.config import (  # noqa: E402
    AttentionConfig,
    CacheConfig,
    VllmConfig,
    get_current_vllm_config,
    set_current_vllm_config,
)
from vllm.model_executor import parameter as parameters  # noqa: E402
from vllm.model_executor.kernels import linear  # noqa: E402
from vllm.model_executor.layers.attention import mla_attention  # noqa: E402
from vllm.model_executor.layers.fused_moe import modular_kernel  # noqa: E402
from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: E402
from vllm.model_executor.layers.fused_moe.config import (  # noqa: E402
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
    fp8_w8a8_moe_quant_config,
    ocp_mx_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.oracle import fp8 as oracle  # noqa: E402
from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as mxfp4_oracle  # noqa: E402
from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import (  # noqa: E402
    make_moe_prepare_and_finalize_no_dp_ep,
)
from vllm.model_executor.layers.quantization import auto_awq, auto_gptq, moe_wna16  # noqa: E402
from vllm.model_executor.layers.quantization import mxfp4 as mxfp4_methods  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (  # noqa: E402
    compressed_tensors_moe_wna16 as wna16_methods,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (  # noqa: E402
    compressed_tensors_wNa16 as wna16_schemes,
)
from vllm.model_executor.layers.quantization.quark import quark_moe  # noqa: E402
from vllm.model_executor.layers.quantization.utils import quant_utils, w8a8_utils  # noqa: E402
from vllm.platforms import current_platform, rocm  # noqa: E402
from vllm.scalar_type import scalar_types  # noqa: E402
from vllm.v1.attention import selector  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends import registry  # noqa: E402
from vllm.v1.attention.ops import rocm_aiter_mla_sparse as sparse  # noqa: E402
from vllm.v1.worker import workspace  # noqa: E402
from vllm.v1.worker.utils import select_common_block_size  # noqa: E402

FNUZ, OCP = torch.float8_e4m3fnuz, torch.float8_e4m3fn
BLOCKS = (quant_utils.kFp8Static128BlockSym, quant_utils.kFp8Dynamic128Sym)
CHANNELS = (quant_utils.kFp8StaticChannelSym, quant_utils.kFp8DynamicTokenSym)
# Quantising both operands to e4m3 changes a sum of products of normal numbers by about 1e-3 in this measure.
QUANTISED = 2e-3


@pytest.fixture(autouse=True)
def vllm_config(monkeypatch):
    if not hip.runtime().is_simulated:
        pytest.skip("runs on CPU tensors, which only the simulator takes")
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)  # needs a GPU
    with set_current_vllm_config(VllmConfig()):
        yield


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def checkpoint(weight: torch.Tensor, *, of_blocks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight in OCP FP8 with its scales, as checkpoints have it: [N, K], scales of 128x128 blocks or of channels."""
    n, k = weight.shape
    blocks = weight.view(n // 128, 128, k // 128, 128) if of_blocks else weight.view(n, 1, 1, k)
    scales = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(OCP).max
    return (blocks / scales).to(OCP).view(n, k), scales[:, 0, :, 0].clone()


def test_every_part_is_installed():
    parts = (
        "FP8 linear layers", "FP8 experts", "MXFP4 layers and experts", "int4 layers and experts", "MLA attention",
        "the sparse indexer",
    )  # fmt: skip
    assert dict.fromkeys(parts, "installed") == OUTCOMES
    assert vllm_plugin.register() == OUTCOMES


def test_nothing_opens_the_gate_of_deep_gemm():
    assert not current_platform.support_deep_gemm()
    assert "VLLM_USE_DEEP_GEMM" not in os.environ
    assert "deep_gemm" not in sys.modules


def kernel_for(keys, n, k, out_dtype=torch.bfloat16):
    weight_key, activation_key = keys
    kernel = linear.init_fp8_linear_kernel(activation_key, weight_key, torch.bfloat16, out_dtype, (n, k))
    # The quantisation of this layer is vLLM's; its kernel needs a GPU, its torch operators don't.
    kernel.quant_fp8._forward_method = kernel.quant_fp8.forward_native
    return kernel


@pytest.mark.parametrize("m", [1, 77])
@pytest.mark.parametrize("keys", [BLOCKS, CHANNELS], ids=["blocks", "channels"])
def test_a_checkpoints_linear_layer(keys, m):
    """An OCP weight goes through vLLM's normalisation to FNUZ and through our kernel."""
    n, k, of_blocks = 384, 512, keys is BLOCKS
    weight, x, bias = randn(n, k), randn(m, k, seed=1).bfloat16(), randn(n, seed=2).bfloat16()
    data, scales = checkpoint(weight, of_blocks=of_blocks)
    kernel, layer = kernel_for(keys, n, k), torch.nn.Module()
    assert type(kernel).__module__ == "deep_gemm_rocm.integrations.vllm_linear"
    if of_blocks:
        layer.weight, layer.weight_scale_inv = parameter(data), parameter(scales)
    else:  # as compressed-tensors prepares it
        data, scales, _ = w8a8_utils.normalize_e4m3fn_to_e4m3fnuz(data, scales)
        layer.weight, layer.weight_scale = parameter(data.t()), parameter(scales)
    kernel.process_weights_after_loading(layer)
    assert layer.weight.dtype == FNUZ
    actual = kernel.apply_weights(layer, x.view(1, m, k), bias)
    assert actual.shape == (1, m, n)
    assert dg.calc_diff(actual[0], x.float() @ weight.T + bias.float()) < QUANTISED
    compiled = torch.compile(lambda x: kernel.apply_weights(layer, x, bias), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), actual[0])


def parameter(tensor):
    return torch.nn.Parameter(tensor, requires_grad=False)


@pytest.mark.parametrize(
    ("keys", "n", "k"),
    [((quant_utils.kFp8StaticTensorSym, quant_utils.kFp8StaticTensorSym), 256, 256), (CHANNELS, 256, 264)],
    ids=["tensors", "ragged K"],
)
def test_other_linear_layers_are_left_to_vllm(keys, n, k, monkeypatch):
    chosen = []
    monkeypatch.setattr(linear, "logger", linear.logger)
    for kernel in linear._POSSIBLE_FP8_KERNELS[linear.PlatformEnum.ROCM]:
        config = linear.FP8ScaledMMLinearLayerConfig(*keys, (n, k), torch.bfloat16, torch.bfloat16)
        chosen.append(kernel.can_implement(config)[0])
    assert not chosen[0]
    assert any(chosen[1:])


def moe_config(experts, top_k, hidden, intermediate, **others):
    return FusedMoEConfig(
        num_experts=experts,
        experts_per_token=top_k,
        hidden_dim=hidden,
        intermediate_size=intermediate,
        num_local_experts=others.pop("local", experts),
        num_logical_experts=experts,
        activation=others.pop("activation", MoEActivation.SILU),
        device="cpu",
        routing_method=RoutingMethodType.Renormalize,
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=torch.bfloat16,
        **others,
    )


@pytest.mark.parametrize("keys", [BLOCKS, CHANNELS], ids=["blocks", "channels"])
def test_the_oracle_chooses_our_experts(keys):
    backend, experts = oracle.select_fp8_moe_backend(moe_config(8, 2, 256, 128), *keys)
    assert backend is oracle.Fp8MoeBackend.TRITON  # for which vLLM leaves weights as they are
    assert experts.__module__ == "deep_gemm_rocm.integrations.vllm_experts"


@pytest.mark.parametrize("others", [{"moe_backend": "triton"}, {"has_bias": True}])
def test_the_oracle_chooses_others(others):
    _, experts = oracle.select_fp8_moe_backend(moe_config(8, 2, 256, 128, **others), *BLOCKS)
    assert experts.__name__ == "TritonExperts"


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("with_map", [False, True])
@pytest.mark.parametrize("keys", [BLOCKS, CHANNELS], ids=["blocks", "channels"])
@pytest.mark.parametrize(("tokens", "most"), [(1, None), (45, None), (45, 16)])
def test_experts_in_vllms_layer(keys, tokens, most, with_map, limit, monkeypatch):
    """vLLM's own modular kernel prepares the tokens, runs our experts and finalises: what fp32 makes of the weights.

    More than ``most`` tokens take several calls.
    """
    if most is not None:
        monkeypatch.setattr("deep_gemm_rocm.integrations.vllm_experts.MAX_TOKENS", most)
    of_blocks = keys is BLOCKS
    if limit is not None and not of_blocks:
        pytest.skip("vLLM keeps clamped activations with scales of channels")
    experts, top_k, hidden, intermediate = 6, 3, 256, 128
    local = 4 if with_map else experts
    gate_up, down = randn(local, 2 * intermediate, hidden) / 16, randn(local, hidden, intermediate, seed=1) / 8
    weights = []
    for tensor in (gate_up, down):
        data, scales = zip(*(checkpoint(each, of_blocks=of_blocks) for each in tensor), strict=True)
        data, scales, _ = w8a8_utils.normalize_e4m3fn_to_e4m3fnuz(torch.stack(data), torch.stack(scales))
        weights.append((data, scales))
    config = moe_config(experts, top_k, hidden, intermediate, local=local, swiglu_limit=limit)
    quant = fp8_w8a8_moe_quant_config(
        w1_scale=weights[0][1],
        w2_scale=weights[1][1],
        block_shape=[128, 128] if of_blocks else None,
        per_act_token_quant=not of_blocks,
        per_out_ch_quant=not of_blocks,
        gemm1_clamp_limit=limit,
    )
    _, kind = oracle.select_fp8_moe_backend(config, *keys)
    workspace.init_workspace_manager(torch.device("cpu"))
    kernel = modular_kernel.FusedMoEKernel(
        make_moe_prepare_and_finalize_no_dp_ep(use_monolithic=False), kind(moe_config=config, quant_config=quant)
    )
    x = randn(tokens, hidden, seed=2).bfloat16()
    chosen = randn(tokens, experts, seed=3).softmax(-1).topk(top_k)
    mapping = torch.tensor([-1, 0, 1, -1, 2, 3], dtype=torch.int32) if with_map else None
    actual = applied(kernel, x, weights[0][0], weights[1][0], chosen, experts, mapping)
    # The reference takes the same FP8 values, so only the activations' quantisation is left.
    gate_up, down = (dequantised(*weight) for weight in weights)
    x = dequantised(*(dg.per_token_cast_to_fp8(x) if of_blocks else dg.per_row_cast_to_fp8(x)))
    assert dg.calc_diff(actual, layer_of_experts(x, gate_up, down, chosen, mapping, limit)) < QUANTISED / 2


def applied(kernel, x, w1, w2, chosen, experts, mapping=None, activation=MoEActivation.SILU):
    return kernel.apply(
        hidden_states=x,
        w1=w1,
        w2=w2,
        topk_ids=chosen.indices.int(),
        topk_weights=chosen.values,
        activation=activation,
        global_num_experts=experts,
        expert_map=mapping,
        apply_router_weight_on_input=False,
    )


def layer_of_experts(x, gate_up, down, chosen, mapping=None, limit=None):
    results = torch.zeros(x.shape)
    for token, ids in enumerate(chosen.indices.tolist()):
        for place, expert in enumerate(ids):
            own = expert if mapping is None else int(mapping[expert])
            if own >= 0:
                gate, up = (gate_up[own] @ x[token]).chunk(2)
                if limit is not None:
                    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
                activated = torch.nn.functional.silu(gate) * up
                results[token] += chosen.values[token, place] * (down[own] @ activated)
    return results


def mxfp4(weight):
    """A weight in MXFP4 as checkpoints have it: two values to a byte, and exponents; and the values."""
    packed, in_ints = dg.per_token_cast_to_fp4(weight, True, 32, use_packed_ue8m0=True)
    exponents = in_ints.view(torch.uint8)[:, : weight.shape[1] // 32].contiguous()
    return packed.view(torch.uint8), exponents, dg.cast_back_from_fp4(packed, in_ints, 32, use_packed_ue8m0=True)


@pytest.mark.parametrize("m", [1, 77])
@pytest.mark.parametrize("activation", [quant_utils.kMxfp4Dynamic, quant_utils.kFp8Dynamic128Sym])
def test_a_linear_layer_in_mxfp4(m, activation):
    n, k = 384, 512
    data, exponents, values = mxfp4(randn(n, k))
    x, bias = randn(m, k, seed=1).bfloat16(), randn(n, seed=2).bfloat16()
    kernel, layer = linear.init_mxfp4_linear_kernel(activation), torch.nn.Module()
    assert type(kernel).__name__ == "DeepGemmRocmMxfp4Kernel"
    layer.weight, layer.weight_scale = parameter(data), parameter(exponents)
    kernel.process_weights_after_loading(layer)
    assert layer.weight.dtype == FNUZ
    assert torch.equal(dequantised(layer.weight, layer.weight_scale), values)
    actual = kernel.apply_weights(layer, x.view(1, m, k), bias)
    assert (actual.shape, actual.dtype) == ((1, m, n), torch.bfloat16)
    assert dg.calc_diff(actual[0], x.float() @ values.T + bias.float()) < QUANTISED / 2
    compiled = torch.compile(lambda x: kernel.apply_weights(layer, x, bias), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), actual[0])


@pytest.fixture
def bf16_model():
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("m", "factor"), [(1, 1), (77, 1), (5, 2.0**40)])
def test_a_linear_layer_with_weights_in_mxfp4(m, factor, bf16_model):
    """Weights are shuffled, unless their scales are too large for that."""
    n, k = 384, 544
    data, exponents, values = mxfp4(randn(n, k).float() * factor)
    x, bias = randn(m, k, seed=1).bfloat16(), randn(n, seed=2).bfloat16()
    kernel, layer = linear.init_mxfp4_linear_kernel(None), torch.nn.Module()
    assert type(kernel).__name__ == "DeepGemmRocmMxfp4WeightKernel"
    layer.weight, layer.weight_scale = parameter(data), parameter(exponents)
    kernel.process_weights_after_loading(layer)
    assert layer.weight.dtype == (torch.int64 if factor == 1 else data.dtype)
    actual = kernel.apply_weights(layer, x.view(1, m, k), bias)
    assert (actual.shape, actual.dtype) == ((1, m, n), torch.bfloat16)
    assert dg.calc_diff(actual[0], x.float() @ values.float().T + bias.float()) < 1e-5  # rounding to bf16
    compiled = torch.compile(lambda x: kernel.apply_weights(layer, x, bias), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), actual[0])


@pytest.fixture(params=["columns", "transposed"])
def strided(request):
    """Tokens of 512 values that aren't next to each other, which vLLM's own kernels take."""
    return randn(7, 532).bfloat16()[:, :512] if request.param == "columns" else randn(512, 7).bfloat16().T


def test_strided_tokens_of_a_linear_layer_with_weights_in_mxfp4(strided, bf16_model):
    data, exponents, values = mxfp4(randn(384, 512))
    kernel, layer = linear.init_mxfp4_linear_kernel(None), torch.nn.Module()
    layer.weight, layer.weight_scale = parameter(data), parameter(exponents)
    kernel.process_weights_after_loading(layer)
    actual = kernel.apply_weights(layer, strided)
    assert dg.calc_diff(actual, strided.double() @ values.double().T) < 1e-5  # rounding to bf16


def test_other_layers_in_mxfp4_are_left_to_vllm(monkeypatch):
    with pytest.raises(ValueError, match="DeepGemmRocmMxfp4WeightKernel: supports bf16 models only"):
        linear.init_mxfp4_linear_kernel(None)  # vLLM's own kernels need packages that aren't here
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(ValueError, match="DeepGemmRocmMxfp4Kernel: VLLM_BATCH_INVARIANT"):
        linear.init_mxfp4_linear_kernel(quant_utils.kMxfp4Dynamic)


@pytest.fixture
def mxfp4_activations(monkeypatch):
    monkeypatch.setattr(mxfp4_oracle, "_user_moe_activation_override", lambda: None)  # asks for a model's config
    return quant_utils.kMxfp4Dynamic


def test_the_oracle_chooses_our_experts_of_mxfp4(mxfp4_activations):
    emulation = mxfp4_oracle.Mxfp4MoeBackend.EMULATION
    backend, experts = mxfp4_oracle.select_mxfp4_moe_backend(moe_config(8, 2, 256, 128), mxfp4_activations)
    assert (backend, experts.__name__) == (emulation, "DeepGemmRocmMxfp4Experts")
    theirs = mxfp4_oracle.backend_to_kernel_cls(emulation)[1:]
    assert quark_moe.backend_to_kernel_cls(emulation) == theirs  # which takes the first for MXFP6
    for others in ({"moe_backend": "emulation"}, {"activation": MoEActivation.SWIGLUSTEP}):
        with pytest.raises((ValueError, NotImplementedError), match="requires amd-quark package"):
            mxfp4_oracle.select_mxfp4_moe_backend(moe_config(8, 2, 256, 128, **others), mxfp4_activations)


def layer_of_mxfp4(experts, hidden, intermediate):
    layer, values = torch.nn.Module(), {}
    for name, weight in (
        ("w13", randn(experts, 2 * intermediate, hidden) / 16),
        ("w2", randn(experts, hidden, intermediate, seed=1) / 8),
    ):
        parts = (torch.stack(part) for part in zip(*map(mxfp4, weight), strict=True))
        data, exponents, values[name] = parts
        setattr(layer, f"{name}_weight", parameter(data))
        setattr(layer, f"{name}_weight_scale", parameter(exponents))
    return layer, values


def test_experts_of_gpt_oss_in_vllms_layer(mxfp4_activations):
    """Rows of gate and up take turns, and there are biases."""
    tokens, experts, top_k, hidden, intermediate = 45, 6, 3, 288, 96
    layer, values = layer_of_mxfp4(experts, hidden, intermediate)
    biases = {"w13": randn(experts, 2 * intermediate, seed=4).bfloat16(), "w2": randn(experts, hidden).bfloat16()}
    for name, bias in biases.items():
        setattr(layer, f"{name}_bias", parameter(bias.clone()))
    config = moe_config(experts, top_k, hidden, intermediate, activation=MoEActivation.SWIGLUOAI, has_bias=True)
    backend, kind = mxfp4_oracle.select_mxfp4_moe_backend(config, mxfp4_activations)
    assert (backend, kind.__name__) == (mxfp4_oracle.Mxfp4MoeBackend.EMULATION, "DeepGemmRocmMxfp4Experts")
    quant = ocp_mx_moe_quant_config(
        "mxfp4",
        w1_scale=layer.w13_weight_scale,
        w2_scale=layer.w2_weight_scale,
        weight_dtype="mxfp4",
        w1_bias=layer.w13_bias,
        w2_bias=layer.w2_bias,
    )
    workspace.init_workspace_manager(torch.device("cpu"))
    kernel = mxfp4_oracle.make_mxfp4_moe_kernel(quant, config, kind, backend)
    kernel.fused_experts.process_weights_after_loading(layer)
    x = randn(tokens, hidden, seed=2).bfloat16()
    exact_x = dg.cast_back_from_fp8(*dg.per_token_cast_to_fp8(x))
    chosen = randn(tokens, experts, seed=3).softmax(-1).topk(top_k)
    weights = layer.w13_weight, layer.w2_weight
    actual = applied(kernel, x, *weights, chosen, experts, activation=MoEActivation.SWIGLUOAI)
    in_order = [torch.cat((both[:, ::2], both[:, 1::2]), 1) for both in (values["w13"], biases["w13"])]
    clamps = {"alpha": 1.702, "limit": 7.0, "gate_up_bias": in_order[1], "down_bias": biases["w2"]}
    expected = fused_moe_reference(exact_x, in_order[0], values["w2"], chosen.values, chosen.indices, **clamps)[0]
    assert dg.calc_diff(actual, expected) < QUANTISED / 2


@pytest.mark.parametrize("tokens", [1, 45])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_experts_of_mxfp4_in_vllms_layer(tokens, limit, mxfp4_activations):
    """As QuarkOCP_MX_MoEMethod sets them up and calls them."""
    experts, top_k, hidden, intermediate = 6, 3, 288, 128
    layer, values = layer_of_mxfp4(experts, hidden, intermediate)
    config = moe_config(experts, top_k, hidden, intermediate, swiglu_limit=limit)
    backend, kind = mxfp4_oracle.select_mxfp4_moe_backend(config, mxfp4_activations)
    quant = ocp_mx_moe_quant_config(
        "mxfp4",
        w1_scale=layer.w13_weight_scale,
        w2_scale=layer.w2_weight_scale,
        weight_dtype="mxfp4",
        gemm1_clamp_limit=limit,
    )
    workspace.init_workspace_manager(torch.device("cpu"))
    kernel = mxfp4_oracle.make_mxfp4_moe_kernel(quant, config, kind, backend)
    kernel.fused_experts.process_weights_after_loading(layer)
    assert layer.w13_weight.dtype == layer.w2_weight.dtype == torch.int64  # sixteen values, shuffled
    x = randn(tokens, hidden, seed=2).bfloat16()
    chosen = randn(tokens, experts, seed=3).softmax(-1).topk(top_k)
    actual = applied(kernel, x, layer.w13_weight, layer.w2_weight, chosen, experts)
    x = dg.cast_back_from_fp8(*dg.per_token_cast_to_fp8(x))
    assert dg.calc_diff(actual, layer_of_experts(x, values["w13"], values["w2"], chosen, limit=limit)) < QUANTISED / 2


def loaded(method, experts, hidden, intermediate, weights):
    """A layer of vLLM's with a checkpoint's weights, as it is when a model has been loaded."""
    layer = torch.nn.Module()
    layer._expert_routing_tables = lambda: None
    sizes = method.maybe_roundup_sizes(hidden, intermediate, torch.bfloat16, method.moe.moe_parallel_config)
    assert sizes == (hidden, intermediate)  # multiples of 32 aren't padded
    method.create_weights(layer, experts, *sizes, torch.bfloat16, weight_loader=None)
    for name, weight in weights.items():
        getattr(layer, name).data.copy_(weight)
    workspace.init_workspace_manager(torch.device("cpu"))
    method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize("model", ["gpt-oss", "DeepSeek-V4"])
@pytest.mark.parametrize("tokens", [1, 45])
def test_a_models_experts_with_bf16_activations(tokens, model, mxfp4_activations):
    """vLLM's own methods choose ours, load a checkpoint's weights and call it; nothing rounds but bf16."""
    experts, top_k, hidden, intermediate = 6, 3, 288, 96
    of_gpt_oss = model == "gpt-oss"
    checkpoint_layer, values = layer_of_mxfp4(experts, hidden, intermediate)
    weights = dict(checkpoint_layer.named_parameters())
    clamps = {"limit": 0.5}
    if of_gpt_oss:
        weights["w13_bias"] = randn(experts, 2 * intermediate, seed=4).bfloat16()
        weights["w2_bias"] = randn(experts, hidden, seed=5).bfloat16()
        values["w13"], bias = (
            torch.cat((rows[:, ::2], rows[:, 1::2]), 1) for rows in (values["w13"], weights["w13_bias"])
        )
        clamps = {"alpha": 1.702, "limit": 7.0, "gate_up_bias": bias, "down_bias": weights["w2_bias"]}
    activation = MoEActivation.SWIGLUOAI if of_gpt_oss else MoEActivation.SILU
    others = {"activation": activation, "has_bias": of_gpt_oss, "swiglu_limit": None if of_gpt_oss else 0.5}
    config = moe_config(experts, top_k, hidden, intermediate, **others)
    method = (mxfp4_methods.GptOssMxfp4MoEMethod if of_gpt_oss else mxfp4_methods.Mxfp4MoEMethod)(config)
    assert method.experts_cls.__name__ == "DeepGemmRocmMxfp4WeightExperts"
    layer = loaded(method, experts, hidden, intermediate, weights)
    x = randn(tokens, hidden, seed=2).bfloat16()
    chosen = randn(tokens, experts, seed=3).softmax(-1).topk(top_k)
    w1, w2 = layer.w13_weight, layer.w2_weight
    actual = applied(method.moe_kernel, x, w1, w2, chosen, experts, activation=activation)
    expected = fused_moe_reference(x.float(), values["w13"], values["w2"], chosen.values, chosen.indices, **clamps)[0]
    assert dg.calc_diff(actual, expected) < 2e-5


def test_other_experts_with_bf16_activations_are_left_to_vllm(mxfp4_activations, monkeypatch):
    for others in ({"moe_backend": "triton"}, {"activation": MoEActivation.SWIGLUSTEP}):
        with pytest.raises((ValueError, NotImplementedError), match=r"does not support|supports the deployment"):
            mxfp4_methods.GptOssMxfp4MoEMethod(moe_config(8, 2, 256, 128, **others))
    monkeypatch.setattr(mxfp4_oracle, "_user_moe_activation_override", lambda: quant_utils.kMxfp4Dynamic)
    assert mxfp4_methods.GptOssMxfp4MoEMethod(moe_config(8, 2, 256, 128)).experts_cls.__name__ == (
        "DeepGemmRocmMxfp4Experts"
    )


@pytest.fixture
def one_rank(monkeypatch):
    monkeypatch.setattr(parameters, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameters, "get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setattr(moe_wna16, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(moe_wna16, "get_tp_group", lambda: torch.nn.Parameter(torch.zeros(0)))


def linear_method(packing, group, with_zeros):
    """vLLM's method of a checkpoint's linear layers, and the names of weight, scales and zeros."""
    if packing == "compressed-tensors":
        strategy = "channel" if group == -1 else "group"
        scheme = wna16_schemes.CompressedTensorsWNA16(strategy, 4, None if group == -1 else group, not with_zeros)
        return scheme, ("weight_packed", "weight_scale", "weight_zero_point")
    if packing == "awq":
        config = auto_awq.AutoAWQConfig(4, group, True, False)
        method = auto_awq.AutoAWQLinearMethod(config)
    else:
        config = auto_gptq.AutoGPTQConfig(4, group, False, True, False, {}, {})
        method = auto_gptq.AutoGPTQLinearMethod(config)
    return method, ("qweight", "scales", "qzeros")


@pytest.mark.parametrize(
    ("packing", "group", "with_zeros"),
    [
        ("compressed-tensors", 32, False),
        ("compressed-tensors", 64, True),
        ("compressed-tensors", -1, False),
        ("awq", 128, True),
        ("gptq", 128, False),
    ],
)
def test_a_linear_layer_in_int4(packing, group, with_zeros, one_rank, bf16_model):
    m, n, k = 45, 384, 512
    weight = int4(packing, n, k, k if group == -1 else group, with_zeros, torch.bfloat16)
    method, names = linear_method(packing, group, with_zeros)
    layer = torch.nn.Module()
    sizes = {"input_size": k, "output_size": n, "input_size_per_partition": k, "output_partition_sizes": [n]}
    method.create_weights(layer, **sizes, params_dtype=torch.bfloat16, weight_loader=None)
    for name, tensor in zip(names, weight.arguments, strict=True):
        if tensor is not None:
            getattr(layer, name).data.copy_(tensor)
    method.process_weights_after_loading(layer)
    assert getattr(layer, names[0]).shape == (n, k // 8)
    x, bias = randn(m, k, seed=1).bfloat16(), randn(n, seed=2).bfloat16()
    apply = getattr(method, "apply_weights", None) or method.apply
    actual = apply(layer, x.view(1, m, k), bias)
    assert (actual.shape, actual.dtype) == ((1, m, n), torch.bfloat16)
    assert dg.calc_diff(actual[0], x.double() @ weight.values.T + bias.double()) < 1e-5  # rounding to bf16
    compiled = torch.compile(lambda x: apply(layer, x, bias), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), actual[0])


def test_strided_tokens_of_a_linear_layer_in_int4(strided, one_rank, bf16_model):
    n, k = 384, 512
    weight = int4("gptq", n, k, 128, False, torch.bfloat16)
    method, names = linear_method("gptq", 128, False)
    layer = torch.nn.Module()
    sizes = {"input_size": k, "output_size": n, "input_size_per_partition": k, "output_partition_sizes": [n]}
    method.create_weights(layer, **sizes, params_dtype=torch.bfloat16, weight_loader=None)
    for name, tensor in zip(names[:2], weight.arguments[:2], strict=True):
        getattr(layer, name).data.copy_(tensor)
    method.process_weights_after_loading(layer)
    actual = method.apply(layer, strided)
    assert dg.calc_diff(actual, strided.double() @ weight.values.T) < 1e-5  # rounding to bf16


def test_other_linear_layers_in_int4_are_left_to_vllm(monkeypatch):
    kernel = linear._POSSIBLE_KERNELS[linear.PlatformEnum.ROCM][0]
    assert kernel.__name__ == "DeepGemmRocmInt4Kernel"
    good = {"full_weight_shape": (512, 64), "partition_weight_shape": (512, 64), "weight_type": scalar_types.uint4b8}
    good |= {"act_type": torch.bfloat16, "group_size": 64, "zero_points": False}
    assert kernel.can_implement(linear.MPLinearLayerConfig(**good))[0]
    for change in (
        {"weight_type": scalar_types.uint8b128},
        {"weight_type": scalar_types.uint4},
        {"act_type": torch.float16},
        {"group_size": 16},
        {"group_size": 96},
    ):
        assert not kernel.can_implement(linear.MPLinearLayerConfig(**good | change))[0]
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert "VLLM_BATCH_INVARIANT" in kernel.can_implement(linear.MPLinearLayerConfig(**good))[1]


def test_awq_layers_in_f16_are_left_to_vllm(one_rank, monkeypatch):
    method, _ = linear_method("awq", 128, True)
    layer, theirs = torch.nn.Module(), []
    sizes = {"input_size": 256, "output_size": 64, "input_size_per_partition": 256, "output_partition_sizes": [64]}
    method.create_weights(layer, **sizes, params_dtype=torch.float16, weight_loader=None)
    method.process_weights_after_loading(layer)
    assert layer.qweight.shape == (256, 8)
    monkeypatch.setattr(auto_awq.ops, "awq_gemm", lambda x, *others: theirs.append(others) or x.new_zeros(len(x), 64))
    method.apply(layer, torch.zeros(3, 256).half())
    assert len(theirs) == 1


def experts_of_int4(packing, experts, hidden, intermediate, group, with_zeros):
    """Gates, ups and downs of each expert as a checkpoint has them, by vLLM's names of the three."""
    shapes = {"w1": (intermediate, hidden), "w3": (intermediate, hidden), "w2": (hidden, intermediate)}
    return {
        (name, expert): int4(packing, *shape, group, with_zeros, torch.bfloat16, seed=expert + 10 * int(name[1]))
        for name, shape in shapes.items()
        for expert in range(experts)
    }


def load(layer, weights, names):
    """Loads a checkpoint's parameters by vLLM's loaders, where layers have some of their own."""

    def copy(parameter, loaded, name, shard, expert, return_success=False):
        own = parameter.data[expert]
        half = len(own) // 2
        (own if shard == "w2" else own[:half] if shard == "w1" else own[half:]).copy_(loaded)

    for (shard, expert), weight in weights.items():
        for name, tensor in zip(names, weight.arguments, strict=True):
            whole = f"{'w2' if shard == 'w2' else 'w13'}_{name}"
            if tensor is not None:
                loader = getattr(getattr(layer, whole), "weight_loader", None) or copy
                loader(getattr(layer, whole), tensor, whole, shard, expert)
    return copy


@pytest.mark.parametrize("tokens", [1, 45])
@pytest.mark.parametrize(
    ("packing", "group", "with_zeros"),
    [("compressed-tensors", 32, False), ("compressed-tensors", 64, True), ("awq", 64, True), ("gptq", 32, False)],
)
def test_experts_in_int4(packing, group, with_zeros, tokens, one_rank):
    """vLLM's own methods choose ours, load a checkpoint's weights and call it; nothing rounds but bf16."""
    experts, top_k, hidden, intermediate = 6, 3, 320, 128
    weights = experts_of_int4(packing, experts, hidden, intermediate, group, with_zeros)
    config = moe_config(experts, top_k, hidden, intermediate)
    if packing == "compressed-tensors":
        checkpoint = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group)
        checkpoint.symmetric = not with_zeros
        method = wna16_methods.CompressedTensorsWNA16MoEMethod(checkpoint, None, config)
        names = ("weight_packed", "weight_scale", "weight_zero_point")
    else:
        checkpoint = moe_wna16.MoeWNA16Config(packing, 4, group, with_zeros, False, None, {})
        method = moe_wna16.MoeWNA16Method(checkpoint, config)
        names = ("qweight", "scales", "qzeros")
    assert method.experts_cls.__name__ == "DeepGemmRocmInt4Experts"
    layer = torch.nn.Module()
    layer._expert_routing_tables, layer.moe_config = lambda: None, config
    layer.intermediate_size_per_partition = intermediate
    copy = load(layer, {}, names)
    method.create_weights(layer, experts, hidden, intermediate, torch.bfloat16, weight_loader=copy)
    load(layer, weights, names)
    workspace.init_workspace_manager(torch.device("cpu"))
    method.process_weights_after_loading(layer)
    assert layer.w13_weight.shape == (experts, 2 * intermediate, hidden // 8)
    x = randn(tokens, hidden, seed=2).bfloat16() / 16
    chosen = randn(tokens, experts, seed=3).softmax(-1).topk(top_k)
    actual = applied(method.moe_kernel, x, layer.w13_weight, layer.w2_weight, chosen, experts)
    values = [torch.stack([weights[name, expert].values for expert in range(experts)]) for name in ("w1", "w3", "w2")]
    gate_up = torch.cat(values[:2], 1).float()
    expected = fused_moe_reference(x.float(), gate_up, values[2].float(), chosen.values, chosen.indices)[0]
    assert dg.calc_diff(actual, expected) < 2e-5


@pytest.mark.parametrize(
    ("change", "others"),
    [
        ({}, {"moe_backend": "emulation"}),
        ({}, {"activation": MoEActivation.SWIGLUSTEP}),
        ({"group_size": 16}, {}),
        ({"num_bits": 8}, {}),
    ],
)
def test_other_experts_in_int4_are_left_to_vllm(change, others):
    args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32} | change
    chosen = None
    with contextlib.suppress(ValueError, NotImplementedError):  # vLLM's own kernels need packages that aren't here
        config = moe_config(8, 2, 256, 128, **others)
        chosen = wna16_methods.CompressedTensorsWNA16MoEMethod(QuantizationArgs(**args), None, config).experts_cls
    assert chosen is None or chosen.__module__.startswith("vllm.")


def test_int4_experts_that_move_between_ranks_are_left_to_vllm():
    """vLLM loads such a model with its Triton backend only."""
    config = moe_config(8, 2, 256, 128)
    config.moe_parallel_config = dataclasses.replace(config.moe_parallel_config, enable_eplb=True)
    checkpoint = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32)
    method = wna16_methods.CompressedTensorsWNA16MoEMethod(checkpoint, None, config)
    assert method.experts_cls.__module__.startswith("vllm.")
    assert method.supports_eplb


def dequantised(data, scales):
    """Values of FP8 data, whose scales may be shared by rows, columns or both."""
    for dim in (-1, -2):
        scales = scales.repeat_interleave(data.shape[dim] // scales.shape[dim], dim)
    return data.float() * scales


def test_logits_of_prefill_are_vllms():
    queries, keys, heads, dim = 9, 70, 32, 128
    q, k = randn(queries, heads, dim).to(FNUZ), randn(keys, dim, seed=1).to(FNUZ)
    scales, weights = randn(keys, 1, seed=2).abs(), randn(queries, heads, seed=3)
    starts = torch.arange(queries, dtype=torch.int32)
    ends = torch.arange(keys - queries, keys, dtype=torch.int32)
    actual = sparse.rocm_fp8_mqa_logits(q, (k, scales), weights, starts, ends)
    expected = sparse.fp8_mqa_logits_torch(q, (k, scales), weights, starts, ends)
    seen = expected > -torch.inf
    assert dg.calc_diff(actual[seen], expected[seen]) < 1e-4  # vLLM's is in bf16
    indices = torch.full((queries, 16), -2, dtype=torch.int32)[:, :12]
    sparse._launch_aiter_top_k_per_row_prefill(actual, starts, ends, indices, 12)
    best = actual.masked_fill(~seen, -torch.inf).topk(12).indices.sort().values - starts[:, None]
    assert torch.equal(indices, best.int())


def test_logits_of_decoding_are_vllms():
    batch, next_n, heads, dim, pages = 3, 2, 32, 128, 40
    cache = torch.zeros(pages, 1, 1, dim + 4, dtype=torch.uint8)
    cache[..., :dim] = randn(pages, 1, 1, dim).to(FNUZ).view(torch.uint8)
    cache[..., dim:] = randn(pages, 1, 1, 1, seed=1).abs().view(torch.uint8)
    q, weights = randn(batch, next_n, heads, dim, seed=2).to(FNUZ), randn(batch * next_n, heads, seed=3)
    lengths = torch.tensor([[3, 4], [19, 20], [9, 10]], dtype=torch.int32)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(4))[:20].int().repeat(batch, 1)
    arguments = (q, cache, weights, lengths, table)
    actual = sparse.rocm_fp8_paged_mqa_logits(*arguments, None, 24)
    expected = sparse.fp8_paged_mqa_logits_torch(*arguments, 24)
    seen = torch.arange(24) < lengths.view(-1, 1)
    assert dg.calc_diff(actual[seen], expected[seen]) < 1e-4  # vLLM's is in bf16
    indices = torch.zeros(batch * next_n, 5, dtype=torch.int32)
    assert rocm_aiter_ops.is_indexer_top_k_supported(
        is_prefill=False, compress_ratio=1, num_rows=6, max_valid_seq_len=24, topk_tokens=5
    )
    rocm_aiter_ops.indexer_top_k_decode(actual, 1, lengths.reshape(-1), indices, 5)
    for row, length in enumerate(lengths.flatten().tolist()):
        best = actual[row, :length].topk(min(5, length)).indices.sort().values.tolist()
        assert indices[row].tolist() == best + [-1] * (5 - len(best))


def test_logits_of_sequences_that_were_filled_up():
    """vLLM fills up the queries of a batch with an uneven number of tokens, here 2 and 1, but not their weights."""
    pages, heads, dim = 30, 32, 128
    cache = torch.zeros(pages, 1, 1, dim + 4, dtype=torch.uint8)
    cache[..., :dim] = randn(pages, 1, 1, dim).to(FNUZ).view(torch.uint8)
    cache[..., dim:] = randn(pages, 1, 1, 1, seed=1).abs().view(torch.uint8)
    q, weights = randn(2, 2, heads, dim, seed=2).to(FNUZ), randn(3, heads, seed=3)
    lengths = torch.tensor([[19, 20], [9, 10]], dtype=torch.int32)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(4))[:20].int().repeat(2, 1)
    actual = sparse.rocm_fp8_paged_mqa_logits(q, cache, weights, lengths, table, None, 24)
    assert actual.shape == (4, 24)
    filled_up = torch.cat((weights, torch.zeros(1, heads)))
    expected = sparse.fp8_paged_mqa_logits_torch(q, cache, filled_up, lengths, table, 24)
    seen = (torch.arange(24) < lengths.view(-1, 1))[:3]
    assert dg.calc_diff(actual[:3][seen], expected[:3][seen]) < 1e-4  # vLLM's is in bf16


@pytest.mark.parametrize("compress_ratio", [1, 2, 4])
def test_logits_of_larger_pages_are_vllms(compress_ratio):
    """vLLM shuffles keys for AITER's kernels, [pages, tokens / 16, D / 16, 16, 16], but not those of V4's ratio 4."""
    pages, page, dim = 5, 64, 128
    keys = randn(pages, page, dim).to(FNUZ).view(torch.uint8)
    scales = randn(pages, page, seed=1).abs().view(torch.uint8)
    plain, given = (torch.cat([values.flatten(1), scales], 1).view(pages, page, 1, dim + 4) for values in (
        keys, keys if compress_ratio == 4 else keys.view(pages, page // 16, 16, dim // 16, 16).transpose(2, 3),
    ))  # fmt: skip
    q, weights = randn(2, 1, 32, dim, seed=2).to(FNUZ), randn(2, 32, seed=3)
    lengths, table = torch.tensor([[130], [3]], dtype=torch.int32), torch.tensor([[4, 0, 2], [1, 0, 0]]).int()
    actual = sparse.rocm_fp8_paged_mqa_logits(
        q, given, weights, lengths, table, None, 192, compress_ratio=compress_ratio
    )
    expected = sparse.fp8_paged_mqa_logits_torch(q, plain, weights, lengths, table, 192)
    seen = torch.arange(192) < lengths
    assert dg.calc_diff(actual[seen], expected[seen]) < 1e-4  # vLLM's is in bf16


@pytest.mark.parametrize(("page", "offset"), [(256, 0), (64, 8)], ids=["large", "unaligned"])
def test_other_pages_are_left_to_vllm(page, offset):
    called = []
    module = importlib.import_module("deep_gemm_rocm.integrations.vllm_indexer")
    wrapped = module._paged_logits(lambda *arguments, **_: called.append(arguments))
    flat = torch.zeros(2 * page * 132 + offset, dtype=torch.uint8)[offset:]
    q, lengths = torch.zeros(1, 1, 32, 128).to(FNUZ), torch.tensor([[3]], dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    wrapped(q, flat.view(2, page, 1, 132), torch.zeros(1, 32), lengths, table, None, 64)
    assert len(called) == 1


@pytest.fixture
def selected():
    """vLLM's choice of a backend, which it would otherwise remember for the next test."""

    def select(head_size=576, dtype=torch.bfloat16, cache_dtype="auto", **others):
        selector._cached_get_attn_backend.cache_clear()
        return selector.get_attn_backend(head_size, dtype, cache_dtype, use_mla=True, num_heads=16, **others).get_name()

    yield select
    selector._cached_get_attn_backend.cache_clear()


@pytest.mark.parametrize("cache_dtype", ["auto", "bfloat16", "fp8", "fp8_e4m3"])
def test_the_selector_chooses_our_mla(selected, cache_dtype):
    assert selected(cache_dtype=cache_dtype) == "DEEP_GEMM_ROCM_MLA"
    assert selected(dtype=torch.float16) == "DEEP_GEMM_ROCM_MLA"


@pytest.mark.parametrize(
    ("others", "backend"),
    [
        ({"head_size": 512}, "TRITON_MLA"),
        ({"head_size": 320}, "TRITON_MLA"),
        ({"dtype": torch.float16, "cache_dtype": "fp8"}, "TRITON_MLA"),
        ({"dtype": torch.float16, "cache_dtype": "bfloat16"}, "TRITON_MLA"),
        ({"use_sparse": True}, "ROCM_AITER_MLA_SPARSE"),
    ],
    ids=str,
)
def test_other_mla_is_left_to_vllm(selected, others, backend):
    assert selected(**others) == backend


@pytest.mark.parametrize(("page", "expected"), [(16, 16), (48, 48), (240, 240), (256, 256), (784, 112), (20, 4)])
def test_pages_that_mla_takes(page, expected):
    backend = registry.AttentionBackendEnum["DEEP_GEMM_ROCM_MLA"].get_class()
    assert backend.supports_block_size(page)
    assert select_common_block_size(page, [backend]) == expected


def test_what_a_user_asks_for_is_chosen(selected, monkeypatch):
    for name in ("TRITON_MLA", "ROCM_AITER_MLA", "DEEP_GEMM_ROCM_MLA"):
        with set_current_vllm_config(VllmConfig(attention_config=AttentionConfig(backend=name))):
            assert selected() == name
    monkeypatch.setattr(rocm_aiter_ops, "is_mla_enabled", lambda: True)  # VLLM_ROCM_USE_AITER=1
    assert selected() == "ROCM_AITER_MLA"
    monkeypatch.undo()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert selected() == "TRITON_MLA"


@pytest.fixture
def model_dtype():
    yield
    torch.set_default_dtype(torch.float32)


class NoPrefill:
    """vLLM's own prefill needs packages that aren't here."""

    def __init__(self, **_):
        pass

    def clone(self):
        return self


class MlaStep:
    """A step of decoding in vLLM's own layer of MLA, with its own metadata.

    Sequences are scattered over the cache, which has NaN in all unused slots.
    """

    def __init__(
        self, lens=(100, 33, 5), heads=16, tokens=1, page=16, dtype=torch.bfloat16, cache_dtype="auto", k_scale=1.0,
        causal=True,
    ):  # fmt: skip
        torch.set_default_dtype(dtype)  # as vLLM does while it builds a model
        config, name = get_current_vllm_config(), "model.layers.0.attention"
        config.cache_config = CacheConfig(block_size=page, cache_dtype=cache_dtype)
        projection = torch.nn.Linear(512, heads * 256, bias=False)
        projection.weight.data = randn(heads * 256, 512, seed=1) / 16
        projection.quant_method = None
        self.layer = mla_attention.MLAAttention(
            heads, 192**-0.5, 128, 64, 128, None, 512, projection, prefix=name, cache_config=config.cache_config,
            prefill_backend_cls=NoPrefill, non_causal_multi_token_decode=not causal,
        )  # fmt: skip
        assert type(self.layer.impl).__name__ == "DeepGemmRocmMlaImpl"
        self.layer.process_weights_after_loading(dtype)
        self.layer._k_scale.fill_(k_scale)
        self.lens, self.heads, self.tokens, self.causal = lens, heads, tokens, causal
        self.fill_cache(page, FNUZ if cache_dtype.startswith("fp8") else dtype, k_scale)
        of_model = {"dtype": dtype, "max_model_len": 256, "get_head_size": lambda: 576}
        config.model_config = types.SimpleNamespace(**of_model)
        config.speculative_config = types.SimpleNamespace(
            num_speculative_tokens=tokens - 1, parallel_drafting=False, method="mtp"
        )
        self.metadata = self.build(config, name)

    def fill_cache(self, page, dtype, k_scale):
        pages = [-(-length // page) for length in self.lens]
        self.cache = torch.full((sum(pages) + 2, page, 576), torch.nan).to(dtype)
        self.block_table = torch.full((len(pages), max(pages) + 1), -7, dtype=torch.int32)
        order = torch.randperm(len(self.cache), generator=torch.Generator().manual_seed(2)).int()
        self.keys = []
        for sequence, length in enumerate(self.lens):
            own, order = order[: pages[sequence]], order[pages[sequence] :]
            self.block_table[sequence, : len(own)] = own
            keys = (randn(length, 576, seed=3 + sequence) / k_scale).to(dtype)
            place = torch.arange(length)
            self.cache[own[place // page].long(), place % page] = keys
            self.keys.append(keys.double() * k_scale)

    def build(self, config, name):
        builder = self.layer.attn_backend.get_builder_cls()(
            self.layer.get_kv_cache_spec(config), [name], config, torch.device("cpu")
        )
        assert builder.reorder_batch_threshold == self.tokens
        starts = torch.arange(0, len(self.lens) * self.tokens + 1, self.tokens, dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(self.lens, dtype=torch.int32),
            num_reqs=len(self.lens),
            num_actual_tokens=len(self.lens) * self.tokens,
            max_query_len=self.tokens,
            max_seq_len=max(self.lens),
            block_table_tensor=self.block_table,
            slot_mapping=torch.zeros(0, dtype=torch.long),
            causal=self.causal,
        )
        return builder.build_for_cudagraph_capture(common)

    def queries(self, width):
        q = randn(len(self.lens) * self.tokens, self.heads, width, seed=20)
        return q.to(torch.get_default_dtype())

    def reference(self, sequence, q):
        """The reference of a sequence's absorbed queries, [1, tokens, heads, 576]."""
        keys = self.keys[sequence][None, :, None]
        seen = visible_keys(self.tokens, keys.shape[1], self.causal, None)
        return attention_reference(q, keys, keys[..., :512], seen=seen, softmax_scale=192**-0.5)

    def assert_accurate(self, q, out, lse=None):
        """Compares each element with fp64, within the bound that follows from the kernels' arithmetic."""
        assert (out.shape, out.dtype) == ((*q.shape[:2], 512), q.dtype)
        for sequence, rows in enumerate(torch.arange(len(q)).split(self.tokens)):
            own = None if lse is None else lse[rows].T[None]
            self.reference(sequence, q[None, rows]).assert_accurate(out[None, rows], own)


MLA_STEPS = [
    {},
    {"heads": 128, "page": 64},
    {"lens": (70, 0, 3), "heads": 12, "page": 1},
    {"lens": (100, 0, 33), "page": 48},
    {"dtype": torch.float16, "tokens": 2},
    {"lens": (40, 0, 21), "tokens": 4, "page": 64},
    {"lens": (40, 150), "tokens": 2, "heads": 128},
    {"cache_dtype": "fp8", "k_scale": 0.37},
    {"cache_dtype": "fp8", "k_scale": 0.02, "heads": 128, "page": 64},
    {"lens": (40, 0, 21), "cache_dtype": "fp8_e4m3", "k_scale": 3.0, "tokens": 8, "page": 128},
    {"lens": (40, 0, 21), "tokens": 10},
    {"lens": (40, 21), "tokens": 11, "cache_dtype": "fp8", "k_scale": 0.37, "page": 64},
    {"lens": (40, 0, 21), "tokens": 5, "causal": False},
]


@pytest.mark.parametrize("case", MLA_STEPS, ids=str)
def test_decoding_of_mla(case, model_dtype):
    step = MlaStep(**case)
    impl, q = step.layer.impl, step.queries(576) / 4
    parts = q.split((512, 64), dim=-1)
    out, lse = impl.forward_mqa(parts, step.cache, step.metadata, step.layer)
    assert lse is None
    step.assert_accurate(q, out)
    impl.need_to_return_lse_for_decode = True  # as on a rank of context parallelism
    again, lse = impl.forward_mqa(q, step.cache, step.metadata, step.layer)
    assert torch.equal(again, out)
    assert impl.lse_base_on_e
    assert (lse.shape, lse.dtype) == (q.shape[:2], torch.float32)
    step.assert_accurate(q, out, lse)


@pytest.mark.parametrize("cache", [{}, {"cache_dtype": "fp8", "k_scale": 0.37}], ids=str)
def test_a_layer_of_mla(cache, model_dtype):
    """vLLM's layer absorbs the up-projections around our decoding."""
    step = MlaStep(tokens=2, **cache)
    step.layer.bind_kv_cache(step.cache[:, None].view(torch.uint8) if cache else step.cache[:, None])
    q, out = step.queries(192), torch.empty(len(step.lens) * step.tokens, step.heads * 128)
    step.layer.forward_impl(
        q, torch.zeros(len(q), 512), torch.zeros(len(q), 1, 64), step.layer.kv_cache, step.metadata, out
    )
    up_keys, up_values = step.layer.kv_b_proj.weight.double().view(step.heads, 256, 512).split(128, dim=1)
    absorbed = torch.cat((torch.einsum("thp,hpl->thl", q[..., :128].double(), up_keys), q[..., 128:].double()), -1)
    for sequence, rows in enumerate(torch.arange(len(q)).split(step.tokens)):
        latents = step.reference(sequence, absorbed[None, rows].bfloat16()).out[0]
        expected = torch.einsum("thl,hvl->thv", latents, up_values)
        assert dg.calc_diff(out[rows].view(expected.shape), expected) < 1e-4  # rounding to bf16


def test_a_graph_of_mla_serves_other_lengths(model_dtype):
    step = MlaStep(lens=(100, 33, 5), tokens=2)
    q = step.queries(576) / 4
    step.layer.impl.forward_mqa(q, step.cache, step.metadata, step.layer)
    runtime = hip.runtime()
    with runtime.capture() as graph:
        out, _ = step.layer.impl.forward_mqa(q, step.cache, step.metadata, step.layer)
    step.block_table.copy_(step.block_table[[2, 0, 1]].clone())
    step.lens, step.keys = (5, 98, 0), [step.keys[2], step.keys[0][:98], step.keys[0][:0]]
    step.metadata.decode.seq_lens.copy_(torch.tensor(step.lens))
    graph.replay()
    step.assert_accurate(q, out)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sliding_window": 128}, "sliding_window"),
        ({"logits_soft_cap": 30.0}, "logits_soft_cap"),
        ({"attn_type": "encoder"}, "decoders"),
        ({"kv_lora_rank": 544}, "latents of 512"),
    ],
    ids=str,
)
def test_mla_that_is_refused(options, named):
    names = inspect.signature(mla_attention.MLACommonImpl.__init__).parameters
    good = dict.fromkeys(list(names)[1:]) | {
        "attn_type": "decoder",
        "head_size": 576,
        "kv_lora_rank": 512,
        "scale": 1.0,
    }
    backend = registry.AttentionBackendEnum["DEEP_GEMM_ROCM_MLA"].get_class()
    backend.get_impl_cls()(**good)
    with pytest.raises(NotImplementedError, match=named):
        backend.get_impl_cls()(**good | options)


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("MLACommonImpl.forward_mqa", lambda self, q, cache: None),
        ("MLACommonDecodeMetadata", lambda block_table: None),
        ("rocm._get_backend_priorities", lambda use_mla: []),
        ("rocm._get_backend_priorities", lambda use_mla, use_sparse, use_kv_connector=False: []),
        ("registry.register_backend", lambda name: None),
    ],
)
def test_mla_stands_back_from_another_vllm(name, moved, monkeypatch, caplog):
    module = "deep_gemm_rocm.integrations.vllm_mla"
    monkeypatch.setattr(f"{module}._NAME", "NOT_INSTALLED_YET")
    monkeypatch.setattr(f"{module}.{name}", moved)
    chosen = rocm._get_backend_priorities
    outcomes = vllm_plugin.register()
    assert outcomes["MLA attention"].startswith("MovedError: ")
    assert outcomes | {"MLA attention": "installed"} == OUTCOMES
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "leaves MLA attention to vLLM" in line]) == 1
    assert "NOT_INSTALLED_YET" not in registry.AttentionBackendEnum.__members__
    assert rocm._get_backend_priorities is chosen

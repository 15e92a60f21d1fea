"""The plug-in in SGLang's real modules.

``DG_TEST_SGLANG`` names folders for ``sys.path``, as ``DG_TEST_VLLM`` does for ``test_vllm.py``. It needs a process of
its own, since this torch then says that it is ROCm's.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import logging
import os
import sys
import types
from unittest import mock

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm.integrations import sglang_plugin
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import fused_moe_reference

FOLDERS = os.environ.get("DG_TEST_SGLANG")
if not FOLDERS:
    pytest.skip("DG_TEST_SGLANG names no unpacked SGLang", allow_module_level=True)
if not hip.runtime().is_simulated:
    pytest.skip("runs on CPU tensors, which only the simulator takes", allow_module_level=True)
sys.path += FOLDERS.split(os.pathsep)

MI300X = types.SimpleNamespace(
    gcnArchName="gfx942:sramecc+:xnack-", name="AMD Instinct MI300X", major=9, minor=4, multi_processor_count=304,
    total_memory=192 * 2**30, warp_size=64, shared_memory_per_block=2**16,
)  # fmt: skip
torch.version.hip = "7.2.0"
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda *_: MI300X
torch.cuda.get_device_capability = lambda *_: (MI300X.major, MI300X.minor)


class GpuPackages:
    """Finds packages of kernels for a GPU, which are modules of mocks here."""

    def find_spec(self, name, path=None, target=None):
        is_known = name.split(".")[0] in ("aiter", "flydsl", "sgl_kernel")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_known else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = self.attribute
        return module

    def exec_module(self, module):
        pass

    def attribute(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


sys.meta_path.insert(0, GpuPackages())
# torchvision registers these although its library, which needs CUDA's, can't be loaded.
for operator in (
    "nms",
    "qnms",
    "_cuda_version",
    "roi_align",
    "roi_pool",
    "ps_roi_align",
    "ps_roi_pool",
    "deform_conv2d",
):
    torch.library.define(f"torchvision::{operator}", "(Tensor a) -> Tensor")

OUTCOMES = sglang_plugin.register()

from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

HookRegistry.apply_hooks()  # as SGLang does once all plug-ins have registered theirs

from sglang.kernels.ops.attention.dsa import aiter_paged_mqa_logits  # noqa: E402
from sglang.srt import batch_invariant_ops  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.layers import deep_gemm_wrapper  # noqa: E402
from sglang.srt.layers.attention.dsa import dsa_indexer  # noqa: E402
from sglang.srt.layers.attention.dsa.dsa_indexer_metadata import DSAIndexerMetadata  # noqa: E402
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend, TopkTransformMethod  # noqa: E402
from sglang.srt.layers.attention.dsa.paged_mqa_logits_backend import DSAPagedMQALogitsBackend  # noqa: E402
from sglang.srt.layers.attention.dsa_backend import DSAMetadata  # noqa: E402
from sglang.srt.layers.moe import MoeRunner, MoeRunnerConfig, utils  # noqa: E402
from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo  # noqa: E402
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe as triton_experts  # noqa: E402
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput  # noqa: E402
from sglang.srt.layers.moe.topk import StandardTopKOutput  # noqa: E402
from sglang.srt.layers.quantization import fp8_utils  # noqa: E402
from sglang.srt.layers.quantization.quark.schemes import QuarkW4A4MXFP4, QuarkW4A4MXFp4MoE  # noqa: E402
from sglang.srt.mem_cache import index_key_cache  # noqa: E402

from deep_gemm_rocm.integrations import sglang_indexer  # noqa: E402

OURS = "deep_gemm_rocm_w8a8_block_fp8_linear"


def test_every_part_is_installed():
    parts = ("FP8 linear layers", "FP8 experts", "MXFP4 linear layers", "MXFP4 experts", "the sparse indexer")
    assert dict.fromkeys(parts, "installed") == OUTCOMES
    assert sglang_plugin.register() == OUTCOMES


def test_the_gate_of_deep_gemm_stays_shut():
    assert not deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM
    assert "deep_gemm" not in sys.modules


def test_kernel_selection_ends_at_ours():
    assert fp8_utils._dispatch_auto_backend().__name__ == OURS
    assert fp8_utils.dispatch_w8a8_block_fp8_linear([128, 128]).__name__ == OURS
    triton = fp8_utils._dispatch_explicit_backend(fp8_utils.Fp8GemmRunnerBackend.TRITON)
    assert triton.__name__ == "triton_w8a8_block_fp8_linear"


def test_deterministic_inference_makes_this_package_batch_invariant():
    """SGLang calls this for --enable-deterministic-inference when a model has been loaded."""
    assert not dg.get_batch_invariant()
    try:
        batch_invariant_ops.enable_batch_invariant_mode()
        assert dg.get_batch_invariant()
    finally:
        batch_invariant_ops.disable_batch_invariant_mode()
        dg.set_batch_invariant(False)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("m", [0, 1, 77])
def test_a_checkpoints_linear_layer(m, quantised):
    """An OCP weight goes through SGLang's normalisation to FNUZ and through our kernel."""
    n, k = 384, 512
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(n, k, generator=generator), torch.randn(2, m, k, generator=generator).bfloat16()
    blocks = weight.view(n // 128, 128, k // 128, 128)
    scales = blocks.abs().amax((1, 3)) / 448
    data = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(n, k)
    data, scales, _ = fp8_utils.normalize_e4m3fn_to_e4m3fnuz(data, scales)
    bias = torch.randn(n, generator=generator).bfloat16()
    given, input_scale = x, None
    if quantised:
        rows, input_scale = dg.per_token_cast_to_fp8(x.view(-1, k), use_ue8m0=False)
        given = rows.view(x.shape)
    linear = fp8_utils.dispatch_w8a8_block_fp8_linear([128, 128])
    actual = linear(
        input=given, weight=data, block_size=[128, 128], weight_scale=scales, input_scale=input_scale, bias=bias
    )
    assert (actual.shape, actual.dtype) == ((2, m, n), torch.bfloat16)
    if m:
        assert dg.calc_diff(actual, x.float() @ weight.T + bias.float()) < 2e-3


def test_other_blocks_are_tritons(monkeypatch):
    called = mock.Mock()
    linear = sglang_plugin._linear_in_front_of(called)
    linear(torch.zeros(2, 64), torch.zeros(32, 64).to(torch.float8_e4m3fnuz), [32, 32], torch.ones(1, 2))
    assert called.call_count == 1


@pytest.mark.parametrize("m", [0, 1, 77])
def test_a_linear_layer_in_mxfp4(m):
    n, k = 384, 544
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(n, k, generator=generator), torch.randn(2, m, k, generator=generator).bfloat16()
    packed, in_ints = dg.per_token_cast_to_fp4(weight, True, 32, use_packed_ue8m0=True)
    values = dg.cast_back_from_fp4(packed, in_ints, 32, use_packed_ue8m0=True)
    scheme, layer = QuarkW4A4MXFP4({"dtype": "fp4"}, {"dtype": "fp4"}), torch.nn.Module()
    scheme.out_dtype = torch.bfloat16  # as in a server, whose default it is
    layer.weight = torch.nn.Parameter(packed.view(torch.uint8), requires_grad=False)
    exponents = in_ints.view(torch.uint8)[:, : k // 32].contiguous()
    layer.weight_scale = torch.nn.Parameter(exponents, requires_grad=False)
    scheme.process_weights_after_loading(layer)
    assert layer.weight.dtype == torch.float8_e4m3fnuz
    bias = torch.randn(n, generator=generator).bfloat16()
    actual = scheme.apply_weights(layer, x, bias)
    assert (actual.shape, actual.dtype) == ((2, m, n), torch.bfloat16)
    if m:
        assert dg.calc_diff(actual, x.float() @ values.T + bias.float()) < 1e-3
    with pytest.raises(NotImplementedError, match="x must not be quantised to MXFP4"):
        scheme.apply_weights(layer, (x, exponents), bias)


def layer_of_mxfp4(scheme, experts, hidden, intermediate):
    """A layer of experts with a checkpoint's weights, as SGLang has it when a model has been loaded; and the values."""
    layer, values = torch.nn.Module(), {}
    layer.use_presharded_weights = False
    scheme.create_weights(layer, experts, hidden, intermediate, torch.bfloat16, weight_loader=None)
    generator = torch.Generator().manual_seed(0)
    for name, shape in (("w13", (experts, 2 * intermediate, hidden)), ("w2", (experts, hidden, intermediate))):
        weight = torch.randn(shape, generator=generator).flatten(0, 1) / 8
        packed, in_ints = dg.per_token_cast_to_fp4(weight, True, 32, use_packed_ue8m0=True)
        values[name] = dg.cast_back_from_fp4(packed, in_ints, 32, use_packed_ue8m0=True).view(shape)
        data, scales = getattr(layer, f"{name}_weight"), getattr(layer, f"{name}_weight_scale")
        data.data.copy_(packed.view(torch.uint8).view(data.shape))
        scales.data.copy_(in_ints.view(torch.uint8)[:, : shape[-1] // 32].view(scales.shape))
    return layer, values


def mxfp4_experts():
    scheme = {"dtype": "fp4", "qscheme": "per_group", "is_dynamic": True}
    return QuarkW4A4MXFp4MoE(scheme, scheme)


@pytest.mark.parametrize("runner", ["triton", "aiter"])
@pytest.mark.parametrize(
    "activation",
    [{}, {"swiglu_limit": 0.5}, {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 0.7}],
    ids=["plain", "clamped", "gpt-oss"],
)
@pytest.mark.parametrize("tokens", [0, 1, 45])
def test_experts_in_mxfp4(tokens, activation, runner):
    """A rank with four of six experts. SGLang maps ids to its experts, or leaves that to AITER."""
    experts, local, top_k, hidden, intermediate = 6, 4, 3, 288, 96
    scheme = mxfp4_experts()
    layer, values = layer_of_mxfp4(scheme, local, hidden, intermediate)
    mapping = torch.tensor([-1, -1, 0, 1, 2, 3], dtype=torch.int32)
    layer.dispatcher = types.SimpleNamespace(local_expert_mapping=mapping, use_aiter_moe_runner=runner == "aiter")
    layer.moe_runner_config = MoeRunnerConfig(num_experts=experts, num_local_experts=local, **activation)
    scheme.create_moe_runner(layer, layer.moe_runner_config)
    scheme.process_weights_after_loading(layer)
    assert layer.w13_weight.dtype == layer.w2_weight.dtype == torch.int64  # sixteen values, shuffled
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    weights, ids = torch.randn(tokens, experts, generator=generator).softmax(-1).topk(top_k)
    own = mapping[ids]
    given = StandardTopKOutput(weights, (ids if runner == "aiter" else own).int(), None)
    (actual,) = scheme.apply_weights(layer, StandardDispatchOutput(x, None, given))
    assert (actual.shape, actual.dtype) == (x.shape, torch.bfloat16)
    clamps = {"limit": activation.get("swiglu_limit")}
    if "gemm1_alpha" in activation:
        clamps = {"alpha": activation["gemm1_alpha"], "limit": activation["gemm1_clamp_limit"]}
    exact_x = dg.cast_back_from_fp8(*dg.per_token_cast_to_fp8(x))
    expected = fused_moe_reference(exact_x, values["w13"], values["w2"], weights, own, **clamps)[0]
    if tokens:
        assert dg.calc_diff(actual, expected) < 1e-3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation": "gelu"}, "gated silu"),
        ({"no_combine": True}, "add the results"),
        ({"gemm1_alpha": 1.702, "gemm1_beta": 0.5}, "must be gpt-oss's"),
        ({"gemm1_clamp_limit": 7.0}, "must be gpt-oss's"),  # SGLang clamps behind silu there
        ({"apply_router_weight_on_input": True, "top_k": 2}, "one expert of each token, got 2"),
    ],
)
def test_other_experts_in_mxfp4_are_refused(config, message):
    with pytest.raises(NotImplementedError, match=message):
        mxfp4_experts().create_moe_runner(torch.nn.Module(), MoeRunnerConfig(**config))


def test_experts_in_mxfp4_with_biases_are_refused():
    layer, _ = layer_of_mxfp4(mxfp4_experts(), 2, 64, 32)
    layer.w13_weight_bias = torch.nn.Parameter(torch.zeros(2, 64))
    with pytest.raises(NotImplementedError, match="no biases"):
        mxfp4_experts().process_weights_after_loading(layer)


def fp8_experts(experts, hidden, intermediate, by_channel):
    """What SGLang hands to Triton's runner for a layer of experts, and the exact weights."""
    generator = torch.Generator().manual_seed(0)
    given, values = {"use_fp8_w8a8": True, "per_channel_quant": by_channel}, {}
    if not by_channel:
        given["block_shape"] = [128, 128]
    for name, shape in (("w13", (experts, 2 * intermediate, hidden)), ("w2", (experts, hidden, intermediate))):
        cast = dg.per_row_cast_to_fp8 if by_channel else dg.per_block_cast_to_fp8
        data, scales = zip(*(cast(torch.randn(shape[1:], generator=generator)) for _ in range(experts)), strict=True)
        given[f"{name}_weight"], given[f"{name}_scale"] = torch.stack(data), torch.stack(scales)
        wide = given[f"{name}_scale"].double()
        if not by_channel:
            wide = wide.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, : shape[1], : shape[2]]
        values[name] = given[f"{name}_weight"].double() * wide
    return TritonMoeQuantInfo(**given), values


def dispatched(tokens, hidden, experts, top_k, mapping):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    weights, ids = torch.randn(tokens, experts, generator=generator).softmax(-1).topk(top_k)
    return StandardDispatchOutput(x, None, StandardTopKOutput(weights, mapping[ids].int(), None))


@pytest.mark.parametrize("by_channel", [False, True], ids=["blocks", "channels"])
@pytest.mark.parametrize("asked", [{}, {"swiglu_limit": 0.5, "routed_scaling_factor": 2.5}], ids=["plain", "clamped"])
@pytest.mark.parametrize("tokens", [0, 1, 45])
def test_experts_in_fp8(tokens, asked, by_channel):
    """A rank with four of six experts."""
    mapping = torch.tensor([-1, -1, 0, 1, 2, 3], dtype=torch.int32)
    quant_info, values = fp8_experts(4, 256, 128, by_channel)
    config = MoeRunnerConfig(num_experts=6, num_local_experts=4, **asked)
    given = dispatched(tokens, 256, 6, 3, mapping)
    (actual,) = MoeRunner(utils.MoeRunnerBackend.TRITON, config).run(given, quant_info)
    x, (weights, ids, _) = given.hidden_states, given.topk_output
    assert (actual.shape, actual.dtype) == (x.shape, torch.bfloat16)
    data, scales = (dg.per_row_cast_to_fp8 if by_channel else dg.per_token_cast_to_fp8)(x)
    exact_x = data.double() * (scales if by_channel else scales.repeat_interleave(128, 1)).double()
    weights = weights * asked.get("routed_scaling_factor", 1)
    limit = asked.get("swiglu_limit")
    expected = fused_moe_reference(exact_x, values["w13"], values["w2"], weights, ids, limit=limit)[0]
    if tokens:
        assert dg.calc_diff(actual, expected) < 1e-3


@pytest.mark.parametrize(
    ("of_layer", "of_weights"),
    [
        ({"activation": "gelu"}, {}),
        ({"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0}, {}),
        ({}, {"block_shape": [64, 128]}),
        ({}, {"b13": torch.zeros(4, 256)}),
        ({}, {"a13_scale": torch.ones(4)}),
    ],
)
def test_other_experts_in_fp8_are_tritons(monkeypatch, of_layer, of_weights):
    monkeypatch.setattr(triton_experts, "fused_experts", lambda **_: "Triton's")
    quant_info, _ = fp8_experts(4, 256, 128, False)
    for name, value in of_weights.items():
        setattr(quant_info, name, value)
    given = dispatched(2, 256, 4, 2, torch.arange(4))
    runner = MoeRunner(utils.MoeRunnerBackend.TRITON, MoeRunnerConfig(**of_layer))
    assert runner.run(given, quant_info).hidden_states == "Triton's"


def test_triton_runs_experts_in_fp8_for_who_asks_for_it(monkeypatch):
    monkeypatch.setattr(triton_experts, "fused_experts", lambda **_: "Triton's")
    monkeypatch.setattr(utils.get_flags().moe, "runner_backend", utils.MoeRunnerBackend.TRITON)
    quant_info, _ = fp8_experts(4, 256, 128, False)
    given = dispatched(2, 256, 4, 2, torch.arange(4))
    runner = MoeRunner(utils.MoeRunnerBackend.TRITON, MoeRunnerConfig())
    assert runner.run(given, quant_info).hidden_states == "Triton's"


def test_experts_in_fp8_are_tritons_beside_aiter(monkeypatch):
    monkeypatch.setattr(triton_experts, "fused_experts", lambda **_: "Triton's")
    monkeypatch.setattr(triton_experts, "_use_aiter", True)
    quant_info, _ = fp8_experts(4, 256, 128, False)
    given = dispatched(2, 256, 4, 2, torch.arange(4))
    runner = MoeRunner(utils.MoeRunnerBackend.TRITON, MoeRunnerConfig())
    assert runner.run(given, quant_info).hidden_states == "Triton's"


AITERS_LOGITS = importlib.import_module("aiter.ops.triton.fp8_mqa_logits")
HEADS, HEAD_DIM = 32, 128  # of the indexer
CHOSEN = 24  # keys of each query, of up to 90


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclasses.dataclass
class Batch:
    """Sequences of an indexer in a cache with pages of one token, as SGLang has it without AITER's shuffled keys.

    Attributes:
        queries, lengths: of each sequence: its new tokens, and all its tokens.
    """

    queries: list[int]
    lengths: list[int]

    def __post_init__(self):
        rows, slots = sum(self.queries), sum(self.lengths) + 9
        self.q = randn(rows, HEADS, HEAD_DIM).to(torch.float8_e4m3fnuz)
        self.weights = randn(rows, HEADS, 1, seed=1)
        self.keys = randn(slots, HEAD_DIM, seed=2).to(torch.float8_e4m3fnuz)
        self.scales = randn(slots, 1, seed=3).abs()
        self.cache = torch.cat([self.keys.view(torch.uint8), self.scales.view(torch.uint8)], 1)
        order = torch.randperm(slots, generator=torch.Generator().manual_seed(4)).int()
        self.table = torch.zeros(len(self.lengths), max(self.lengths) + 3, dtype=torch.int32)
        for row, slots_of_it in zip(self.table, order.split([*self.lengths, 9]), strict=False):
            row[: len(slots_of_it)] = slots_of_it
        pairs = [(sequence, i) for sequence, count in enumerate(self.queries) for i in range(count)]
        self.sequences = torch.tensor([sequence for sequence, _ in pairs], dtype=torch.int32)
        seen = [self.lengths[sequence] - self.queries[sequence] + i + 1 for sequence, i in pairs]
        self.seen = torch.tensor(seen, dtype=torch.int32)
        self.first = torch.tensor([sum(self.lengths[:sequence]) for sequence, _ in pairs], dtype=torch.int32)

    def expected(self) -> list[list[int]]:
        """The slots of each query's best keys, in the order of the tokens, by logits in fp64."""
        found = []
        for row, (sequence, seen) in enumerate(zip(self.sequences.tolist(), self.seen.tolist(), strict=True)):
            slots = self.table[sequence, :seen].long()
            scores = (self.q[row].double() @ self.keys[slots].double().T).relu()
            logits = (self.weights[row].double() * scores).sum(0) * self.scales[slots, 0].double()
            best = logits.topk(min(CHOSEN, seen)).indices.sort().values
            found.append(slots[best].tolist() + [-1] * (CHOSEN - len(best)))
        return found

    def gathered(self):
        """Keys of all sequences one after another, as SGLang's own kernel reads them from the cache."""
        slots = torch.cat([row[:length] for row, length in zip(self.table, self.lengths, strict=True)]).long()
        return self.keys[slots].view(torch.uint8), self.scales[slots].view(torch.uint8)

    def pool(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            index_page_size=1,
            get_index_k_with_scale_buffer=lambda layer_id: self.cache,
            get_index_k_scale_buffer=lambda *_: self.gathered(),
        )

    def metadata(self, table: torch.Tensor, backend=DSATopKBackend.SGL_KERNEL, **changes) -> DSAIndexerMetadata:
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        options = {name: changes.pop(name) for name in ("method", "force_unfused_topk") if name in changes}
        of_all = {field.name: None for field in dataclasses.fields(DSAMetadata)}
        of_batch = {
            "page_size": 1, "cache_seqlens_int32": lengths, "page_table_1": table, "real_page_table": table,
            "dsa_extend_seq_lens_list": self.queries, "dsa_seqlens_expanded": self.seen,
        }  # fmt: skip
        method = options.pop("method", TopkTransformMethod.PAGED)
        return DSAIndexerMetadata(DSAMetadata(**of_all | of_batch | changes), method, backend, **options)

    def of_prompts(self, **changes) -> DSAIndexerMetadata:
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        return self.metadata(
            self.table,
            indexer_k_start_end=(self.first, self.first + self.seen),
            indexer_seq_lens_cpu=lengths,
            indexer_seq_lens=lengths,
            token_to_batch_idx=self.sequences,
            **changes,
        )


class OnDevice:
    """Queries on a device with a number, which tensors on the CPU don't have."""

    device = torch.device("cpu", 0)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.shape = tensor, tensor.shape

    def __getitem__(self, index):
        return self.tensor[index]


@pytest.fixture
def indexer(monkeypatch):
    """SGLang's indexer without what comes before the logits; and AITER's logits, which must not be asked for."""

    def logits(Q, KV, kv_scales, weights, cu_starts, cu_ends, clean_logits=True):  # noqa: N803
        raise AssertionError("AITER's")

    monkeypatch.setattr(AITERS_LOGITS, "fp8_mqa_logits", logits)
    sglang_indexer._replace_logits_of_prompts.cache_clear()
    made = dsa_indexer.Indexer.__new__(dsa_indexer.Indexer)
    torch.nn.Module.__init__(made)
    made.num_init_tokens = made.num_local_tokens = 0
    made.index_topk, made.n_heads, made.logits_with_pp_recv = CHOSEN, HEADS, False
    made.paged_mqa_logits_backend = DSAPagedMQALogitsBackend.AITER
    return made


def mode(**of_batch: bool) -> types.SimpleNamespace:
    asked = ("is_target_verify", "is_draft_extend_v2", "is_extend_without_speculative")
    return types.SimpleNamespace(**{name: lambda name=name: of_batch.get(name, False) for name in asked})


def prompts(indexer, batch: Batch, monkeypatch, **changes) -> torch.Tensor:
    monkeypatch.setattr(dsa_indexer, "get_token_to_kv_pool", batch.pool)
    forward = types.SimpleNamespace(
        forward_mode=mode(is_extend_without_speculative=True), seq_lens_cpu=1, extend_seq_lens_cpu=1
    )
    result = torch.full((len(batch.q) + 2, CHOSEN), -7, dtype=torch.int32)  # two more, as in a padded batch
    found = indexer._get_topk_ragged(
        False, forward, 0, OnDevice(batch.q), batch.weights, batch.of_prompts(**changes), topk_result=result
    )
    assert (found[len(batch.q) :] == -7).all()
    return found[: len(batch.q)]


RAGGED = [
    Batch([7, 1, 20], [90, 5, 20]),  # behind a cached prefix, and without one
    Batch([1], [1]),
    Batch([3, 3], [40, 3]),
]


@pytest.mark.parametrize("rows_at_once", [0, 4], ids=["all rows", "chunks"])
@pytest.mark.parametrize("batch", RAGGED, ids=lambda batch: str(batch.queries))
def test_keys_of_prompts(indexer, monkeypatch, batch, rows_at_once):
    budget = rows_at_once * sum(batch.lengths) * 4
    monkeypatch.setattr(dsa_indexer, "mqa_logits_should_chunk", lambda **_: (rows_at_once > 0, budget))
    assert prompts(indexer, batch, monkeypatch).tolist() == batch.expected()


def test_keys_of_prompts_in_one_row(indexer, monkeypatch):
    """Attention over keys that are gathered takes positions among the keys of all sequences."""
    batch = RAGGED[0]
    positions = prompts(indexer, batch, monkeypatch, method=TopkTransformMethod.RAGGED, topk_indices_offset=batch.first)
    flat = torch.cat([row[:length] for row, length in zip(batch.table, batch.lengths, strict=True)])
    slots = torch.where(positions < 0, positions, flat[positions.clamp(min=0)])
    assert slots.tolist() == batch.expected()


@pytest.mark.parametrize(
    "offset",
    [None, torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)],
    ids=["none", "more", "int64"],
)
def test_other_offsets_in_one_row_are_sglangs(offset):
    sglangs = mock.Mock()
    lengths = torch.full((2,), 30, dtype=torch.int32)
    given = (torch.zeros(2, 30), lengths, CHOSEN, TopkTransformMethod.RAGGED, None)
    transform = sglang_indexer._slots_in_front_of(sglangs)
    chosen = transform(DSATopKBackend.SGL_KERNEL, *given, topk_indices_offset=offset)
    assert chosen is sglangs.return_value


def test_keys_of_prompts_that_are_looked_up_later(indexer, monkeypatch):
    batch = RAGGED[0]
    positions = prompts(indexer, batch, monkeypatch, force_unfused_topk=True)
    tables = batch.table[batch.sequences.long()]
    slots = torch.where(positions < 0, positions, tables.gather(1, positions.clamp(min=0).long()))
    assert slots.tolist() == batch.expected()


def test_short_prompts_have_no_choice(monkeypatch):
    """SGLang computes no logits for these."""
    batch = Batch([3, 1, 4], [7, 1, 9])
    found = batch.of_prompts().topk_transform(torch.zeros(8, CHOSEN), CHOSEN)
    assert found.tolist() == batch.expected()


def decoded(indexer, batch: Batch, monkeypatch, *, verified: bool, backend=DSATopKBackend.SGL_KERNEL) -> torch.Tensor:
    monkeypatch.setattr(dsa_indexer, "get_token_to_kv_pool", batch.pool)
    forward = types.SimpleNamespace(forward_mode=mode(is_target_verify=verified))
    table = batch.table[batch.sequences.long()]
    return indexer._get_topk_paged(forward, 0, batch.q, batch.weights, batch.metadata(table, backend))


@pytest.mark.parametrize(("queries", "lengths"), [([1] * 4, [90, 1, 23, 24]), ([1], [3]), ([3, 3], [60, 3])], ids=str)
def test_keys_while_decoding(indexer, monkeypatch, queries, lengths):
    batch = Batch(queries, lengths)
    assert decoded(indexer, batch, monkeypatch, verified=queries[0] > 1).tolist() == batch.expected()


def test_a_rank_without_tokens():
    logits = aiter_paged_mqa_logits(
        torch.empty(0, HEADS, HEAD_DIM, dtype=torch.float8_e4m3fnuz),
        torch.zeros(9, 1, 1, HEAD_DIM + 4, dtype=torch.uint8),
        torch.empty(0, HEADS),
        torch.empty(0, dtype=torch.int32),
        torch.empty(0, 70, dtype=torch.int32),
        70,
        preshuffle=False,
        kv_block_size=1,
    )
    assert logits.shape == (0, 70)
    table = torch.empty(0, 70, dtype=torch.int32)
    metadata = RAGGED[1].metadata(table, dsa_seqlens_expanded=torch.empty(0, dtype=torch.int32))
    assert metadata.topk_transform(logits, CHOSEN).shape == (0, CHOSEN)


def test_the_backend_that_a_user_asks_for_selects(indexer, monkeypatch):
    batch = Batch([1] * 2, [40, 30])
    with envs.SGLANG_DSA_FUSE_TOPK.override(False), mock.patch.object(torch, "topk", wraps=torch.topk) as topk:
        decoded(indexer, batch, monkeypatch, verified=False, backend=DSATopKBackend.TORCH)
    assert topk.call_count == 1


class Shuffled:
    """Keys in two pages, of which the second comes first, in tiles: SGLang has these with SGLANG_USE_AITER."""

    def __init__(self, page: int) -> None:
        self.page, self.batch = page, Batch([1, 1, 1], [90, 1, 17])
        self.keys = randn(2, page, HEAD_DIM).to(torch.float8_e4m3fnuz)
        self.scales = randn(2, page, seed=1).abs()
        tiles = self.keys.view(torch.uint8).view(2, page // 16, 16, HEAD_DIM // 16, 16).transpose(2, 3)
        self.cache = torch.cat([tiles.flatten(1), self.scales.view(torch.uint8)], 1)
        self.lengths = torch.tensor([2 * page, 1, page + 1], dtype=torch.int32)

    def logits(self) -> torch.Tensor:
        cache, table = self.cache.view(2, self.page, 1, HEAD_DIM + 4), torch.tensor([[1, 0]] * 3).int()
        given = (self.batch.q, cache, self.batch.weights[..., 0], self.lengths, table, 2 * self.page)
        return aiter_paged_mqa_logits(*given, preshuffle=True, kv_block_size=self.page)


@pytest.mark.parametrize("page", [16, 64])
def test_keys_that_are_shuffled_for_aiter(page):
    of = Shuffled(page)
    scores = (of.batch.q.double() @ of.keys.flip(0).flatten(0, 1).double().T).relu()
    expected = (of.batch.weights.double() * scores).sum(1) * of.scales.flip(0).flatten().double()
    seen = torch.arange(2 * page) < of.lengths[:, None]
    torch.testing.assert_close(of.logits()[seen].double(), expected[seen], rtol=1e-5, atol=1e-3)


def test_shuffled_keys_that_sglang_moves(monkeypatch):
    if not hasattr(index_key_cache, "_use_aiter_preshuffle"):
        pytest.skip("this SGLang moves whole pages")
    monkeypatch.setattr(index_key_cache, "_use_aiter_preshuffle", True)
    of = Shuffled(64)
    before = of.logits()
    theirs = index_key_cache.IndexKeyCache.__new__(index_key_cache.IndexKeyCache)
    theirs.pool = types.SimpleNamespace(page_size=64, index_page_size=64, index_kpool=1, index_head_dim=HEAD_DIM)
    theirs.buffer = [of.cache]
    theirs.move(torch.tensor([64 + 5]), torch.tensor([35]))
    moved = of.logits()
    assert moved[0, 5] == before[0, 64 + 35]
    moved[0, 5] = before[0, 5]
    assert torch.equal(moved[0], before[0])


def test_other_pages_are_aiters(monkeypatch):
    aiters = mock.Mock()
    module = importlib.import_module("aiter.ops.triton.pa_mqa_logits")
    monkeypatch.setattr(module, "deepgemm_fp8_paged_mqa_logits", aiters)
    batch, lengths = Batch([1], [30]), torch.tensor([30], dtype=torch.int32)
    cache, table = torch.zeros(2, 256, 1, HEAD_DIM + 4, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.int32)
    given = (batch.q, cache, batch.weights[..., 0], lengths, table, 256)
    aiter_paged_mqa_logits(*given, preshuffle=True, kv_block_size=256)
    assert aiters.call_count == 1


def test_other_heads_are_aiters():
    aiters = mock.Mock()
    q = torch.zeros(2, 12, HEAD_DIM).to(torch.float8_e4m3fnuz)
    sglang_indexer._logits_in_front_of(aiters)(q, q[0], None, torch.zeros(2, 12), None, None, clean_logits=False)
    assert aiters.call_count == 1


def test_logits_by_the_names_of_aiter():
    batch = Batch([3], [40])
    starts, ends = torch.zeros(3, dtype=torch.int32), batch.seen
    given = {"Q": batch.q, "KV": batch.keys, "kv_scales": batch.scales[:, 0], "weights": batch.weights[..., 0]}
    logits = sglang_indexer._logits_in_front_of(mock.Mock())(**given, cu_starts=starts, cu_ends=ends)
    expected = dg.fp8_mqa_logits(batch.q, (batch.keys, batch.scales[:, 0]), batch.weights[..., 0], starts, ends)
    assert torch.equal(logits, expected)


def test_another_aiter_keeps_its_logits(indexer, monkeypatch, caplog):
    """Its function has other parameters here."""
    batch = Batch([1], [3])
    their_logits = mock.Mock(return_value=torch.zeros(1, 3))
    monkeypatch.setattr(AITERS_LOGITS, "fp8_mqa_logits", their_logits)
    with caplog.at_level(logging.WARNING):
        prompts(indexer, batch, monkeypatch)
    assert their_logits.call_count == 1
    (told,) = caplog.records
    assert told.getMessage().startswith("deep_gemm_rocm leaves the sparse indexer's logits of prompts to AITER")

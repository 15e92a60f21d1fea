"""vLLM's layers with weights in MXFP4, which it emulates, as gfx942 has no matrix instructions for four bits.

With activations in MXFP4 ("W4A4"), activations become FP8 with a scale for 128 values of a token, which is finer than
the MXFP4 that such checkpoints ask for. Activations of checkpoints that say nothing of them ("W4A16") stay bf16.
Weights of experts, and of linear layers with bf16 activations, keep four bits in memory. Those of linear layers with
other activations become FP8 when they are loaded.
"""

from __future__ import annotations

import abc
import functools
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm import envs
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear import MxFp4LinearKernel
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as oracle

# Where nothing else fits, it takes the oracle's first class for emulation without asking it. So it has to find vLLM's,
# under the name that it imports here, before ``install`` replaces it.
from vllm.model_executor.layers.quantization.quark import quark_moe  # noqa: F401
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8Dynamic128Sym, kMxfp4Dynamic, kMxfp4Static
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import PlatformEnum

from ..api.casts import per_token_cast_to_fp8
from ..api.four_bits import convert_fp4_to_fp8
from ..api.fp4_gemm import bf16_fp4_gemm_nt
from ..api.gemm import gemm_fp8
from ..problems.layout import Pair
from .parts import MovedError, check_parameters, check_replaces, replace_wherever_imported
from .shuffled import shuffle_if_possible
from .vllm_experts import FourBitExperts

_GPT_OSS = 1.702, 7.0  # alpha and limit that vLLM's swigluoai_and_mul has
_ACTIVATIONS = (kMxfp4Dynamic, kFp8Dynamic128Sym)


class _Mxfp4Kernel(MxFp4LinearKernel):
    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if envs.VLLM_BATCH_INVARIANT:
            return False, "VLLM_BATCH_INVARIANT asks for the same bits in any batch"
        return True, None  # it is registered on gfx942 only

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = rows.new_empty(rows.shape[0], layer.weight.shape[0])
        self.multiply(rows, (layer.weight, layer.weight_scale), out, bias)
        return out.view(*x.shape[:-1], layer.weight.shape[0])

    @abc.abstractmethod
    def multiply(self, x: torch.Tensor, weight: Pair, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Writes ``x · weightᵀ + bias`` of [M, K] and the layer's weight and scales."""


class DeepGemmRocmMxfp4WeightKernel(_Mxfp4Kernel):
    """``bf16_fp4_gemm_nt``, for weights in MXFP4 and activations in bf16."""

    @classmethod
    def _supports_quant_scheme(cls, weight_key: Any, activation_key: Any) -> bool:
        return weight_key == kMxfp4Static and activation_key is None

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        if torch.get_default_dtype() != torch.bfloat16:  # the model's, while its layers are made
            return False, "supports bf16 models only"
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        shuffle_if_possible(layer, "weight", replace=replace_parameter)

    def multiply(self, x: torch.Tensor, weight: Pair, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        # Kernels read rows at multiples of 16 bytes, where those of a view needn't be.
        bf16_fp4_gemm_nt(x.contiguous(), weight, out, bias=bias)


class DeepGemmRocmMxfp4Kernel(_Mxfp4Kernel):
    """``gemm_fp8`` of tokens in FP8 and a weight that was converted to FP8."""

    @classmethod
    def _supports_quant_scheme(cls, weight_key: Any, activation_key: Any) -> bool:
        return weight_key == kMxfp4Static and activation_key in _ACTIVATIONS

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        if config.activation_quant_key not in _ACTIVATIONS:
            return False, "requires activations that may be quantised"
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        data, scales = convert_fp4_to_fp8(layer.weight.data, layer.weight_scale.data)
        replace_parameter(layer, "weight", data)
        replace_parameter(layer, "weight_scale", scales)

    def multiply(self, x: torch.Tensor, weight: Pair, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        gemm_fp8(per_token_cast_to_fp8(x), weight, out, bias=bias)


class DeepGemmRocmMxfp4Experts(FourBitExperts):
    """``fused_moe`` with weights in MXFP4 and tokens in FP8; also gpt-oss's with their biases."""

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return bool(weight_key == kMxfp4Static and activation_key == kMxfp4Dynamic)

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return activation in (MoEActivation.SILU, MoEActivation.SWIGLUOAI)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Brings gpt-oss's gates and ups, whose rows take turns, behind each other, and shuffles the weights."""
        if self.moe_config.activation == MoEActivation.SWIGLUOAI:
            for name in ("w13_weight", "w13_weight_scale", "w13_bias"):
                if getattr(layer, name, None) is not None:
                    rows = getattr(layer, name).data
                    replace_parameter(layer, name, torch.cat((rows[:, ::2], rows[:, 1::2]), dim=1))
            self.quant_config._w1.bias = getattr(layer, "w13_bias", None)
        shuffle_if_possible(layer, "w13_weight", "w2_weight", replace=replace_parameter)
        for part, quantised in (("w13", self.quant_config._w1), ("w2", self.quant_config._w2)):
            quantised.scale = getattr(layer, f"{part}_weight_scale")

    def _input(self, x: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor | Pair:
        return per_token_cast_to_fp8(x)

    def _clamps(self, activation: Any) -> tuple[float | None, float | None]:
        return _GPT_OSS if activation == MoEActivation.SWIGLUOAI else super()._clamps(activation)


class DeepGemmRocmMxfp4WeightExperts(DeepGemmRocmMxfp4Experts):
    """``fused_moe`` with weights in MXFP4 and tokens in bf16, as OpenAI's gpt-oss and DeepSeek-V4 have them."""

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return bool(weight_key == kMxfp4Static and activation_key is None)

    def _input(self, x: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        return x

    @classmethod
    def fits(cls, config: Any) -> bool:
        """Whether experts of this configuration, whose activations are bf16, can be ours."""
        if oracle._resolve_activation_key(None) is not None:
            return False
        activation_format = oracle._activation_format_for_config(config)
        supported, reason = cls.is_supported_config(cls, config, kMxfp4Static, None, activation_format)
        if not supported:
            oracle.logger.debug_once("%s does not support these experts since %s.", cls.__name__, reason)
        return supported


def install() -> None:
    """Puts all where vLLM asks before it emulates. ``--linear-backend`` and ``--moe-backend`` still choose others.

    Raises:
        MovedError, AttributeError, ImportError: this vLLM chooses kernels in another way.
    """
    for method in ("process_weights_after_loading", "apply_weights", "is_supported", "_supports_quant_scheme"):
        check_replaces(getattr(MxFp4LinearKernel, method), getattr(DeepGemmRocmMxfp4Kernel, method))
    check_replaces(
        mk.FusedMoEExperts.process_weights_after_loading, DeepGemmRocmMxfp4Experts.process_weights_after_loading
    )
    check_parameters(oracle.backend_to_kernel_cls, "backend")
    kernels = linear._POSSIBLE_MXFP4_KERNELS.get(PlatformEnum.ROCM)
    if not isinstance(kernels, list):
        raise MovedError("_POSSIBLE_MXFP4_KERNELS has no list of ROCm's kernels")
    emulation, original = oracle.Mxfp4MoeBackend.EMULATION, oracle.backend_to_kernel_cls
    select, select_deepseek_v4 = oracle.select_mxfp4_moe_backend, oracle.select_deepseek_v4_mxfp4_moe_backend
    check_parameters(select, "config", "activation_key")
    check_parameters(select_deepseek_v4, "config")
    check_parameters(oracle._resolve_activation_key, "model_activation_key")
    check_parameters(oracle._activation_format_for_config, "moe_config")
    if DeepGemmRocmMxfp4Kernel in kernels:
        return

    # Emulation is the only backend that leaves weights and scales as checkpoints have them.
    @functools.wraps(select)
    def select_mxfp4_moe_backend(config: Any, activation_key: Any = None) -> tuple[Any, Any]:
        if activation_key is None and DeepGemmRocmMxfp4WeightExperts.fits(config):
            return emulation, DeepGemmRocmMxfp4WeightExperts
        return select(config, activation_key)

    @functools.wraps(select_deepseek_v4)
    def select_deepseek_v4_mxfp4_moe_backend(config: Any) -> tuple[Any, Any]:
        if DeepGemmRocmMxfp4WeightExperts.fits(config):
            return emulation, DeepGemmRocmMxfp4WeightExperts
        return select_deepseek_v4(config)

    @functools.wraps(original)
    def backend_to_kernel_cls(backend: Any) -> list[type]:
        classes: list[type] = original(backend)
        return [DeepGemmRocmMxfp4Experts, *classes] if backend == emulation else classes

    kernels[:0] = (DeepGemmRocmMxfp4Kernel, DeepGemmRocmMxfp4WeightKernel)
    oracle.backend_to_kernel_cls = backend_to_kernel_cls
    for replacement in (select_mxfp4_moe_backend, select_deepseek_v4_mxfp4_moe_backend):
        replace_wherever_imported(replacement)

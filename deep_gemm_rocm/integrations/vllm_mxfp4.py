"""vLLM's layers with weights and activations in MXFP4: their weights become FP8 when they are loaded.

gfx942 has no matrix instructions for four bits, and vLLM emulates them. Activations are quantised to FP8 with a scale
for 128 values of a token, which is finer than the MXFP4 that such checkpoints ask for. Weights without quantised
activations ("W4A16") stay vLLM's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm import envs
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear import MxFp4LinearKernel
from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as oracle

# Where nothing else fits, it takes the oracle's first class for emulation without asking it. So it has to find vLLM's,
# under the name that it imports here, before ``install`` replaces it.
from vllm.model_executor.layers.quantization.quark import quark_moe  # noqa: F401
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8Dynamic128Sym, kMxfp4Dynamic, kMxfp4Static
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import PlatformEnum

from ..api.casts import per_token_cast_to_fp8
from ..api.four_bits import convert_fp4_to_fp8
from ..api.gemm import gemm_fp8
from .parts import MovedError, check_parameters, check_replaces
from .vllm_experts import DeepGemmRocmExperts

_ACTIVATIONS = (kMxfp4Dynamic, kFp8Dynamic128Sym)


class DeepGemmRocmMxfp4Kernel(MxFp4LinearKernel):
    """``gemm_fp8`` of tokens in FP8 and a weight that was converted to FP8."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if envs.VLLM_BATCH_INVARIANT:
            return False, "VLLM_BATCH_INVARIANT asks for the same bits in any batch"
        return True, None  # it is registered on gfx942 only

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

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = rows.new_empty(rows.shape[0], layer.weight.shape[0])
        gemm_fp8(per_token_cast_to_fp8(rows), (layer.weight, layer.weight_scale), out, bias=bias)
        return out.view(*x.shape[:-1], layer.weight.shape[0])


class DeepGemmRocmMxfp4Experts(DeepGemmRocmExperts):
    """``fused_moe`` of weights that were converted to FP8."""

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return bool(weight_key == kMxfp4Static and activation_key == kMxfp4Dynamic)

    def process_weights_after_loading(self, layer: Any) -> None:
        for name, of_kernel in (("w13", self.quant_config._w1), ("w2", self.quant_config._w2)):
            weight, scale = f"{name}_weight", f"{name}_weight_scale"
            data, scales = convert_fp4_to_fp8(getattr(layer, weight).data, getattr(layer, scale).data)
            replace_parameter(layer, weight, data)
            replace_parameter(layer, scale, scales)
            of_kernel.scale = getattr(layer, scale)

    def _scales_of(self, scales: torch.Tensor) -> torch.Tensor:
        return scales


def install() -> None:
    """Puts both where vLLM asks before it emulates. ``--linear-backend`` and ``--moe-backend`` still choose others.

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
    if DeepGemmRocmMxfp4Kernel in kernels:
        return

    @functools.wraps(original)
    def backend_to_kernel_cls(backend: Any) -> list[type]:
        classes: list[type] = original(backend)
        return [DeepGemmRocmMxfp4Experts, *classes] if backend == emulation else classes

    kernels.insert(0, DeepGemmRocmMxfp4Kernel)
    oracle.backend_to_kernel_cls = backend_to_kernel_cls

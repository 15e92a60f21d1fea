"""vLLM's FP8 linear layers: kernels for scales of 128x128 blocks, and for those of tokens and channels."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear import Fp8BlockScaledMMLinearKernel, FP8ScaledMMLinearKernel
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.fp8_utils import _upcast_e8m0_to_fp32
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import PlatformEnum

from ..api.gemm import gemm_fp8
from ..problems.layout import SCALE_BLOCK
from .parts import K_UNIT, MovedError, check_replaces

_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)


class DeepGemmRocmBlockKernel(Fp8BlockScaledMMLinearKernel):
    """``gemm_fp8`` with a scale for 128 values of a token and for 128x128 of the weight."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        scale = config.activation_quant_key.scale
        # Kernels read these scales fastest where the tokens' are next to each other.
        self.quant_fp8 = QuantFP8(
            static=scale.static, group_shape=scale.group_shape, use_ue8m0=False, column_major_scales=True
        )

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # it is registered on gfx942 only

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        can, reason = super().can_implement(config)
        if not can:
            return can, reason
        shared = (config.activation_quant_key.scale.group_shape, config.weight_quant_key.scale.group_shape)
        if tuple(map(tuple, shared)) != ((1, SCALE_BLOCK), (SCALE_BLOCK, SCALE_BLOCK)):
            return False, f"requires scales of (1, {SCALE_BLOCK}) and ({SCALE_BLOCK}, {SCALE_BLOCK})"
        return _fits(config)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        super().process_weights_after_loading(layer)
        parameters = self._get_layer_params(layer)
        if parameters.block_scale.dtype != torch.float32:
            replace_parameter(layer, parameters.block_scale_attr, _upcast_e8m0_to_fp32(parameters.block_scale).data)

    def apply_block_scaled_mm(
        self,
        A: torch.Tensor,  # noqa: N803  vLLM passes these by name
        B: torch.Tensor,  # noqa: N803
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        out = A.new_empty(A.shape[0], B.shape[0], dtype=self.config.out_dtype)
        gemm_fp8((A, As), (B, Bs), out)
        return out


class DeepGemmRocmTokenKernel(FP8ScaledMMLinearKernel):
    """``gemm_fp8`` with a scale for each token and each output channel."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # it is registered on gfx942 only

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        activation, weight = config.activation_quant_key.scale, config.weight_quant_key.scale
        if activation.static or not (activation.group_shape.is_per_token() and weight.group_shape.is_per_channel()):
            return False, "requires dynamic scales of tokens, and scales of channels"
        return _fits(config)

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,  # noqa: N803  vLLM passes these by name
        B: torch.Tensor,  # noqa: N803
        out_dtype: torch.dtype,
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
        bias: torch.Tensor | None,
        output_shape: list[int],
    ) -> torch.Tensor:
        out = A.new_empty(A.shape[0], B.shape[1], dtype=out_dtype)
        weight = (B.t(), Bs.reshape(-1, 1))  # vLLM keeps a transposed view of [N, K]
        gemm_fp8((A, As.reshape(-1, 1)), weight, out, recipe=(1, 1, None), bias=bias)
        return out.view(*output_shape)


def _fits(config: Any) -> tuple[bool, str | None]:
    _, k = config.weight_shape
    if k % K_UNIT:
        return False, f"requires K to be a multiple of {K_UNIT}, got {k}"
    if config.out_dtype not in _OUTPUTS:
        return False, f"requires an output in {', '.join(map(str, _OUTPUTS))}, got {config.out_dtype}"
    return True, None


# vLLM's tables have each platform's kernels in the order in which they are asked. Its ``register_linear_kernel`` would
# append ours, behind kernels that take everything.
_KERNELS = {
    "_POSSIBLE_FP8_BLOCK_KERNELS": DeepGemmRocmBlockKernel,
    "_POSSIBLE_FP8_KERNELS": DeepGemmRocmTokenKernel,
}


def install() -> None:
    """Puts both kernels where vLLM asks first. ``--linear-backend`` still chooses AITER's or Triton's.

    Raises:
        MovedError, AttributeError, ImportError: this vLLM chooses kernels in another way.
    """
    check_replaces(Fp8BlockScaledMMLinearKernel.apply_block_scaled_mm, DeepGemmRocmBlockKernel.apply_block_scaled_mm)
    check_replaces(FP8ScaledMMLinearKernel.apply_scaled_mm, DeepGemmRocmTokenKernel.apply_scaled_mm)
    tables = {name: getattr(linear, name).get(PlatformEnum.ROCM) for name in _KERNELS}
    for name, kernels in tables.items():
        if not isinstance(kernels, list):
            raise MovedError(f"{name} has no list of ROCm's kernels")
    for name, kernel in _KERNELS.items():
        if kernel not in tables[name]:
            tables[name].insert(0, kernel)

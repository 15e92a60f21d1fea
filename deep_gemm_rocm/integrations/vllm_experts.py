"""vLLM's FP8 experts: a class that its MoE oracle finds before Triton's."""

from __future__ import annotations

import functools
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import fp8 as oracle
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
)

from ..api.experts import fused_moe
from ..problems.experts import MAX_TOKENS, MAX_TOP_K
from ..problems.gemm_kind import GROUP
from ..problems.layout import SCALE_BLOCK, Pair
from ..problems.routing import MAX_EXPERTS
from .parts import check_parameters, check_replaces


class DeepGemmRocmExperts(mk.FusedMoEExpertsModular):
    """``fused_moe``, for weights with scales of blocks of 128x128 or of channels."""

    intermediate_unit = SCALE_BLOCK  # that intermediate sizes are a multiple of
    takes_biases = False

    @staticmethod
    def activation_format() -> Any:
        return mk.FusedMoEActivationFormat.Standard

    @property
    def expects_unquantized_inputs(self) -> bool:
        """Quantises here, except where tokens travel between ranks quantised."""
        return not self.moe_config.moe_parallel_config.use_all2all_kernels

    @staticmethod
    def is_supported_config(
        cls: Any, moe_config: Any, weight_key: Any, activation_key: Any, activation_format: Any
    ) -> tuple[bool, str | None]:
        if moe_config.moe_backend != "auto":
            return False, f"--moe-backend {moe_config.moe_backend} asks for another kernel"
        if moe_config.has_bias and not cls.takes_biases:
            return False, "kernel does not support biases of experts"
        if moe_config.intermediate_size_per_partition % cls.intermediate_unit:
            return False, f"kernel requires intermediate sizes that are a multiple of {cls.intermediate_unit}"
        if moe_config.in_dtype != torch.bfloat16:
            return False, "kernel supports bf16 models only"
        if moe_config.experts_per_token > MAX_TOP_K or moe_config.num_local_experts > MAX_EXPERTS:
            return False, f"kernel supports at most {MAX_EXPERTS} experts, {MAX_TOP_K} for each token"
        keys = (weight_key, activation_key, activation_format)
        supported, reason = mk.FusedMoEExperts.is_supported_config(cls, moe_config, *keys)
        return supported, reason

    @staticmethod
    def _supports_current_device() -> bool:
        return True  # it is registered on gfx942 only

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        known = ((kFp8Static128BlockSym, kFp8Dynamic128Sym), (kFp8StaticChannelSym, kFp8DynamicTokenSym))
        return (weight_key, activation_key) in known

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return bool(activation == MoEActivation.SILU)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return not (
            moe_parallel_config.use_fi_nvl_two_sided_kernels or moe_parallel_config.use_fi_nvl_one_sided_kernels
        )

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self,
        M: int,  # noqa: N803  vLLM passes these by position and name
        N: int,  # noqa: N803
        K: int,  # noqa: N803
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: Any,
        activation: Any,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """No workspaces: torch's allocator, which graphs capture, has what lies between the kernels."""
        return (0,), (0,), (M, K)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        if len(hidden_states) > MAX_TOKENS:
            for first in range(0, len(hidden_states), MAX_TOKENS):
                part = slice(first, first + MAX_TOKENS)
                self.apply(
                    output[part], hidden_states[part], w1, w2, topk_weights[part], topk_ids[part], activation,
                    global_num_experts, expert_map, a1q_scale=None if a1q_scale is None else a1q_scale[part],
                    a2_scale=a2_scale, workspace13=workspace13, workspace2=workspace2,
                    expert_tokens_meta=expert_tokens_meta, apply_router_weight_on_input=apply_router_weight_on_input,
                )  # fmt: skip
            return
        weights = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
        alpha, limit = self._clamps(activation)
        fused_moe(
            self._input(hidden_states, a1q_scale),
            (w1, self._scales_of(self.w1_scale)),
            (w2, self._scales_of(self.w2_scale)),
            weights.float().contiguous(),
            topk_ids.int().contiguous(),
            expert_map=None if expert_map is None else expert_map.int(),
            out=output,
            alpha=alpha,
            limit=limit,
            gate_up_bias=self.w1_bias,
            down_bias=self.w2_bias,
        )

    def _input(self, x: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor | Pair:
        return x if scales is None else (x, scales)

    def _clamps(self, activation: Any) -> tuple[float | None, float | None]:
        """``alpha`` and ``limit`` of ``fused_moe``."""
        return None, self.activation_config.clamp_limit

    def _scales_of(self, scales: torch.Tensor) -> torch.Tensor:
        """Scales of blocks as they are, those of channels [experts, channels, 1]."""
        return scales if self.block_shape is not None else scales.view(*scales.shape[:2], 1)


class FourBitExperts(DeepGemmRocmExperts):
    """``fused_moe`` with weights of four bits and tokens in bf16."""

    intermediate_unit = GROUP
    takes_biases = True

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    def _input(self, x: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor | Pair:
        return x

    def _scales_of(self, scales: torch.Tensor) -> torch.Tensor:
        return scales


def install() -> None:
    """Lets the oracle ask for this class before Triton's.

    Raises:
        MovedError, AttributeError, ImportError: this vLLM chooses experts in another way.
    """
    check_parameters(oracle.backend_to_kernel_cls, "backend")
    for method in ("apply", "is_supported_config", "workspace_shapes"):
        check_replaces(getattr(mk.FusedMoEExpertsModular, method), getattr(DeepGemmRocmExperts, method))
    triton = oracle.Fp8MoeBackend.TRITON
    original = oracle.backend_to_kernel_cls
    if DeepGemmRocmExperts in original(triton):
        return

    @functools.wraps(original)
    def backend_to_kernel_cls(backend: Any) -> list[type]:
        classes: list[type] = original(backend)
        return [DeepGemmRocmExperts, *classes] if backend == triton else classes

    oracle.backend_to_kernel_cls = backend_to_kernel_cls

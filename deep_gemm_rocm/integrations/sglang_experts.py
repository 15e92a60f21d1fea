"""SGLang's layers of experts in FP8, where it would choose Triton's kernels by itself."""

from __future__ import annotations

import functools
from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner.base import FusedOpPool, MoeRunnerConfig
from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe as triton_experts
from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput, StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import get_moe_runner_backend

from ..api.experts import fused_moe
from ..problems.experts import MAX_TOKENS, MAX_TOP_K
from ..problems.layout import FP8, SCALE_BLOCK
from ..problems.routing import MAX_EXPERTS
from . import parts

_PLACE = ("none", "triton")  # how ranks exchange tokens, and who runs the experts
_MARK = "_deep_gemm_rocm"
# Triton runs layers that ask for anything else.
_OF_WEIGHTS = {
    "b13": None, "b2": None, "a13_scale": None, "a2_scale": None, "use_fp8_w8a8": True, "use_mxfp8": False,
    "fuse_swiglu_interleaved": False,
}  # fmt: skip
_OF_LAYER = {
    "activation": "silu", "is_gated": True, "no_combine": False, "apply_router_weight_on_input": False,
    "gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None,
}  # fmt: skip
_OF_TOKENS = {"hidden_states_scale": None, "hidden_states_pre_quant": None}


def _has(subject: Any, values: dict[str, Any]) -> bool:
    return all(getattr(subject, name) == value for name, value in values.items())


def _is_ours(weight: torch.Tensor, scales: torch.Tensor, quant_info: Any) -> bool:
    has_blocks = quant_info.block_shape is not None and tuple(quant_info.block_shape) == (SCALE_BLOCK, SCALE_BLOCK)
    of_channels = quant_info.per_channel_quant and scales.shape[1:] == (weight.shape[1], 1)
    fits = len(weight) <= MAX_EXPERTS and weight.shape[2] % parts.K_UNIT == 0
    return fits and weight.dtype == FP8 and scales.dtype == torch.float32 and (has_blocks or of_channels)


def _experts_in_front_of(triton: Any) -> Any:
    @functools.wraps(triton)
    def fused_experts_none_to_triton(dispatch_output: Any, quant_info: Any, runner_config: Any) -> Any:
        x, (weights, ids, *_) = dispatch_output.hidden_states, dispatch_output.topk_output
        gate_up = quant_info.w13_weight, quant_info.w13_scale
        down = quant_info.w2_weight, quant_info.w2_scale
        is_ours = (
            get_moe_runner_backend().is_auto()
            and not triton_experts._use_aiter  # it would add up results by itself, without their factor
            and _has(dispatch_output, _OF_TOKENS)
            and _has(quant_info, _OF_WEIGHTS)
            and _has(runner_config, _OF_LAYER)
            and _is_ours(*gate_up, quant_info)
            and _is_ours(*down, quant_info)
            and (x.dtype == torch.bfloat16 and len(x) <= MAX_TOKENS and ids.shape[1] <= MAX_TOP_K)
        )
        if not is_ours:
            return triton(dispatch_output, quant_info, runner_config)
        # The dispatcher has mapped ids to this rank's experts.
        factor = runner_config.routed_scaling_factor
        weights = (weights if factor is None else weights * factor).float().contiguous()
        limit = runner_config.swiglu_limit
        return StandardCombineInput(
            hidden_states=fused_moe(x, gate_up, down, weights, ids.int().contiguous(), limit=limit)
        )

    return fused_experts_none_to_triton


def install() -> None:
    """Puts ``fused_moe`` in front of Triton's kernels for experts with scales of 128x128 blocks or of channels.

    ``--moe-runner-backend triton`` keeps Triton's, and so does ``SGLANG_USE_AITER``.

    Raises:
        MovedError, AttributeError: this SGLang runs its experts in another way.
    """
    if not isinstance(triton_experts._use_aiter, bool):
        raise parts.MovedError("SGLang's switch of AITER is no bool")
    triton = FusedOpPool.get_fused_func(*_PLACE)
    if hasattr(triton, _MARK):
        return
    ours = _experts_in_front_of(triton)
    parts.check_replaces(triton, ours)
    of_weights = ("w13_weight", "w2_weight", "w13_scale", "w2_scale", "block_shape", "per_channel_quant")
    parts.check_fields(TritonMoeQuantInfo, *of_weights, *_OF_WEIGHTS)
    parts.check_fields(MoeRunnerConfig, "swiglu_limit", "routed_scaling_factor", *_OF_LAYER)
    parts.check_fields(StandardDispatchOutput, "hidden_states", "topk_output", *_OF_TOKENS)
    parts.check_parameters(StandardTopKOutput, "topk_weights", "topk_ids", "router_logits")
    setattr(ours, _MARK, True)
    FusedOpPool._fused_funcs[_PLACE] = ours

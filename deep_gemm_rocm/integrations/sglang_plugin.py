"""The plug-in of SGLang, an entry point of ``sglang.srt.plugins``: SGLang calls ``register`` in each of its processes.

It doesn't open the gate of SGLang's DeepGEMM wrapper, behind which weights and activations are OCP FP8. It stands in
front of Triton's kernels in the choices for FP8 linear layers with scales of 128x128 blocks and for FP8 experts, and in
front of AITER's and SGLang's in the sparse indexer. For layers with weights and activations in MXFP4, SGLang has
kernels on gfx950 only. Here activations become FP8. So do weights of linear layers, when they are loaded; those of
experts keep four bits, shuffled.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..api.casts import per_token_cast_to_fp8
from ..api.experts import fused_moe
from ..api.four_bits import convert_fp4_to_fp8
from ..api.gemm import gemm_fp8
from ..api.settings import set_batch_invariant
from ..problems.layout import FP8, SCALE_BLOCK
from . import parts
from .shuffled import shuffle_if_possible

_LOGGER = logging.getLogger("sglang.deep_gemm_rocm")  # SGLang shows what reaches the root logger
_NAME = "deep_gemm_rocm_w8a8_block_fp8_linear"


def register() -> dict[str, str]:
    """Makes this process's SGLang use this package's kernels, if it runs on gfx942. Repeated calls change nothing.

    ``DG_SGLANG=0`` in the environment keeps SGLang as it is.

    Returns:
        For each part ``installed``, or why it stands back; nothing on other hardware or with ``DG_SGLANG=0``.
    """
    if os.environ.get("DG_SGLANG") == "0" or not parts.is_wanted(_is_gfx942, "SGLang", _LOGGER):
        return {}
    import sglang

    def experts() -> None:
        from . import sglang_experts

        sglang_experts.install()

    def indexer() -> None:
        from . import sglang_indexer

        sglang_indexer.install()

    multiplying = {
        "FP8 linear layers": _install_linear,
        "FP8 experts": experts,
        "MXFP4 linear layers": _install_mxfp4,
        "MXFP4 experts": _install_mxfp4_experts,
    }
    found = {part: functools.partial(_install_invariant, install) for part, install in multiplying.items()}
    return parts.install(found | {"the sparse indexer": indexer}, f"SGLang {sglang.__version__}", _LOGGER)


def _is_gfx942() -> bool:
    from sglang.srt.utils import is_gfx942_supported, is_hip

    return bool(is_hip() and is_gfx942_supported())


def _install_invariant(install: Callable[[], None]) -> None:
    """Installs a part whose kernels split sums by the number of tokens, unless SGLang is to be deterministic."""
    from sglang.srt.batch_invariant_ops import batch_invariant_ops
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    switch = batch_invariant_ops.enable_batch_invariant_mode
    if not hasattr(batch_invariant_ops, _NAME):
        setattr(batch_invariant_ops, _NAME, True)
        target = f"{switch.__module__}.{switch.__name__}"
        HookRegistry.register(target, lambda *_, **__: set_batch_invariant(True), HookType.AFTER)
    install()


def _install_linear() -> None:
    from sglang.srt.layers.quantization import fp8_utils
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if hasattr(fp8_utils, _NAME):
        return
    dispatch, triton = fp8_utils._dispatch_auto_backend, fp8_utils.triton_w8a8_block_fp8_linear
    ours = _linear_in_front_of(triton)
    parts.check_replaces(triton, ours)

    def chosen(result: Any, *_: Any, **__: Any) -> Any:
        return ours if result is triton else result

    setattr(fp8_utils, _NAME, ours)
    HookRegistry.register(f"{dispatch.__module__}.{dispatch.__name__}", chosen, HookType.AFTER)


def _linear_in_front_of(triton: Any) -> Any:
    def deep_gemm_rocm_w8a8_block_fp8_linear(
        input: torch.Tensor,
        weight: torch.Tensor,
        block_size: Sequence[int],
        weight_scale: torch.Tensor,
        input_scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        act_scale_ue8m0: bool = False,
        weight_bf16: torch.Tensor | None = None,
    ) -> Any:
        fits = tuple(block_size) == (SCALE_BLOCK, SCALE_BLOCK) and weight.shape[1] % parts.K_UNIT == 0
        if not fits or weight.dtype != FP8 or weight_scale.dtype != torch.float32:
            scales = (weight_scale, input_scale)
            return triton(input, weight, block_size, *scales, bias, act_scale_ue8m0, weight_bf16)
        rows = input.view(-1, input.shape[-1])
        if input_scale is None:
            a, dtype = per_token_cast_to_fp8(rows, use_ue8m0=act_scale_ue8m0), input.dtype
        else:
            a, dtype = (rows, input_scale.reshape(-1, input_scale.shape[-1])), torch.bfloat16
        out = rows.new_empty(len(rows), weight.shape[0], dtype=dtype)
        gemm_fp8(a, (weight, weight_scale), out, bias=bias)
        return out.view(*input.shape[:-1], weight.shape[0])

    return deep_gemm_rocm_w8a8_block_fp8_linear


def _install_mxfp4() -> None:
    from sglang.srt.layers.quantization.quark.schemes import QuarkW4A4MXFP4

    _replace_methods(
        QuarkW4A4MXFP4,
        process_weights_after_loading=_process_weights_after_loading,
        apply_weights=_apply_weights,
    )


def _install_mxfp4_experts() -> None:
    from sglang.srt.layers.quantization.quark.schemes import QuarkW4A4MXFp4MoE

    _replace_methods(
        QuarkW4A4MXFp4MoE,
        create_moe_runner=_create_moe_runner,
        process_weights_after_loading=_shuffle_weights,
        apply_weights=_apply_experts,
    )


def _replace_methods(scheme: Any, **replaced: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if hasattr(scheme, _NAME):
        return
    for name, ours in replaced.items():
        parts.check_replaces(getattr(scheme, name), ours)
    setattr(scheme, _NAME, True)
    for name, ours in replaced.items():
        HookRegistry.register(f"{scheme.__module__}.{scheme.__name__}.{name}", ours, HookType.REPLACE)


def _process_weights_after_loading(self: Any, layer: Any) -> None:
    data, scales = convert_fp4_to_fp8(layer.weight.data, layer.weight_scale.data)
    layer.weight = torch.nn.Parameter(data, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)


def _apply_weights(self: Any, layer: Any, x: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
    if isinstance(x, tuple):
        raise NotImplementedError("x must not be quantised to MXFP4, which SGLang does on gfx950 only")
    rows = x.reshape(-1, x.shape[-1])
    out = rows.new_empty(len(rows), layer.weight.shape[0], dtype=self.out_dtype)
    gemm_fp8(per_token_cast_to_fp8(rows), (layer.weight, layer.weight_scale), out, bias=bias)
    return out.view(*x.shape[:-1], layer.weight.shape[0])


def _create_moe_runner(self: Any, layer: Any, moe_runner_config: Any) -> None:
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    config = moe_runner_config
    if config.activation != "silu" or not config.is_gated or config.no_combine:
        raise NotImplementedError("deep_gemm_rocm's MXFP4 experts have gated silu, and add the results of a token up")
    is_gpt_oss = config.gemm1_alpha is not None and config.gemm1_beta in (None, 1.0)
    if not is_gpt_oss and (config.gemm1_alpha, config.gemm1_beta, config.gemm1_clamp_limit) != (None, None, None):
        raise NotImplementedError(f"gemm1_alpha, gemm1_beta and gemm1_clamp_limit must be gpt-oss's, got {config}")
    if config.apply_router_weight_on_input and config.top_k != 1:
        raise NotImplementedError(f"apply_router_weight_on_input is for one expert of each token, got {config.top_k}")
    if not get_moe_a2a_backend().is_none():
        raise NotImplementedError("deep_gemm_rocm's MXFP4 experts run without --moe-a2a-backend")
    self.moe_runner_config = config


def _shuffle_weights(self: Any, layer: Any) -> None:
    if getattr(layer, "w13_weight_bias", None) is not None:
        raise NotImplementedError("deep_gemm_rocm's MXFP4 experts have no biases in SGLang")
    shuffle_if_possible(layer, "w13_weight", "w2_weight", replace=_replace_parameter)


def _replace_parameter(layer: Any, name: str, tensor: torch.Tensor) -> None:
    setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))


def _apply_experts(self: Any, layer: Any, dispatch_output: Any) -> Any:
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput

    config, dispatcher = self.moe_runner_config, layer.dispatcher
    x, (weights, ids, *_) = dispatch_output.hidden_states, dispatch_output.topk_output
    if config.apply_router_weight_on_input:
        x, weights = x * weights.to(x.dtype), torch.ones_like(weights)
    is_gpt_oss = config.gemm1_alpha is not None
    # The dispatcher has mapped ids to this rank's experts already, unless AITER is to run them.
    expert_map = dispatcher.local_expert_mapping if dispatcher.use_aiter_moe_runner else None
    out = fused_moe(
        per_token_cast_to_fp8(x),
        (layer.w13_weight, layer.w13_weight_scale),
        (layer.w2_weight, layer.w2_weight_scale),
        weights.float().contiguous(),
        ids.int().contiguous(),
        expert_map=None if expert_map is None else expert_map.to(x.device),
        alpha=config.gemm1_alpha,
        limit=config.gemm1_clamp_limit if is_gpt_oss else config.swiglu_limit,
    )
    return StandardCombineInput(hidden_states=out)

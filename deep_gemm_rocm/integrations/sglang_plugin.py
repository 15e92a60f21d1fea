"""The plug-in of SGLang, an entry point of ``sglang.srt.plugins``: SGLang calls ``register`` in each of its processes.

It doesn't open the gate of SGLang's DeepGEMM wrapper, behind which weights and activations are OCP FP8. It stands in
front of Triton's kernel in the choice for FP8 linear layers with scales of 128x128 blocks. Linear layers with weights
and activations in MXFP4, for which SGLang has kernels on gfx950 only, become FP8 when they are loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from ..api.casts import per_token_cast_to_fp8
from ..api.four_bits import convert_fp4_to_fp8
from ..api.gemm import gemm_fp8
from ..problems.layout import FP8, SCALE_BLOCK
from . import parts

_LOGGER = logging.getLogger("sglang.deep_gemm_rocm")  # SGLang shows what reaches the root logger
_NAME = "deep_gemm_rocm_w8a8_block_fp8_linear"
_K_UNIT = 16  # elements that a lane loads


def register() -> dict[str, str]:
    """Makes this process's SGLang use this package's kernels, if it runs on gfx942. Repeated calls change nothing.

    ``DG_SGLANG=0`` in the environment keeps SGLang as it is.

    Returns:
        For each part ``installed``, or why it stands back; nothing on other hardware or with ``DG_SGLANG=0``.
    """
    if os.environ.get("DG_SGLANG") == "0":
        return {}
    import sglang
    from sglang.srt.utils import is_gfx942_supported, is_hip

    if not (is_hip() and is_gfx942_supported()):
        return {}
    found = {"FP8 linear layers": _install_linear, "MXFP4 linear layers": _install_mxfp4}
    return parts.install(found, f"SGLang {sglang.__version__}", _LOGGER)


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
    HookRegistry.apply_hooks()


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
        fits = tuple(block_size) == (SCALE_BLOCK, SCALE_BLOCK) and weight.shape[1] % _K_UNIT == 0
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
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if hasattr(QuarkW4A4MXFP4, _NAME):
        return
    replaced = (_process_weights_after_loading, _apply_weights)
    for ours in replaced:
        parts.check_replaces(getattr(QuarkW4A4MXFP4, ours.__name__.removeprefix("_")), ours)
    setattr(QuarkW4A4MXFP4, _NAME, True)
    for ours in replaced:
        target = f"{QuarkW4A4MXFP4.__module__}.{QuarkW4A4MXFP4.__name__}.{ours.__name__.removeprefix('_')}"
        HookRegistry.register(target, ours, HookType.REPLACE)
    HookRegistry.apply_hooks()


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

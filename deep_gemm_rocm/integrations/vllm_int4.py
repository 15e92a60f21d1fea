"""vLLM's layers with weights in int4 and activations in bf16 ("W4A16"): compressed-tensors, AWQ and GPTQ.

Weights keep four bits in memory. ``repack_int4`` brings them into the form that kernels take when they are loaded.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from compressed_tensors.quantization import QuantizationArgs
from vllm import envs
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.model_executor.layers.fused_moe.all2all_utils import maybe_make_prepare_finalize
from vllm.model_executor.layers.fused_moe.oracle import int_wna16 as oracle
from vllm.model_executor.layers.quantization.auto_awq import AutoAWQLinearMethod
from vllm.model_executor.layers.quantization.moe_wna16 import MoeWNA16Config
from vllm.model_executor.parameter import permute_param_layout_
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import PlatformEnum
from vllm.scalar_type import scalar_types

from ..api.int4 import repack_int4
from ..api.int4_gemm import bf16_int4_gemm_nt
from ..problems.gemm_kind import GROUP
from ..problems.layout import Pair
from .parts import MovedError, check_parameters, check_replaces, replace_wherever_imported
from .vllm_experts import FourBitExperts

_WITHOUT_ZEROS, _WITH_ZEROS = scalar_types.uint4b8, scalar_types.uint4


def _unfit(k: int, group: int, dtype: torch.dtype) -> str | None:
    """Why there is no kernel for a layer with groups of ``group`` of its ``k`` inputs, -1 for all; None if there is."""
    if envs.VLLM_BATCH_INVARIANT:
        return "VLLM_BATCH_INVARIANT asks for the same bits in any batch"
    if dtype != torch.bfloat16:
        return f"supports bf16 activations only, got {dtype}"
    group = k if group == -1 else group
    if group % GROUP or k % group:
        return f"requires groups of a multiple of {GROUP} values that divide the inputs, got {group} of {k}"
    return None


def _multiplied(x: torch.Tensor, weight: Pair, bias: torch.Tensor | None) -> torch.Tensor:
    """``x · weightᵀ + bias`` for any number of dimensions of ``x``."""
    # Kernels read rows at multiples of 16 bytes, where those of a view needn't be.
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = rows.new_empty(rows.shape[0], weight[0].shape[0])
    bf16_int4_gemm_nt(rows, weight, out, bias=bias)
    return out.view(*x.shape[:-1], out.shape[1])


class DeepGemmRocmInt4Kernel(MPLinearKernel):
    """``bf16_int4_gemm_nt``, for linear layers of compressed-tensors and GPTQ."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 0  # it is registered on gfx942 only

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        if c.weight_type != (_WITH_ZEROS if c.zero_points else _WITHOUT_ZEROS):
            return False, f"requires int4 weights, got {c.weight_type}"
        reason = _unfit(c.partition_weight_shape[0], c.group_size, c.act_type)
        return reason is None, reason

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Brings all parameters to [N, ...], where compressed-tensors has them, and repacks them."""
        names = [self.w_q_name, self.w_s_name, *([self.w_zp_name] if self.config.zero_points else [])]
        packed = {self.w_q_name: {"packed_dim": 1}, self.w_zp_name: {"packed_dim": 0}}
        for name in names:
            to_rows = functools.partial(permute_param_layout_, input_dim=1, output_dim=0, **packed.get(name, {}))
            self._transform_param(layer, name, to_rows)
        repacked = repack_int4(*(getattr(layer, name).data for name in names), packing="compressed-tensors")
        for name, tensor in zip(names, (*repacked, None), strict=False):
            replace_parameter(layer, name, tensor)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _multiplied(x, self._get_weight_params(layer)[:2], bias)


def _replace_methods_of_awq() -> None:
    """``AutoAWQLinearMethod`` has kernels of its own. Its loaders know it by its name, so it stays the class it is."""
    their_apply = AutoAWQLinearMethod.apply
    their_process_weights = AutoAWQLinearMethod.process_weights_after_loading

    @functools.wraps(their_process_weights)
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        their_process_weights(self, layer)
        k, groups = len(layer.qweight), len(layer.scales)
        if _unfit(k, k // groups, layer.scales.dtype) is None:
            weight, scales = repack_int4(layer.qweight.data, layer.scales.data, layer.qzeros.data, packing="awq")
            for name, tensor in (("qweight", weight), ("scales", scales), ("qzeros", None)):
                replace_parameter(layer, name, tensor)

    @functools.wraps(their_apply)
    def apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if layer.qzeros is not None:
            theirs: torch.Tensor = their_apply(self, layer, x, bias)
            return theirs
        return _multiplied(x, (layer.qweight, layer.scales), bias)

    AutoAWQLinearMethod.process_weights_after_loading = process_weights_after_loading
    AutoAWQLinearMethod.apply = apply


class _Backend(enum.Enum):
    """Beside the oracle's ``WNA16MoEBackend``: weights are ours."""

    DEEP_GEMM_ROCM = "DEEP_GEMM_ROCM"


class DeepGemmRocmInt4Experts(FourBitExperts):
    """``fused_moe`` with weights in int4 and tokens in bf16, as Kimi-K2 has them."""

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key.dtype in (_WITHOUT_ZEROS, _WITH_ZEROS) and activation_key is None

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        # vLLM moves int4 experts between ranks for its Triton backend only, and refuses a model with any other.
        supported = FourBitExperts._supports_parallel_config(moe_parallel_config)
        return supported and not moe_parallel_config.enable_eplb

    @classmethod
    def fits(cls, config: Any, weight_key: Any, checkpoint: Any) -> bool:
        """Whether a layer's experts can be ours; ``checkpoint`` is how they are quantised."""
        batched = config.moe_parallel_config.use_batched_activation_format
        formats = mk.FusedMoEActivationFormat
        activation_format = formats.BatchedExperts if batched else formats.Standard
        supported, reason = cls.is_supported_config(cls, config, weight_key, None, activation_format)
        if supported:
            reason = cls._unfit(config, checkpoint)
        if reason is not None:
            oracle.logger.debug_once("%s does not support these experts since %s.", cls.__name__, reason)
        return reason is None

    @staticmethod
    def _unfit(config: Any, checkpoint: Any) -> str | None:
        if not isinstance(checkpoint, (QuantizationArgs, MoeWNA16Config)):
            return f"it has no form for {type(checkpoint).__name__}"
        if not checkpoint.group_size or checkpoint.group_size < 0:
            return "scales of whole rows aren't supported"
        sizes = config.hidden_dim, config.intermediate_size_per_partition
        reasons = (_unfit(k, checkpoint.group_size, config.in_dtype) for k in sizes)
        return next((reason for reason in reasons if reason is not None), None)


def _repacked(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> Pair:
    """Experts of compressed-tensors in words, or those of AWQ and GPTQ, which vLLM loads into bytes of two codes."""
    if weight.dtype == torch.uint8:
        weight = weight.view(torch.int32)
        zeros = None if zeros is None else zeros.mT.contiguous().view(torch.int32).mT
    return repack_int4(weight, scales, zeros, packing="compressed-tensors")


def _in_form_of_kernels(
    layer: Any,
    quant_config: Any,
    input_dtype: Any,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_scale: torch.Tensor,
    w13_qzeros: torch.Tensor | None = None,
    w2_qzeros: torch.Tensor | None = None,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """What ``convert_to_wna16_moe_kernel_format`` returns: all parameters of a layer. Zeros stay as they are."""
    gate_up, gate_up_scales = _repacked(w13.data, w13_scale.data, None if w13_qzeros is None else w13_qzeros.data)
    down, down_scales = _repacked(w2.data, w2_scale.data, None if w2_qzeros is None else w2_qzeros.data)
    without_scales_of_input = None, None
    return (
        gate_up, down, gate_up_scales, down_scales, w13_qzeros, w2_qzeros, *without_scales_of_input, w13_bias, w2_bias,
    )  # fmt: skip


def _replacements() -> list[Any]:
    """The oracle's functions that choose experts, convert their weights and make their kernel."""
    select, convert, make = (
        oracle.select_wna16_moe_backend, oracle.convert_to_wna16_moe_kernel_format, oracle.make_wna16_moe_kernel,
    )  # fmt: skip

    @functools.wraps(select)
    def select_wna16_moe_backend(config: Any, weight_key: Any, quant_config: Any, *others: Any, **named: Any) -> Any:
        if DeepGemmRocmInt4Experts.fits(config, weight_key, quant_config):
            return _Backend.DEEP_GEMM_ROCM, DeepGemmRocmInt4Experts
        return select(config, weight_key, quant_config, *others, **named)

    @functools.wraps(convert)
    def convert_to_wna16_moe_kernel_format(backend: Any, *others: Any, **named: Any) -> Any:
        ours = backend is _Backend.DEEP_GEMM_ROCM
        return _in_form_of_kernels(*others, **named) if ours else convert(backend, *others, **named)

    @functools.wraps(make)
    def make_wna16_moe_kernel(
        moe_quant_config: Any, moe_config: Any, experts_cls: Any, backend: Any = None, routing_tables: Any = None
    ) -> Any:
        if backend is not _Backend.DEEP_GEMM_ROCM:
            chosen = {} if backend is None else {"backend": backend}
            return make(moe_quant_config, moe_config, experts_cls, routing_tables=routing_tables, **chosen)
        prepare_finalize = maybe_make_prepare_finalize(
            moe=moe_config, quant_config=moe_quant_config, routing_tables=routing_tables, allow_new_interface=True
        )
        return mk.FusedMoEKernel(prepare_finalize, experts_cls(moe_config=moe_config, quant_config=moe_quant_config))

    return [select_wna16_moe_backend, convert_to_wna16_moe_kernel_format, make_wna16_moe_kernel]


def install() -> None:
    """Puts all where vLLM asks before Triton. ``--linear-backend`` and ``--moe-backend`` still choose others.

    Raises:
        MovedError, AttributeError, ImportError: this vLLM chooses kernels in another way.
    """
    for method in ("can_implement", "process_weights_after_loading", "apply_weights"):
        check_replaces(getattr(MPLinearKernel, method), getattr(DeepGemmRocmInt4Kernel, method))
    check_parameters(AutoAWQLinearMethod.apply, "self", "layer", "x", "bias")
    check_parameters(AutoAWQLinearMethod.process_weights_after_loading, "self", "layer")
    weights = ("w13", "w2", "w13_scale", "w2_scale", "w13_qzeros", "w2_qzeros", "w13_bias", "w2_bias")
    check_parameters(
        oracle.convert_to_wna16_moe_kernel_format, "backend", "layer", "quant_config", "input_dtype", *weights
    )
    check_parameters(
        oracle.select_wna16_moe_backend,
        "config", "weight_key", "quant_config", "may_have_zp", "may_have_bias", "allow_tile_padding",
    )  # fmt: skip
    check_parameters(
        oracle.make_wna16_moe_kernel, "moe_quant_config", "moe_config", "experts_cls", "backend", "routing_tables"
    )
    kernels = linear._POSSIBLE_KERNELS.get(PlatformEnum.ROCM)
    if not isinstance(kernels, list):
        raise MovedError("_POSSIBLE_KERNELS has no list of ROCm's kernels")
    if DeepGemmRocmInt4Kernel in kernels:
        return
    kernels.insert(0, DeepGemmRocmInt4Kernel)
    _replace_methods_of_awq()
    for replacement in _replacements():
        replace_wherever_imported(replacement)

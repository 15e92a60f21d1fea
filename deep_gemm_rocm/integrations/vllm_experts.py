"""vLLM's FP8 experts: a class that its MoE oracle finds before Triton's."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

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

from ..api.casts import per_row_cast_to_fp8, per_token_cast_to_fp8
from ..api.fused_casts import silu_and_mul_cast_to_fp8
from ..api.grouped import m_grouped_fp8_gemm_nt_contiguous
from ..api.settings import get_mk_alignment_for_contiguous_layout, set_mk_alignment_for_contiguous_layout
from ..problems.layout import SCALE_BLOCK, Pair, align, ceil_div
from .parts import check_parameters, check_replaces

_ALIGNMENT = 16  # the smallest: with few tokens, most rows of a larger one would be padding
_CHANNELS = (1, 1, None)  # a scale for each token and each output channel


class DeepGemmRocmExperts(mk.FusedMoEExpertsModular):
    """Two grouped GEMMs over rows that are sorted by expert; weights of blocks of 128x128 or of channels.

    Nothing waits for the device and no size depends on the routing, so a call can be captured.
    """

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
        if moe_config.has_bias:
            return False, "kernel does not support biases of experts"
        if moe_config.intermediate_size_per_partition % SCALE_BLOCK:
            return False, f"kernel requires intermediate sizes that are a multiple of {SCALE_BLOCK}"
        if moe_config.swiglu_limit is not None and weight_key == kFp8StaticChannelSym:
            return False, "kernel supports clamped activations with scales of blocks only"
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
        """No workspaces: torch's allocator, which graphs capture, has what the routes need."""
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
        of_blocks = self.block_shape is not None
        tokens = (hidden_states, a1q_scale) if a1q_scale is not None else _quantised(hidden_states, of_blocks)
        routes = _routes(topk_ids, expert_map, len(w1))
        weights = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
        before = get_mk_alignment_for_contiguous_layout()
        set_mk_alignment_for_contiguous_layout(_ALIGNMENT)
        try:
            rows = _experts(
                tokens, (w1, self.w1_scale), (w2, self.w2_scale), routes, self.activation_config.clamp_limit,
                output.dtype, of_blocks,
            )  # fmt: skip
        finally:
            set_mk_alignment_for_contiguous_layout(before)
        chosen = rows[routes.row_of_route].view(*topk_ids.shape, -1)
        torch.bmm(weights.to(rows.dtype).unsqueeze(1), chosen, out=output.unsqueeze(1))


class _Routes(NamedTuple):
    """Where each route, a token's copy for one of its experts, is among rows that are sorted by expert.

    Attributes:
        token_of_row: int64 [rows]: 0 for padding.
        row_of_route: int64 [tokens * top k]: ``rows`` for routes to other ranks' experts.
        ends: int32 [experts]: one past each expert's last row.
    """

    token_of_row: torch.Tensor
    row_of_route: torch.Tensor
    ends: torch.Tensor


def _rows(routes: int, experts: int) -> int:
    """As many rows as any routing needs; each expert's begin at a multiple of the alignment."""
    return align(routes + min(routes, experts) * (_ALIGNMENT - 1), _ALIGNMENT)


def _routes(topk_ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int) -> _Routes:
    ids = topk_ids.flatten()
    if expert_map is not None:
        ids = torch.where(ids < 0, -1, expert_map[ids.clamp_min(0)])
    rows, top_k, device = _rows(len(ids), experts), topk_ids.shape[1], ids.device
    expert, order = ids.sort(stable=True)  # -1, for other ranks' experts, comes first
    first = torch.searchsorted(expert, torch.arange(experts + 1, dtype=expert.dtype, device=device))
    counts = first.diff()
    aligned = (counts + (_ALIGNMENT - 1)) & -_ALIGNMENT
    starts = aligned.cumsum(0) - aligned
    # How far rows are from places in the order; expert -1 finds the last entry, which is beyond all rows.
    shift = torch.nn.functional.pad(starts - first[:-1], (0, 1), value=rows)
    row = (torch.arange(len(ids), device=device) + shift[expert.long()]).clamp_max(rows)
    token_of_row = torch.zeros(rows + 1, dtype=torch.int64, device=device).scatter_(0, row, order // top_k)
    return _Routes(token_of_row[:rows], torch.empty_like(order).scatter_(0, order, row), (starts + counts).int())


def _quantised(x: torch.Tensor, of_blocks: bool) -> Pair:
    return per_token_cast_to_fp8(x, use_ue8m0=False) if of_blocks else per_row_cast_to_fp8(x)


def _experts(
    tokens: Pair,
    gate_up: Pair,
    down: Pair,
    routes: _Routes,
    limit: float | None,
    dtype: torch.dtype,
    of_blocks: bool,
) -> torch.Tensor:
    """Each row through its expert: [rows + 1, hidden], whose last row is zero."""
    data, scales = tokens
    rows, expected = len(routes.token_of_row), ceil_div(len(routes.row_of_route), len(routes.ends))
    gathered = data.view(torch.uint8)[routes.token_of_row].view(data.dtype), scales[routes.token_of_row]
    (_, both, hidden), result = gate_up[0].shape, None
    options: dict[str, Any] = {
        "use_psum_layout": True,
        "expected_m_for_psum_layout": expected,
        "recipe": None if of_blocks else _CHANNELS,
    }
    if of_blocks and limit is None:
        # The first GEMM activates and quantises its sums.
        result = (
            data.new_empty(rows, both // 2),
            torch.empty_strided((rows, both // 2 // SCALE_BLOCK), (1, rows), dtype=torch.float32, device=data.device),
        )
        m_grouped_fp8_gemm_nt_contiguous(gathered, gate_up, result, routes.ends, epilogue="silu_and_mul", **options)
        activated: Pair = result
    elif limit is None:
        sums = data.new_empty(rows, both // 2, dtype=dtype)
        m_grouped_fp8_gemm_nt_contiguous(gathered, gate_up, sums, routes.ends, epilogue="silu_and_mul", **options)
        activated = per_row_cast_to_fp8(sums)
    else:
        sums = data.new_empty(rows, both, dtype=dtype)
        m_grouped_fp8_gemm_nt_contiguous(gathered, gate_up, sums, routes.ends, **options)
        activated = silu_and_mul_cast_to_fp8(sums, limit=limit)
    out = data.new_empty(rows + 1, hidden, dtype=dtype)
    out[-1] = 0
    m_grouped_fp8_gemm_nt_contiguous(activated, down, out[:-1], routes.ends, **options)
    return out


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

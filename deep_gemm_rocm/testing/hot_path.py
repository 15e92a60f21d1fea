"""References for what lies between GEMMs: norms, activations and the choice of experts."""

from __future__ import annotations

import torch


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fp32 rows that ``rms_norm_cast_to_fp8`` quantises, and the sum with the residual in the dtype of ``x``."""
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    root = (total.double().square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return total.float() * (1 / root).float() * weight.float(), total


def silu_and_mul_reference(x: torch.Tensor, alpha: float | None = None, limit: float | None = None) -> torch.Tensor:
    """The fp64 values that ``silu_and_mul_cast_to_fp8`` approximates in fp32 and quantises."""
    gate, up = x.double().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(gate) * up if alpha is None else gate * torch.sigmoid(alpha * gate) * (up + 1)


def route_top_k_reference(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    num_groups: int | None = None,
    top_groups: int | None = None,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fp32 weights and int32 ids of ``route_top_k``: its definition in fp64, step by step."""
    wide = logits.double()
    tokens, experts = logits.shape
    # torch's softmax of a row of -inf is NaN as well, but one with +inf depends on the version.
    largest = torch.where(wide.isnan(), -torch.inf, wide).amax(dim=1, keepdim=True)
    terms = (wide - largest).exp()
    scores = (terms / terms.sum(dim=1, keepdim=True) if scoring == "softmax" else torch.sigmoid(wide)).float()
    keys = logits.float() if scoring == "softmax" and bias is None else scores
    if bias is not None:
        keys = keys + bias
    if num_groups is not None and top_groups is not None and num_groups > 1:
        grouped = keys.view(tokens, num_groups, experts // num_groups)
        best = grouped.gather(2, _order(grouped))
        of_groups = best[..., 0] if bias is None else best[..., 0] + best[..., 1]
        kept = torch.zeros(of_groups.shape, dtype=torch.bool).scatter_(1, _order(of_groups)[:, :top_groups], True)
        available = kept.repeat_interleave(experts // num_groups, dim=1)
    else:
        available = torch.ones(keys.shape, dtype=torch.bool)
    order = _order(keys)
    order = order.gather(1, (~available.gather(1, order)).int().argsort(dim=1, stable=True))
    ids = order[:, :top_k]
    chosen = scores.gather(1, ids).double()
    weights = chosen * scale
    if renormalize:
        weights = weights / (chosen.sum(dim=1, keepdim=True) + 1e-20)
    return weights.float(), ids.int()


def fused_moe_reference(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    alpha: float | None = None,
    limit: float | None = None,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The exact result of ``fused_moe`` for values without scales, in fp64, and what bounds of its errors are made of.

    Returns:
        The result [T, hidden]; the same of the magnitudes of the activated values, weights and ``down``, to which
        errors of the activated values are proportional; and the sum of the magnitudes of each token's weighted results.
    """
    result = x.new_zeros(x.shape, dtype=torch.float64)
    magnitudes, of_results = torch.zeros_like(result), torch.zeros_like(result)
    experts = len(gate_up)
    local = topk_ids.long()
    if expert_map is not None:
        exists = (local >= 0) & (local < len(expert_map))
        local = torch.where(exists, expert_map.long()[local.clamp(0, len(expert_map) - 1)], -1)
    for expert in range(experts):
        tokens, slots = (local == expert).nonzero(as_tuple=True)
        rows, weights = x.double()[tokens], topk_weights.double()[tokens, slots, None]
        both = rows @ gate_up[expert].double().T
        gate, up = (both if gate_up_bias is None else both + gate_up_bias[expert].double()).chunk(2, dim=1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        activated = gate * torch.sigmoid(gate) * up if alpha is None else gate * torch.sigmoid(alpha * gate) * (up + 1)
        of_expert = down[expert].double().T
        of_rows = activated @ of_expert
        exact = weights * (of_rows if down_bias is None else of_rows + down_bias[expert].double())
        # Errors of a sum over K grow with the sum of magnitudes: of gate and up, too.
        of_gate, of_up = (rows.abs() @ gate_up[expert].double().abs().T).chunk(2, dim=1)
        spread = activated.abs() + 2.0**-10 * (of_gate * (1 + up.abs()) + of_up * (1 + gate.abs()))
        result.index_add_(0, tokens, exact)
        magnitudes.index_add_(0, tokens, weights.abs() * (spread @ of_expert.abs()))
        of_results.index_add_(0, tokens, exact.abs())
    return result, magnitudes, of_results


def _order(keys: torch.Tensor) -> torch.Tensor:
    """Indices from the largest number to the smallest, then NaNs; of equal ones the lower first."""
    least = torch.where(keys.isnan(), -torch.inf, keys)
    by_value = (-least).argsort(dim=-1, stable=True)
    return by_value.gather(-1, keys.isnan().gather(-1, by_value).int().argsort(dim=-1, stable=True))

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


def _order(keys: torch.Tensor) -> torch.Tensor:
    """Indices from the largest number to the smallest, then NaNs; of equal ones the lower first."""
    least = torch.where(keys.isnan(), -torch.inf, keys)
    by_value = (-least).argsort(dim=-1, stable=True)
    return by_value.gather(-1, keys.isnan().gather(-1, by_value).int().argsort(dim=-1, stable=True))

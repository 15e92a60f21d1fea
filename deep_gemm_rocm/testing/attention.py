"""References for attention: fp64 results on the dequantised operands, and an error bound for each element."""

from __future__ import annotations

import dataclasses
import math

import torch

from ..problems.layout import SCALE_BLOCK
from .numerics import MATRIX_CORE_ERROR, Accuracy, GemmReference, assert_accurate, measure

_ROUNDING = 2.0**-24  # half a unit in the last place of fp32, relative to the value rounded
_GROUP = 8  # products that the matrix cores add up before they round
# Rounding error of a probability: half a unit in its last place, and half of the smallest subnormal.
_PROBABILITY = {
    torch.bfloat16: (2.0**-8, 0.0),
    torch.float16: (2.0**-11, 2.0**-25),
    torch.float8_e4m3fnuz: (2.0**-4, 2.0**-11 / 128),
}
# The same of a part's result, which is stored in f16. The largest of neighbouring elements is between 2^14 and 2^15.
_PART = (2.0**-11, 2.0**-25 / 2**14)


@dataclasses.dataclass(frozen=True)
class AttentionReference:
    """Attributes:
    out: fp64 [B, Sq, H, Dv], the exact result.
    error: fp64 [B, Sq, H, Dv], the bound of the error before the result is rounded to the output's type.
    lse: fp64 [B, H, Sq], the exact log-sum-exp.
    lse_error: fp64 [B, H, Sq], the bound of its error.
    """

    out: torch.Tensor
    error: torch.Tensor
    lse: torch.Tensor
    lse_error: torch.Tensor

    def measure(self, out: torch.Tensor) -> Accuracy:
        """Compares a result with the reference, as ``testing.measure`` does."""
        return measure(out.flatten(0, -2), self._rows())

    def assert_accurate(self, out: torch.Tensor, lse: torch.Tensor | None = None) -> Accuracy:
        """Raises AssertionError unless every element of a result is within its bound."""
        accuracy = assert_accurate(out.flatten(0, -2), self._rows())
        if lse is not None:
            lse = lse.cpu().double()
            same = (lse == self.lse) | (lse.isnan() & self.lse.isnan())
            wrong = ~(same | ((lse - self.lse).abs() <= self.lse_error))
            if wrong.any():
                index = tuple(wrong.nonzero()[0].tolist())
                raise AssertionError(
                    f"{int(wrong.sum())} of {wrong.numel()} lse are outside the bound, the first at {index}: "
                    f"{lse[index].item()} where {self.lse[index].item()} is exact"
                )
        return accuracy

    def _rows(self) -> GemmReference:
        """The reference as a matrix with a row for each query and head."""
        return GemmReference(self.out.flatten(0, -2), self.error.flatten(0, -2))


def visible_keys(tokens_q: int, tokens_k: int, causal: bool, window: tuple[int, int] | None) -> torch.Tensor:
    """bool [Sq, Sk]: which keys each query sees under the masks of ``flash_attention``."""
    left, right = window or (-1, -1)
    right = 0 if causal else right
    distance = torch.arange(tokens_k)[None] - (torch.arange(tokens_q)[:, None] + tokens_k - tokens_q)
    seen = torch.ones(tokens_q, tokens_k, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    seen: torch.Tensor,
    softmax_scale: float | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    in_parts: bool = False,
) -> AttentionReference:
    """The reference for ``flash_attention`` with these arguments, where query i sees the keys ``seen[..., i, :]``.

    With ``in_parts``, the bound is that of decoding, which may compute the result in parts of the keys.

    It is computed on the CPU. Keys that a query doesn't see have no influence on its result, even if they are NaN; nor
    have keys whose logit is -inf. An infinite value gives infinity, however small its probability, which is never 0. A
    logit of NaN or infinity makes the whole result of its query NaN.
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    scale = softmax_scale if softmax_scale is not None else 1 / math.sqrt(q.shape[-1])
    queries = _dequantised(q, q_descale)
    keys = _dequantised(k, k_descale).repeat_interleave(heads // kv_heads, dim=1)
    values = _dequantised(v, v_descale).repeat_interleave(heads // kv_heads, dim=1)
    logits = queries @ keys.mT * scale
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~seen, -torch.inf)
    counts = seen & (logits != -torch.inf)
    lse = torch.logsumexp(logits, dim=-1)
    lse = lse.masked_fill(lse == torch.inf, torch.nan)
    nothing = (lse == -torch.inf)[..., None]
    share: torch.Tensor | float = 1.0
    if attn_sink is not None:  # a key without a value
        share = torch.where(nothing, 0.0, torch.sigmoid(lse[..., None] - attn_sink.cpu().double()[:, None, None]))
    p = torch.where(nothing, 0.0, torch.exp(logits - torch.where(nothing, 0.0, lse[..., None])))

    # The error of a logit from fp32 sums and products, which is the relative error of its exponential.
    groups = q.shape[-1] // _GROUP
    magnitude = (queries.abs() @ keys.abs().mT * scale).masked_fill(~seen, 0.0).nan_to_num(0.0, 0.0)
    largest = logits.nan_to_num(0.0, 0.0, 0.0).abs().amax(dim=-1, keepdim=True) if logits.shape[-1] else 0.0
    logit_error = _ROUNDING * ((20 + 2 * groups) * magnitude + 4 * largest + 4 + 16 * softcap)
    key_error = _ROUNDING * (20 + k.shape[1] / 4)  # error of sums over keys
    # Probabilities are rounded relative to the row's largest one, before the division by their sum.
    relative, absolute = _PROBABILITY[q.dtype]
    peak = p.amax(dim=-1, keepdim=True) if p.shape[-1] else p.sum(dim=-1, keepdim=True)
    lost = p * (relative * 1.01 + logit_error + key_error) + absolute * peak * seen
    mean_error = (p * logit_error).nan_to_num(0.0).sum(dim=-1, keepdim=True)
    sees = lambda weights, of: _product(weights, of, counts)  # noqa: E731
    sums = sees(p, values.abs())
    error = sees(lost, values.abs()) + sums * (mean_error + key_error)
    if in_parts and values.shape[-1]:
        largest_sum = sums.nan_to_num(0.0, 0.0).amax(dim=-1, keepdim=True)
        error = error + _PART[0] * sums + _PART[1] * largest_sum
    return AttentionReference(
        (sees(p, values) * share).transpose(1, 2),
        (error * share * (1 + 8 * _ROUNDING)).transpose(1, 2),
        lse,
        mean_error[..., 0] * 1.01 + key_error + 2 * _ROUNDING * lse.abs(),
    )


def logits_reference(q: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> GemmReference:
    """The reference for ``fp8_mqa_logits`` where every query sees every key, computed on the CPU.

    Args:
        q: [S, H, D].
        keys, scales: [Skv, D] and [Skv].
        weights: [S, H].
    """
    q, keys, scales, weights = (tensor.double() for tensor in (q, keys, scales, weights))
    exact = (torch.einsum("shd,kd->shk", q, keys).relu() * weights[:, :, None]).sum(dim=1) * scales
    magnitude = torch.einsum("shd,kd,sh->sk", q.abs(), keys.abs(), weights.abs()) * scales.abs()
    return GemmReference(exact, (MATRIX_CORE_ERROR + q.shape[1] + 4) * _ROUNDING * magnitude)


def _product(weights: torch.Tensor, values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """``weights @ values``. NaN and infinity count only for keys in ``counts``, whose weights are taken as above 0."""
    finite = values.nan_to_num(0.0, 0.0, 0.0)
    result = weights @ finite
    if finite.equal(values):
        return result
    odd = (values - finite).nan_to_num(torch.nan, torch.inf, -torch.inf)
    for index in odd.ne(0).any(dim=-1).nonzero():  # batch, head, key
        batch, head, key = index.tolist()
        column = counts.expand(*weights.shape)[batch, head, :, key, None]
        weight = weights[batch, head, :, key, None]
        row = torch.where(odd[batch, head, key] != 0, values[batch, head, key], 0.0)
        product = torch.where(row.isinf() & ~weight.isnan(), row, weight * row)
        result[batch, head] += torch.where(column, product, 0.0)
    return result


def _dequantised(tensor: torch.Tensor, descale: torch.Tensor | None) -> torch.Tensor:
    """The dequantised values, fp64 [B, heads, tokens, width]."""
    values = tensor.cpu().double().transpose(1, 2)
    if descale is None:
        return values
    factors = descale.cpu().double()
    if factors.dim() == 3:
        factors = factors.repeat_interleave(SCALE_BLOCK, dim=2)[:, :, : values.shape[2], None]
    else:
        factors = factors.reshape(*factors.shape, *[1] * (4 - factors.dim()))
    return values * factors

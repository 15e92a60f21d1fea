"""Attention: softmax(q · kᵀ) · v."""

from __future__ import annotations

from typing import Any, cast

import torch

from .attention_contracts import (
    MAX_SPLITS,
    Attention,
    Decode,
    check_attention,
    check_dealt,
    check_decode,
    check_latent_decode,
)
from .attention_kernel import launch_flash_attention, launch_flash_decode
from .checks import check_int
from .heuristics import AttentionCase, AttentionConfig, DecodeConfig, choose_attention
from .layout import FP8

_NO_WINDOW = (-1, -1)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of queries to keys and values, ``softmax(softmax_scale · q · kᵀ) · v``, without a matrix of logits.

    The conventions are the flash-attn package's: tokens come before heads, where
    ``torch.nn.functional.scaled_dot_product_attention`` has heads before tokens (``q.transpose(1, 2)``), groups of
    heads need no flag, a causal mask is aligned with the last query and the last key (torch aligns the first ones,
    which is another mask where there are more keys than queries), and a query that sees no key gives zeros. The same
    inputs give the same bits.

    Args:
        q: bf16, f16 or float8_e4m3fnuz [B, Sq, H, D]; packed, [total_q, H, D].
        k: of the same dtype, [B, Sk, Hk, D]; packed, [total_k, Hk, D]. Sk is any, as is Sq; H is a multiple of Hk, and
            consecutive H/Hk heads of q share a head of k and v.
        v: of the same dtype, [B, Sk, Hk, Dv]; packed, [total_k, Hk, Dv]. D/Dv is 64/64, 96/96, 128/128, 192/192,
            256/256 or 192/128.
        softmax_scale: what logits are multiplied with, positive; 1/sqrt(D) if None.
        causal: query i sees keys up to i + Sk - Sq only.
        window: (left, right), how many keys a query sees on both sides of key i + Sk - Sq; -1 for all. With ``causal``
            none on the right.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1], for packed sequences: where each starts, and the end of the last.
            A sequence may be empty. Where a host can't read them without waiting for a GPU, what they hold isn't
            checked; kernels stay within the tensors whatever it is.
        q_descale, k_descale, v_descale: what FP8 values are multiplied with, fp32, positive: [1] for the whole tensor,
            [B, H] (of k and v, [B, Hk]) for each sequence and head, or [B, H, ceil(S/128)] for each 128 tokens of a
            sequence as well (packed: as many as the longest sequence has). Any strides.
        out: [B, Sq, H, Dv] or packed [total_q, H, Dv] to write into; a new tensor if None. Of the dtype of q; for FP8,
            bf16 (the default) or f16.
        return_lse: whether to return the logarithm of each row's sum of exponentials.

    The last dimension is contiguous; tokens and heads are any distance apart that is a multiple of 16 bytes. A NaN or
    an infinity in a value shows in all queries that see it, an infinity as NaN where its probability underflows, and
    may show as NaN in others that see one of the 64 (FP8: 128) keys around it. A logit of NaN or infinity makes all
    results of its query NaN, and its lse; a key whose logit is -infinity has no weight. Probabilities are summed up in
    fp32 and rounded to the dtype of v, after a multiplication with 128 to FP8.

    Returns:
        ``out``; with ``return_lse`` also fp32 [B, H, Sq] or packed [H, total_q]: the natural logarithm of each query's
        sum of ``exp(logit)``, -inf for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if torch.compiler.is_compiling():
        out = _new_output(q, v.shape[-1]) if out is None else out
        options = (softmax_scale, causal, window or _NO_WINDOW, cu_seqlens_q, cu_seqlens_k)
        lse = torch.ops.deep_gemm_rocm.flash_attention(
            q, k, v, out, *options, q_descale, k_descale, v_descale, return_lse
        )
        return (out, lse) if return_lse else out
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    problem = check_attention(q, k, v, softmax_scale, causal, window, cu_seqlens_q, cu_seqlens_k, descales, out)
    out = _new_output(q, problem.value_dim) if out is None else out
    lse = new_lse(q) if return_lse else None
    tokens_of_sequence = problem.tokens_q if cu_seqlens_q is None else problem.tokens_q // max(problem.batch, 1)
    tokens_of_k = problem.tokens_k if cu_seqlens_k is None else problem.tokens_k // max(problem.batch, 1)
    case = _case("flash_attention", problem, tokens_of_sequence, tokens_of_k)
    config = cast(AttentionConfig, choose_attention(case).config)
    launch_flash_attention(config, problem, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    return (out, lse) if return_lse else out


def flash_attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    softmax_scale: float | None = None,
    window: tuple[int, int] | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    num_splits: int | None = None,
) -> Any:
    """Attention of each sequence's last few tokens to all of it, whose keys and values are in a paged cache.

    The keys and values of the last tokens are in the cache already. Keys are split between workgroups; what these give
    is put together in a fixed order, so that the same inputs give the same bits, on any number of compute units.

    Args:
        q: bf16, f16 or float8_e4m3fnuz [B, next_n, H, D], next_n from 1 to 4: the last tokens of each sequence.
        k_cache: of the same dtype, [blocks, block_size, Hk, D], block_size 16, 32, 64, 128 or 256.
        v_cache: of the same dtype, [blocks, block_size, Hk, Dv]. D/Dv as for ``flash_attention``, but not 96/96 in FP8.
        block_table: int32 [B, blocks of a sequence]: block ``t // block_size`` of its row holds token t. Those past the
            sequence's end aren't looked at.
        context_lens: int32 [B], tokens of each sequence including its last next_n: query i sees the keys up to
            ``context_len - next_n + i``. May be 0. Where a host can't read this and ``block_table`` without waiting for
            a GPU, what they hold isn't checked; kernels stay within the tensors whatever it is.
        softmax_scale: what logits are multiplied with, positive; 1/sqrt(D) if None.
        window: (left, right), how many keys before its own a query sees; -1 for all. None are to its right.
        q_descale, k_descale, v_descale: what FP8 values are multiplied with, fp32, positive: [1] for the whole tensor,
            or [B, H] (of k and v, [B, Hk]) for each sequence and head.
        out: [B, next_n, H, Dv] to write into; a new tensor if None. Of the dtype of q; for FP8, bf16 or f16.
        return_lse: whether to return the logarithm of each row's sum of exponentials.
        num_splits: into how many equal parts each sequence's keys are split, 1 to 4096: then the bits of a sequence's
            result don't depend on the other sequences. If None, all keys are shared out so that workgroups have as
            much to do, however long each sequence is.

    Strides and the rounding of probabilities are as for ``flash_attention``. A NaN or an infinity in a value shows in
    the queries that see it and in no others, an infinity as one, however small its probability. A key whose logit is
    -infinity counts for nothing, nor does its value; a logit of NaN or infinity makes all results of its query NaN, and
    its lse. None of this depends on how keys are split.

    Returns:
        ``out``; with ``return_lse`` also fp32 [B, H, next_n], -inf for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if torch.compiler.is_compiling():
        out = _new_output(q, v_cache.shape[-1]) if out is None else out
        descaled = (q_descale, k_descale, v_descale)
        options = (softmax_scale, window or _NO_WINDOW, *descaled, num_splits, return_lse)
        lse = torch.ops.deep_gemm_rocm.flash_attention_decode(
            q, k_cache, v_cache, out, block_table, context_lens, *options
        )
        return (out, lse) if return_lse else out
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    problem = check_decode(q, k_cache, v_cache, block_table, context_lens, softmax_scale, window, descales, out)
    return _decode("flash_decode", problem, q, k_cache, v_cache, block_table, context_lens, out, return_lse, num_splits)


def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    *,
    d_v: int = 512,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    softmax_scale: float | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    num_splits: int | None = None,
) -> Any:
    """``flash_attention_decode`` over the latent cache of DeepSeek's models: values are the first ``d_v`` of each key.

    Each block of keys is read once, for up to 64 queries (tokens and heads) and both products.

    Args:
        q: bf16 or f16 [B, next_n, H, 576], next_n from 1 to 4: what absorbs the up-projection of keys, and the rotary
            part behind it.
        kv_cache: of the same dtype, [blocks, block_size, 1, 576], block_size 16, 32, 64, 128 or 256.
        d_v: 512.
        softmax_scale: 1/sqrt(576) if None; models whose heads were narrower before that absorption pass their own.
        out: [B, next_n, H, d_v] of the dtype of q to write into; a new tensor if None.

    The other arguments, the result, the rounding and the errors are those of ``flash_attention_decode``.
    """
    if torch.compiler.is_compiling():
        out = _new_output(q, d_v) if out is None else out
        lse = torch.ops.deep_gemm_rocm.mla_decode(
            q, kv_cache, out, d_v, block_table, context_lens, softmax_scale, num_splits, return_lse
        )
        return (out, lse) if return_lse else out
    problem = check_latent_decode(q, kv_cache, d_v, block_table, context_lens, softmax_scale, out)
    return _decode("mla_decode", problem, q, kv_cache, kv_cache, block_table, context_lens, out, return_lse, num_splits)


def _decode(
    family: str,
    problem: Decode,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor | None,
    return_lse: bool,
    num_splits: int | None,
) -> Any:
    config, pieces = choose_attention(_case(family, problem, problem.tokens_q, problem.most_keys))
    if num_splits is None:
        check_dealt(problem)
    else:
        num_splits = check_int("num_splits", num_splits, 1, MAX_SPLITS)
        pieces = num_splits * problem.batch * problem.kv_heads
    out = _new_output(q, problem.value_dim) if out is None else out
    lse = new_lse(q) if return_lse else None
    launch_flash_decode(
        cast(DecodeConfig, config),
        problem,
        q,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        out,
        lse,
        num_splits,
        pieces,
    )
    return (out, lse) if return_lse else out


def _case(family: str, problem: Attention | Decode, tokens_q: int, tokens_k: int) -> AttentionCase:
    return AttentionCase(
        family=family,
        type=problem.type,
        out_type=problem.out_type,
        head_dim=problem.head_dim,
        value_dim=problem.value_dim,
        causal=isinstance(problem, Decode) or problem.window_right == 0,
        batch=problem.batch,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        tokens_q=tokens_q,
        tokens_k=tokens_k,
    )


def _new_output(q: torch.Tensor, value_dim: int) -> torch.Tensor:
    return q.new_empty(*q.shape[:-1], value_dim, dtype=torch.bfloat16 if q.dtype == FP8 else q.dtype)


def new_lse(q: torch.Tensor) -> torch.Tensor:
    """For the logarithm of each query's sum of exponentials."""
    *batch, tokens, heads, _ = q.shape
    return q.new_empty(*batch, heads, tokens, dtype=torch.float32)

"""Attention of a few new tokens of each sequence to a cache: its keys and values, or latent vectors (MLA)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import torch

from ..checks import check_bool, check_int, is_traced
from ..heuristics import (
    AttentionCase,
    DecodeConfig,
    choose_attention,
    for_few_workgroups,
    splits_for_any_batch,
)
from ..launch.decode import Dealt, flash_decode_launch
from ..launch.repeated import Described, launches_of_rows
from ..problems.arguments import Argument, Arguments
from ..problems.decode import MAX_SPLITS, Decode, check_dealt, check_decode, check_splits
from ..problems.latent import LATENT_RUN_TOKENS, Latent, check_latent_decode
from ..problems.sequences import compiled_page_size
from ..runtime import settings
from .attention import NO_WINDOW, DescaleOptions, Options, case_of, new_output, result_of, results_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Cache(TypedDict):
    block_table: torch.Tensor
    context_lens: torch.Tensor


class _DecodeOptions(_Cache, DescaleOptions, total=False):
    num_splits: int | None


class _LatentOptions(_Cache, Options, total=False):
    d_v: int
    q_descale: torch.Tensor | None
    kv_descale: torch.Tensor | None
    fp8_dtype: torch.dtype
    lse_base_2: bool
    num_splits: int | None


@overload
def flash_attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[_DecodeOptions],
) -> torch.Tensor: ...
@overload
def flash_attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    return_lse: Literal[True],
    **options: Unpack[_DecodeOptions],
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def flash_attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    return_lse: bool,
    **options: Unpack[_DecodeOptions],
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
@launches_of_rows("q", "block_table", "context_lens", "out")
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
    attn_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    num_splits: int | None = None,
) -> Described[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    """Attention of each sequence's last few tokens to the whole sequence, with keys and values in a paged cache.

    The cache already holds the keys and values of the last tokens. Keys are split between workgroups. Their results are
    combined in a fixed order, so that the same inputs give the same bits on any number of compute units. By default the
    lengths of all sequences decide where keys are split. With ``set_batch_invariant(True)``, or ``num_splits``, the
    bits of a sequence's result depend on that sequence, its length and next_n only.

    Args:
        q: bf16, f16 or float8_e4m3fnuz [B, next_n, H, D], next_n from 1 to 8: the last tokens of each sequence.
        k_cache: of the same dtype, or float8_e4m3fnuz for q in bf16, [blocks, block_size, Hk, D], block_size a multiple
            of 16, a block within 2 GiB. Each block_size that is no power of two has kernels of its own. FP8 is widened
            to bf16, exactly.
        v_cache: of the dtype of ``k_cache``, [blocks, block_size, Hk, Dv]. D/Dv as for ``flash_attention``.
        block_table: int32 [B, blocks of a sequence]: entry ``t // block_size`` of a row is the block that holds token
            t. Entries past the sequence's end are not read.
        context_lens: int32 [B], tokens of each sequence including its last next_n: query i sees the keys up to
            ``context_len - next_n + i``. May be 0. The contents of this and of ``block_table`` are checked only on the
            CPU, since reading them from a GPU would wait for it. Kernels stay within the tensors even if the contents
            are wrong.
        softmax_scale: factor of the logits, positive; 1/sqrt(D) if None.
        window: (left, right): a query sees ``left`` keys before its own, -1 for all, and none on its right.
        q_descale, k_descale, v_descale: factors of FP8 values, which must have them, fp32, positive: [1] for the whole
            tensor; [H] (for k and v [Hk]) for each head; or [B, H] (for k and v [B, Hk]) for each sequence and head.
            For q in bf16, those of k and v may both be [blocks, block_size, Hk], a factor for each token and head of
            the cache, as ``append_kv_cache`` writes them. Any strides.
        attn_sink, softcap: as for ``flash_attention``.
        out: [B, next_n, H, Dv] to write into; a new tensor if None. Its dtype is that of q; for FP8, bf16 or f16.
        return_lse: whether to return the logarithm of each row's sum of exponentials.
        num_splits: into how many equal parts each sequence's keys are split, 1 to 4096. Then the bits of a sequence's
            result don't depend on the other sequences. If None, all keys are shared out so that workgroups have equal
            work, however long each sequence is; with ``set_batch_invariant(True)``, the sequence's own length decides.

    Strides and the rounding of probabilities are as for ``flash_attention``. A NaN or an infinity in v shows only in
    the queries that see it; an infinity stays infinite, however small its probability. A key whose logit is -infinity
    has no weight, and its value no effect. A logit of NaN or infinity makes the whole result of its query NaN, and its
    lse. None of this depends on how keys are split.

    Returns:
        ``out``; with ``return_lse``, also fp32 [B, H, next_n], -inf for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        out = new_output(q, v_cache.shape[-1]) if out is None else out
        options = (softmax_scale, window or NO_WINDOW, q_descale, k_descale, v_descale, attn_sink, softcap, out)
        lse = torch.ops.deep_gemm_rocm.flash_attention_decode(
            q, k_cache, v_cache, block_table, context_lens, *options, return_lse, num_splits
        )
        return result_of(out, lse if return_lse else None), None
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    problem = check_decode(
        q, k_cache, v_cache, block_table, context_lens, softmax_scale, window, descales, attn_sink, softcap, out
    )
    caches = {"k": Argument("k_cache", k_cache), "v": Argument("v_cache", v_cache)}
    return _decode(
        "flash_decode", problem, q, caches, block_table, context_lens, out, return_lse, num_splits, attn_sink=attn_sink
    )


@overload
def mla_decode(
    q: torch.Tensor, kv_cache: torch.Tensor, *, return_lse: Literal[False] = False, **options: Unpack[_LatentOptions]
) -> torch.Tensor: ...
@overload
def mla_decode(
    q: torch.Tensor, kv_cache: torch.Tensor, *, return_lse: Literal[True], **options: Unpack[_LatentOptions]
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def mla_decode(
    q: torch.Tensor, kv_cache: torch.Tensor, *, return_lse: bool, **options: Unpack[_LatentOptions]
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
@launches_of_rows("q", "block_table", "context_lens", "out")
def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    *,
    d_v: int = 512,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    softmax_scale: float | None = None,
    q_descale: torch.Tensor | None = None,
    kv_descale: torch.Tensor | None = None,
    fp8_dtype: torch.dtype = torch.float8_e4m3fnuz,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    lse_base_2: bool = False,
    num_splits: int | None = None,
) -> Described[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    """``flash_attention_decode`` for DeepSeek's latent cache: a value is the first ``d_v`` elements of its key.

    Each block of keys is read once, for up to 64 queries (tokens times heads) and both products. FP8 caches are widened
    to bf16 on the way into LDS, and FP8 queries in registers. Values with a scale are rounded to the nearest bf16 then,
    ties away from zero.

    Args:
        q: bf16 or f16 [B, next_n, H, 576], next_n from 1 to 8: 512 elements that have absorbed the up-projection of
            keys, then the rotary part. For an FP8 cache, bf16 or the cache's format of FP8.
        kv_cache: [blocks, block_size, 1, width] or [blocks, block_size, width], block_size from 1 to 256. Each
            block_size that is no power of two has kernels of its own. Width and dtype are one of
            576 of the dtype of q;
            576 float8_e4m3fnuz or float8_e4m3fn;
            656 uint8, as ``append_mla_cache`` writes them: 512 FP8 values, 4 fp32 scales of 128 values
            each, 64 bf16 of the rotary part.
            Blocks are less than 2^32 bytes apart, tokens of a block less than 2^24.
        d_v: 512.
        softmax_scale: 1/sqrt(576) if None. Models pass their own, as their heads are narrower before the absorption.
        q_descale: fp32 [1], factor of FP8 queries, positive; 1 if None.
        kv_descale: fp32 [1], factor of a cache of 576 FP8 values, positive; 1 if None.
        fp8_dtype: the format of FP8 values in a uint8 cache, torch.float8_e4m3fnuz or torch.float8_e4m3fn.
        out: [B, next_n, H, d_v] of the dtype of q, bf16 for FP8, to write into; a new tensor if None.
        lse_base_2: whether the log-sum-exp that is returned is to base 2 rather than e.

    The other arguments, the result, the rounding and the errors are those of ``flash_attention_decode``.
    """
    if is_traced():
        out = new_output(q, d_v) if out is None else out
        options = (softmax_scale, q_descale, kv_descale, fp8_dtype, out, return_lse, lse_base_2, num_splits)
        lse = torch.ops.deep_gemm_rocm.mla_decode(q, kv_cache, d_v, block_table, context_lens, *options)
        return result_of(out, lse if return_lse else None), None
    problem, latent = check_latent_decode(
        q, kv_cache, d_v, block_table, context_lens, softmax_scale, q_descale, kv_descale, fp8_dtype, out
    )
    caches = dict.fromkeys(("k", "v"), Argument("kv_cache", latent.cache))
    if kv_descale is not None:
        caches["k_descale"] = Argument("kv_descale", kv_descale)
    return _decode(
        "mla_decode", problem, q, caches, block_table, context_lens, out, return_lse, num_splits, latent, lse_base_2
    )


def _decode(
    family: str,
    problem: Decode,
    q: torch.Tensor,
    caches: Arguments,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor | None,
    return_lse: bool,
    num_splits: int | None,
    latent: Latent | None = None,
    lse_base_2: bool = False,
    attn_sink: torch.Tensor | None = None,
) -> Described[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    if num_splits is not None:
        check_int("num_splits", num_splits, 1, MAX_SPLITS)
    check_bool("lse_base_2", lse_base_2)
    page_size = compiled_page_size(problem.page_size)
    traits: dict[str, Any] = {}
    if problem.softcap > 0 or problem.layout != "plain" or page_size:
        traits = {"capped": problem.softcap > 0, "layout": problem.layout, "page_size": page_size}
    if latent is not None:
        tokens = "small_pages" if problem.page_size % LATENT_RUN_TOKENS else "paged"
        traits = {
            "layout": latent.layout, "is_ocp": latent.is_ocp, "tokens": tokens,
            "has_fp8_queries": latent.has_fp8_queries, "page_size": page_size,
        }  # fmt: skip
    case = case_of(family, problem, problem.tokens_q, problem.most_keys)
    deal = functools.partial(_dealt, case, traits, num_splits)
    out, lse, made = results_of(q, problem.value_dim, out, return_lse)
    launch = flash_decode_launch(
        deal, problem, q, caches, block_table, context_lens, out, lse, lse_base_2, attn_sink, made=made
    )
    return result_of(out, lse), launch


def _dealt(case: AttentionCase, traits: dict[str, Any], num_splits: int | None, batch: int) -> Dealt:
    """The kernel for this number of sequences, and how it splits their keys.

    Args:
        traits: of the kernel, apart from those that are chosen.

    Raises:
        ValueError: there are too many keys for the schedule, or too many splits.
    """
    choice = choose_attention(case._replace(batch=batch))
    config, pieces = cast(DecodeConfig, choice.config), choice.pieces
    if traits:
        config = config._replace(**traits)
    split_keys = 0
    if num_splits is None and settings.values().batch_invariant:
        group = case.heads // case.kv_heads  # other tokens of a sequence don't matter, either
        num_splits, split_keys = splits_for_any_batch(config, group, case.kv_heads, case.tokens_k)
    if num_splits is None:
        check_dealt(batch, case.kv_heads, case.tokens_k)
    else:
        check_splits(num_splits, batch, case.kv_heads)
        pieces = num_splits * batch * case.kv_heads
    config = for_few_workgroups(config, case.tokens_q * case.heads, pieces)
    return Dealt(config, num_splits, pieces, split_keys)

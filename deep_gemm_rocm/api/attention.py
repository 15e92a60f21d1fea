"""Attention of whole sequences: softmax(q · kᵀ) · v."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import torch

from ..checks import check_bool, is_traced
from ..heuristics import (
    AttentionCase,
    AttentionConfig,
    choose_attention,
)
from ..launch.attention import flash_attention_launch
from ..launch.families import Differing, Size
from ..launch.repeated import Described, launches_of_sizes
from ..problems.attention import Attention, check_attention
from ..problems.decode import Decode
from ..problems.heads import check_window
from ..problems.latent import LATENT_FP8_DTYPES
from ..problems.sequences import compiled_page_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

NO_WINDOW = (-1, -1)
_MOST_SIZE = 2**20  # tokens or sequences of a family of calls
_TOKENS_Q, _TOKENS_K = {-3: Size(0)}, {-3: Size(1)}
_SEQUENCES, _ENDS = {0: Size(2)}, {0: Size(2, more=1)}


def _differing(names: Collection[str]) -> Differing:
    """Sizes of ``flash_attention``: tokens of queries and of keys, and the number of sequences that are packed."""
    differing = {"q": _TOKENS_Q, "out": _TOKENS_Q}
    if "block_table" not in names:
        differing |= {"k": _TOKENS_K, "v": _TOKENS_K}
    if "cu_seqlens_q" in names:
        differing |= {"cu_seqlens_q": _ENDS, "cu_seqlens_k": _ENDS}
        differing |= {"block_table": _SEQUENCES, "context_lens": _SEQUENCES}
    return differing


class Options(TypedDict, total=False):
    """Arguments of all functions of attention, for their overloads: ``return_lse`` decides what is returned."""

    softmax_scale: float | None
    out: torch.Tensor | None


class DescaleOptions(Options, total=False):
    window: tuple[int, int] | None
    attn_sink: torch.Tensor | None
    softcap: float
    q_descale: torch.Tensor | None
    k_descale: torch.Tensor | None
    v_descale: torch.Tensor | None


class _AttentionOptions(DescaleOptions, total=False):
    causal: bool
    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_k: torch.Tensor | None
    block_table: torch.Tensor | None
    context_lens: torch.Tensor | None


@overload
def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[_AttentionOptions],
) -> torch.Tensor: ...
@overload
def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    return_lse: Literal[True],
    **options: Unpack[_AttentionOptions],
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool, **options: Unpack[_AttentionOptions]
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
@launches_of_sizes(_differing, [_MOST_SIZE] * 3)
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
    block_table: torch.Tensor | None = None,
    context_lens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Described[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    """Attention of queries to keys and values, ``softmax(softmax_scale · q · kᵀ) · v``, without a matrix of logits.

    The conventions are those of the flash-attn package. Tokens come before heads, whereas
    ``torch.nn.functional.scaled_dot_product_attention`` has heads before tokens (``q.transpose(1, 2)``). Groups of
    heads need no flag. A causal mask aligns the last query with the last key; torch aligns the first ones, which masks
    other keys if there are more keys than queries. A query that sees no key gives zeros.

    The same inputs give the same bits. By default they depend on the numbers of tokens and heads of all sequences,
    which decide which MFMAs are used. With ``set_batch_invariant(True)`` the bits of a query depend on its own sequence
    only.

    Args:
        q: bf16, f16 or float8_e4m3fnuz [B, Sq, H, D]; packed, [total_q, H, D].
        k: of the same dtype, or float8_e4m3fnuz for q in bf16, [B, Sk, Hk, D]; packed, [total_k, Hk, D]. Sq and Sk are
            arbitrary. H is a multiple of Hk; H/Hk consecutive heads of q share a head of k and v. FP8 is widened to
            bf16, exactly but for factors of tokens.
        v: of the dtype of k, [B, Sk, Hk, Dv]; packed, [total_k, Hk, Dv]. D/Dv is 64/64, 80/80, 96/96, 112/112,
            128/128, 192/192, 256/256 or 192/128.
        softmax_scale: factor of the logits, positive; 1/sqrt(D) if None.
        causal: whether query i sees only the keys up to i + Sk - Sq.
        window: (left, right), the number of keys that query i sees on each side of key i + Sk - Sq; -1 for all. With
            ``causal``, it sees none on the right.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1], for packed sequences: the start of each, and the end of the last.
            A sequence may be empty. The contents are checked only on the CPU, since reading them from a GPU would wait
            for it. Kernels stay within the tensors even if the contents are wrong.
        block_table, context_lens: as for ``flash_attention_decode``, if keys and values are in pages: k is
            [blocks, block_size, Hk, D] and v [blocks, block_size, Hk, Dv], and the last of a sequence's context_len
            tokens are its queries. q may be packed; Sk above is the context_len. block_size is as there.
        q_descale, k_descale, v_descale: factors of FP8 values, which must have them, fp32, positive: [1] for the whole
            tensor; [H] (for k and v [Hk]) for each head; [B, H] (for k and v [B, Hk]) for each sequence and head; or
            [B, H, ceil(S/128)] for each sequence, head and 128 tokens (packed: as many as the longest sequence needs),
            not for k and v in pages. For q in bf16, those of k and v may both be [B, Sk, Hk], packed [1, total_k, Hk]
            or [total_k, Hk], in pages [blocks, block_size, Hk], a factor for each token and head: values are multiplied
            with it and rounded to the nearest bf16, ties away from zero. Where total_k is B and more than 1, [B, Hk]
            could mean either and is refused; [1, total_k, Hk], which always is of tokens, and [B, Hk, 1] are clear. Any
            strides.
        attn_sink: fp32 [H], a logit for each head, whose exponential is added to the sums of the query's exponentials;
            none if None. ``lse`` leaves it out.
        softcap: c, from 2^-64 to 4096, turns logits into c · tanh(logit / c); 0 for none. A logit of infinity counts as
            c then, and one of -infinity as -c.
        out: [B, Sq, H, Dv] or packed [total_q, H, Dv] to write into; a new tensor if None. Its dtype is that of q; for
            FP8, bf16 (the default) or f16.
        return_lse: whether to return the logarithm of each row's sum of exponentials.

    The last dimension of all tensors is contiguous. Strides of tokens and heads are arbitrary multiples of 16 bytes.

    A NaN or an infinity in v shows in all queries that see it; an infinity becomes NaN if its probability underflows.
    It may also show as NaN in queries that see any of the 64 (q in FP8: 128) keys around it, and in up to 31 neighbours
    of such queries. A logit of NaN or infinity makes the whole result of its query NaN, and its lse. A key whose logit
    is -infinity has no weight. Probabilities are summed in fp32, and rounded to the dtype of q for the second product;
    for q in FP8 they are multiplied with 128 before.

    Returns:
        ``out``; with ``return_lse``, also fp32 [B, H, Sq] or packed [H, total_q]: the natural logarithm of each
        query's sum of ``exp(logit)``, -inf for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        out = new_output(q, v.shape[-1]) if out is None else out
        of_sequences = (cu_seqlens_q, cu_seqlens_k, block_table, context_lens)
        options = (softmax_scale, causal, window or NO_WINDOW, *of_sequences)
        lse = torch.ops.deep_gemm_rocm.flash_attention(
            q, k, v, *options, q_descale, k_descale, v_descale, attn_sink, softcap, out, return_lse
        )
        return result_of(out, lse if return_lse else None), None
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    problem = check_attention(
        q, k, v, softmax_scale, causal, window, cu_seqlens_q, cu_seqlens_k, block_table, context_lens, descales,
        attn_sink, softcap, out,
    )  # fmt: skip
    out, lse, made = results_of(q, problem.value_dim, out, return_lse)
    packed = cu_seqlens_q is not None, cu_seqlens_k is not None
    case = case_of("flash_attention", problem, problem.tokens_q, problem.tokens_k)
    traits = {
        "capped": problem.softcap > 0, "paged": block_table is not None, "layout": problem.layout,
        "page_size": compiled_page_size(problem.page_size),
    }  # fmt: skip
    choose = functools.partial(_attention_config, case, packed, tuple(traits.items()))
    launch = flash_attention_launch(
        choose, check_window(causal, window), problem, q, k, v, out, lse, attn_sink, block_table,
        made, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, context_lens=context_lens,
    )  # fmt: skip
    return result_of(out, lse), launch


def _attention_config(
    case: AttentionCase,
    packed: tuple[bool, bool],
    traits: tuple[tuple[str, Any], ...],
    tokens_q: int,
    tokens_k: int,
    sequences: int,
) -> AttentionConfig:
    """The kernel of ``flash_attention`` for these numbers of sequences and tokens.

    Args:
        case: the problem's case; its sizes are replaced.
        packed: whether sequences of queries are packed, and whether those of keys are.
        traits: of the kernel, which aren't chosen.
    """
    q_is_packed, k_is_packed = packed
    at_least_one = max(sequences, 1)
    resized = case._replace(
        batch=sequences,
        tokens_q=tokens_q // at_least_one if q_is_packed else tokens_q,
        tokens_k=tokens_k // at_least_one if k_is_packed else tokens_k,
    )
    config = cast(AttentionConfig, choose_attention(resized).config)
    return _with_traits(config, traits)


@functools.cache
def _with_traits(config: AttentionConfig, traits: tuple[tuple[str, Any], ...]) -> AttentionConfig:
    return dataclasses.replace(config, **dict(traits))


def results_of(
    q: torch.Tensor, value_dim: int, out: torch.Tensor | None, return_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, torch.Tensor]]:
    """``out``, the log-sum-exp if it is wanted, and those of them that are new tensors.

    Raises:
        TypeError: ``return_lse`` is no bool.
    """
    check_bool("return_lse", return_lse)
    made = {}
    if out is None:
        out = made["out"] = new_output(q, value_dim)
    lse = None
    if return_lse:
        lse = made["lse"] = new_lse(q)
    return out, lse, made


def result_of(out: torch.Tensor, lse: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    return out if lse is None else (out, lse)


def case_of(family: str, problem: Attention | Decode, tokens_q: int, tokens_k: int) -> AttentionCase:
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


def new_output(q: torch.Tensor, value_dim: int) -> torch.Tensor:
    return q.new_empty(*q.shape[:-1], value_dim, dtype=torch.bfloat16 if q.dtype in LATENT_FP8_DTYPES else q.dtype)


def new_lse(q: torch.Tensor) -> torch.Tensor:
    """A new tensor for the logarithm of each query's sum of exponentials."""
    *batch, tokens, heads, _ = q.shape
    return q.new_empty(*batch, heads, tokens, dtype=torch.float32)

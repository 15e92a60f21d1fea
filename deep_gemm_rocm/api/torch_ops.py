"""The public functions as torch custom operators, for ``torch.compile`` and ``torch.export``.

Each operator declares the arguments that it writes. GEMMs return nothing. The other operators have a fake
implementation, which gives the shape and dtype of the result. Arguments are checked when the traced program runs.
Operators can't take tuples: a pair becomes two arguments, the scales of ``d`` may be None, and 0 in a recipe stands for
None. Torch derives the schemas from the annotations, so these must not be strings.
"""

from collections.abc import Callable
from typing import Any, Sequence  # noqa: UP035  torch before 2.7 knows no other Sequence in a schema

import torch
from torch import Tensor
from torch.library import custom_op

from ..problems.layout import Pair
from . import attention, gemm, grouped, hyperconnection, k_grouped, mqa_logits
from . import einsum as einstein_sum

_OUTPUT = ("d", "sfd")


def _returns_nothing(*arguments: Any) -> None:
    pass


def _operator(*written: str, fake: Callable[..., Any] = _returns_nothing) -> Callable[[Callable[..., Any]], Any]:
    """Registers a function as the operator of the same name.

    Args:
        written: names of the arguments that the function writes.
        fake: takes the same arguments and returns an uninitialised tensor of the result's shape and dtype.
    """

    def register(function: Callable[..., Any]) -> Any:
        operator = custom_op(f"deep_gemm_rocm::{function.__name__}", function, mutates_args=written)
        operator.register_fake(fake)
        return operator

    return register


def _recipe(numbers: Sequence[int]) -> Any:
    return tuple(number or None for number in numbers)


def _three(numbers: Sequence[int]) -> tuple[int, int, int]:
    left, mid, right = numbers
    return left, mid, right


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    left, right = numbers
    return left, right


def _epilogue(name: str) -> Any:
    """An ``Epilogue``. Schemas know no Literal; the function checks the name."""
    return name


def _output(d: Tensor, sfd: Tensor | None) -> Tensor | Pair:
    return d if sfd is None else (d, sfd)


@_operator(*_OUTPUT)
def fp8_gemm_nt(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    sfd: Tensor | None,
    c: Tensor | None,
    recipe: Sequence[int],
    bias: Tensor | None,
    epilogue: str,
) -> None:
    gemm.fp8_gemm_nt((a, sfa), (b, sfb), _output(d, sfd), c, _recipe(recipe), bias=bias, epilogue=_epilogue(epilogue))


@_operator("d")
def fp8_gemm_nt_skip_head_mid(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    head_splits: Sequence[int],
    recipe: Sequence[int],
    bias: Tensor | None,
    epilogue: str,
) -> None:
    options = (_three(head_splits), _recipe(recipe))
    gemm.fp8_gemm_nt_skip_head_mid((a, sfa), (b, sfb), d, *options, bias=bias, epilogue=_epilogue(epilogue))


@_operator(*_OUTPUT)
def bf16_gemm_nt(
    a: Tensor, b: Tensor, d: Tensor, sfd: Tensor | None, c: Tensor | None, bias: Tensor | None, epilogue: str
) -> None:
    gemm.bf16_gemm_nt(a, b, _output(d, sfd), c, bias=bias, epilogue=_epilogue(epilogue))


@_operator(*_OUTPUT)
def f16_gemm_nt(
    a: Tensor, b: Tensor, d: Tensor, sfd: Tensor | None, c: Tensor | None, bias: Tensor | None, epilogue: str
) -> None:
    gemm.f16_gemm_nt(a, b, _output(d, sfd), c, bias=bias, epilogue=_epilogue(epilogue))


@_operator(*_OUTPUT)
def m_grouped_fp8_gemm_nt_contiguous(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    sfd: Tensor | None,
    grouped_layout: Tensor,
    recipe: Sequence[int],
    use_psum_layout: bool,
    ensure_zero_padding: bool,
    expected_m_for_psum_layout: int | None,
    bias: Tensor | None,
    epilogue: str,
) -> None:
    grouped.m_grouped_fp8_gemm_nt_contiguous(
        (a, sfa),
        (b, sfb),
        _output(d, sfd),
        grouped_layout,
        _recipe(recipe),
        use_psum_layout=use_psum_layout,
        ensure_zero_padding=ensure_zero_padding,
        expected_m_for_psum_layout=expected_m_for_psum_layout,
        bias=bias,
        epilogue=_epilogue(epilogue),
    )


@_operator(*_OUTPUT)
def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    sfd: Tensor | None,
    grouped_layout: Tensor,
    use_psum_layout: bool,
    ensure_zero_padding: bool,
    expected_m_for_psum_layout: int | None,
    bias: Tensor | None,
    epilogue: str,
) -> None:
    grouped.m_grouped_bf16_gemm_nt_contiguous(
        a,
        b,
        _output(d, sfd),
        grouped_layout,
        use_psum_layout=use_psum_layout,
        ensure_zero_padding=ensure_zero_padding,
        expected_m_for_psum_layout=expected_m_for_psum_layout,
        bias=bias,
        epilogue=_epilogue(epilogue),
    )


@_operator(*_OUTPUT)
def m_grouped_fp8_gemm_nt_masked(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    sfd: Tensor | None,
    masked_m: Tensor,
    expected_m: int,
    recipe: Sequence[int],
    bias: Tensor | None,
    epilogue: str,
) -> None:
    grouped.m_grouped_fp8_gemm_nt_masked(
        (a, sfa),
        (b, sfb),
        _output(d, sfd),
        masked_m,
        expected_m,
        _recipe(recipe),
        bias=bias,
        epilogue=_epilogue(epilogue),
    )


@_operator(*_OUTPUT)
def m_grouped_bf16_gemm_nt_masked(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    sfd: Tensor | None,
    masked_m: Tensor,
    expected_m: int,
    bias: Tensor | None,
    epilogue: str,
) -> None:
    grouped.m_grouped_bf16_gemm_nt_masked(
        a, b, _output(d, sfd), masked_m, expected_m, bias=bias, epilogue=_epilogue(epilogue)
    )


@_operator("d")
def k_grouped_fp8_gemm_tn_contiguous(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    ks_cpu: Sequence[int],
    grouped_layout: Tensor,
    c: Tensor | None,
) -> None:
    k_grouped.k_grouped_fp8_gemm_tn_contiguous((a, sfa), (b, sfb), d, ks_cpu, grouped_layout, c)


@_operator("d")
def k_grouped_fp8_gemm_nt_contiguous(
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    ks_cpu: Sequence[int],
    grouped_layout: Tensor,
    c: Tensor | None,
) -> None:
    k_grouped.k_grouped_fp8_gemm_nt_contiguous((a, sfa), (b, sfb), d, ks_cpu, grouped_layout, c)


@_operator("d")
def k_grouped_bf16_gemm_tn_contiguous(
    a: Tensor, b: Tensor, d: Tensor, ks_cpu: Sequence[int], grouped_layout: Tensor, c: Tensor | None
) -> None:
    k_grouped.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks_cpu, grouped_layout, c)


@_operator("d")
def einsum(expr: str, a: Tensor, b: Tensor, d: Tensor, c: Tensor | None) -> None:
    einstein_sum.einsum(expr, a, b, d, c)


@_operator("d")
def fp8_einsum(
    expr: str,
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    c: Tensor | None,
    recipe: Sequence[int],
) -> None:
    einstein_sum.fp8_einsum(expr, (a, sfa), (b, sfb), d, c, _recipe(recipe))


@_operator("d", "sqr_sum")
def tf32_hc_prenorm_gemm(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor, num_splits: int | None) -> None:
    hyperconnection.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)


def _lse(q: Tensor, *arguments: Any) -> Tensor:
    """The log-sum-exp that attention operators return; empty unless their last argument, ``return_lse``, is True."""
    return attention.new_lse(q) if arguments[-1] else q.new_empty(0, dtype=torch.float32)


@_operator("out", fake=_lse)
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_scale: float | None,
    causal: bool,
    window: Sequence[int],
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    return_lse: bool,
) -> Tensor:
    result = attention.flash_attention(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window=_pair(window),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        out=out,
        return_lse=return_lse,
    )
    return result[1] if return_lse else _lse(q, False)


@_operator("out", fake=_lse)
def flash_attention_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    softmax_scale: float | None,
    window: Sequence[int],
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    num_splits: int | None,
    return_lse: bool,
) -> Tensor:
    result = attention.flash_attention_decode(
        q,
        k_cache,
        v_cache,
        block_table=block_table,
        context_lens=context_lens,
        softmax_scale=softmax_scale,
        window=_pair(window),
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        out=out,
        return_lse=return_lse,
        num_splits=num_splits,
    )
    return result[1] if return_lse else _lse(q, False)


@_operator("out", fake=_lse)
def mla_decode(
    q: Tensor,
    kv_cache: Tensor,
    out: Tensor,
    d_v: int,
    block_table: Tensor,
    context_lens: Tensor,
    softmax_scale: float | None,
    num_splits: int | None,
    return_lse: bool,
) -> Tensor:
    result = attention.mla_decode(
        q,
        kv_cache,
        d_v=d_v,
        block_table=block_table,
        context_lens=context_lens,
        softmax_scale=softmax_scale,
        out=out,
        return_lse=return_lse,
        num_splits=num_splits,
    )
    return result[1] if return_lse else _lse(q, False)


def _logits(q: Tensor, keys: Tensor, *arguments: Any) -> Tensor:
    *_, max_seqlen_k = arguments
    return q.new_empty((q.shape[0], max_seqlen_k or keys.shape[0]), dtype=torch.float32)


@_operator(fake=_logits)
def fp8_mqa_logits(
    q: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    weights: Tensor,
    cu_seq_len_k_start: Tensor,
    cu_seq_len_k_end: Tensor,
    clean_logits: bool,
    max_seqlen_k: int,
) -> Tensor:
    return mqa_logits.fp8_mqa_logits(
        q, (keys, key_scales), weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits, max_seqlen_k
    )


def _paged_logits(q: Tensor, *arguments: Any) -> Tensor:
    *_, max_context_len, _clean_logits, _indices = arguments
    return q.new_empty((q.shape[0] * q.shape[1], max_context_len), dtype=torch.float32)


@_operator(fake=_paged_logits)
def fp8_paged_mqa_logits(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    schedule_meta: Tensor,
    max_context_len: int,
    clean_logits: bool,
    indices: Tensor | None,
) -> Tensor:
    return mqa_logits.fp8_paged_mqa_logits(
        q, kv_cache, weights, context_lens, block_table, schedule_meta, max_context_len, clean_logits, indices
    )

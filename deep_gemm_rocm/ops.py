"""The GEMM functions as torch custom operators, which ``torch.compile`` and ``torch.export`` see in place of them.

Each says which of its arguments it writes, allocates nothing and returns nothing, so that a traced program needs to
know no more of it; its arguments are checked when the program runs. Operators take no tuples: pairs are two arguments,
the scales of ``d`` may be None, and a 0 in a recipe stands for None. Torch reads the schemas off the annotations, which
must therefore not be strings.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.library import custom_op

from . import einstein_sum, gemm, grouped, hyperconnection, k_grouped
from .layout import Pair

_OUTPUT = ("d", "sfd")


def _operator(*written: str) -> Callable[[Callable[..., None]], Any]:
    """Makes an operator of a function, of its name; ``written`` are the arguments that it writes."""

    def register(function: Callable[..., None]) -> Any:
        operator = custom_op(f"deep_gemm_rocm::{function.__name__}", function, mutates_args=written)
        operator.register_fake(lambda *arguments: None)
        return operator

    return register


def _recipe(numbers: Sequence[int]) -> Any:
    return tuple(number or None for number in numbers)


def _three(numbers: Sequence[int]) -> tuple[int, int, int]:
    left, mid, right = numbers
    return left, mid, right


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
    gemm.fp8_gemm_nt((a, sfa), (b, sfb), _output(d, sfd), c, _recipe(recipe), bias=bias, epilogue=epilogue)


@_operator("d")
def fp8_gemm_nt_skip_head_mid(
    a: Tensor, sfa: Tensor, b: Tensor, sfb: Tensor, d: Tensor, head_splits: Sequence[int], recipe: Sequence[int]
) -> None:
    gemm.fp8_gemm_nt_skip_head_mid((a, sfa), (b, sfb), d, _three(head_splits), _recipe(recipe))


@_operator(*_OUTPUT)
def bf16_gemm_nt(
    a: Tensor, b: Tensor, d: Tensor, sfd: Tensor | None, c: Tensor | None, bias: Tensor | None, epilogue: str
) -> None:
    gemm.bf16_gemm_nt(a, b, _output(d, sfd), c, bias=bias, epilogue=epilogue)


@_operator(*_OUTPUT)
def f16_gemm_nt(
    a: Tensor, b: Tensor, d: Tensor, sfd: Tensor | None, c: Tensor | None, bias: Tensor | None, epilogue: str
) -> None:
    gemm.f16_gemm_nt(a, b, _output(d, sfd), c, bias=bias, epilogue=epilogue)


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
        epilogue=epilogue,
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
        epilogue=epilogue,
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
        (a, sfa), (b, sfb), _output(d, sfd), masked_m, expected_m, _recipe(recipe), bias=bias, epilogue=epilogue
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
    grouped.m_grouped_bf16_gemm_nt_masked(a, b, _output(d, sfd), masked_m, expected_m, bias=bias, epilogue=epilogue)


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

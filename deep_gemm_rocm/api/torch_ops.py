"""The public functions as torch custom operators, for ``torch.compile`` and ``torch.export``.

An operator takes the arguments of the public function, without those that are checked before or not used, and declares
which of them it writes. GEMMs return nothing. The other operators have a fake implementation, which gives the shape and
dtype of the result. Arguments are checked when the traced program runs. Operators can't take tuples: a pair becomes two
arguments, the scales of ``d`` may be None, and 0 in a recipe stands for None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.library import custom_op

from ..problems.gemm_kind import Epilogue
from ..problems.layout import FP8, SCALE_BLOCK, Pair, ceil_div
from ..problems.routing import Scoring
from . import (
    attention,
    casts,
    decode,
    einsum,
    experts,
    fp4_gemm,
    fused_casts,
    gemm,
    grouped,
    hyperconnection,
    int4_gemm,
    k_grouped,
    kv_cache,
    latent_cache,
    merge_states,
    mqa_logits,
    routing,
    sparse_mla,
    top_k,
)

_NOT_PASSED_ON = {
    "compiled_dims", "disable_ue8m0_cast", "enable_overlap", "m_indices", "max_block_n", "recipe_a", "recipe_b",
    "signal", "use_cublaslt",
}  # fmt: skip
_INTS = "SymInt[]"
_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    bool: "bool",
    int: "SymInt",
    int | None: "SymInt?",
    float: "float",
    float | None: "float?",
    str: "str",
    torch.dtype: "ScalarType",
    Epilogue: "str?",
    Scoring: "str",
    Sequence[int]: _INTS,
    tuple[int, int] | None: _INTS,
    tuple[int, int, int]: _INTS,
    tuple[int, int, int] | None: _INTS,
}

OPERATORS: dict[str, Any] = {}


def _returns_nothing(**arguments: Any) -> None:
    pass


def _refuses_grad() -> bool:
    """Whether torch calls operators' function for gradients only if an argument requires grad and gradients are on.

    torch 2.4 always calls it, also under ``torch.no_grad()``.
    """
    make = getattr(torch._library.autograd, "make_autograd_impl", None)
    parts = make.__code__.co_consts if make is not None else ()
    return any("is_grad_enabled" in part.co_names for part in parts if isinstance(part, CodeType))


REFUSES_GRAD = _refuses_grad()


def _operator(
    function: Callable[..., Any],
    *written: str,
    may_write: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    fake: Callable[..., Any] | None = None,
    results: int = 1,
    detaches: bool = False,
) -> None:
    """Registers a public function as the operator of the same name.

    Args:
        written: the arguments that the function writes. They can't be None.
        may_write: arguments that the function may write. They may be None.
        without: arguments that the operator doesn't have.
        fake: takes the same arguments and returns an uninitialised tensor of the result's shape and dtype. None for
            functions that return nothing.
        results: how many tensors the function returns.
        detaches: whether it takes tensors that require grad, and returns tensors that don't. Others raise an error.
    """
    hints = {
        name: hint
        for name, hint in get_type_hints(function).items()
        if name not in {"return", *_NOT_PASSED_ON, *without}
    }

    def arguments(flat: tuple[Any, ...]) -> dict[str, Any]:
        values = iter(flat)
        return {name: _argument(name, hint, values) for name, hint in hints.items()}

    returned = ", ".join(["Tensor"] * results) if fake else ""
    schema = ", ".join(
        f"Tensor({name}!)? {name}" if name in may_write else _declared(name, hint, name in written)
        for name, hint in hints.items()
    )
    operator = custom_op(
        f"deep_gemm_rocm::{function.__name__}",
        lambda *flat: function(**arguments(flat)),
        mutates_args=[*written, *may_write, *(f"sf{name}" for name in written if hints[name] == Tensor | Pair)],
        schema=f"({schema}) -> ({returned})",
    )
    operator.register_fake(lambda *flat: (fake or _returns_nothing)(**arguments(flat)))
    # torch calls this while it traces, if an argument requires grad; when the program runs, none does any more.
    # Gradients through an operator that writes would be lost in silence.
    if detaches:
        operator._setup_context_fn = _detach
    elif REFUSES_GRAD:
        operator._setup_context_fn = functools.partial(_refuse_grad, operator._opoverload)
    OPERATORS[function.__name__] = operator


def _detach(*, ctx: Any, output: tuple[Tensor, ...], **_: Any) -> None:
    ctx.mark_non_differentiable(*output)


def _refuse_grad(operator: Any, *, inputs: tuple[Any, ...], **_: Any) -> None:
    """
    Raises:
        ValueError: always; the message names the arguments that require grad.
    """
    flat = zip(operator._schema.arguments, inputs, strict=True)
    names = " and ".join(argument.name for argument, value in flat if isinstance(value, Tensor) and value.requires_grad)
    raise ValueError(
        f"{names} must not require grad, for there is no backward; .detach() it or call under torch.no_grad()"
    )


def _declared(name: str, hint: Any, is_written: bool) -> str:
    """An argument as the operator's schema writes it."""
    if hint == Pair:
        return f"Tensor {name}, Tensor sf{name}"
    if hint == Tensor | Pair:
        if not is_written:
            return f"Tensor {name}, Tensor? sf{name}"
        return f"Tensor({name}!) {name}, Tensor(sf{name}!)? sf{name}"
    return f"Tensor({name}!) {name}" if is_written else f"{_TYPES[hint]} {name}"


def _argument(name: str, hint: Any, values: Iterator[Any]) -> Any:
    """The function's argument from the operator's next values."""
    value = next(values)
    if hint == Pair:
        return value, next(values)
    if hint == Tensor | Pair:
        scales = next(values)
        return value if scales is None else (value, scales)
    if name == "recipe":
        return tuple(number or None for number in value)
    return tuple(value) if _TYPES[hint] == _INTS else value


def _returns_lse(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The attention function, but it returns only the log-sum-exp."""

    @functools.wraps(function)
    def run(**arguments: Any) -> Tensor:
        result = function(**arguments)
        return result[1] if arguments["return_lse"] else _lse(**arguments)

    return run


def _lse(q: Tensor, return_lse: bool, **_: Any) -> Tensor:
    """The log-sum-exp that attention operators return; empty without ``return_lse``."""
    return attention.new_lse(q) if return_lse else q.new_empty(0, dtype=torch.float32)


def _returns_none(function: Callable[..., Any]) -> Callable[..., None]:
    """The function that returns its output, but it returns nothing."""

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        function(**arguments)

    return run


def _logits(q: Tensor, kv: Pair, max_seqlen_k: int, logits_dtype: torch.dtype, **_: Any) -> Tensor:
    return q.new_empty((q.shape[0], max_seqlen_k or kv[0].shape[0]), dtype=logits_dtype)


def _paged_logits(q: Tensor, max_context_len: int, logits_dtype: torch.dtype, **_: Any) -> Tensor:
    return q.new_empty((q.shape[0] * q.shape[1], max_context_len), dtype=logits_dtype)


def _schedule(context_lens: Tensor, num_sms: int, **_: Any) -> Tensor:
    return context_lens.new_empty((num_sms + 1, 2))


def _rows_of_blocks(x: Tensor, **_: Any) -> Pair:
    return x.new_empty(x.shape, dtype=FP8), casts.new_scales_of_rows(x, x.shape)


def _fp4(x: Tensor, gran_k: int, use_packed_ue8m0: bool, **_: Any) -> Pair:
    return casts.new_fp4(x, gran_k, use_packed_ue8m0)


def _scaled_by(rows: int | None, columns: int | None) -> Callable[..., Pair]:
    """Data and contiguous scales of so many rows and columns; None for all of them."""

    def results(x: Tensor, **_: Any) -> Pair:
        shared = zip(x.shape, (rows, columns), strict=True)
        shape = [1 if each is None else ceil_div(size, each) for size, each in shared]
        return x.new_empty(x.shape, dtype=FP8), x.new_empty(shape, dtype=torch.float32)

    return results


def _returns_sum(function: Callable[..., Any]) -> Callable[..., Any]:
    """The norm, which returns an empty tensor as the sum if there is no residual."""

    @functools.wraps(function)
    def run(**arguments: Any) -> Any:
        data, scales, *total = function(**arguments)
        return data, scales, total[0] if total else arguments["x"].new_empty(0)

    return run


def _returns_lse_and_maxima(function: Callable[..., Any]) -> Callable[..., Pair]:
    """The function without its first result, which is an argument."""

    @functools.wraps(function)
    def run(**arguments: Any) -> Pair:
        _, lse, max_logits = function(**arguments)
        return lse, max_logits

    return run


def _returns_second(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The function without its first result, which is an argument."""

    @functools.wraps(function)
    def run(**arguments: Any) -> Tensor:
        _, second = function(**arguments)
        return second

    return run


def _merged_lse(first: Tensor, **_: Any) -> Tensor:
    return attention.new_lse(first)


def _of_heads(q: Tensor, **_: Any) -> Pair:
    lse, max_logits = (q.new_empty(q.shape[:2], dtype=torch.float32) for _ in range(2))
    return lse, max_logits


def _normed(x: Tensor, residual: Tensor | None, gran_k: int | None, **_: Any) -> Any:
    data, scales, total = fused_casts.new_results_of_norm(x, gran_k)
    return data, scales, x.new_empty(0) if residual is None else total


def _activated(x: Tensor, **_: Any) -> Pair:
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return x.new_empty(shape, dtype=FP8), casts.new_scales_of_rows(x, shape)


def _chosen(logits: Tensor, top_k: int, **_: Any) -> Pair:
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


_WRITING_D: tuple[Callable[..., Any], ...] = (
    gemm.f16_gemm_nt,
    gemm.fp8_gemm_nt_skip_head_mid,
    grouped.m_grouped_fp8_gemm_nt_contiguous,
    grouped.m_grouped_bf16_gemm_nt_contiguous,
    grouped.m_grouped_fp8_gemm_nt_masked,
    grouped.m_grouped_bf16_gemm_nt_masked,
    einsum.einsum,
    einsum.fp8_einsum,
)
for _function in _WRITING_D:
    _operator(_function, "d")
_operator(gemm.fp8_gemm_nt, "d", without=("alpha",))
_operator(gemm.bf16_gemm_nt, "d", without=("alpha",))
_operator(fp4_gemm.fp8_fp4_gemm_nt, "d", without=("alpha", "recipe"))
_operator(fp4_gemm.bf16_fp4_gemm_nt, "d")
_operator(fp4_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous, "d", without=("recipe",))
_operator(fp4_gemm.m_grouped_fp8_fp4_gemm_nt_masked, "d", without=("recipe",))
_operator(int4_gemm.bf16_int4_gemm_nt, "d")
_operator(int4_gemm.fp8_int4_gemm_nt, "d")
_operator(int4_gemm.m_grouped_fp8_int4_gemm_nt_contiguous, "d")
_operator(int4_gemm.m_grouped_fp8_int4_gemm_nt_masked, "d")
_operator(int4_gemm.m_grouped_bf16_int4_gemm_nt_contiguous, "d")
_operator(int4_gemm.m_grouped_bf16_int4_gemm_nt_masked, "d")
_FIXED = ("recipe", "use_psum_layout")  # arguments with one allowed value
_operator(k_grouped.k_grouped_fp8_gemm_tn_contiguous, "d", without=_FIXED)
_operator(k_grouped.k_grouped_fp8_gemm_nt_contiguous, "d", without=_FIXED)
_operator(k_grouped.k_grouped_bf16_gemm_tn_contiguous, "d", without=_FIXED)
_operator(hyperconnection.tf32_hc_prenorm_gemm, "d", "sqr_sum")
_operator(_returns_lse(attention.flash_attention), "out", fake=_lse)
_operator(_returns_lse(decode.flash_attention_decode), "out", fake=_lse)
_operator(_returns_lse(decode.mla_decode), "out", fake=_lse)
_operator(mqa_logits.fp8_mqa_logits, fake=_logits)
_operator(mqa_logits.fp8_paged_mqa_logits, fake=_paged_logits)
_operator(mqa_logits.get_paged_mqa_logits_metadata, fake=_schedule)
_operator(_returns_none(top_k.top_k_per_row), "out")
_operator(_returns_lse_and_maxima(sparse_mla.sparse_mla), "out", fake=_of_heads, results=2)
_operator(kv_cache.append_kv_cache, "k_cache", "v_cache", may_write=("k_descale", "v_descale"))
_operator(latent_cache.append_mla_cache, "cache")
_operator(_returns_second(merge_states.merge_attention_states), "out", fake=_merged_lse)

_cast = functools.partial(_operator, results=2, detaches=True)
_FOR_DEEPGEMM = ("gran_k", "use_packed_ue8m0")  # arguments with one allowed value
_cast(casts.per_token_cast_to_fp8, without=_FOR_DEEPGEMM, fake=_rows_of_blocks)
_cast(casts.per_token_cast_to_fp4, fake=_fp4)
_cast(casts.per_block_cast_to_fp8, without=_FOR_DEEPGEMM, fake=_scaled_by(SCALE_BLOCK, SCALE_BLOCK))
_cast(casts.per_channel_cast_to_fp8, without=_FOR_DEEPGEMM, fake=_scaled_by(SCALE_BLOCK, 1))
_cast(casts.per_row_cast_to_fp8, fake=_scaled_by(1, None))
_cast(casts.per_tensor_cast_to_fp8, fake=_scaled_by(None, None))
_operator(_returns_sum(fused_casts.rms_norm_cast_to_fp8), fake=_normed, results=3)
_operator(fused_casts.silu_and_mul_cast_to_fp8, fake=_activated, results=2)
_operator(_returns_none(experts.fused_moe), "out")
_operator(routing.route_top_k, fake=_chosen, results=2)

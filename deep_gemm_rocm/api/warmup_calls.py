"""How warming up calls each function: with tensors that have no memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..checks import check_bool, check_int
from ..heuristics import LATENT_ROWS, heads_of_every_tile
from ..heuristics.gemm_config import NUM_CUS
from ..heuristics.gemm_problem import are_scale_rows_apart
from ..launch.launch import ready_kernels
from ..problems.experts import MAX_TOKENS, MAX_TOP_K, Experts
from ..problems.four_bits import (
    FOUR_BIT_DTYPES,
    FP4_DTYPES,
    INT4_DTYPES,
    INT4_GROUPS,
    INT4_SCALES,
    SHUFFLED_DTYPES,
    values_of_element,
)
from ..problems.gemm_kind import GROUP
from ..problems.latent import LATENT_FP8_DTYPES
from ..problems.layout import FP8, SCALE_BLOCK, ceil_div
from . import (
    attention,
    casts,
    decode,
    experts,
    fp4_gemm,
    fused_casts,
    gemm,
    grouped,
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
from .shuffle import shuffle_weight

if TYPE_CHECKING:
    from .warmup import Workload

_PAGE_TOKENS = 64
_LATENT_WIDTH = 576
_LATENT_BYTES = 656
_WIDTHS_OF_BYTES = {656: 576, 584: 512}  # of q, by the bytes of a cache's token
_SCALE_BYTES = 4

_RECIPES_OF_A = ((1, SCALE_BLOCK), (1, GROUP))


class Function(NamedTuple):
    """A public function, and how to call it for a workload.

    Attributes:
        call: the public function.
        called: called with (function, m, workload), calls the public function on tensors of these sizes.
        dtype: dtype of the operands, FP8 ones with scales; None if the workload has it.
        layout: as in a GEMM's name. The first letter is ``t`` if ``a`` is [K, M], the second ``n`` if ``b`` is [K, N].
    """

    call: Callable[..., Any]
    called: Callable[[Function, int, Workload], Any]
    dtype: torch.dtype | None
    layout: str = "nt"


def _tensor(*shape: int, dtype: torch.dtype | None) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _operand(function: Function, groups: tuple[int, ...], rows: int, k: int, scaled_rows: int, transposed: bool) -> Any:
    if function.dtype in FP4_DTYPES:
        return _four_bits(rows, k, *groups, shuffled=False)
    data = _tensor(*groups, *((k, rows) if transposed else (rows, k)), dtype=function.dtype)
    if function.dtype != FP8:
        return data
    blocks = (ceil_div(rows, scaled_rows), ceil_div(k, SCALE_BLOCK))
    return data, _tensor(*groups, *(reversed(blocks) if transposed else blocks), dtype=torch.float32)


def _operands(function: Function, m: int, of: Workload, groups_of_a: tuple[int, ...], groups: tuple[int, ...]) -> Any:
    a = _operand(function, groups_of_a, m, of.k, 1, function.layout[0] == "t")
    b = _operand(function, groups, of.n, of.k, SCALE_BLOCK, function.layout[1] == "n")
    return a, b


def _dense(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    a, b = _operands(function, m, of, (), ())
    d = _tensor(m, of.n, dtype=of.d_dtype)
    function.call(a, b, d)
    if function.dtype == FP8 and function.layout[0] == "n" and are_scale_rows_apart(a[1].stride()):
        data, scales = a
        function.call((data, scales.T.contiguous().T), b, d)  # other tiles, where scales lie by columns


def _a_of_fp4(function: Function, m: int, of: Workload, *groups: int) -> Any:
    """Activations for FP4 weights. With ``recipe_a`` (1, 32), each 32 values have an exponent."""
    recipe = of.arguments.get("recipe_a")
    if recipe is not None and (not isinstance(recipe, (tuple, list)) or tuple(recipe) not in _RECIPES_OF_A):
        raise ValueError(f"recipe_a must be one of {_RECIPES_OF_A}, got {recipe!r}")
    a = _operand(function, groups, m, of.k, 1, transposed=False)
    if function.dtype != FP8 or recipe is None or tuple(recipe) != (1, GROUP):
        return a
    return a[0], _tensor(*groups, m, ceil_div(of.k, GROUP), dtype=torch.uint8)


def _dense_of_fp4(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    a = _a_of_fp4(function, m, of)
    function.call(a, _four_bits(of.n, of.k, shuffled=_is_shuffled(of)), _tensor(m, of.n, dtype=of.d_dtype))


def _contiguous(function: Function, m: int, of: Workload) -> None:
    operands = _operands(function, m, of, (), (of.num_groups,))
    function.call(*operands, _tensor(m, of.n, dtype=of.d_dtype), _tensor(m, dtype=torch.int32))


def _masked(function: Function, m: int, of: Workload) -> None:
    groups = of.num_groups
    operands = _operands(function, m, of, (groups,), (groups,))
    d, counts = _tensor(groups, m, of.n, dtype=of.d_dtype), _tensor(groups, dtype=torch.int32)
    signal = {"signal": _tensor(groups * m, dtype=torch.int32)} if of.arguments.get("enable_overlap") else {}
    function.call(*operands, d, counts, m, **of.arguments, **signal)


def _four_bits(rows: int, k: int, *groups: int, shuffled: bool) -> Any:
    data, scales = (
        _tensor(*groups, rows, k // shared, dtype=dtype) for shared, dtype in ((2, torch.int8), (GROUP, torch.uint8))
    )
    return shuffle_weight(data, scales) if shuffled else (data, scales)


def _is_shuffled(of: Workload) -> bool:
    return bool(of.arguments.get("shuffled")) or of.dtype in SHUFFLED_DTYPES


def _int4(of: Workload, is_fp8: bool, rows: int, k: int, *groups: int) -> Any:
    """An int4 weight, for FP8 or bf16 activations."""
    is_shuffled = _is_shuffled(of)
    if is_shuffled and not is_fp8:
        raise ValueError(f"arguments must have 'x' as true for {of.dtype} weights, which only FP8 activations take")
    group_k = of.arguments.get("group_k", SCALE_BLOCK if is_fp8 and not is_shuffled else GROUP)
    if group_k not in INT4_GROUPS or k % group_k:
        raise ValueError(f"group_k must be one of {INT4_GROUPS}, and K={k} a multiple of it, got {group_k!r}")
    dtype = _named_dtype(of, "scales", INT4_SCALES, torch.bfloat16 if group_k == GROUP else torch.float32)
    factors = _tensor(*groups, rows, k // group_k, dtype=dtype)
    codes = _tensor(*groups, rows, k // values_of_element(torch.int32), dtype=torch.int32)
    return shuffle_weight(codes, factors) if is_shuffled else (codes, factors)


def _named_dtype(of: Workload, name: str, dtypes: Iterable[torch.dtype], default: torch.dtype) -> torch.dtype:
    """One of ``dtypes``, which an argument has by its name."""
    names = {str(dtype).removeprefix("torch."): dtype for dtype in dtypes}
    chosen = of.arguments.get(name, str(default).removeprefix("torch."))
    if chosen not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, got {chosen!r}")
    return names[chosen]


def _dense_of_int4(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    a = _operand(function, (), m, of.k, 1, transposed=False)
    function.call(a, _int4(of, function.dtype == FP8, of.n, of.k), _tensor(m, of.n, dtype=of.d_dtype))


def _contiguous_of_int4(function: Function, m: int, of: Workload) -> None:
    a, d = _operand(function, (), m, of.k, 1, transposed=False), _tensor(m, of.n, dtype=of.d_dtype)
    function.call(a, _int4(of, function.dtype == FP8, of.n, of.k, of.num_groups), d, _tensor(m, dtype=torch.int32))


def _masked_of_int4(function: Function, m: int, of: Workload) -> None:
    groups = of.num_groups
    a, d = _operand(function, (groups,), m, of.k, 1, transposed=False), _tensor(groups, m, of.n, dtype=of.d_dtype)
    function.call(a, _int4(of, function.dtype == FP8, of.n, of.k, groups), d, _tensor(groups, dtype=torch.int32), m)


def _contiguous_of_fp4(function: Function, m: int, of: Workload) -> None:
    a, d = _a_of_fp4(function, m, of), _tensor(m, of.n, dtype=of.d_dtype)
    function.call(a, _four_bits(of.n, of.k, of.num_groups, shuffled=_is_shuffled(of)), d, _tensor(m, dtype=torch.int32))


def _masked_of_fp4(function: Function, m: int, of: Workload) -> None:
    groups = of.num_groups
    a, d = _a_of_fp4(function, m, of, groups), _tensor(groups, m, of.n, dtype=of.d_dtype)
    b = _four_bits(of.n, of.k, groups, shuffled=_is_shuffled(of))
    function.call(a, b, d, _tensor(groups, dtype=torch.int32), m)


def _along_k(function: Function, m: int, of: Workload) -> None:
    groups, packed = of.num_groups, function.layout == "nt"

    def operand(rows: int) -> Any:
        data = _tensor(*((groups * of.k * rows,) if packed else (groups * of.k, rows)), dtype=function.dtype)
        if function.dtype != FP8:
            return data
        blocks = groups * ceil_div(of.k, SCALE_BLOCK)
        return data, _tensor(*((rows, blocks) if packed else (blocks, rows)), dtype=torch.float32)

    d = _tensor(groups, m, of.n, dtype=of.d_dtype)
    function.call(operand(m), operand(of.n), d, [of.k] * groups, _tensor(groups, dtype=torch.int32))


def _attention(function: Function, m: int, of: Workload) -> None:
    page_size = _page_size(of)
    for heads in heads_of_every_tile(m):
        q, k, v = (_heads(of, heads, m, width) for width in (of.k, of.k, of.n))
        out = _heads_of_output(of, heads, m)
        options = {**_descales(of), "softcap": of.arguments.get("softcap", 0.0)}
        k, v, of_keys = _keys_and_values(of, k, v)
        function.call(q, k, v, out=out, **of_keys, **options)
        caches = (_heads(of, 1, page_size, width) for width in (of.k, of.n))
        k, v, of_keys = _keys_and_values(of, *caches)
        function.call(q, k, v, out=out, **_pages(heads, page_size), **of_keys, **options)


def _decode(function: Function, m: int, of: Workload) -> None:
    page_size = _page_size(of)
    q = _heads(of, m, 1, of.k)
    k, v, of_keys = _keys_and_values(of, *(_heads(of, 1, page_size, width) for width in (of.k, of.n)))
    options = {**_descales(of), **of_keys, "softcap": of.arguments.get("softcap", 0.0)}
    function.call(q, k, v, out=_heads_of_output(of, m, 1), **_pages(m, page_size), **options)


def _keys_and_values(
    of: Workload, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Keys and values like these, and their factors if they are in FP8 under queries in bf16."""
    if "k_descale" not in of.arguments:
        return k, v, {}
    if k.dtype != torch.bfloat16:
        raise ValueError(f"arguments' k_descale is for queries in bfloat16, got {k.dtype}")
    return k.to(FP8), v.to(FP8), _descales_of_keys(of, k.shape[:-1])


def _descales_of_keys(of: Workload, tokens: Sequence[int]) -> dict[str, torch.Tensor]:
    """Factors of keys and values in FP8, of which there are so many [..., tokens, heads]."""
    shapes = {"heads": (1,), "tokens": tokens}
    of_what = of.arguments.get("k_descale")
    if of_what not in shapes:
        raise ValueError(f"arguments' k_descale must be one of {list(shapes)}, got {of_what!r}")
    return {name: _tensor(*shapes[of_what], dtype=torch.float32) for name in ("k_descale", "v_descale")}


def _latent_decode(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    is_bytes = of.k == _LATENT_BYTES
    fp8_dtype = _dtype_of_bytes(of)
    dtype = torch.uint8 if is_bytes else of.dtype or of.d_dtype
    of_queries = of.d_dtype
    if check_bool("q", of.arguments.get("q", False)):
        of_queries = fp8_dtype if is_bytes else dtype
        if of_queries not in LATENT_FP8_DTYPES:
            raise ValueError(f"q must be False, for the cache is {dtype}")
    page_size = _page_size(of)
    cache = _tensor(1, page_size, 1, of.k, dtype=dtype)
    sequences = max(m, 4 * NUM_CUS)  # with fewer, many heads have the kernels of few
    for heads in LATENT_ROWS:  # each has kernels of its own
        q = _tensor(sequences, 1, heads, _LATENT_WIDTH if is_bytes else of.k, dtype=of_queries)
        function.call(q, cache, d_v=of.n, **_pages(sequences, page_size), fp8_dtype=fp8_dtype)


def _dtype_of_bytes(of: Workload) -> torch.dtype:
    return _named_dtype(of, "fp8_dtype", LATENT_FP8_DTYPES, FP8)


def _heads(of: Workload, batch: int, tokens: int, width: int) -> torch.Tensor:
    _check_no_groups(of)
    return _tensor(batch, tokens, 1, width, dtype=of.dtype or of.d_dtype)


def _heads_of_output(of: Workload, batch: int, tokens: int) -> torch.Tensor:
    return _tensor(batch, tokens, 1, of.n, dtype=of.d_dtype)


def _descales(of: Workload) -> dict[str, torch.Tensor]:
    names = ("q_descale", "k_descale", "v_descale") if of.dtype == FP8 else ()
    return {name: _tensor(1, dtype=torch.float32) for name in names}


def _page_size(of: Workload, by_default: int = _PAGE_TOKENS) -> int:
    return check_int("page_size", of.arguments.get("page_size", by_default), 1)


def _pages(sequences: int, page_size: int = _PAGE_TOKENS) -> dict[str, torch.Tensor]:
    table = _tensor(sequences, ceil_div(_PAGE_TOKENS, page_size), dtype=torch.int32)
    lengths = _tensor(sequences, dtype=torch.int32)
    return {"block_table": table, "context_lens": lengths}


def _logits(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    keys = _tensor(1, of.k, dtype=FP8), _tensor(1, dtype=torch.float32)
    bounds = _tensor(m, dtype=torch.int32), _tensor(m, dtype=torch.int32)
    function.call(_tensor(m, of.n, of.k, dtype=FP8), keys, _tensor(m, of.n, dtype=torch.float32), *bounds)


def _paged_logits(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    cache = _tensor(1, _PAGE_TOKENS, 1, of.k + _SCALE_BYTES, dtype=torch.uint8)
    pages = _pages(m)
    function.call(
        _tensor(m, 1, of.n, of.k, dtype=FP8),
        cache,
        _tensor(m, of.n, dtype=torch.float32),
        **pages,
        schedule_meta=mqa_logits.get_paged_mqa_logits_metadata(pages["context_lens"], _PAGE_TOKENS, 1),
        max_context_len=1,
        **of.arguments,
    )


def _top_k(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    page_size = _page_size(of, 1)
    table = None if page_size == 1 else _tensor(m, ceil_div(of.k, page_size), dtype=torch.int32)
    function.call(_tensor(m, of.k, dtype=of.dtype or torch.float32), of.n, block_table=table, page_size=page_size)


def _append(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    dtype = torch.uint8 if of.k in _WIDTHS_OF_BYTES else of.dtype or torch.bfloat16
    tokens, rotary = _tensor(m, of.n, dtype=torch.bfloat16), _tensor(m, _LATENT_WIDTH - 512, dtype=torch.bfloat16)
    cache = _tensor(1, _PAGE_TOKENS, of.k, dtype=dtype)
    function.call(tokens, rotary, cache, _tensor(m, dtype=torch.int64))


def _append_heads(function: Function, m: int, of: Workload) -> None:
    tokens = (_tensor(m, 1, width, dtype=of.d_dtype) for width in (of.k, of.n))
    caches = [_heads(of, 1, _PAGE_TOKENS, width) for width in (of.k, of.n)]
    descales = _descales_of_keys(of, caches[0].shape[:-1]) if "k_descale" in of.arguments else {}
    function.call(*tokens, *caches, _tensor(m, dtype=torch.int64), **descales)


def _merged(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    state, lse = _tensor(m, 1, of.k, dtype=of.d_dtype), _tensor(1, m, dtype=torch.float32)
    function.call(state, lse, state, lse)


def _sparse(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    if of.n != _LATENT_WIDTH - 64:
        raise ValueError(f"n must be 512, the elements of a value, got {of.n}")
    is_bytes = of.k in _WIDTHS_OF_BYTES
    cache = _tensor(1, _PAGE_TOKENS, 1, of.k, dtype=torch.uint8 if is_bytes else torch.bfloat16)
    queries = max(m, 4 * NUM_CUS)  # as for _latent_decode()
    for heads in LATENT_ROWS:  # each has kernels of its own
        q = _tensor(queries, heads, _WIDTHS_OF_BYTES.get(of.k, of.k), dtype=torch.bfloat16)
        slots = _tensor(queries, _PAGE_TOKENS, dtype=torch.int32)
        second = {"extra_kv_cache": cache, "extra_indices": slots} if of.arguments.get("extra_kv_cache") else {}
        function.call(q, cache, slots, **second, fp8_dtype=_dtype_of_bytes(of))


def _cast(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    function.call(_input(of, m))


def _cast_to_fp4(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    function.call(_input(of, m), True, **of.arguments)


def _normed(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    x, weight = _input(of, m), _tensor(of.k, dtype=of.dtype or torch.bfloat16)
    function.call(x, weight, **of.arguments)
    function.call(x, weight, residual=x, **of.arguments)


def _activated(function: Function, m: int, of: Workload) -> None:
    if of.num_groups == 1:
        function.call(_input(of, m), **of.arguments)
    else:
        function.call(_input(of, of.num_groups, m), _tensor(of.num_groups, dtype=torch.int32), **of.arguments)


def _routed(function: Function, m: int, of: Workload) -> None:
    _check_no_groups(of)
    bias = _tensor(of.k, dtype=torch.float32) if of.arguments.get("bias") else None
    function.call(_input(of, m), of.n, **{**of.arguments, "bias": bias})


def _experts(_: Function, m: int, of: Workload) -> None:
    rows = m * of.num_groups
    top_k = ceil_div(rows, MAX_TOKENS)
    if top_k > MAX_TOP_K and isinstance(of.m_list, range):
        return  # of every M there is, those that no call has
    if top_k > MAX_TOP_K:
        most = MAX_TOKENS * MAX_TOP_K // of.num_groups
        raise ValueError(f"m_list must have numbers up to {most} for {of.num_groups} experts, got {m}")
    _experts_of_tokens(of, rows // top_k, top_k)
    if m == 1:
        for fewer in experts.numbers_of_few_rows(of.num_groups):
            _experts_of_tokens(of, fewer, 1)


def _experts_of_tokens(of: Workload, tokens: int, top_k: int) -> None:
    hidden, dtype = of.k, of.dtype or FP8
    clamps = of.arguments.get("alpha"), of.arguments.get("limit")
    scaling = "groups" if dtype in FOUR_BIT_DTYPES else "blocks" if dtype == FP8 else "none"
    is_fp8 = dtype == FP8 or (scaling == "groups" and bool(of.arguments.get("x")))
    layer = Experts(tokens, hidden, of.n, of.num_groups, top_k, scaling, is_fp8, clamps)

    def weight(rows: int, columns: int) -> Any:
        if dtype in INT4_DTYPES:
            return _int4(of, is_fp8, rows, columns, of.num_groups)
        if scaling == "groups":
            return _four_bits(rows, columns, of.num_groups, shuffled=_is_shuffled(of))
        data = _tensor(of.num_groups, rows, columns, dtype=dtype)
        blocks = of.num_groups, ceil_div(rows, SCALE_BLOCK), ceil_div(columns, SCALE_BLOCK)
        return (data, _tensor(*blocks, dtype=torch.float32)) if dtype == FP8 else data

    def bias(name: str, rows: int) -> torch.Tensor | None:
        return _tensor(of.num_groups, rows, dtype=torch.bfloat16) if of.arguments.get(name) else None

    weights = weight(2 * of.n, hidden), weight(hidden, of.n)
    biases = bias("gate_up_bias", 2 * of.n), bias("down_bias", hidden)
    x, out = (_tensor(tokens, hidden, dtype=torch.bfloat16) for _ in range(2))
    of_x = _tensor(tokens, ceil_div(hidden, SCALE_BLOCK), dtype=torch.float32)
    forms_of_x: list[Any] = [(x.to(FP8), of_x)] if is_fp8 else []
    if scaling != "groups" or not is_fp8:
        forms_of_x.append(x)
    choices = _tensor(tokens, top_k, dtype=torch.float32), _tensor(tokens, top_k, dtype=torch.int32)
    for own, expert_map in itertools.product(forms_of_x, (None, _tensor(of.num_groups, dtype=torch.int32))):
        ready_kernels(experts.launches_of_layer(layer, own, *weights, *choices, expert_map, out, *biases))


def _input(of: Workload, *rows: int) -> torch.Tensor:
    return _tensor(*rows, of.k, dtype=of.dtype or torch.bfloat16)


def _check_no_groups(of: Workload) -> None:
    if of.num_groups != 1:
        raise ValueError(f"num_groups must be 1 for a function without groups, got {of.num_groups}")


def _rows(
    module: ModuleType,
    called: Callable[[Function, int, Workload], None],
    dtype: torch.dtype | None,
    layout: str,
    *names: str,
) -> dict[str, Function]:
    return {name: Function(getattr(module, name), called, dtype, layout) for name in names}


_OF_INT4 = ("group_k", "scales")
_OF_FP4 = ("shuffled",)
_OF_INT4_BY_FP8 = (*_OF_INT4, *_OF_FP4)
_OF_FP8_BY_FP4 = (*_OF_FP4, "recipe_a")
ARGUMENTS = {
    "flash_attention": ("softcap", "k_descale", "page_size"),
    "flash_attention_decode": ("softcap", "k_descale", "page_size"),
    "append_kv_cache": ("k_descale",),
    "mla_decode": ("q", "fp8_dtype", "page_size"),
    "top_k_per_row": ("page_size",),
    "fp8_paged_mqa_logits": ("shuffled_keys",),
    "sparse_mla": ("extra_kv_cache", "fp8_dtype"),
    "m_grouped_fp8_gemm_nt_masked": ("enable_overlap", "max_block_n"),
    "fp8_m_grouped_gemm_nt_masked": ("enable_overlap", "max_block_n"),
    "route_top_k": ("scoring", "bias", "num_groups", "top_groups"),
    "per_token_cast_to_fp4": ("gran_k", "use_packed_ue8m0"),
    "rms_norm_cast_to_fp8": ("gran_k",),
    "silu_and_mul_cast_to_fp8": ("alpha", "limit"),
    "fused_moe": ("alpha", "limit", "gate_up_bias", "down_bias", "x", *_OF_INT4),
    "fp8_fp4_gemm_nt": _OF_FP8_BY_FP4,
    "bf16_fp4_gemm_nt": _OF_FP4,
    "fp4_gemm_nt": _OF_FP4,
    "m_grouped_fp8_fp4_gemm_nt_contiguous": _OF_FP8_BY_FP4,
    "m_grouped_fp8_fp4_gemm_nt_masked": _OF_FP8_BY_FP4,
    "m_grouped_fp4_gemm_nt_contiguous": _OF_FP4,
    "m_grouped_fp4_gemm_nt_masked": _OF_FP4,
    "bf16_int4_gemm_nt": _OF_INT4,
    "m_grouped_bf16_int4_gemm_nt_contiguous": _OF_INT4,
    "m_grouped_bf16_int4_gemm_nt_masked": _OF_INT4,
    "fp8_int4_gemm_nt": _OF_INT4_BY_FP8,
    "m_grouped_fp8_int4_gemm_nt_contiguous": _OF_INT4_BY_FP8,
    "m_grouped_fp8_int4_gemm_nt_masked": _OF_INT4_BY_FP8,
}
_BF16, _F16 = torch.bfloat16, torch.float16
FUNCTIONS = (
    _rows(gemm, _dense, FP8, "nt", "fp8_gemm_nt", "gemm_fp8", "gemm_fp8_fp8_bf16_nt")
    | _rows(gemm, _dense, FP8, "nn", "fp8_gemm_nn")
    | _rows(gemm, _dense, FP8, "tn", "fp8_gemm_tn")
    | _rows(gemm, _dense, FP8, "tt", "fp8_gemm_tt")
    | _rows(fp4_gemm, _dense_of_fp4, FP8, "nt", "fp8_fp4_gemm_nt")
    | _rows(fp4_gemm, _dense_of_fp4, _BF16, "nt", "bf16_fp4_gemm_nt")
    | _rows(fp4_gemm, _dense_of_fp4, torch.int8, "nt", "fp4_gemm_nt")
    | _rows(fp4_gemm, _contiguous_of_fp4, torch.int8, "nt", "m_grouped_fp4_gemm_nt_contiguous")
    | _rows(fp4_gemm, _masked_of_fp4, torch.int8, "nt", "m_grouped_fp4_gemm_nt_masked")
    | _rows(fp4_gemm, _dense, FP8, "nn", "fp8_fp4_gemm_nn")
    | _rows(fp4_gemm, _dense, FP8, "tn", "fp8_fp4_gemm_tn")
    | _rows(fp4_gemm, _dense, FP8, "tt", "fp8_fp4_gemm_tt")
    | _rows(int4_gemm, _dense_of_int4, _BF16, "nt", "bf16_int4_gemm_nt")
    | _rows(int4_gemm, _dense_of_int4, FP8, "nt", "fp8_int4_gemm_nt")
    | _rows(int4_gemm, _contiguous_of_int4, FP8, "nt", "m_grouped_fp8_int4_gemm_nt_contiguous")
    | _rows(int4_gemm, _masked_of_int4, FP8, "nt", "m_grouped_fp8_int4_gemm_nt_masked")
    | _rows(int4_gemm, _contiguous_of_int4, _BF16, "nt", "m_grouped_bf16_int4_gemm_nt_contiguous")
    | _rows(int4_gemm, _masked_of_int4, _BF16, "nt", "m_grouped_bf16_int4_gemm_nt_masked")
    | _rows(gemm, _dense, _BF16, "nt", "bf16_gemm_nt")
    | _rows(gemm, _dense, _BF16, "nn", "bf16_gemm_nn")
    | _rows(gemm, _dense, _BF16, "tn", "bf16_gemm_tn")
    | _rows(gemm, _dense, _BF16, "tt", "bf16_gemm_tt")
    | _rows(gemm, _dense, _F16, "nt", "f16_gemm_nt")
    | _rows(grouped, _contiguous, FP8, "nt", "m_grouped_fp8_gemm_nt_contiguous")
    | _rows(fp4_gemm, _contiguous_of_fp4, FP8, "nt", "m_grouped_fp8_fp4_gemm_nt_contiguous")
    | _rows(fp4_gemm, _masked_of_fp4, FP8, "nt", "m_grouped_fp8_fp4_gemm_nt_masked")
    | _rows(fp4_gemm, _contiguous, FP8, "nn", "m_grouped_fp8_fp4_gemm_nn_contiguous")
    | _rows(grouped, _contiguous, FP8, "nt", "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous")
    | _rows(grouped, _contiguous, FP8, "nn", "m_grouped_fp8_gemm_nn_contiguous")
    | _rows(grouped, _contiguous, _BF16, "nt", "m_grouped_bf16_gemm_nt_contiguous")
    | _rows(grouped, _contiguous, _BF16, "nn", "m_grouped_bf16_gemm_nn_contiguous")
    | _rows(grouped, _masked, FP8, "nt", "m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked")
    | _rows(grouped, _masked, FP8, "nt", "m_grouped_gemm_fp8_fp8_bf16_nt_masked")
    | _rows(grouped, _masked, _BF16, "nt", "m_grouped_bf16_gemm_nt_masked", "bf16_m_grouped_gemm_nt_masked")
    | _rows(k_grouped, _along_k, FP8, "nt", "k_grouped_fp8_gemm_nt_contiguous")
    | _rows(k_grouped, _along_k, FP8, "tn", "k_grouped_fp8_gemm_tn_contiguous")
    | _rows(k_grouped, _along_k, _BF16, "tn", "k_grouped_bf16_gemm_tn_contiguous")
    | _rows(attention, _attention, None, "", "flash_attention")
    | _rows(decode, _decode, None, "", "flash_attention_decode")
    | _rows(decode, _latent_decode, None, "", "mla_decode")
    | _rows(mqa_logits, _logits, FP8, "", "fp8_mqa_logits")
    | _rows(mqa_logits, _paged_logits, FP8, "", "fp8_paged_mqa_logits")
    | _rows(top_k, _top_k, None, "", "top_k_per_row")
    | _rows(kv_cache, _append_heads, None, "", "append_kv_cache")
    | _rows(latent_cache, _append, None, "", "append_mla_cache")
    | _rows(merge_states, _merged, None, "", "merge_attention_states")
    | _rows(sparse_mla, _sparse, None, "", "sparse_mla")
    | _rows(casts, _cast, None, "", "per_token_cast_to_fp8", "per_block_cast_to_fp8", "per_channel_cast_to_fp8")
    | _rows(casts, _cast, None, "", "per_row_cast_to_fp8", "per_tensor_cast_to_fp8")
    | _rows(casts, _cast_to_fp4, None, "", "per_token_cast_to_fp4")
    | _rows(fused_casts, _normed, None, "", "rms_norm_cast_to_fp8")
    | _rows(fused_casts, _activated, None, "", "silu_and_mul_cast_to_fp8")
    | _rows(experts, _experts, None, "", "fused_moe")
    | _rows(routing, _routed, None, "", "route_top_k")
)

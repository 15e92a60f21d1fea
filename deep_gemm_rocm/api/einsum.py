"""Einstein sums of two operands that are a batch of GEMMs."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch

from ..checks import is_traced
from ..heuristics import choose_gemm_config, choose_k_splits
from ..heuristics.gemm_config import BLOCK_K_BYTES
from ..launch.gemm import gemm_launch, split_gemm_launch
from ..launch.launch import Launch
from ..launch.repeated import Described, launches
from ..problems.gemm import check_gemm
from ..problems.layout import Pair, ceil_div
from ..problems.matrices import FP8_DTYPES
from ..problems.operands import permuted, permuted_pair
from ..problems.recipe import Recipe, check_recipe, flat_recipe
from ..runtime import settings

_FORMS = ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr", "bmk,bnk->mn")


@launches
def einsum(
    expr: str,
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    use_cublaslt: bool = False,
) -> Described[None]:
    """Writes the Einstein sum of bf16 ``a`` and ``b``, plus ``c``, into ``d``; DeepGEMM's function of this name.

    The whole batch is one launch that accumulates in fp32. Nothing is copied or transposed. The same inputs give the
    same bits. If the batch is summed over, workgroups sum parts of it, which a second launch adds up in order. By
    default their number depends on the size of the dimension that only ``a`` shares with ``d``; with
    ``set_batch_invariant(True)`` it doesn't, so that a row has the same bits whatever that size.

    Args:
        expr: two operands and the output as in ``torch.einsum``, of three letters each. One letter, the batch, is in
            all three; one is in both operands only and summed over; the output shares one letter with each operand.
            If the batch is left out of the output, it is summed over as well. DeepGEMM's expressions are
            ``bhr,hdr->bhd``, ``bhd,hdr->bhr`` and ``bmk,bnk->mn``.
        a, b: bf16, with the dimensions in ``expr``. The contiguous dimension is the summed one or the one that only
            this operand shares with ``d``; its size is a multiple of 8 in the first case, of 2 in the second. Strides
            of the other dimensions are multiples of 16 bytes, unless their size is 1.
        d: bf16, f16 or fp32 to write into. The letter that it shares with ``b`` only is contiguous, and elements don't
            overlap. It must not share memory with ``a`` and ``b``.
        c: tensor of ``d``'s shape and dtype, added before the result is rounded; may be ``d`` itself. The same letter
            is contiguous.
        use_cublaslt: False; there is no cuBLASLt on this hardware.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: another form of ``expr``, or ``use_cublaslt``.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if use_cublaslt:
        raise NotImplementedError("use_cublaslt must be False: there is no cuBLASLt for AMD's hardware")
    if is_traced():
        torch.ops.deep_gemm_rocm.einsum(expr, a, b, d, c)
        return None, None
    return None, _launch("einsum", expr, a, b, d, c, (torch.bfloat16,), None)


@launches
def fp8_einsum(
    expr: str,
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 128, 128),
) -> Described[None]:
    """``einsum`` of FP8 operands with scales; DeepGEMM's function of this name.

    Args:
        expr: as for ``einsum``; DeepGEMM's are ``bhr,hdr->bhd``, ``bhd,hdr->bhr`` and ``bhd,bhr->hdr``.
        a: data float8_e4m3fnuz (or e5m2fnuz) and scales fp32 of the same dimensions, with size ceil(size/128) in the
            summed dimension. Strides of the data are as for ``einsum``; its contiguous dimension is a multiple of 16 if
            it is summed over, else of 4. Scales may have any strides.
        b: the same. With the default recipe, the scales also have size ceil(size/128) in the dimension that only ``b``
            shares with ``d``. For ``bhr,hdr->bhd`` they are [h, ceil(d/128), ceil(r/128)].
        c, d: as for ``einsum``.
        recipe: (1, 128, 128), or another recipe of ``gemm_fp8``: how many values share a scale in ``a``'s own
            dimension, in ``b``'s own and in the summed one.

    Raises:
        TypeError, ValueError and others: as ``einsum``.
        NotImplementedError: another form of ``expr`` or recipe.
    """
    whole = check_recipe("fp8_einsum", recipe, None, None)
    if is_traced():
        torch.ops.deep_gemm_rocm.fp8_einsum(expr, *a, *b, d, c, flat_recipe(whole))
        return None, None
    return None, _launch("fp8_einsum", expr, a, b, d, c, FP8_DTYPES, whole)


class _Letters(NamedTuple):
    """The roles of an expression's letters in a batch of GEMMs."""

    batch: str
    m: str
    n: str
    k: str


def _launch(
    function: str,
    expr: str,
    a: Any,
    b: Any,
    d: Any,
    c: Any,
    dtypes: tuple[torch.dtype, ...],
    recipe: Recipe | None,
) -> Launch | None:
    of_a, of_b, of_d = _dimensions(expr)
    batch, m, n, k = _letters(function, of_a, of_b, of_d, _contiguous(of_a, a) | _contiguous(of_b, b))
    is_summed = batch not in of_d
    if is_summed and recipe is not None:
        raise NotImplementedError(f"{function} has no kernels for sums over two dimensions, as {expr} is; use einsum")
    sizes: dict[str, int] = {}
    if recipe is None:
        a = permuted("a", a, of_a, batch + m + k, sizes)
        b = permuted("b", b, of_b, batch + n + k, sizes)
    else:
        a = permuted_pair("a", a, of_a, batch + m + k, sizes, {m: recipe.m, k: recipe.k})
        b = permuted_pair("b", b, of_b, batch + n + k, sizes, {n: recipe.n, k: recipe.k})
    order_of_d = m + n if is_summed else batch + m + n
    d = permuted("d", d, of_d, order_of_d, sizes)
    if c is not None:
        c = permuted("c", c, of_d, order_of_d, sizes)
    grouping = "summed" if is_summed else "batched"
    gemm, arguments = check_gemm(a, b, d, dtypes=dtypes, recipe=recipe, c=c, grouping=grouping)
    if gemm.m == 0 or gemm.n == 0 or (gemm.groups == 0 and not is_summed):
        return None
    k_blocks = gemm.groups * ceil_div(gemm.k * gemm.kind.element_bytes, BLOCK_K_BYTES)
    if k_blocks >= 2**31:
        raise ValueError(f"a must have fewer than 2^31 blocks of {BLOCK_K_BYTES} bytes along K, got {k_blocks}")
    num_groups = choose_k_splits(gemm.m, gemm.n, k_blocks) if is_summed else gemm.groups
    num_cus = settings.num_cus()
    config = choose_gemm_config(gemm.kind, gemm.m, gemm.n, gemm.k, num_cus, num_groups=num_groups)
    if is_summed:
        return split_gemm_launch(config, gemm, arguments, num_groups)
    return gemm_launch(config, gemm, arguments)


def _dimensions(expr: Any) -> tuple[str, str, str]:
    if not isinstance(expr, str):
        raise TypeError(f"expr must be a string such as {_FORMS[0]!r}, got {type(expr).__name__}")
    match = re.fullmatch(r"([a-z]+),([a-z]+)->([a-z]+)", expr.replace(" ", ""))
    if match is None:
        raise ValueError(f"expr must be two operands and the output, such as {_FORMS[0]!r}, got {expr!r}")
    return match[1], match[2], match[3]


def _contiguous(letters: str, operand: Any) -> set[str]:
    """Letters of the dimensions whose elements are neighbours in memory. What isn't a tensor is refused later."""
    tensor = operand[0] if isinstance(operand, (tuple, list)) and operand else operand
    if not isinstance(tensor, torch.Tensor):
        return set()
    dimensions = zip(letters, tensor.shape, tensor.stride(), strict=False)
    return {letter for letter, size, stride in dimensions if size > 1 and stride == 1}


def _letters(function: str, a: str, b: str, d: str, contiguous: set[str]) -> _Letters:
    batch = "".join(x for x in a if x in b and x in d)
    m = "".join(x for x in a if x not in b and x in d)
    n = "".join(x for x in d if x in b and x not in a)
    k = "".join(x for x in a if x in b and x not in d)
    if not batch and len(k) == 2:  # both the batch and K are summed: K of all groups
        # K may be contiguous, and the batch may not.
        batch, k = (k[1], k[0]) if k[0] in contiguous else (k[0], k[1])
        d = batch + d
    if {len(x) for x in (batch, m, n, k)} != {1} or {len(x) for x in (a, b, d)} != {3}:
        raise NotImplementedError(
            f"{function} has kernels for one batch, row, column and summed dimension each, as in {', '.join(_FORMS)}; "
            f"got {a},{b}->{d}"
        )
    return _Letters(batch, m, n, k)

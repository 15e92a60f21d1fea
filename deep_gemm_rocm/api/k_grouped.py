"""GEMM whose K is split into groups: the weight gradients of a mixture of experts, one launch for all experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..checks import check_is_tensor, check_tensor, is_traced
from ..heuristics import choose_gemm_config
from ..heuristics.gemm_config import BLOCK_K_BYTES
from ..launch import constants
from ..launch.gemm import gemm_launch
from ..launch.launch import Launch
from ..launch.repeated import Described, describing, launches
from ..problems.arguments import Arguments
from ..problems.gemm_kind import Gemm
from ..problems.k_grouped import check_k_grouped_gemm
from ..problems.layout import SCALE_BLOCK, Pair, ceil_div
from ..problems.matrices import FP8_DTYPES, check_scales, meta_of
from ..problems.operands import flattened_pair, group_sizes
from ..problems.recipe import VECTORS, check_recipe
from ..runtime import settings
from .gemm import fp8_gemm_nt_of_v1


@launches
def k_grouped_fp8_gemm_tn_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    ks_cpu: Sequence[int],
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> Described[None]:
    """Writes ``d[g] = a_gᵀ · b_g + c[g]`` for each group g of rows of ``a`` and ``b``: experts' weight gradients.

    DeepGEMM's function of this name, as one launch that doesn't wait for the device. Groups may be empty; ``d[g]`` is
    then ``c[g]``, or zeros. Unlike in DeepGEMM, groups may have any size. A group's K is added up in order, so its bits
    depend on no other group.

    Args:
        a: data float8_e4m3fnuz [ΣK, M], the rows of one group after another, and scales fp32 [S, M]; S is the sum of
            the groups' ceil(K_g/128). If all K_g are multiples of 128, ``per_channel_cast_to_fp8`` returns this.
        b: the same with N columns. Either may be float8_e5m2fnuz. M and N are multiples of 4. Rows are contiguous,
            16-byte aligned and any distance apart. Scales may have any strides.
        d: fp32, bf16 or f16 [G, M, N] to write into.
        ks_cpu: the sizes K_g of the G groups.
        grouped_layout: the same as int32 [G], contiguous, on the device. If it differs from ``ks_cpu``, the results are
            wrong, but nothing outside the tensors is read or written.
        c: [G, M, N] of ``d``'s dtype, added before the result is rounded; may be ``d`` itself.
        recipe: (1, 1, 128), the only one.
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.
        use_psum_layout: False; ``grouped_layout`` always has the sizes of groups.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: another recipe, or ``use_psum_layout``.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    _check_vectors("k_grouped_fp8_gemm_tn_contiguous", recipe)
    _check_sizes_layout(use_psum_layout)
    if is_traced():
        torch.ops.deep_gemm_rocm.k_grouped_fp8_gemm_tn_contiguous(*a, *b, d, ks_cpu, grouped_layout, c)
        return None, None
    gemm, arguments = check_k_grouped_gemm(
        a, b, d, ks_cpu, grouped_layout, c, dtypes=FP8_DTYPES, scaled=True, packed=False
    )
    return None, _launch(gemm, arguments, ks_cpu)


@launches
def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    ks_cpu: Sequence[int],
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> Described[None]:
    """``k_grouped_fp8_gemm_tn_contiguous`` for operands whose groups are contiguous along K.

    Args:
        a: data float8_e4m3fnuz [ΣK·M], the flattened [M, K_g] of one group after another, and scales fp32 [M, S] with S
            as for ``k_grouped_fp8_gemm_tn_contiguous``.
        b: the same with N instead of M. M and N are arbitrary, the K_g multiples of 16.
        ks_cpu and others: as for ``k_grouped_fp8_gemm_tn_contiguous``.

    Raises:
        TypeError, ValueError and others: as ``k_grouped_fp8_gemm_tn_contiguous``.
    """
    _check_vectors("k_grouped_fp8_gemm_nt_contiguous", recipe)
    _check_sizes_layout(use_psum_layout)
    if is_traced():
        torch.ops.deep_gemm_rocm.k_grouped_fp8_gemm_nt_contiguous(*a, *b, d, ks_cpu, grouped_layout, c)
        return None, None
    gemm, arguments = check_k_grouped_gemm(
        a, b, d, ks_cpu, grouped_layout, c, dtypes=FP8_DTYPES, scaled=True, packed=True
    )
    return None, _launch(gemm, arguments, ks_cpu)


@launches
def k_grouped_bf16_gemm_tn_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    ks_cpu: Sequence[int],
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> Described[None]:
    """``k_grouped_fp8_gemm_tn_contiguous`` for bf16 operands without scales; DeepGEMM's function of this name.

    Args:
        a: bf16 [ΣK, M].
        b: bf16 [ΣK, N]; M and N are even.
        ks_cpu and others: as for ``k_grouped_fp8_gemm_tn_contiguous``.

    Raises:
        TypeError, ValueError and others: as ``k_grouped_fp8_gemm_tn_contiguous``.
    """
    _check_sizes_layout(use_psum_layout)
    if is_traced():
        torch.ops.deep_gemm_rocm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks_cpu, grouped_layout, c)
        return None, None
    dtypes = (torch.bfloat16,)
    gemm, arguments = check_k_grouped_gemm(
        a, b, d, ks_cpu, grouped_layout, c, dtypes=dtypes, scaled=False, packed=False
    )
    return None, _launch(gemm, arguments, ks_cpu)


def wgrad_gemm_fp8_fp8_fp32_nt(lhs: Pair, rhs: Pair, out: torch.Tensor) -> None:
    """Adds ``lhs · rhsᵀ`` to ``out``; DeepGEMM 1's function of this name.

    Args:
        lhs: FP8 [M, K] and scales fp32 [M, ceil(K/128)].
        rhs: FP8 [N, K] and scales fp32 [N, ceil(K/128)].
        out: fp32 [M, N].
    """
    check_is_tensor("out", out)
    fp8_gemm_nt_of_v1(lhs, rhs, out, c=out, recipe=(1, 1, 128))


def k_grouped_wgrad_gemm_fp8_fp8_fp32_nt(lhs: Pair, rhs: Pair, out: torch.Tensor, batch_sizes: Sequence[int]) -> None:
    """Adds each group's product to ``out``; DeepGEMM 1's function of this name.

    Args:
        lhs, rhs: FP8 data as ``a`` and ``b`` of ``k_grouped_fp8_gemm_nt_contiguous``, of any shape, and scales fp32
            [S, M] and [S, N].
        out: fp32 [G, M, N].
        batch_sizes: the groups' K_g. They are copied to the device, in the first call with these, so the call can't be
            captured into a graph.

    Raises:
        TypeError, ValueError and others: as ``k_grouped_fp8_gemm_nt_contiguous``.
    """
    check_is_tensor("out", out)
    sizes = constants.int32(batch_sizes, out, lambda: group_sizes("batch_sizes", batch_sizes, 1))
    _add_wgrads(lhs, rhs, out, batch_sizes, sizes)


@launches
def _add_wgrads(
    lhs: Pair, rhs: Pair, out: torch.Tensor, batch_sizes: Sequence[int], sizes: torch.Tensor
) -> Described[None]:
    """
    Args:
        batch_sizes: checked to be what ``sizes`` has on the device.
    """
    check_tensor("out", out)
    a, b = flattened_pair("lhs", lhs), flattened_pair("rhs", rhs)
    if out.dim() == 3 and len(out) == len(batch_sizes):  # otherwise, the error below is about ``out``
        blocks = sum(ceil_div(k, SCALE_BLOCK) for k in batch_sizes)
        for name, scales, rows in (("lhs[1]", lhs[1], out.shape[1]), ("rhs[1]", rhs[1], out.shape[2])):
            meaning = f"one scale for each {SCALE_BLOCK} of each group's K and row or column of out"
            check_scales(name, meta_of(name, scales), (blocks, rows), meaning)
    names = {"a[0]": "lhs[0]", "a[1]": "lhs[1]", "b[0]": "rhs[0]", "b[1]": "rhs[1]", "c": "out", "d": "out"}
    in_errors = {**names, "ks_cpu": "batch_sizes"}
    _, launch = describing(k_grouped_fp8_gemm_nt_contiguous, in_errors)(a, b, out, batch_sizes, sizes, c=out)
    if launch is None:
        return None, None
    assert isinstance(launch, Launch)
    return None, launch.renamed(**names, grouped_layout="sizes")


def _check_vectors(function: str, recipe: tuple[int, int, int]) -> None:
    if check_recipe(function, recipe, None, None) != VECTORS:
        raise NotImplementedError(f"{function} has a kernel for recipe={tuple(VECTORS)} only, got {recipe}")


def _check_sizes_layout(use_psum_layout: bool) -> None:
    if use_psum_layout:
        raise NotImplementedError(
            "use_psum_layout must be False: groups along K are given by their sizes; pass the differences of the ends"
        )


def _launch(gemm: Gemm, arguments: Arguments, ks: Sequence[int]) -> Launch | None:
    if gemm.m == 0 or gemm.n == 0:
        return None
    # The configuration depends on whether any group's K has a tail.
    k_block = BLOCK_K_BYTES // gemm.kind.element_bytes
    k = next((k for k in ks if k % k_block), k_block)
    config = choose_gemm_config(gemm.kind, gemm.m, gemm.n, k, settings.num_cus(), num_groups=gemm.groups)
    return gemm_launch(config, gemm, arguments)

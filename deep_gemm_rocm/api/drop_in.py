"""DeepGEMM's functions that need no kernel of their own here, and ``import deep_gemm`` for this package."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ..checks import check_int, check_tensor
from ..problems.gemm_kind import Epilogue
from ..problems.layout import SCALE_BLOCK, Pair, ceil_div
from ..problems.recipe import check_ints
from ..problems.tensors import check_data
from .casts import NO_UE8M0, get_mn_major_tma_aligned_tensor
from .gemm import check_alpha
from .mqa_logits import fp8_mqa_logits, fp8_paged_mqa_logits
from .sparse_mla import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata

_DEEP_GEMM_VERSION = "2.8.1"  # whose functions have counterparts here
_NO_CUBLASLT = "there is no cuBLASLt for AMD's hardware; use bf16_gemm_{layout}"


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: tuple[int, int, int] | tuple[int, int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copies scales into the layout that kernels read fastest; DeepGEMM's function of this name, as on SM90.

    Kernels here take scales of any strides, so calling this function is optional.

    Args:
        sf: fp32 [ceil(mn/rows), ceil(k/128)], any strides; with ``num_groups``, [num_groups, ceil(mn/rows),
            ceil(k/128)].
        mn, k: rows and columns of the operand.
        recipe: how many rows and values along K share a scale: (rows, 128), or (rows of a, rows of b, 128). Rows are 1
            or 128.
        num_groups: groups of the operand; None if it is not grouped.
        is_sfa: whether ``sf`` are the scales of a; only for a recipe of three numbers.
        disable_ue8m0_cast: accepted and not used; scales stay fp32 on this hardware.
        psum_layout: accepted and not used; it is for packed scales.

    Returns:
        Scales of single rows in the layout of ``get_mn_major_tma_aligned_tensor``; scales of 128 rows unchanged.

    Raises:
        TypeError, ValueError: an argument is not as above.
        NotImplementedError: scales packed as UE8M0, or another recipe.
    """
    rows, shared_k = _shared_by_a_scale(recipe, is_sfa)
    check_tensor("sf", sf)
    if sf.dtype == torch.int32:
        raise NotImplementedError(f"sf must be float32: {NO_UE8M0}")
    if sf.dtype != torch.float32:
        raise TypeError(f"sf must be float32, got {sf.dtype}")
    groups = () if num_groups is None else (check_int("num_groups", num_groups, 0),)
    expected = (*groups, ceil_div(check_int("mn", mn, 0), rows), ceil_div(check_int("k", k, 0), shared_k))
    if tuple(sf.shape) != expected:
        raise ValueError(f"sf must have shape {expected}, got {tuple(sf.shape)}")
    return get_mn_major_tma_aligned_tensor(sf) if rows == 1 else sf


def _shared_by_a_scale(recipe: Any, is_sfa: bool | None) -> tuple[int, int]:
    """How many rows and how many values along K share a scale."""
    check_ints("recipe", recipe, 2, 3)
    if (len(recipe) == 3) != (is_sfa is not None):
        raise ValueError(f"is_sfa must be given with a recipe of 3 numbers and only then, got {is_sfa} with {recipe}")
    rows, shared_k = recipe if len(recipe) == 2 else (recipe[0] if is_sfa else recipe[1], recipe[2])
    if rows not in (1, SCALE_BLOCK) or shared_k != SCALE_BLOCK:
        raise NotImplementedError(
            f"recipe must be for 1 or {SCALE_BLOCK} rows and {SCALE_BLOCK} values along K, got {rows} and {shared_k}"
        )
    return rows, shared_k


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: torch.Tensor, psum_layout: torch.Tensor | None = None) -> NoReturn:
    """Not for this hardware: raises NotImplementedError."""
    raise NotImplementedError(f"scales can't be packed: {NO_UE8M0}")


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor,
    grouped_layout: torch.Tensor,
    ks_cpu: Sequence[int],
    gran_k: int,
    k_alignment: int,
    use_psum_layout: bool = False,
) -> NoReturn:
    """Not for this hardware: raises NotImplementedError."""
    raise NotImplementedError(f"scales can't be packed: {NO_UE8M0}")


def fp8_fp4_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv: Pair,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool | int | None = None,
    max_seqlen_k: int | torch.Tensor | None = None,
    logits_dtype: torch.dtype = torch.float32,
    *,
    schedule_meta: torch.Tensor | None = None,
) -> torch.Tensor:
    """``fp8_mqa_logits`` of ``q = (data, None)``; DeepGEMM's function of this name, in 2.6 and 2.8.

    2.8 has ``max_seqlen_k`` and ``schedule_meta`` after ``cu_seq_len_k_end``. The sixth argument tells which of them is
    meant: a bool is ``clean_logits``, another int is 2.8's ``max_seqlen_k``, and the seventh is ``schedule_meta`` then.

    Args:
        q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, logits_dtype: as for ``fp8_mqa_logits``; ``q`` as a pair.
        clean_logits: as for ``fp8_mqa_logits``; by default True for logits that aren't compressed, as 2.8 has no such
            argument and leaves compressed logits as they are.
        max_seqlen_k: as for ``fp8_mqa_logits``; 0 by default.
        schedule_meta: what ``get_mqa_logits_metadata`` returned, not used.

    Raises:
        NotImplementedError: ``q`` has scales, as only FP4 has.
        TypeError, ValueError and others: as ``fp8_mqa_logits``.
    """
    data = _fp8_of(q)
    if clean_logits is not None and not isinstance(clean_logits, bool):
        if isinstance(max_seqlen_k, int):
            raise TypeError(f"clean_logits must be a bool where max_seqlen_k is given, got {clean_logits!r}")
        schedule_meta = max_seqlen_k if schedule_meta is None else schedule_meta
        clean_logits, max_seqlen_k = None, clean_logits
    if schedule_meta is not None:
        check_data("schedule_meta", schedule_meta)
    columns: Any = 0 if max_seqlen_k is None else max_seqlen_k
    clean = columns == 0 if clean_logits is None else clean_logits
    bounds = (cu_seq_len_k_start, cu_seq_len_k_end)
    return fp8_mqa_logits(data, kv, weights, *bounds, clean, columns, logits_dtype=logits_dtype)


def get_mqa_logits_metadata(
    cu_seq_len_k_start: torch.Tensor, cu_seq_len_k_end: torch.Tensor, num_kv_tokens: int, num_heads: int
) -> torch.Tensor:
    """An empty int32 tensor for ``schedule_meta`` of ``fp8_fp4_mqa_logits``, which needs no schedule here."""
    check_data("cu_seq_len_k_start", cu_seq_len_k_start)
    return cu_seq_len_k_start.new_empty(0, dtype=torch.int32)


def fp8_fp4_paged_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor | None,
    max_context_len: int,
    clean_logits: bool | torch.Tensor | None = False,
    logits_dtype: torch.dtype = torch.float32,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """``fp8_paged_mqa_logits`` of ``q = (data, None)``; DeepGEMM's function of this name.

    2.8 has ``indices`` after ``max_context_len``. The eighth argument tells which is meant: a tensor or None is
    ``indices``.

    Raises:
        NotImplementedError: ``q`` has scales, as only FP4 has.
        TypeError, ValueError and others: as ``fp8_paged_mqa_logits``.
    """
    clean: Any = clean_logits
    if not isinstance(clean, bool):
        if indices is not None:
            raise TypeError(f"clean_logits must be a bool where indices are given, got a {type(clean).__name__}")
        clean, indices = False, clean
    arguments = (kv_cache, weights, context_lens, block_table, schedule_meta, max_context_len, clean, indices)
    return fp8_paged_mqa_logits(_fp8_of(q), *arguments, logits_dtype=logits_dtype)


def _fp8_of(q: Any) -> torch.Tensor:
    if not isinstance(q, (tuple, list)) or len(q) != 2:
        raise TypeError(f"q must be a pair (FP8 data, None), got a {type(q).__name__}")
    if q[1] is not None:
        raise NotImplementedError("q must have no scales: gfx942 has no FP4; pass (FP8 data, None)")
    data: torch.Tensor = q[0]
    return data


def cublaslt_gemm_nt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> NoReturn:
    """Not for this hardware: raises NotImplementedError."""
    raise NotImplementedError(_NO_CUBLASLT.format(layout="nt"))


def cublaslt_gemm_nn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> NoReturn:
    """Not for this hardware: raises NotImplementedError."""
    raise NotImplementedError(_NO_CUBLASLT.format(layout="nn"))


def cublaslt_gemm_tn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> NoReturn:
    """Not for this hardware: raises NotImplementedError."""
    raise NotImplementedError(_NO_CUBLASLT.format(layout="tn"))


def cublaslt_gemm_tt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> NoReturn:
    """Not for this hardware: raises NotImplementedError."""
    raise NotImplementedError(_NO_CUBLASLT.format(layout="tt"))


class _Epilogues:
    """``deep_gemm.epilogue``: what to pass for ``epilogue`` to the drop-in's functions."""

    @staticmethod
    def Identity() -> Epilogue:  # noqa: N802  DeepGEMM's name, as all of these
        """The sums as they are."""
        return "identity"

    @staticmethod
    def Alpha(alpha: float) -> Epilogue:  # noqa: N802
        """The sums times ``alpha``, which must be 1."""
        check_alpha(alpha)
        return "identity"

    @staticmethod
    def FP8Quantization(sfd: torch.Tensor) -> NoReturn:  # noqa: N802
        """Raises NotImplementedError."""
        raise NotImplementedError("epilogue can't take scales: pass d as a pair (FP8 data, fp32 scales)")

    @staticmethod
    def BF16StochasticRounding() -> NoReturn:  # noqa: N802
        """Raises NotImplementedError."""
        raise NotImplementedError("epilogue: gfx942 has no stochastic rounding to bf16")


def install_as_deep_gemm() -> None:
    """Makes ``import deep_gemm`` find this package, for programs that were written for DeepGEMM.

    ``deep_gemm``, ``deep_gemm.utils``, ``deep_gemm.utils.layout``, ``deep_gemm.utils.math`` and ``deep_gemm.testing``
    then have this package's public names, the last those of ``deep_gemm_rocm.testing`` as well. ``__version__`` is that
    of the DeepGEMM whose interface this is, 2.8.1, and ``deep_gemm.epilogue`` has its epilogues, which this hardware
    has no kernels for but ``Identity``. Functions that only SM100 has are absent, since programs ask whether they are
    there. This isn't done automatically, since some programs take an installed ``deep_gemm`` for a sign of NVIDIA's
    hardware. Repeated calls change nothing.

    Raises:
        RuntimeError: another ``deep_gemm`` has been imported.
    """
    public = sys.modules[__package__.partition(".")[0]]
    shown = {member: getattr(public, member) for member in public.__all__}
    shown |= {"epilogue": _Epilogues}
    for_tests = shown | {member: getattr(public.testing, member) for member in public.testing.__all__}
    members = {
        "deep_gemm": shown,
        "deep_gemm.utils": shown,
        "deep_gemm.utils.layout": shown,
        "deep_gemm.utils.math": shown,
        "deep_gemm.testing": for_tests,
    }
    _install("deep_gemm", members, __doc__=public.__doc__, __version__=_DEEP_GEMM_VERSION)


def install_as_flash_mla() -> None:
    """Makes ``import flash_mla`` find FlashMLA's functions for inference that are here, for programs written for it.

    These are ``flash_mla_with_kvcache``, ``flash_mla_sparse_fwd`` and ``get_mla_metadata``. They and
    ``FlashMLASchedMeta`` are in ``flash_mla.flash_mla_interface``, too. Repeated calls change nothing.

    Raises:
        RuntimeError: another ``flash_mla`` has been imported.
    """
    functions = (FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata)
    shown = {function.__name__: function for function in functions}
    members = {"flash_mla": shown, "flash_mla.flash_mla_interface": shown}
    _install("flash_mla", members, __doc__=install_as_flash_mla.__doc__)


def _install(package: str, members: Mapping[str, Mapping[str, Any]], **attributes: Any) -> None:
    """Makes modules of these names importable that have these members, unless they are there already.

    Args:
        members: by the modules' names; a package comes before its modules.
        attributes: what the modules have besides.

    Raises:
        RuntimeError: another package of this name has been imported.
    """
    public = sys.modules[__package__.partition(".")[0]]
    installed = sys.modules.get(package)
    if installed is not None:
        if getattr(installed, "__implementation__", None) is public:
            return
        raise RuntimeError(f"{package} is another package already, {getattr(installed, '__file__', installed)}")
    for name, of_module in members.items():
        module: Any = types.ModuleType(name)
        is_package = any(other.startswith(f"{name}.") for other in members)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=public.__file__, is_package=is_package)
        if is_package:
            module.__path__ = []
        vars(module).update(
            attributes, __file__=public.__file__, __implementation__=public, __all__=list(of_module), **of_module
        )
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)

"""Compiles the kernels of a model in advance."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from .. import jit
from ..checks import check_int
from ..heuristics import collecting_begins
from ..launch import planning
from ..problems.four_bits import FOUR_BIT_DTYPES
from ..problems.gemm_kind import GROUP
from ..problems.layout import align
from .warmup_calls import ARGUMENTS, FUNCTIONS

_MODELS = Path(__file__).resolve().parents[1] / "models"

_ALL_M = range(1, 32769)
_FEW = 200


@dataclasses.dataclass(frozen=True)
class Workload:
    """Calls of one function with each m in ``m_list``; see ``warmup_kernels`` for the fields."""

    function: str
    m_list: Sequence[int]
    n: int
    k: int
    num_groups: int = 1
    d_dtype: torch.dtype = torch.bfloat16
    dtype: torch.dtype | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """
        Raises:
            TypeError, ValueError: a field is not as ``warmup_kernels`` documents it.
        """
        if not isinstance(self.function, str) or self.function not in FUNCTIONS:
            raise ValueError(f"the function's name must be one of {', '.join(FUNCTIONS)}, got {self.function!r}")
        if not isinstance(self.m_list, Sequence) or isinstance(self.m_list, str) or not self.m_list:
            raise TypeError(f"m_list must be a list of at least one int, got {self.m_list!r}")
        for m in (self.m_list[0], self.m_list[-1]) if isinstance(self.m_list, range) else self.m_list:
            check_int("m_list's numbers", m, 1)
        for name in ("n", "k", "num_groups"):
            check_int(name, getattr(self, name), 1)
        if not isinstance(self.d_dtype, torch.dtype):
            raise TypeError(f"d_dtype must be a torch.dtype, got {self.d_dtype!r}")
        if self.dtype is not None and FUNCTIONS[self.function].dtype is not None:
            raise ValueError(f"dtype must be None for {self.function}, whose operands have only one, got {self.dtype}")
        if not isinstance(self.dtype, (torch.dtype, type(None))):
            raise TypeError(f"dtype must be a torch.dtype, got {self.dtype!r}")
        if not isinstance(self.arguments, Mapping):
            raise TypeError(f"arguments must map names to values, got {self.arguments!r}")
        if unknown := self.arguments.keys() - set(known := ARGUMENTS.get(self.function, ())):
            raise ValueError(f"arguments of {self.function} may have {list(known)}, got {sorted(unknown)}")


def warmup_kernels(
    name: str,
    m_list: Sequence[int],
    n: int,
    k: int,
    num_groups: int = 1,
    *,
    d_dtype: torch.dtype = torch.bfloat16,
    dtype: torch.dtype | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> int:
    """Compiles and loads, in parallel, all kernels that a function needs for these sizes.

    Afterwards, calls with these sizes neither compile nor read a file. A list of many M needs only a handful of
    kernels, since M only affects the choice of tiles. Nothing is launched, and no device memory is needed. Recipes,
    scales and strides are the function's defaults; scales of FP8 activations may lie by rows or by columns, with
    nothing between them. Weights of functions with fp4 in their names and of the ``nt`` layout have four bits, and
    exponents as scales; those with int4 have the scales that ``arguments`` tells.

    Args:
        name: the name of a public function: a dense or grouped GEMM, under any of its names; attention, for prompts or
            decoding, or merging its results; the indexer's logits, or the selection of its largest; writing the latent
            cache; or a function that quantises or chooses experts.
        m_list: rows of ``a`` for functions without groups; rows of all groups together for contiguous groups; expected
            rows of a group for masked groups; rows of the output for groups along K; queries of a sequence for
            attention and logits; sequences for functions with a paged cache; queries for ``sparse_mla`` and
            ``merge_attention_states``; tokens for ``append_mla_cache`` and ``append_kv_cache``; rows of ``x`` or the
            logits otherwise. For ``fused_moe``, rows of an expert on average: tokens · top_k / experts, rounded up.
        n: columns of the output; elements of a head of v for attention, of ``kv_c`` for ``append_mla_cache``; heads for
            logits; what ``top_k_per_row`` selects; ``top_k`` for the choice of experts; I for ``fused_moe``.
        k: size of the summed dimension, of each group for groups along K; elements of a head of q for attention and
            logits; the last dimension of the cache for ``mla_decode``, ``sparse_mla`` and ``append_mla_cache``; columns
            of ``x`` or of the logits to select from; ``hidden`` for ``fused_moe``.
        num_groups: number of groups or experts; 1 for functions without. For activations, 1 is without ``masked_m``.
        d_dtype: dtype of the output; ignored for functions whose output has only one.
        dtype: dtype of q, k and v for attention, of the cache for ``mla_decode`` and ``append_kv_cache``, ``d_dtype``
            if None; of the cache for ``append_mla_cache``, of ``x``, or of the logits of experts, bf16 if None; of the
            logits for ``top_k_per_row``, fp32 if None; of the weights of ``fused_moe``, float8_e4m3fnuz with scales of
            blocks if None, and int8 for four bits with exponents as scales, int64 for those of ``shuffle_weight``,
            int32 for int4, and int16 for that of ``shuffle_weight``. None for all other functions, and for caches of
            656 or 584 bytes a token.
        arguments: other arguments of the function on which kernels depend: for ``route_top_k`` ``scoring``,
            ``num_groups``, ``top_groups``, and ``bias`` as whether there is one; for ``rms_norm_cast_to_fp8``
            ``gran_k``; for ``per_token_cast_to_fp4`` ``gran_k`` and ``use_packed_ue8m0``; for
            ``silu_and_mul_cast_to_fp8`` and ``fused_moe`` ``alpha`` and ``limit``; for the latter also ``gate_up_bias``
            and ``down_bias``, as whether there is one in bf16, and with four bits ``x``, as whether it is FP8; for
            masked groups in FP8 ``enable_overlap`` and ``max_block_n``; for ``flash_attention`` and
            ``flash_attention_decode`` ``softcap``; for these and ``append_kv_cache`` ``k_descale``, as ``"heads"`` or
            ``"tokens"``, whose factors FP8 keys of tokens in bf16 have; for ``mla_decode`` and ``sparse_mla``
            ``fp8_dtype``, by its name; for the former ``q``, as whether it is FP8; for it, ``flash_attention`` and
            ``flash_attention_decode`` ``page_size``, the tokens of a page, by default 64; for ``top_k_per_row``
            ``page_size``, by default 1; for ``fp8_paged_mqa_logits`` ``shuffled_keys``; for ``sparse_mla``
            ``extra_kv_cache``, as whether there is one; for functions but
            ``fused_moe`` with FP4 weights, or with int4 weights and FP8 activations, ``shuffled``, as whether they are
            those of ``shuffle_weight``; with FP4 weights and FP8 activations ``recipe_a``: (1, 128), or (1, 32) if each
            32 values of those have an exponent; for functions with int4 weights ``group_k`` and ``scales``: how many
            values share a scale, by default 128 with FP8 activations unless they are shuffled, and otherwise 32, and
            the scales' dtype by its name, by default ``"bfloat16"`` for 32 values and otherwise ``"float32"``.

    Returns:
        The number of different kernels, whether they were compiled now or before.

    Raises:
        TypeError, ValueError: an argument is not as above, or the function doesn't take it.
        hip.NoDeviceError, jit.JitError: there is no device, or a compile failed.
    """
    wanted = plan([Workload(name, m_list, n, k, num_groups, d_dtype, dtype, arguments or {})])
    compile_all(wanted)
    return len(wanted)


def functions() -> tuple[str, ...]:
    """The names of the functions that can be warmed up."""
    return tuple(FUNCTIONS)


def models() -> dict[str, Path]:
    """The workload files that come with this package, by the model's name."""
    return {file.stem: file for file in sorted(_MODELS.glob("*.json"))}


def load(file: Path, ranks: int = 1) -> list[Workload]:
    """Reads the workloads in a file: a JSON list of objects with ``function``, ``n`` and ``k``.

    Optional are ``num_groups``, ``arguments``, ``d_dtype`` and ``dtype`` (such as ``bfloat16``, ``float32``,
    ``float8_e4m3fnuz``), and ``m``, a number or a list of numbers. Without ``m``, the workload covers every M from 1 to
    32768. ``divided`` names the sizes of which each rank has a share: ``"n"``, ``"k"``, or both in a list. ``kv_heads``
    tells a projection to heads of q, k and v, which are its columns, the number and the width of the heads of k: a rank
    has at least one of them and one of v.

    Args:
        ranks: how many ranks share the weights of a layer (tensor parallelism).

    Raises:
        TypeError, ValueError: ``ranks`` is no int from 1 on, the file is not of that form, or a size in it can't be
            divided among so many ranks.
        OSError: it can't be read.
    """
    check_int("ranks", ranks, 1)
    try:
        entries = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} must be JSON: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file} must be a JSON list of at least one object")
    return [_workload(f"{file}, entry {index}", entry, ranks) for index, entry in enumerate(entries)]


def plan(workloads: Iterable[Workload]) -> list[jit.Request]:
    """The kernels that these workloads need, each once.

    Raises:
        TypeError, ValueError: a function doesn't accept a workload's sizes.
        hip.NoDeviceError: there is no device.
    """
    with planning.planning() as wanted:
        for workload in workloads:
            try:
                _call(workload)
            except (TypeError, ValueError) as error:
                sizes = f"n={workload.n}, k={workload.k}"
                raise type(error)(f"{workload.function} with {sizes}: {error}") from error
    return list(wanted.values())


def _call(workload: Workload) -> None:
    """Calls the function with each M at which kernels may differ from those of a smaller M."""
    function = FUNCTIONS[workload.function]
    with collecting_begins() as begins:
        called, more = set[int](), _needed(workload.m_list)
        while more:
            for m in sorted(more):
                function.called(function, m, workload)
            called |= more
            more = begins.intersection(workload.m_list) - called


def _needed(m_list: Sequence[int]) -> set[int]:
    """Numbers of a long range at which calls find all kernels, together with those from which on GEMMs choose another.

    The choice for attention changes where the number of queries fills another tile, or another round of tiles on the
    device. For few queries, each may change the choice; for many, changes are rare.
    """
    if not (isinstance(m_list, range) and m_list.step == 1 and len(m_list) > _FEW):
        return set(m_list)
    last = m_list[-1]
    spread = (range(1, 64), range(64, 1024, 16), range(1024, 8192, 128), range(8192, last, 1024))
    return {m_list[0], last, *itertools.chain(*spread)}.intersection(m_list)


def compile_all(
    wanted: Sequence[jit.Request],
    jobs: int | None = None,
    done: Callable[[jit.Kernel], None] = lambda kernel: None,
) -> None:
    """Compiles and loads the kernels, ``jobs`` at once (as many as this process has CPUs if None).

    Args:
        done: called with each kernel when it is ready.

    Raises:
        hip.NoDeviceError, jit.JitError: there is no device, or a compile failed. Running compiles are finished first.
    """
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)), "warmup") as threads:
        futures = [threads.submit(jit.get_kernel, *request) for request in wanted]
        try:
            for future in futures:
                done(future.result())
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _workload(where: str, entry: Any, ranks: int) -> Workload:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object, got {entry!r}")
    known = {"function", "m", "n", "k", "num_groups", "d_dtype", "dtype", "arguments", "divided", "kv_heads"}
    if unknown := entry.keys() - known:
        raise ValueError(f"{where} has unknown keys {sorted(unknown)}; known are {sorted(known)}")
    if missing := {"function", "n", "k"} - entry.keys():
        raise ValueError(f"{where} lacks {sorted(missing)}")
    m = entry.get("m", _ALL_M)
    dtypes: dict[str, Any] = {
        name: getattr(torch, str(entry[name]), None) for name in ("d_dtype", "dtype") if name in entry
    }
    for name, dtype in dtypes.items():
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{where}: {name} must be the name of a dtype of torch, got {entry[name]!r}")
    try:
        whole = Workload(
            entry["function"],
            [m] if isinstance(m, int) else m,
            entry["n"],
            entry["k"],
            entry.get("num_groups", 1),
            arguments=entry.get("arguments", {}),
            **dtypes,
        )
        return dataclasses.replace(whole, **_shares(whole, entry, ranks))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _shares(whole: Workload, entry: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The sizes of which each rank has a share."""
    divided = entry.get("divided", [])
    names = [divided] if isinstance(divided, str) else divided
    if not isinstance(names, list) or not all(name in ("n", "k") for name in names):
        raise ValueError(f'divided must be "n", "k" or a list of both, got {divided!r}')
    shares = {
        name: _share(name, getattr(whole, name), ranks) for name in names if name != "n" or "kv_heads" not in entry
    }
    if "kv_heads" in entry:
        shares["n"] = _share_of_heads(whole.n, entry["kv_heads"], ranks)
    if whole.dtype in FOUR_BIT_DTYPES and "n" in shares:
        shares["n"] = align(shares["n"], GROUP)  # servers pad experts to whole groups
    return shares


def _share(name: str, size: int, ranks: int) -> int:
    if size % ranks:
        raise ValueError(f"{name}={size} can't be divided among {ranks} ranks")
    return size // ranks


def _share_of_heads(n: int, kv_heads: Any, ranks: int) -> int:
    """A rank's columns of a projection to heads of q, k and v. Ranks beyond the number of heads of k have copies."""
    if not isinstance(kv_heads, list) or len(kv_heads) != 2:
        raise ValueError(f"kv_heads must be [number, width], got {kv_heads!r}")
    number, width = (check_int(f"kv_heads[{index}]", value, 1) for index, value in enumerate(kv_heads))
    if number % ranks and ranks % number:
        raise ValueError(f"{number} heads of keys can't be divided among {ranks} ranks")
    own = max(number // ranks, 1)
    return _share("n", n - 2 * number * width, ranks) + 2 * own * width

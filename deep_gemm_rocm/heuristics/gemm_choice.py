"""How a GEMM is computed: the choice that was measured to be the best, or else that of the least estimated time.

M may change from call to call, while weights stay the same. So choices are made for a whole block of M at once: what is
remembered for a weight is from which M on another choice is the quickest.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..problems.gemm_kind import GemmKind, changed
from ..problems.layout import ceil_div
from .cost import clocks_by_m, second_pass_clocks
from .forced import forced_choice
from .gemm_config import BLOCK_K_BYTES, GemmConfig
from .gemm_tiles import gemm_candidates
from .notes import noted
from .tables import Choice, GemmProblem, remembered, table, with_tail

_NUM_CUS = 304
_TILE_OF_SPLIT = 128
_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_LEAST_K_BLOCKS = 8  # of a part, or the second pass costs as much as the first
_BLOCK_OF_M = 1024  # for which choices are made at once

_ConfigsFor = Callable[[GemmProblem], Iterable[GemmConfig]]


@noted
def choose_gemm_config(
    kind: GemmKind,
    m: int,
    n: int,
    k: int,
    num_cus: int = _NUM_CUS,
    *,
    num_groups: int = 1,
    max_block_m: int = 256,
) -> GemmConfig:
    """The configuration that the table has for a problem; without one, the candidate of the least estimated time.

    Args:
        kind: what is computed; its ``k_tail`` is replaced by what ``k`` asks for.
        m, n, k: what is multiplied: [m, k] with [n, k], for each of the groups.
        num_cus: compute units that may be used.
        num_groups: how many groups there are that have ``m`` rows each and share no tiles.
        max_block_m: the most rows that a tile may have, at least 16.

    Raises:
        tables.TableError, OSError: ``DG_TUNED_TABLE`` names no good table.
        ForcedChoiceError: the ``forced`` configuration is not for such a problem.
    """
    choice = _forced(kind, k)
    if choice:
        return choice.config
    return _config(GemmProblem(with_tail(kind, k), m, n, k, num_cus, num_groups, max_block_m))


@noted
def choose_dense(kind: GemmKind, m: int, n: int, k: int, num_cus: int = _NUM_CUS) -> Choice:
    """The configuration of a dense problem, and into how many parts it splits K.

    With more than one, the configuration is for the parts. Arguments and errors are those of ``choose_gemm_config``.
    """
    choice = _forced(kind, k) or _dense_choice(GemmProblem(with_tail(kind, k), m, n, k, num_cus, 1, max_block_m=256))
    if choice.splits == 1:
        return choice
    of_parts = changed(choice.config.kind, grouping="split_k", sums_parts=False)
    return choice._replace(config=changed(choice.config, kind=of_parts))


def choose_k_splits(m: int, n: int, k_blocks: int) -> int:
    """Into how many parts to split K, so that tiles of [m, n] fill a whole MI300X.

    It depends on the problem only, and not on how many compute units may be used, since sums depend on it.

    Args:
        k_blocks: all of K, in blocks of 128 bytes.
    """
    return max(1, min(_NUM_CUS // max(_tiles_of_split(m, n), 1), k_blocks // _LEAST_K_BLOCKS))


def _candidates(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    return gemm_candidates(problem.kind, problem.max_block_m)


def ranked_choices(problem: GemmProblem, configs_for: _ConfigsFor = _candidates) -> list[Choice]:
    """The configurations with each number of splits that may be worth it, least estimated time first.

    Args:
        configs_for: gives the configurations to rank, for the problem and for its parts if K is split.
    """
    estimates = _estimates(problem, np.array([problem.m]), configs_for, may_split=True)
    return [choice for choice, _ in sorted(estimates, key=lambda estimate: estimate[1][0])]


def _estimates(
    problem: GemmProblem, m: NDArray[Any], configs_for: _ConfigsFor, *, may_split: bool
) -> list[tuple[Choice, NDArray[np.float64]]]:
    """All choices and their clocks for each of ``m``, in place of the problem's. Of equals the first is the best."""
    estimates = [(Choice(config), clocks_by_m(config, problem, m)) for config in configs_for(problem)]
    # K is split only where tiles leave CUs without work.
    few = m[m <= (_NUM_CUS - 1) // ceil_div(problem.n, _TILE_OF_SPLIT) * _TILE_OF_SPLIT]
    for splits in _splits_of(problem) if may_split and len(few) else ():
        parts, second_pass = problem.in_parts(splits), second_pass_clocks(few, problem.n, splits)
        for config in configs_for(parts):
            clocks = np.full(len(m), np.inf)
            clocks[: len(few)] = clocks_by_m(config, parts, few) + second_pass
            estimates.append((Choice(changed(config, kind=problem.kind), splits), clocks))
    return sorted(estimates, key=lambda estimate: -estimate[0].config.block_m * estimate[0].config.block_n)


def _splits_of(problem: GemmProblem) -> list[int]:
    """Numbers of parts of K to try. Parts must be long enough."""
    kind = problem.kind
    if kind.grouping != "dense" or not kind.can_split_k:
        return []
    k_blocks = ceil_div(problem.k * kind.element_bytes, BLOCK_K_BYTES)
    return [splits for splits in _SPLITS if k_blocks >= splits * _LEAST_K_BLOCKS]


def _tiles_of_split(m: int, n: int) -> int:
    return ceil_div(m, _TILE_OF_SPLIT) * ceil_div(n, _TILE_OF_SPLIT)


def _config(problem: GemmProblem) -> GemmConfig:
    whole_chip = problem._replace(num_cus=_NUM_CUS)
    choice = table().find(whole_chip) or _quickest(whole_chip)
    return _with_fewer_cus(choice.config, problem)


def _dense_choice(problem: GemmProblem) -> Choice:
    whole_chip = problem._replace(num_cus=_NUM_CUS)
    choice: Choice = table().find(whole_chip) or _quickest(whole_chip, may_split=True)
    computed = problem if choice.splits == 1 else problem.in_parts(choice.splits)
    return choice._replace(config=_with_fewer_cus(choice.config, computed))


def _with_fewer_cus(config: GemmConfig, problem: GemmProblem) -> GemmConfig:
    """The configuration that takes the place of the whole chip's. It deals K alike, since sums depend on that."""
    if problem.num_cus == _NUM_CUS:
        return config
    if all(candidate.waves_k != config.waves_k for candidate in _candidates(problem)):
        return config
    return _quickest(problem, waves_k=config.waves_k).config


def _quickest(problem: GemmProblem, *, may_split: bool = False, waves_k: int | None = None) -> Choice:
    """The choice of the least estimated time; of equals that with the largest tile.

    Args:
        may_split: whether K may be split.
        waves_k: that the configuration must have; None for any.
    """
    block = problem.m // _BLOCK_OF_M
    return _breakpoints(problem._replace(m=block * _BLOCK_OF_M), may_split, waves_k).choice(problem.m)


class _Breakpoints(NamedTuple):
    """The quickest choices for a block of M.

    Attributes:
        begins: from which M on each of the choices is the quickest.
    """

    begins: tuple[int, ...]
    choices: tuple[Choice, ...]

    def choice(self, m: int) -> Choice:
        return self.choices[bisect_right(self.begins, m) - 1]


@remembered
def _breakpoints(first: GemmProblem, may_split: bool, waves_k: int | None) -> _Breakpoints:
    """``_quickest`` for the block of M that begins with that of ``first``."""

    def configs_for(problem: GemmProblem) -> list[GemmConfig]:
        return [config for config in _candidates(problem) if waves_k in (None, config.waves_k)]

    m = np.arange(max(first.m, 1), first.m + _BLOCK_OF_M)
    estimates = _estimates(first, m, configs_for, may_split=may_split)
    quickest = np.argmin([clocks for _, clocks in estimates], axis=0)
    begins = np.flatnonzero(np.diff(quickest, prepend=-1))
    return _Breakpoints(tuple(m[begins].tolist()), tuple(estimates[index][0] for index in quickest[begins]))


def _forced(kind: GemmKind, k: int) -> Choice | None:
    """The forced choice, if there is one.

    Raises:
        ForcedChoiceError: it is not for a problem of this kind.
    """
    return forced_choice(Choice, lambda choice: _computes(choice.config.kind, with_tail(kind, k)), (kind, k))


def _computes(kind: GemmKind, wanted: GemmKind) -> bool:
    """Whether kernels of a kind compute what is wanted; those for K with a tail compute any K."""
    return kind == wanted or (kind.k_tail and dataclasses.replace(kind, k_tail=False) == wanted)

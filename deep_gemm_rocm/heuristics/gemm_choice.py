"""How a GEMM is computed: the choice that was measured to be the best, or else that of the least estimated time.

M may change from call to call, while weights stay the same. So choices are made for a whole block of M at once. For
each weight, the values of M are remembered from which on another choice is the fastest.

With ``set_batch_invariant``, all M share one order of additions along K, which depends only on the kind, N and K: the
one whose choices lose the least time for few rows. Tables and numbers of compute units then decide among choices of
this order.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..problems.gemm_kind import GemmKind
from ..problems.layout import ceil_div
from ..runtime import settings
from .choices import add_begins, collecting_begins, is_replaced, remembered
from .cost import clocks_by_m, second_pass_clocks
from .forced import forced_choice
from .gemm_config import BLOCK_K_BYTES, NUM_CUS, GemmConfig
from .gemm_problem import Choice, GemmProblem, KOrder, with_tail
from .gemm_table import TunedTable, table
from .gemm_tiles import gemm_candidates, is_for_one_round
from .notes import note_gemm

_TILE_OF_SPLIT = 128
_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_LEAST_K_BLOCKS = 8  # of a part of split-K; with fewer, the second kernel takes as long as the first
_BLOCK_OF_M = 1024  # for which choices are made at once
_MOST_BLOCKS = 8  # that are remembered of a problem
_FEW_ROWS = np.array([1, 16, 32, 48, 64, 96, 128])  # for which the order of additions for all M should cost little
# Times as long as the quickest choice.
_MAY_COST = 1.08
_WORTH_A_SECOND_LAUNCH = 1.2
_WORTH_MORE_PARTS = 1.08  # if there is a second launch anyway
_NO_PARTS = 1, 1
_PARTS_OF_WAVES = 4  # of K, with split-K over the waves of a workgroup

_ConfigsFor = Callable[[GemmProblem], Iterable[GemmConfig]]


def choose_gemm_config(
    kind: GemmKind,
    m: int,
    n: int,
    k: int,
    num_cus: int = NUM_CUS,
    *,
    num_groups: int = 1,
    max_block_m: int = 256,
    max_block_n: int = 256,
) -> GemmConfig:
    """The configuration that the table has for a problem; without one, the candidate of the least estimated time.

    Args:
        kind: what is computed; its ``k_tail`` is replaced by what ``k`` asks for.
        m, n, k: what is multiplied: [m, k] with [n, k], for each of the groups.
        num_cus: compute units that may be used.
        num_groups: how many groups there are that have ``m`` rows each and share no tiles.
        max_block_m: the most rows that a tile may have, at least 16.
        max_block_n: the most columns of output that a tile may have.

    Raises:
        ValueError: all tiles have more columns than ``max_block_n``.
        TableError, OSError: ``DG_TUNED_TABLE`` names no good table.
        ForcedChoiceError: the ``forced`` configuration is not for such a problem.
    """
    return gemm_choices(kind, n, k, num_cus, num_groups, max_block_m, max_block_n)(m).config


def choose_dense(kind: GemmKind, m: int, n: int, k: int, num_cus: int = NUM_CUS) -> Choice:
    """The configuration of a dense problem, and into how many parts it splits K.

    Arguments and errors are those of ``choose_gemm_config``.
    """
    return dense_choices(kind, n, k, num_cus)(m)


def gemm_choices(
    kind: GemmKind,
    n: int,
    k: int,
    num_cus: int = NUM_CUS,
    num_groups: int = 1,
    max_block_m: int = 256,
    max_block_n: int = 256,
) -> ChoicesByM:
    """``choose_gemm_config`` for any ``m``."""
    k_order = _NO_PARTS if settings.values().batch_invariant else None
    problem = GemmProblem(with_tail(kind, k), 0, n, k, num_cus, num_groups, max_block_m, k_order, max_block_n)
    return _choices_by_m(_config, problem)


def dense_choices(
    kind: GemmKind, n: int, k: int, num_cus: int = NUM_CUS, *, scale_rows_are_apart: bool = False
) -> ChoicesByM:
    """``choose_dense`` for any ``m``; see ``GemmProblem`` for ``scale_rows_are_apart``."""
    kind = with_tail(kind, k)
    k_order = _order_for_all_m(kind, n, k) if settings.values().batch_invariant else None
    problem = GemmProblem(kind, 0, n, k, num_cus, 1, 256, k_order, scale_rows_are_apart=scale_rows_are_apart)
    return _choices_by_m(_dense_choice, problem)


def choose_k_splits(m: int, n: int, k_blocks: int) -> int:
    """Into how many parts to split K, so that tiles of [m, n] fill a whole MI300X.

    It depends only on the problem, not on how many compute units may be used, so that sums don't depend on these. With
    ``set_batch_invariant``, the number is the one for the rows of a single tile.

    Args:
        k_blocks: all of K, in blocks of 128 bytes.
    """
    rows = _TILE_OF_SPLIT if settings.values().batch_invariant else m
    return max(1, min(NUM_CUS // max(_tiles_of_split(rows, n), 1), k_blocks // _LEAST_K_BLOCKS))


def _candidates(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    parts_k = 1 if problem.k_order is None else problem.k_order[1]
    candidates = gemm_candidates(
        problem.kind, problem.max_block_m, parts_k, problem.max_block_n, problem.scale_rows_are_apart
    )
    return candidates if problem.k_order is None else candidates + _tuned_tiles(problem)


def _tuned_tiles(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    """Tiles in parts of K that were measured to be the best for the weight at some M. Their order may suit all M."""
    found = table()
    return tuple(tile for tile in found.tiles(problem) if tile.waves_k > 1) if isinstance(found, TunedTable) else ()


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
    """All choices and their clocks for each of ``m``, in place of the problem's."""
    estimates = [(Choice(config), _clocks_by_m(config, problem, m)) for config in configs_for(problem)]
    # K is split only where tiles leave CUs without work, or for the sake of an order.
    must_split = problem.k_order is not None and problem.k_order[0] > 1
    few = m[must_split | (m <= (NUM_CUS - 1) // ceil_div(problem.n, _TILE_OF_SPLIT) * _TILE_OF_SPLIT)]
    for splits in _splits_of(problem) if may_split and len(few) else ():
        parts = problem.in_parts(splits)
        second_pass = second_pass_clocks(few, parts.n, splits)
        for config in configs_for(parts):
            clocks = np.full(len(m), np.inf)
            clocks[: len(few)] = clocks_by_m(config, parts, few) + second_pass
            estimates.append((Choice(config, splits), clocks))
    if problem.k_order is not None:
        estimates = [estimate for estimate in estimates if estimate[0].k_order == problem.k_order]
    return estimates


def _clocks_by_m(config: GemmConfig, problem: GemmProblem, m: NDArray[Any]) -> NDArray[np.float64]:
    """``clocks_by_m``, infinite where a configuration isn't to be chosen."""
    clocks = clocks_by_m(config, problem, m)
    if is_for_one_round(config):
        tiles = np.ceil(m / config.block_m) * ceil_div(problem.n, config.output_n)
        clocks[tiles > NUM_CUS] = np.inf
    return clocks


def _splits_of(problem: GemmProblem) -> list[int]:
    """Numbers of parts of K to try. Parts must be long enough."""
    kind = problem.kind
    if kind.grouping != "dense" or not kind.can_split_k:
        return []
    if kind.parts > 1 and not kind.is_quantised:
        return []  # there are tiles for few rows, and parts of a split K would be twice the bytes of other kinds'
    k_blocks = ceil_div(problem.k * kind.element_bytes, BLOCK_K_BYTES)
    splits_of_k = [splits for splits in _SPLITS if k_blocks >= splits * _LEAST_K_BLOCKS]
    # Quantised results need tiles of 128 columns. A single part may have smaller ones, as a second kernel quantises.
    return [1, *splits_of_k] if kind.is_quantised else splits_of_k


def _tiles_of_split(m: int, n: int) -> int:
    return ceil_div(m, _TILE_OF_SPLIT) * ceil_div(n, _TILE_OF_SPLIT)


class _Breakpoints(NamedTuple):
    """Choices for a block of M.

    Attributes:
        begins: from which M on each of the choices is made.
    """

    begins: tuple[int, ...]
    choices: tuple[Choice, ...]

    def choice(self, m: int) -> Choice:
        add_begins(self.begins)
        return self.choices[bisect_right(self.begins, m) - 1]


class ChoicesByM:
    """The choices for problems that differ only in M, of the session that made this object."""

    def __init__(self, choose: Callable[[GemmProblem], Choice], problem: GemmProblem) -> None:
        """
        Args:
            choose: chooses for a problem.
            problem: one with any M.

        Raises:
            ForcedChoiceError: the forced choice is not for such problems.
        """
        self._choose, self._problem = choose, problem
        self._forced = forced_choice(Choice, lambda forced: _computes(forced.kind, problem.kind), problem)
        self._is_replaced = is_replaced()
        self._blocks: dict[int, _Breakpoints] = {}

    def __call__(self, m: int) -> Choice:
        """The choice for ``m``; errors are those of ``choose_gemm_config``."""
        block = self._blocks.get(m // _BLOCK_OF_M)
        choice = self._first_of_block(m) if block is None else block.choice(m)
        note_gemm(self._problem, m, choice)
        return choice

    def _first_of_block(self, m: int) -> Choice:
        if self._forced is not None:
            return self._forced
        if self._is_replaced:  # by something that wants to be asked for each problem
            return self._choose(self._problem._replace(m=m))
        number = m // _BLOCK_OF_M
        block = self._choices_of_block(number * _BLOCK_OF_M)
        if len(self._blocks) == _MOST_BLOCKS:
            self._blocks = {}  # other threads may be reading what was there
        self._blocks[number] = block
        return block.choice(m)

    def _choices_of_block(self, begin: int) -> _Breakpoints:
        block = range(max(begin, 1), begin + _BLOCK_OF_M)
        chosen: dict[int, Choice] = {}
        with collecting_begins() as begins:
            begins.add(block[0])
            while more := begins.intersection(block) - chosen.keys():
                chosen |= {m: self._choose(self._problem._replace(m=m)) for m in more}
        return _Breakpoints(*zip(*sorted(chosen.items()), strict=True))


_choices_by_m = remembered(ChoicesByM)


def _config(problem: GemmProblem) -> Choice:
    if not _candidates(problem):
        least = min(config.output_n for config in _candidates(problem._replace(max_block_n=256)))
        raise ValueError(
            f"max_block_n must be at least {least}, the fewest columns of a tile, got {problem.max_block_n}"
        )
    whole_chip = problem._replace(num_cus=NUM_CUS)
    choice: Choice = table().find(whole_chip) or _quickest(whole_chip)
    return Choice(_with_fewer_cus(choice.config, problem))


def _dense_choice(problem: GemmProblem) -> Choice:
    whole_chip = problem._replace(num_cus=NUM_CUS)
    choice: Choice = table().find(whole_chip) or _quickest(whole_chip, may_split=True)
    computed = problem.in_parts(choice.splits) if choice.is_in_parts else problem
    return choice._replace(config=_with_fewer_cus(choice.config, computed))


def _with_fewer_cus(config: GemmConfig, problem: GemmProblem) -> GemmConfig:
    """The configuration that replaces the whole chip's. It splits K in the same way, so that sums are the same."""
    if problem.num_cus == NUM_CUS:
        return config
    alike = problem._replace(k_order=Choice(config).k_order)
    if all(Choice(candidate).k_order != alike.k_order for candidate in _candidates(problem)):
        return config
    return _quickest(alike).config


def _quickest(problem: GemmProblem, *, may_split: bool = False) -> Choice:
    """The choice of the least estimated time; of equals that with the largest tile.

    Args:
        may_split: whether K may be split.
    """
    block = problem.m // _BLOCK_OF_M
    return _breakpoints(problem._replace(m=block * _BLOCK_OF_M), may_split).choice(problem.m)


def _candidates_of_any_order(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    """The candidates among which an order of additions along K is chosen. ``_candidates`` keeps to that order."""
    return gemm_candidates(problem.kind, problem.max_block_m, _PARTS_OF_WAVES) + _tuned_tiles(problem)


@remembered
def _order_for_all_m(kind: GemmKind, n: int, k: int) -> KOrder:
    """The order of additions along K that costs few rows little, compared with the quickest choice for each M.

    With many rows, more parts take longer, above all with split-K over workgroups, which takes a second launch. So
    orders are tried from few parts to many, and the first one that costs few rows little enough is taken.
    """
    problem = GemmProblem(kind, 1, n, k, NUM_CUS, 1, max_block_m=256)
    clocks_of_order: dict[KOrder, list[NDArray[np.float64]]] = {}
    for choice, clocks in _estimates(problem, _FEW_ROWS, _candidates_of_any_order, may_split=True):
        clocks_of_order.setdefault(choice.k_order, []).append(clocks)
    least = {order: np.min(clocks, axis=0) for order, clocks in clocks_of_order.items()}
    quickest = np.min(list(least.values()), axis=0)
    costs = {order: float(np.max(clocks / quickest)) for order, clocks in least.items()}
    of_whole_k = {order: cost for order, cost in costs.items() if order[0] == 1}
    least_gain = _WORTH_MORE_PARTS if kind.is_quantised else _WORTH_A_SECOND_LAUNCH
    if min(of_whole_k.values()) <= least_gain:
        costs = of_whole_k
    return min(order for order, cost in costs.items() if cost <= max(min(costs.values()), _MAY_COST))


@remembered
def _breakpoints(first: GemmProblem, may_split: bool) -> _Breakpoints:
    """``_quickest`` for the block of M that begins with that of ``first``."""
    m = np.arange(max(first.m, 1), first.m + _BLOCK_OF_M)
    estimates = _estimates(first, m, _candidates, may_split=may_split)
    quickest = np.argmin([clocks for _, clocks in estimates], axis=0)
    begins = np.flatnonzero(np.diff(quickest, prepend=-1))
    return _Breakpoints(tuple(m[begins].tolist()), tuple(estimates[index][0] for index in quickest[begins]))


def _computes(kind: GemmKind, wanted: GemmKind) -> bool:
    """Whether kernels of a kind compute what is wanted; those for K with a tail compute any K."""
    return kind == wanted or (kind.k_tail and dataclasses.replace(kind, k_tail=False) == wanted)

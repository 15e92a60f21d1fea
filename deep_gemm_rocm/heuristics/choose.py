"""Which configuration a problem runs: the one that was measured to be the best, or else that of the least estimated
time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

from ..layout import ceil_div
from .cost import estimated_clocks, second_pass_clocks
from .forced import forced_choice
from .gemm_config import BLOCK_K_BYTES, GemmConfig, GemmKind
from .tuned import Choice, GemmProblem, asks_tables, table, with_tail

# From the smallest tile to the largest. Small tiles spread a small M over many CUs; large ones load fewer bytes for
# each product.
_SMALL = (
    GemmConfig(block_m=16, block_n=64, waves_m=1, waves_n=4, num_stages=4),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=4, num_stages=4),
)
# Where waves may load what they multiply themselves, and not through LDS: those that have columns enough for all CUs,
# and wait for nobody,
_ALONE = (
    GemmConfig(block_m=16, block_n=32, waves_m=1, waves_n=2, num_stages=3, schedule="alone"),
    GemmConfig(block_m=64, block_n=32, waves_m=1, waves_n=1, num_stages=3, schedule="alone"),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=2, num_stages=3, schedule="alone"),
)
# (the same where a wave needs two MFMA tiles side by side)
_ALONE_OF_TWO_PARTS = (
    GemmConfig(block_m=16, block_n=64, waves_m=1, waves_n=2, num_stages=3, schedule="alone"),
    *_ALONE[1:],
)
# or deal K among them, which saves a second pass. Of 128x7168 there are 300 tiles of 64x48, for 304 CUs.
_ALONE_DEALING_K = (
    GemmConfig(block_m=16, block_n=16, waves_m=1, waves_n=1, num_stages=3, schedule="alone", waves_k=4),
    GemmConfig(block_m=16, block_n=32, waves_m=1, waves_n=1, num_stages=3, schedule="alone", waves_k=4),
    GemmConfig(block_m=32, block_n=32, waves_m=1, waves_n=1, num_stages=2, schedule="alone", waves_k=4),
    GemmConfig(block_m=64, block_n=32, waves_m=1, waves_n=1, num_stages=2, schedule="alone", waves_k=4),
    GemmConfig(block_m=64, block_n=48, waves_m=1, waves_n=1, num_stages=2, schedule="alone", waves_k=4),
    GemmConfig(block_m=64, block_n=64, waves_m=1, waves_n=1, num_stages=2, schedule="alone", waves_k=4),
)
# Where a wave needs two MFMA tiles side by side, or a tile 128 columns.
_SMALL_WIDE = (
    GemmConfig(block_m=16, block_n=128, waves_m=1, waves_n=4, num_stages=4),
    GemmConfig(block_m=32, block_n=128, waves_m=1, waves_n=4, num_stages=4),
)
# For outputs of few columns, whose cost is to read a.
_NARROW = (
    GemmConfig(block_m=16, block_n=32, waves_m=1, waves_n=2, num_stages=4),
    GemmConfig(block_m=64, block_n=32, waves_m=4, waves_n=1, num_stages=4),
)
# Of the tallest 16 rows of tiles share columns of b in L2: of a short K that is 9% faster, of others as fast as 8.
_LARGE = (
    GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=4, num_stages=3, schedule="pingpong"),
    GemmConfig(block_m=128, block_n=128, waves_m=4, waves_n=2, num_stages=3, schedule="pingpong"),
    GemmConfig(block_m=256, block_n=128, waves_m=4, waves_n=2, num_stages=3, schedule="pingpong", group_m=16),
)
# Where waves alone take up to 64 rows.
_LARGER = _LARGE[1:]
# Tiles of 192 and 224 rows take more time for each row than those of 256, but of 1280x4096 there is one for each of 304
# CUs, of 4096x4096 there are two.
_192_ROWS = GemmConfig(block_m=192, block_n=128, waves_m=4, waves_n=2, num_stages=3, schedule="pingpong")
_LARGER_OF_DENSE = (
    *_LARGER[:-1],
    _192_ROWS,
    GemmConfig(block_m=224, block_n=128, waves_m=2, waves_n=4, num_stages=3, schedule="pingpong"),
    _LARGER[-1],
)
# Where tiles of 256 rows would reach into the next group, or compute more rows of padding.
_LARGE_OF_GROUPS = (
    *_LARGE[:-1],
    _192_ROWS,
    GemmConfig(block_m=128, block_n=256, waves_m=2, waves_n=4, num_stages=3, schedule="pingpong"),
)
# Of kinds for which the other schedules have no room.
_LARGE_MULTISTAGE = (
    GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=4, num_stages=4),
    GemmConfig(block_m=128, block_n=128, waves_m=2, waves_n=4, num_stages=3),
    GemmConfig(block_m=256, block_n=128, waves_m=4, waves_n=2, num_stages=2),
)
# Where a tile needs 128 columns of each of two parts.
_WIDEST = (
    GemmConfig(block_m=16, block_n=256, waves_m=1, waves_n=8, num_stages=2),
    GemmConfig(block_m=32, block_n=256, waves_m=1, waves_n=8, num_stages=2),
    GemmConfig(block_m=64, block_n=256, waves_m=2, waves_n=4, num_stages=2),
    GemmConfig(block_m=128, block_n=256, waves_m=2, waves_n=4, num_stages=2),
)

_NUM_CUS = 304
_TILE_OF_SPLIT = 128
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_LEAST_K_BLOCKS = 8  # of a part, or the second pass costs as much as the first

_SUMS_OF_WAVE = 128 * 64  # which leaves half of a lane's registers for everything else


def gemm_candidates(kind: GemmKind, max_block_m: int = 256) -> tuple[GemmConfig, ...]:
    """The configurations that ``choose_gemm_config`` chooses from."""
    of_groups = kind.grouping in ("contiguous", "psum", "masked")
    if kind.sums_squares:
        configs: tuple[GemmConfig, ...] = _NARROW
    elif kind.parts == 2 and kind.is_quantised:
        configs = _WIDEST
    elif kind.is_quantised or not kind.is_k_major or kind.grouping in ("summed", "k_grouped"):
        small = _SMALL if kind.parts == 1 and not kind.is_quantised else _SMALL_WIDE
        if kind.grouping == "summed" or kind.b_major == "shuffled":
            configs = small + _LARGE_MULTISTAGE
        else:
            configs = small + (_LARGE_OF_GROUPS if of_groups and not kind.is_quantised else _LARGE)
    elif kind.grouping in ("dense", "split_k"):
        configs = _of_dense(kind)
    elif of_groups and max_block_m < 128:
        configs = _alone(kind) + _LARGE_OF_GROUPS
    elif of_groups:
        # 16 rows save a tile of 32 little, for which there would be one kernel more.
        configs = _alone(kind)[1:] + _LARGE_OF_GROUPS[1:]
    else:
        configs = _alone(kind) + _LARGER
    largest = min(max_block_m, 128) if kind.grouping == "contiguous" else max_block_m
    candidates = [dataclasses.replace(config, kind=kind) for config in configs if config.block_m <= largest]
    of_other_kernels = {config.taller for config in candidates}
    return tuple(config for config in candidates if config not in of_other_kernels)


def _of_dense(kind: GemmKind) -> tuple[GemmConfig, ...]:
    """Of dense problems, and of parts of their K."""
    large = _LARGER_OF_DENSE if kind.parts == 1 and kind.scaling != "vectors" else _LARGER
    configs = _alone(kind) + _fitting(kind, _ALONE_DEALING_K) + large
    return tuple(config for config in configs if kind.grouping == "dense" or _may_split_k(config))


def _alone(kind: GemmKind) -> tuple[GemmConfig, ...]:
    """Of waves with rows and columns of their own; first the tile of 16 rows."""
    return _fitting(kind, _ALONE if kind.parts == 1 else _ALONE_OF_TWO_PARTS)


def _fitting(kind: GemmKind, alone: tuple[GemmConfig, ...]) -> tuple[GemmConfig, ...]:
    """Without those that lack registers for scales of columns, or a second MFMA tile beside the first, if need be."""
    fitting = []
    for config in alone:
        with contextlib.suppress(ValueError):
            fitting.append(dataclasses.replace(config, kind=kind))
    return tuple(fitting)


def _may_split_k(config: GemmConfig) -> bool:
    """Not where waves have columns of their own, for K is split where these aren't enough; nor with tiles that
    fill a round of the CUs or two where others don't: with parts of K any others do."""
    has_columns = config.schedule == "alone" and config.waves_k == 1
    is_for_few_rounds = config.block_m in (192, 224) or config.block_n == 48
    return not has_columns and not is_for_few_rounds


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
    """The configuration that was measured to be the best for a problem, see ``tuned.table``; where none was, the one of
    ``gemm_candidates`` that takes the fewest estimated clocks.

    Args:
        kind: what is computed; its ``k_tail`` is replaced by what ``k`` asks for.
        m, n, k: what is multiplied: [m, k] with [n, k], for each of the groups.
        num_cus: compute units that may be used.
        num_groups: how many groups there are that have ``m`` rows each and share no tiles.
        max_block_m: the most rows that a tile may have, at least 16.

    Raises:
        tuned.TableError, OSError: ``DG_TUNED_TABLE`` names no good table.
        ForcedChoiceError: the ``forced`` configuration is not for such a problem.
    """
    choice = _forced(kind, k)
    if choice:
        return choice.config
    return _choose_gemm_config(kind, m, n, k, num_cus, num_groups, max_block_m)


@asks_tables
@functools.lru_cache(maxsize=65536)
def _choose_gemm_config(
    kind: GemmKind, m: int, n: int, k: int, num_cus: int, num_groups: int, max_block_m: int
) -> GemmConfig:
    problem = GemmProblem(with_tail(kind, k), m, n, k, _NUM_CUS, num_groups, max_block_m)
    found = table().find(problem)
    whole = found.config if found else _least_estimated(gemm_candidates(problem.kind, max_block_m), problem)
    return _with_fewer_cus(whole, problem._replace(num_cus=num_cus))


def _forced(kind: GemmKind, k: int) -> Choice | None:
    """The forced choice, if there is one.

    Raises:
        ForcedChoiceError: it is not for a problem of this kind.
    """
    return forced_choice(Choice, lambda choice: _computes(choice.config.kind, with_tail(kind, k)), (kind, k))


def _computes(kind: GemmKind, wanted: GemmKind) -> bool:
    """Whether kernels of a kind compute what is wanted; those for K with a tail compute any K."""
    return kind == wanted or (kind.k_tail and dataclasses.replace(kind, k_tail=False) == wanted)


def _with_fewer_cus(whole: GemmConfig, problem: GemmProblem) -> GemmConfig:
    """What takes the place of the whole chip's configuration: one that deals K alike, for sums depend on it."""
    if problem.num_cus == _NUM_CUS:
        return whole
    candidates = gemm_candidates(problem.kind, problem.max_block_m)
    return _least_estimated([config for config in candidates if config.waves_k == whole.waves_k] or [whole], problem)


def _least_estimated(configs: Iterable[GemmConfig], problem: GemmProblem) -> GemmConfig:
    """Of equals the largest tile."""
    return min(configs, key=lambda config: (estimated_clocks(config, problem), -config.block_m * config.block_n))


def legal_configs(problem: GemmProblem) -> list[GemmConfig]:
    """Every configuration that can be compiled for the problem, its tiles not much larger than need be."""
    found = []
    for (block_m, block_n), (waves_m, waves_n, waves_k), (schedule, stages, producers) in itertools.product(
        itertools.product((16, 32, 64, 128, 256), (16, 32, 48, 64, 128, 256)),
        ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 8, 1), (2, 4, 1), (4, 2, 1), (1, 1, 2),
         (1, 1, 4), (1, 1, 8)),
        (("multistage", 2, 0), ("multistage", 3, 0), ("multistage", 4, 0), ("pingpong", 3, 0), ("producer", 3, 4),
         ("alone", 2, 0), ("alone", 3, 0), ("alone", 4, 0)),
    ):  # fmt: skip
        if block_m > max(16, min(problem.max_block_m, 2 * problem.m)) or block_n > max(32, 2 * problem.n):
            continue
        with contextlib.suppress(ValueError):
            config = GemmConfig(
                block_m, block_n, waves_m, waves_n, stages, schedule, 16, producers, waves_k, problem.kind
            )
            if config.wave_m * config.wave_n <= _SUMS_OF_WAVE:
                found.append(config)
    return found


def choose_dense(kind: GemmKind, m: int, n: int, k: int, num_cus: int = _NUM_CUS) -> Choice:
    """The configuration of a dense problem, and into how many parts it splits K; arguments and errors are those of
    ``choose_gemm_config``."""
    choice = _forced(kind, k)
    if choice is None:
        return _choose_dense(kind, m, n, k, num_cus)
    if choice.splits == 1:
        return choice
    of_parts = dataclasses.replace(choice.config.kind, grouping="split_k")
    return choice._replace(config=dataclasses.replace(choice.config, kind=of_parts))


@asks_tables
@functools.lru_cache(maxsize=65536)
def _choose_dense(kind: GemmKind, m: int, n: int, k: int, num_cus: int) -> Choice:
    splits = choose_dense_splits(kind, m, n, k)
    if splits == 1:
        return Choice(choose_gemm_config(kind, m, n, k, num_cus))
    problem = GemmProblem(with_tail(kind, k), m, n, k, _NUM_CUS, 1, max_block_m=256)
    found = table().find(problem)
    of_parts = dataclasses.replace(kind, grouping="split_k")
    if not found:
        return Choice(choose_gemm_config(of_parts, m, n, k, num_cus, num_groups=splits), splits)
    parts = problem._replace(kind=with_tail(of_parts, k), num_cus=num_cus, num_groups=splits)
    return Choice(_with_fewer_cus(dataclasses.replace(found.config, kind=parts.kind), parts), splits)


def choose_dense_splits(kind: GemmKind, m: int, n: int, k: int) -> int:
    """Into how many parts to split K of a dense problem: more than one where the sum of the parts is worth its launch.

    As ``choose_k_splits``, it doesn't depend on how many compute units may be used.
    """
    problem = GemmProblem(with_tail(kind, k), m, n, k, _NUM_CUS, 1, max_block_m=256)
    found = table().find(problem)
    return found.splits if found else ranked_choices(problem, gemm_candidates(problem.kind))[0].splits


def ranked_choices(problem: GemmProblem, configs: Sequence[GemmConfig]) -> list[Choice]:
    """The configurations with each number of splits that may be worth it, least estimated time first."""
    kind, m, n, k, *_ = problem
    tiles = ceil_div(m, _TILE_OF_SPLIT) * ceil_div(n, _TILE_OF_SPLIT)
    computes_sums = kind.activation == "identity" and not kind.is_quantised and not kind.skips_head_mid
    k_blocks = ceil_div(k * kind.element_bytes, BLOCK_K_BYTES)
    clocks: dict[Choice, float] = {}
    for splits in _SPLITS:
        if splits == 1:
            clocks |= {Choice(config): estimated_clocks(config, problem) for config in configs}
        elif kind.grouping == "dense" and computes_sums and tiles < _NUM_CUS and k_blocks >= splits * _LEAST_K_BLOCKS:
            of_parts = dataclasses.replace(kind, grouping="split_k", d_type="f32", accumulate=False, bias="none")
            parts, second_pass = problem._replace(kind=of_parts, num_groups=splits), second_pass_clocks(m, n, splits)
            for config in filter(_may_split_k, configs):
                first_pass = estimated_clocks(dataclasses.replace(config, kind=of_parts), parts)
                clocks[Choice(config, splits)] = first_pass + second_pass
    return sorted(clocks, key=lambda choice: (clocks[choice], -choice.config.block_m * choice.config.block_n))


def choose_k_splits(m: int, n: int, k_blocks: int) -> int:
    """Into how many parts to split K, so that tiles of [m, n] fill a whole MI300X.

    It depends on the problem only, and not on how many compute units may be used, since sums depend on it.

    Args:
        k_blocks: all of K, in blocks of 128 bytes.
    """
    tiles = ceil_div(m, _TILE_OF_SPLIT) * ceil_div(n, _TILE_OF_SPLIT)
    return max(1, min(_NUM_CUS // max(tiles, 1), k_blocks // _LEAST_K_BLOCKS))

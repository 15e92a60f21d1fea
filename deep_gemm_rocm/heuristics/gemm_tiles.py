"""Configurations of GEMM: those that the heuristic chooses from for each kind, and all that can be compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools

from ..problems.gemm_kind import GemmKind
from .gemm_config import GemmConfig
from .gemm_problem import GemmProblem

_SUMS_OF_WAVE = 128 * 64  # of results; these take half of a lane's registers


def _staged(block_m: int, block_n: int, waves_m: int, waves_n: int, num_stages: int) -> GemmConfig:
    return GemmConfig(block_m, block_n, waves_m, waves_n, num_stages)


def _alone(block_m: int, block_n: int, num_stages: int, waves_n: int = 1, waves_k: int = 1) -> GemmConfig:
    return GemmConfig(block_m, block_n, 1, waves_n, num_stages, "alone", waves_k=waves_k)


def _pingpong(block_m: int, block_n: int, waves_m: int, waves_n: int, group_m: int = 8) -> GemmConfig:
    return GemmConfig(block_m, block_n, waves_m, waves_n, 3, "pingpong", group_m=group_m)


# Small tiles spread a small M over many CUs; large ones load fewer bytes for each product.

# Tiles through LDS, for operands that the ``alone`` schedule can't load. If b has two parts, a wave needs an MFMA tile
# of each; if the output is quantised, a tile needs 128 columns.
_STAGED = (_staged(16, 64, 1, 4, 4), _staged(32, 64, 1, 4, 4), _staged(64, 64, 2, 2, 4))
_STAGED_WIDE = (_staged(16, 128, 1, 4, 4), _staged(32, 128, 1, 4, 4))
_STAGED_WIDEST = (
    _staged(16, 256, 1, 8, 2),
    _staged(32, 256, 1, 8, 2),
    _staged(64, 256, 2, 4, 2),
    _staged(128, 256, 2, 4, 2),
)
# For outputs with few columns, where reading a takes most of the time.
_STAGED_NARROW = (_staged(16, 32, 1, 2, 4), _staged(64, 32, 4, 1, 4))
# For kinds that ping-pong does not compute.
_STAGED_LARGE = (_staged(64, 128, 2, 4, 4), _staged(128, 128, 2, 4, 3), _staged(256, 128, 4, 2, 2))

# ``alone`` tiles whose waves have columns of their own, where there are enough columns for all CUs.
_ALONE_16_ROWS = (_alone(16, 32, 3, waves_n=2),)
_ALONE_16_ROWS_OF_TWO_PARTS = (_alone(16, 64, 3, waves_n=2),)
_ALONE = (_alone(64, 32, 3), _alone(32, 64, 3, waves_n=2))

# Operands don't go through LDS, so one round of these takes less time and energy than one of ping-pong tiles of
# 128x128: 1024x4608 has 288 of them. Groups of uneven sizes compute less padding than in 128 rows.
_ALONE_WIDE = (_alone(64, 256, 2, waves_n=4),)
# 512x7168 has 304 of these, for 304 CUs.
_ALONE_192 = (_alone(64, 192, 2, waves_n=4),)

# ``alone`` tiles with split-K over the waves of a workgroup, where there are fewer columns. It saves the second launch
# of split-K over workgroups.
_SPLIT_K_OF_16_ROWS = (_alone(16, 16, 3, waves_k=4), _alone(16, 32, 3, waves_k=4))
_SPLIT_K = (
    *_SPLIT_K_OF_16_ROWS,
    _alone(32, 32, 2, waves_k=4),
    _alone(64, 32, 2, waves_k=4),
    _alone(64, 64, 2, waves_k=4),
)
# 128x7168 has 300 tiles of 64x48, for 304 CUs. 128x2560 has 240 of 48x32, and 96x4096 has 256.
_SPLIT_K_IN_ONE_ROUND = (_alone(64, 48, 2, waves_k=4), _alone(48, 32, 2, waves_k=4))
# The same with 512 registers a lane. Larger tiles load fewer bytes from L2 for each product, so they take less time and
# energy where ping-pong tiles would leave CUs without work: 1024x2112 has 304 tiles of 64x112, 1024x1536 264 of 96x64.
_SPLIT_K_IN_LARGE_TILES = (
    _alone(64, 80, 2, waves_k=4),
    _alone(96, 64, 2, waves_k=4),
    _alone(64, 112, 2, waves_k=4),
    _alone(96, 96, 2, waves_k=4),
)

# Ping-pong tiles for many rows.
_PINGPONG_64 = (_pingpong(64, 128, 2, 4),)
_PINGPONG_128 = (_pingpong(128, 128, 4, 2),)
# For short groups, which have many scales: waves have few columns, and many rows that share the columns' scales.
_PINGPONG_128_OF_SHORT_GROUPS = (_pingpong(128, 128, 2, 4),)
_PINGPONG_192_OF_SHORT_GROUPS = (_pingpong(192, 128, 2, 4),)
# For groups of 129 to 160 rows, or 257 to 320: 128 rows would take another tile, which is mostly padding.
_PINGPONG_160 = (_pingpong(160, 128, 2, 4),)
_PINGPONG_192 = (_pingpong(192, 128, 4, 2),)
_PINGPONG_224 = (_pingpong(224, 128, 2, 4),)
# 16 rows of these tiles share columns of b in L2, in place of 8. That is 9% faster where K is short.
_PINGPONG_256 = (_pingpong(256, 128, 4, 2, group_m=16),)
# 1024x7168 and 2048x7168 have 300 and two times 300 of these. They widen four bits half as often as 128x192 would.
_PINGPONG_256X96 = (_pingpong(256, 96, 4, 2),)
_PINGPONG_128X192 = (_pingpong(128, 192, 2, 4),)
_PINGPONG_128X256 = (_pingpong(128, 256, 2, 4),)


@functools.cache
def gemm_candidates(
    kind: GemmKind,
    max_block_m: int = 256,
    parts_k: int = 1,
    max_block_n: int = 256,
    scale_rows_are_apart: bool = False,
) -> tuple[GemmConfig, ...]:
    """The configurations that the heuristic chooses from.

    Args:
        parts_k: if more than 1, there are tiles with so many parts of K besides.
        scale_rows_are_apart: see ``GemmProblem``.
    """
    candidates = []
    tiles = _tiles(kind, max_block_m)
    if scale_rows_are_apart and _PINGPONG_224[0] in tiles:
        # Such scales cost a wave of 112 rows more than a wave of 64 rows loses otherwise; see docs/kernels.md.
        tiles = tuple(tile for tile in tiles if tile not in _PINGPONG_224) + _PINGPONG_128X256
    for tile, parts in (*((tile, 1) for tile in tiles), *((tile, parts_k) for tile in tiles if parts_k > 1)):
        # Some can't be compiled: ``alone`` tiles lack registers for many scales of columns, large tiles for parts_k.
        with contextlib.suppress(ValueError):
            candidates.append(dataclasses.replace(tile, kind=kind, parts_k=parts))
    return tuple(config for config in candidates if config.block_m <= max_block_m and config.output_n <= max_block_n)


def _tiles(kind: GemmKind, max_block_m: int) -> tuple[GemmConfig, ...]:
    if kind.sums_squares:
        return _STAGED_NARROW
    if kind.widens_b:
        return _tiles_of_four_bits(kind)
    if kind.is_quantised or not kind.is_k_major or kind.grouping in ("summed", "k_grouped"):
        return _tiles_through_lds(kind)
    of_16_rows = _ALONE_16_ROWS if kind.parts == 1 else _ALONE_16_ROWS_OF_TWO_PARTS
    # Experts with few rows take several rounds of such tiles, and memory is idle between rounds. Nor do they have
    # registers for the indices of gathered rows.
    wide = () if kind.grouping == "psum" else _ALONE_WIDE
    if kind.has_groups_of_rows and max_block_m < 128:
        return of_16_rows + _ALONE + wide + _PINGPONG_64
    if kind.has_groups_of_rows:
        # 16 rows take hardly less time than 32, and would be one kernel more.
        return _ALONE + wide + _large_tiles_of_groups(kind)
    if kind.grouping == "batched":
        return of_16_rows + _ALONE + _PINGPONG_128 + _PINGPONG_256
    if kind.grouping == "split_k":
        return _SPLIT_K + _PINGPONG_128 + _PINGPONG_256
    small = of_16_rows + _ALONE + _SPLIT_K + _SPLIT_K_IN_ONE_ROUND
    if kind.scaling == "vectors":
        return small + _PINGPONG_128 + _PINGPONG_256
    if kind.parts == 2:
        return small + _ALONE_WIDE + _PINGPONG_128 + _PINGPONG_256
    # Tiles of 192 and 224 rows take more time for each row than those of 256, but 1280x4096 has one of the former for
    # each of 304 CUs, and 4096x4096 two of the latter. 1024x7168 and 2048x7168 have 304 and two times 304 of 128x192.
    pingpong = _PINGPONG_128 + _PINGPONG_128X192 + _PINGPONG_192 + _PINGPONG_224 + _PINGPONG_256
    return small + _ALONE_192 + _ALONE_WIDE + _SPLIT_K_IN_LARGE_TILES + pingpong


# Rounds of four-bit values leave fewer registers for operands in flight.
_ALONE_WITH_ROUNDS = (_alone(64, 32, 2), _alone(32, 64, 3, waves_n=2))
# 10240 columns have 214 tiles of 48: one round of workgroups of six waves on 304 CUs. Six parts of K are also fast for
# many rows, so they suit all M.
_SPLIT_K_IN_SIX = (
    _alone(16, 48, 2, waves_k=6),
    _alone(32, 48, 2, waves_k=6),
    _alone(48, 48, 2, waves_k=6),
)
_ALONE_OF_FOUR_BITS = (*_ALONE, _alone(64, 32, 2))  # scales of columns leave fewer, too
# Without scales of columns there are more registers for stages, as four-bit b takes at most half as many until it is
# widened.
_ALONE_16_ROWS_OF_FOUR_BITS = (_alone(16, 32, 4, waves_n=2),)
_SPLIT_K_16X16 = (_alone(16, 16, 4, waves_k=4),)
_SPLIT_K_OF_FOUR_BITS_16_ROWS = (*_SPLIT_K_16X16, _alone(16, 32, 3, waves_k=4))
# Groups of few rows have many tiles. Finding and beginning a tile takes as long as many of its columns.
_WIDE_OF_16_ROWS = (_alone(16, 64, 3),)
_SPLIT_K_OF_FOUR_BITS_MORE_ROWS = (
    _alone(32, 32, 4, waves_k=4),
    _alone(32, 32, 3, waves_k=4),
    _alone(64, 32, 3, waves_k=4),
    _alone(64, 32, 2, waves_k=4),
    _alone(64, 64, 2, waves_k=4),
)
# 32x4096 has 256 of these. 16x32 would widen b twice.
_SPLIT_K_OF_FOUR_BITS_32X16 = (_alone(32, 16, 4, waves_k=4),)
# 64x7168 has 300 of these.
_SPLIT_K_OF_SHUFFLED = (_alone(32, 48, 4, waves_k=4),)
_SPLIT_K_OF_SHORT_GROUPS = (
    _alone(32, 32, 2, waves_k=4),
    _alone(64, 32, 2, waves_k=4),
    _alone(64, 64, 2, waves_k=4),
)
# The same with 512 registers a lane. b takes few bytes, so tiles are tall: 256x7168 has 300 of 128x48, and 512x4096 256
# of 128x64, which don't fit if there are rounds, or sums of int4 to promote.
_SPLIT_K_OF_FOUR_BITS_IN_LARGE_TILES = (
    _alone(64, 80, 2, waves_k=4),
    _alone(96, 48, 2, waves_k=4),
    _alone(128, 48, 2, waves_k=4),
    _alone(128, 64, 2, waves_k=4),
)


def _split_k_of_four_bits(kind: GemmKind) -> tuple[GemmConfig, ...]:
    """Tiles with split-K over the waves of a workgroup, for dense problems and parts of K."""
    if kind.has_rounds:
        return _SPLIT_K
    more_rows = _SPLIT_K_OF_SHORT_GROUPS if kind.promotions > 1 else _SPLIT_K_OF_FOUR_BITS_MORE_ROWS
    # Where waves load 16 bytes of int4 at a time, 16x32 takes up to 8% less with columns for each wave: 18432 columns
    # have two such tiles for each CU. Estimates would prefer split-K.
    loads_wide = kind.is_int4 and kind.is_a_scaled and (kind.promotions == 1 or kind.b_type == "shuffled_int4")
    return (_SPLIT_K_16X16 if loads_wide else _SPLIT_K_OF_FOUR_BITS_16_ROWS) + more_rows


def is_for_one_round(config: GemmConfig) -> bool:
    """Whether a CU should compute only one such tile at a time. Two take up to 18% longer than estimates say."""
    if not config.kind.widens_b:
        return False
    of_one_round = _SPLIT_K_OF_FOUR_BITS_32X16 + (_SPLIT_K_OF_SHUFFLED if _is_shuffled_for_fp8(config.kind) else ())
    tile = (config.block_m, config.block_n, config.waves_k)
    return any(tile == (one.block_m, one.block_n, one.waves_k) for one in of_one_round)


def _is_shuffled_for_fp8(kind: GemmKind) -> bool:
    return kind.b_type in ("shuffled_e2m1", "shuffled_int4") and kind.is_a_scaled and kind.promotions == 1


def _tiles_of_four_bits(kind: GemmKind) -> tuple[GemmConfig, ...]:
    split_k = _split_k_of_four_bits(kind)
    of_128 = _PINGPONG_128
    of_192: tuple[GemmConfig, ...] = _PINGPONG_192
    of_256: tuple[GemmConfig, ...] = _PINGPONG_256
    if kind.promotions > 1:  # scales of several groups leave registers for fewer sums
        of_128, of_192, of_256 = _PINGPONG_128_OF_SHORT_GROUPS, _PINGPONG_192_OF_SHORT_GROUPS, ()
    if kind.grouping == "split_k":
        return split_k + of_128 + of_256
    of_16_rows = _ALONE_16_ROWS_OF_FOUR_BITS if kind.parts == 1 else _ALONE_16_ROWS_OF_TWO_PARTS
    few_rows = of_16_rows + (_ALONE_WITH_ROUNDS if kind.has_rounds else _ALONE_OF_FOUR_BITS)
    if kind.grouping == "dense":
        few_rows += (
            split_k
            + _SPLIT_K_IN_ONE_ROUND
            + _SPLIT_K_OF_FOUR_BITS_32X16
            + _SPLIT_K_OF_FOUR_BITS_IN_LARGE_TILES
            + (_SPLIT_K_OF_SHUFFLED if _is_shuffled_for_fp8(kind) else ())
            + (_SPLIT_K_IN_SIX if kind.has_rounds else ())
        )
    elif kind.grouping == "psum":
        few_rows += _WIDE_OF_16_ROWS
        few_rows += _SPLIT_K_OF_16_ROWS if kind.has_rounds else _SPLIT_K_OF_FOUR_BITS_16_ROWS
    if kind.has_groups_of_rows:
        return few_rows + of_128 + of_192
    # Promotion with scales of rows leaves the vector ALU too little time to widen. That of short groups takes so long
    # that widening, and so how often a tile does it, hardly counts.
    has_time = not kind.is_a_scaled or kind.promotions > 1
    is_uneven = kind.is_int4 and kind.k_tail  # clang 19 would keep a loader's state in LDS
    if kind.grouping == "dense" and kind.parts == 1 and has_time and not is_uneven:
        of_256 += _PINGPONG_256X96
    return few_rows + of_128 + of_192 + of_256


def _tiles_through_lds(kind: GemmKind) -> tuple[GemmConfig, ...]:
    if kind.is_quantised and kind.parts == 2:
        return _STAGED_WIDEST
    small = _STAGED_WIDE if kind.is_quantised or kind.parts == 2 else _STAGED
    if kind.grouping == "summed":
        return small + _STAGED_LARGE
    if kind.has_groups_of_rows and not kind.is_quantised:
        return small + _PINGPONG_64 + _large_tiles_of_groups(kind)
    return small + _PINGPONG_64 + _PINGPONG_128 + _PINGPONG_256


def _large_tiles_of_groups(kind: GemmKind) -> tuple[GemmConfig, ...]:
    """Tiles of 256 rows would reach into the next group, or compute more rows of padding."""
    if kind.has_tiles_of_two_heights:
        return _PINGPONG_128 + _PINGPONG_128X256
    return _PINGPONG_128 + _PINGPONG_160 + _PINGPONG_192 + _PINGPONG_128X256


def legal_configs(problem: GemmProblem) -> list[GemmConfig]:
    """Every configuration that can be compiled for the problem, its tiles not much larger than need be."""
    found = []
    for (block_m, block_n), (waves_m, waves_n, waves_k), (schedule, stages) in itertools.product(
        itertools.product((16, 32, 64, 128, 256), (16, 32, 48, 64, 128, 256)),
        ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 8, 1), (2, 4, 1), (4, 2, 1), (1, 1, 2),
         (1, 1, 4), (1, 1, 8)),
        (("multistage", 2), ("multistage", 3), ("multistage", 4), ("pingpong", 3), ("alone", 2), ("alone", 3),
         ("alone", 4)),
    ):  # fmt: skip
        if block_m > max(16, min(problem.max_block_m, 2 * problem.m)) or block_n > max(32, 2 * problem.n):
            continue
        if problem.kind.grouping == "split_k" and schedule == "alone" and waves_k == 1:
            continue  # these take columns enough for all CUs, and then K isn't split
        with contextlib.suppress(ValueError):
            config = GemmConfig(block_m, block_n, waves_m, waves_n, stages, schedule, waves_k, problem.kind)
            if config.wave_m * config.wave_n <= _SUMS_OF_WAVE:
                found.append(config)
    return found

"""A first heuristic: the candidate whose tiles fill the device's CUs in the least estimated time."""

from __future__ import annotations

import dataclasses
import functools

from ..layout import ceil_div
from .gemm_config import BLOCK_K_BYTES, GemmConfig, GemmKind

# From the smallest tile to the largest. Small tiles spread a small M over many CUs; large ones load fewer bytes for
# each product.
_SMALL = (
    GemmConfig(block_m=16, block_n=64, waves_m=1, waves_n=4, num_stages=4),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=4, num_stages=4),
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
_LARGE = (
    GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=4, num_stages=3, schedule="pingpong"),
    GemmConfig(block_m=128, block_n=128, waves_m=4, waves_n=2, num_stages=3, schedule="pingpong"),
    GemmConfig(block_m=256, block_n=128, waves_m=4, waves_n=2, num_stages=3, schedule="pingpong"),
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
_LEAST_K_BLOCKS = 8  # of a part, or the second pass costs as much as the first

_BYTES_OF_K_PER_CLOCK = 2048  # multiply-adds of a CU, times the bytes of an element
_BYTES_PER_CLOCK = 32  # that a CU gets from L2 when all of them ask
_LOAD_LATENCY_CLOCKS = 1000  # from memory into LDS


def gemm_candidates(kind: GemmKind, max_block_m: int = 256) -> tuple[GemmConfig, ...]:
    """The configurations that ``choose_gemm_config`` chooses from, smallest tile first."""
    if kind.sums_squares:
        configs: tuple[GemmConfig, ...] = _NARROW
    elif kind.parts == 2 and kind.is_quantised:
        configs = _WIDEST
    else:
        small = _SMALL_WIDE if kind.parts == 2 or kind.is_quantised else _SMALL
        multistage = kind.grouping == "summed" or kind.b_major == "shuffled"
        configs = small + (_LARGE_MULTISTAGE if multistage else _LARGE)
    largest = min(max_block_m, 128) if kind.grouping == "contiguous" else max_block_m
    return tuple(dataclasses.replace(config, kind=kind) for config in configs if config.block_m <= largest)


@functools.lru_cache(maxsize=65536)
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
    """The configuration that runs a problem in the fewest estimated clocks; of equals, the one with the largest tile.

    Args:
        kind: what is computed; its ``k_tail`` is replaced by what ``k`` asks for.
        m, n, k: what is multiplied: [m, k] with [n, k], for each of the groups.
        num_cus: compute units that may be used.
        num_groups: how many groups there are that have ``m`` rows each and share no tiles.
        max_block_m: the most rows that a tile may have, at least 16.
    """
    k_tail = k * kind.element_bytes % BLOCK_K_BYTES != 0
    candidates = reversed(gemm_candidates(dataclasses.replace(kind, k_tail=k_tail), max_block_m))
    return min(candidates, key=lambda config: _clocks_per_k_block(config, m, n, num_groups, num_cus))


def choose_k_splits(m: int, n: int, k_blocks: int) -> int:
    """Into how many parts to split K, so that tiles of [m, n] fill a whole MI300X.

    It depends on the problem only, and not on how many compute units may be used, since sums depend on it.

    Args:
        k_blocks: all of K, in blocks of 128 bytes.
    """
    tiles = ceil_div(m, _TILE_OF_SPLIT) * ceil_div(n, _TILE_OF_SPLIT)
    return max(1, min(_NUM_CUS // max(tiles, 1), k_blocks // _LEAST_K_BLOCKS))


def _clocks_per_k_block(config: GemmConfig, m: int, n: int, num_groups: int, num_cus: int) -> float:
    """Clocks that the device spends on 128 bytes of K: rounds of tiles over the CUs, times a tile's slowest part."""
    tiles = num_groups * ceil_div(m, config.block_m) * ceil_div(n, config.output_n)
    rounds = ceil_div(tiles, num_cus)
    compute = config.block_m * config.block_n * BLOCK_K_BYTES / _BYTES_OF_K_PER_CLOCK
    load = (config.block_m + config.block_n) * BLOCK_K_BYTES / _BYTES_PER_CLOCK
    latency = _LOAD_LATENCY_CLOCKS / config.num_stages
    return rounds * max(compute, load, latency)

"""How long a configuration takes, estimated: what the tuner measures first, and what runs where nobody has measured.

A CU computes its tiles one after the other, or as many at once as fit. Of a tile each K-block costs the longest of
what matrix cores, LDS and vector L1 need for it, and a share of the others, as schedules overlap them more or less.
Where one workgroup has a CU for itself it costs memory's latency as well, as far as no stages hide it. The chip as a
whole can't be faster than its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from math import ceil
from statistics import fmean

from ..layout import ceil_div
from .gemm_config import BLOCK_K_BYTES, GemmConfig
from .tuned import GemmProblem

_XCDS = 8
# Rows that masked groups have, 0.7 to 1.3 times the expected ones as in DeepGEMM's tests; neighbours are far apart.
_ROWS_OF_EXPECTED = (0.73, 0.91, 1.09, 1.27, 0.85, 1.03, 1.21, 0.79, 0.97, 1.15)

# Clocks and bytes a clock of docs/timing.md, where their sources are.
_MATRIX_BYTES = 2048  # multiply-adds of a CU times the bytes of an element
_L1_BYTES = 64  # of a CU, into registers, and as many that come in
_LDS_READ_BYTES = 128
_LDS_WRITE_BYTES = 51
_HBM_BYTES = 2048
_CACHE_BYTES = 5400  # Infinity Cache to all L2s

# Fitted to launches in the timing model, for whole families of configurations.
_LAUNCH = 1500
_SECOND_LAUNCH = 3800
_SUM_OF_PARTS_BYTES = 3100  # in a clock
_PROLOGUE = 1500
_EPILOGUE_PER_ROW = 8
_START_ALONE = 1000  # of the pipelines of waves alone
_MEETING = 300  # of waves that deal K
_SUM_OVER_WAVES_BYTES = 16  # that they exchange in a clock
_OVERLAPPING_TILE = 3500  # besides its K-blocks, where they load the next one
_FIRST_TILE = 3200  # of these tiles
_FIRST_TILE_PER_ROW = 18
_SHARED_ROUND = 0.5  # the last one, of few tiles; in whole ones
_LATENCY = {"multistage": 900, "pingpong": 400, "producer": 1300, "alone": 900}  # from memory
_HIDES_NO_LATENCY = 0.75  # of the time in which a workgroup is busy
# The more, the less memory and CUs wait for each other where both take about as long.
_OVERLAPS_MEMORY = {"multistage": 4, "pingpong": 2.5, "producer": 4, "alone": 4}
_NOT_OVERLAPPED = {"multistage": 0.45, "pingpong": 0.025, "producer": 0.4, "alone": 0.2}


def estimated_clocks(config: GemmConfig, problem: GemmProblem) -> float:
    """Core clocks of a launch; of masked groups, which have about ``problem.m`` rows each, the mean of launches."""
    if config.kind.grouping != "masked":
        return _launch_clocks(config, problem, [problem.m] * problem.num_groups)
    tiles = [config, config.taller] if config.taller else [config]
    return fmean(min(_launch_clocks(tile, problem, rows) for tile in tiles) for rows in _launches_of_masked(problem))


def _launches_of_masked(problem: GemmProblem) -> list[list[float]]:
    """Rows that the groups have in each of a few launches."""
    rows = [problem.m * share for share in _ROWS_OF_EXPECTED]
    return [list(islice(cycle(rows), first, first + problem.num_groups)) for first in range(len(rows))]


def _launch_clocks(config: GemmConfig, problem: GemmProblem, rows_of_groups: Sequence[float]) -> float:
    """Of groups of so many rows each, instead of ``problem.m``."""
    _, _, n, k, num_cus, num_groups, _ = problem
    tile_rows, tile_columns = sum(ceil(rows / config.block_m) for rows in rows_of_groups), ceil_div(n, config.output_n)
    tiles = tile_rows * tile_columns
    # K of these is that of all groups together.
    of_groups = num_groups if config.kind.grouping in ("k_grouped", "split_k") else 1
    k_blocks = ceil_div(k * config.kind.element_bytes, BLOCK_K_BYTES * of_groups * config.waves_k)
    at_once = min(config.workgroups_per_cu, ceil_div(tiles, num_cus))
    rounds = _rounds(config, tiles, num_cus * at_once)
    in_registers = config.num_stages - (0 if config.schedule == "alone" else 2)
    latency = _LATENCY[config.schedule] / max(1, in_registers)
    rows = sum(rows_of_groups) / tile_rows
    # Waves that deal K among themselves don't wait for each other.
    by_itself = _HIDES_NO_LATENCY * _busy_clocks(config, 1, rows) / config.waves_k + latency
    k_block = max(at_once * _busy_clocks(config, at_once, rows), by_itself)
    first_tile, tile = 0, _PROLOGUE + k_blocks * k_block + at_once * _EPILOGUE_PER_ROW * config.block_m
    if config.schedule == "alone":
        tile += _START_ALONE
    if config.waves_k > 1:
        tile += _MEETING + config.lds_bytes / _SUM_OVER_WAVES_BYTES
    if config.schedule == "pingpong":
        first_tile = _FIRST_TILE + _FIRST_TILE_PER_ROW * config.block_m
        tile = _OVERLAPPING_TILE + k_blocks * k_block
    memory = _memory_clocks(config, problem, tiles, tile_rows / num_groups, tile_columns, k_blocks * config.waves_k)
    power = _OVERLAPS_MEMORY[config.schedule]
    overlapped = ((first_tile + rounds * tile) ** power + memory**power) ** (1 / power)
    # Of the last round's results, those of 16 bits are on their way while the tile is computed.
    last_stores = _output_bytes(config, problem) / rounds / _CACHE_BYTES if config.kind.d_type == "f32" else 0
    return _LAUNCH + overlapped + last_stores


def _output_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    return problem.num_groups * problem.m * problem.n * (4 if config.kind.d_type == "f32" else 2)


def _rounds(config: GemmConfig, tiles: int, places: int) -> float:
    whole, left = divmod(tiles, places)
    # As a rule there are no more workgroups than tiles.
    shared = whole > 0 and config.last_round_shares > 1 and left * config.last_round_shares <= places
    return whole + (_SHARED_ROUND if shared and left else min(left, 1))


def second_pass_clocks(m: int, n: int, num_parts: int) -> float:
    """Core clocks of the launch that adds up [m, n] of so many parts of a split K."""
    return _SECOND_LAUNCH + num_parts * m * n * 4 / _SUM_OF_PARTS_BYTES


def _busy_clocks(config: GemmConfig, at_once: int, rows: float) -> float:
    """Of a K-block of one of so many tiles, or of each of its parts of K, with other work to hide latency.

    Args:
        rows: that a tile has within the problem.
    """
    rows_of_b = 0 if config.kind.b_major == "shuffled" else config.block_n
    loaded = (config.block_m + config.block_n) * BLOCK_K_BYTES
    stored = (config.block_m + rows_of_b) * BLOCK_K_BYTES
    read = (config.block_m * config.waves_n + rows_of_b * config.waves_m) * BLOCK_K_BYTES
    taken_in = (min(rows, config.block_m) + config.block_n) * BLOCK_K_BYTES
    if config.schedule == "alone":  # each wave loads what others read from LDS
        loaded, stored, read = read, 0, 0
    # A SIMD without waves computes nothing.
    simds = min(at_once * config.waves_m * config.waves_n * config.waves_k, 4) / 4
    parts = (
        config.block_m * config.block_n * BLOCK_K_BYTES / _MATRIX_BYTES / simds,
        (loaded + taken_in) / _L1_BYTES,
        stored / _LDS_WRITE_BYTES + read / _LDS_READ_BYTES,
    )
    longest = max(parts)
    return config.waves_k * (longest + _NOT_OVERLAPPED[config.schedule] * (sum(parts) - longest))


def _memory_clocks(
    config: GemmConfig, problem: GemmProblem, tiles: int, tile_rows: float, tile_columns: int, k_blocks: int
) -> float:
    """Of the whole launch, if nothing but memory counted."""
    _, m, n, _, num_cus, num_groups, _ = problem
    k_bytes = k_blocks * BLOCK_K_BYTES
    output = _output_bytes(config, problem)
    once = num_groups * (m + n * config.kind.parts) * k_bytes + output
    # An XCD's tiles that run at the same time form a rectangle, whose rows and columns its L2 takes in once.
    running = min(ceil_div(tiles, _XCDS), max(num_cus // _XCDS, 1) * config.workgroups_per_cu)
    high = min(config.group_m, tile_rows, running)
    wide = min(running / high, tile_columns)
    for_a_tile = (config.block_m / wide + config.block_n / high) * k_bytes
    return max(once / _HBM_BYTES, (tiles * for_a_tile + output) / _CACHE_BYTES)

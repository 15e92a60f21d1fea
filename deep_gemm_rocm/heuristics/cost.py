"""Estimates how long a configuration takes: to choose where no table does, and to rank what the tuner measures.

A CU computes its tiles one after the other, or as many at once as fit. Matrix cores, LDS and vector L1 each need some
time for a K-block; it takes the longest of these times and a share of the others, since schedules overlap them more or
less. A workgroup that has a CU for itself also waits for memory, unless its stages hide the latency. The whole chip
can't be faster than its memory.

Estimates are made for many M at once: a choice covers a range of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..problems.gemm_kind import GemmKind
from ..problems.layout import align, ceil_div
from .gemm_config import BLOCK_K_BYTES, GemmConfig
from .gemm_problem import GemmProblem

_Floats = NDArray[np.float64]

_XCDS = 8
# Rows of masked groups, 0.7 to 1.3 times the expected ones as in DeepGEMM's tests; neighbours are far apart.
_ROWS_OF_EXPECTED = np.array([0.73, 0.91, 1.09, 1.27, 0.85, 1.03, 1.21, 0.79, 0.97, 1.15])

# Bytes a clock; docs/timing.md names the sources.
_MATRIX_BYTES = 2048  # multiply-adds of a CU times the bytes of an element
_L1_BYTES = 64  # from a CU's L1 into registers, and as many from L2 into L1
_LDS_READ_BYTES = 128
_LDS_WRITE_BYTES = 51
_LDS_WRITE_BYTES_BETWEEN_READS = 85  # where b is widened on its way
_HBM_BYTES = 2048
_CACHE_BYTES = 5400  # Infinity Cache to all L2s

# Instructions that widen eight values, with those for their scales, by b_type, element_bytes, and whether sums are
# promoted with scales of columns.
_WIDENING = {
    ("e2m1", 1, False): 15, ("e2m1", 2, False): 27, ("shuffled_e2m1", 1, False): 8.5, ("shuffled_e2m1", 2, False): 18,
    ("int4", 1, True): 11, ("int4", 2, True): 14, ("int4", 2, False): 26,
}  # fmt: skip
_OF_FURTHER_PROMOTION = 2  # of a K-block, where each group of a column is promoted
_CLOCKS_OF_INSTRUCTION = 4  # of a SIMD, for the 64 lanes of a wave
_LANES = 64
_ROWS_OF_PASS = 128  # rows of b that a ping-pong workgroup widens at a time; fewer take as long
_COLUMNS_OF_SECTOR = 32  # of 16 bits, of 64 bytes
_BYTES_OF_COLUMN_SCALES = 64  # to registers, for a column and a K-block
_ISSUE_OF_MFMA = 1 / 4  # of its time, in which the SIMD issues nothing else
_SLOWED_BY_MFMA = 1.1  # clocks for each clock of vector ALUs, which issue MFMAs and promote meanwhile
_SLOWED_BY_WIDENING = 0.7  # clocks for each clock of vector ALUs, whose energy lowers the clock

# Clocks, if nothing else is said, fitted to launches in the timing model for whole families of configurations.
_LAUNCH = 5200
_SECOND_LAUNCH = 7300
_SUM_OF_PARTS_BYTES = 2300  # a clock
_PROLOGUE = 1200
_EPILOGUE_PER_ROW = 3
_SUM_OVER_WAVES_BYTES = 14  # a clock, exchanged by these waves
_OVERLAPPING_TILE = 5700  # a tile besides its K-blocks, if these load the next tile
_UNEVEN_COLUMNS = 2800  # more for such a tile if its waves store 48 columns
_FIRST_TILE = 1800  # before the first of such tiles
_FIRST_TILE_PER_ROW = 39
_LATENCY = {"multistage": 900, "pingpong": 400, "producer": 1300, "alone": 500}  # from memory
_HIDES_NO_LATENCY = 0.9  # share of the time in which a workgroup is busy
# Exponents that join the times of CUs and of memory. With larger ones these wait less for each other.
_OVERLAPS_MEMORY = {"multistage": 4, "pingpong": 2.5, "producer": 4, "alone": 3.3}
_NOT_OVERLAPPED = {"multistage": 0.45, "pingpong": 0.025, "producer": 0.4, "alone": 0.14}


def estimated_clocks(config: GemmConfig, problem: GemmProblem) -> float:
    """Core clocks of a launch; for masked groups of about ``problem.m`` rows each, the mean of several launches."""
    return float(clocks_by_m(config, problem, np.array([problem.m]))[0])


def clocks_by_m(config: GemmConfig, problem: GemmProblem, m: NDArray[Any]) -> _Floats:
    """``estimated_clocks`` for each of ``m`` in place of ``problem.m``."""
    m = m.astype(np.float64)
    if config.kind.grouping != "masked":
        rows = problem.num_groups * m
        return _launch_clocks(config, problem, m, problem.num_groups * np.ceil(m / config.block_m), rows)
    groups = _groups_of_launches(problem.num_groups)
    rows = np.outer(groups @ _ROWS_OF_EXPECTED, m)
    clocks = [
        _launch_clocks(tile, problem, m, groups @ np.ceil(np.outer(_ROWS_OF_EXPECTED, m) / tile.block_m), rows)
        for tile in (config, config.taller)
        if tile
    ]
    means: _Floats = np.minimum.reduce(clocks).mean(axis=0)
    return means


def _groups_of_launches(num_groups: int) -> _Floats:
    """How many groups of each of a few launches of masked groups have each share of the expected rows.

    Groups take turns with the shares. Each launch begins with another one.
    """
    shares = len(_ROWS_OF_EXPECTED)
    turns, left = divmod(num_groups, shares)
    behind_first = (np.arange(shares) - np.arange(shares)[:, None]) % shares
    groups: _Floats = turns + (behind_first < left).astype(np.float64)
    return groups


def _launch_clocks(
    config: GemmConfig, problem: GemmProblem, m: _Floats, tile_rows: _Floats, all_rows: _Floats
) -> _Floats:
    """Clocks of launches.

    Args:
        m: rows of a group that the output has room for.
        tile_rows, all_rows: rows of tiles, and of elements, that all groups together have.
    """
    tile_columns = ceil_div(problem.n, config.output_n)
    tiles = tile_rows * tile_columns
    groups_of_k = problem.num_groups if config.kind.grouping in ("k_grouped", "split_k") else 1
    k_blocks = ceil_div(problem.k * config.kind.element_bytes, BLOCK_K_BYTES * groups_of_k * config.waves_k)
    at_once = np.minimum(config.workgroups_per_cu, np.ceil(tiles / problem.num_cus))
    rows = all_rows / tile_rows
    whole_rounds = np.floor(tiles / (problem.num_cus * at_once))
    left = tiles - whole_rounds * problem.num_cus * at_once
    # Where waves deal K, those of few tiles take what others leave of a CU.
    in_last_round = np.clip(np.ceil(left / problem.num_cus), 1, at_once) if config.waves_k > 1 else at_once
    last_round = np.minimum(left, 1)
    rounds = whole_rounds + last_round
    first_tile = _FIRST_TILE + _FIRST_TILE_PER_ROW * config.block_m if config.schedule == "pingpong" else 0
    computed = whole_rounds * _tile_clocks(config, k_blocks, at_once, rows)
    computed += last_round * _tile_clocks(config, k_blocks, in_last_round, rows)
    memory = _memory_clocks(config, problem, m, tiles, tile_rows, k_blocks * config.waves_k)
    power = _OVERLAPS_MEMORY[config.schedule]
    overlapped = ((first_tile + computed) ** power + memory**power) ** (1 / power)
    if config.kind.widens_b and config.schedule == "alone":
        widened = tiles * config.waves_m * config.block_n * k_blocks * config.waves_k
        overlapped += _SLOWED_BY_WIDENING * widened * _widening_clocks(config.kind) / (4 * problem.num_cus)
    # Results of 16 bits are stored while the last round is computed, results of 32 bits afterwards.
    last_stores = _output_bytes(problem, m) / rounds / _CACHE_BYTES if _has_wide_results(problem.kind) else 0
    clocks: _Floats = _LAUNCH + overlapped + last_stores
    return clocks


def _tile_clocks(config: GemmConfig, k_blocks: int, at_once: _Floats, rows: _Floats) -> _Floats:
    """Clocks of a tile, of which a CU computes some at once. See ``_busy_clocks``."""
    in_registers = config.num_stages - (0 if config.schedule == "alone" else 2)
    latency = _LATENCY[config.schedule] / max(1, in_registers)
    # Waves that deal K among themselves don't wait for each other.
    by_itself = _HIDES_NO_LATENCY * _busy_clocks(config, 1, rows) / config.waves_k + latency
    clocks: _Floats = k_blocks * np.maximum(at_once * _busy_clocks(config, at_once, rows), by_itself)
    if config.schedule == "pingpong":
        is_even = config.wave_n % _COLUMNS_OF_SECTOR == 0
        return _OVERLAPPING_TILE + (0 if is_even else _UNEVEN_COLUMNS) + clocks
    clocks += _PROLOGUE + at_once * _EPILOGUE_PER_ROW * config.block_m
    if config.waves_k > 1:
        clocks += 4 * config.waves_k * config.block_m * config.block_n / _SUM_OVER_WAVES_BYTES
    return clocks


def _output_bytes(problem: GemmProblem, m: _Floats) -> _Floats:
    return problem.num_groups * m * problem.n * (4 if _has_wide_results(problem.kind) else 2)


def _has_wide_results(kind: GemmKind) -> bool:
    """Whether results are stored as fp32, as parts of a split K are."""
    return kind.d_type == "f32" or kind.sums_parts


def second_pass_clocks(m: NDArray[Any], n: int, num_parts: int) -> _Floats:
    """Core clocks of the launch that adds up [m, n] of so many parts of a split K."""
    return _SECOND_LAUNCH + num_parts * m.astype(np.float64) * n * 4 / _SUM_OF_PARTS_BYTES


def _busy_clocks(config: GemmConfig, at_once: _Floats | int, rows: _Floats) -> _Floats:
    """Clocks of a tile's K-block, with a K-block for each wave that K is dealt to, where other work hides latency.

    Args:
        at_once: tiles that the CU computes at once.
        rows: rows of the tile that lie within the problem.
    """
    b_loaded = config.block_n * config.kind.memory_of_b
    if config.kind.widens_b and config.kind.promotes_columns:  # all lanes load scales of their columns
        b_loaded += config.block_n * config.kind.promotions * _BYTES_OF_COLUMN_SCALES / BLOCK_K_BYTES
    loaded = (config.block_m + b_loaded) * BLOCK_K_BYTES
    stored = (config.block_m + config.block_n) * BLOCK_K_BYTES
    read = (config.block_m * config.waves_n + config.block_n * config.waves_m) * BLOCK_K_BYTES
    taken_in = (np.minimum(rows, config.block_m) + b_loaded) * BLOCK_K_BYTES
    if config.schedule == "alone":  # each wave loads what others read from LDS
        loaded, stored, read = (config.block_m * config.waves_n + b_loaded * config.waves_m) * BLOCK_K_BYTES, 0, 0
    # SIMDs that have waves.
    waves = at_once * config.waves_m * config.waves_n * config.waves_k
    simds = np.minimum(waves, 4) / 4
    matrix = config.kind.promotions * config.block_m * config.block_n * BLOCK_K_BYTES / _MATRIX_BYTES / simds
    if config.kind.widens_b and config.schedule == "alone":  # each wave widens its columns, and then multiplies
        widening = config.block_n * config.waves_m * _widening_clocks(config.kind) / (4 * simds)
        if config.widens_ahead:
            matrix = np.maximum(matrix, widening + _ISSUE_OF_MFMA * matrix)
        else:
            matrix = np.maximum(matrix, widening) + np.minimum(matrix, widening) / np.maximum(waves / 4, 1)
    l1 = (loaded + taken_in) / _L1_BYTES
    lds = stored / _LDS_WRITE_BYTES + read / _LDS_READ_BYTES
    if config.kind.widens_b and config.schedule == "pingpong":  # rows of b are widened between reads
        widening = align(config.block_n, _ROWS_OF_PASS) * _widening_clocks(config.kind) / 4
        lds = stored / _LDS_WRITE_BYTES_BETWEEN_READS + read / _LDS_READ_BYTES + _SLOWED_BY_MFMA * widening
    longest = np.maximum(np.maximum(matrix, l1), lds)
    busy: _Floats = config.waves_k * (longest + _NOT_OVERLAPPED[config.schedule] * (matrix + l1 + lds - longest))
    return busy


def _widening_clocks(kind: GemmKind) -> float:
    """Clocks of a SIMD for a K-block of a row of b."""
    instructions = _WIDENING[kind.b_type, kind.element_bytes, kind.promotes_columns]
    instructions += _OF_FURTHER_PROMOTION * (kind.promotions - 1)
    return BLOCK_K_BYTES / kind.element_bytes / 8 * instructions * _CLOCKS_OF_INSTRUCTION / _LANES


def _memory_clocks(
    config: GemmConfig, problem: GemmProblem, m: _Floats, tiles: _Floats, tile_rows: _Floats, k_blocks: int
) -> _Floats:
    """Clocks that memory and caches need for the whole launch."""
    n, num_cus, num_groups = problem.n, problem.num_cus, problem.num_groups
    k_bytes = k_blocks * BLOCK_K_BYTES
    output = _output_bytes(problem, m)
    once = num_groups * (m + n * config.kind.parts * config.kind.memory_of_b) * k_bytes + output
    # Tiles that run on an XCD at the same time form a rectangle. Its L2 loads their rows and columns once.
    running = np.minimum(np.ceil(tiles / _XCDS), max(num_cus // _XCDS, 1) * config.workgroups_per_cu)
    high = np.minimum(np.minimum(config.group_m, tile_rows / num_groups), running)
    wide = np.minimum(running / high, ceil_div(n, config.output_n))
    for_a_tile = (config.block_m / wide + config.block_n / high) * k_bytes
    clocks: _Floats = np.maximum(once / _HBM_BYTES, (tiles * for_a_tile + output) / _CACHE_BYTES)
    return clocks

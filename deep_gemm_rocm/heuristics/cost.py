"""Estimates how long a configuration takes: to choose where no table does, and to rank what the tuner measures.

A CU computes its tiles one after the other, or as many at once as fit. Matrix cores, LDS and vector L1 each need some
time for a K-block; it takes the longest of these times and a share of the others, since schedules overlap them more or
less. A workgroup that has a CU for itself also waits for memory, unless its stages hide the latency. The whole chip
can't be faster than its L2s and its memory. Where all that takes more power than the chip may, its clock is lower:
estimates are sustained times. Over 1,941 dense launches in the timing model they were 6% off (root mean square).

Estimates are made for many M at once: a choice covers a range of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..problems.gemm_kind import GemmKind
from ..problems.layout import align, ceil_div
from .gemm_config import BLOCK_K_BYTES, NUM_CUS, GemmConfig
from .gemm_problem import GemmProblem

_Floats = NDArray[np.float64]

_XCDS = 8
_SIMDS = 4  # of a CU
# Rows of masked groups, 0.7 to 1.3 times the expected ones as in DeepGEMM's tests; neighbours are far apart.
_ROWS_OF_EXPECTED = np.array([0.73, 0.91, 1.09, 1.27, 0.85, 1.03, 1.21, 0.79, 0.97, 1.15])

# Bytes a clock; docs/timing.md names the sources.
_MATRIX_BYTES = 2048  # multiply-adds of a CU times the bytes of an element
_L1_BYTES = 64  # from a CU's L1 into registers, and as many from L2 into L1
_LDS_READ_BYTES = 128
# Fitted, as the clocks further below.
_LDS_WRITE_BYTES = 76
# Operands that are transposed on their way into LDS take this time, too; by the bytes of an element.
_TRANSPOSED_BYTES = {1: 18.6, 2: 94}
_L2_BYTES = 12_000  # of all XCDs, into all L1s
_CACHE_BYTES = 6700  # Infinity Cache to all L2s
_HBM_BYTES = 1960

# Instructions that widen eight values, with those for their scales, by b_type, element_bytes, and whether sums are
# promoted with scales of columns.
_WIDENING = {
    ("e2m1", 1, False): 18.8, ("e2m1", 2, False): 27,
    ("shuffled_e2m1", 1, False): 7.5, ("shuffled_e2m1", 2, False): 16.7,
    ("int4", 1, True): 10.2, ("int4", 2, True): 13.1, ("int4", 2, False): 26,
    ("shuffled_int4", 1, True): 9,
}  # fmt: skip
_OF_FURTHER_GROUP = 1  # of a K-block of int4, whose scales lanes hand to one another
_CLOCKS_OF_INSTRUCTION = 4  # of a SIMD, for the 64 lanes of a wave
_LANES = 64
_ROWS_OF_PASS = 128  # rows of b that a ping-pong workgroup widens at a time; fewer take as long
_COLUMNS_OF_SECTOR = 32  # of 16 bits, of 64 bytes
# Bytes of the vector L1 that the scales of a column and a K-block take. MXFP4's come from many lines, int4's lie by
# columns.
_BYTES_OF_COLUMN_SCALES = {"mxfp4": 64, "int4": 16}
_NO_WIDENING = 0.76  # share of the time of MFMAs in which their SIMD widens nothing
# Share of the lesser of widening and MFMAs that a wave alone on its SIMD adds to the greater; each slows the other.
_WIDENS_AND_MULTIPLIES = 1.5
# Share of the time of promotion that such a wave doesn't multiply.
_PROMOTES_AND_MULTIPLIES = 0.67
# Instructions that promote 64 sums, without and with scales of columns, and the share of their time that ping-pong
# workgroups don't spend on anything else.
_PROMOTION = 1.3
_COLUMN_PROMOTION = 7.4
_FURTHER_PROMOTION = 3  # for each further group of a K-block
# Clocks of ping-pong workgroups for a column and each further group, if more waves than two have the same columns.
_SCALES_OF_FURTHER_WAVE = 0.83
_PROMOTION_ALONE = 0.1
_NOT_IN_L1 = 0.22  # share of what other waves of the workgroup have loaded that L1 has lost

# Clocks, if nothing else is said, fitted to the launches that the module's docstring tells of.
_LAUNCH = 5200
_MEMORY_BEGINS = 2200
_SECOND_LAUNCH = 7500
_SUM_OF_PARTS_BYTES = 2300  # a clock
_PROLOGUE = {"multistage": 1300, "alone": 3750}
_EPILOGUE_PER_ROW = 0.6  # of a multistage tile
_EPILOGUE_PER_RESULT = 1.2  # of a wave alone
_QUANTISED_TILE = 3940  # more for a tile that is quantised in its epilogue
_SUM_OVER_WAVES_BYTES = 23  # a clock, exchanged by these waves
_OVERLAPPING_TILE = 5200  # a tile besides its K-blocks, if these load the next tile
_UNEVEN_COLUMNS = 3220  # more for such a tile if its waves store 48 columns
_FIRST_TILE = 3120  # before the first of such tiles
_FIRST_TILE_PER_ROW = 12
_LATENCY = {"multistage": 790, "pingpong": 760, "alone": 810}  # from memory
# Share of a K-block's work that hides no latency: waiting for memory comes on top of it.
_HIDES_NO_LATENCY = {"multistage": 1, "pingpong": 0.415, "alone": 0.38}
# Picojoules, and those that the power limit leaves a clock, as in simulator/mi300x_timing.toml but for the boost clock.
# The energy of cores falls with their clock, that of memory doesn't.
_MATRIX_PJ = {"e4m3": 348, "e5m2": 348, "bf16": 333, "f16": 452}  # a clock of a SIMD, by a_type
_VECTOR_PJ = 128  # the same
_LDS_PJ = 5.4  # a byte
_L1_PJ = 3.8
_L2_PJ = 10.2
_CU_PJ = 768  # a clock, busy or not
_CACHE_PJ = 15
_HBM_PJ = 32
_LIMIT_PJ = 271_000
_STEPS_TO_CLOCK = 4  # of an iteration, damped by a square root, to the clock that the limit allows

# Exponents that join the times of CUs and of memory. With larger ones these wait less for each other.
_OVERLAPS_MEMORY = {"multistage": 2.75, "pingpong": 3.24, "alone": 3.7}
_OVERLAPS_L2 = 4.4  # the same for CUs and L2
_NOT_OVERLAPPED = {"multistage": 0.08, "pingpong": 0, "alone": 0.07}


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
    work = _work(config, rows)
    computed = whole_rounds * _tile_clocks(config, work, k_blocks, at_once)
    computed += last_round * _tile_clocks(config, work, k_blocks, in_last_round)
    memory = _memory_bytes(config, problem, m, tiles, tile_rows, k_blocks * config.waves_k)
    # Results of 16 bits are stored while the last round is computed, results of 32 bits afterwards.
    last_stores = _output_bytes(problem, m) / rounds / _CACHE_BYTES if _has_wide_results(problem.kind) else 0
    k_blocks_of_tiles = tiles * k_blocks * config.waves_k
    from_l2 = k_blocks_of_tiles * work.taken_in / _L2_BYTES
    computed = (computed**_OVERLAPS_L2 + from_l2**_OVERLAPS_L2) ** (1 / _OVERLAPS_L2)
    busy = np.ceil(tiles / problem.num_cus) * k_blocks * config.waves_k * work.busiest
    energy = k_blocks_of_tiles * _picojoules(config, work)
    return _LAUNCH + last_stores + _sustained(config, first_tile + computed, busy, memory, energy)


class _MemoryBytes(NamedTuple):
    """Bytes that the whole launch moves."""

    hbm: _Floats
    cache: _Floats

    @property
    def clocks(self) -> _Floats:
        clocks: _Floats = _MEMORY_BEGINS + np.maximum(self.hbm / _HBM_BYTES, self.cache / _CACHE_BYTES)
        return clocks

    @property
    def picojoules(self) -> _Floats:
        return self.hbm * _HBM_PJ + self.cache * _CACHE_PJ


def _sustained(config: GemmConfig, computed: _Floats, busy: _Floats, memory: _MemoryBytes, energy: _Floats) -> _Floats:
    """Boost clocks that the work of a launch takes at the clock that the power limit leaves it.

    Args:
        computed: core clocks that the CUs need, those in which they wait included.
        busy: those in which their busiest resource works.
        energy: picojoules of the cores' work.
    """
    power, of_memory = _OVERLAPS_MEMORY[config.schedule], memory.clocks
    clocks = (computed**power + of_memory**power) ** (1 / power)
    waits = clocks - np.maximum(busy, of_memory)
    cores = energy + NUM_CUS * _CU_PJ * clocks
    slower = np.ones_like(cores)
    for _ in range(_STEPS_TO_CLOCK):
        left = np.maximum(_LIMIT_PJ * (_LAUNCH + clocks) - memory.picojoules, 1)
        slower = np.maximum(np.sqrt(slower * cores / left), 1)
        clocks = np.maximum(slower * busy, of_memory) + slower * waits  # memory has clocks of its own
    return clocks


def _tile_clocks(config: GemmConfig, work: _Work, k_blocks: int, at_once: _Floats) -> _Floats:
    """Clocks of a tile, of which a CU computes some at once. See ``_busy_clocks``."""
    in_registers = config.num_stages - (0 if config.schedule == "alone" else 2)
    latency = _LATENCY[config.schedule] / max(1, in_registers)
    # Waves that deal K among themselves don't wait for each other.
    by_itself = _HIDES_NO_LATENCY[config.schedule] * _busy_clocks(config, work, 1) / config.waves_k + latency
    clocks: _Floats = k_blocks * np.maximum(at_once * _busy_clocks(config, work, at_once), by_itself)
    if config.schedule == "pingpong":
        is_even = config.wave_n % _COLUMNS_OF_SECTOR == 0
        return _OVERLAPPING_TILE + (0 if is_even else _UNEVEN_COLUMNS) + clocks
    if config.kind.is_quantised:
        clocks += _QUANTISED_TILE
    clocks += _PROLOGUE[config.schedule]
    if config.schedule == "alone":
        waves_of_simd = np.ceil(at_once * config.waves / _SIMDS)
        clocks += _EPILOGUE_PER_RESULT * config.block_m * config.block_n / config.waves * waves_of_simd
    else:
        clocks += at_once * _EPILOGUE_PER_ROW * config.block_m
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


class _Work(NamedTuple):
    """Clocks and bytes that a K-block of a tile takes of a CU.

    Attributes:
        matrix, promotion, widening: clocks of its four SIMDs, all together.
        loaded, taken_in: bytes from L1 to registers, and from L2 to L1.
        stored, read: bytes of LDS.
        writing: clocks in which LDS is written.
    """

    matrix: float
    promotion: float
    widening: float
    loaded: float
    taken_in: _Floats
    stored: float = 0
    read: float = 0
    writing: float = 0

    @property
    def lds(self) -> float:
        """Clocks of LDS."""
        return self.writing + self.read / _LDS_READ_BYTES

    @property
    def l1(self) -> _Floats:
        """Clocks of L1, which is filled while registers are loaded."""
        clocks: _Floats = np.maximum(self.loaded, self.taken_in) / _L1_BYTES
        return clocks

    @property
    def busiest(self) -> _Floats:
        """Clocks of what is busy the longest."""
        busiest: _Floats = np.maximum(max(max(self.matrix, self.promotion + self.widening) / _SIMDS, self.lds), self.l1)
        return busiest


def _work(config: GemmConfig, rows: _Floats) -> _Work:
    """
    Args:
        rows: rows of the tile that lie within the problem.
    """
    kind, block_m, block_n = config.kind, config.block_m, config.block_n
    b_loaded = b_taken_in = block_n * kind.memory_of_b
    if kind.widens_b and (config.schedule == "alone" or kind.promotes_columns):
        of_column = _BYTES_OF_COLUMN_SCALES["int4" if kind.is_int4 else "mxfp4"]
        scales = block_n * of_column / kind.element_bytes / BLOCK_K_BYTES
        b_loaded, b_taken_in = b_loaded + scales, b_taken_in + scales
    matrix = _SIMDS * block_m * block_n * BLOCK_K_BYTES / _MATRIX_BYTES
    of_promotion = _COLUMN_PROMOTION if kind.promotes_columns else _PROMOTION if kind.element_bytes == 1 else 0
    of_promotion += _FURTHER_PROMOTION * (kind.promotions - 1)
    promotion = block_m * block_n * of_promotion * _CLOCKS_OF_INSTRUCTION / _LANES
    widening = 0.0
    if kind.widens_b:
        widened = block_n * config.waves_m if config.schedule == "alone" else align(block_n, _ROWS_OF_PASS)
        widening = widened * _widening_clocks(kind)
    if config.schedule == "alone":  # each wave loads what others read from LDS
        loaded = (block_m * config.waves_n + b_loaded * config.waves_m) * BLOCK_K_BYTES
        if kind.widens_b and kind.b_type != "shuffled_e2m1":
            b_taken_in += block_n * (1 - kind.memory_of_b)  # whole lines
        of_a, of_b = (1 + _NOT_IN_L1 * (waves - 1) for waves in (config.waves_n, config.waves_m))
        taken_in = (np.minimum(rows, block_m) * of_a + b_taken_in * of_b) * BLOCK_K_BYTES
        return _Work(matrix, promotion, widening, loaded, taken_in)
    loaded = (block_m + b_loaded) * BLOCK_K_BYTES
    taken_in = (np.minimum(rows, block_m) + b_taken_in) * BLOCK_K_BYTES
    stored = (block_m + block_n) * BLOCK_K_BYTES
    read = (block_m * config.waves_n + block_n * config.waves_m) * BLOCK_K_BYTES
    writing = stored / _LDS_WRITE_BYTES
    if not kind.is_k_major:
        transposed = block_m * (kind.a_major == "rows") + block_n * (kind.b_major == "rows")
        writing += transposed * BLOCK_K_BYTES / _TRANSPOSED_BYTES[kind.element_bytes]
    return _Work(matrix, promotion, widening, loaded, taken_in, stored, read, writing)


def _picojoules(config: GemmConfig, work: _Work) -> _Floats:
    simds = work.matrix * _MATRIX_PJ[config.kind.a_type] + (work.promotion + work.widening) * _VECTOR_PJ
    return simds + (work.stored + work.read) * _LDS_PJ + work.loaded * _L1_PJ + work.taken_in * _L2_PJ


def _busy_clocks(config: GemmConfig, work: _Work, at_once: _Floats | int) -> _Floats:
    """Clocks of a tile's K-block, with a K-block for each wave that K is dealt to, where other work hides latency.

    Args:
        at_once: tiles that the CU computes at once.
    """
    waves = at_once * config.waves
    simds = waves / np.ceil(waves / _SIMDS)  # as many as share the waves evenly
    matrix = work.matrix / simds
    if config.kind.widens_b and config.schedule == "alone":  # each wave widens its columns, and then multiplies
        widening = work.widening / simds
        if config.widens_ahead:
            matrix = np.maximum(matrix, widening + _NO_WIDENING * matrix)
        else:
            of_both = _WIDENS_AND_MULTIPLIES * np.minimum(matrix, widening)
            matrix = np.maximum(matrix, widening) + of_both / np.maximum(waves / _SIMDS, 1)
    elif config.schedule == "alone":
        matrix += np.where(waves <= _SIMDS, _PROMOTES_AND_MULTIPLIES, 0) * work.promotion / simds
    l1, lds = work.l1, work.lds
    if config.schedule == "pingpong":  # rows of b are widened between accesses of LDS
        lds += (work.widening + _PROMOTION_ALONE * work.promotion) / _SIMDS
        further_waves = max(config.waves_m - 2, 0) * (config.kind.promotions - 1)
        lds += _SCALES_OF_FURTHER_WAVE * further_waves * config.block_n
    longest = np.maximum(np.maximum(matrix, l1), lds)
    busy: _Floats = config.waves_k * (longest + _NOT_OVERLAPPED[config.schedule] * (matrix + l1 + lds - longest))
    return busy


def _widening_clocks(kind: GemmKind) -> float:
    """Clocks of a SIMD for a K-block of a row of b."""
    instructions = _WIDENING[kind.b_type, kind.element_bytes, kind.promotes_columns]
    instructions += _OF_FURTHER_GROUP * (kind.promotions - 1)
    return BLOCK_K_BYTES / kind.element_bytes / 8 * instructions * _CLOCKS_OF_INSTRUCTION / _LANES


def _memory_bytes(
    config: GemmConfig, problem: GemmProblem, m: _Floats, tiles: _Floats, tile_rows: _Floats, k_blocks: int
) -> _MemoryBytes:
    n, num_cus, num_groups = problem.n, problem.num_cus, problem.num_groups
    k_bytes = k_blocks * BLOCK_K_BYTES
    output = _output_bytes(problem, m)
    once = num_groups * (m + n * config.kind.parts * config.kind.memory_of_b) * k_bytes + output
    # Tiles that run on an XCD at the same time form a rectangle. Its L2 loads their rows and columns once.
    running = np.minimum(np.ceil(tiles / _XCDS), max(num_cus // _XCDS, 1) * config.workgroups_per_cu)
    high = np.minimum(np.minimum(config.group_m, tile_rows / num_groups), running)
    wide = np.minimum(running / high, ceil_div(n, config.output_n))
    for_a_tile = (config.block_m / wide + config.block_n / high) * k_bytes
    return _MemoryBytes(once, tiles * for_a_tile + output)

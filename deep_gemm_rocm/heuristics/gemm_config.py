"""What a GEMM kernel is compiled for: the kind of problem that it solves, and how."""

from __future__ import annotations

import dataclasses

from .. import forking
from ..layout import ceil_div

LDS_BYTES = 64 * 1024  # of a CU, and the most that one workgroup may have
MAX_THREADS = 512  # of a workgroup, and of a CU, at 256 registers a lane
WAVE_SIZE = 64
BLOCK_K_BYTES = 128  # of each row: 128 FP8 elements, one scale
SCALE_BLOCK_N = 128  # columns that share one scale of b

_HELD_BYTES_OF_WAVE = 48 * 1024  # of its 64 KiB of registers, for operands and sums
_LANE_GROUPS = 4  # of a 16x16 MFMA, whose lanes have different columns
_ROWS_OF_PASSES = 64  # that two halves of 4 waves load with 16 bytes a thread

ELEMENT_BYTES = {"e4m3": 1, "e5m2": 1, "bf16": 2, "f16": 2, "f32": 4}
FP8_TYPES = ("e4m3", "e5m2")
MAJORS = ("k", "rows", "shuffled")
OUTPUT_TYPES = ("bf16", "f16", "f32", *FP8_TYPES)
BIAS_TYPES = ("none", "bf16", "f16", "f32")
SCALINGS = ("none", "blocks", "vectors", "rows")
PARTS_OF_B = {"identity": 1, "silu_and_mul": 2}  # that an activation takes, see activation.h
GROUPINGS = ("dense", "batched", "contiguous", "psum", "masked", "split_k", "summed", "k_grouped")
SCHEDULES = ("multistage", "pingpong", "producer", "alone")


def _require(condition: bool, expectation: str, came: object) -> None:
    if not condition:
        raise ValueError(f"{expectation}, got {came}")


@dataclasses.dataclass(frozen=True)
class GemmKind:
    """What a GEMM kernel computes: template values of ``gemm.hip.j2`` that the problem decides.

    Attributes:
        a_type, b_type: of the operands: ``e4m3`` or ``e5m2`` in any pairing, ``bf16`` or ``f16`` for both, or ``bf16``
            and ``f32``.
        d_type: of the output, and of ``c``: ``bf16``, ``f16`` or ``f32``; or ``e4m3`` or ``e5m2``, quantised with a
            scale for each row and 128 columns.
        scaling: what shares a scale: ``blocks`` of 128 x 128 of b and 128 of K of a's rows, ``vectors`` of 128 of K of
            both, or whole ``rows`` of both; ``none`` for operands without scales.
        accumulate: whether ``c`` is added.
        grouping: how a workgroup finds the tiles it computes, see ``tile_source.h``: ``dense`` has one group,
            ``batched`` has groups of equal sizes, ``contiguous`` reads the group of each row, ``psum`` the end of each
            group's rows, ``masked`` their number; with ``split_k`` and ``k_grouped`` each group has all rows and a part
            of K, with ``summed`` a part of all K of a batch.
        k_tail: whether K may be something else than a multiple of 128 bytes.
        skips_head_mid: whether the output's columns are those of heads, each of which has a gap in the middle.
        sums_squares: whether the squares of a's rows are added up as well, of ``bf16`` times ``f32``.
        a_major, b_major: which dimension of the operand is contiguous, ``k`` or its ``rows``; or that b is
            ``shuffled``, as ``shuffle_weight`` in ``layout.py`` does it.
        bias: the type of what is added to each column, or ``none``.
        activation: what is applied to the sums, see ``activation.h``: ``identity`` or ``silu_and_mul``.
        sums_parts: whether groups, which have parts of K, only compute parts of the output; a second kernel adds these
            up.
    """

    a_type: str = "e4m3"
    b_type: str = "e4m3"
    d_type: str = "bf16"
    scaling: str = "blocks"
    accumulate: bool = False
    grouping: str = "dense"
    k_tail: bool = False
    a_major: str = "k"
    b_major: str = "k"
    skips_head_mid: bool = False
    sums_squares: bool = False
    bias: str = "none"
    activation: str = "identity"
    sums_parts: bool = False

    def __post_init__(self) -> None:
        types = (self.a_type, self.b_type)
        is_fp8 = all(name in FP8_TYPES for name in types)
        known = is_fp8 or types in (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"))
        _require(known, "operands must both be FP8, bf16 or f16, or bf16 and f32", self)
        _require(self.sums_squares == (types == ("bf16", "f32")), "squares are summed of bf16, times f32", self)
        _require(not self.sums_squares or self.is_k_major, "operands must be contiguous along K", self)
        _require(self.d_type in OUTPUT_TYPES, f"d_type must be one of {OUTPUT_TYPES}", self)
        _require(self.scaling in SCALINGS, f"scaling must be one of {SCALINGS}", self)
        _require(is_fp8 or self.scaling == "none", "only FP8 operands have scales", self)
        _require(self.grouping in GROUPINGS, f"grouping must be one of {GROUPINGS}", self)
        _require(self.a_major in MAJORS and self.b_major in MAJORS, f"majors must be one of {MAJORS}", self)
        _require(self.bias in BIAS_TYPES, f"bias must be one of {BIAS_TYPES}", self)
        _require(self.activation in PARTS_OF_B, f"activation must be one of {tuple(PARTS_OF_B)}", self)
        _require(
            not self.accumulate or (self.activation == "identity" and not self.is_quantised),
            "c isn't added to what was activated or will be quantised",
            self,
        )
        _require(not (self.skips_head_mid and self.is_quantised), "heads with a gap aren't quantised", self)
        has_parts = self.grouping in ("split_k", "summed") and not self.sums_squares and not self.skips_head_mid
        computes_sums = self.activation == "identity" and not self.is_quantised
        _require(not self.sums_parts or (has_parts and computes_sums), "parts are summed of sums over K only", self)
        _require(self.a_major != "shuffled", "only b may be shuffled", self)
        is_shuffled = self.b_major == "shuffled"
        can_be_shuffled = self.grouping not in ("summed", "k_grouped") and not self.k_tail and not self.sums_squares
        _require(not is_shuffled or can_be_shuffled, "b is shuffled where it is a weight of whole K-blocks", self)
        _require(
            self.a_major == "k" or self.grouping in ("dense", "batched", "split_k", "summed", "k_grouped"),
            "a of groups must be contiguous along K",
            self,
        )

    @property
    def element_bytes(self) -> int:
        """Of an element of a or b as it is multiplied."""
        return ELEMENT_BYTES[self.b_type]

    @property
    def parts(self) -> int:
        """How many rows of b make a column of the output."""
        return PARTS_OF_B[self.activation]

    @property
    def is_quantised(self) -> bool:
        """Whether the output is FP8 and has scales."""
        return self.d_type in FP8_TYPES

    @property
    def is_k_major(self) -> bool:
        """Whether both operands can be loaded as they are needed, 16 bytes along K at a time."""
        return self.a_major == self.b_major == "k"

    @property
    def has_known_number_of_tiles(self) -> bool:
        """Whether the host knows how many tiles there are; else only the device does."""
        return self.grouping in ("dense", "batched", "contiguous", "split_k", "summed", "k_grouped")

    @property
    def name(self) -> str:
        """As it begins the kernel's name."""
        layout = {"k": "n", "rows": "t"}[self.a_major] + {"k": "t", "rows": "n", "shuffled": "s"}[self.b_major]
        of_rows = self.grouping in ("contiguous", "psum", "masked")
        groups = "" if self.grouping == "dense" else f"{'m_grouped_' if of_rows else ''}{self.grouping}_"
        family = f"{groups}gemm_{layout}"
        operands = self.a_type if self.a_type == self.b_type else f"{self.a_type}_{self.b_type}"
        scaling = "" if self.scaling == "none" else f"_{self.scaling}"
        bias = "" if self.bias == "none" else f"_bias_{self.bias}"
        activation = "" if self.activation == "identity" else f"_{self.activation}"
        output = f"{self.d_type}{'_c' if self.accumulate else ''}{'_skip_mid' if self.skips_head_mid else ''}"
        output += f"{'_square_sums' if self.sums_squares else ''}{'_of_parts' if self.sums_parts else ''}"
        return f"{family}_{operands}{scaling}{bias}{activation}_{output}"


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """A GEMM kernel: all template values of ``gemm.hip.j2``. A combination that can't be compiled raises ValueError.

    Attributes:
        kind: what it computes.
        block_m, block_n: output tile of a workgroup.
        waves_m, waves_n: the grid of waves that shares it.
        num_stages: K-blocks held at once, in LDS or on their way in registers. 1: nothing overlaps; 2: loads overlap
            the computation; from 3 on LDS is double-buffered (of ``pingpong`` only for b). Those of ``alone`` are all
            in registers.
        schedule: ``multistage`` leaves the order within a K-block to the compiler; with ``pingpong`` two halves of 8
            waves take turns, one loads while the other computes; with ``producer`` some waves only load and the others
            only compute; with ``alone`` nothing goes through LDS, each wave loads what it multiplies, for few rows.
        producer_waves: how many only load, beside those that compute.
        waves_k: into how many parts a tile's K is dealt; with more than one, each has one wave of the ``alone``
            schedule, which computes the whole tile over it.
        mfma_rows: 16 for MFMA 16x16 (x32 for FP8, x16 for 16 bits), 32 for 32x32.
        group_m: tile rows that are walked together, so that they share columns of b in L2.
        xcd_chunk: tiles in a row that run on the same XCD, so that they share its L2.
    """

    block_m: int
    block_n: int
    waves_m: int
    waves_n: int
    num_stages: int
    schedule: str = "multistage"
    mfma_rows: int = 16
    producer_waves: int = 0
    waves_k: int = 1
    kind: GemmKind = GemmKind()
    group_m: int = 8
    xcd_chunk: int = 32

    def __post_init__(self) -> None:
        def require(condition: bool, expectation: str) -> None:
            _require(condition, expectation, self)

        require(self.mfma_rows in (16, 32), "mfma_rows must be 16 or 32")
        require(self.schedule in SCHEDULES, f"schedule must be one of {SCHEDULES}")
        contiguous = self.kind.grouping == "contiguous"
        require(not contiguous or self.block_m <= 128, "tiles of contiguous groups have up to 128 rows")
        grid = (self.waves_m, self.waves_n, self.waves_k)
        require(min(grid) >= 1, "waves_m, waves_n and waves_k must be positive")
        require(self.num_threads <= MAX_THREADS, f"a workgroup has at most {MAX_THREADS} threads")
        for tile, waves in ((self.block_m, self.waves_m), (self.block_n, self.waves_n)):
            require(tile > 0 and tile % (waves * self.mfma_rows) == 0, "waves and MFMA tiles must divide the tile")
        parts = self.kind.parts
        require(self.wave_n // self.mfma_rows % parts == 0, f"a wave must have MFMA tiles of all {parts} parts of b")
        scales_fit = not self.kind.is_quantised or self.output_n == SCALE_BLOCK_N
        require(scales_fit, f"a tile of quantised output has {SCALE_BLOCK_N} columns, which share a scale")
        shares_scale = SCALE_BLOCK_N % self.wave_n == 0 or parts == 1
        require(shares_scale, f"a wave's columns of {parts} parts must divide {SCALE_BLOCK_N}, which share a scale")
        per_column = self.kind.scaling == "vectors"
        require(self.mfma_rows == 16 or not per_column, "a lane of a 32x32 MFMA holds more columns than scales fit")
        require(self.num_stages >= 1, "num_stages must be positive")
        require(self.group_m >= 1 and self.xcd_chunk >= 1, "group_m and xcd_chunk must be positive")
        require(self.lds_bytes <= LDS_BYTES, f"a workgroup has at most {LDS_BYTES} bytes of LDS, not {self.lds_bytes}")
        require(self.waves_k == 1 or self.schedule == "alone", "only the alone schedule deals K to waves")
        adds = self.kind.sums_squares or self.kind.grouping == "summed"
        require(self.schedule == "multistage" or not adds, "only the multistage schedule sums squares or batches")
        is_shuffled = self.kind.b_major == "shuffled"
        require(self.schedule == "multistage" or not is_shuffled, "only the multistage schedule takes a shuffled b")
        if self.schedule == "alone":
            require(self.waves_k == 1 or self.waves_m == self.waves_n == 1, "each of waves_k parts has one wave")
            require(self.kind.is_k_major, "waves alone take operands that are contiguous along K")
            require(self.kind.grouping != "k_grouped", "groups with a K of their own aren't for waves alone")
            compares = self.kind.is_quantised and self.waves_n > 1
            require(not compares, "waves alone don't compare their columns, as a quantised row asks for")
            held = self.num_stages * (self.wave_m + self.wave_n) * BLOCK_K_BYTES + 4 * self.wave_m * self.wave_n
            if per_column:  # each of a lane's columns has a scale for each K-block held, and one in use
                held += (self.num_stages + 1) * self.wave_n // _LANE_GROUPS * 4 * WAVE_SIZE
            most = _HELD_BYTES_OF_WAVE
            require(held <= most, f"a wave alone has registers for {most} bytes of operands and sums, not {held}")
        if self.schedule == "pingpong":
            require(self.num_stages == 3, "the pingpong schedule has exactly 3 stages")
            require(self.waves_m * self.waves_n == 8, "the pingpong schedule takes 8 waves")
            divided = self.waves_n if self.halves_of_n else self.waves_m
            require(
                divided % 2 == 0, "the pingpong schedule divides the tile's longer side among two halves of the waves"
            )
        if self.schedule == "producer":
            require(self.num_stages >= 3, "the producer schedule has at least 3 stages, two of which are in LDS")
            require(self.producer_waves >= 1, "the producer schedule has producer_waves")
            require(self.waves_m * self.waves_n % self.producer_waves == 0, "producer_waves must divide the others")
            held = (self.num_stages - 2) * (self.block_m + self.block_n) * BLOCK_K_BYTES // self.producer_waves
            most = 128 * WAVE_SIZE
            quantised = self.kind.is_quantised
            require(not quantised, "waves that only load miss the barriers at which rows of the output are quantised")
            require(held <= most, f"a producer wave has registers for {most} bytes on their way, not {held}")
        else:
            require(self.producer_waves == 0, "only the producer schedule has producer_waves")

    @property
    def num_threads(self) -> int:
        return (self.waves_m * self.waves_n * self.waves_k + self.producer_waves) * WAVE_SIZE

    @property
    def wave_m(self) -> int:
        return self.block_m // self.waves_m

    @property
    def wave_n(self) -> int:
        return self.block_n // self.waves_n

    @property
    def output_n(self) -> int:
        """Columns of output in a tile."""
        return self.block_n // self.kind.parts

    @property
    def halves_of_n(self) -> bool:
        """Whether the halves of the waves that take turns divide the tile's columns, and not its rows."""
        return self.schedule == "pingpong" and self.block_n > self.block_m

    @property
    def last_round_shares(self) -> int:
        """How many workgroups share the columns of a tile of the last round, if there are as many of them."""
        overlaps = self.schedule == "pingpong" and not self.kind.is_quantised and self.kind.scaling != "vectors"
        has_shares = (self.block_m, self.block_n, self.mfma_rows) == (128, 256, 16)
        return 4 if overlaps and has_shares else 1

    @forking.cached_property
    def taller(self) -> GemmConfig | None:
        """How launches of the kernel compute tiles where groups have so many rows that fewer, taller ones take less
        time, if it can do either: only the device knows. Compilers have scalar registers for both where results are
        rounded to 16 bits, and nothing else is done with them."""
        tile = (self.block_m, self.block_n, self.waves_m, self.waves_n, self.mfma_rows)
        has_taller = self.schedule == "pingpong" and tile == (128, 128, 4, 2, 16)
        kind = self.kind
        computes_sums = kind.activation == "identity" and kind.bias == "none" and not kind.accumulate
        if kind.grouping != "masked" or not has_taller or not computes_sums or ELEMENT_BYTES[kind.d_type] != 2:
            return None
        return dataclasses.replace(self, block_m=192)

    @property
    def lds_bytes(self) -> int:
        """Of a workgroup."""
        return max(self._lds_bytes_of_tile, self.taller.lds_bytes if self.taller else 0)

    @property
    def _lds_bytes_of_tile(self) -> int:
        if self.schedule == "pingpong":
            # One stage of the side that the halves divide, for whole passes of each; two of the other.
            divided, shared = max(self.block_m, self.block_n), min(self.block_m, self.block_n)
            return (ceil_div(divided, _ROWS_OF_PASSES) * _ROWS_OF_PASSES + 2 * shared) * BLOCK_K_BYTES
        if self.schedule == "alone":
            return 4 * self.block_m * self.block_n * self.waves_k if self.waves_k > 1 else 0  # sums are exchanged
        stages = 1 if self.num_stages < 3 else 2
        rows_of_b = 0 if self.kind.b_major == "shuffled" else self.block_n
        return stages * (self.block_m + rows_of_b) * BLOCK_K_BYTES

    @property
    def workgroups_per_cu(self) -> int:
        """How many workgroups a CU can run at once."""
        return min(LDS_BYTES // max(self.lds_bytes, 1), MAX_THREADS // self.num_threads)

    @property
    def kernel_name(self) -> str:
        """The kernel's name, as profilers show it."""
        rows = f"{self.block_m}or{self.taller.block_m}" if self.taller else f"{self.block_m}"
        tile = f"{rows}x{self.block_n}x{BLOCK_K_BYTES // self.kind.element_bytes}"
        parts = f"k{self.waves_k}" if self.waves_k > 1 else ""
        waves = f"w{self.waves_m}x{self.waves_n}{parts}{f'p{self.producer_waves}' if self.producer_waves else ''}"
        how = f"{waves}_mfma{self.mfma_rows}_s{self.num_stages}_{self.schedule}"
        order = "" if self.group_m == GemmConfig.group_m else f"_g{self.group_m}"
        order += "" if self.xcd_chunk == GemmConfig.xcd_chunk else f"_x{self.xcd_chunk}"
        return f"{self.kind.name}_{tile}_{how}{order}{'_ktail' if self.kind.k_tail else ''}"

    @forking.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "kind"}
        return {
            **dataclasses.asdict(self.kind),
            **own,
            "halves_of_n": self.halves_of_n,
            "last_round_shares": self.last_round_shares,
            "taller_block_m": self.taller.block_m if self.taller else 0,
            "kernel_name": self.kernel_name,
        }

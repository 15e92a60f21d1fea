"""What a GEMM kernel is compiled for, and which of it a problem should run."""

from __future__ import annotations

import dataclasses
import functools

LDS_BYTES = 64 * 1024  # of a CU, and the most that one workgroup may have
MAX_THREADS = 512  # of a workgroup, and of a CU, at 256 registers a lane
WAVE_SIZE = 64
BLOCK_K_BYTES = 128  # of each row: 128 FP8 elements, one scale
SCALE_BLOCK_N = 128  # columns that share one scale of b

SCHEDULES = ("multistage", "pinned")
GROUPINGS = ("dense", "contiguous", "psum", "masked")


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """Template values of ``gemm_fp8.hip.j2``. A combination that can't be compiled raises ValueError.

    Attributes:
        block_m, block_n: output tile of a workgroup.
        waves_m, waves_n: the grid of waves that shares it.
        num_stages: K-blocks held at once, in LDS or on their way in registers. 1: nothing overlaps; 2: loads overlap
            the computation; from 3 on LDS is double-buffered.
        schedule: ``multistage`` leaves the order within a K-block to the compiler; ``pinned`` gives every memory
            operation its place between MFMAs, for large tiles.
        mfma_rows: 16 for MFMA 16x16x32, 32 for 32x32x16.
        k_tail: whether K may be something else than a multiple of 128.
        grouping: how a workgroup finds the tiles it computes, see ``tile_source.h``: ``dense`` has one group,
            ``contiguous`` reads the group of each row, ``psum`` the end of each group's rows, ``masked`` their number.
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
    k_tail: bool = False
    grouping: str = "dense"
    group_m: int = 8
    xcd_chunk: int = 32

    def __post_init__(self) -> None:
        def require(condition: bool, expectation: str) -> None:
            if not condition:
                raise ValueError(f"{expectation}, got {self}")

        require(self.mfma_rows in (16, 32), "mfma_rows must be 16 or 32")
        require(self.schedule in SCHEDULES, f"schedule must be one of {SCHEDULES}")
        require(self.grouping in GROUPINGS, f"grouping must be one of {GROUPINGS}")
        require(self.grouping != "contiguous" or self.block_m <= 128, "tiles of contiguous groups have up to 128 rows")
        require(self.waves_m >= 1 and self.waves_n >= 1, "waves_m and waves_n must be positive")
        require(self.num_threads <= MAX_THREADS, f"a workgroup has at most {MAX_THREADS} threads")
        for tile, waves in ((self.block_m, self.waves_m), (self.block_n, self.waves_n)):
            require(tile > 0 and tile % (waves * self.mfma_rows) == 0, "waves and MFMA tiles must divide the tile")
        require(SCALE_BLOCK_N % self.wave_n == 0, f"a wave's columns must divide {SCALE_BLOCK_N}, which share a scale")
        require(self.num_stages >= 1, "num_stages must be positive")
        require(self.group_m >= 1 and self.xcd_chunk >= 1, "group_m and xcd_chunk must be positive")
        require(self.lds_bytes <= LDS_BYTES, f"a workgroup has at most {LDS_BYTES} bytes of LDS, not {self.lds_bytes}")
        if self.schedule == "pinned":
            require(self.num_stages == 2, "the pinned schedule has exactly 2 stages")
            require(self.mfma_rows == 16, "the pinned schedule holds too many partial sums of a 32x32 MFMA")
            require((self.wave_m, self.wave_n) == (64, 64), "the pinned schedule is laid out for waves of 64x64")

    @property
    def num_threads(self) -> int:
        return self.waves_m * self.waves_n * WAVE_SIZE

    @property
    def wave_m(self) -> int:
        return self.block_m // self.waves_m

    @property
    def wave_n(self) -> int:
        return self.block_n // self.waves_n

    @property
    def lds_bytes(self) -> int:
        lds_stages = 1 if self.num_stages < 3 else 2
        return lds_stages * (self.block_m + self.block_n) * BLOCK_K_BYTES

    @property
    def workgroups_per_cu(self) -> int:
        """How many workgroups a CU can run at once."""
        return min(LDS_BYTES // self.lds_bytes, MAX_THREADS // self.num_threads)

    @property
    def has_known_number_of_tiles(self) -> bool:
        """Whether the host knows how many tiles there are; else only the device does."""
        return self.grouping in ("dense", "contiguous")

    @functools.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        return dataclasses.asdict(self)

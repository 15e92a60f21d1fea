"""What a GEMM kernel is compiled for: the kind of problem that it solves, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .. import forking
from ..problems.gemm_kind import ROWS_OF_SIGNAL, GemmKind, check_rules
from ..problems.layout import align, ceil_div

NUM_CUS = 304  # of an MI300X
LDS_BYTES = 64 * 1024  # of a CU, and the most that one workgroup may have
MAX_THREADS = 512  # of a workgroup, and of a CU, at 256 registers a lane
_REGISTERS = MAX_THREADS * 256  # of all threads of a CU
WAVE_SIZE = 64
BLOCK_K_BYTES = 128  # of each row: 128 FP8 elements, one scale
MFMA_ROWS = 16  # of an MFMA 16x16, x32 for FP8 and x16 for 16 bits
SCALE_BLOCK_N = 128  # columns that share one scale of b

_WAVE_ALONE_BYTES = 48 * 1024  # of the 64 KiB of an ``alone`` wave's registers, for operands and sums
_LARGE_WAVE_ALONE_BYTES = 92 * 1024  # of 128 KiB, with which clang 19 doesn't spill either
_WITHOUT_SCALES_BYTES = 4 * 1024  # more, where there are neither scales nor sums to promote
_LANE_GROUPS = 4  # of an MFMA; each has columns of its own
_K_BLOCKS_OF_SCALES = 32  # in LDS for each wave alone
_LARGE_WAVE = 64 * 48  # results of a wave alone, whose scales of rows are in LDS
_ROWS_OF_PASSES = 64  # that two halves of 4 waves load with 16 bytes a thread
_TWO_HEIGHTS = (128, 192)  # of the tiles that one kernel for masked groups may have

SCHEDULES = ("multistage", "pingpong", "alone")


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """A GEMM kernel: all template values of ``gemm.hip.j2``. The rules below say which combinations exist.

    Attributes:
        kind: what is computed.
        block_m, block_n: output tile of a workgroup.
        waves_m, waves_n: the grid of waves that shares it.
        num_stages: K-blocks held at once, in LDS or on their way in registers. 1: nothing overlaps; 2: loads overlap
            the computation; from 3 on LDS is double-buffered (``pingpong`` double-buffers b only). ``alone`` holds all
            of them in registers.
        schedule: ``multistage`` leaves the order within a K-block to the compiler. With ``pingpong`` two halves of 8
            waves take turns: one loads while the other computes. With ``alone`` operands don't go through LDS: each
            wave loads those that it multiplies.
        waves_k: split-K over waves: into how many parts a tile's K is split. With more than one, each part has one wave
            of the ``alone`` schedule, which computes the whole tile over it.
        group_m: tile rows that are walked together, so that they share columns of b in L2.
        parts_k: into how many parts each wave splits its K, which it sums one after the other and then adds up. Results
            have the same bits as with as many ``waves_k``.
    """

    block_m: int
    block_n: int
    waves_m: int
    waves_n: int
    num_stages: int
    schedule: str = "multistage"
    waves_k: int = 1
    kind: GemmKind = dataclasses.field(default_factory=GemmKind)
    group_m: int = 8
    parts_k: int = 1

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the combination can't be compiled.
        """
        check_rules(self, _RULES)
        check_rules(self, _RULES_OF_SCHEDULES[self.schedule])

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return self.waves_m * self.waves_n * self.waves_k

    @property
    def num_threads(self) -> int:
        return self.waves * WAVE_SIZE

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
    def rows_of_signal(self) -> int:
        """Rows that share a counter of finished tiles, see ``tile_signal.h``."""
        return align(ROWS_OF_SIGNAL, self.block_m)

    def tiles_of_signal(self, n: int) -> int:
        """The value of a counter once all ``n`` columns of its rows are finished."""
        return self.rows_of_signal // self.block_m * ceil_div(n, self.output_n)

    @property
    def halves_of_n(self) -> bool:
        """Whether the halves of the waves that take turns divide the tile's columns, and not its rows."""
        return self.schedule == "pingpong" and self.block_n > self.block_m

    @forking.cached_property
    def taller(self) -> GemmConfig | None:
        """The same configuration with taller tiles, if launches of the kernel may choose these, too."""
        low, high = _TWO_HEIGHTS
        tile = (self.block_m, self.block_n, self.waves_m, self.waves_n)
        has_taller = self.schedule == "pingpong" and tile == (low, 128, 4, 2)
        return dataclasses.replace(self, block_m=high) if has_taller and self.kind.has_tiles_of_two_heights else None

    @property
    def lds_bytes(self) -> int:
        """LDS that a workgroup takes."""
        return max(self._lds_bytes_of_tile, self.taller.lds_bytes if self.taller else 0)

    @property
    def _lds_bytes_of_tile(self) -> int:
        if self.schedule == "pingpong":
            # One stage of the side that the halves divide, for whole passes of each; two stages of the other side.
            divided, shared = max(self.block_m, self.block_n), min(self.block_m, self.block_n)
            return (ceil_div(divided, _ROWS_OF_PASSES) * _ROWS_OF_PASSES + 2 * shared) * BLOCK_K_BYTES
        if self.schedule == "alone":
            return self._exchanged_bytes if self.waves_k > 1 else self._bytes_of_row_scales
        stages = 1 if self.num_stages < 3 else 2
        return stages * (self.block_m + self.block_n) * BLOCK_K_BYTES

    @property
    def _bytes_of_row_scales(self) -> int:
        """LDS for scales of rows, of large waves with columns of their own; see kHasLdsForRowScales."""
        is_large = self.wave_m > MFMA_ROWS and self.wave_m * self.wave_n >= _LARGE_WAVE
        has_many = self.kind.is_a_scaled and self.kind.scaling != "rows" and self.wave_m * self.num_stages > 64
        return 4 * self.block_m * self.waves_n * _K_BLOCKS_OF_SCALES if is_large and has_many else 0

    @property
    def _exchanged_bytes(self) -> int:
        """LDS for sums that waves exchange, of as many columns as fit. It holds the scales of their rows before."""
        column = 4 * self.block_m * self.waves_k
        columns = min(self.block_n, LDS_BYTES // (column * MFMA_ROWS) * MFMA_ROWS)
        least = _K_BLOCKS_OF_SCALES if self.wave_m > MFMA_ROWS else 0
        return column * max(columns, least)

    @property
    def wave_alone_bytes(self) -> int:
        """Registers that a wave of the ``alone`` schedule takes for operands, sums and scales."""
        operands = self.num_stages * (self.wave_m + self.wave_n) * BLOCK_K_BYTES
        if (
            self.kind.widens_b and not self.kind.promotes_columns
        ):  # those of b are held as four bits, and one K-block of them widened
            loaded = self.wave_m + self.wave_n // (2 * self.kind.element_bytes)
            operands = (self.num_stages * loaded + self.wave_n) * BLOCK_K_BYTES
        # The totals. With parts_k, also the sum of the parts before; with rounds, also the sums of a round.
        sums = (1 + (self.parts_k > 1) + self.kind.has_rounds) * 4 * self.wave_m * self.wave_n
        if not self.kind.promotes_columns:
            return operands + sums
        if self.kind.widens_b:
            sums *= 2  # sums of a K-block besides the totals
        # A lane has scales of each of its columns for each K-block that is held, and of one in use. With several groups
        # lanes share those of an MFMA tile that are held.
        scales = self.wave_n // _LANE_GROUPS * 4 * WAVE_SIZE
        held = scales if self.kind.promotions == 1 else self.wave_n // MFMA_ROWS * 4 * WAVE_SIZE
        return operands + sums + self.kind.promotions * scales + self.num_stages * held

    @property
    def most_wave_alone_bytes(self) -> int:
        if self.waves_k > 1 and self.num_threads <= MAX_THREADS // 2:
            return _LARGE_WAVE_ALONE_BYTES
        return self._usual_wave_alone_bytes

    @property
    def _usual_wave_alone_bytes(self) -> int:
        return _WAVE_ALONE_BYTES + (_WITHOUT_SCALES_BYTES if self.kind.scaling == "none" else 0)

    @property
    def registers(self) -> int:
        """The most registers of a lane. With 512, a SIMD has room for one wave."""
        is_large = self.schedule == "alone" and self.wave_alone_bytes > self._usual_wave_alone_bytes
        return 512 if is_large else 256

    @property
    def widens_ahead(self) -> bool:
        """Whether a wave alone widens what it multiplies next while it multiplies, see ``kWidensAhead``. Kinds with
        scales of columns do so with up to four fragments, which isn't worth a distinction."""
        if not self.kind.widens_b or self.kind.has_rounds or self.kind.promotes_columns:
            return False
        of_a = self.wave_m // MFMA_ROWS
        fits = of_a * (self.wave_n // MFMA_ROWS) <= 12 and of_a * self.num_stages < 12
        return of_a > 1 and (fits or not self.kind.is_a_scaled)

    @property
    def sums_of_parts(self) -> int:
        """The most results of a wave with parts_k. Scales along K take registers, too."""
        return (56 if self.kind.scaling in ("none", "rows") else 32) * WAVE_SIZE

    @forking.cached_property
    def workgroups_per_cu(self) -> int:
        """How many workgroups a CU can run at once."""
        return min(LDS_BYTES // max(self.lds_bytes, 1), _REGISTERS // (self.registers * self.num_threads))

    @property
    def kernel_name(self) -> str:
        """The kernel's name, as profilers show it."""
        rows = f"{self.block_m}or{self.taller.block_m}" if self.taller else f"{self.block_m}"
        tile = f"{rows}x{self.block_n}x{BLOCK_K_BYTES // self.kind.element_bytes}"
        parts = f"k{self.waves_k}" if self.waves_k > 1 else ""
        waves = f"w{self.waves_m}x{self.waves_n}{parts}"
        how = f"{waves}_mfma{MFMA_ROWS}_s{self.num_stages}_{self.schedule}"
        order = "" if self.group_m == GemmConfig.group_m else f"_g{self.group_m}"
        order += f"_parts{self.parts_k}" if self.parts_k > 1 else ""
        return f"{self.kind.name}_{tile}_{how}{order}{'_ktail' if self.kind.k_tail else ''}"

    @forking.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "kind"}
        return {
            **dataclasses.asdict(self.kind),
            **own,
            "halves_of_n": self.halves_of_n,
            "taller_block_m": self.taller.block_m if self.taller else 0,
            "registers": self.registers,
            "kernel_name": self.kernel_name,
        }


_Rules = tuple[tuple[str, Callable[[GemmConfig], bool]], ...]

# Which combinations exist, whatever the schedule.
_RULES: _Rules = (
    (f"schedule must be one of {SCHEDULES}", lambda config: config.schedule in SCHEDULES),
    (
        "waves_m, waves_n, waves_k, num_stages, group_m and parts_k must be positive",
        lambda config: (
            min(config.waves_m, config.waves_n, config.waves_k, config.num_stages, config.group_m, config.parts_k) >= 1
        ),
    ),
    (
        "waves that deal K don't sum parts of it one after the other",
        lambda config: config.parts_k == 1 or config.waves_k == 1,
    ),
    (
        "a wave has registers for two sums of {0.sums_of_parts} results, of a part and of those before",
        lambda config: config.parts_k == 1 or config.wave_m * config.wave_n <= config.sums_of_parts,
    ),
    (f"a workgroup has at most {MAX_THREADS} threads", lambda config: config.num_threads <= MAX_THREADS),
    (
        "waves and MFMA tiles must divide the tile",
        lambda config: (
            min(config.block_m, config.block_n) > 0
            and config.block_m % (config.waves_m * MFMA_ROWS) == 0
            and config.block_n % (config.waves_n * MFMA_ROWS) == 0
        ),
    ),
    (
        f"a workgroup has at most {LDS_BYTES} bytes of LDS, not {{0.lds_bytes}}",
        lambda config: config.lds_bytes <= LDS_BYTES,
    ),
    (
        "tiles of contiguous groups have up to 128 rows",
        lambda config: config.kind.grouping != "contiguous" or config.block_m <= 128,
    ),
    (
        "a wave must have MFMA tiles of all {0.kind.parts} parts of b",
        lambda config: config.wave_n // MFMA_ROWS % config.kind.parts == 0,
    ),
    (
        f"a wave's columns of {{0.kind.parts}} parts must divide {SCALE_BLOCK_N}, which share a scale",
        lambda config: config.kind.parts == 1 or SCALE_BLOCK_N % config.wave_n == 0,
    ),
    (
        f"a tile of quantised output has {SCALE_BLOCK_N} columns, which share a scale",
        lambda config: not config.kind.is_quantised or config.output_n == SCALE_BLOCK_N,
    ),
    ("only the alone schedule deals K to waves", lambda config: config.waves_k == 1 or config.schedule == "alone"),
    (
        "waves alone and ping-pong widen four bits",
        lambda config: config.schedule in ("alone", "pingpong") or not config.kind.widens_b,
    ),
    (
        "only the multistage schedule sums squares or batches",
        lambda config: (
            config.schedule == "multistage" or not (config.kind.sums_squares or config.kind.grouping == "summed")
        ),
    ),
)

# Further conditions of each schedule.
_RULES_OF_SCHEDULES: dict[str, _Rules] = {
    "multistage": (),
    "pingpong": (
        ("the pingpong schedule has exactly 3 stages", lambda config: config.num_stages == 3),
        ("the pingpong schedule takes 8 waves", lambda config: config.waves_m * config.waves_n == 8),
        (
            "the pingpong schedule divides the tile's longer side among two halves of the waves",
            lambda config: (config.waves_n if config.halves_of_n else config.waves_m) % 2 == 0,
        ),
        (
            "halves of the waves share the columns whose four bits they widen",
            lambda config: not (config.kind.widens_b and config.halves_of_n),
        ),
    ),
    "alone": (
        (
            "each of waves_k parts has one wave",
            lambda config: config.waves_k == 1 or config.waves_m == config.waves_n == 1,
        ),
        ("waves alone take operands that are contiguous along K", lambda config: config.kind.is_k_major),
        (
            "groups with a K of their own aren't for waves alone",
            lambda config: config.kind.grouping != "k_grouped",
        ),
        (
            "waves alone don't compare their columns, as a quantised row asks for",
            lambda config: not config.kind.is_quantised or config.waves_n == 1,
        ),
        (
            "a wave alone has registers for {0.most_wave_alone_bytes} bytes of operands and sums, "
            "not {0.wave_alone_bytes}",
            lambda config: config.wave_alone_bytes <= config.most_wave_alone_bytes,
        ),
    ),
}

"""A GEMM whose configuration is chosen, and the choice."""

from __future__ import annotations

from typing import NamedTuple

from ..problems.gemm_kind import GemmKind, changed
from .gemm_config import GemmConfig

KOrder = tuple[int, int]
_SCALES_OF_LINE = 32  # of the vector L1


class GemmProblem(NamedTuple):
    """The arguments of ``choose_gemm_config``.

    Attributes:
        k_order: the ``Choice.k_order`` that choices must have; None for any.
        scale_rows_are_apart: see ``are_scale_rows_apart``.
    """

    kind: GemmKind
    m: int
    n: int
    k: int
    num_cus: int
    num_groups: int
    max_block_m: int
    k_order: KOrder | None = None
    max_block_n: int = 256
    scale_rows_are_apart: bool = False

    def takes(self, config: GemmConfig) -> bool:
        """Whether the tiles of a configuration aren't larger than the problem allows."""
        return config.block_m <= self.max_block_m and config.output_n <= self.max_block_n

    def in_parts(self, splits: int) -> GemmProblem:
        """The parts of a dense problem whose K is split; with one, the sums that a second kernel makes results of."""
        kind = self.kind.in_parts if splits > 1 else changed(self.kind, sums_parts=True)
        return self._replace(kind=kind, n=self.n * self.kind.parts, num_groups=splits)


class Choice(NamedTuple):
    """How a problem is computed: the configuration, and into how many parts workgroups split K.

    With more than one, the configuration is for the parts. It may also be for a single part, whose sums a second kernel
    quantises.
    """

    config: GemmConfig
    splits: int = 1

    @property
    def is_in_parts(self) -> bool:
        """Whether the configuration is for parts of a dense problem, which a second kernel adds up."""
        return self.config.kind.grouping in ("dense", "split_k") and self.config.kind.sums_parts

    @property
    def kind(self) -> GemmKind:
        """The problem's kind."""
        kind: GemmKind = self.config.kind
        return changed(kind, grouping="dense", sums_parts=False) if self.is_in_parts else kind

    @property
    def k_order(self) -> KOrder:
        """Into how many parts K is dealt, and each of them again. Of equal orders, results have the same bits.

        Parts are added up in order, whether waves, workgroups or the K loop compute them.
        """
        inner = self.config.waves_k * self.config.parts_k
        # Scales of rows are applied to each part of a split K, but to the sum of all inner parts.
        if inner == 1 and self.config.kind.scaling != "rows":
            return 1, self.splits
        return self.splits, inner

    def __str__(self) -> str:
        return f"{self.config.kernel_name}{f', K in {self.splits} parts' if self.splits > 1 else ''}"


def with_tail(kind: GemmKind, k: int) -> GemmKind:
    """The kind for this K, whichever it was for."""
    k_tail = k * kind.element_bytes % 128 != 0
    return kind if kind.k_tail == k_tail else changed(kind, k_tail=k_tail)


def are_scale_rows_apart(strides: tuple[int, ...]) -> bool:
    """Whether each row's scales of ``a``, [M, K/128], have lines of the vector L1 for themselves."""
    to_next_row, to_next_column = strides
    return to_next_column == 1 and to_next_row >= _SCALES_OF_LINE

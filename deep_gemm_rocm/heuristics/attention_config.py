"""What a prefill attention kernel is compiled for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

from .. import forking
from ..problems.gemm_kind import ELEMENT_BYTES
from ..problems.layout import ceil_div
from .gemm_config import BLOCK_K_BYTES, LDS_BYTES, MAX_THREADS, NUM_CUS, WAVE_SIZE

_WIDEST_OF_32_ROWS = 128
_WIDEST_OF_4_WAVES = 192
# Waves, MFMA rows, and whether halves take turns: the quickest first of those with as many queries.
_SHAPES_OF_TILES = ((8, 32, True), (8, 32, False), (8, 16, True), (8, 16, False), (4, 16, False), (4, 32, False))


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """A kernel of ``flash_attention.hip.j2``: all its template values.

    Attributes:
        type: type of q: ``bf16``, ``f16`` or ``e4m3``.
        out_type: type of the output.
        head_dim: elements of a head of q and k.
        value_dim: elements of a head of v and the output.
        waves: waves of a workgroup; each has ``mfma_rows`` queries of its own.
        mfma_rows: 32 for MFMA 32x32, or 16 for 16x16, which needs half the registers for each query.
        take_turns: whether one half of the waves multiplies while the other computes probabilities.
        capped: whether logits have a soft cap.
        paged: whether keys and values are in pages.
        layout: how memory holds keys and values: ``plain``, in the type of q; in FP8 for q in bf16, ``e4m3``, with
            factors of heads, or ``e4m3_tokens``, with factors of tokens.
        page_size: tokens of a page that are compiled in; 0 for any power of two.
    """

    type: str
    out_type: str
    head_dim: int
    value_dim: int
    waves: int
    mfma_rows: int
    take_turns: bool
    capped: bool = False
    paged: bool = False
    layout: str = "plain"
    page_size: int = 0

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: there is no such kernel, or it would need more than a CU has.
        """
        if self.mfma_rows not in (16, 32) or self.waves not in (4, 8):
            raise ValueError(f"mfma_rows must be 16 or 32 and waves 4 or 8, got {self}")
        if self.take_turns and self.waves != 8:
            raise ValueError(f"halves that take turns are 4 waves each, got {self}")
        if self.mfma_rows == 32 and self.value_dim > _WIDEST_OF_32_ROWS:
            raise ValueError(f"sums of {self.value_dim} values for 32 queries don't fit registers, got {self}")
        if self.type == "e4m3" and self.waves == 4 and self.value_dim > _WIDEST_OF_4_WAVES:
            raise ValueError(f"operands of such heads in FP8 don't fit the registers of 4 waves, got {self}")
        if self.lds_bytes > LDS_BYTES:
            raise ValueError(f"{self.lds_bytes} bytes of LDS are more than {LDS_BYTES}, got {self}")

    @property
    def scaled(self) -> bool:
        """Whether k and v have factors of heads."""
        return "e4m3" in (self.type, self.layout)

    @property
    def num_threads(self) -> int:
        return self.waves * WAVE_SIZE

    @property
    def block_q(self) -> int:
        """Queries in a workgroup's tile."""
        return self.waves * self.mfma_rows

    @property
    def block_k(self) -> int:
        """Keys in a block."""
        return BLOCK_K_BYTES // ELEMENT_BYTES[self.type]

    @property
    def lds_bytes(self) -> int:
        """A block of keys and one of values; two of each to take turns, or two of keys and one of values."""
        keys = self.block_k * ceil_div(self.head_dim * ELEMENT_BYTES[self.type], BLOCK_K_BYTES) * BLOCK_K_BYTES
        values = ceil_div(self.value_dim, self.mfma_rows) * self.mfma_rows * BLOCK_K_BYTES
        if not self.take_turns:
            return keys + values
        share_values = 2 * (keys + values) > LDS_BYTES and self.type != "e4m3"
        return 2 * keys + (1 if share_values else 2) * values

    @property
    def workgroups_per_cu(self) -> int:
        """How many workgroups a CU can run at once."""
        return min(LDS_BYTES // self.lds_bytes, MAX_THREADS // self.num_threads)

    @property
    def kernel_name(self) -> str:
        """The kernel's name, as profilers show it."""
        types = self.type if self.type == self.out_type else f"{self.type}_{self.out_type}"
        traits = [
            self.layout if self.layout != "plain" else "",
            f"d{self.head_dim}x{self.value_dim}",
            f"q{self.block_q}",
            f"mfma{self.mfma_rows}",
            "capped" if self.capped else "",
            f"pages{self.page_size}" if self.page_size else "paged" if self.paged else "",
        ]
        return "_".join(("flash_attention", types, *filter(None, traits)))

    @forking.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        return {**dataclasses.asdict(self), "scaled": self.scaled, "kernel_name": self.kernel_name}


@functools.cache
def attention_tiles(type_: str, out_type: str, head_dim: int, value_dim: int) -> list[AttentionConfig]:
    """The quickest configuration for each size of tiles, the largest tile first. Larger tiles read keys less often."""
    tiles: dict[int, AttentionConfig] = {}
    for waves, mfma_rows, take_turns in _SHAPES_OF_TILES:
        with contextlib.suppress(ValueError):
            config = AttentionConfig(type_, out_type, head_dim, value_dim, waves, mfma_rows, take_turns)
            tiles.setdefault(config.block_q, config)
    return list(tiles.values())


def choose_attention_config(
    type_: str, out_type: str, head_dim: int, value_dim: int, tokens_q: int, heads: int
) -> AttentionConfig:
    """The largest tile that queries fill at least half, if there is one for each CU of an MI300X; else the smallest.

    Args:
        tokens_q: tokens of a sequence; on average, if sequences differ.
        heads: heads of all sequences together.
    """
    return _quickest(attention_tiles(type_, out_type, head_dim, value_dim), tokens_q, heads)


def config_for_any_batch(
    type_: str, out_type: str, head_dim: int, value_dim: int, tokens_q: int, heads: int
) -> AttentionConfig:
    """``choose_attention_config`` among the tiles whose MFMAs are those of the smallest one.

    MFMAs of other sizes add up in another order. All else that differs between tiles changes no bits.
    """
    tiles = attention_tiles(type_, out_type, head_dim, value_dim)
    return _quickest([tile for tile in tiles if tile.mfma_rows == tiles[-1].mfma_rows], tokens_q, heads)


def _quickest(tiles: list[AttentionConfig], tokens_q: int, heads: int) -> AttentionConfig:
    *larger, smallest = tiles
    for config in larger:
        if 2 * tokens_q > config.block_q and heads * ceil_div(tokens_q, config.block_q) >= NUM_CUS:
            return config
    return smallest


def heads_of_every_tile(tokens_q: int) -> list[int]:
    """Numbers of heads, of all sequences together, with which every tile is chosen that any number of heads gets."""
    return sorted({1, *(ceil_div(NUM_CUS, ceil_div(max(tokens_q, 1), block_q)) for block_q in (64, 128, 256))})

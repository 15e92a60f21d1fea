"""What a decode kernel is compiled for, and how it splits the keys."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..problems.layout import ceil_div
from .gemm_config import NUM_CUS

_WAVES_OF_CU = 8  # that a CU has room for at once
LATENT_ROWS = (16, 32, 64)  # of a workgroup over a latent cache
_BUSY = 0.8  # if so large a part of the CUs is busy, splitting gains less than combining costs
_LEAST_KEYS = 64  # of a piece, see kLeastKeys in decode_schedule.h
_LATENT_KEYS_TO_BEGIN = 192
_MOST_PARTS = 64  # of a sequence and head of keys, which a wave combines at once
# If other sequences must not matter.
_FEW_SEQUENCES = 8
_MOST_SPLITS = 64
_SPLIT_KEYS = 128  # at least
_MOST_LATENT_SPLITS = 32  # whose results take room for each sequence
_FEW_LATENT_QUERIES = 32  # of a token
_LATENT_SPLIT_KEYS_OF_FEW, _LATENT_SPLIT_KEYS = 256, 512  # at least


class DecodeConfig(NamedTuple):
    """A kernel of ``flash_decode.hip.j2`` or ``mla_decode.hip.j2``: all its template values.

    Attributes:
        type: type of q: ``bf16``, ``f16`` or ``e4m3``.
        out_type: type of the output.
        head_dim: elements of a head of q and k.
        value_dim: elements of a head of v and the output.
        latent_rows: 0; for a latent cache, whose values are the first elements of its keys, 16, 32 or 64, the queries
            of a workgroup.
        layout: how the caches hold tokens: ``plain``, in the type of q; in FP8 for q in bf16, ``e4m3``, with factors of
            heads, or ``e4m3_tokens``, with factors of tokens; a latent cache ``plain``, ``e4m3``, ``e4m3_656`` or
            ``e4m3_584``.
        is_ocp: whether FP8 values of a latent cache are OCP's.
        tokens: where the tokens of a sequence are in a latent cache: ``paged``; ``small_pages``, where eight
            neighbouring tokens may span two pages or more; ``indexed``, by a row of slots; or ``indexed_twice``, in two
            caches by a row of slots each.
        capped: whether logits have a soft cap.
        has_fp8_queries: whether queries for a latent cache are in its format of FP8, and widened to ``type``.
        page_size: tokens of a page that are compiled in; 0 for any power of two.
    """

    type: str
    out_type: str
    head_dim: int
    value_dim: int
    latent_rows: int = 0
    layout: str = "plain"
    is_ocp: bool = False
    tokens: str = "paged"
    capped: bool = False
    has_fp8_queries: bool = False
    page_size: int = 0

    @property
    def family(self) -> str:
        """The template, without its ending."""
        return "mla_decode" if self.latent_rows else "flash_decode"

    @property
    def rows(self) -> int:
        """Queries that share the keys of a workgroup."""
        return self.latent_rows or 16

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return 8 if self.latent_rows else 1

    @property
    def busy_waves(self) -> int:
        """Waves of a compute unit that suffice to keep memory busy; with more, only their prologues add up."""
        return _WAVES_OF_CU if self.latent_rows else _WAVES_OF_CU // 2

    @property
    def keys_to_begin(self) -> int:
        """How many keys take as long as a piece's prologue and epilogue; see kBlocksToBegin in the kernels."""
        return _LATENT_KEYS_TO_BEGIN if self.latent_rows else 32

    @property
    def kernel_name(self) -> str:
        """The kernel's name, as profilers show it."""
        types = self.type if self.type == self.out_type else f"{self.type}_{self.out_type}"
        traits = [
            self.layout if self.layout != "plain" else "",
            "ocp" if self.is_ocp else "",
            self.tokens if self.tokens != "paged" else "",
            f"d{self.head_dim}x{self.value_dim}",
            f"q{self.latent_rows}" if 0 < self.latent_rows < LATENT_ROWS[-1] else "",
            "capped" if self.capped else "",
            "fp8_queries" if self.has_fp8_queries else "",
            f"pages{self.page_size}" if self.page_size else "",
        ]
        return "_".join((self.family, types, *filter(None, traits)))

    @property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        return _template_values(self)


@functools.lru_cache(maxsize=256)
def _template_values(config: DecodeConfig) -> dict[str, int | str | bool]:
    names = {"kernel_name": config.kernel_name, "rows": config.rows}
    scaled = "e4m3" in (config.type, config.layout)
    return {**config._asdict(), "scaled": scaled, **names}


def latent_rows(queries: int, keys: int) -> int:
    """The rows of a workgroup over a latent cache. Results don't depend on it.

    With few queries, fewer rows waste fewer multiplications on padding, so that memory stays the limit. With many,
    fewer rows are better where workgroups would otherwise have so few keys that their prologue takes most of the time.

    Args:
        queries: tokens and heads of a sequence.
        keys: of all sequences.
    """
    rows = next((rows for rows in LATENT_ROWS if queries <= rows), LATENT_ROWS[-1])
    while rows > LATENT_ROWS[0] and keys * ceil_div(queries, rows) < _LATENT_KEYS_TO_BEGIN * NUM_CUS:
        rows //= 2
    return rows


def choose_num_pieces(config: DecodeConfig, queries_of_kv_head: int, sequence_heads: int, most_keys: int) -> int:
    """Number of pieces into which the keys of all sequences are cut, so that they fill a whole MI300X.

    It doesn't depend on how many compute units may be used, so that results don't either: the order of sums follows the
    pieces.

    Args:
        queries_of_kv_head: tokens and heads of q that share a head of keys.
        sequence_heads: heads of keys of all sequences together.
        most_keys: the most keys that a sequence may have.
    """
    waves = config.waves * max(ceil_div(queries_of_kv_head, config.rows), 1)
    return max(min(NUM_CUS * config.busy_waves // waves, most_pieces(config, sequence_heads, most_keys)), 1)


def is_busy_unsplit(config: DecodeConfig, sequence_heads: int, queries_of_kv_head: int) -> bool:
    """Whether workgroups of equally long sequences keep an MI300X busy if keys are not split.

    Each compute unit has one such workgroup at a time.

    Args:
        sequence_heads, queries_of_kv_head: as for ``choose_num_pieces``.
    """
    workgroups = sequence_heads * ceil_div(queries_of_kv_head, config.rows)
    rounds = ceil_div(workgroups, NUM_CUS)
    return rounds > 2 or workgroups >= _BUSY * rounds * NUM_CUS


def splits_for_any_batch(config: DecodeConfig, group: int, kv_heads: int, most_keys: int) -> tuple[int, int]:
    """Into how many splits the keys of a sequence are cut at most, and how many keys a split has at least.

    Together with the sequence's own length they decide where it is cut, whatever other sequences there are. More splits
    are faster for few sequences, but take longer to combine for many. These fill an MI300X with a few sequences. For
    latent caches there are fewer, as a split's results take as many bytes as some hundred of its keys.

    Args:
        group: queries of a token that share a head of keys.
        most_keys: the most keys that a sequence may have. They only limit the number of splits.
    """
    if config.latent_rows:
        split_keys = _LATENT_SPLIT_KEYS_OF_FEW if group <= _FEW_LATENT_QUERIES else _LATENT_SPLIT_KEYS
        splits = _MOST_LATENT_SPLITS
    else:
        waves = config.waves * ceil_div(group, config.rows)
        splits, split_keys = NUM_CUS * _WAVES_OF_CU // (waves * kv_heads * _FEW_SEQUENCES), _SPLIT_KEYS
    return max(min(splits, _MOST_SPLITS, 1 + ceil_div(most_keys, split_keys)), 1), split_keys


def for_few_workgroups(config: DecodeConfig, queries: int, pieces: int) -> DecodeConfig:
    """The kernel that computes the same bits as ``config`` in less time, if there is one.

    Where workgroups over a latent cache leave half of the compute units idle, twice as many workgroups with half the
    rows are faster.

    Args:
        queries: tokens and heads of a sequence.
        pieces: workgroups for the same queries.
    """
    while config.latent_rows > LATENT_ROWS[0] and pieces * ceil_div(2 * queries, config.rows) <= NUM_CUS:
        config = config._replace(latent_rows=config.latent_rows // 2)
    return config


def most_pieces(config: DecodeConfig, sequence_heads: int, most_keys: int) -> int:
    """The largest number of pieces that still pays off."""
    return sequence_heads * min(1 + (most_keys + config.keys_to_begin) // _LEAST_KEYS, _MOST_PARTS)

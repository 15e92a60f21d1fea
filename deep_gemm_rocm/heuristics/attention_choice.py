"""How attention is computed: the choice that was measured to be the best, or else the heuristic's."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..problems.gemm_kind import ELEMENT_BYTES
from ..runtime import session, settings
from .attention_config import AttentionConfig, choose_attention_config, config_for_any_batch
from .choices import Choices, Finds, remembered
from .decode_config import DecodeConfig, choose_num_pieces, latent_rows, most_pieces
from .forced import forced_choice
from .notes import note_attention
from .tables import MEASURED_COLUMNS, Measured, Table, parsed

SHIPPED = Path(__file__).resolve().with_name("tuned_attention.csv")

_NEAR = math.log2(1.25)
_PIECES = (0.5, 0.75, 1.5, 2, 3)  # times the heuristic's number
_INFINITY_CACHE_BYTES = 256 * 2**20
_HBM_BYTES = 5.3e6  # a µs, at most
_FAMILIES = ("flash_attention", "flash_decode", "mla_decode")


class AttentionCase(NamedTuple):
    """An attention problem for which a kernel is chosen.

    Attributes:
        family: the kernels: ``flash_attention``, ``flash_decode`` or ``mla_decode``.
        type, out_type, head_dim, value_dim: see ``AttentionConfig``.
        causal: whether queries see no keys after their own.
        batch: number of sequences.
        heads, kv_heads: heads of a sequence.
        tokens_q, tokens_k: tokens of a sequence, on average; of a paged cache, at most.
    """

    family: str
    type: str
    out_type: str
    head_dim: int
    value_dim: int
    causal: bool
    batch: int
    heads: int
    kv_heads: int
    tokens_q: int
    tokens_k: int

    @property
    def flops(self) -> int:
        pairs = self.tokens_q * self.tokens_k
        if self.causal:
            pairs -= min(self.tokens_q, self.tokens_k) * (self.tokens_q - 1) // 2
        return 2 * self.batch * self.heads * pairs * (self.head_dim + self.value_dim)

    @property
    def widths(self) -> tuple[str, str, int, int]:
        """The types and widths that a kernel is compiled for."""
        return self.type, self.out_type, self.head_dim, self.value_dim

    @property
    def cache_bytes(self) -> int:
        """Bytes of all keys and values."""
        width = self.head_dim + (self.value_dim if self.family != "mla_decode" else 0)
        return self.batch * self.kv_heads * self.tokens_k * width * ELEMENT_BYTES[self.type]


class AttentionChoice(NamedTuple):
    """A kernel, and the number of pieces into which decoding cuts all keys."""

    config: AttentionConfig | DecodeConfig
    pieces: int = 0

    def __str__(self) -> str:
        if isinstance(self.config, DecodeConfig):
            return f"{self.config.kernel_name}, keys in {self.pieces} pieces"
        return f"{self.config.kernel_name}{', in turns' if self.config.take_turns else ''}"


_CASE_FIELDS = AttentionCase._fields
_SIZES = ("batch", "tokens_q", "tokens_k")  # these may differ a little from those that were measured


@dataclass(frozen=True, kw_only=True)
class TunedAttention(Measured):
    """A measurement of the best choice for a case.

    Attributes:
        waves, mfma_rows, take_turns: those of the ``AttentionConfig``; 0 for decoding.
        pieces: those of the ``AttentionChoice``.
    """

    case: AttentionCase
    waves: int
    mfma_rows: int
    take_turns: bool
    pieces: int

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: no such measurement is possible.
        """
        if self.case.family not in _FAMILIES:
            raise ValueError(f"family must be one of {_FAMILIES}, got {self.case.family!r}")
        if min(getattr(self.case, name) for name in (*_SIZES, "heads", "kv_heads", "head_dim", "value_dim")) < 1:
            raise ValueError(f"sizes must be positive, got {self.case}")
        if self.case.family == "flash_attention":
            self.choice_for(self.case)
        elif self.pieces < 1:
            raise ValueError(f"pieces must be positive, got {self.pieces}")
        self.check(self.case.flops, ELEMENT_BYTES[self.case.type])
        if self.case.cache_bytes - _INFINITY_CACHE_BYTES > _HBM_BYTES * self.time_us:
            raise ValueError(
                f"{self.case.cache_bytes / self.time_us / 1e6:.1f} TB/s are impossible: an MI300X reads "
                f"{_HBM_BYTES / 1e6} from memory"
            )

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.case)

    @classmethod
    def of(cls, case: AttentionCase, choice: AttentionChoice, **measured: Any) -> TunedAttention:
        config, pieces = choice
        if isinstance(config, DecodeConfig):
            return cls(case=case, waves=0, mfma_rows=0, take_turns=False, pieces=pieces, **measured)
        waves, mfma_rows, take_turns = config.waves, config.mfma_rows, config.take_turns
        return cls(case=case, waves=waves, mfma_rows=mfma_rows, take_turns=take_turns, pieces=pieces, **measured)

    def choice_for(self, case: AttentionCase) -> AttentionChoice:
        """The measured choice, for another case of the same kernels."""
        if case.family != "flash_attention":
            config = _decode_config(case)
            return AttentionChoice(config, _limited(config, self.pieces, case))
        return AttentionChoice(AttentionConfig(*case.widths, self.waves, self.mfma_rows, self.take_turns))

    def as_fields(self) -> dict[str, Any]:
        return {**self.case._asdict(), **{name: getattr(self, name) for name in COLUMNS if name not in _CASE_FIELDS}}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> TunedAttention:
        """
        Raises:
            ValueError, KeyError, TypeError: the fields aren't those of a row.
        """
        return cls(case=AttentionCase(**parsed(AttentionCase, fields)), **parsed(cls, fields))


COLUMNS = (*_CASE_FIELDS, "waves", "mfma_rows", "take_turns", "pieces", *MEASURED_COLUMNS)


class AttentionTable(Table[TunedAttention]):
    """Choices for attention."""

    columns = COLUMNS
    row = TunedAttention

    def __init__(self, rows: Iterable[TunedAttention] = ()) -> None:
        super().__init__(rows)
        self._of_kernels: dict[AttentionCase, list[TunedAttention]] = {}
        for row in self.rows.values():
            self._of_kernels.setdefault(_of_any_size(row.case), []).append(row)

    @staticmethod
    def key_of(problem: AttentionCase) -> tuple[Any, ...]:
        return tuple(problem)

    def find(self, case: AttentionCase) -> AttentionChoice | None:
        """The choice of the nearest row with the same heads, whose sequences and tokens differ by at most a quarter."""

        def distance(row: TunedAttention) -> float:
            ratios = (max(getattr(case, name), 1) / getattr(row.case, name) for name in _SIZES)
            logs = [abs(math.log2(ratio)) for ratio in ratios]
            return sum(logs) if max(logs) <= _NEAR else math.inf

        nearest = min(self._of_kernels.get(_of_any_size(case), ()), key=distance, default=None)
        return nearest.choice_for(case) if nearest and distance(nearest) < math.inf else None


def _of_any_size(case: AttentionCase) -> AttentionCase:
    return case._replace(batch=0, tokens_q=0, tokens_k=0)


def attention_table() -> Finds:
    """The table of attention: the file that ``DG_TUNED_ATTENTION_TABLE`` names, or the package's own.

    Raises:
        TableError, OSError: the file can't be used.
    """
    return session.current().of(Choices).table(AttentionTable, "DG_TUNED_ATTENTION_TABLE", SHIPPED)


def choose_attention(case: AttentionCase) -> AttentionChoice:
    """The choice that the table has for a case, or else the heuristic's.

    Raises:
        TableError, OSError: ``DG_TUNED_ATTENTION_TABLE`` names no good table.
        ForcedChoiceError: the ``forced`` choice is not for such a case.
    """
    taken = forced_choice(AttentionChoice, lambda choice: _computes(choice.config, case), case)
    if taken:
        note_attention(case, taken, "the user")
    return taken or _choose_attention(case, settings.values().batch_invariant)


@remembered
def _choose_attention(case: AttentionCase, batch_invariant: bool) -> AttentionChoice:
    if batch_invariant and case.family == "flash_attention":
        tuned = None
        choice = AttentionChoice(config_for_any_batch(*case.widths, case.tokens_q, case.batch * case.heads))
    else:
        tuned = attention_table().find(case)
        choice = tuned or _heuristic(case)
    note_attention(case, choice, "the table" if tuned else "the heuristic")
    return choice


def _computes(config: AttentionConfig | DecodeConfig, case: AttentionCase) -> bool:
    if case.family != "flash_attention":
        return config == _decode_config(case)
    widths = config.type, config.out_type, config.head_dim, config.value_dim
    return isinstance(config, AttentionConfig) and widths == case.widths


def attention_candidates(case: AttentionCase) -> list[AttentionChoice]:
    """The heuristic's choice, and all others that may be better."""
    first = _heuristic(case)
    return list(dict.fromkeys([first, *_others(case, first)]))


def _heuristic(case: AttentionCase) -> AttentionChoice:
    if case.family != "flash_attention":
        config = _decode_config(case)
        return AttentionChoice(config, choose_num_pieces(config, *_sizes_of_decode(case)))
    return AttentionChoice(choose_attention_config(*case.widths, case.tokens_q, case.batch * case.heads))


def _others(case: AttentionCase, first: AttentionChoice) -> Iterable[AttentionChoice]:
    if isinstance(first.config, DecodeConfig):
        for factor in _PIECES:
            yield first._replace(pieces=_limited(first.config, int(first.pieces * factor), case))
    else:
        for waves, mfma_rows, take_turns in itertools.product((8, 4), (32, 16), (True, False)):
            with contextlib.suppress(ValueError):
                yield AttentionChoice(AttentionConfig(*case.widths, waves, mfma_rows, take_turns))


def _decode_config(case: AttentionCase) -> DecodeConfig:
    rows = latent_rows(case.tokens_q * case.heads, case.batch * case.tokens_k) if case.family == "mla_decode" else 0
    return DecodeConfig(*case.widths, latent_rows=rows)


def _sizes_of_decode(case: AttentionCase) -> tuple[int, int, int]:
    return case.tokens_q * (case.heads // case.kv_heads), case.batch * case.kv_heads, case.tokens_k


def _limited(config: DecodeConfig, pieces: int, case: AttentionCase) -> int:
    """``pieces``, but at most as many as pay off."""
    return max(min(pieces, most_pieces(config, *_sizes_of_decode(case)[1:])), 1)

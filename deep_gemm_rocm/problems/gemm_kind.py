"""Kinds of GEMM problems, the rules that say which kinds exist, and a problem's sizes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

_T = TypeVar("_T")

ELEMENT_BYTES = {"e4m3": 1, "e5m2": 1, "bf16": 2, "f16": 2, "f32": 4}
FP8_TYPES = ("e4m3", "e5m2")
Epilogue = Literal["identity", "silu_and_mul"] | None  # what a GEMM does with its sums; None is identity
EPILOGUES = ("identity", "silu_and_mul")
# Parts of b that an activation combines, see activation.h.
PARTS_OF_B = {"identity": 1, "silu_and_mul": 2, "clamped_silu_and_mul": 2}

_VALUES = {
    "d_type": ("bf16", "f16", "f32", *FP8_TYPES),
    "scaling": ("none", "blocks", "vectors", "rows", "groups"),
    "b_scale_type": ("f32", "e8m0", "bf16", "f16", "f32_and_zero"),
    "group_k": (32, 64, 128),
    "grouping": ("dense", "batched", "contiguous", "psum", "masked", "split_k", "summed", "k_grouped"),
    "a_major": ("k", "rows"),
    "b_major": ("k", "rows"),
    "bias": ("none", "bf16", "f16", "f32"),
    "activation": tuple(PARTS_OF_B),
}
_GROUPS_OF_ROWS = ("contiguous", "psum", "masked")
GROUP = 32  # values of e2m1 along K that share a scale
_E2M1_TYPES = ("e2m1", "shuffled_e2m1")
_INT4_TYPES = ("int4", "shuffled_int4")
_SCALE_BYTES = {"f32": 4, "e8m0": 1, "bf16": 2, "f16": 2, "f32_and_zero": 4}
ROWS_OF_SIGNAL = 64  # the fewest that have a counter of finished tiles, see tile_signal.h
_OPERANDS_WITHOUT_SCALES = (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"))


def check_rules(subject: _T, rules: Iterable[tuple[str, Callable[[_T], bool]]]) -> None:
    """Raises ValueError with the text of the first rule that ``subject`` breaks.

    Args:
        rules: pairs of a rule's text, in which ``{0}`` stands for the subject, and a function that tells whether the
            subject keeps the rule.
    """
    for words, holds in rules:
        if not holds(subject):
            raise ValueError(f"{words.format(subject)}, got {subject}")


@functools.lru_cache(maxsize=4096)
def changed(subject: Any, **changes: Any) -> Any:
    """``dataclasses.replace``, which makes and checks the same thing only once."""
    return dataclasses.replace(subject, **changes)


@dataclasses.dataclass(frozen=True)
class GemmKind:
    """What a GEMM kernel computes: the template values of ``gemm.hip.j2`` that the problem decides.

    Attributes:
        a_type, b_type: types of the operands: ``e4m3`` or ``e5m2`` in any pairing, ``bf16`` twice, ``f16`` twice, or
            ``bf16`` and ``f32``. b may have four bits, ``e2m1``, ``shuffled_e2m1`` or ``int4``, where a is
            FP8 or ``bf16``, or ``shuffled_int4``, where a is FP8.
        d_type: type of the output and of ``c``: ``bf16``, ``f16`` or ``f32``; or ``e4m3`` or ``e5m2``, quantised with
            one scale for each row and 128 columns.
        scaling: which values share a scale. ``blocks``: 128 x 128 of b, 128 along K of a row of a. ``vectors``: 128
            along K of a row of either. ``rows``: whole rows of either. ``groups``: ``group_k`` along K of a row of b,
            which has four bits, and 128 of a row of a, if that is FP8. ``none``: there are no scales.
        b_scale_type: type of b's scales: ``f32`` or, of ``e2m1``, ``e8m0``. Of ``int4``, ``f32``, ``bf16`` or ``f16``
            where 0 stands for 0, or ``f32_and_zero``, as ``repack_int4`` makes them.
        group_k: values of b along K that share a scale, if b has four bits; 32 unless they are ``int4``.
        accumulate: whether ``c`` is added.
        grouping: how a workgroup finds its tiles, see ``tile_source.h``. ``dense`` has one group, ``batched`` groups
            of equal sizes. ``contiguous`` reads the group of each row, ``psum`` the end of each group's rows,
            ``masked`` the number of each group's rows. With ``split_k`` and ``k_grouped``, each group has all rows
            and a part of K; with ``summed``, a part of the K of all batches together.
        k_tail: whether K may be other than a multiple of 128 bytes.
        skips_head_mid: whether the output's columns are heads, each with a gap in its middle.
        sums_squares: whether the sums of squares of a's rows are computed, too; only for ``bf16`` times ``f32``.
        a_major, b_major: the operand's contiguous dimension, ``k`` or ``rows``.
        bias: type of the vector that is added to each row, or ``none``.
        activation: function of the sums, see ``activation.h``: ``identity``, ``silu_and_mul`` or
            ``clamped_silu_and_mul``.
        gathers_a: whether the rows of a group are those rows of a that a list of indices names.
        signals: whether finished tiles are counted, see ``tile_signal.h``.
        sums_parts: whether a second kernel adds up the groups' sums, each of which covers a part of K, and does what
            the epilogue does otherwise. ``dense`` has one sum over all of K.
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
    gathers_a: bool = False
    signals: bool = False
    b_scale_type: str = "f32"
    group_k: int = GROUP

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: no kernel computes this kind.
        """
        for name, values in _VALUES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {values}, got {self}")
        check_rules(self, _RULES)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a and b in the matrix cores."""
        return ELEMENT_BYTES[self.a_type if self.widens_b else self.b_type]

    @property
    def widens_b(self) -> bool:
        """Whether b has four bits in memory, and more in the matrix cores."""
        return self.b_type in _E2M1_TYPES or self.is_int4

    @property
    def is_int4(self) -> bool:
        """Whether b's four bits are an integer."""
        return self.b_type in _INT4_TYPES

    @property
    def has_rounds(self) -> bool:
        """Whether groups of b with other scales than most are multiplied separately, see ``kHasRounds``."""
        return self.b_type == "e2m1" and self.is_a_scaled

    @property
    def promotes_columns(self) -> bool:
        """Whether sums are promoted with scales of each column, see ``kPromotesColumns``."""
        return self.scaling == "vectors" or (self.is_int4 and (self.group_k > GROUP or self.is_a_scaled))

    @property
    def promotions(self) -> int:
        """How often a K-block is promoted, and multiplied: for each group of a column with a scale of its own."""
        keeps_integers = self.is_int4 and self.promotes_columns
        return max(128 // self.element_bytes // self.group_k, 1) if keeps_integers else 1

    @property
    def memory_of_b(self) -> float:
        """Bytes of b and its groups' scales in memory, in units of its bytes in the matrix cores."""
        if not self.widens_b:
            return 1
        return (0.5 + _SCALE_BYTES[self.b_scale_type] / self.group_k) / self.element_bytes

    @property
    def parts(self) -> int:
        """Rows of b for each column of what tiles store: of the output, or of sums that a second kernel adds up."""
        return 1 if self.sums_parts else PARTS_OF_B[self.activation]

    @property
    def is_fp8(self) -> bool:
        """Whether the operands are FP8 and may have scales."""
        return self.a_type in FP8_TYPES and self.b_type in FP8_TYPES

    @property
    def is_a_scaled(self) -> bool:
        """Whether a has scales."""
        return self.scaling != "none" and self.a_type in FP8_TYPES

    @property
    def is_quantised(self) -> bool:
        """Whether tiles are stored as FP8 and have scales."""
        return self.d_type in FP8_TYPES and not self.sums_parts

    @property
    def is_k_major(self) -> bool:
        """Whether MFMA operands can be loaded as they are, 16 bytes along K at a time."""
        return self.a_major == self.b_major == "k"

    @property
    def can_split_k(self) -> bool:
        """Whether a second kernel can add up groups' sums over parts of K."""
        return not (self.skips_head_mid or self.sums_squares)

    @property
    def in_parts(self) -> GemmKind:
        """The kind of the parts of a dense problem whose K is split."""
        in_parts: GemmKind = changed(self, grouping="split_k", sums_parts=True)
        return in_parts

    @property
    def only_rounds(self) -> bool:
        """Whether the epilogue only rounds the scaled sums to 16 bits."""
        adds = self.accumulate or self.bias != "none"
        return ELEMENT_BYTES[self.d_type] == 2 and self.parts == 1 and not (adds or self.skips_head_mid)

    @property
    def has_tiles_of_two_heights(self) -> bool:
        """Whether a kernel may have tiles of two heights, from which the device chooses in each launch.

        Only the device knows how many rows masked groups have. The SGPRs suffice for both only if results are merely
        rounded. A counter of finished tiles is for as many rows of each.
        """
        return self.grouping == "masked" and self.only_rounds and not (self.signals or self.widens_b)

    @property
    def has_groups_of_rows(self) -> bool:
        """Whether each group has its own rows of a, as many as a tensor on the device says."""
        return self.grouping in _GROUPS_OF_ROWS

    @property
    def has_known_number_of_tiles(self) -> bool:
        """Whether the host knows the number of tiles; otherwise only the device does."""
        return self.grouping not in ("psum", "masked")

    @property
    def name(self) -> str:
        """The beginning of the kernel's name."""
        layout = {"k": "n", "rows": "t"}[self.a_major] + {"k": "t", "rows": "n"}[self.b_major]
        groups = "" if self.grouping == "dense" else f"{self.grouping}_"
        if self.has_groups_of_rows:
            groups = f"m_grouped_{groups}"
        family = f"{groups}gemm_{layout}"
        operands = self.a_type if self.a_type == self.b_type else f"{self.a_type}_{self.b_type}"
        scaling = "" if self.scaling == "none" else f"_{self.scaling}"
        scaling += f"_of_{self.group_k}" if self.is_int4 else ""
        scaling += "" if self.b_scale_type == "f32" else f"_{self.b_scale_type}"
        bias = "" if self.bias == "none" else f"_bias_{self.bias}"
        activation = "" if self.activation == "identity" else f"_{self.activation}"
        output = f"{self.d_type}{'_c' if self.accumulate else ''}{'_skip_mid' if self.skips_head_mid else ''}"
        output += f"{'_square_sums' if self.sums_squares else ''}{'_of_parts' if self.sums_parts else ''}"
        output += f"{'_gather' if self.gathers_a else ''}{'_signals' if self.signals else ''}"
        return f"{family}_{operands}{scaling}{bias}{activation}_{output}"


# A kind exists if its fields have the values above and keep these rules.
_RULES: tuple[tuple[str, Callable[[GemmKind], bool]], ...] = (
    (
        "operands must both be FP8, bf16 or f16, or bf16 and f32, or FP8 or bf16 and four bits",
        lambda kind: (
            kind.is_fp8
            or (kind.a_type, kind.b_type) in _OPERANDS_WITHOUT_SCALES
            or (kind.widens_b and kind.a_type in ("bf16", *FP8_TYPES))
        ),
    ),
    ("only FP8 and four-bit operands have scales", lambda kind: kind.is_fp8 or kind.widens_b or kind.scaling == "none"),
    ("four-bit operands have scales of groups", lambda kind: kind.widens_b == (kind.scaling == "groups")),
    ("four-bit operands are contiguous along K", lambda kind: kind.is_k_major or not kind.widens_b),
    (
        "only scales of e2m1 may be e8m0",
        lambda kind: kind.b_scale_type != "e8m0" or kind.b_type in _E2M1_TYPES,
    ),
    ("scales of shuffled_e2m1 are e8m0", lambda kind: kind.b_type != "shuffled_e2m1" or kind.b_scale_type == "e8m0"),
    (
        "only scales of int4 may have 16 bits or zeros",
        lambda kind: kind.b_scale_type in ("f32", "e8m0") or kind.is_int4,
    ),
    (
        "only scales of 32 values of int4 may have 16 bits",
        lambda kind: kind.b_scale_type not in ("bf16", "f16") or kind.group_k == GROUP,
    ),
    ("only groups of int4 have other than 32 values", lambda kind: kind.group_k == GROUP or kind.is_int4),
    (
        "shuffled_int4 is multiplied by FP8, without zeros",
        lambda kind: kind.b_type != "shuffled_int4" or (kind.is_a_scaled and kind.b_scale_type != "f32_and_zero"),
    ),
    ("squares are summed of bf16, times f32", lambda kind: kind.sums_squares == (kind.b_type == "f32")),
    (
        "operands of which squares are summed must be contiguous along K",
        lambda kind: kind.is_k_major or not kind.sums_squares,
    ),
    (
        "a of groups of rows must be contiguous along K",
        lambda kind: kind.a_major == "k" or not kind.has_groups_of_rows,
    ),
    (
        "c isn't added to what was activated or will be quantised",
        lambda kind: not kind.accumulate or (kind.activation == "identity" and kind.d_type not in FP8_TYPES),
    ),
    ("heads with a gap aren't quantised", lambda kind: not (kind.skips_head_mid and kind.is_quantised)),
    (
        "rows of a are gathered for groups of rows, and not transposed",
        lambda kind: not kind.gathers_a or (kind.grouping == "psum" and kind.a_major == "k"),
    ),
    ("tiles of masked groups are counted", lambda kind: not kind.signals or kind.grouping == "masked"),
    (
        "parts are summed of sums over K only",
        lambda kind: not kind.sums_parts or (kind.can_split_k and kind.grouping in ("dense", "split_k", "summed")),
    ),
)


class Gemm(NamedTuple):
    """A GEMM: [m, k] times the transpose of [n, k], for each of ``groups`` (1 without groups)."""

    m: int
    n: int
    k: int
    groups: int
    kind: GemmKind  # k_tail isn't set yet

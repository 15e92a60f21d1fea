"""The shapes that are measured: those of DeepGEMM's tests, and layers of models."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from ..api import warmup


class Shape(NamedTuple):
    """``groups`` matrix products of [m, k] with [n, k].

    In grouped GEMM, m is the average number of a group's rows. In k-grouped GEMM, k is the average K of a group.
    """

    m: int
    n: int
    k: int
    groups: int = 1

    def __str__(self) -> str:
        return "x".join(map(str, self[:3])) + (f"x{self.groups}" if self.groups > 1 else "")

    @property
    def line(self) -> str:
        """The name of this shape's line in a plot over ``rows``."""
        return f"{self.n}x{self.k}"

    @property
    def rows(self) -> int:
        return self.m


class AttentionShape(NamedTuple):
    """``batch`` sequences of ``tokens_k`` keys, each with ``tokens_q`` queries in ``heads`` heads of ``width``."""

    batch: int
    tokens_q: int
    tokens_k: int
    heads: int
    kv_heads: int
    width: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def line(self) -> str:
        """The name of this shape's line in a plot over ``rows``."""
        return f"{self.batch} of {self.heads}x{self.kv_heads}x{self.width}"

    @property
    def rows(self) -> int:
        return self.tokens_k


class ExpertsShape(NamedTuple):
    """``tokens`` of ``hidden`` values, each with ``top_k`` of ``experts``, which activate ``intermediate`` values."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def line(self) -> str:
        """The name of this shape's line in a plot over ``rows``."""
        return f"{self.top_k} of {self.experts}x{self.hidden}x{self.intermediate}"

    @property
    def rows(self) -> int:
        return self.tokens


class RowsShape(NamedTuple):
    """``tokens`` rows of ``columns`` values, of experts for the choice among them."""

    tokens: int
    columns: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def line(self) -> str:
        """The name of this shape's line in a plot over ``rows``."""
        return str(self.columns)

    @property
    def rows(self) -> int:
        return self.tokens


class SparseShape(NamedTuple):
    """``sequences`` of ``tokens_k`` keys; each of their ``tokens_q`` queries attends to ``top_k`` in all ``heads``."""

    sequences: int
    tokens_q: int
    tokens_k: int
    heads: int
    top_k: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def line(self) -> str:
        """The name of this shape's line in a plot over ``rows``."""
        return f"{self.heads} heads, {self.top_k} of {self.tokens_k}"

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens_q


class SelectionShape(NamedTuple):
    """``lines`` of ``columns`` logits, of which ``k`` are selected."""

    lines: int
    columns: int
    k: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def line(self) -> str:
        """The name of this shape's line in a plot over ``rows``."""
        return f"{self.k} of {self.columns}"

    @property
    def rows(self) -> int:
        return self.lines


AnyShape = Shape | AttentionShape | ExpertsShape | RowsShape | SparseShape | SelectionShape


_AShape = TypeVar("_AShape", Shape, AttentionShape, ExpertsShape, RowsShape, SparseShape, SelectionShape)


def parse(text: str, kind: type[_AShape]) -> _AShape:
    """Parses a shape's printed form: its numbers with an x in between. Numbers with a default may be left out.

    Raises:
        ValueError: the text is not a shape, or a number is 0 or has more than 31 bits.
    """
    names = [name.upper() for name in kind._fields]
    required = len(names) - len(kind._field_defaults)
    numbers = text.split("x")
    if not re.fullmatch(r"\d+(x\d+)*", text) or not required <= len(numbers) <= len(names) or 0 in map(int, numbers):
        form = "x".join(names[:required]) + "".join(f"[x{name}]" for name in names[required:])
        raise ValueError(f"expected a shape as {form}, got {text!r}")
    if any(int(number) >= 2**31 for number in numbers):
        raise ValueError(f"expected a shape with numbers below 2**31, got {text!r}")
    return kind(*map(int, numbers))


_DEEPGEMM_M = (1, 64, 128, 4096)
_DEEPGEMM_NK = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))

DENSE = tuple(Shape(m, *nk) for m in _DEEPGEMM_M for nk in _DEEPGEMM_NK)

CONTIGUOUS = tuple(
    Shape(m, n, k, groups)
    for groups, m in ((4, 8192), (8, 4096))
    for n, k in ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048), (4096, 7168), (7168, 2048))
)

MASKED = tuple(
    Shape(m, n, k, groups)
    for groups, m in ((1, 1024), (2, 512), (4, 256), (32, 192), (6, 1024), (32, 20), (6, 20))
    for n, k in ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048), (4096, 7168), (7168, 2048))
)

K_GROUPED = (
    Shape(4096, 7168, 8192, 4),
    Shape(7168, 2048, 8192, 4),
    Shape(4096, 7168, 4096, 8),
    Shape(7168, 2048, 4096, 8),
    Shape(4096, 7168, 2048, 16),
    Shape(7168, 2048, 2048, 16),
    Shape(768, 2048, 128, 8),
)

PROMPTS = tuple(
    AttentionShape(1, tokens, tokens, heads, kv_heads, width)
    for tokens in (1024, 8192)
    for heads, kv_heads, width in ((32, 8, 128), (64, 8, 128), (32, 8, 64), (16, 4, 256))
)

# DeepSeek's prompts, with keys and values of each head: all heads of a short one, half of those of a long one.
LATENT_PROMPTS = (AttentionShape(1, 1024, 1024, 128, 128, 192), AttentionShape(1, 4096, 4096, 64, 64, 192))

STEPS = tuple(AttentionShape(batch, 1, 8192, 32, 8, 128) for batch in (1, 64))

LATENT_STEPS = tuple(AttentionShape(batch, 1, 8192, heads, 1, 576) for batch in (1, 64) for heads in (16, 128))

# Logits: queries of one sequence; then the last queries of `batch` sequences in pages. Keys have one head.
INDEXED = tuple(
    AttentionShape(1, tokens, keys, 64, 1, 128) for tokens, keys in ((2048, 4096), (2048, 8192), (4096, 4096))
)

# DeepSeek-V3.2 chooses 2048 of 32k tokens: steps of decoding, and a prompt.
CHOSEN = (*(SparseShape(batch, 1, 32768, 128, 2048) for batch in (64, 128)), SparseShape(1, 4096, 32768, 128, 2048))
SELECTED = (SelectionShape(4096, 32768, 2048), SelectionShape(64, 262144, 2048))

INDEXED_STEPS = tuple(AttentionShape(batch, 1, 8192, 64, 1, 128) for batch in (1, 64))

# DeepSeek-V3's layer on one of eight devices: 32 experts and the shared one.
EXPERTS = tuple(ExpertsShape(tokens, 7168, 2048, 33, 9) for tokens in (64, 128, 1024))

# Between two GEMMs of DeepSeek-V3: hidden states, what an expert activates, and logits of experts.
ROWS, HALVES, ROUTED = (
    tuple(RowsShape(tokens, columns) for tokens in (1, 1024, 4096)) for columns in (7168, 2048, 256)
)

_MASKED_M = 20  # expected rows of a group in a decoding step


def of_model(name: str, function: str) -> tuple[Shape, ...]:
    """The shapes of a model's calls of a function, with DeepGEMM's numbers of rows.

    Raises:
        KeyError: the model is not in ``warmup.models``.
    """
    calls = [workload for workload in warmup.load(warmup.models()[name]) if workload.function == function]
    rows = (_MASKED_M,) if function.endswith("masked") else _DEEPGEMM_M
    return tuple(Shape(m, call.n, call.k, call.num_groups) for m in rows for call in calls)

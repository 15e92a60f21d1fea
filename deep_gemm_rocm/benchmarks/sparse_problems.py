"""Benchmarks of sparse attention: the choice of tokens, and attention to chosen ones of a latent cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from .. import testing
from ..api.latent_cache import append_mla_cache
from ..api.sparse_mla import sparse_mla
from ..api.top_k import top_k_per_row
from . import shapes
from .problems import CHECKED_WHOLE, WrongResultError, copied, kernel_names, some_rows, to_meta, unwritten
from .shapes import SelectionShape, SparseShape

_PAGE = 64
_WIDTH, _VALUE_WIDTH, _BYTES = 576, 512, 656
_CHECKED_QUERIES, _CHECKED_HEADS = 4, 8  # in a large problem
_CHECKED_ROWS = 16


@dataclass
class SparseProblem:
    """Queries that attend to random tokens of their sequence, in ascending order.

    Attributes:
        slots: int32 [queries, top_k].
        d: the output, NaN until a kernel writes it.
    """

    computed: ClassVar[tuple[str, ...]] = ()  # kernels on whose results the work of later ones depends

    op: str
    shape: SparseShape
    q: torch.Tensor
    cache: torch.Tensor
    slots: torch.Tensor
    d: torch.Tensor

    @property
    def flops(self) -> int:
        """FLOPs of both products."""
        return 2 * len(self.q) * self.shape.heads * self.shape.top_k * (_WIDTH + _VALUE_WIDTH)

    @property
    def bytes(self) -> int:
        """The least that a kernel has to read and write, if no query reads what another has read."""
        gathered = self.slots.numel() * self.cache.shape[-1] * self.cache.itemsize
        return gathered + self.q.nbytes + self.slots.nbytes + self.d.nbytes

    @property
    def held_bytes(self) -> int:
        return self.q.nbytes + self.cache.nbytes + self.slots.nbytes + self.d.nbytes

    def copy(self) -> SparseProblem:
        """The same problem in memory of its own."""
        return dataclasses.replace(self._each(copied), d=torch.full_like(self.d, torch.nan))

    def to_meta(self) -> SparseProblem:
        """The same problem without memory, for planning."""
        return self._each(to_meta)

    def run(self) -> None:
        """Calls this package's function."""
        sparse_mla(self.q, self.cache, self.slots, out=self.d)

    def check(self) -> float:
        """The largest ratio of an error in ``d`` and its rounding bound; in large problems, for some queries.

        Raises:
            WrongResultError: an error exceeds its bound, or an element wasn't written.
        """
        if self.d.isnan().any():
            raise WrongResultError(f"{self.op} {self.shape}: {int(self.d.isnan().sum())} elements of d are NaN")
        large = self.flops > CHECKED_WHOLE
        heads = slice(_CHECKED_HEADS if large else None)
        worst = 0.0
        for query in some_rows(len(self.q), _CHECKED_QUERIES if large else len(self.q)).tolist():
            slots = self.slots[query].cpu().long()
            keys = _values(self.cache.cpu()[slots // _PAGE, slots % _PAGE, 0])[None, :, None]
            reference = testing.attention_reference(
                self.q[query, heads].cpu()[None, None], keys, keys[..., :_VALUE_WIDTH],
                seen=torch.ones(1, len(slots), dtype=torch.bool), in_parts=True,
            )  # fmt: skip
            accuracy = reference.measure(self.d[query, heads].cpu()[None, None])
            if accuracy.failures:
                raise WrongResultError(
                    f"{self.op} {self.shape}: {accuracy.failures} of {reference.out.numel()} elements of query {query} "
                    f"are wrong, by up to {accuracy.max_error:g}"
                )
            worst = max(worst, accuracy.max_error_over_bound)
        return worst

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> SparseProblem:
        q, cache, slots, d = map(function, (self.q, self.cache, self.slots, self.d))
        return dataclasses.replace(self, q=q, cache=cache, slots=slots, d=d)


def _values(tokens: torch.Tensor) -> torch.Tensor:
    """The values of a cache's tokens in bf16, as the kernel rounds them but for ties."""
    if tokens.dtype != torch.uint8:
        return tokens
    data, scales, rotary = tokens.split([_VALUE_WIDTH, _BYTES - _VALUE_WIDTH - 128, 128], dim=1)
    values = data.contiguous().view(torch.float8_e4m3fnuz).float()
    factors = scales.contiguous().view(torch.float32).repeat_interleave(128, 1)
    return torch.cat([(values * factors).bfloat16(), rotary.contiguous().view(torch.bfloat16)], dim=1)


@dataclass
class SelectionProblem:
    """The choice of each row's largest logits.

    Attributes:
        d: int32 [rows, k], the positions; -2 until a kernel writes them.
    """

    computed: ClassVar[tuple[str, ...]] = ("*",)  # the choice takes as long as the logits demand

    op: str
    shape: SelectionShape
    logits: torch.Tensor
    d: torch.Tensor

    flops: ClassVar[int] = 0

    @property
    def bytes(self) -> int:
        """The least that a kernel has to read and write."""
        return self.logits.nbytes + self.d.nbytes

    @property
    def held_bytes(self) -> int:
        return self.bytes

    def copy(self) -> SelectionProblem:
        """The same problem in memory of its own."""
        return dataclasses.replace(self, logits=copied(self.logits), d=torch.full_like(self.d, -2))

    def to_meta(self) -> SelectionProblem:
        """The same problem without memory, for planning."""
        return dataclasses.replace(self, logits=to_meta(self.logits), d=to_meta(self.d))

    def run(self) -> None:
        """Calls this package's function."""
        top_k_per_row(self.logits, self.shape.k, out=self.d)

    def check(self) -> float:
        """0, if all positions are right; in large problems, those of some rows.

        Raises:
            WrongResultError: a position is wrong.
        """
        rows = some_rows(len(self.d), _CHECKED_ROWS if self.logits.numel() > CHECKED_WHOLE else len(self.d))
        order = self.logits.cpu()[rows].float().argsort(dim=1, descending=True, stable=True)
        wanted = order[:, : self.shape.k].sort(dim=1).values
        if wrong := int((self.d.cpu()[rows] != wanted).sum()):
            raise WrongResultError(f"{self.op} {self.shape}: {wrong} of {wanted.numel()} positions are wrong")
        return 0.0


@dataclass(frozen=True)
class SparseOperation:
    """A function to measure, like ``problems.Operation``."""

    shapes: tuple[SparseShape, ...]
    make: Callable[[str, SparseShape, str], SparseProblem]

    def parse(self, text: str) -> SparseShape:
        """Parses a shape like ``shapes.parse``.

        Raises:
            ValueError: the text is not a shape, or a sequence has fewer tokens than are chosen.
        """
        shape = shapes.parse(text, SparseShape)
        if shape.top_k > shape.tokens_k:
            raise ValueError(f"at most all tokens of a sequence can be chosen, got {text!r}")
        return shape


@dataclass(frozen=True)
class SelectionOperation:
    """A function to measure, like ``problems.Operation``."""

    shapes: tuple[SelectionShape, ...]
    make: Callable[[str, SelectionShape, str], SelectionProblem]

    def parse(self, text: str) -> SelectionShape:
        """Parses a shape like ``shapes.parse``, and checks that there are kernels for it.

        Raises:
            ValueError: the text is not a shape, or the function doesn't take it.
        """
        shape = shapes.parse(text, SelectionShape)
        if shape.k > shape.columns:
            raise ValueError(f"at most all columns of a row can be chosen, got {text!r}")
        # Planning raises an error unless the function takes the shape.
        kernel_names(_selection("top_k_per_row", shape, "meta"))
        return shape


def _sparse(op: str, shape: SparseShape, device: str) -> SparseProblem:
    sequences, tokens_q, tokens_k, heads, top_k = shape
    generator = torch.Generator().manual_seed(0)
    pages = -(-tokens_k // _PAGE)
    latent, rotary = (torch.randn(pages * _PAGE, width, generator=generator).bfloat16() for width in (_VALUE_WIDTH, 64))
    if op == "sparse_mla":
        of_sequence = torch.cat([latent, rotary], dim=1).view(pages, _PAGE, 1, _WIDTH)
    else:
        of_sequence = torch.zeros(pages, _PAGE, 1, _BYTES, dtype=torch.uint8, device=device)
        slots = torch.arange(pages * _PAGE, device=device)
        append_mla_cache(latent.to(device), rotary.to(device), of_sequence, slots)
    cache = of_sequence.to(device).repeat(sequences, 1, 1, 1)  # all sequences have the same tokens
    queries = sequences * tokens_q
    chosen = torch.rand(queries, tokens_k, generator=generator).topk(top_k, dim=1).indices.sort(dim=1).values
    first = torch.arange(sequences).repeat_interleave(tokens_q)[:, None] * pages * _PAGE
    q = (torch.randn(queries, heads, _WIDTH, generator=generator) / 4).bfloat16()
    d = unwritten(queries, heads, _VALUE_WIDTH, device=device)
    return SparseProblem(op, shape, q.to(device), cache, (chosen + first).int().to(device), d)


def _selection(op: str, shape: SelectionShape, device: str) -> SelectionProblem:
    lines, columns, k = shape
    logits = torch.randn(lines, columns, generator=torch.Generator().manual_seed(0)).to(device)
    return SelectionProblem(op, shape, logits, torch.full((lines, k), -2, dtype=torch.int32, device=device))


OPERATIONS: dict[str, SparseOperation | SelectionOperation] = {
    "sparse_mla": SparseOperation(shapes.CHOSEN, _sparse),
    "fp8_sparse_mla": SparseOperation(shapes.CHOSEN, _sparse),
    "top_k_per_row": SelectionOperation(shapes.SELECTED, _selection),
}

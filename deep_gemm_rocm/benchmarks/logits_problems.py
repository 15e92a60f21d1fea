"""Benchmarks of the sparse indexer's logits: inputs, runs and checks of the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .. import testing
from ..api import mqa_logits
from ..problems.layout import FP8, ceil_div
from . import shapes
from .problems import CHECKED_WHOLE, WrongResultError, copied, kernel_names, some_rows, to_meta
from .shapes import AttentionShape

_PAGE = 64
_CHECKED_ROWS = 64  # queries that are checked in a large problem


@dataclass
class LogitsProblem:
    """Logits of queries that see all keys of their sequence.

    Attributes:
        op: the operation, a key of ``OPERATIONS``.
        arguments: the function's arguments by their names.
        keys: FP8 [batch, tokens, width] and scales fp32 [batch, tokens]. ``arguments`` has the same keys, maybe paged.
        d: the result of the last run, [queries, keys]; NaN before the first.
    """

    computed: ClassVar[tuple[str, ...]] = ()  # kernels on whose results the work of later ones depends

    op: str
    shape: AttentionShape
    arguments: Mapping[str, Any]
    keys: tuple[torch.Tensor, torch.Tensor]
    d: torch.Tensor

    @property
    def flops(self) -> int:
        """FLOPs of the products of queries and keys."""
        batch, tokens_q, tokens_k, heads, _, width = self.shape
        return 2 * batch * tokens_q * tokens_k * heads * width

    @property
    def bytes(self) -> int:
        """The least that a kernel has to read and write."""
        read = (self.arguments["q"], self.arguments["weights"], *self.keys)
        return sum(tensor.nbytes for tensor in read) + self.d.nbytes

    @property
    def held_bytes(self) -> int:
        return self.bytes

    def copy(self) -> LogitsProblem:
        """The same problem in memory of its own."""
        return dataclasses.replace(self, arguments=self._each(copied), d=torch.full_like(self.d, torch.nan))

    def to_meta(self) -> LogitsProblem:
        """The same problem without memory, for planning."""
        return dataclasses.replace(self, arguments=self._each(to_meta), d=to_meta(self.d))

    def run(self) -> None:
        """Calls this package's function."""
        self.d = OPERATIONS[self.op].function(**self.arguments)

    def check(self) -> float:
        """The largest ratio of an error in ``d`` and its rounding bound; in large problems, for some queries.

        Raises:
            WrongResultError: an error exceeds its bound, or an element wasn't written.
        """
        _, tokens_q, _, heads, _, width = self.shape
        if self.d.isnan().any():
            raise WrongResultError(f"{self.op} {self.shape}: {int(self.d.isnan().sum())} elements of d are NaN")
        q = self.arguments["q"].reshape(-1, heads, width)
        worst = 0.0
        for row in some_rows(len(q), _CHECKED_ROWS if self.flops > CHECKED_WHOLE else len(q)).tolist():
            keys, scales = (tensor[row // tokens_q].cpu() for tensor in self.keys)
            one = slice(row, row + 1)
            reference = testing.logits_reference(q[one].cpu(), keys, scales, self.arguments["weights"][one].cpu())
            accuracy = testing.measure(self.d[one], reference)
            if accuracy.failures:
                raise WrongResultError(
                    f"{self.op} {self.shape}: {accuracy.failures} of {self.d.shape[1]} logits of query {row} are "
                    f"wrong, by up to {accuracy.max_error:g}"
                )
            worst = max(worst, accuracy.max_error_over_bound)
        return worst

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        def of(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(function, value))
            return function(value) if isinstance(value, torch.Tensor) else value

        return {name: of(value) for name, value in self.arguments.items()}


@dataclass(frozen=True)
class LogitsOperation:
    """A function to measure, like ``problems.Operation``."""

    shapes: tuple[AttentionShape, ...]
    make: Callable[[str, AttentionShape, str], LogitsProblem]
    function: Callable[..., torch.Tensor]

    def parse(self, text: str) -> AttentionShape:
        """Parses a shape like ``shapes.parse``, and checks that there are kernels for it.

        Raises:
            ValueError: the text is not a shape, or the function doesn't take it.
        """
        shape = shapes.parse(text, AttentionShape)
        if shape.kv_heads != 1:
            raise ValueError(f"logits have one head of keys, got {text!r}")
        small = shape._replace(batch=min(shape.batch, 2), tokens_q=min(shape.tokens_q, 8), tokens_k=_PAGE)
        # Planning raises an error unless the function takes the shape.
        kernel_names(self.make(self.function.__name__, small, "cpu"))
        return shape


def _inputs(shape: AttentionShape) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Random q [batch, queries, heads, width], weights [batch · queries, heads] and keys, the same in every call."""
    batch, tokens_q, tokens_k, heads, _, width = shape
    generator = torch.Generator().manual_seed(0)
    q = (torch.randn(batch, tokens_q, heads, width, generator=generator) * 8).to(FP8)
    keys = (torch.randn(batch, tokens_k, width, generator=generator) * 8).to(FP8)
    scales = torch.rand(batch, tokens_k, generator=generator) + 0.1
    return q, torch.randn(batch * tokens_q, heads, generator=generator), (keys, scales)


def _make(op: str, shape: AttentionShape, device: str) -> LogitsProblem:
    batch, tokens_q, tokens_k, *_ = shape
    if batch != 1:
        raise ValueError(f"{op} has one sequence, got shape {shape}")
    q, weights, keys = _inputs(shape)
    arguments = {
        "q": q[0].to(device),
        "kv": (keys[0][0].to(device), keys[1][0].to(device)),
        "weights": weights.to(device),
        "cu_seq_len_k_start": torch.zeros(tokens_q, dtype=torch.int32, device=device),
        "cu_seq_len_k_end": torch.full((tokens_q,), tokens_k, dtype=torch.int32, device=device),
    }
    return LogitsProblem(op, shape, arguments, keys, torch.full((tokens_q, tokens_k), torch.nan, device=device))


def _make_paged(op: str, shape: AttentionShape, device: str) -> LogitsProblem:
    """A problem with the pages of all sequences in random order; a page has its keys first, then its scales."""
    batch, tokens_q, tokens_k, _, _, width = shape
    q, weights, keys = _inputs(shape)
    pages = ceil_div(tokens_k, _PAGE)
    order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0))
    cache = torch.zeros(batch * pages, _PAGE * (width + 4), dtype=torch.uint8)
    room = pages * _PAGE - tokens_k
    data = torch.nn.functional.pad(keys[0].view(torch.uint8), (0, 0, 0, room)).view(batch * pages, -1)
    scales = torch.nn.functional.pad(keys[1], (0, room)).view(torch.uint8).view(batch * pages, -1)
    cache[order] = torch.cat([data, scales], dim=1)
    context_lens = torch.full((batch, tokens_q), tokens_k, dtype=torch.int32, device=device)
    arguments = {
        "q": q.to(device),
        "kv_cache": cache.view(batch * pages, _PAGE, 1, width + 4).to(device),
        "weights": weights.to(device),
        "context_lens": context_lens,
        "block_table": order.int().view(batch, pages).to(device),
        "schedule_meta": None,
        "max_context_len": tokens_k,
    }
    d = torch.full((batch * tokens_q, tokens_k), torch.nan, device=device)
    return LogitsProblem(op, shape, arguments, keys, d)


_ALL = (
    LogitsOperation(shapes.INDEXED, _make, mqa_logits.fp8_mqa_logits),
    LogitsOperation(shapes.INDEXED_STEPS, _make_paged, mqa_logits.fp8_paged_mqa_logits),
)

OPERATIONS = {operation.function.__name__: operation for operation in _ALL}

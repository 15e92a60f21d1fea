"""Benchmarks of layers of experts: inputs, runs and checks of the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from .. import testing
from ..api.experts import fused_moe
from ..problems.layout import SCALE_BLOCK, Pair
from . import shapes
from .problems import CHECKED_WHOLE, WrongResultError, copied, kernel_names, some_rows, to_meta, unwritten
from .shapes import ExpertsShape

_CHECKED_TOKENS = 4
# Bounds of errors as shares of magnitudes: of values that are quantised between the GEMMs, and of bf16 results.
_QUANTISED = 2.0**-4
_BF16 = 2.0**-8


@dataclass
class ExpertsProblem:
    """One call of ``fused_moe`` for tokens that are quantised already.

    Attributes:
        x, gate_up, down: FP8 data and scales.
        weights, ids: each token's experts.
        d: the output, NaN until a kernel writes it.
    """

    needs_results: ClassVar[bool] = True

    op: str
    shape: ExpertsShape
    x: Pair
    gate_up: Pair
    down: Pair
    weights: torch.Tensor
    ids: torch.Tensor
    d: torch.Tensor

    @property
    def flops(self) -> int:
        """FLOPs of both GEMMs."""
        tokens, hidden, intermediate, _, top_k = self.shape
        return 2 * tokens * top_k * 3 * hidden * intermediate

    @property
    def bytes(self) -> int:
        """The least that the layer has to read and write: the weights of all experts that some token has."""
        used = len(self.ids.unique()) if not self.ids.is_meta else self.shape.experts
        weights = sum(tensor.nbytes for tensor in (*self.gate_up, *self.down))
        return weights * used // self.shape.experts + sum(tensor.nbytes for tensor in (*self.x, self.d))

    @property
    def held_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.x, *self.gate_up, *self.down, self.d))

    def copy(self) -> ExpertsProblem:
        """The same problem in memory of its own."""
        return dataclasses.replace(self._each(copied), d=torch.full_like(self.d, torch.nan))

    def to_meta(self) -> ExpertsProblem:
        """The same problem without memory, for planning."""
        return self._each(to_meta)

    def run(self) -> None:
        """Calls this package's function."""
        fused_moe(self.x, self.gate_up, self.down, self.weights, self.ids, out=self.d)

    def check(self) -> float:
        """The largest ratio of an error in ``d`` and its bound, for some tokens.

        Raises:
            WrongResultError: an error exceeds its bound, or an element wasn't written.
        """
        if self.d.isnan().any():
            raise WrongResultError(f"{self.op} {self.shape}: {int(self.d.isnan().sum())} elements of d are NaN")
        count = self.shape.tokens
        tokens = some_rows(count, _CHECKED_TOKENS if self.flops > CHECKED_WHOLE else count)
        x, weights, ids = _values(self.x)[tokens], self.weights.cpu()[tokens], self.ids.cpu()[tokens]
        sums = [torch.zeros_like(x) for _ in range(3)]
        for expert in ids.unique().tolist():
            gate_up, down = (_values((data[expert], scales[expert])) for data, scales in (self.gate_up, self.down))
            of_expert = torch.where(ids == expert, 0, -1).int()
            parts = testing.fused_moe_reference(x, gate_up[None], down[None], weights, of_expert)
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
        exact, magnitudes, of_results = sums
        bound = _QUANTISED * magnitudes + _BF16 * (of_results + exact.abs())
        ratios = (self.d.cpu()[tokens].double() - exact).abs() / bound
        if failures := int((~(ratios <= 1)).sum()):
            raise WrongResultError(
                f"{self.op} {self.shape}: {failures} of {ratios.numel()} results are wrong, by up to {ratios.max():g} "
                "times what rounding explains"
            )
        return float(ratios.max())

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> ExpertsProblem:
        pairs = {name: tuple(map(function, getattr(self, name))) for name in ("x", "gate_up", "down")}
        tensors = {name: function(getattr(self, name)) for name in ("weights", "ids", "d")}
        return dataclasses.replace(self, **pairs, **tensors)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ExpertsOperation:
    """A function to measure, like ``problems.Operation``."""

    shapes: tuple[ExpertsShape, ...]
    make: Callable[[str, ExpertsShape, str], ExpertsProblem]

    def parse(self, text: str) -> ExpertsShape:
        """Parses a shape like ``shapes.parse``, and checks that there are kernels for it.

        Raises:
            ValueError: the text is not a shape, or the function doesn't take it.
        """
        shape = shapes.parse(text, ExpertsShape)
        if shape.top_k > shape.experts:
            raise ValueError(f"a token has at most all experts, got {text!r}")
        # Planning raises an error unless the function takes the shape.
        kernel_names(_without_memory("fused_moe", shape))
        return shape


def _values(pair: Pair) -> torch.Tensor:
    """The values of a matrix whose scales are those of rows or of blocks, along 128 values of K."""
    data, scales = (tensor.cpu().double() for tensor in pair)
    shared_rows = 1 if len(scales) == len(data) else SCALE_BLOCK
    of_rows = scales.repeat_interleave(shared_rows, 0)[: len(data)]
    return data * of_rows.repeat_interleave(SCALE_BLOCK, 1)[:, : data.shape[1]]


def _make(op: str, shape: ExpertsShape, device: str) -> ExpertsProblem:
    tokens, hidden, intermediate, experts, top_k = shape
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(tokens, experts, generator=generator).topk(top_k).indices.int()
    weights = torch.rand(tokens, top_k, generator=generator)
    data, scales = testing.quantised_activations(tokens, hidden)
    return ExpertsProblem(
        op,
        shape,
        (data.to(device), scales.to(device)),
        _weights(experts, 2 * intermediate, hidden, device),
        _weights(experts, hidden, intermediate, device),
        (weights / weights.sum(1, keepdim=True)).to(device),
        ids.to(device),
        unwritten(tokens, hidden, device=device),
    )


def _weights(experts: int, rows: int, columns: int, device: str) -> Pair:
    """Each expert has the blocks of the one before, in rows that are one block further down: that is quick to make."""
    data, scales = testing.quantised_weights(rows, columns)
    of_experts = torch.empty(experts, rows, columns, dtype=data.dtype, device=device)
    scales_of_experts = torch.empty(experts, *scales.shape, device=device)
    whole = rows // SCALE_BLOCK * SCALE_BLOCK
    for expert in range(experts):
        of_experts[expert] = data
        scales_of_experts[expert] = scales
        if whole:
            shifted = data[:whole].view(torch.uint8).roll(expert * SCALE_BLOCK, 0)
            of_experts.view(torch.uint8)[expert, :whole] = shifted
            scales_of_experts[expert, : whole // SCALE_BLOCK] = scales[: whole // SCALE_BLOCK].roll(expert, 0)
    return of_experts, scales_of_experts


def _without_memory(op: str, shape: ExpertsShape) -> ExpertsProblem:
    tokens, hidden, intermediate, experts, top_k = shape

    def pair(*sizes: int, shared_rows: int) -> Pair:
        *groups, rows, columns = sizes
        scales = (*groups, -(-rows // shared_rows), -(-columns // SCALE_BLOCK))
        dtype = torch.float8_e4m3fnuz
        return torch.empty(sizes, dtype=dtype, device="meta"), torch.empty(scales, device="meta")

    return ExpertsProblem(
        op,
        shape,
        pair(tokens, hidden, shared_rows=1),
        pair(experts, 2 * intermediate, hidden, shared_rows=SCALE_BLOCK),
        pair(experts, hidden, intermediate, shared_rows=SCALE_BLOCK),
        torch.empty(tokens, top_k, device="meta"),
        torch.empty(tokens, top_k, dtype=torch.int32, device="meta"),
        unwritten(tokens, hidden, device="meta"),
    )


OPERATIONS = {"fused_moe": ExpertsOperation(shapes.EXPERTS, _make)}

"""Benchmarks of layers of experts: inputs, runs and checks of the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from .. import testing
from ..api.casts import per_token_cast_to_fp4
from ..api.experts import fused_moe
from ..api.fp4 import cast_back_from_fp4
from ..api.int4 import by_columns
from ..api.shuffle import shuffle_weight
from ..problems.four_bits import INT4_DTYPES, is_four_bits
from ..problems.gemm_kind import GROUP
from ..problems.layout import SCALE_BLOCK, ceil_div, data_and_scales
from ..testing.numerics import int4_values, scales_of_four_bits, unshuffled
from . import shapes
from .problems import CHECKED_WHOLE, Operand, WrongResultError, copied, kernel_names, some_rows, to_meta, unwritten
from .shapes import ExpertsShape

# Types of activations and weights. FP8 ones are quantised already.
_TYPES = {
    "fused_moe": ("fp8", "fp8"),
    "bf16_fused_moe": ("bf16", "bf16"),
    "fp8_fp4_fused_moe": ("fp8", "fp4"),
    "bf16_fp4_fused_moe": ("bf16", "fp4"),
    "fp8_shuffled_fp4_fused_moe": ("fp8", "shuffled_fp4"),
    "bf16_shuffled_fp4_fused_moe": ("bf16", "shuffled_fp4"),
    "bf16_int4_fused_moe": ("bf16", "int4"),
    "fp8_int4_fused_moe": ("fp8", "int4"),
    "fp8_shuffled_int4_fused_moe": ("fp8", "shuffled_int4"),
}

_CHECKED_TOKENS = 4
# Bounds of errors as shares of magnitudes: of values that are rounded between the GEMMs, and of bf16 results.
_ROUNDED = {"fp8": 2.0**-4, "bf16": 2.0**-8}
_BF16 = 2.0**-8


@dataclass
class ExpertsProblem:
    """One call of ``fused_moe``.

    Attributes:
        x, gate_up, down: tensors, or pairs with scales.
        weights, ids: each token's experts.
        d: the output, NaN until a kernel writes it.
    """

    computed: ClassVar[tuple[str, ...]] = ("sort_by_expert",)  # the work of the GEMMs depends on its results

    op: str
    shape: ExpertsShape
    x: Operand
    gate_up: Operand
    down: Operand
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
        weights = _bytes(self.gate_up) + _bytes(self.down)
        return weights * used // self.shape.experts + _bytes(self.x) + self.d.nbytes

    @property
    def held_bytes(self) -> int:
        return sum(map(_bytes, (self.x, self.gate_up, self.down, self.d)))

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
            gate_up, down = (
                _values(_each(weight, lambda tensor, expert=expert: tensor[expert]))  # type: ignore[misc]
                for weight in (self.gate_up, self.down)
            )
            of_expert = torch.where(ids == expert, 0, -1).int()
            parts = testing.fused_moe_reference(x, gate_up[None], down[None], weights, of_expert)
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
        exact, magnitudes, of_results = sums
        bound = _ROUNDED[_TYPES[self.op][0]] * magnitudes + _BF16 * (of_results + exact.abs())
        ratios = (self.d.cpu()[tokens].double() - exact).abs() / bound
        if failures := int((~(ratios <= 1)).sum()):
            raise WrongResultError(
                f"{self.op} {self.shape}: {failures} of {ratios.numel()} results are wrong, by up to {ratios.max():g} "
                "times what rounding explains"
            )
        return float(ratios.max())

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> ExpertsProblem:
        names = ("x", "gate_up", "down", "weights", "ids", "d")
        return dataclasses.replace(self, **{name: _each(getattr(self, name), function) for name in names})  # type: ignore[arg-type]


@dataclass(frozen=True)
class ExpertsOperation:
    """A function to measure, like ``problems.Operation``."""

    name: str
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
        kernel_names(_without_memory(self.name, shape))
        return shape


def _each(operand: Operand, function: Callable[[torch.Tensor], torch.Tensor]) -> Operand:
    return function(operand) if isinstance(operand, torch.Tensor) else (function(operand[0]), function(operand[1]))


def _bytes(operand: Operand) -> int:
    data, scales = data_and_scales(operand)
    return data.nbytes + (0 if scales is None else scales.nbytes)


def _values(operand: Operand) -> torch.Tensor:
    """The values of a matrix whose scales, if any, are those of four bits, of rows or of blocks."""
    if isinstance(operand, torch.Tensor):
        return operand.cpu().double()
    if is_four_bits(operand):
        data, exponents = (tensor.cpu() for tensor in operand)
        data = unshuffled(data, exponents)
        return cast_back_from_fp4(data, scales_of_four_bits(exponents, 2 * data.shape[1]).float(), GROUP).double()
    if operand[0].dtype in INT4_DTYPES:
        codes, scales = (tensor.cpu() for tensor in operand)
        return int4_values(unshuffled(codes, scales), scales)
    data, scales = (tensor.cpu().double() for tensor in operand)
    shared_rows = 1 if len(scales) == len(data) else SCALE_BLOCK
    of_rows = scales.repeat_interleave(shared_rows, 0)[: len(data)]
    return data * of_rows.repeat_interleave(SCALE_BLOCK, 1)[:, : data.shape[1]]


def _make(op: str, shape: ExpertsShape, device: str) -> ExpertsProblem:
    tokens, hidden, intermediate, experts, top_k = shape
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(tokens, experts, generator=generator).topk(top_k).indices.int()
    weights = torch.rand(tokens, top_k, generator=generator)
    of_x, of_weights = _TYPES[op]
    x = testing.quantised_activations(tokens, hidden) if of_x == "fp8" else testing.activations(tokens, hidden)
    return ExpertsProblem(
        op,
        shape,
        _each(x, lambda tensor: tensor.to(device)),
        _weights(of_weights, experts, 2 * intermediate, hidden, device),
        _weights(of_weights, experts, hidden, intermediate, device),
        (weights / weights.sum(1, keepdim=True)).to(device),
        ids.to(device),
        unwritten(tokens, hidden, device=device),
    )


def _weights(type_: str, experts: int, rows: int, columns: int, device: str) -> Operand:
    if type_ == "bf16":
        return _rolled(testing.weights(rows, columns), experts, SCALE_BLOCK, device)
    if type_.endswith("fp4"):
        data, scales = per_token_cast_to_fp4(testing.weights(rows, columns).to(device), use_ue8m0=True, gran_k=GROUP)
        exponents = (scales.log2() + 127).to(torch.uint8)
        if type_ == "shuffled_fp4":
            data, exponents = shuffle_weight(data, exponents)
            of_experts = _rolled(exponents.contiguous(), experts, SCALE_BLOCK, device)
            return _rolled(data, experts, SCALE_BLOCK, device), by_columns(of_experts)
        return _rolled(data, experts, SCALE_BLOCK, device), _rolled(exponents, experts, SCALE_BLOCK, device)
    if type_.endswith("int4"):
        codes, factors = testing.int4_weights(rows, columns, GROUP)
        if type_ == "shuffled_int4":
            codes, factors = shuffle_weight(codes, factors)
        of_experts = _rolled(factors.contiguous(), experts, SCALE_BLOCK, device)
        return _rolled(codes, experts, SCALE_BLOCK, device), by_columns(of_experts)
    data, scales = testing.quantised_weights(rows, columns)
    return _rolled(data, experts, SCALE_BLOCK, device), _rolled(scales, experts, 1, device)


def _rolled(rows: torch.Tensor, experts: int, step: int, device: str) -> torch.Tensor:
    """Each expert has the rows of the one before, ``step`` rows further down, but for the last ones that are no whole
    step: that is quick to make."""
    of_experts = torch.empty(experts, *rows.shape, dtype=rows.dtype, device=device)
    whole = rows.shape[0] // step * step
    for expert in range(experts):
        of_experts[expert] = rows
        of_experts.view(torch.uint8)[expert, :whole] = rows[:whole].view(torch.uint8).roll(expert * step, 0).to(device)
    return of_experts


def _without_memory(op: str, shape: ExpertsShape) -> ExpertsProblem:
    tokens, hidden, intermediate, experts, top_k = shape
    of_x, of_weights = _TYPES[op]

    def operand(type_: str, *sizes: int, shared_rows: int) -> Operand:
        if type_ == "bf16":
            return unwritten(*sizes, device="meta")
        *groups, rows, columns = sizes
        if type_.endswith("fp4"):
            pair = _bytes_of(*groups, rows, columns // 2), _bytes_of(*groups, rows, columns // GROUP)
            return shuffle_weight(*pair) if type_ == "shuffled_fp4" else pair
        if type_.endswith("int4"):
            words = torch.empty(*groups, rows, columns // 8, dtype=torch.int32, device="meta")
            pair = words, unwritten(*groups, rows, columns // GROUP, device="meta")
            return shuffle_weight(*pair) if type_ == "shuffled_int4" else pair
        scales = torch.empty(*groups, ceil_div(rows, shared_rows), ceil_div(columns, SCALE_BLOCK), device="meta")
        return torch.empty(sizes, dtype=torch.float8_e4m3fnuz, device="meta"), scales

    return ExpertsProblem(
        op,
        shape,
        operand(of_x, tokens, hidden, shared_rows=1),
        operand(of_weights, experts, 2 * intermediate, hidden, shared_rows=SCALE_BLOCK),
        operand(of_weights, experts, hidden, intermediate, shared_rows=SCALE_BLOCK),
        torch.empty(tokens, top_k, device="meta"),
        torch.empty(tokens, top_k, dtype=torch.int32, device="meta"),
        unwritten(tokens, hidden, device="meta"),
    )


def _bytes_of(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.uint8, device="meta")


OPERATIONS = {name: ExpertsOperation(name, shapes.EXPERTS, _make) for name in _TYPES}

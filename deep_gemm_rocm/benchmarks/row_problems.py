"""Benchmarks of the kernels between two GEMMs, which quantise rows or choose experts: inputs, runs and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .. import testing
from ..api import casts, fused_casts, routing
from ..launch import planning
from ..problems.layout import FP8, SCALE_BLOCK
from . import shapes
from .problems import WrongResultError, copied, kernel_names, to_meta
from .shapes import RowsShape

_DEEPSEEK = {"top_k": 8, "scoring": "sigmoid", "num_groups": 8, "top_groups": 4, "scale": 2.5}  # V3's routing
# Bounds of errors: shares of values, and of the scale for the smallest FP8 numbers; shares of scales and of weights.
_HALF_UNIT, _HALF_LEAST = 2.0**-4, 2.0**-11
_OF_FP32 = 2.0**-20


@dataclass
class RowsProblem:
    """One call of a function that works on rows by themselves, or on tiles of them.

    Attributes:
        op: the operation, a key of ``OPERATIONS``.
        arguments: the function's arguments by their names.
        results: what the last run returned; NaN before the first.
    """

    computed: ClassVar[tuple[str, ...]] = ()  # kernels on whose results the work of later ones depends
    flops: ClassVar[int] = 0  # of matrix products

    op: str
    shape: RowsShape
    arguments: Mapping[str, Any]
    results: tuple[torch.Tensor, ...]

    @property
    def d(self) -> torch.Tensor:
        """The first result."""
        return self.results[0]

    @property
    def bytes(self) -> int:
        """The least that a kernel has to read and write."""
        given = (value for value in self.arguments.values() if isinstance(value, torch.Tensor))
        return sum(tensor.nbytes for tensor in (*given, *self.results))

    @property
    def held_bytes(self) -> int:
        return self.bytes

    def copy(self) -> RowsProblem:
        """The same problem in memory of its own."""
        return dataclasses.replace(self._each(copied), results=tuple(map(_unwritten_like, self.results)))

    def to_meta(self) -> RowsProblem:
        """The same problem without memory, for planning."""
        return self._each(to_meta)

    def run(self) -> None:
        """Calls this package's function."""
        self.results = OPERATIONS[self.op].function(**self.arguments)

    def check(self) -> float:
        """The largest ratio of an error in ``d`` and its bound.

        Raises:
            WrongResultError: an error exceeds its bound, or an element wasn't written.
        """
        if self.d.isnan().any():
            raise WrongResultError(f"{self.op} {self.shape}: {int(self.d.isnan().sum())} elements of d are NaN")
        host = {
            name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in self.arguments.items()
        }
        ratios = OPERATIONS[self.op].ratios(host, tuple(result.cpu() for result in self.results))
        if failures := int((~(ratios <= 1)).sum()):
            raise WrongResultError(
                f"{self.op} {self.shape}: {failures} of {ratios.numel()} results are wrong, by up to "
                f"{ratios.max():g} times what rounding explains"
            )
        return float(ratios.max())

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> RowsProblem:
        arguments = {
            name: function(value) if isinstance(value, torch.Tensor) else value
            for name, value in self.arguments.items()
        }
        return dataclasses.replace(self, arguments=arguments)


_Arguments = dict[str, Any]
_Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class RowsOperation:
    """A function to measure, like ``problems.Operation``.

    Attributes:
        inputs: random arguments of so many rows and columns.
        ratios: of each error of a result and its bound.
    """

    shapes: tuple[RowsShape, ...]
    function: Callable[..., Any]
    inputs: Callable[[RowsShape], _Arguments]
    ratios: Callable[[_Arguments, _Results], torch.Tensor]

    def make(self, op: str, shape: RowsShape, device: str) -> RowsProblem:
        given = self.inputs(shape)
        arguments = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()
        }
        problem = RowsProblem(op, shape, arguments, ())
        on_meta = problem.to_meta()
        with planning.planning():
            on_meta.run()
        results = (torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in on_meta.results)
        return dataclasses.replace(problem, results=tuple(map(_unwritten_like, results)))

    def parse(self, text: str) -> RowsShape:
        """Parses a shape like ``shapes.parse``, and checks that there are kernels for it.

        Raises:
            ValueError: the text is not a shape, or the function doesn't take it.
        """
        shape = shapes.parse(text, RowsShape)
        # Planning raises an error unless the function takes the shape.
        kernel_names(self.make(self.function.__name__, shape._replace(tokens=1), "cpu"))
        return shape


def _unwritten_like(tensor: torch.Tensor) -> torch.Tensor:
    value = torch.nan if tensor.is_floating_point() else -1
    return torch.full_like(tensor, value)


def _activations(shape: RowsShape) -> _Arguments:
    return {"x": testing.activations(*shape)}


def _halves(shape: RowsShape) -> _Arguments:
    return {"x": testing.activations(shape.tokens, 2 * shape.columns)}


def _normed(shape: RowsShape) -> _Arguments:
    x, residual = (testing.activations(*shape, seed) for seed in range(2))
    return {"x": x, "weight": testing.activations(1, shape.columns)[0], "residual": residual}


def _logits(shape: RowsShape) -> _Arguments:
    generator = torch.Generator().manual_seed(0)
    logits, bias = torch.randn(*shape, generator=generator), torch.rand(shape.columns, generator=generator) / 8
    return {"logits": logits, "bias": bias, **_DEEPSEEK}


def _quantised(
    rows: int | None, columns: int | None, values: Callable[..., torch.Tensor]
) -> Callable[[_Arguments, _Results], torch.Tensor]:
    """The ratios for data with a scale for so many rows and columns, None for all, of what ``values`` returns."""

    def ratios(arguments: _Arguments, results: _Results) -> torch.Tensor:
        exact, (data, scales) = values(**arguments).double(), (result.double() for result in results[:2])
        shared = rows or len(data), columns or data.shape[1]
        padding = (0, -data.shape[1] % shared[1], 0, -len(data) % shared[0])
        blocks = (
            torch.nn.functional.pad(exact.abs(), padding).unflatten(1, (-1, shared[1])).unflatten(0, (-1, shared[0]))
        )
        expected = (blocks.amax((1, 3)) / torch.finfo(FP8).max).clamp_min(torch.finfo(torch.float32).tiny)
        of_scales = (scales - expected).abs() / (_OF_FP32 * expected)
        spread = scales.repeat_interleave(shared[0], 0)[: len(data)]
        spread = spread.repeat_interleave(shared[1], 1)[:, : data.shape[1]]
        bound = (_HALF_UNIT + _OF_FP32) * exact.abs() + _HALF_LEAST * spread
        return torch.cat([((data * spread - exact).abs() / bound).flatten(), of_scales.flatten()])

    return ratios


def _ratios_of_choice(arguments: _Arguments, results: _Results) -> torch.Tensor:
    expected, expected_ids = testing.route_top_k_reference(**arguments)
    weights, ids = results
    ratios = (weights.double() - expected.double()).abs() / (_OF_FP32 * expected.double().abs())
    return torch.where(ids == expected_ids, ratios, torch.inf)


def _as_given(x: torch.Tensor) -> torch.Tensor:
    return x


def _normed_values(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return testing.rms_norm_reference(x, weight, 1e-6, residual)[0]


_ALL = (
    RowsOperation(shapes.ROWS, casts.per_token_cast_to_fp8, _activations, _quantised(1, SCALE_BLOCK, _as_given)),
    RowsOperation(
        shapes.ROWS, casts.per_block_cast_to_fp8, _activations, _quantised(SCALE_BLOCK, SCALE_BLOCK, _as_given)
    ),
    RowsOperation(shapes.ROWS, casts.per_channel_cast_to_fp8, _activations, _quantised(SCALE_BLOCK, 1, _as_given)),
    RowsOperation(shapes.ROWS, casts.per_row_cast_to_fp8, _activations, _quantised(1, None, _as_given)),
    RowsOperation(shapes.ROWS, casts.per_tensor_cast_to_fp8, _activations, _quantised(None, None, _as_given)),
    RowsOperation(shapes.ROWS, fused_casts.rms_norm_cast_to_fp8, _normed, _quantised(1, SCALE_BLOCK, _normed_values)),
    RowsOperation(
        shapes.HALVES,
        fused_casts.silu_and_mul_cast_to_fp8,
        _halves,
        _quantised(1, SCALE_BLOCK, testing.silu_and_mul_reference),
    ),
    RowsOperation(shapes.ROUTED, routing.route_top_k, _logits, _ratios_of_choice),
)

OPERATIONS = {operation.function.__name__: operation for operation in _ALL}

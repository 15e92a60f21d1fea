"""Problems that are measured: matrix products with their inputs, how to run them, and how to check the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .. import testing
from ..api import fp4_gemm, gemm, grouped, int4_gemm, k_grouped
from ..api.casts import (
    get_mn_major_tma_aligned_tensor,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
)
from ..api.int4 import by_columns
from ..api.shuffle import shuffle_weight
from ..launch import planning
from ..problems.gemm_kind import GROUP
from ..problems.layout import Pair, align, data_and_scales
from . import shapes
from .shapes import Shape

_CHECKED_ROWS = 64  # rows of each group that are checked in a large problem
CHECKED_WHOLE = 2**32  # FLOPs up to which all of a problem is checked
_CHECKED_COLUMNS_AT_ONCE = 1024  # in fp64
_ALIGNMENT = 128  # of groups of rows
_INT4_GROUP = 128  # values that share a scale, unless the operation names fewer

Operand = Pair | torch.Tensor


class WrongResultError(Exception):
    """A kernel's result is wrong, so its time means nothing."""


class ImpossibleShapeError(Exception):
    """A function doesn't take the arguments of a shape. The message says why."""


@dataclass(frozen=True)
class Problem:
    """One call of a GEMM function.

    Attributes:
        op: the operation, a key of ``OPERATIONS``.
        a, b: the operands; for FP8, pairs with their scales.
        d: the output, NaN until a kernel writes it.
        group_sizes: rows of each group, or the K of each group in k-grouped GEMM; empty without groups.
        layout: int32, on the device: the function's argument that describes the groups.
    """

    computed: ClassVar[tuple[str, ...]] = ()  # kernels on whose results the work of later ones depends

    op: str
    shape: Shape
    a: Operand
    b: Operand
    d: torch.Tensor
    group_sizes: tuple[int, ...] = ()
    layout: torch.Tensor | None = None

    @property
    def is_fp8(self) -> bool:
        return isinstance(self.a, tuple)

    @property
    def flops(self) -> int:
        m, n, k, _ = self.shape
        if self.op.startswith("k_grouped"):
            return 2 * m * n * sum(self.group_sizes)
        return 2 * (sum(self.group_sizes) if self.group_sizes else m) * n * k

    @property
    def bytes(self) -> int:
        """The least that a kernel has to read and write."""
        a, b = data_and_scales(self.a)[0], data_and_scales(self.b)[0]
        if self.op.startswith("k_grouped"):
            return a.nbytes + b.nbytes + self.d.nbytes
        rows = sum(self.group_sizes) if self.group_sizes else self.shape.m
        used = sum(size > 0 for size in self.group_sizes) / len(self.group_sizes) if self.group_sizes else 1
        row_bytes = self.shape.k * a.itemsize + self.shape.n * self.d.itemsize
        return rows * row_bytes + int(b.nbytes * used)

    @property
    def held_bytes(self) -> int:
        """The memory of all tensors."""
        tensors = (*data_and_scales(self.a), *data_and_scales(self.b), self.d)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def copy(self) -> Problem:
        """The same problem in memory of its own."""
        d = torch.full_like(self.d, torch.nan)
        return dataclasses.replace(self, a=_each(self.a, copied), b=_each(self.b, copied), d=d)

    def to_meta(self) -> Problem:
        """The same problem without memory, for planning."""
        layout = None if self.layout is None else to_meta(self.layout)
        a, b = _each(self.a, to_meta), _each(self.b, to_meta)
        return dataclasses.replace(self, a=a, b=b, d=to_meta(self.d), layout=layout)

    def run(self) -> None:
        """Calls this package's function."""
        operation = OPERATIONS[self.op]
        operation.function(self.a, self.b, self.d, *operation.more(self))

    def check(self, recipe: tuple[int | None, int | None, int | None] | None = None) -> float:
        """The largest ratio of an error in ``d`` and its rounding bound.

        In large problems, only some rows of each group are checked, spread over all tiles.

        Args:
            recipe: recipe of the scales; None for the operation's.

        Raises:
            WrongResultError: an error exceeds its bound, or an element wasn't written.
        """
        recipe = recipe or OPERATIONS[self.op].recipe
        worst = 0.0
        for a, b, d in self._parts():
            if d.isnan().any():
                raise WrongResultError(f"{self.op} {self.shape}: {int(d.isnan().sum())} elements of d are NaN")
            rows = some_rows(len(d), _CHECKED_ROWS if self.flops > CHECKED_WHOLE else len(d)).to(d.device)
            for first in range(0, d.shape[1], _CHECKED_COLUMNS_AT_ONCE):
                columns = slice(first, min(first + _CHECKED_COLUMNS_AT_ONCE, d.shape[1]))
                some_a, some_b = _rows_of(a, rows, recipe[0]), _columns_of(b, columns, recipe[1])
                reference = testing.gemm_reference(some_a, some_b, recipe=recipe)
                accuracy = testing.measure(d[rows][:, columns], reference)
                if failures := self.failures(accuracy):
                    checked = len(rows) * (columns.stop - first)
                    raise WrongResultError(
                        f"{self.op} {self.shape}: {failures} of {checked} elements are wrong, by up to "
                        f"{accuracy.max_error:g}"
                    )
                worst = max(worst, accuracy.max_error_over_bound)
        return worst

    def failures(self, accuracy: testing.Accuracy) -> int:
        """The number of elements that are wrong."""
        return accuracy.failures

    def _parts(self) -> Iterator[tuple[Operand, Operand, torch.Tensor]]:
        """For each group, the operands as [rows, K] and [columns, K], and the output."""
        start = 0
        for group, size in enumerate(self.group_sizes):
            rows, blocks = slice(start, start + size), slice(start // 128, (start + size) // 128)
            if self.op.startswith("k_grouped"):
                yield _turned(self.a, rows, blocks), _turned(self.b, rows, blocks), self.d[group]
                start += size
            elif self.op.endswith("masked"):
                yield _at(self.a, (group, slice(size))), _at(self.b, group), self.d[group, :size]
            else:
                yield _at(self.a, rows), _at(self.b, group), self.d[rows]
                start += align(size, _ALIGNMENT)
        if not self.group_sizes:
            yield self.a, self.b, self.d


@dataclass(frozen=True)
class Operation:
    """A GEMM function to measure.

    Attributes:
        shapes: the default shapes.
        make: makes the inputs of a shape.
        function: this package's function; takes ``a``, ``b`` and ``d`` first.
        more: returns its other arguments for a problem.
        recipe: recipe of the scales.
        name: the function's, unless something else tells operations of the same function apart.
    """

    shapes: tuple[Shape, ...]
    make: Callable[[str, Shape, str], Problem]
    function: Callable[..., object]
    more: Callable[[Problem], tuple[Any, ...]] = lambda _: ()
    recipe: tuple[int, int, int] = (1, 128, 128)
    name: str = ""

    @staticmethod
    def parse(text: str) -> Shape:
        """Parses a shape like ``shapes.parse``."""
        return shapes.parse(text, Shape)


def make(op: str, shape: Shape, device: str) -> Problem:
    """Makes a problem with inputs like a model's, the same in every call with the same shape.

    Raises:
        ValueError: only one of operation and shape has groups.
    """
    if shape.groups > 1 and OPERATIONS[op].make is _make_dense:
        raise ValueError(f"{op} has no groups, got shape {shape}")
    return OPERATIONS[op].make(op, shape, device)


def _activations(op: str, rows: int, k: int, device: str) -> Operand:
    x = testing.activations(rows, k)
    if not op.count("fp8"):
        return x.to(device)
    data, scales = per_token_cast_to_fp8(x)
    return data.to(device), get_mn_major_tma_aligned_tensor(scales.to(device))


def _weights(op: str, groups: int, n: int, k: int, device: str) -> Operand:
    if op.count("fp4"):
        packed = not op.count("f32")  # exponents, four to an int32; else scales are fp32
        experts = [per_token_cast_to_fp4(testing.weights(n, k, group), True, GROUP, packed) for group in range(groups)]
        data, scales = (torch.stack(parts).to(device) for parts in zip(*experts, strict=True))
        return shuffle_weight(data, scales) if op.count("shuffled") else (data, scales)
    if op.count("int4"):
        size = GROUP if op.count("groups_of_32") else _INT4_GROUP
        scales_of = torch.float32 if op.count("f32") else torch.bfloat16
        experts = [testing.int4_weights(n, k, size, group, scales_of) for group in range(groups)]
        data, scales = (torch.stack(parts).to(device) for parts in zip(*experts, strict=True))
        return shuffle_weight(data, scales) if op.count("shuffled") else (data, by_columns(scales))
    if op.count("fp8"):
        return _each(testing.grouped_weights(groups, n, k), lambda tensor: tensor.to(device))
    return torch.stack([testing.weights(n, k, group) for group in range(groups)]).to(device)


def kernel_names(problem: Any) -> list[str]:
    """The kernels that a GEMM, attention or logits problem launches."""
    with planning.planning() as plan:
        problem.to_meta().run()
    return [str(request.values["kernel_name"]) for request in plan.values()]


def some_rows(rows: int, count: int) -> torch.Tensor:
    """Indices of ``count`` random rows, one in each of as many equal stripes."""
    edges = torch.linspace(0, rows, min(count, rows) + 1).long()
    random = torch.rand(len(edges) - 1, generator=torch.Generator().manual_seed(0))
    return edges[:-1] + (random * edges.diff()).long()


def _each(
    operand: Operand,
    function: Callable[[torch.Tensor], torch.Tensor],
    of_scales: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Operand:
    """Applies a function to the operand's data, and another, by default the same, to its scales."""
    if isinstance(operand, torch.Tensor):
        return function(operand)
    data, scales = operand
    return function(data), (of_scales or function)(scales)


def _at(operand: Operand, index: int | slice | tuple[int, slice]) -> Operand:
    return _each(operand, lambda tensor: tensor[index])


def _turned(operand: Operand, rows: slice, blocks: slice) -> Operand:
    """Transposes some rows of [K, columns] to [columns, K]; ``blocks`` are the rows of scales."""
    return _each(operand, lambda data: data[rows].T, lambda scales: scales[blocks].T)


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the same strides."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _rows_of(a: Operand, rows: torch.Tensor, shared: int | None) -> Operand:
    """Some rows of an operand, where ``shared`` rows share a scale."""
    return _each(
        a, lambda data: data.view(torch.uint8)[rows].view(data.dtype) if data.itemsize == 1 else data[rows],
        lambda scales: scales if shared is None else scales[rows],
    )  # fmt: skip


def _columns_of(b: Operand, columns: slice, shared: int | None) -> Operand:
    def scales_of(scales: torch.Tensor) -> torch.Tensor:
        return scales if shared is None else scales[columns.start // shared : -(-columns.stop // shared)]

    return _each(b, lambda data: data[columns], scales_of)


def unwritten(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=device)


def _group_sizes(average: int, groups: int) -> tuple[int, ...]:
    """Random sizes from 0.7 to 1.3 times the average, as in DeepGEMM's tests."""
    generator = torch.Generator().manual_seed(groups)
    factors = torch.empty(groups).uniform_(0.7, 1.3, generator=generator).tolist()
    return tuple(max(1, int(average * factor)) for factor in factors)


def _make_dense(op: str, shape: Shape, device: str) -> Problem:
    m, n, k, _ = shape
    b = _each(_weights(op, 1, n, k, device), lambda tensor: tensor[0])
    return Problem(op, shape, _activations(op, m, k, device), b, unwritten(m, n, device=device))


def _make_contiguous(op: str, shape: Shape, device: str) -> Problem:
    m, n, k, groups = shape
    sizes = _group_sizes(m, groups)
    places = [torch.full((align(size, _ALIGNMENT),), -1, dtype=torch.int32) for size in sizes]
    for group, size in enumerate(sizes):
        places[group][:size] = group
    layout = torch.cat(places).to(device)
    a, b = _activations(op, len(layout), k, device), _weights(op, groups, n, k, device)
    return Problem(op, shape, a, b, unwritten(len(layout), n, device=device), sizes, layout)


def _make_masked(op: str, shape: Shape, device: str) -> Problem:
    m, n, k, groups = shape
    sizes = _group_sizes(m, groups)
    room = align(max(sizes), _ALIGNMENT)
    layout = torch.tensor(sizes, dtype=torch.int32, device=device)
    a, b = _activations(op, groups * room, k, "cpu"), _weights(op, groups, n, k, device)
    a = _each(a, lambda tensor: tensor.contiguous().unflatten(0, (groups, room)).to(device))
    if isinstance(a, tuple):
        a = a[0], get_mn_major_tma_aligned_tensor(a[1])
    return Problem(op, shape, a, b, unwritten(groups, room, n, device=device), sizes, layout)


def _make_k_grouped(op: str, shape: Shape, device: str) -> Problem:
    m, n, k, groups = shape
    sizes = (*(align(size, 128) for size in _group_sizes(k, groups - 1)), 0)  # an expert may get no tokens
    layout = torch.tensor(sizes, dtype=torch.int32, device=device)
    operands = [testing.activations(sum(sizes), rows, seed).to(device) for seed, rows in enumerate((m, n))]
    a, b = (per_channel_cast_to_fp8(operand) if op.count("fp8") else operand for operand in operands)
    d = unwritten(groups, m, n, device=device, dtype=torch.float32)
    return Problem(op, shape, a, b, d, sizes, layout)


def _layout(problem: Problem) -> tuple[Any, ...]:
    return (problem.layout,)


def _layout_and_rows(problem: Problem) -> tuple[Any, ...]:
    return problem.layout, problem.shape.m


def _sizes_and_layout(problem: Problem) -> tuple[Any, ...]:
    return problem.group_sizes, problem.layout


_VECTORS = (1, 1, 128)
_ALL = (
    Operation(shapes.DENSE, _make_dense, gemm.fp8_gemm_nt),
    Operation(shapes.DENSE, _make_dense, gemm.bf16_gemm_nt),
    Operation(shapes.DENSE, _make_dense, fp4_gemm.fp8_fp4_gemm_nt, recipe=_VECTORS),
    Operation(shapes.DENSE, _make_dense, fp4_gemm.bf16_fp4_gemm_nt, recipe=_VECTORS),
    Operation(shapes.DENSE, _make_dense, fp4_gemm.fp8_fp4_gemm_nt, recipe=_VECTORS, name="fp8_fp4_gemm_nt_f32_scales"),
    Operation(shapes.DENSE, _make_dense, fp4_gemm.fp8_fp4_gemm_nt, recipe=_VECTORS, name="fp8_shuffled_fp4_gemm_nt"),
    Operation(shapes.DENSE, _make_dense, fp4_gemm.bf16_fp4_gemm_nt, recipe=_VECTORS, name="bf16_shuffled_fp4_gemm_nt"),
    Operation(shapes.DENSE, _make_dense, int4_gemm.fp8_int4_gemm_nt, recipe=_VECTORS),
    Operation(shapes.DENSE, _make_dense, int4_gemm.bf16_int4_gemm_nt, recipe=_VECTORS),
    Operation(
        shapes.DENSE, _make_dense, int4_gemm.fp8_int4_gemm_nt, recipe=_VECTORS, name="fp8_int4_gemm_nt_groups_of_32"
    ),
    Operation(
        shapes.DENSE,
        _make_dense,
        int4_gemm.fp8_int4_gemm_nt,
        recipe=_VECTORS,
        name="fp8_int4_gemm_nt_groups_of_32_f32_scales",
    ),
    Operation(shapes.DENSE, _make_dense, int4_gemm.fp8_int4_gemm_nt, recipe=_VECTORS, name="fp8_shuffled_int4_gemm_nt"),
    Operation(
        shapes.DENSE,
        _make_dense,
        int4_gemm.fp8_int4_gemm_nt,
        recipe=_VECTORS,
        name="fp8_shuffled_int4_gemm_nt_groups_of_32",
    ),
    Operation(
        shapes.DENSE, _make_dense, int4_gemm.bf16_int4_gemm_nt, recipe=_VECTORS, name="bf16_int4_gemm_nt_groups_of_32"
    ),
    Operation(shapes.CONTIGUOUS, _make_contiguous, grouped.m_grouped_fp8_gemm_nt_contiguous, _layout),
    Operation(shapes.CONTIGUOUS, _make_contiguous, grouped.m_grouped_bf16_gemm_nt_contiguous, _layout),
    Operation(
        shapes.CONTIGUOUS, _make_contiguous, fp4_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous, _layout, recipe=_VECTORS
    ),
    Operation(
        shapes.MASKED, _make_masked, fp4_gemm.m_grouped_fp8_fp4_gemm_nt_masked, _layout_and_rows, recipe=_VECTORS
    ),
    Operation(
        shapes.CONTIGUOUS, _make_contiguous, int4_gemm.m_grouped_bf16_int4_gemm_nt_contiguous, _layout, recipe=_VECTORS
    ),
    Operation(
        shapes.CONTIGUOUS, _make_contiguous, int4_gemm.m_grouped_fp8_int4_gemm_nt_contiguous, _layout, recipe=_VECTORS
    ),
    Operation(
        shapes.MASKED, _make_masked, int4_gemm.m_grouped_fp8_int4_gemm_nt_masked, _layout_and_rows, recipe=_VECTORS
    ),
    Operation(
        shapes.MASKED, _make_masked, int4_gemm.m_grouped_bf16_int4_gemm_nt_masked, _layout_and_rows, recipe=_VECTORS
    ),
    Operation(shapes.MASKED, _make_masked, grouped.m_grouped_fp8_gemm_nt_masked, _layout_and_rows),
    Operation(shapes.MASKED, _make_masked, grouped.m_grouped_bf16_gemm_nt_masked, _layout_and_rows),
    Operation(
        shapes.K_GROUPED, _make_k_grouped, k_grouped.k_grouped_fp8_gemm_tn_contiguous, _sizes_and_layout, _VECTORS
    ),
    Operation(shapes.K_GROUPED, _make_k_grouped, k_grouped.k_grouped_bf16_gemm_tn_contiguous, _sizes_and_layout),
)

OPERATIONS = {operation.name or operation.function.__name__: operation for operation in _ALL}

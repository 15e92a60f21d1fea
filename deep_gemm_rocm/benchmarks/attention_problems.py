"""Attention benchmarks: inputs, runs and checks of the results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .. import testing
from ..api import attention, decode
from ..problems.layout import FP8, ceil_div
from . import shapes
from .problems import CHECKED_WHOLE, WrongResultError, copied, kernel_names, some_rows, to_meta, unwritten
from .shapes import AttentionShape

_PAGE = 64
# Large problems are checked in part: so many sequences, queries of each, and heads of q that share a head of k.
_CHECKED_SEQUENCES = 2
_CHECKED_ROWS = 32
_CHECKED_HEADS = 8


@dataclass(frozen=True)
class AttentionProblem:
    """One call of an attention function.

    Attributes:
        op: the operation, a key of ``OPERATIONS``.
        arguments: the function's arguments without the output, tensors and options by their names.
        d: the output, NaN until a kernel writes it.
    """

    computed: ClassVar[tuple[str, ...]] = ()  # kernels on whose results the work of later ones depends

    op: str
    shape: AttentionShape
    arguments: Mapping[str, Any]
    d: torch.Tensor

    @property
    def operation(self) -> AttentionOperation:
        return OPERATIONS[self.op]

    @property
    def flops(self) -> int:
        """FLOPs of both products, for the keys that queries see."""
        batch, tokens_q, tokens_k, heads, _, width = self.shape
        pairs = tokens_q * tokens_k - (tokens_q * (tokens_q - 1) // 2 if self.operation.causal else 0)
        return 2 * batch * heads * pairs * (width + self.d.shape[-1])

    @property
    def bytes(self) -> int:
        """The least that a kernel has to read and write."""
        data = (tensor for name, tensor in self._tensors() if name in ("q", "k", "v") or name.endswith("cache"))
        return sum(tensor.nbytes for tensor in data) + self.d.nbytes

    @property
    def held_bytes(self) -> int:
        """The memory of all tensors."""
        return sum(tensor.nbytes for _, tensor in self._tensors()) + self.d.nbytes

    def copy(self) -> AttentionProblem:
        """The same problem in memory of its own."""
        return dataclasses.replace(self, arguments=self._each(copied), d=torch.full_like(self.d, torch.nan))

    def to_meta(self) -> AttentionProblem:
        """The same problem without memory, for planning."""
        return dataclasses.replace(self, arguments=self._each(to_meta), d=to_meta(self.d))

    def run(self) -> None:
        """Calls this package's function."""
        self.operation.function(**self.arguments, out=self.d)

    def check(self) -> float:
        """The largest ratio of an error in ``d`` and its rounding bound; in large problems, for some queries.

        Raises:
            WrongResultError: an error exceeds its bound, or an element wasn't written.
        """
        if self.d.isnan().any():
            raise WrongResultError(f"{self.op} {self.shape}: {int(self.d.isnan().sum())} elements of d are NaN")
        batch, tokens_q, tokens_k, heads, kv_heads, _ = self.shape
        large = self.flops > CHECKED_WHOLE
        rows = some_rows(tokens_q, _CHECKED_ROWS if large else tokens_q)
        group = min(heads // kv_heads, _CHECKED_HEADS) if large else heads // kv_heads

        def part(tensor: torch.Tensor, sequence: int) -> torch.Tensor:
            of_rows = tensor[sequence : sequence + 1].cpu()[:, rows]
            return of_rows.unflatten(2, (kv_heads, -1))[:, :, :, :group].flatten(2, 3)

        seen = testing.visible_keys(tokens_q, tokens_k, self.operation.causal, None)[rows]
        worst = 0.0
        for sequence in some_rows(batch, _CHECKED_SEQUENCES if large else batch).tolist():
            k, v = (tensor.cpu() for tensor in self._keys_and_values(sequence))
            q = part(self.arguments["q"], sequence)
            reference = testing.attention_reference(q, k, v, seen=seen, in_parts="block_table" in self.arguments)
            accuracy = reference.measure(part(self.d, sequence))
            if accuracy.failures:
                raise WrongResultError(
                    f"{self.op} {self.shape}: {accuracy.failures} of {reference.out.numel()} elements of sequence "
                    f"{sequence} are wrong, by up to {accuracy.max_error:g}"
                )
            worst = max(worst, accuracy.max_error_over_bound)
        return worst

    def _keys_and_values(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a sequence, [1, tokens, heads, width] each."""
        held = [tensor for name, tensor in self._tensors() if name in ("k", "v") or name.endswith("cache")]
        if "block_table" not in self.arguments:
            k, v = (tensor[sequence : sequence + 1] for tensor in held)
            return k, v
        pages = self.arguments["block_table"][sequence].long()
        k, v = (cache[pages].flatten(0, 1)[None, : self.shape.tokens_k] for cache in (held[0], held[-1]))
        return k, v[..., : self.d.shape[-1]]

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, value) for name, value in self.arguments.items() if isinstance(value, torch.Tensor))

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        return {**self.arguments, **{name: function(tensor) for name, tensor in self._tensors()}}


@dataclass(frozen=True)
class AttentionOperation:
    """An attention function to measure, like ``problems.Operation``.

    Attributes:
        shapes: the default shapes.
        make: makes the inputs of a shape.
        function: this package's function; takes an ``AttentionProblem``'s arguments and ``out``.
        causal: whether a query sees no key after its own.
        dtype: dtype of q, keys and values.
        cache_dtype: that of a cache, if it is another one.
        value_width: elements of a value, if prompts have other values than keys.
    """

    shapes: tuple[AttentionShape, ...]
    make: Callable[[str, AttentionShape, str], AttentionProblem]
    function: Callable[..., Any]
    causal: bool = True
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    value_width: int | None = None

    def parse(self, text: str) -> AttentionShape:
        """Parses a shape like ``shapes.parse``, and checks that there are kernels for it.

        Raises:
            ValueError: the text is not a shape, or the function doesn't take it.
        """
        shape = shapes.parse(text, AttentionShape)
        name = next(name for name, operation in OPERATIONS.items() if operation is self)
        # Planning raises an error unless the function takes the shape.
        kernel_names(self.make(name, shape._replace(batch=1), "meta"))
        return shape


def _normal(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Normal random numbers, the same in every call with the same shape."""
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.bfloat16)
    return values.to(dtype).to(device)


def _descales(kind: AttentionOperation, device: str) -> dict[str, torch.Tensor]:
    of_q = ("q_descale",) if kind.dtype == FP8 else ()
    of_keys = ("k_descale", "v_descale") if (kind.cache_dtype or kind.dtype) == FP8 else ()
    return {name: torch.ones(1, device=device) for name in (*of_q, *of_keys)}


def _make_forward(op: str, shape: AttentionShape, device: str) -> AttentionProblem:
    batch, tokens_q, tokens_k, heads, kv_heads, width = shape
    kind = OPERATIONS[op]
    value_width = kind.value_width or width
    arguments: dict[str, Any] = {
        "q": _normal(batch, tokens_q, heads, width, dtype=kind.dtype, device=device),
        "k": _normal(batch, tokens_k, kv_heads, width, dtype=kind.dtype, device=device),
        "v": _normal(batch, tokens_k, kv_heads, value_width, dtype=kind.dtype, device=device),
        "causal": kind.causal,
        **_descales(kind, device),
    }
    return AttentionProblem(op, shape, arguments, unwritten(batch, tokens_q, heads, value_width, device=device))


def _paged(shape: AttentionShape, device: str) -> dict[str, torch.Tensor]:
    """A paged cache with the pages of all sequences in random order."""
    pages = ceil_div(shape.tokens_k, _PAGE)
    order = torch.randperm(shape.batch * pages, generator=torch.Generator().manual_seed(0))
    return {
        "block_table": order.int().view(shape.batch, pages).to(device),
        "context_lens": torch.full((shape.batch,), shape.tokens_k, dtype=torch.int32, device=device),
    }


def _make_paged(names: tuple[str, str], op: str, shape: AttentionShape, device: str) -> AttentionProblem:
    batch, tokens_q, tokens_k, heads, kv_heads, width = shape
    kind, pages = OPERATIONS[op], batch * ceil_div(tokens_k, _PAGE)
    caches = {
        name: _normal(pages, _PAGE, kv_heads, width, dtype=kind.cache_dtype or kind.dtype, device=device)
        for name in names
    }
    q = _normal(batch, tokens_q, heads, width, dtype=kind.dtype, device=device)
    arguments = {"q": q, **caches, **_paged(shape, device), **_descales(kind, device)}
    return AttentionProblem(op, shape, arguments, unwritten(batch, tokens_q, heads, width, device=device))


_make_decode = functools.partial(_make_paged, ("k_cache", "v_cache"))


def _make_paged_forward(op: str, shape: AttentionShape, device: str) -> AttentionProblem:
    problem = _make_paged(("k", "v"), op, shape, device)
    return dataclasses.replace(problem, arguments={**problem.arguments, "causal": OPERATIONS[op].causal})


def _make_latent(op: str, shape: AttentionShape, device: str) -> AttentionProblem:
    batch, tokens_q, tokens_k, heads, kv_heads, width = shape
    pages = batch * ceil_div(tokens_k, _PAGE)
    q = _normal(batch, tokens_q, heads, width, dtype=torch.bfloat16, device=device)
    cache = _normal(pages, _PAGE, kv_heads, width, dtype=OPERATIONS[op].cache_dtype or torch.bfloat16, device=device)
    arguments = {"q": q, "kv_cache": cache, **_paged(shape, device)}
    return AttentionProblem(op, shape, arguments, unwritten(batch, tokens_q, heads, 512, device=device))


_forward, _decode = attention.flash_attention, decode.flash_attention_decode
OPERATIONS = {
    "flash_attention": AttentionOperation(shapes.PROMPTS, _make_forward, _forward, causal=False),
    "flash_attention_causal": AttentionOperation(shapes.PROMPTS, _make_forward, _forward),
    "fp8_flash_attention": AttentionOperation(shapes.PROMPTS, _make_forward, _forward, causal=False, dtype=FP8),
    "fp8_flash_attention_causal": AttentionOperation(shapes.PROMPTS, _make_forward, _forward, dtype=FP8),
    "flash_attention_fp8_cache": AttentionOperation(shapes.PROMPTS, _make_paged_forward, _forward, cache_dtype=FP8),
    "mla_prefill": AttentionOperation(shapes.LATENT_PROMPTS, _make_forward, _forward, value_width=128),
    "flash_attention_decode": AttentionOperation(shapes.STEPS, _make_decode, _decode),
    "fp8_flash_attention_decode": AttentionOperation(shapes.STEPS, _make_decode, _decode, dtype=FP8),
    "flash_attention_decode_fp8_cache": AttentionOperation(shapes.STEPS, _make_decode, _decode, cache_dtype=FP8),
    "mla_decode": AttentionOperation(shapes.LATENT_STEPS, _make_latent, decode.mla_decode),
    "fp8_mla_decode": AttentionOperation(shapes.LATENT_STEPS, _make_latent, decode.mla_decode, cache_dtype=FP8),
}

"""Checks of GEMM's arguments. Bad input is rejected here, before anything is compiled, launched or written.

A failed check raises one TypeError or ValueError, which names the argument, what was expected, what came, and what to
do. Nearly all checks depend only on the tensors' types, shapes and strides. They run once for each combination of
these, so that a warm call is cheap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..checks import check_int, check_tensor, extent, one_of
from .arguments import Argument, Arguments, present
from .gemm_kind import PARTS_OF_B, Gemm, GemmKind
from .layout import SCALE_BLOCK, Pair, ceil_div, unshuffled_shape

ALIGNMENT = 16  # bytes that a lane loads at once

# Kernels address a tile, of at most _TILE_ROWS rows, with 32-bit offsets from its first row. The 4 KiB below 2 GiB are
# for prefetches of K-blocks past the last one, whose offsets must not wrap around.
_TILE_ROWS = 256
_TILE_BYTES = 2**31 - 2**12
_K_BLOCK_BYTES = 128  # also the most columns of a K-block, which row-major operands address with 32-bit offsets

_OCP_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


class _Meta(NamedTuple):
    """The properties of a tensor that the cached checks depend on."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device


class Recipe(NamedTuple):
    """How many rows of a, rows of b, and values along K share a scale; None for all of them."""

    m: int | None
    n: int | None
    k: int | None

    @property
    def scaling(self) -> str:
        """The value of ``GemmKind.scaling``."""
        return "rows" if self.k is None else "vectors" if self.n == 1 else "blocks"


BLOCKS = Recipe(1, SCALE_BLOCK, SCALE_BLOCK)
VECTORS = Recipe(1, 1, SCALE_BLOCK)
_RECIPES = (BLOCKS, VECTORS, *(Recipe(m, n, None) for m in (1, None) for n in (1, None)))

_TYPES = {
    torch.float8_e4m3fnuz: "e4m3",
    torch.float8_e5m2fnuz: "e5m2",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
}
FP8_DTYPES = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class _Signature(NamedTuple):
    """What a public function expects of its tensors."""

    dtypes: tuple[torch.dtype, ...]  # of the operands
    recipe: Recipe | None  # None for operands without scales
    grouping: str  # as in GemmKind
    layout_name: str
    d_name: str
    head_splits: tuple[int, int, int] | None
    epilogue: str


def check_gemm(
    a: Any,
    b: Any,
    d: Any,
    *,
    dtypes: tuple[torch.dtype, ...],
    recipe: Recipe | None = None,
    c: Any = None,
    grouping: str = "dense",
    layout: Any = None,
    layout_name: str = "",
    d_name: str = "d",
    head_splits: tuple[int, int, int] | None = None,
    bias: Any = None,
    epilogue: Any = "identity",
) -> tuple[Gemm, Arguments]:
    """Checks the arguments of a GEMM, ``d = epilogue(a · bᵀ + bias) + c``.

    Args:
        a, b: the operands; pairs with their scales where there is a ``recipe``.
        d: the output. A pair is FP8 data and its scales. None, for a new bf16 tensor, is allowed if ``d_name`` is
            ``out``.
        dtypes: allowed dtypes of the operands.
        recipe: how the operands' scales are shared; None for operands without scales.
        grouping: as in ``GemmKind``.
        layout: the int32 tensor that describes the groups.
        head_splits: columns of each head in ``d``: left, in the gap that isn't written, and right.

    Returns:
        The GEMM, and those of its arguments that are present: ``a``, ``sfa``, ``b``, ``sfb``, ``grouped_layout``,
        ``c``, ``bias``, ``d`` and ``sfd``.
    """
    if d is None and d_name == "d":
        raise TypeError("d must be a torch.Tensor, got NoneType")
    epilogue = "identity" if epilogue is None else epilogue  # DeepGEMM's default
    if epilogue not in tuple(PARTS_OF_B):
        raise ValueError(f"epilogue must be one of {tuple(PARTS_OF_B)}, got {epilogue!r}")
    if recipe is None:
        arguments = {"a": Argument("a", a), "b": Argument("b", b)}
    else:
        arguments = {**_scaled("a", a), **_scaled("b", b)}
    if layout_name:
        arguments["grouped_layout"] = Argument(layout_name, layout)
    arguments |= present(c=("c", c), bias=("bias", bias))
    is_quantised = isinstance(d, (tuple, list)) and d_name == "d" and head_splits is None
    arguments |= _scaled("d", d) if is_quantised else present(d=(d_name, d))
    tensors = dict(arguments.values())
    metas = {name: _meta(name, tensor) for name, tensor in tensors.items()}
    gemm = _check_metas(_Signature(dtypes, recipe, grouping, layout_name, d_name, head_splits, epilogue), metas)
    for operand in ("a", "b"):
        _aligned_start(*arguments[operand])
    for output in ("d", "sfd"):
        if output in arguments:
            _no_shared_memory(arguments[output].name, tensors, metas)
    return gemm, arguments


def _scaled(name: str, pair: Any) -> Arguments:
    data, scales = _pair(name, pair)
    return {name: Argument(f"{name}[0]", data), f"sf{name}": Argument(f"{name}[1]", scales)}


def check_k_grouped_gemm(
    a: Any,
    b: Any,
    d: Any,
    ks: Any,
    layout: Any,
    c: Any,
    *,
    dtypes: tuple[torch.dtype, ...],
    scaled: bool,
    packed: bool,
) -> tuple[Gemm, Arguments]:
    """Checks the arguments of a GEMM whose K is split into groups of ``ks``, ``d[g] = a_g · b_gᵀ + c[g]``.

    Args:
        a, b: operands, [ΣK, rows]; if ``packed``, each group's [rows, K_g] flattened. Pairs if ``scaled``.

    Returns:
        The GEMM, whose k is the sum of all groups' K, and its arguments as ``check_gemm`` returns them. The operands
        are returned as [rows, K].
    """
    sizes = group_sizes("ks_cpu", ks, ALIGNMENT if packed else 1)
    total, blocks = sum(sizes), sum(ceil_div(k, SCALE_BLOCK) for k in sizes)
    named = {"d": _meta("d", d)}
    if named["d"].shape[:-2] != (len(sizes),):
        raise ValueError(f"d must be one matrix for each of {len(sizes)} groups, got shape {tuple(named['d'].shape)}")
    shape = tuple(named["d"].shape)
    _output("d", named["d"], shape, OUTPUT_DTYPES)
    tensors = {"d": d, "grouped_layout": layout}
    arguments = present(d=("d", d), grouped_layout=("grouped_layout", layout), c=("c", c))
    data_names = []
    for name, operand, rows in (("a", a, shape[1]), ("b", b, shape[2])):
        data, scales = _pair(name, operand) if scaled else (operand, None)
        data_name = f"{name}[0]" if scaled else name
        data_names.append(data_name)
        check_tensor(data_name, data)
        tensors[data_name] = data
        named[data_name] = _meta(data_name, data)
        _k_grouped_operand(data_name, named[data_name], dtypes, total, rows, packed)
        _aligned_start(data_name, data)
        arguments[name] = Argument(data_name, data.view(1, -1) if packed else data.mT)
        if scales is not None:
            scales_name = f"{name}[1]"
            check_tensor(scales_name, scales)
            tensors[scales_name] = scales
            named[scales_name] = _meta(scales_name, scales)
            meaning = f"one scale for each row or column and {SCALE_BLOCK} of each group's K"
            _scales(scales_name, named[scales_name], (rows, blocks) if packed else (blocks, rows), meaning)
            arguments[f"sf{name}"] = Argument(scales_name, scales if packed else scales.mT)
    named["grouped_layout"] = _meta("grouped_layout", layout)
    _layout("grouped_layout", named["grouped_layout"], len(sizes), "group")
    if c is not None:
        tensors["c"] = c
        named["c"] = _meta("c", c)
        _output("c", named["c"], shape, (d.dtype,))
    a_name, b_name = data_names
    for name, meta in named.items():
        _same_device(name, meta, a_name, named[a_name])
    _same_operand_type(a_name, named[a_name], b_name, named[b_name])
    _no_shared_memory("d", tensors, named)
    major = "k" if packed else "rows"
    kind = GemmKind(
        a_type=_TYPES[named[a_name].dtype],
        b_type=_TYPES[named[b_name].dtype],
        d_type=_TYPES[d.dtype],
        scaling=VECTORS.scaling if scaled else "none",
        accumulate=c is not None,
        grouping="k_grouped",
        a_major=major,
        b_major=major,
    )
    return Gemm(shape[1], shape[2], total, len(sizes), kind), arguments


def check_prenorm_gemm(a: Any, b: Any, d: Any, sqr_sum: Any, num_splits: Any) -> tuple[Gemm, Arguments]:
    """Checks the arguments of ``tf32_hc_prenorm_gemm``.

    Returns:
        The GEMM, whose groups are the ``num_splits`` parts of K, and its arguments as ``check_gemm`` returns them.
        ``sqr_sum`` is returned as ``square_sums``.
    """
    splits = () if num_splits is None else (check_int("num_splits", num_splits, 1),)
    tensors = {"a": a, "b": b, "d": d, "sqr_sum": sqr_sum}
    metas = {name: _meta(name, tensor) for name, tensor in tensors.items()}
    m, k = _operand("a", metas["a"], (torch.bfloat16,), grouped=False)
    n, k_of_b = _operand("b", metas["b"], (torch.float32,), grouped=False)
    if k != k_of_b:
        raise ValueError(f"a and b must agree in K, their last dimension, got ({m}, {k}) and ({n}, {k_of_b})")
    if n == 0:
        raise ValueError(f"b must have at least one row, got shape ({n}, {k})")
    values = ALIGNMENT // torch.bfloat16.itemsize
    if k % values:
        raise ValueError(f"K must be a multiple of {values}, got {k}; pad a and b with zeros")
    for name in ("a", "b"):
        if _major(metas[name]) != "k":
            raise ValueError(f"rows of {name} must be contiguous, got strides {metas[name].strides}; .contiguous() it")
        _aligned_lines(name, metas[name])
        _aligned_start(name, tensors[name])
    _output("d", metas["d"], (*splits, m, n), (torch.float32,))
    _output("sqr_sum", metas["sqr_sum"], (*splits, m), (torch.float32,))
    if not sqr_sum.is_contiguous():
        raise ValueError(f"sqr_sum must be contiguous, got strides {metas['sqr_sum'].strides}")
    for name in ("b", "d", "sqr_sum"):
        _same_device(name, metas[name], "a", metas["a"])
    for name in ("d", "sqr_sum"):
        _no_shared_memory(name, tensors, metas)
    kind = GemmKind("bf16", "f32", "f32", "none", grouping="split_k", sums_squares=True)
    arguments = present(a=("a", a), b=("b", b), d=("d", d), square_sums=("sqr_sum", sqr_sum))
    return Gemm(m, n, k, num_splits or 1, kind), arguments


def _aligned_start(name: str, operand: torch.Tensor) -> None:
    if operand.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"{name} must start at a multiple of {ALIGNMENT} bytes, got {operand.data_ptr():#x}; .clone() it"
        )


def _same_operand_type(a_name: str, a: _Meta, b_name: str, b: _Meta) -> None:
    """Checks that both operands have one dtype; the two FP8 types may be mixed."""
    if a.dtype != b.dtype and a.dtype not in FP8_DTYPES:
        raise TypeError(f"{b_name} must have the dtype of {a_name}, {a.dtype}, got {b.dtype}")


def _no_shared_memory(d_name: str, tensors: dict[str, torch.Tensor], metas: dict[str, _Meta]) -> None:
    """Checks that the output shares no memory with the other tensors; c may be d itself."""
    if tensors[d_name].is_meta:
        return
    begin = tensors[d_name].data_ptr()
    end = begin + extent(tensors[d_name])
    for name, tensor in tensors.items():
        address = tensor.data_ptr()
        if name == d_name or (name == "c" and address == begin and metas["c"].strides == metas[d_name].strides):
            continue
        if address < end and begin < address + extent(tensor):
            raise ValueError(f"{d_name} must not share memory with {name}, which is accessed while {d_name} is written")


def _k_grouped_operand(
    name: str, meta: _Meta, dtypes: tuple[torch.dtype, ...], total_k: int, rows: int, packed: bool
) -> None:
    if packed:
        _of_dtype(name, meta, dtypes)
        if meta.shape != (total_k * rows,) or meta.strides != (1,):
            raise ValueError(
                f"{name} must be contiguous and have shape ({total_k * rows},), all groups' [{rows}, K_g] flattened, "
                f"got {tuple(meta.shape)}; .view(-1) it"
            )
    else:
        if meta.shape != (total_k, rows):
            raise ValueError(
                f"{name} must have shape ({total_k}, {rows}), the sum of ks_cpu and a dimension of d, "
                f"got {tuple(meta.shape)}"
            )
        # Check it as [rows, K], like other operands. With a K of 1, its stride doesn't matter.
        stride = meta.strides[0] if total_k > 1 else rows
        if rows > 1 and meta.strides[1] != 1:
            raise ValueError(f"rows of {name} must be contiguous, got strides {meta.strides}; .contiguous() it")
        turned = meta._replace(shape=torch.Size((rows, total_k)), strides=(1, stride))
        _operand(name, turned, dtypes, grouped=False)
        _contiguous_rows(name, turned)
        if total_k > 1:
            _aligned_lines(name, turned)


def check_recipe(function: str, recipe: Any, recipe_a: Any, recipe_b: Any) -> Recipe:
    """Combines DeepGEMM's three recipe arguments into one; by default, b has one scale for each 128 x 128 block.

    Raises:
        NotImplementedError: there is no kernel for the recipe.
        TypeError, ValueError: an argument is not a recipe, or the arguments contradict each other.
    """
    given = {"recipe": (recipe, 3), "recipe_a": (recipe_a, 2), "recipe_b": (recipe_b, 2)}
    for name, (value, length) in given.items():
        if value is not None and (not isinstance(value, (tuple, list)) or len(value) != length):
            raise TypeError(f"{name} must be a tuple of {length} ints, got {value!r}")
    if recipe is not None:
        whole = Recipe(*recipe)
    elif (recipe_a is None) != (recipe_b is None):
        raise ValueError("recipe_a and recipe_b must be given both, or neither")
    elif recipe_a is None:
        return BLOCKS
    else:
        if recipe_a[1] != recipe_b[1]:
            raise ValueError(f"recipe_a and recipe_b must agree in K, their last number, got {recipe_a} and {recipe_b}")
        whole = Recipe(recipe_a[0], recipe_b[0], recipe_a[1])
    for name, value, expected in (
        ("recipe_a", recipe_a, (whole.m, whole.k)),
        ("recipe_b", recipe_b, (whole.n, whole.k)),
    ):
        if value is not None and tuple(value) != expected:
            raise ValueError(f"{name} must agree with recipe={tuple(whole)}, got {value}")
    if whole not in _RECIPES:
        known = ", ".join(str(tuple(recipe)) for recipe in _RECIPES)
        raise NotImplementedError(f"{function} has kernels for the recipes {known}; got {tuple(whole)}")
    return whole


def flat_recipe(recipe: Recipe) -> list[int]:
    """The recipe as custom operators take it: a list of ints, with 0 for None."""
    return [number or 0 for number in recipe]


def transposed(name: str, tensor: Any) -> torch.Tensor:
    """The tensor with its last two dimensions swapped; ValueError if it has fewer than two."""
    check_tensor(name, tensor)
    if tensor.dim() < 2:
        raise ValueError(f"{name} must be a matrix, got shape {tuple(tensor.shape)}")
    return tensor.mT


def transposed_pair(name: str, pair: Any) -> Pair:
    """``transposed`` for both the data and its scales."""
    data, scales = _pair(name, pair)
    return transposed(f"{name}[0]", data), transposed(f"{name}[1]", scales)


def flattened_pair(name: str, pair: Any) -> Pair:
    """The data flattened and the scales transposed; ValueError if the data is not contiguous."""
    data, scales = _pair(name, pair)
    check_tensor(f"{name}[0]", data)
    if not data.is_contiguous():
        raise ValueError(f"{name}[0] must be contiguous, got strides {data.stride()}; .contiguous() it")
    return data.view(-1), transposed(f"{name}[1]", scales)


def group_sizes(name: str, sizes: Any, unit: int) -> list[int]:
    """``sizes`` as ints, all multiples of ``unit``."""
    if isinstance(sizes, torch.Tensor) or not isinstance(sizes, Sequence):
        raise TypeError(f"{name} must be a list of ints, got {type(sizes).__name__}")
    checked = [check_int(f"{name}[{group}]", k, 0) for group, k in enumerate(sizes)]
    for group, k in enumerate(checked):
        if k % unit:
            raise ValueError(f"{name}[{group}] must be a multiple of {unit}, got {k}; pad the group with zeros")
    if not checked or sum(checked) >= 2**31:
        raise ValueError(
            f"{name} must have at least one group and a sum below 2^31, got {len(checked)}, {sum(checked)}"
        )
    return checked


def permuted(name: str, tensor: Any, letters: str, order: str, sizes: dict[str, int]) -> torch.Tensor:
    """Permutes a tensor's dimensions, named by ``letters``, into another ``order``.

    Args:
        sizes: sizes of known dimensions, by letter; the tensor must agree with them. Sizes of new letters are added.
    """
    check_tensor(name, tensor)
    shape = tuple(tensor.shape)
    if len(shape) != len(letters) or any(
        sizes.setdefault(letter, size) != size for letter, size in zip(letters, shape, strict=True)
    ):
        known = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
        raise ValueError(f"{name} must have the dimensions {letters}, here ({known}), got shape {shape}")
    return tensor.permute([letters.index(letter) for letter in order])


def permuted_pair(
    name: str, pair: Any, letters: str, order: str, sizes: dict[str, int], shared: dict[str, int | None]
) -> Pair:
    """``permuted`` for both the data and its scales; ``shared`` says how many values of a dimension share a scale."""
    data, scales = _pair(name, pair)
    data = permuted(f"{name}[0]", data, letters, order, sizes)
    sizes_of_scales = {letter: _num_scales(sizes[letter], shared.get(letter, 1)) for letter in letters}
    return data, permuted(f"{name}[1]", scales, letters, order, sizes_of_scales)


def check_head_splits(value: Any) -> tuple[int, int, int]:
    """Returns the left, mid and right columns of a head.

    Raises:
        TypeError, ValueError: ``value`` is not three non-negative ints, or both left and right are 0.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise TypeError(f"head_splits must be a tuple of 3 ints, got {value!r}")
    left, mid, right = (check_int(f"head_splits[{i}]", columns, 0) for i, columns in enumerate(value))
    if left + right == 0:
        raise ValueError(f"head_splits must have columns on the left or right, got {value}")
    return left, mid, right


def _check_metas(signature: _Signature, named: dict[str, _Meta]) -> Gemm:
    grouping, recipe = signature.grouping, signature.recipe
    a_name, b_name = ("a", "b") if recipe is None else ("a[0]", "b[0]")
    a = named[a_name]
    *groups_of_a, m, k = _operand(a_name, a, signature.dtypes, grouped=grouping in ("batched", "summed", "masked"))
    b, b_major = _weight(signature, b_name, named[b_name])
    groups = list(b.shape[:-2])
    _same_operand_type(a_name, a, b_name, b)
    if k != b.shape[-1]:
        raise ValueError(
            f"{a_name} and {b_name} must agree in K, their last dimension, got {tuple(a.shape)} and {tuple(b.shape)}; "
            f"{b_name} is {_shape_text(b, 'NK')}, transpose and copy a {_shape_text(b, 'KN')} weight"
        )
    if groups_of_a and groups_of_a != groups:
        raise ValueError(
            f"{a_name} and {b_name} must agree in groups, their first dimension, "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    a_major = _major(a)
    values = ALIGNMENT // a.dtype.itemsize
    if k % values and "k" in (a_major, _major(b)):
        raise ValueError(f"K must be a multiple of {values}, got {k}; pad {a_name} and {b_name} with zeros")
    if k > 0:
        _aligned_lines(a_name, a)
        _aligned_lines(b_name, b)
    if grouping in ("contiguous", "psum", "masked") and a_major != "k":
        raise ValueError(
            f"{a_name} must be contiguous along K, its last dimension, got strides {a.strides}; .contiguous() it"
        )
    if recipe is not None:
        _scales_of("a", named["a[1]"], (*groups_of_a, m, k), recipe.m, recipe.k)
    n = _columns_of_output(signature, b_name, b, named.get("b[1]"))
    if signature.layout_name:
        size, unit = (m, f"row of {a_name}") if grouping == "contiguous" else (groups[0], f"group of {b_name}")
        _layout(signature.layout_name, named[signature.layout_name], size, unit)
    d_name = signature.d_name
    groups_of_d = [] if grouping == "summed" else groups_of_a
    shape = (*groups_of_d, m, n + _columns_in_gaps(b_name, n, signature))
    quantised = f"{d_name}[1]" in named
    d = named.get(f"{d_name}[0]") if quantised else named.get(d_name)
    if quantised:
        _quantised_output(d_name, named[f"{d_name}[0]"], named[f"{d_name}[1]"], shape)
    elif d is not None:
        _output(d_name, d, shape, OUTPUT_DTYPES)
    if "c" in named:
        if quantised or signature.epilogue != "identity":
            raise ValueError(f"c must be None where {d_name} is a pair or epilogue is not identity; add it afterwards")
        _output("c", named["c"], shape, (d.dtype if d is not None else torch.bfloat16,))
    if "bias" in named:
        _bias(named["bias"], tuple(b.shape[:-1]), b_name)
    for name, meta in named.items():
        _same_device(name, meta, a_name, a)
    kind = _kind(
        a_type=_TYPES[a.dtype],
        b_type=_TYPES[b.dtype],
        d_type=_TYPES[d.dtype] if d is not None else "bf16",
        scaling="none" if recipe is None else recipe.scaling,
        accumulate="c" in named,
        grouping=grouping,
        a_major=a_major,
        b_major=b_major,
        skips_head_mid=signature.head_splits is not None,
        bias=_TYPES[named["bias"].dtype] if "bias" in named else "none",
        activation=signature.epilogue,
    )
    return Gemm(m, n, k, groups[0] if groups else 1, kind)


_kind = functools.lru_cache(maxsize=4096)(GemmKind)


@functools.lru_cache(maxsize=4096)  # M, which changes from call to call, doesn't matter here
def _weight(signature: _Signature, name: str, b: _Meta) -> tuple[_Meta, str]:
    """Checks ``b`` on its own. Returns it as it was before ``shuffle_weight``, and its contiguous dimension."""
    is_shuffled = len(b.shape) >= 5
    if is_shuffled:
        b = _unshuffled(name, b)
    _operand(name, b, signature.dtypes, grouped=signature.grouping != "dense")
    return b, "shuffled" if is_shuffled else _major(b)


def _unshuffled(name: str, meta: _Meta) -> _Meta:
    """The operand as it was before ``shuffle_weight``, with contiguous matrices."""
    shape = unshuffled_shape(meta.shape, meta.dtype)
    contiguous = 0 in meta.shape or all(
        size == 1 or stride == math.prod(meta.shape[dimension + 1 :])
        for dimension, (size, stride) in enumerate(zip(meta.shape, meta.strides, strict=True))
        if dimension >= len(meta.shape) - 5
    )
    if shape is None or not contiguous:
        raise ValueError(
            f"{name} must be a matrix, or contiguous as shuffle_weight returns it, got shape {tuple(meta.shape)} and "
            f"strides {meta.strides}"
        )
    return meta._replace(shape=torch.Size(shape), strides=(*meta.strides[:-5], shape[-1], 1))


@functools.lru_cache(maxsize=4096)  # as above
def _columns_of_output(signature: _Signature, b_name: str, b: _Meta, scales: _Meta | None) -> int:
    """Columns of the output: b's rows divided by the number of parts that the epilogue combines."""
    if 0 in b.shape[:-2] and signature.grouping not in ("batched", "summed"):
        raise ValueError(f"{b_name} must have at least one group, got shape {tuple(b.shape)}")
    parts = PARTS_OF_B[signature.epilogue]
    rows_of_b = b.shape[-2]
    between = rows_of_b // parts * (b.strides[-2] if _major(b) == "k" else 1) * b.dtype.itemsize
    if parts > 1 and between > _TILE_BYTES // 2:
        raise ValueError(f"{b_name} must have its parts within 1 GiB, got strides {b.strides}; .contiguous() it")
    unit = parts * SCALE_BLOCK if signature.recipe == BLOCKS and parts > 1 else parts
    if rows_of_b % unit:
        raise ValueError(f"{b_name} must have a multiple of {unit} rows for {signature.epilogue}, got {rows_of_b}")
    if signature.recipe is not None:
        assert scales is not None
        _scales_of("b", scales, b.shape, signature.recipe.n, signature.recipe.k)
    return rows_of_b // parts


def _quantised_output(name: str, data: _Meta, scales: _Meta, shape: tuple[int, ...]) -> None:
    _output(f"{name}[0]", data, shape, FP8_DTYPES)
    meaning = f"one scale for each row and {SCALE_BLOCK} columns of {name}[0]"
    _scales(f"{name}[1]", scales, (*shape[:-1], ceil_div(shape[-1], SCALE_BLOCK)), meaning)
    if _overlaps(scales):
        raise ValueError(f"{name}[1] must have elements that don't overlap, got strides {scales.strides}")


def _bias(meta: _Meta, shape: tuple[int, ...], b_name: str) -> None:
    if meta.dtype not in OUTPUT_DTYPES:
        raise TypeError(f"bias must be {one_of(OUTPUT_DTYPES)}, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"bias must have shape {shape}, a number for each row of {b_name}, got {tuple(meta.shape)}")
    if shape[-1] > 1 and meta.strides[-1] != 1:
        raise ValueError(f"bias must be contiguous, got strides {meta.strides}; .contiguous() it")


def _pair(name: str, pair: Any) -> Pair:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        came = f"a {type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, (tuple, list)) else "")
        cast = "per_block_cast_to_fp8" if name == "b" else "per_token_cast_to_fp8"
        raise TypeError(f"{name} must be a pair (FP8 data, scales) as {cast} returns it, got {came}")
    return pair[0], pair[1]


def _meta(name: str, tensor: Any) -> _Meta:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_neg():
        check_tensor(name, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for this GEMM has no backward; .detach() it or call under torch.no_grad()"
        )
    return _Meta(tensor.dtype, tensor.shape, tensor.stride(), tensor.device)


def _shape_text(meta: _Meta, matrix: str) -> str:
    return f"[{', '.join(('G' if len(meta.shape) == 3 else '') + matrix)}]"


def _columns_in_gaps(b_name: str, n: int, signature: _Signature) -> int:
    if signature.head_splits is None:
        return 0
    left, mid, right = signature.head_splits
    if n % (left + right):
        parts = PARTS_OF_B[signature.epilogue]
        raise ValueError(
            f"{b_name} must have a multiple of {parts * (left + right)} rows, the left and right columns of whole "
            f"heads, got {parts * n}"
        )
    return n // (left + right) * mid


def _matrices(name: str, meta: _Meta, grouped: bool) -> None:
    if len(meta.shape) != 2 + grouped:
        expected = "one matrix for each group, three dimensions" if grouped else "a matrix"
        raise ValueError(f"{name} must be {expected}, got shape {tuple(meta.shape)}")
    rows, columns = meta.shape[-2:]
    tile_bytes = (min(rows - 1, _TILE_ROWS - 1) * meta.strides[-2] + columns) * meta.dtype.itemsize
    if max(meta.shape) >= 2**31 or (tile_bytes > _TILE_BYTES and _major(meta) == "k"):
        raise ValueError(
            f"{name} must have dimensions below 2^31 and {_TILE_ROWS} rows within 2 GiB, "
            f"got shape {tuple(meta.shape)} and strides {meta.strides}; .contiguous() it"
        )


def _major(meta: _Meta) -> str:
    """The contiguous dimension of an operand, as in ``GemmKind``."""
    return "rows" if meta.strides[-2] == 1 != meta.strides[-1] else "k"


def _of_dtype(name: str, meta: _Meta, dtypes: tuple[torch.dtype, ...]) -> None:
    if meta.dtype not in dtypes:
        advice = ""
        if meta.dtype in _OCP_DTYPES and dtypes == FP8_DTYPES:
            advice = "; gfx942 has another FP8 format, convert data and scales with convert_fp8_fn_to_fnuz"
        raise TypeError(f"{name} must be {one_of(dtypes)}, got {meta.dtype}{advice}")


def _operand(name: str, meta: _Meta, dtypes: tuple[torch.dtype, ...], grouped: bool) -> torch.Size:
    _of_dtype(name, meta, dtypes)
    _matrices(name, meta, grouped)
    rows, k = meta.shape[-2:]
    stride, stride_k = meta.strides[-2:]
    if _major(meta) == "rows":
        _contiguous_rows(name, meta)
        if stride_k < rows or (_K_BLOCK_BYTES * stride_k > _TILE_BYTES):
            raise ValueError(
                f"columns of {name} must not overlap, and {_K_BLOCK_BYTES} of them be within 2 GiB, "
                f"got strides {meta.strides}; .contiguous() it"
            )
        return meta.shape
    if k > 1 and stride_k != 1:
        raise ValueError(
            f"{name} must be contiguous along K, its last dimension, or along its rows, got strides {meta.strides}; "
            ".contiguous() it"
        )
    if rows > 1 and stride < k:
        raise ValueError(f"rows of {name} must not overlap, got strides {meta.strides}; .contiguous() it")
    return meta.shape


def _contiguous_rows(name: str, meta: _Meta) -> None:
    """Checks that 4-byte loads cover contiguous rows exactly."""
    unit = ALIGNMENT // 4 // meta.dtype.itemsize
    if meta.shape[-2] % unit:
        raise ValueError(
            f"{name} must have a multiple of {unit} rows where these are contiguous in memory, got shape "
            f"{tuple(meta.shape)} and strides {meta.strides}; pad it, or .contiguous() it"
        )


def _aligned_lines(name: str, meta: _Meta) -> None:
    """Checks that contiguous lines, and groups, start at multiples of the 16 bytes that a lane loads."""
    line, unit = (-2, "rows") if _major(meta) == "k" else (-1, "columns")
    for dimension, what in ((line, unit), (-3, "groups")):
        if len(meta.shape) < -dimension or meta.shape[dimension] <= 1:
            continue
        if meta.strides[dimension] * meta.dtype.itemsize % ALIGNMENT:
            raise ValueError(
                f"{what} of {name} must be a multiple of {ALIGNMENT} bytes apart, got strides {meta.strides}; "
                ".contiguous() it"
            )


def _scales_of(
    operand: str, meta: _Meta, shape: tuple[int, ...], shared_rows: int | None, shared_k: int | None
) -> None:
    """Checks the scales of an operand of ``shape``; ``shared_rows`` rows and ``shared_k`` values share a scale."""
    *groups, rows, k = shape
    expected = (*groups, _num_scales(rows, shared_rows), _num_scales(k, shared_k))
    unit = "all rows" if shared_rows is None else "each row" if shared_rows == 1 else f"{shared_rows} rows"
    unit += " and all of K" if shared_k is None else f" and {shared_k} of K"
    _scales(f"{operand}[1]", meta, expected, f"one scale for {unit} of {operand}[0]")


def _num_scales(size: int, shared: int | None) -> int:
    """The number of scales of a dimension; ``shared`` values share one, None for all."""
    return 1 if shared is None else ceil_div(size, shared)


def _scales(name: str, meta: _Meta, shape: tuple[int, ...], meaning: str) -> None:
    if meta.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}, got {tuple(meta.shape)}")
    _matrices(name, meta, len(shape) == 3)


def _layout(name: str, meta: _Meta, size: int, meaning: str) -> None:
    if meta.dtype != torch.int32:
        raise TypeError(f"{name} must be int32, got {meta.dtype}")
    if meta.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), one number for each {meaning}, got {tuple(meta.shape)}")
    if size > 1 and meta.strides != (1,):
        raise ValueError(f"{name} must be contiguous, got strides {meta.strides}; .contiguous() it")


def _output(name: str, meta: _Meta, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if meta.dtype not in dtypes:
        raise TypeError(f"{name} must be {one_of(dtypes)}, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(meta.shape)}")
    if len(shape) > 1:
        _matrices(name, meta, len(shape) == 3)
    if (shape[-1] > 1 and meta.strides[-1] != 1) or _overlaps(meta):
        raise ValueError(f"{name} must have contiguous rows that don't overlap, got strides {meta.strides}")


def _overlaps(meta: _Meta) -> bool:
    """Whether elements may share memory: a stride lies within the extent of the dimensions with smaller strides."""
    reached = 1
    for stride, size in sorted(zip(meta.strides, meta.shape, strict=True)):
        if size > 1 and stride < reached:
            return True
        reached += (size - 1) * stride
    return False


def _same_device(name: str, meta: _Meta, first_name: str, first: _Meta) -> None:
    if meta.device != first.device:
        raise ValueError(f"{name} must be on the device of {first_name}, {first.device}, got {meta.device}")

"""Checks of four-bit operands with scales of groups along K.

FP4 (e2m1) is int8 or uint8, two values to an element, or shuffled, as int64 of sixteen, with a scale for each 32 of
them. int4 is int32, eight values to an element, or shuffled, as int16 of four, with a scale for 32, 64 or 128.
"""

from __future__ import annotations

from typing import Any

import torch

from ..checks import one_of
from .gemm_kind import GROUP
from .layout import SCALE_BLOCK, Pair, ceil_div
from .matrices import (
    FP8_DTYPES,
    TensorMeta,
    check_aligned_lines,
    check_aligned_start,
    check_extent,
    check_matrices,
    check_operand,
    check_same_device,
    major_of,
    meta_of,
)
from .operands import pair_of

FP4_DTYPES = (torch.int8, torch.uint8)
_SHUFFLED_FP4, _SHUFFLED_INT4 = torch.int64, torch.int16
SHUFFLED_DTYPES = (_SHUFFLED_FP4, _SHUFFLED_INT4)
INT4_DTYPES = (torch.int32, _SHUFFLED_INT4)
DTYPES_OF = {"e2m1": (*FP4_DTYPES, _SHUFFLED_FP4), "int4": INT4_DTYPES}
FOUR_BIT_DTYPES = (*DTYPES_OF["e2m1"], *INT4_DTYPES)
_TYPES = {torch.int32: "int4", _SHUFFLED_INT4: "shuffled_int4", _SHUFFLED_FP4: "shuffled_e2m1"}
SHUFFLED_EXPONENTS = (103, 130)  # the least and the largest, see FourBits<E5M2>
INT4_GROUPS = (32, 64, 128)
PACKED_EXPONENTS = torch.int32  # four exponents
_SHARES = {2: ("half", "two"), 4: ("a quarter", "four"), 8: ("an eighth", "eight"), 16: ("a sixteenth", "sixteen")}
_MOST_VALUES = 2**34  # of an operand that is widened in a kernel of its own, which counts vectors of 8 with 32 bits
E8M0_DTYPES = (torch.uint8, *filter(None, (getattr(torch, "float8_e8m0fnu", None),)))
FP4_SCALES = (torch.float32, *E8M0_DTYPES, PACKED_EXPONENTS)
_SHUFFLED_SCALES = (PACKED_EXPONENTS,)
INT4_SCALES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "f32_and_zero",
}  # fmt: skip
SHUFFLED_INT4_SCALES = (torch.float32, torch.bfloat16, torch.float16)


_DTYPES_OF_SCALES = {
    torch.int32: tuple(INT4_SCALES), _SHUFFLED_INT4: SHUFFLED_INT4_SCALES, _SHUFFLED_FP4: _SHUFFLED_SCALES,
}  # fmt: skip


def is_four_bits(pair: Any) -> bool:
    """Whether a weight has FP4 data; not whether it is a good one."""
    if not isinstance(pair, (tuple, list)) or not pair:
        return False
    return isinstance(pair[0], torch.Tensor) and pair[0].dtype in DTYPES_OF["e2m1"]


def type_of_data(dtype: torch.dtype) -> str:
    """The value of ``GemmKind.b_type`` for data of four bits."""
    return _TYPES.get(dtype, "e2m1")


def values_of_element(dtype: torch.dtype) -> int:
    return 2 * dtype.itemsize if dtype in FOUR_BIT_DTYPES else 1


def has_short_groups(data: TensorMeta | torch.Tensor, scales: TensorMeta | torch.Tensor) -> bool:
    """Whether a K-block of FP8 has several groups of these integers."""
    return scales.shape[-1] * SCALE_BLOCK > values_of_element(data.dtype) * data.shape[-1]


def forms_of_scales(data: TensorMeta, scales: TensorMeta) -> dict[str, Any]:
    """``b_scale_type`` and ``group_k`` of ``GemmKind``, of checked tensors."""
    if data.dtype in INT4_DTYPES:
        k, groups = values_of_element(data.dtype) * data.shape[-1], scales.shape[-1]
        return {"b_scale_type": INT4_SCALES[scales.dtype], "group_k": k // groups if groups else GROUP}
    return {"b_scale_type": "f32" if scales.dtype == torch.float32 else "e8m0", "group_k": GROUP}


def check_k_of_four_bits(a_name: str, a: TensorMeta, b_name: str, b: TensorMeta) -> None:
    """Checks that a four-bit ``b`` fits ``a`` along K."""
    k = a.shape[-1]
    for name, meta in ((a_name, a), (b_name, b)):
        if major_of(meta) != "k":
            raise ValueError(
                f"{name} must be contiguous along K, its last dimension, got strides {meta.strides}; .contiguous() it"
            )
    values = values_of_element(b.dtype)
    if k != values * b.shape[-1]:
        share, count = _SHARES[values]
        raise ValueError(
            f"{b_name} must have {share} as many columns as {a_name}, {count} values to an element, got "
            f"{tuple(b.shape)} and {tuple(a.shape)}"
        )
    if k % GROUP:
        raise ValueError(f"K must be a multiple of {GROUP}, got {k}; pad {a_name} and {b_name} with zeros")


def check_scales_of_groups(operand: str, data: TensorMeta, scales: TensorMeta) -> None:
    """Checks the scales of an operand with these data."""
    name = f"{operand}[1]"
    is_int4 = data.dtype in INT4_DTYPES
    dtypes = _DTYPES_OF_SCALES.get(data.dtype, FP4_SCALES)
    if scales.dtype not in dtypes:
        raise TypeError(f"{name} must be {one_of(dtypes)}, got {scales.dtype}")
    *rows, columns = data.shape
    k, is_packed = values_of_element(data.dtype) * columns, scales.dtype == PACKED_EXPONENTS and not is_int4
    if is_int4:
        expected = _shape_of_int4_scales(operand, data, scales)
    else:
        of_scale = SCALE_BLOCK if is_packed else GROUP
        expected = (*rows, ceil_div(k, of_scale))
        if scales.shape != expected:
            meaning = "four exponents" if is_packed else "one scale"
            raise ValueError(
                f"{name} must have shape {expected}, {meaning} for each row and {of_scale} of K of {operand}[0], got "
                f"{tuple(scales.shape)}"
            )
    check_matrices(name, scales, len(rows) == 2)
    if not (is_int4 or is_packed) and scales.shape[-1] > 1 and scales.strides[-1] != 1:
        raise ValueError(f"{name} must have contiguous rows, got strides {scales.strides}; .contiguous() it")
    check_extent(name, expected, scales.strides, scales.dtype.itemsize)


def has_scales_of_groups(pair: Any, recipe: Any) -> bool:
    """Whether an FP4 or FP8 operand, which may be wrong, is one with a scale for each row and 32 values.

    Args:
        recipe: ``recipe_a`` of the call; without it, FP8 data's scales tell.
    """
    if is_four_bits(pair) or recipe is not None:
        return is_four_bits(pair) or recipe == (1, GROUP)
    if (
        not isinstance(pair, (tuple, list))
        or not all(isinstance(part, torch.Tensor) for part in pair)
        or len(pair) != 2
    ):
        return False
    data, scales = pair
    if not data.dim() or not scales.dim():
        return False
    return scales.dtype in FP4_SCALES[1:] or scales.shape[-1] * GROUP == data.shape[-1] > GROUP


def check_narrow(name: str, pair: Any, *, grouped: bool) -> tuple[Pair, tuple[int, ...]]:
    """Checks an operand of FP4 or FP8 with a scale for each row and 32 values.

    Returns:
        The pair, and the shape of its values.

    Raises:
        TypeError, ValueError: the operand is not as ``fp8_fp4_gemm_nt`` documents it.
    """
    data, scales = pair_of(name, pair, "e2m1")
    data_meta, scales_meta = meta_of(f"{name}[0]", data), meta_of(f"{name}[1]", scales)
    *groups, columns = check_operand(f"{name}[0]", data_meta, (*FP4_DTYPES, *FP8_DTYPES), grouped)
    k = columns * values_of_element(data.dtype)
    if major_of(data_meta) != "k":
        raise ValueError(
            f"{name}[0] must be contiguous along K, its last dimension, got strides {data_meta.strides}; "
            ".contiguous() it"
        )
    if k % GROUP:
        raise ValueError(f"K must be a multiple of {GROUP}, got {k}; pad a and b with zeros")
    if k:
        check_aligned_lines(f"{name}[0]", data_meta)
        check_aligned_start(f"{name}[0]", data)
    check_scales_of_groups(name, data_meta, scales_meta)
    check_same_device(f"{name}[1]", scales_meta, f"{name}[0]", data_meta)
    shape = (*groups, k)
    if data.numel() * values_of_element(data.dtype) >= _MOST_VALUES:
        raise ValueError(f"{name}[0] must have fewer than 2^34 values, got shape {tuple(data.shape)}")
    return (data, scales), shape


def _shape_of_int4_scales(operand: str, data: TensorMeta, scales: TensorMeta) -> tuple[int, ...]:
    """
    Raises:
        TypeError: ``scales`` are for groups of so many values that they must have 32 bits.
        ValueError: ``scales`` has another shape than those of any groups.
    """
    *rows, columns = data.shape
    k = values_of_element(data.dtype) * columns
    groups = [group for group in INT4_GROUPS if k % group == 0]
    shapes = [(*rows, k // group) for group in groups]
    for shape in shapes:
        if scales.shape == shape:
            if scales.dtype.itemsize == 2 and k and k // shape[-1] != GROUP:
                wide = tuple(dtype for dtype in _DTYPES_OF_SCALES[data.dtype] if dtype.itemsize == 4)
                raise TypeError(
                    f"{operand}[1] must be {one_of(wide)} for groups of {k // shape[-1]}, got {scales.dtype}; "
                    "repack_int4 makes them so"
                )
            return shape
    raise ValueError(
        f"{operand}[1] must have one of the shapes {', '.join(map(str, shapes))}, a scale for each row and "
        f"{', '.join(map(str, groups))} of K of {operand}[0], got {tuple(scales.shape)}"
    )


def check_int4_fits(name: str, data: TensorMeta, *, is_a_fp8: bool) -> None:
    """Checks whether there are kernels for this int4 weight and activations in FP8 or bf16.

    Raises:
        NotImplementedError: a shuffled weight, and activations in bf16.
        ValueError: K isn't a multiple of 128, and activations are FP8.
    """
    if data.dtype in SHUFFLED_DTYPES and not is_a_fp8:
        raise NotImplementedError(
            f"{name} must be int32 for activations in bf16, got {data.dtype}; take the weight that repack_int4 returned"
        )
    k = values_of_element(data.dtype) * data.shape[-1]
    if is_a_fp8 and k % SCALE_BLOCK:
        raise ValueError(
            f"K must be a multiple of {SCALE_BLOCK} for FP8 activations, got {k} of {name}; pad with zeros"
        )

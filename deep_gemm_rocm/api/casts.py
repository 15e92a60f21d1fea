"""FP8 and FP4 data and their scales: casts from wider types, and from other hardware's FP8 format.

gfx942's FP8 is FNUZ: ``torch.float8_e4m3fnuz`` has bias 8, no infinities, no -0, one NaN (byte 0x80), maximum 240.
As in DeepGEMM, multiplying FP8 values with their scale dequantises them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..checks import check_bool, check_int, check_tensor, is_traced
from ..heuristics.cast_config import CastConfig, RowCastConfig, Shared, lanes_and_passes, needs_clamp
from ..launch import planning
from ..launch.cast import cast_launch, fp4_cast_launch, row_cast_launch
from ..launch.repeated import Described, launches, launches_of_rows
from ..problems.cast import (
    FP8_MAX,
    MAX_ROW,
    TYPES,
    check_castable,
    check_castable_to_fp4,
    check_fp8_max,
    check_row,
    check_size,
    check_type,
)
from ..problems.layout import FP8, SCALE_BLOCK, TMA_ALIGNMENT, Pair, align, ceil_div, mn_major_strides
from ..runtime import hip
from ..runtime.arrays import through_host
from .fp4 import EXPONENTS_IN_INT, scales_of_columns
from .host_casts import LEAST_SCALE, cast_blocks, cast_to_fp4, divide_by_scales

NO_UE8M0 = (
    "four exponents in an int32 are what SM100's matrix cores scale with; gfx942 has none that do, pass the fp32 scales"
)


@launches_of_rows("x")
def per_token_cast_to_fp8(
    x: torch.Tensor,
    use_ue8m0: bool = False,
    gran_k: int = SCALE_BLOCK,
    use_packed_ue8m0: bool = False,
    *,
    fp8_max: float = FP8_MAX,
) -> Described[Pair]:
    """Quantises activations with one scale for each row and 128 columns.

    Args:
        x: bf16, f16 or fp32 [M, K], any strides. K need not be a multiple of 128; 16 values are loaded at once if it is
            one of 16, rows are contiguous, and they start at multiples of 16 bytes.
        use_ue8m0: whether to round scales up to powers of two, as DeepGEMM does for hardware that needs them.
        gran_k: 128, the only supported number of columns that share a scale.
        use_packed_ue8m0: False; packed scales are not supported.
        fp8_max: the FP8 number that a block's largest magnitude is scaled to. 240 uses the whole range of the format;
            some serving stacks use 224.

    Returns:
        float8_e4m3fnuz [M, K], contiguous, and fp32 scales [M, ceil(K/128)] in the layout of
        ``get_mn_major_tma_aligned_tensor``, which GEMMs read fastest: ``x[m, k]`` is approximately
        ``data[m, k] * scales[m, k // 128]``. A block of zeros gives zeros. A block with a NaN or an infinity gives NaN.

    Raises:
        TypeError, ValueError: ``x`` is not as above, or ``fp8_max`` no normal number of fp32 up to 240.
        NotImplementedError: another ``gran_k``, or packed scales.
        hip.HipError, jit.JitError: a launch or a compile failed.

    A tensor in the host's memory, which a GPU can't access, is quantised on the host; so are the others' below.
    """
    if use_packed_ue8m0:
        raise NotImplementedError(f"use_packed_ue8m0 must be False: {NO_UE8M0}")
    if is_traced():
        return torch.ops.deep_gemm_rocm.per_token_cast_to_fp8(x, use_ue8m0, fp8_max), None
    check_castable(x, use_ue8m0, gran_k, fp8_max)
    if _is_on_host(x):
        data, scales = cast_blocks(x, 1, SCALE_BLOCK, use_ue8m0, fp8_max)
        return (data, get_mn_major_tma_aligned_tensor(scales)), None
    return _cast(x, "row_blocks", new_scales_of_rows(x, x.shape), use_ue8m0, fp8_max)


@launches
def per_block_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = SCALE_BLOCK, *, fp8_max: float = FP8_MAX
) -> Described[Pair]:
    """Quantises weights with one scale for each block of 128 x 128.

    Args:
        x: bf16, f16 or fp32 [N, K], any strides. N and K need not be multiples of 128.
        use_ue8m0, gran_k, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz [N, K], contiguous, and fp32 scales [ceil(N/128), ceil(K/128)], contiguous: ``x[n, k]`` is
        approximately ``data[n, k] * scales[n // 128, k // 128]``.

    Raises:
        TypeError, ValueError, NotImplementedError, hip.HipError, jit.JitError: as for ``per_token_cast_to_fp8``.
    """
    if is_traced():
        return torch.ops.deep_gemm_rocm.per_block_cast_to_fp8(x, use_ue8m0, fp8_max), None
    check_castable(x, use_ue8m0, gran_k, fp8_max)
    if _is_on_host(x):
        return cast_blocks(x, SCALE_BLOCK, SCALE_BLOCK, use_ue8m0, fp8_max), None
    blocks = (ceil_div(size, SCALE_BLOCK) for size in x.shape)
    return _cast(x, "blocks", x.new_empty(*blocks, dtype=torch.float32), use_ue8m0, fp8_max)


@launches
def per_channel_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = SCALE_BLOCK, *, fp8_max: float = FP8_MAX
) -> Described[Pair]:
    """Quantises operands of weight gradients with one scale for each column and 128 rows.

    Args:
        x: bf16, f16 or fp32 [K, N], any strides. K need not be a multiple of 128.
        use_ue8m0, gran_k, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz [K, N], contiguous, and fp32 scales [ceil(K/128), N], contiguous: ``x[k, n]`` is approximately
        ``data[k, n] * scales[k // 128, n]``.

    Raises:
        TypeError, ValueError, NotImplementedError, hip.HipError, jit.JitError: as for ``per_token_cast_to_fp8``.
    """
    if is_traced():
        return torch.ops.deep_gemm_rocm.per_channel_cast_to_fp8(x, use_ue8m0, fp8_max), None
    check_castable(x, use_ue8m0, gran_k, fp8_max)
    if _is_on_host(x):
        return cast_blocks(x, SCALE_BLOCK, 1, use_ue8m0, fp8_max), None
    k, n = x.shape
    return _cast(x, "column_blocks", x.new_empty(ceil_div(k, SCALE_BLOCK), n, dtype=torch.float32), use_ue8m0, fp8_max)


@launches_of_rows("x")
def per_row_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool = False, *, fp8_max: float = FP8_MAX) -> Described[Pair]:
    """Quantises with one scale for each row: activations by token, or weights by output channel.

    Args:
        x: bf16, f16 or fp32 [M, K], any strides, K up to 65536.
        use_ue8m0, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz [M, K], contiguous, and fp32 scales [M, 1], as GEMMs take them with the recipe (1, 1, None):
        ``x[m, k]`` is approximately ``data[m, k] * scales[m, 0]``.

    Raises:
        TypeError, ValueError, hip.HipError, jit.JitError: as for ``per_token_cast_to_fp8``.
    """
    if is_traced():
        return torch.ops.deep_gemm_rocm.per_row_cast_to_fp8(x, use_ue8m0, fp8_max), None
    check_castable(x, use_ue8m0, SCALE_BLOCK, fp8_max)
    m, k = x.shape
    if _is_on_host(x):
        return cast_blocks(x, 1, max(k, 1), use_ue8m0, fp8_max), None
    check_row(k)
    if x.numel() == 0:
        return (x.new_empty(m, k, dtype=FP8), x.new_full((m, 1), LEAST_SCALE, dtype=torch.float32)), None
    return _cast_rows(x, use_ue8m0, fp8_max)


@launches
def per_tensor_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool = False, *, fp8_max: float = FP8_MAX) -> Described[Pair]:
    """Quantises with one scale for all values. Two kernels, of which the first one looks for the largest magnitude; one
    for a contiguous tensor of up to 65536 values, which a workgroup can hold.

    Args:
        x: bf16, f16 or fp32 [M, K], any strides.
        use_ue8m0, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz [M, K], contiguous, and the fp32 scale, [1, 1]: ``x`` is approximately ``data * scales``.

    Raises:
        TypeError, ValueError, hip.HipError, jit.JitError: as for ``per_token_cast_to_fp8``.
    """
    if is_traced():
        return torch.ops.deep_gemm_rocm.per_tensor_cast_to_fp8(x, use_ue8m0, fp8_max), None
    check_castable(x, use_ue8m0, SCALE_BLOCK, fp8_max)
    if x.numel() == 0:
        return (x.new_empty(*x.shape, dtype=FP8), x.new_full((1, 1), LEAST_SCALE, dtype=torch.float32)), None
    if _is_on_host(x):
        return cast_blocks(x, x.shape[0], x.shape[1], use_ue8m0, fp8_max), None
    if x.numel() <= MAX_ROW and (len(x) == 1 or x.is_contiguous()):
        return _cast_rows(x, use_ue8m0, fp8_max, as_one_row=True)
    return _cast(x, "tensor", x.new_empty(1, 1, dtype=torch.float32), use_ue8m0, fp8_max)


@launches_of_rows("x")
def per_token_cast_to_fp4(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = SCALE_BLOCK, use_packed_ue8m0: bool = False
) -> Described[Pair]:
    """Quantises a matrix to FP4 with one scale for each row and ``gran_k`` columns; DeepGEMM's function of this name.

    Bits are those of DeepGEMM 2.6: a group's largest magnitude, at least 1e-4, becomes 6, values halfway between two
    FP4 numbers go to the smaller magnitude, and negative values that round to 0 become +0. NaNs become 6. (2.8.1, which
    vLLM carries, takes the even code of two, and 0 for NaNs.)

    Args:
        x: bf16, f16 or fp32 [M, K], any strides; K is even.
        use_ue8m0: whether scales are rounded up to powers of two, as in MXFP4.
        gran_k: how many columns share a scale: 128, or 32 as in MXFP4.
        use_packed_ue8m0: whether scales are returned as by ``pack_ue8m0_to_int``. Needs ``use_ue8m0``.

    Returns:
        int8 [M, K/2], contiguous, the first of two values in the low half, and scales, contiguous: fp32
        [M, ceil(K/gran_k)], or packed int32 [M, ceil(ceil(K/gran_k)/4)], where the last is filled up with exponents
        of 1. A group with a NaN has a scale of NaN; a group with an infinity one of infinity, so that its finite values
        dequantise to NaN. With ``use_ue8m0`` both scales are 2^127, and NaNs and infinities dequantise to infinities.

    Raises:
        TypeError, ValueError: an argument is not as above.
        NotImplementedError: another ``gran_k``.
        hip.HipError, jit.JitError: a launch or a compile failed.
    """
    if is_traced():
        return torch.ops.deep_gemm_rocm.per_token_cast_to_fp4(x, use_ue8m0, gran_k, use_packed_ue8m0), None
    check_castable_to_fp4(x, use_ue8m0, gran_k, use_packed_ue8m0)
    if _is_on_host(x):
        return cast_to_fp4(x, use_ue8m0, gran_k, use_packed_ue8m0), None
    check_size(*x.shape)
    data, scales = new_fp4(x, gran_k, use_packed_ue8m0)
    if x.numel() == 0:
        return (data, scales), None
    config = CastConfig(TYPES[x.dtype], "row_blocks", fp4_group=gran_k, packed_scales=use_packed_ue8m0)
    return (data, scales), fp4_cast_launch(config, x, data, scales, use_ue8m0=use_ue8m0)


@through_host
def per_custom_dims_cast_to_fp8(
    x: torch.Tensor, dims: Sequence[int], use_ue8m0: bool, *, fp8_max: float = FP8_MAX
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises a tensor with one scale for each index in some of its dimensions; DeepGEMM's function of this name.

    Args:
        x: bf16, f16 or fp32, any strides, and any shape that has elements.
        dims: the dimensions that have scales of their own, such as ``(0,)`` for a scale for each row of a matrix; not
            all that there are.
        use_ue8m0, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz of the shape of ``x``, and fp32 scales of the shape of ``dims`` without dimensions of 1.

    Raises:
        TypeError, ValueError: an argument is not as above.
    """
    check_tensor("x", x)
    check_type("x", x)
    check_bool("use_ue8m0", use_ue8m0)
    check_fp8_max(fp8_max)
    if not isinstance(dims, (tuple, list)):
        raise TypeError(f"dims must be a tuple of dimensions, got {type(dims).__name__}")
    kept = {check_int("dims", dim, 0, x.dim() - 1) for dim in dims}
    shared = tuple(dim for dim in range(x.dim()) if dim not in kept)
    if not shared or not x.numel():
        raise ValueError(f"dims must leave elements of x that share a scale, got {dims} for shape {tuple(x.shape)}")
    quotients, scales = divide_by_scales(x.detach().float(), shared, use_ue8m0, fp8_max)
    return quotients.to(FP8), scales.squeeze()


@through_host
def cast_back_from_fp8(
    x_fp8: torch.Tensor, sf: torch.Tensor, gran_k: int = SCALE_BLOCK, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """The values of FP8 data with their scales; DeepGEMM's function of this name.

    Args:
        x_fp8: float8_e4m3fnuz or float8_e4m3fn [M, K], any strides.
        sf, gran_k, use_packed_ue8m0: as for ``cast_back_from_fp4``.

    Returns:
        fp32 [M, K].

    Raises:
        TypeError, ValueError: an argument is not as above.
    """
    check_tensor("x_fp8", x_fp8)
    if x_fp8.dtype not in (FP8, torch.float8_e4m3fn):
        raise TypeError(f"x_fp8 must be float8_e4m3fnuz or float8_e4m3fn, got {x_fp8.dtype}")
    if x_fp8.dim() != 2:
        raise ValueError(f"x_fp8 must be a matrix, got shape {tuple(x_fp8.shape)}")
    rows, columns = x_fp8.shape
    return x_fp8.float() * scales_of_columns(sf, rows, columns, gran_k, use_packed_ue8m0)


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """``x`` rounded up to a multiple of 16 bytes: DeepGEMM's distance between columns of MN-major scales.

    Args:
        x: a number of elements.
        element_size: bytes of an element: 1, 2, 4, 8 or 16.

    Raises:
        TypeError, ValueError: ``x`` is not a non-negative int, or ``element_size`` not one of these.
    """
    if check_int("element_size", element_size, 1) not in (1, 2, 4, 8, 16):
        raise ValueError(f"element_size must be 1, 2, 4, 8 or 16 bytes, got {element_size}")
    return align(check_int("x", x, 0, 2**63 - 1), TMA_ALIGNMENT // element_size)


def get_mn_major_tma_aligned_tensor(sf: torch.Tensor) -> torch.Tensor:
    """Scales in DeepGEMM's layout: contiguous along the rows, columns ``get_tma_aligned_size(rows, 4)`` apart.

    Kernels here take scales of any strides. In this layout, lanes with neighbouring rows read neighbouring scales.

    Args:
        sf: fp32 [rows, columns] or [groups, rows, columns], any strides.

    Returns:
        The same values in that layout: ``sf`` itself if it has this layout already, else a copy.

    Raises:
        TypeError, ValueError: ``sf`` is not as above.
    """
    check_tensor("sf", sf)
    if sf.dtype != torch.float32:
        raise TypeError(f"sf must be float32, got {sf.dtype}")
    if sf.dim() not in (2, 3):
        raise ValueError(f"sf must have two dimensions, or three with groups, got shape {tuple(sf.shape)}")
    strides = mn_major_strides(sf.dim(), *sf.shape[-2:])
    if sf.stride() == strides:
        return sf
    return _restrided(sf, strides)


@through_host
def _restrided(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


# DeepGEMM's older name.
get_col_major_tma_aligned_tensor = get_mn_major_tma_aligned_tensor


@through_host
def convert_fp8_fn_to_fnuz(data: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts OCP FP8, the format of checkpoints for other hardware, to gfx942's FP8. Data times scales stays exact.

    A byte stands for half the value in e4m3fnuz, so bytes are kept and scales doubled. There are two exceptions: -0
    (0x80 in e4m3fn, NaN in e4m3fnuz) becomes 0; NaN (0x7F and 0xFF in e4m3fn, ±240 in e4m3fnuz) stays NaN.

    Args:
        data: float8_e4m3fn, any shape and strides.
        scales: fp32, any shape: factors of ``data``.

    Returns:
        float8_e4m3fnuz of the shape of ``data`` and fp32 of the shape of ``scales``, both new.

    Raises:
        TypeError: another dtype.
    """
    for name, tensor in (("data", data), ("scales", scales)):
        check_tensor(name, tensor)
    if data.dtype != torch.float8_e4m3fn:
        raise TypeError(f"data must be float8_e4m3fn, got {data.dtype}")
    if scales.dtype != torch.float32:
        raise TypeError(f"scales must be float32, got {scales.dtype}")
    bits = data.view(torch.uint8)
    bits = torch.where(bits == 0x80, 0x00, torch.where(bits & 0x7F == 0x7F, 0x80, bits)).to(torch.uint8)
    return bits.view(FP8), scales * 2


def new_scales_of_rows(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Uninitialised scales for 128 columns of each row of ``shape``, in the layout that GEMMs read fastest."""
    *groups, rows, columns = shape
    blocks = ceil_div(columns, SCALE_BLOCK)
    return x.new_empty_strided((*groups, rows, blocks), mn_major_strides(len(shape), rows, blocks), dtype=torch.float32)


def new_fp4(x: torch.Tensor, gran_k: int, use_packed_ue8m0: bool) -> Pair:
    """Uninitialised FP4 of the shape of ``x``, and its scales."""
    rows, columns = x.shape
    groups = ceil_div(columns, gran_k)
    shape, dtype = (
        ((rows, ceil_div(groups, EXPONENTS_IN_INT)), torch.int32)
        if use_packed_ue8m0
        else ((rows, groups), torch.float32)
    )
    return x.new_empty(rows, columns // 2, dtype=torch.int8), x.new_empty(*shape, dtype=dtype)


def _is_on_host(x: torch.Tensor) -> bool:
    """Whether kernels can't access the tensor: it is in the host's memory, and there is a GPU or no device at all."""
    if x.device.type != "cpu" or planning.current() is not None:
        return False
    try:
        return not hip.runtime().is_simulated
    except hip.NoDeviceError:
        return True


def _cast(x: torch.Tensor, shared: Shared, scales: torch.Tensor, use_ue8m0: bool, fp8_max: float) -> Described[Pair]:
    check_size(*x.shape)
    data = x.new_empty(*x.shape, dtype=FP8)
    if x.numel() == 0:
        return (data, scales), None
    config = CastConfig(TYPES[x.dtype], shared, needs_clamp(fp8_max))
    return (data, scales), cast_launch(config, x, data, scales, use_ue8m0=use_ue8m0, fp8_max=fp8_max)


def _cast_rows(x: torch.Tensor, use_ue8m0: bool, fp8_max: float, *, as_one_row: bool = False) -> Described[Pair]:
    """With a scale for each row, or one for all values of a contiguous ``x``, which has values."""
    m, k = (1, x.numel()) if as_one_row else x.shape
    data, scales = x.new_empty(*x.shape, dtype=FP8), x.new_empty(m, 1, dtype=torch.float32)
    config = RowCastConfig(TYPES[x.dtype], *lanes_and_passes(k), block_scales=False, clamps=needs_clamp(fp8_max))
    return (data, scales), row_cast_launch(
        config, x, data, scales, use_ue8m0=use_ue8m0, fp8_max=fp8_max, as_one_row=as_one_row
    )

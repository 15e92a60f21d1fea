"""FP8 data and its scales: casts from wider types, and from the FP8 format of other hardware.

gfx942's FP8 is FNUZ: ``torch.float8_e4m3fnuz`` has bias 8, no infinities, no -0, one NaN (byte 0x80), maximum 240. A
scale is what the FP8 values are multiplied with to get the original values back, as in DeepGEMM.
"""

from __future__ import annotations

import torch

from .arrays import through_host
from .checks import check_int, check_tensor

SCALE_BLOCK = 128  # values along K, and rows of a weight, that share a scale
FP8 = torch.float8_e4m3fnuz
FP8_MAX = torch.finfo(FP8).max

Pair = tuple[torch.Tensor, torch.Tensor]  # data and scales

_TMA_ALIGNMENT = 16  # bytes
NO_UE8M0 = (
    "four exponents in an int32 are what SM100's matrix cores scale with; gfx942 has none that do, pass the fp32 scales"
)

# Of a shuffled weight: rows whose values lie together, and bytes of a row that do.
SHUFFLED_ROWS = 16
SHUFFLED_BYTES = 16
_SHUFFLED_CHUNKS = 8  # of so many bytes, in 128
_SHUFFLABLE = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bfloat16, torch.float16)
_CASTABLE = (torch.bfloat16, torch.float16, torch.float32)


def ceil_div(x: int, y: int) -> int:
    """The smallest integer that is at least ``x / y``, for ``y > 0``."""
    return -(-x // y)


def data_and_scales(operand: Pair | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An operand's parts; one that is no pair has no scales."""
    return (operand, None) if isinstance(operand, torch.Tensor) else (operand[0], operand[1])


def align(x: int, y: int) -> int:
    """The smallest multiple of ``y`` that is at least ``x``, for ``y > 0``."""
    return ceil_div(x, y) * y


@through_host
def per_token_cast_to_fp8(
    x: torch.Tensor,
    use_ue8m0: bool = False,
    gran_k: int = SCALE_BLOCK,
    use_packed_ue8m0: bool = False,
    *,
    fp8_max: float = FP8_MAX,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises activations with one scale for each row and 128 columns.

    Args:
        x: bf16, f16 or fp32 [M, K], any strides. K need not be a multiple of 128.
        use_ue8m0: whether to round scales up to powers of two, as DeepGEMM does for hardware that has no others.
        gran_k: 128, the only number of columns that share a scale.
        use_packed_ue8m0: False; kernels here have no packed scales.
        fp8_max: what the largest value of a block becomes. 240 uses all of the format; some serving stacks use 224.

    Returns:
        float8_e4m3fnuz [M, K], contiguous, and fp32 scales [M, ceil(K/128)], contiguous: ``x[m, k]`` is approximately
        ``data[m, k] * scales[m, k // 128]``. A block of zeros gives zeros; one that holds a NaN or an infinity gives
        NaN.

    Raises:
        TypeError, ValueError: ``x`` is not such a matrix, or ``fp8_max`` not in (0, 240].
        NotImplementedError: another ``gran_k``, or packed scales.
    """
    if use_packed_ue8m0:
        raise NotImplementedError(f"use_packed_ue8m0 must be False: {NO_UE8M0}")
    _check_castable(x, gran_k, fp8_max)
    return _cast_blocks(x, 1, use_ue8m0, fp8_max)


@through_host
def per_block_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = SCALE_BLOCK, *, fp8_max: float = FP8_MAX
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises weights with one scale for each block of 128 x 128.

    Args:
        x: bf16, f16 or fp32 [N, K], any strides. N and K need not be multiples of 128.
        use_ue8m0, gran_k, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz [N, K], contiguous, and fp32 scales [ceil(N/128), ceil(K/128)], contiguous: ``x[n, k]`` is
        approximately ``data[n, k] * scales[n // 128, k // 128]``.

    Raises:
        TypeError, ValueError, NotImplementedError: as for ``per_token_cast_to_fp8``.
    """
    _check_castable(x, gran_k, fp8_max)
    return _cast_blocks(x, SCALE_BLOCK, use_ue8m0, fp8_max)


@through_host
def per_channel_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = False, gran_k: int = SCALE_BLOCK, *, fp8_max: float = FP8_MAX
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises with one scale for each column and 128 rows, as weight gradients need it.

    Args:
        x: bf16, f16 or fp32 [K, N], any strides. K need not be a multiple of 128.
        use_ue8m0, gran_k, fp8_max: as for ``per_token_cast_to_fp8``.

    Returns:
        float8_e4m3fnuz [K, N], contiguous, and fp32 scales [ceil(K/128), N], contiguous: ``x[k, n]`` is approximately
        ``data[k, n] * scales[k // 128, n]``.

    Raises:
        TypeError, ValueError, NotImplementedError: as for ``per_token_cast_to_fp8``.
    """
    _check_castable(x, gran_k, fp8_max)
    data, scales = _cast_blocks(x.T, 1, use_ue8m0, fp8_max)
    return data.T.contiguous(), scales.T.contiguous()


@through_host
def shuffle_weight(b: torch.Tensor) -> torch.Tensor:
    """Copies a weight into the order in which the matrix cores take it, once, when it is loaded.

    GEMMs recognise the result as ``b`` by its shape. They then load it straight into registers, without a detour
    through LDS; what they return is the same, bit by bit. Scales stay as they are.

    Args:
        b: FP8, bf16 or f16 [N, K] or, for groups, [G, N, K], any strides. N is a multiple of 16, K of 128 bytes: 128 of
            FP8, 64 of wider types.

    Returns:
        The same values, contiguous: [N/16, K/128, 8, 16, 16] of FP8, [N/16, K/64, 8, 16, 8] of wider types, where
        ``shuffled[n, k, c, i, j] = b[16n + i, 128k + 16c + j]`` (``64k + 8c + j``); with groups, a first dimension G.

    Raises:
        TypeError, ValueError: ``b`` is not as above.
    """
    check_tensor("b", b)
    if b.dtype not in _SHUFFLABLE:
        raise TypeError(f"b must be FP8 of this hardware, bf16 or f16, got {b.dtype}")
    if b.dim() not in (2, 3):
        raise ValueError(f"b must have two dimensions, or three with groups, got shape {tuple(b.shape)}")
    values = SHUFFLED_BYTES // b.element_size()
    rows, k = b.shape[-2:]
    if rows % SHUFFLED_ROWS or k % (_SHUFFLED_CHUNKS * values):
        raise ValueError(
            f"N must be a multiple of {SHUFFLED_ROWS} and K one of {_SHUFFLED_CHUNKS * values}, "
            f"got shape {tuple(b.shape)}; pad with zeros"
        )
    split = b.unflatten(-1, (k // (_SHUFFLED_CHUNKS * values), _SHUFFLED_CHUNKS, values))
    split = split.unflatten(-4, (rows // SHUFFLED_ROWS, SHUFFLED_ROWS))
    return split.movedim(-4, -2).contiguous()


def unshuffled_shape(shape: torch.Size, dtype: torch.dtype) -> tuple[int, ...] | None:
    """The shape of the weight of which ``shuffle_weight`` makes this one; None if it is none of its shapes."""
    values = SHUFFLED_BYTES // dtype.itemsize
    *groups, row_blocks, k_blocks, chunks, rows, inner = shape if len(shape) in (5, 6) else (0,) * 5
    if (chunks, rows, inner) != (_SHUFFLED_CHUNKS, SHUFFLED_ROWS, values):
        return None
    return (*groups, row_blocks * rows, k_blocks * chunks * values)


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """``x`` rounded up to a multiple of 16 bytes: DeepGEMM's distance between columns of MN-major scales.

    Args:
        x: a number of elements.
        element_size: bytes of an element: 1, 2, 4, 8 or 16.

    Raises:
        TypeError, ValueError: ``x`` is no such number, or ``element_size`` another one.
    """
    if check_int("element_size", element_size, 1) not in (1, 2, 4, 8, 16):
        raise ValueError(f"element_size must be 1, 2, 4, 8 or 16 bytes, got {element_size}")
    return align(check_int("x", x, 0, 2**63 - 1), _TMA_ALIGNMENT // element_size)


def get_mn_major_tma_aligned_tensor(sf: torch.Tensor) -> torch.Tensor:
    """Scales in DeepGEMM's layout: contiguous along the rows, columns ``get_tma_aligned_size(rows, 4)`` apart.

    Kernels here take scales of any strides; in this layout lanes that work on neighbouring rows read neighbouring
    scales.

    Args:
        sf: fp32 [rows, columns] or [groups, rows, columns], any strides.

    Returns:
        The same values in that layout: ``sf`` itself if it has it already, else a copy.

    Raises:
        TypeError, ValueError: ``sf`` is not as above.
    """
    check_tensor("sf", sf)
    if sf.dtype != torch.float32:
        raise TypeError(f"sf must be float32, got {sf.dtype}")
    if sf.dim() not in (2, 3):
        raise ValueError(f"sf must have two dimensions, or three with groups, got shape {tuple(sf.shape)}")
    rows, columns = sf.shape[-2:]
    pitch = get_tma_aligned_size(rows, sf.element_size())
    strides = (pitch * columns, 1, pitch)[-sf.dim() :]
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
    """Converts OCP FP8, as checkpoints made for other hardware hold it, to gfx942's format. The product stays exact.

    The same byte means half as much in e4m3fnuz, so bytes stay and scales double, except that -0 (0x80 in e4m3fn, the
    NaN of e4m3fnuz) becomes 0, and NaN (0x7F and 0xFF in e4m3fn, ±240 in e4m3fnuz) stays NaN.

    Args:
        data: float8_e4m3fn, any shape and strides.
        scales: fp32, any shape: factors that ``data`` is to be multiplied with.

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


def _check_castable(x: torch.Tensor, gran_k: int, fp8_max: float) -> None:
    if gran_k != SCALE_BLOCK:
        raise NotImplementedError(f"gran_k must be {SCALE_BLOCK}, what kernels here have scales for, got {gran_k}")
    check_tensor("x", x)
    if x.dtype not in _CASTABLE:
        raise TypeError(f"x must be bfloat16, float16 or float32, got {x.dtype}")
    if x.dim() != 2:
        raise ValueError(f"x must be a matrix, got shape {tuple(x.shape)}")
    if not isinstance(fp8_max, (int, float)):
        raise TypeError(f"fp8_max must be a number, got {type(fp8_max).__name__}")
    if not 0 < fp8_max <= FP8_MAX:
        raise ValueError(f"fp8_max must be in (0, {FP8_MAX:g}], the range of float8_e4m3fnuz, got {fp8_max}")


def _cast_blocks(
    x: torch.Tensor, block_rows: int, use_ue8m0: bool, fp8_max: float
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, k = x.shape
    row_blocks, k_blocks = ceil_div(rows, block_rows), ceil_div(k, SCALE_BLOCK)
    padding = (0, k_blocks * SCALE_BLOCK - k, 0, row_blocks * block_rows - rows)
    padded = torch.nn.functional.pad(x.detach().float(), padding)
    blocks = padded.view(row_blocks, block_rows, k_blocks, SCALE_BLOCK)
    largest = blocks.abs().amax(dim=(1, 3))
    # The least normal number instead of 0, for a block of zeros, or of values too small for a scale.
    scales = (largest / fp8_max).clamp_min(torch.finfo(torch.float32).tiny)
    if use_ue8m0:
        mantissa, exponent = torch.frexp(scales)  # of a power of two, the mantissa is a half
        rounded = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
        scales = torch.where(scales.isfinite(), rounded, scales)
    scaled = (blocks / scales[:, None, :, None]).clamp(-fp8_max, fp8_max)
    data = scaled.view(padded.shape)[:rows, :k].contiguous().to(FP8)
    return data, scales

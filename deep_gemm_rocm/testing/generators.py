"""Inputs like a model's, and outputs that show which elements a kernel writes."""

from __future__ import annotations

import torch

from ..api.casts import get_mn_major_tma_aligned_tensor
from ..api.fp4 import pack_codes
from ..api.host_casts import cast_blocks
from ..api.int4 import INT4_ZERO, repack_int4
from ..problems.layout import SCALE_BLOCK, Pair

_OUTLIER_CHANNELS = 0.005
# For each element size, the bits of a NaN that no kernel computes (FP8 has only one NaN), and the type of these bits.
_POISON = {1: (0x80, torch.uint8), 2: (0x7FA5, torch.int16), 4: (0x7FA57FA5, torch.int32)}


def activations(m: int, k: int, seed: int = 0) -> torch.Tensor:
    """bf16 [M, K] like a transformer's activations: rows of varying magnitude, with outliers in a few channels."""
    generator = torch.Generator().manual_seed(seed)
    token_size = torch.empty(m, 1).log_normal_(0.0, 0.5, generator=generator)
    channel_size = torch.ones(k)
    outliers = max(1, round(k * _OUTLIER_CHANNELS)) if k else 0
    places = torch.randperm(k, generator=generator)[:outliers]
    channel_size[places] = torch.empty(outliers).uniform_(20.0, 100.0, generator=generator)
    return (torch.randn(m, k, generator=generator) * token_size * channel_size).bfloat16()


def weights(n: int, k: int, seed: int = 1) -> torch.Tensor:
    """bf16 [N, K] like a trained linear layer's weight: small values, and rows of varying magnitude."""
    generator = torch.Generator().manual_seed(seed)
    row_size = torch.empty(n, 1).log_normal_(0.0, 0.3, generator=generator)
    return (torch.randn(n, k, generator=generator) * row_size * 0.02).bfloat16()


def gemm_problem(m: int, n: int, k: int, seed: int = 0) -> tuple[Pair, Pair]:
    """Quantised activations and weights: the arguments ``a`` and ``b`` of ``gemm_fp8``."""
    return quantised_activations(m, k, seed), quantised_weights(n, k, seed + 1)


def quantised_activations(m: int, k: int, seed: int = 0) -> Pair:
    """What ``per_token_cast_to_fp8`` makes of ``activations``, without a kernel."""
    data, scales = cast_blocks(activations(m, k, seed), 1, SCALE_BLOCK)
    return data, get_mn_major_tma_aligned_tensor(scales)


def quantised_weights(n: int, k: int, seed: int = 1) -> Pair:
    """What ``per_block_cast_to_fp8`` makes of ``weights``, without a kernel."""
    return cast_blocks(weights(n, k, seed), SCALE_BLOCK, SCALE_BLOCK)


def int4_weights(n: int, k: int, group: int, seed: int = 1, dtype: torch.dtype = torch.bfloat16) -> Pair:
    """``weights`` rounded to int4 with scales for ``group`` values: the argument ``b`` of ``bf16_int4_gemm_nt``."""
    values = weights(n, k, seed).float().unflatten(1, (-1, group))
    scales = (values.abs().amax(2) / INT4_ZERO).to(dtype)
    codes = (values / scales.float()[..., None]).round().clamp(-INT4_ZERO, INT4_ZERO - 1).flatten(1) + INT4_ZERO
    words = pack_codes(codes.to(torch.uint8)).view(torch.int32)
    return repack_int4(words, scales, packing="compressed-tensors")


def grouped_weights(groups: int, n: int, k: int, seed: int = 0) -> Pair:
    """Quantised weights of several experts, [G, N, K], and their scales: the argument ``b`` of grouped GEMM."""
    experts = [quantised_weights(n, k, seed + group) for group in range(groups)]
    data, scales = (torch.stack(tensors) for tensors in zip(*experts, strict=True))
    return data, scales


class GuardedOutput:
    """An [M, N] output inside a larger buffer, all of it filled with a NaN pattern that no kernel computes.

    Elements that a kernel leaves unwritten are then NaN in ``tensor``. Writes outside the output change the guards:
    ``columns`` on both sides of each row, and as many rows before and after the output as a tile has.

    Attributes:
        tensor: the output.
    """

    _ROWS = 256

    def __init__(
        self,
        m: int,
        n: int,
        columns: int = 8,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self._inner = (slice(self._ROWS, self._ROWS + m), slice(columns, columns + n))
        self._untouched, bits = _POISON[dtype.itemsize]
        self._bits = torch.full((m + 2 * self._ROWS, n + 2 * columns), self._untouched, dtype=bits, device=device)
        self.tensor = self._bits.view(dtype)[self._inner]

    def assert_intact(self, written_rows: torch.Tensor | None = None) -> None:
        """Raises AssertionError if anything but ``tensor`` was written.

        Args:
            written_rows: bool [M], which rows of ``tensor`` may have been written; None for all.
        """
        changed = self._bits != self._untouched
        if written_rows is None:
            changed[self._inner] = False
        else:
            changed[self._inner] &= ~written_rows[:, None]
        if changed.any():
            row, column = changed.nonzero()[0].tolist()
            rows, columns = self._inner
            raise AssertionError(
                f"{int(changed.sum())} elements outside the output were written, the first at row {row - rows.start}, "
                f"column {column - columns.start} of an output of shape {tuple(self.tensor.shape)}"
            )

    def assert_untouched(self) -> None:
        """Raises AssertionError if anything was written, ``tensor`` included."""
        if (self._bits != self._untouched).any():
            raise AssertionError("something was written")

"""DeepGEMM for AMD's MI300X (gfx942): FP8 GEMM with fine-grained scales, on the GPU or on a simulated one."""

from .gemm import fp8_gemm_nt, gemm_fp8
from .layout import ceil_div, convert_fp8_fn_to_fnuz, per_block_cast_to_fp8, per_token_cast_to_fp8
from .testing.numerics import calc_diff

__all__ = [
    "calc_diff",
    "ceil_div",
    "convert_fp8_fn_to_fnuz",
    "fp8_gemm_nt",
    "gemm_fp8",
    "per_block_cast_to_fp8",
    "per_token_cast_to_fp8",
]

"""DeepGEMM for AMD's MI300X (gfx942): FP8 GEMM with fine-grained scales, on the GPU or on a simulated one."""

from .gemm import bf16_gemm_nt, f16_gemm_nt, fp8_fp4_gemm_nt, fp8_gemm_nt, gemm_fp8, gemm_fp8_fp8_bf16_nt
from .grouped import (
    fp8_m_grouped_gemm_nt_masked,
    m_grouped_bf16_gemm_nt_contiguous,
    m_grouped_bf16_gemm_nt_masked,
    m_grouped_fp8_fp4_gemm_nt_contiguous,
    m_grouped_fp8_fp4_gemm_nt_masked,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
    m_grouped_gemm_fp8_fp8_bf16_nt_contiguous,
    m_grouped_gemm_fp8_fp8_bf16_nt_masked,
)
from .layout import (
    ceil_div,
    convert_fp8_fn_to_fnuz,
    get_col_major_tma_aligned_tensor,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp8,
)
from .settings import (
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_num_sms,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_mk_alignment_for_contiguous_layout,
    set_num_sms,
)
from .testing.numerics import calc_diff

__all__ = [
    "bf16_gemm_nt",
    "calc_diff",
    "ceil_div",
    "convert_fp8_fn_to_fnuz",
    "f16_gemm_nt",
    "fp8_fp4_gemm_nt",
    "fp8_gemm_nt",
    "fp8_m_grouped_gemm_nt_masked",
    "gemm_fp8",
    "gemm_fp8_fp8_bf16_nt",
    "get_col_major_tma_aligned_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "get_num_sms",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
]

"""DeepGEMM for AMD's MI300X (gfx942): FP8 GEMM with fine-grained scales, on the GPU or on a simulated one."""

from . import logs
from .api import torch_ops  # noqa: F401  defines torch.ops.deep_gemm_rocm
from .api.attention import flash_attention
from .api.casts import (
    cast_back_from_fp8,
    convert_fp8_fn_to_fnuz,
    get_col_major_tma_aligned_tensor,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_row_cast_to_fp8,
    per_tensor_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
)
from .api.decode import flash_attention_decode, mla_decode
from .api.drop_in import (
    cublaslt_gemm_nn,
    cublaslt_gemm_nt,
    cublaslt_gemm_tn,
    cublaslt_gemm_tt,
    fp8_fp4_mqa_logits,
    fp8_fp4_paged_mqa_logits,
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mqa_logits_metadata,
    install_as_deep_gemm,
    install_as_flash_mla,
    transform_sf_into_required_layout,
)
from .api.einsum import einsum, fp8_einsum
from .api.experts import fused_moe
from .api.four_bits import convert_fp4_to_fp8, convert_int4_to_fp8
from .api.fp4 import (
    cast_back_from_fp4,
    ceil_to_ue8m0,
    pack_ue8m0_to_int,
    transpose_packed_fp4,
    unpack_ue8m0_from_int,
)
from .api.fp4_gemm import (
    bf16_fp4_gemm_nt,
    fp4_gemm_nt,
    fp8_fp4_gemm_nn,
    fp8_fp4_gemm_nt,
    fp8_fp4_gemm_tn,
    fp8_fp4_gemm_tt,
    m_grouped_fp4_gemm_nt_contiguous,
    m_grouped_fp4_gemm_nt_masked,
    m_grouped_fp8_fp4_gemm_nn_contiguous,
    m_grouped_fp8_fp4_gemm_nt_contiguous,
    m_grouped_fp8_fp4_gemm_nt_masked,
)
from .api.fused_casts import rms_norm_cast_to_fp8, silu_and_mul_cast_to_fp8
from .api.gemm import (
    bf16_gemm_nn,
    bf16_gemm_nt,
    bf16_gemm_tn,
    bf16_gemm_tt,
    f16_gemm_nt,
    fp8_gemm_nn,
    fp8_gemm_nt,
    fp8_gemm_nt_skip_head_mid,
    fp8_gemm_tn,
    fp8_gemm_tt,
    gemm_fp8,
    gemm_fp8_fp8_bf16_nt,
)
from .api.grouped import (
    bf16_m_grouped_gemm_nt_masked,
    fp8_m_grouped_gemm_nt_masked,
    m_grouped_bf16_gemm_nn_contiguous,
    m_grouped_bf16_gemm_nt_contiguous,
    m_grouped_bf16_gemm_nt_masked,
    m_grouped_fp8_gemm_nn_contiguous,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
    m_grouped_gemm_fp8_fp8_bf16_nt_contiguous,
    m_grouped_gemm_fp8_fp8_bf16_nt_masked,
)
from .api.hyperconnection import tf32_hc_prenorm_gemm
from .api.int4 import repack_int4
from .api.int4_gemm import (
    bf16_int4_gemm_nt,
    fp8_int4_gemm_nt,
    m_grouped_bf16_int4_gemm_nt_contiguous,
    m_grouped_bf16_int4_gemm_nt_masked,
    m_grouped_fp8_int4_gemm_nt_contiguous,
    m_grouped_fp8_int4_gemm_nt_masked,
)
from .api.k_grouped import (
    k_grouped_bf16_gemm_tn_contiguous,
    k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous,
    k_grouped_wgrad_gemm_fp8_fp8_fp32_nt,
    wgrad_gemm_fp8_fp8_fp32_nt,
)
from .api.kv_cache import append_kv_cache
from .api.latent_cache import append_mla_cache
from .api.merge_states import merge_attention_states
from .api.mqa_logits import fp8_mqa_logits, fp8_paged_mqa_logits, get_paged_mqa_logits_metadata
from .api.routing import route_top_k
from .api.settings import (
    get_batch_invariant,
    get_compile_mode,
    get_deterministic_algorithms,
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_num_sms,
    get_pdl,
    get_tc_util,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_batch_invariant,
    set_block_size_multiple_of,
    set_compile_mode,
    set_ignore_compile_dims,
    set_mk_alignment_for_contiguous_layout,
    set_num_sms,
    set_pdl,
    set_tc_util,
    use_deterministic_algorithms,
)
from .api.shuffle import shuffle_weight
from .api.sparse_mla import (
    FlashMLASchedMeta,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
    sparse_mla,
)
from .api.stats import stats
from .api.top_k import top_k_per_row
from .api.warmup import warmup_kernels
from .jit import JitError
from .problems.gemm_kind import Epilogue
from .problems.layout import Pair, align, ceil_div
from .runtime import hip  # noqa: F401
from .runtime.arrays import DeviceTensor, as_tensor
from .runtime.hip import HipError, NoDeviceError
from .runtime.streams import stream
from .testing.numerics import calc_diff
from .testing.timing import bench, bench_kineto

__version__ = "0.1.0"

logs.set_up()

__all__ = [
    "DeviceTensor",
    "Epilogue",
    "FlashMLASchedMeta",
    "HipError",
    "JitError",
    "NoDeviceError",
    "Pair",
    "align",
    "append_kv_cache",
    "append_mla_cache",
    "as_tensor",
    "bench",
    "bench_kineto",
    "bf16_fp4_gemm_nt",
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "bf16_int4_gemm_nt",
    "bf16_m_grouped_gemm_nt_masked",
    "calc_diff",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "convert_fp4_to_fp8",
    "convert_fp8_fn_to_fnuz",
    "convert_int4_to_fp8",
    "cublaslt_gemm_nn",
    "cublaslt_gemm_nt",
    "cublaslt_gemm_tn",
    "cublaslt_gemm_tt",
    "einsum",
    "f16_gemm_nt",
    "flash_attention",
    "flash_attention_decode",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "fp4_gemm_nt",
    "fp8_einsum",
    "fp8_fp4_gemm_nn",
    "fp8_fp4_gemm_nt",
    "fp8_fp4_gemm_tn",
    "fp8_fp4_gemm_tt",
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_gemm_nn",
    "fp8_gemm_nt",
    "fp8_gemm_nt_skip_head_mid",
    "fp8_gemm_tn",
    "fp8_gemm_tt",
    "fp8_int4_gemm_nt",
    "fp8_m_grouped_gemm_nt_masked",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "fused_moe",
    "gemm_fp8",
    "gemm_fp8_fp8_bf16_nt",
    "get_batch_invariant",
    "get_col_major_tma_aligned_tensor",
    "get_compile_mode",
    "get_deterministic_algorithms",
    "get_k_alignment_for_contiguous_layout",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mla_metadata",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_mqa_logits_metadata",
    "get_num_sms",
    "get_paged_mqa_logits_metadata",
    "get_pdl",
    "get_tc_util",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "install_as_deep_gemm",
    "install_as_flash_mla",
    "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "k_grouped_wgrad_gemm_fp8_fp8_fp32_nt",
    "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_bf16_int4_gemm_nt_contiguous",
    "m_grouped_bf16_int4_gemm_nt_masked",
    "m_grouped_fp4_gemm_nt_contiguous",
    "m_grouped_fp4_gemm_nt_masked",
    "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_fp8_int4_gemm_nt_contiguous",
    "m_grouped_fp8_int4_gemm_nt_masked",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked",
    "merge_attention_states",
    "mla_decode",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_row_cast_to_fp8",
    "per_tensor_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "repack_int4",
    "rms_norm_cast_to_fp8",
    "route_top_k",
    "set_batch_invariant",
    "set_block_size_multiple_of",
    "set_compile_mode",
    "set_ignore_compile_dims",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
    "shuffle_weight",
    "silu_and_mul_cast_to_fp8",
    "sparse_mla",
    "stats",
    "stream",
    "tf32_hc_prenorm_gemm",
    "top_k_per_row",
    "transform_sf_into_required_layout",
    "transpose_packed_fp4",
    "unpack_ue8m0_from_int",
    "use_deterministic_algorithms",
    "warmup_kernels",
    "wgrad_gemm_fp8_fp8_fp32_nt",
]

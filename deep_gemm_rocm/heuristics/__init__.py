"""Which kernel configuration a problem should run."""

from .attention_config import AttentionConfig, choose_attention_config
from .choose import choose_dense, choose_dense_splits, choose_gemm_config, choose_k_splits, gemm_candidates
from .decode_config import DecodeConfig, choose_num_pieces
from .gemm_config import GemmConfig, GemmKind

__all__ = [
    "AttentionConfig",
    "DecodeConfig",
    "GemmConfig",
    "GemmKind",
    "choose_attention_config",
    "choose_dense",
    "choose_dense_splits",
    "choose_gemm_config",
    "choose_k_splits",
    "choose_num_pieces",
    "gemm_candidates",
]

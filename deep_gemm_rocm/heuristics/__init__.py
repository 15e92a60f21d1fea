"""Which kernel configuration a problem should run."""

from .attention_config import AttentionConfig, choose_attention_config
from .choose import choose_gemm_config, gemm_candidates
from .gemm_config import GemmConfig, GemmKind

__all__ = [
    "AttentionConfig",
    "GemmConfig",
    "GemmKind",
    "choose_attention_config",
    "choose_gemm_config",
    "gemm_candidates",
]

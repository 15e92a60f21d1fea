"""Which kernel configuration a problem should run."""

from .choose import choose_gemm_config, gemm_candidates
from .gemm_config import GemmConfig, GemmKind

__all__ = ["GemmConfig", "GemmKind", "choose_gemm_config", "gemm_candidates"]

"""Which kernel configuration a problem should run."""

from .attention_choice import AttentionCase, AttentionChoice, choose_attention
from .attention_config import AttentionConfig, attention_tiles, heads_of_every_tile
from .choose import choose_dense, choose_dense_splits, choose_gemm_config, choose_k_splits, gemm_candidates
from .decode_config import DecodeConfig
from .forced import ForcedChoiceError, forced
from .gemm_config import GemmConfig, GemmKind

__all__ = [
    "AttentionCase",
    "AttentionChoice",
    "AttentionConfig",
    "DecodeConfig",
    "ForcedChoiceError",
    "GemmConfig",
    "GemmKind",
    "attention_tiles",
    "choose_attention",
    "choose_dense",
    "choose_dense_splits",
    "choose_gemm_config",
    "choose_k_splits",
    "forced",
    "gemm_candidates",
    "heads_of_every_tile",
]

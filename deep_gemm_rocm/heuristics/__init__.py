"""Which kernel configuration a problem should run."""

from ..problems.gemm_kind import GemmKind
from .attention_choice import AttentionCase, AttentionChoice, choose_attention
from .attention_config import AttentionConfig, attention_tiles, heads_of_every_tile
from .choices import collecting_begins
from .decode_config import LATENT_ROWS, DecodeConfig, for_few_workgroups, is_busy_unsplit, splits_for_any_batch
from .forced import ForcedChoiceError, forced
from .gemm_choice import ChoicesByM, choose_dense, choose_gemm_config, choose_k_splits, dense_choices, gemm_choices
from .gemm_config import GemmConfig
from .gemm_tiles import gemm_candidates

__all__ = [
    "LATENT_ROWS",
    "AttentionCase",
    "AttentionChoice",
    "AttentionConfig",
    "ChoicesByM",
    "DecodeConfig",
    "ForcedChoiceError",
    "GemmConfig",
    "GemmKind",
    "attention_tiles",
    "choose_attention",
    "choose_dense",
    "choose_gemm_config",
    "choose_k_splits",
    "collecting_begins",
    "dense_choices",
    "for_few_workgroups",
    "forced",
    "gemm_candidates",
    "gemm_choices",
    "heads_of_every_tile",
    "is_busy_unsplit",
    "splits_for_any_batch",
]

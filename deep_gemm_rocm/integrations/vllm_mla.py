"""vLLM's dense MLA: decoding over the latent cache. Prefill and writing the cache stay vLLM's."""

from __future__ import annotations

import functools
import inspect
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.platforms import rocm
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends import registry
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend, TritonMLAImpl, TritonMLAMetadataBuilder
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from ..api.decode import mla_decode
from ..problems.latent import LATENT_PAGE_SIZES, LATENT_RUN_TOKENS, MAX_LATENT_TOKENS
from ..problems.sequences import MAX_PAGE_SIZE
from .parts import MovedError, check_parameters, check_replaces

_NAME = "DEEP_GEMM_ROCM_MLA"
_HEAD_DIM, _VALUE_DIM = 576, 512
# vLLM takes the largest of these that divides its own pages. The kernels' other sizes are slower, as they break runs.
_PAGE_SIZES = sorted({*LATENT_PAGE_SIZES, *range(LATENT_RUN_TOKENS, MAX_PAGE_SIZE + 1, LATENT_RUN_TOKENS)})
# Dtypes of models that each of vLLM's cache dtypes goes with.
_MODELS = {
    "auto": (torch.bfloat16, torch.float16),
    "bfloat16": (torch.bfloat16,),
    "float16": (torch.float16,),
    "fp8": (torch.bfloat16,),
    "fp8_e4m3": (torch.bfloat16,),
}


class DeepGemmRocmMlaBackend(MLACommonBackend):
    """What ``mla_decode`` takes, in the terms in which vLLM's selector asks."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(_MODELS["auto"])
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(_MODELS)

    @staticmethod
    def get_name() -> str:
        return _NAME

    @staticmethod
    def get_impl_cls() -> type:
        return DeepGemmRocmMlaImpl

    @staticmethod
    def get_builder_cls() -> type:
        return DeepGemmRocmMlaMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [_HEAD_DIM]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        return list(_PAGE_SIZES)

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # queries of a batch have one length, which the host knows

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        if dtype in _MODELS.get(kv_cache_dtype or "auto", ()):
            return None
        return f"a cache in {kv_cache_dtype} is not supported for models in {dtype}"


class DeepGemmRocmMlaMetadataBuilder(MLACommonMetadataBuilder):
    """vLLM's common metadata: ``mla_decode`` shares out the work on the device, so graphs serve any lengths."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    query_len_support = QueryLenSupport.UNIFORM
    supports_non_causal_multi_token_decode = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # vLLM doesn't advance the lengths of a rank's share of the cache between steps of a draft.
        self.supports_draft_decode_metadata_update = self.dcp_world_size == 1

    def update_draft_decode_metadata(self, _metadata: Any) -> None:
        """Nothing to do: the metadata are views of vLLM's block table and lengths."""


class DeepGemmRocmMlaImpl(MLACommonImpl):
    """Decoding by ``mla_decode``; queries stay in the model's dtype over FP8 caches, too."""

    can_return_lse_for_decode = True
    supports_dcp = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
            attn_type, kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip
        if any((alibi_slopes, sliding_window, logits_soft_cap)) or attn_type != AttentionType.DECODER:
            raise NotImplementedError(
                f"{_NAME} supports decoders without alibi_slopes, sliding_window and logits_soft_cap only"
            )
        if (head_size, self.kv_lora_rank) != (_HEAD_DIM, _VALUE_DIM):
            raise NotImplementedError(
                f"{_NAME} requires latents of {_VALUE_DIM} elements and heads of {_HEAD_DIM}, "
                f"got {self.kv_lora_rank} and {head_size}"
            )
        self.supports_quant_query_input = False

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of decoding tokens to the cache.

        Args:
            q: bf16 or f16 [tokens, heads, 576], or its parts of 512 and 64 elements; each sequence has as many tokens.
            kv_c_and_k_pe_cache: [blocks, block_size, 576] in the dtype of q, or in FP8 with the factor
                ``layer._k_scale``.

        Returns:
            [tokens, heads, 512], and under context parallelism the natural log-sum-exp, fp32 [tokens, heads].
        """
        q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        tokens, block_table, lens = _split(len(q), attn_metadata.decode, attn_metadata.causal)
        if attn_metadata.causal and self.dcp_world_size > 1 and len(q) > len(attn_metadata.decode.seq_lens):
            raise NotImplementedError(f"{_NAME} decodes one token at a time under context parallelism")
        is_fp8 = is_quantized_kv_cache(self.kv_cache_dtype)
        result = mla_decode(
            q.unflatten(0, (len(lens), tokens)),
            kv_c_and_k_pe_cache.unsqueeze(2),
            block_table=block_table,
            context_lens=lens,
            softmax_scale=self.scale,
            kv_descale=layer._k_scale.view(1) if is_fp8 else None,
            return_lse=self.need_to_return_lse_for_decode,
        )
        if isinstance(result, torch.Tensor):
            return result.flatten(0, 1), None
        out, lse = result
        return out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)


def _split(rows: int, decode: Any, causal: bool) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Splits each sequence's queries into parts that ``mla_decode`` takes as sequences of their own.

    Args:
        rows: queries of all sequences, of which each has as many.
        causal: whether a query sees no later one; otherwise all queries of a sequence see all its tokens.

    Returns:
        The queries of a part, and for each part the row of the block table and the tokens that its last query sees.
    """
    block_table, lens = decode.block_table, decode.seq_lens
    tokens = rows // len(lens)
    most = MAX_LATENT_TOKENS if causal else 1
    of_part = next(size for size in range(min(tokens, most), 0, -1) if tokens % size == 0)
    parts = tokens // of_part
    if parts == 1:
        return tokens, block_table, lens
    later = torch.arange(of_part - tokens, 1, of_part, dtype=lens.dtype, device=lens.device) if causal else 0
    ends = (lens[:, None] + later).expand(-1, parts).clamp(min=0)  # padded sequences of a graph are empty
    return of_part, block_table.repeat_interleave(parts, dim=0), ends.flatten()


def _backend_priorities(original: Any, ours: Any) -> Any:
    @functools.wraps(original)
    def _get_backend_priorities(use_mla: bool, use_sparse: bool, use_kv_connector: bool = False) -> Any:
        backends = original(use_mla, use_sparse, use_kv_connector)
        triton = registry.AttentionBackendEnum.TRITON_MLA
        if triton not in backends:
            return backends
        place = backends.index(triton)
        return [*backends[:place], ours, *backends[place:]]

    return _get_backend_priorities


def install() -> None:
    """Puts this package's backend before Triton's in the list of which vLLM takes the first that fits.

    Raises:
        MovedError, AttributeError, ImportError: this vLLM's backends are others, or it chooses them in another way.
    """
    known = registry.AttentionBackendEnum
    if _NAME in known.__members__:
        return
    for method in ("supports_combination", "get_supported_kernel_block_sizes"):
        check_replaces(getattr(TritonMLABackend, method), getattr(DeepGemmRocmMlaBackend, method))
    for method in ("__init__", "update_draft_decode_metadata"):
        check_replaces(getattr(TritonMLAMetadataBuilder, method), getattr(DeepGemmRocmMlaMetadataBuilder, method))
    check_parameters(TritonMLAImpl.__init__, *inspect.signature(DeepGemmRocmMlaImpl.__init__).parameters)
    check_replaces(MLACommonImpl.forward_mqa, DeepGemmRocmMlaImpl.forward_mqa)
    check_parameters(MLACommonDecodeMetadata, "block_table", "seq_lens", "dcp_tot_seq_lens")
    if not {"causal", "decode"} <= MLACommonMetadata.__dataclass_fields__.keys():
        raise MovedError("MLACommonMetadata has no causal and decode")
    check_parameters(registry.register_backend, "backend", "class_path", "is_mamba")
    check_parameters(known.register, "name", "value")  # register_backend calls it for a new name
    check_replaces(rocm._get_backend_priorities, _backend_priorities(rocm._get_backend_priorities, None))
    if known.TRITON_MLA not in rocm._get_backend_priorities(True, False):
        raise MovedError("_get_backend_priorities has no TRITON_MLA")
    registry.register_backend(_NAME, f"{__name__}.{DeepGemmRocmMlaBackend.__qualname__}")
    rocm._get_backend_priorities = _backend_priorities(rocm._get_backend_priorities, known[_NAME])

"""Valid arguments for every public function."""

from __future__ import annotations

import math

import torch

import deep_gemm_rocm as dg

M, N, K, G = 16, 32, 128, 2
HEADS, DIM, PAGE = 32, 64, 64


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape))).bfloat16()


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def per_token(*shape: int):
    data, scales = dg.per_token_cast_to_fp8(randn(math.prod(shape[:-1]), shape[-1]))
    return data.view(shape), scales.reshape(*shape[:-1], -1)


def per_block(*shape: int):
    parts = [dg.per_block_cast_to_fp8(randn(*shape[-2:]) + group) for group in range(math.prod(shape[:-2]))]
    data, scales = (torch.stack(part) for part in zip(*parts, strict=True))
    return data.view(shape), scales.view(*shape[:-2], *scales.shape[-2:])


def four_bits(*shape: int):
    return dg.per_token_cast_to_fp4(randn(*shape), True, 32, True)


def stacked_four_bits(groups: int, *shape: int):
    return tuple(map(torch.stack, zip(*(four_bits(*shape) for _ in range(groups)), strict=True)))


def experts_of_four_bits():
    return stacked_four_bits(G, N, K)


def int4(*shape: int):
    """With a zero for each scale."""
    *rows, k = shape
    codes = torch.full((*rows, k // 8), 0x12345678, dtype=torch.int32)
    return codes, ints(0x3F800007).expand(*rows, k // 32).contiguous()


def int4_of_fp8(*shape: int):
    *rows, k = shape
    return int4(*shape)[0], torch.ones(*rows, k // 128)


def swapped(pair):
    return tuple(part.mT for part in pair)


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


F32 = torch.float32
FP8 = torch.float8_e4m3fnuz
OPTIONS = {"recipe": None, "recipe_a": None, "recipe_b": None, "compiled_dims": "nk", "disable_ue8m0_cast": False}
PSUM = {"use_psum_layout": False, "ensure_zero_padding": True, "expected_m_for_psum_layout": None, "m_indices": None}
EPILOGUE = {"bias": None, "epilogue": "identity"}


def paged():
    lengths, table = ints(40, 64), torch.zeros(2, 1, dtype=torch.int32)
    return {"context_lens": lengths, "block_table": table}


def logits():
    return {
        "q": per_token(3, HEADS, DIM)[0],
        "kv": (per_token(40, DIM)[0], rand(40)),
        "weights": rand(3, HEADS),
        "cu_seq_len_k_start": ints(0, 0, 0),
        "cu_seq_len_k_end": ints(3, 17, 40),
        "clean_logits": True,
    }


def paged_logits():
    return {
        "q": per_token(2, 1, HEADS, DIM)[0],
        "kv_cache": zeros(3, PAGE, 1, DIM + 4, dtype=torch.uint8),
        "weights": rand(2, HEADS),
        **paged(),
        "schedule_meta": ints(0, 0, 0, 0, 1, 0, 1, 0, 2, 0).view(5, 2),  # of 40 and 64 tokens, for 4 units
        "max_context_len": 64,
        "clean_logits": True,
        "indices": None,
    }


def attention():
    q, k, v = (randn(2, tokens, heads, 64) for tokens, heads in ((5, 4), (9, 2), (9, 2)))
    options = {"softmax_scale": None, "causal": False, "window": None, "return_lse": False}
    packed = {
        "cu_seqlens_q": None,
        "cu_seqlens_k": None,
        "block_table": None,
        "context_lens": None,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
    }
    extras = {"attn_sink": torch.zeros(4), "softcap": 0.0}
    return {"q": q, "k": k, "v": v, **options, **packed, **extras, "out": zeros(2, 5, 4, 64)}


def decode():
    caches = {"k_cache": randn(3, PAGE, 2, 64).to(FP8), "v_cache": randn(3, PAGE, 2, 64).to(FP8)}
    caches |= {"k_descale": torch.ones(3, PAGE, 2), "v_descale": torch.ones(3, PAGE, 2)}
    options = {"softmax_scale": None, "window": None, "return_lse": False, "num_splits": None, "q_descale": None}
    extras = {"attn_sink": torch.zeros(4), "softcap": 0.0}
    return {"q": randn(2, 1, 4, 64), **caches, **paged(), **options, **extras, "out": zeros(2, 1, 4, 64)}


def latent():
    options = {"d_v": 512, "softmax_scale": None, "return_lse": False, "lse_base_2": False, "num_splits": None}
    return {
        "q": randn(2, 1, 16, 576),
        "kv_cache": randn(3, PAGE, 1, 576).to(FP8),
        "q_descale": None,
        "kv_descale": torch.ones(1),
        "fp8_dtype": FP8,
        **paged(),
        **options,
        "out": zeros(2, 1, 16, 512),
    }


def slots():
    return torch.tensor([[0, 5, -1], [7, 8, 2], [-1, -1, -1], [1, 1, 1]], dtype=torch.int32)


def dense_fp8(a=None, b=None):
    return {"a": a or per_token(M, K), "b": b or per_block(N, K), "d": zeros(M, N), "c": None, **OPTIONS}


def dense_bf16(a, b):
    return {"a": a, "b": b, "d": zeros(M, N), "c": None, "compiled_dims": "nk"}


def contiguous(a, b):
    return {
        "a": a,
        "b": b,
        "d": zeros(128, N),
        "grouped_layout": ints(*[0] * 100, *[-1] * 28),
        "compiled_dims": "nk",
        **PSUM,
    }


def without(arguments, *names: str):
    return {name: value for name, value in arguments.items() if name not in names}


def masked(a, b):
    return {"a": a, "b": b, "d": zeros(G, M, N), "masked_m": ints(3, 16), "expected_m": 8, "compiled_dims": "nk"}


KS = [128, 256]
OF_KS = {"ks_cpu": KS, "c": None, "compiled_dims": "mn", "use_psum_layout": False}


def along_k(a, b):
    return {"a": a, "b": b, "d": zeros(G, M, N, dtype=F32), "grouped_layout": ints(*KS), **OF_KS}


def gradients(rows: int):
    return dg.per_channel_cast_to_fp8(randn(sum(KS), rows))


def packed_gradients(rows: int):
    pairs = [per_token(rows, k) for k in KS]
    return torch.cat([data.view(-1) for data, _ in pairs]), torch.cat([scales for _, scales in pairs], dim=1)


def v1(lhs, rhs, out):
    return {"lhs": lhs, "rhs": rhs, "out": out}


def packed_transposed(rows: int):
    data, scales = packed_gradients(rows)
    return data, scales.T.contiguous()


CAST = {"use_ue8m0": False, "gran_k": 128, "fp8_max": 240.0}
REQUIRED = {"sf": torch.ones(8, 3), "mn": 8, "k": 300, "recipe": (1, 128, 128), "num_groups": None, "is_sfa": True}

# Valid arguments of every public function, by one of its names.
GOOD = {
    "gemm_fp8": lambda: {
        "a": per_token(M, K), "b": per_block(N, K), "out": zeros(M, N), "c": None, "recipe": None, **EPILOGUE,
    },
    "fp8_gemm_nt": lambda: dense_fp8() | EPILOGUE,
    "fp8_gemm_nn": lambda: dense_fp8(b=swapped(per_block(N, K))),
    "fp8_gemm_tn": lambda: dense_fp8(swapped(per_token(M, K)), swapped(per_block(N, K))),
    "fp8_gemm_tt": lambda: dense_fp8(swapped(per_token(M, K))),
    "fp8_gemm_nt_skip_head_mid": lambda: {
        "a": per_token(M, K), "b": per_block(N, K), "d": zeros(M, 48), "head_splits": (8, 8, 8), "recipe": None,
        **EPILOGUE,
    },
    "gemm_fp8_fp8_bf16_nt": lambda: v1(per_token(M, K), per_block(N, K), zeros(M, N)) | EPILOGUE,
    "wgrad_gemm_fp8_fp8_fp32_nt": lambda: v1(per_token(M, K), per_token(N, K), zeros(M, N, dtype=F32)),
    "bf16_gemm_nt": lambda: dense_bf16(randn(M, K), randn(N, K)) | EPILOGUE,
    "bf16_gemm_nn": lambda: dense_bf16(randn(M, K), randn(K, N)),
    "bf16_gemm_tn": lambda: dense_bf16(randn(K, M), randn(K, N)),
    "bf16_gemm_tt": lambda: dense_bf16(randn(K, M), randn(N, K)),
    "f16_gemm_nt": lambda: {"a": randn(M, K).half(), "b": randn(N, K).half(), "d": zeros(M, N), "c": None, **EPILOGUE},
    "fp8_fp4_gemm_nt": lambda: dense_fp8(b=four_bits(N, K)) | EPILOGUE | {"alpha": None},
    "fp4_gemm_nt": lambda: dense_fp8(a=four_bits(M, K), b=four_bits(N, K)) | EPILOGUE | {"alpha": None},
    "m_grouped_fp4_gemm_nt_contiguous": lambda: contiguous(four_bits(128, K), experts_of_four_bits()) | OPTIONS
    | {"use_psum_layout": False},
    "m_grouped_fp4_gemm_nt_masked": lambda: masked(stacked_four_bits(G, M, K), experts_of_four_bits()) | OPTIONS,
    "fp8_fp4_gemm_nn": lambda: dense_fp8(b=swapped(per_block(N, K))),
    "fp8_fp4_gemm_tn": lambda: dense_fp8(swapped(per_token(M, K)), swapped(per_block(N, K))),
    "fp8_fp4_gemm_tt": lambda: dense_fp8(swapped(per_token(M, K))),
    "m_grouped_fp8_fp4_gemm_nt_contiguous": lambda: contiguous(per_token(128, K), experts_of_four_bits()) | OPTIONS
    | EPILOGUE,
    "m_grouped_fp8_fp4_gemm_nn_contiguous": lambda: contiguous(per_token(128, K), swapped(per_block(G, N, K)))
    | OPTIONS,
    "m_grouped_fp8_fp4_gemm_nt_masked": lambda: masked(per_token(G, M, K), experts_of_four_bits()) | OPTIONS
    | EPILOGUE,
    "bf16_fp4_gemm_nt": lambda: {"a": randn(M, K), "b": four_bits(N, K), "d": zeros(M, N), "c": None, **EPILOGUE},
    "bf16_int4_gemm_nt": lambda: {"a": randn(M, K), "b": int4(N, K), "d": zeros(M, N), "c": None, **EPILOGUE},
    "fp8_int4_gemm_nt": lambda: {
        "a": per_token(M, K), "b": int4_of_fp8(N, K), "d": zeros(M, N), "c": None, **EPILOGUE,
    },
    "m_grouped_fp8_int4_gemm_nt_contiguous": lambda: without(
        contiguous(per_token(128, K), int4_of_fp8(G, N, K)), "compiled_dims", "m_indices"
    )
    | EPILOGUE,
    "m_grouped_fp8_int4_gemm_nt_masked": lambda: without(
        masked(per_token(G, M, K), int4_of_fp8(G, N, K)), "compiled_dims"
    )
    | EPILOGUE,
    "m_grouped_bf16_int4_gemm_nt_contiguous": lambda: without(
        contiguous(randn(128, K), int4(G, N, K)), "compiled_dims", "m_indices"
    )
    | EPILOGUE,
    "m_grouped_bf16_int4_gemm_nt_masked": lambda: without(masked(randn(G, M, K), int4(G, N, K)), "compiled_dims")
    | EPILOGUE,
    "m_grouped_fp8_gemm_nt_contiguous": lambda: contiguous(per_token(128, K), per_block(G, N, K)) | OPTIONS | EPILOGUE,
    "m_grouped_fp8_gemm_nn_contiguous": lambda: contiguous(per_token(128, K), swapped(per_block(G, N, K))) | OPTIONS,
    "m_grouped_bf16_gemm_nt_contiguous": lambda: contiguous(randn(128, K), randn(G, N, K)) | EPILOGUE,
    "m_grouped_bf16_gemm_nn_contiguous": lambda: contiguous(randn(128, K), randn(G, K, N)),
    "m_grouped_fp8_gemm_nt_masked": lambda: (
        masked(per_token(G, M, K), per_block(G, N, K)) | OPTIONS | EPILOGUE
        | {"enable_overlap": True, "max_block_n": 64, "signal": ints(*[0] * G)}
    ),
    "m_grouped_bf16_gemm_nt_masked": lambda: masked(randn(G, M, K), randn(G, N, K)) | EPILOGUE,
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous": lambda: v1(per_token(128, K), per_block(G, N, K), zeros(128, N))
    | {"m_indices": ints(*[1] * 128), **EPILOGUE},
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked": lambda: v1(per_token(G, M, K), per_block(G, N, K), zeros(G, M, N))
    | {"masked_m": ints(3, 16), "expected_m": 8, **EPILOGUE},
    "k_grouped_fp8_gemm_tn_contiguous": lambda: along_k(gradients(M), gradients(N)) | {"recipe": (1, 1, 128)},
    "k_grouped_fp8_gemm_nt_contiguous": lambda: along_k(packed_gradients(M), packed_gradients(N))
    | {"recipe": (1, 1, 128)},
    "k_grouped_bf16_gemm_tn_contiguous": lambda: along_k(randn(sum(KS), M), randn(sum(KS), N)),
    "k_grouped_wgrad_gemm_fp8_fp8_fp32_nt": lambda: v1(
        packed_transposed(M), packed_transposed(N), zeros(G, M, N, dtype=F32)
    ) | {"batch_sizes": KS},
    "einsum": lambda: {
        "expr": "bhr,hdr->bhd", "a": randn(8, G, K), "b": randn(G, N, K), "d": zeros(8, G, N), "c": None,
        "use_cublaslt": False,
    },
    "fp8_einsum": lambda: {
        "expr": "bhr,hdr->bhd", "a": per_token(8, G, K), "b": per_block(G, N, K), "d": zeros(8, G, N), "c": None,
        "recipe": (1, 128, 128),
    },
    "tf32_hc_prenorm_gemm": lambda: {
        "a": randn(M, K), "b": randn(24, K).float(), "d": zeros(M, 24, dtype=F32), "sqr_sum": zeros(M, dtype=F32),
        "num_splits": None,
    },
    "flash_attention": attention,
    "flash_attention_decode": decode,
    "mla_decode": latent,
    "fp8_mqa_logits": lambda: logits() | {"max_seqlen_k": 0, "logits_dtype": F32},
    "fp8_fp4_mqa_logits": lambda: logits() | {
        "q": (logits()["q"], None), "max_seqlen_k": 0, "logits_dtype": F32, "schedule_meta": None,
    },
    "get_mqa_logits_metadata": lambda: {
        "cu_seq_len_k_start": ints(0, 1), "cu_seq_len_k_end": ints(3, 4), "num_kv_tokens": 4, "num_heads": HEADS,
    },
    "fp8_paged_mqa_logits": lambda: paged_logits() | {"logits_dtype": torch.bfloat16, "shuffled_keys": True},
    "fp8_fp4_paged_mqa_logits": lambda: paged_logits() | {"q": (paged_logits()["q"], None), "logits_dtype": F32},
    "top_k_per_row": lambda: {
        "logits": rand(4, 70), "k": 9, "starts": ints(0, 3, 5, 70), "ends": ints(70, 60, 9, 70),
        "block_table": ints(*range(10)).view(2, 5), "page_size": 16, "sequences": ints(1, 0, 0, 1),
        "out": zeros(4, 9, dtype=torch.int32),
    },
    "sparse_mla": lambda: {
        "q": randn(4, 3, 576), "kv_cache": zeros(2, 4, 1, 656, dtype=torch.uint8), "indices": slots(),
        "topk_length": ints(1, 3), "attn_sink": torch.zeros(3), "softmax_scale": None, "fp8_dtype": FP8,
        "extra_kv_cache": zeros(1, 8, 1, 656, dtype=torch.uint8), "extra_indices": slots(),
        "extra_topk_length": ints(1, 3, 0, 2), "num_splits": None, "out": zeros(4, 3, 512),
    },
    "flash_mla_sparse_fwd": lambda: {
        "q": randn(4, 3, 576), "kv": randn(8, 1, 576), "indices": slots()[:, None], "sm_scale": 0.1, "d_v": 512,
        "attn_sink": torch.zeros(3), "topk_length": ints(1, 3, 0, 2), "out": zeros(4, 3, 512),
    },
    "flash_mla_with_kvcache": lambda: {
        "q": randn(2, 2, 3, 512), "k_cache": zeros(2, 4, 1, 584, dtype=torch.uint8), "block_table": None,
        "cache_seqlens": None, "head_dim_v": 512, "softmax_scale": None, "causal": False,
        "indices": slots().view(2, 2, 3), "attn_sink": torch.zeros(3), "topk_length": ints(1, 3),
        "extra_k_cache": zeros(1, 8, 1, 584, dtype=torch.uint8), "extra_indices_in_kvcache": slots().view(2, 2, 3),
        "extra_topk_length": ints(0, 2),
        "out": zeros(2, 2, 3, 512), "enable_batch_invariant": False, "fp8_dtype": FP8,
    },
    "merge_attention_states": lambda: {
        "first": randn(1, M, 2, 64), "first_lse": rand(1, 2, M), "second": randn(1, M, 2, 64),
        "second_lse": rand(1, 2, M), "out": zeros(1, M, 2, 64),
    },
    "append_kv_cache": lambda: {
        "k": randn(3, 2, 64), "v": randn(3, 2, 64), "k_cache": zeros(2, 4, 2, 64).to(FP8),
        "v_cache": zeros(2, 4, 2, 64).to(FP8), "slots": ints(5, -1, 0), "k_descale": torch.ones(2),
        "v_descale": torch.ones(1),
    },
    "append_mla_cache": lambda: {
        "kv_c": randn(3, 512), "k_pe": randn(3, 64), "cache": zeros(2, 4, 1, 656, dtype=torch.uint8),
        "slots": ints(5, -1, 0), "fp8_dtype": FP8,
    },
    "get_paged_mqa_logits_metadata": lambda: {
        "context_lens": ints(3, 70), "block_kv": 64, "num_sms": 4, "indices": None,
    },
    "per_token_cast_to_fp8": lambda: {"x": randn(M, K), **CAST, "use_packed_ue8m0": False},
    "per_block_cast_to_fp8": lambda: {"x": randn(M, K), **CAST},
    "per_channel_cast_to_fp8": lambda: {"x": randn(M, K), **CAST},
    "per_custom_dims_cast_to_fp8": lambda: {"x": randn(M, K), "dims": (0,), "use_ue8m0": False, "fp8_max": 240.0},
    "per_token_cast_to_fp4": lambda: {"x": randn(M, K), "use_ue8m0": True, "gran_k": 32, "use_packed_ue8m0": False},
    "cast_back_from_fp4": lambda: {
        "packed": torch.zeros(M, K // 2, dtype=torch.int8), "sf": rand(M, K // 32), "gran_k": 32,
        "use_packed_ue8m0": False,
    },
    "cast_back_from_fp8": lambda: {
        "x_fp8": randn(M, K).to(FP8), "sf": rand(M, K // 32), "gran_k": 32, "use_packed_ue8m0": False,
    },
    "transpose_packed_fp4": lambda: {"a": torch.zeros(8, 4, dtype=torch.int8)},
    "ceil_to_ue8m0": lambda: {"x": rand(M, 4)},
    "pack_ue8m0_to_int": lambda: {"x": torch.ones(M, 4)},
    "unpack_ue8m0_from_int": lambda: {"packed_sf": ints(3, 70)},
    "per_row_cast_to_fp8": lambda: {"x": randn(M, K), "use_ue8m0": True, "fp8_max": 224.0},
    "per_tensor_cast_to_fp8": lambda: {"x": randn(M, K), "use_ue8m0": True, "fp8_max": 224.0},
    "rms_norm_cast_to_fp8": lambda: {
        "x": randn(M, K), "weight": randn(K), "eps": 1e-5, "residual": randn(M, K), "gran_k": 128, "use_ue8m0": False,
        "fp8_max": 240.0,
    },
    "silu_and_mul_cast_to_fp8": lambda: {
        "x": randn(G, M, 2 * K), "masked_m": ints(M, M), "alpha": 1.702, "limit": 7.0, "use_ue8m0": False,
        "fp8_max": 240.0,
    },
    "fused_moe": lambda: {
        "x": per_token(M, K), "gate_up": per_block(G, 2 * K, K), "down": per_block(G, K, K), "topk_weights": rand(M, 2),
        "topk_ids": ints(*range(-1, 2 * M - 1)).view(M, 2) % 5 - 1, "activation": "silu_and_mul",
        "expert_map": ints(1, 0, -1), "out": zeros(M, K), "gate_up_bias": randn(G, 2 * K), "down_bias": randn(G, K),
    },
    "route_top_k": lambda: {
        "logits": randn(M, 64), "top_k": 4, "scoring": "sigmoid", "bias": rand(64), "num_groups": 8, "top_groups": 2,
        "renormalize": True, "scale": 2.5,
    },
    "convert_fp8_fn_to_fnuz": lambda: {"data": randn(M, K).to(torch.float8_e4m3fn), "scales": rand(M, 1)},
    "convert_fp4_to_fp8": lambda: {
        "data": torch.zeros(G, N, K // 2, dtype=torch.int8), "scales": torch.full((G, N, K // 32), 127).byte(),
        "scale_rows": 1,
    },
    "shuffle_weight": lambda: {
        "data": torch.zeros(G, N, K // 2, dtype=torch.int8), "scales": torch.full((G, N, K // 32), 127).byte(),
    },
    "convert_int4_to_fp8": lambda: {
        "weight": torch.zeros(N, K // 8).int(), "scales": rand(N, K // 32), "zeros": torch.zeros(N // 8, K // 32).int(),
        "packing": "compressed-tensors", "scale_rows": 1, "g_idx": torch.arange(K) // 32,
    },
    "repack_int4": lambda: {
        "weight": torch.zeros(G, K, N // 8).int(), "scales": torch.ones(G, K // 32, N),
        "zeros": torch.zeros(G, K // 32, N // 8).int(), "packing": "awq", "g_idx": torch.arange(K) // 32,
    },
    "get_mn_major_tma_aligned_tensor": lambda: {"sf": rand(M, 3)},
    "get_tma_aligned_size": lambda: {"x": 5, "element_size": 4},
    "transform_sf_into_required_layout": lambda: dict(REQUIRED),
    "calc_diff": lambda: {"x": randn(M, K), "y": randn(M, K)},
    "warmup_kernels": lambda: {"name": "fp8_gemm_nt", "m_list": [16], "n": N, "k": K, "num_groups": 1, "d_dtype": F32},
    "set_mk_alignment_for_contiguous_layout": lambda: {"new_value": 128},
    "get_theoretical_mk_alignment_for_contiguous_layout": lambda: {"expected_m": 3, "num_groups": 2},
    "set_num_sms": lambda: {"new_num_sms": 0},
    "set_tc_util": lambda: {"new_tc_util": 0},
    "set_pdl": lambda: {"new_enable_pdl": False},
    "set_ignore_compile_dims": lambda: {"new_value": False},
    "set_block_size_multiple_of": lambda: {"new_value": 1},
    "set_batch_invariant": lambda: {"new_value": False},
    "use_deterministic_algorithms": lambda: {"enabled": False},
    "set_compile_mode": lambda: {"new_compile_mode": 0},
}  # fmt: skip

"""Problems, oracles and guarded outputs, shared by tests, the demo and benchmarks."""

from .attention import AttentionReference, attention_reference, logits_reference, visible_keys
from .deepgemm import assert_bitwise_equal, count_bytes, get_arch_major, ignore_env, test_filter
from .generators import (
    GuardedOutput,
    activations,
    gemm_problem,
    grouped_weights,
    int4_weights,
    quantised_activations,
    quantised_weights,
    weights,
)
from .hot_path import fused_moe_reference, rms_norm_reference, route_top_k_reference, silu_and_mul_reference
from .numerics import (
    Accuracy,
    GemmReference,
    assert_accurate,
    assert_accurate_in_sums,
    assert_accurately_quantised,
    calc_diff,
    gemm_reference,
    measure,
)
from .timing import bench, bench_kineto

__all__ = [
    "Accuracy",
    "AttentionReference",
    "GemmReference",
    "GuardedOutput",
    "activations",
    "assert_accurate",
    "assert_accurate_in_sums",
    "assert_accurately_quantised",
    "assert_bitwise_equal",
    "attention_reference",
    "bench",
    "bench_kineto",
    "calc_diff",
    "count_bytes",
    "fused_moe_reference",
    "gemm_problem",
    "gemm_reference",
    "get_arch_major",
    "grouped_weights",
    "ignore_env",
    "int4_weights",
    "logits_reference",
    "measure",
    "quantised_activations",
    "quantised_weights",
    "rms_norm_reference",
    "route_top_k_reference",
    "silu_and_mul_reference",
    "test_filter",
    "visible_keys",
    "weights",
]

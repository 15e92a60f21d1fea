"""Problems, oracles and guarded outputs, shared by tests, the demo and benchmarks."""

from .generators import GuardedOutput, activations, gemm_problem, grouped_weights, weights
from .numerics import Accuracy, GemmReference, assert_accurate, calc_diff, gemm_reference, measure

__all__ = [
    "Accuracy",
    "GemmReference",
    "GuardedOutput",
    "activations",
    "assert_accurate",
    "calc_diff",
    "gemm_problem",
    "gemm_reference",
    "grouped_weights",
    "measure",
    "weights",
]

"""A first heuristic: the candidate whose tiles fill the device's CUs in the least estimated time."""

from __future__ import annotations

import dataclasses
import functools

from .gemm_config import BLOCK_K_BYTES, GemmConfig

# From the smallest tile to the largest. Small tiles spread a small M over many CUs; large ones load fewer bytes for
# each product.
_CANDIDATES = (
    GemmConfig(block_m=16, block_n=64, waves_m=1, waves_n=4, num_stages=4),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=4, num_stages=4),
    GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=2, num_stages=4),
    GemmConfig(block_m=128, block_n=128, waves_m=2, waves_n=2, num_stages=2, schedule="pinned"),
    GemmConfig(block_m=256, block_n=128, waves_m=4, waves_n=2, num_stages=2, schedule="pinned"),
)

_MAC_PER_CLOCK = 2048  # FP8 multiply-adds of a CU
_BYTES_PER_CLOCK = 32  # that a CU gets from L2 when all of them ask
_LOAD_LATENCY_CLOCKS = 1000  # from memory into LDS


def gemm_candidates(k_tail: bool) -> tuple[GemmConfig, ...]:
    """The configurations that ``choose_gemm_config`` chooses from, smallest tile first."""
    return tuple(dataclasses.replace(config, k_tail=k_tail) for config in _CANDIDATES)


@functools.lru_cache(maxsize=65536)
def choose_gemm_config(m: int, n: int, k: int, num_cus: int = 304) -> GemmConfig:
    """The configuration that runs an m x n x k problem in the fewest estimated clocks; of equals, the largest tile."""
    candidates = reversed(gemm_candidates(k_tail=k % BLOCK_K_BYTES != 0))
    return min(candidates, key=lambda config: _clocks_per_k_block(config, m, n, num_cus))


def _clocks_per_k_block(config: GemmConfig, m: int, n: int, num_cus: int) -> float:
    """Clocks that the device spends on 128 of K: rounds of tiles over the CUs, times the slowest part of a tile."""
    tiles = -(-m // config.block_m) * -(-n // config.block_n)
    rounds = -(-tiles // num_cus)
    compute = config.block_m * config.block_n * BLOCK_K_BYTES / _MAC_PER_CLOCK
    load = (config.block_m + config.block_n) * BLOCK_K_BYTES / _BYTES_PER_CLOCK
    latency = _LOAD_LATENCY_CLOCKS / config.num_stages
    return rounds * max(compute, load, latency)

"""Kernel configurations under test: those that the heuristic chooses from, and others that the template allows."""

from __future__ import annotations

import dataclasses

from deep_gemm_rocm.heuristics import GemmConfig, gemm_candidates

CHOSEN = (*gemm_candidates(k_tail=False), *gemm_candidates(k_tail=True))

# One for each path of the headers that no chosen configuration takes: other numbers of stages, 32x32 MFMA, one wave,
# tiles smaller than a pass of loads, odd numbers of fragments, tiles wider than a block of scales.
OTHERS = (
    GemmConfig(block_m=32, block_n=32, waves_m=1, waves_n=1, num_stages=1),
    GemmConfig(block_m=64, block_n=64, waves_m=2, waves_n=2, num_stages=2, k_tail=True),
    GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=2, num_stages=3, mfma_rows=32),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=2, num_stages=1, mfma_rows=32, k_tail=True),
    GemmConfig(block_m=48, block_n=64, waves_m=1, waves_n=2, num_stages=5),
    GemmConfig(block_m=16, block_n=256, waves_m=1, waves_n=8, num_stages=2),
    GemmConfig(block_m=128, block_n=256, waves_m=2, waves_n=4, num_stages=1),
)

ALL = CHOSEN + OTHERS

# Every way to find tiles, with every tile that it may have.
GROUPED = tuple(
    dataclasses.replace(config, grouping=grouping)
    for grouping in ("contiguous", "psum", "masked")
    for config in gemm_candidates(k_tail=grouping == "psum", max_block_m=128 if grouping == "contiguous" else 256)
)


def config_id(config: GemmConfig) -> str:
    grouping = "" if config.grouping == "dense" else f"{config.grouping}_"
    tail = "_ktail" if config.k_tail else ""
    return (
        f"{grouping}{config.block_m}x{config.block_n}_w{config.waves_m}x{config.waves_n}_mfma{config.mfma_rows}"
        f"_s{config.num_stages}_{config.schedule}{tail}"
    )

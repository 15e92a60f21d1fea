"""GEMM configurations under test: the heuristic's candidates, and others that the template allows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import pytest

from deep_gemm_rocm.heuristics import GemmConfig, gemm_candidates
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from helpers.default_run import these

TAIL = GemmKind(k_tail=True)

CHOSEN = (*gemm_candidates(GemmKind()), *gemm_candidates(TAIL))

# Further candidates where each row's scales have lines of the vector L1 for themselves.
OF_SCALES_BY_ROWS = tuple(
    config
    for kind in (GemmKind(), TAIL)
    for config in gemm_candidates(kind, scale_rows_are_apart=True)
    if config not in CHOSEN
)

# Configurations for paths of the headers that no candidate takes: other numbers of stages, a single wave, three waves
# that load together, tiles smaller than a pass of loads, odd numbers of fragments, sums that waves exchange in steps,
# tiles wider than a block of scales, and more waves along K than K-blocks.
OTHERS = (
    GemmConfig(block_m=32, block_n=32, waves_m=1, waves_n=1, num_stages=1),
    GemmConfig(block_m=64, block_n=64, waves_m=2, waves_n=2, num_stages=2, kind=TAIL),
    GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=2, num_stages=3),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=2, num_stages=1, kind=TAIL),
    GemmConfig(block_m=48, block_n=64, waves_m=1, waves_n=2, num_stages=5),
    GemmConfig(block_m=16, block_n=256, waves_m=1, waves_n=8, num_stages=2),
    GemmConfig(block_m=128, block_n=256, waves_m=2, waves_n=4, num_stages=1),
    GemmConfig(block_m=16, block_n=48, waves_m=1, waves_n=3, num_stages=5),
    GemmConfig(block_m=256, block_n=64, waves_m=4, waves_n=2, num_stages=3, schedule="pingpong", kind=TAIL),
    GemmConfig(block_m=32, block_n=64, waves_m=1, waves_n=1, num_stages=3, schedule="alone", waves_k=4),
    GemmConfig(block_m=48, block_n=32, waves_m=1, waves_n=1, num_stages=2, schedule="alone", waves_k=2, kind=TAIL),
    GemmConfig(block_m=16, block_n=32, waves_m=1, waves_n=1, num_stages=1, schedule="alone", waves_k=8),
    GemmConfig(block_m=80, block_n=96, waves_m=1, waves_n=1, num_stages=2, schedule="alone", waves_k=4, kind=TAIL),
    GemmConfig(block_m=80, block_n=16, waves_m=1, waves_n=1, num_stages=3, schedule="alone", waves_k=4, kind=TAIL),
    GemmConfig(block_m=96, block_n=64, waves_m=3, waves_n=2, num_stages=2, schedule="alone", kind=TAIL),
)

# Some waves' columns may lie in two blocks of scales; with and without joined fragments.
IN_TWO_BLOCKS = (
    GemmConfig(block_m=64, block_n=192, waves_m=2, waves_n=4, num_stages=3, schedule="pingpong", kind=TAIL),
    GemmConfig(block_m=32, block_n=192, waves_m=1, waves_n=2, num_stages=2),
)

# The default run has other tiles with as many stages and waves.
_RARE_TILES = ((32, 64, 1), (48, 64, 5), (128, 256, 1))
ALWAYS = tuple(
    config
    for config in OF_SCALES_BY_ROWS + OTHERS + IN_TWO_BLOCKS
    if config.schedule != "multistage" or (config.block_m, config.block_n, config.num_stages) not in _RARE_TILES
)
ALL = CHOSEN + OF_SCALES_BY_ROWS + OTHERS + IN_TWO_BLOCKS

# Every grouping with every tile; some tiles need an alignment below 128.
GROUPED = tuple(
    dict.fromkeys(
        config
        for grouping in ("contiguous", "psum", "masked")
        for max_block_m in (256, 64)
        for config in gemm_candidates(GemmKind(grouping=grouping, k_tail=grouping == "psum"), max_block_m)
    )
)

# Masked groups whose finished tiles are counted.
SIGNALS = tuple(
    config
    for k_tail in (False, True)
    for config in gemm_candidates(GemmKind(grouping="masked", signals=True, k_tail=k_tail))
)

# Batched GEMM with every layout that an Einstein sum may have, and every tile.
BATCHED = tuple(
    config
    for kind in (
        GemmKind(a_type="bf16", b_type="bf16", scaling="none", grouping="batched"),
        GemmKind(grouping="batched", k_tail=True),
        GemmKind(a_type="bf16", b_type="bf16", scaling="none", grouping="batched", b_major="rows"),
        GemmKind("e4m3", "e4m3", "f32", "vectors", True, "batched", a_major="rows", b_major="rows"),
    )
    for config in gemm_candidates(kind)
)

# Outputs with a gap in each head's columns.
HEADS = (
    *gemm_candidates(GemmKind(skips_head_mid=True)),
    *gemm_candidates(GemmKind(d_type="f32", scaling="vectors", k_tail=True, skips_head_mid=True)),
)

# Sums over a batch, with every layout and tile.
SUMMED = tuple(
    config
    for major, k_tail in (("k", True), ("rows", False))
    for config in gemm_candidates(
        GemmKind("bf16", "bf16", "f32", "none", False, "summed", k_tail, a_major=major, b_major=major)
    )
)

# bf16 times fp32 with sums of squares.
SQUARES = tuple(
    config
    for k_tail in (False, True)
    for config in gemm_candidates(GemmKind("bf16", "f32", "f32", "none", False, "split_k", k_tail, sums_squares=True))
)

# Dense problems with split K.
SPLIT_K = tuple(
    config
    for kind in (
        GemmKind(),
        GemmKind(k_tail=True),
        GemmKind(d_type="e4m3", activation="silu_and_mul", bias="f32"),
        GemmKind(d_type="e5m2"),
    )
    for config in gemm_candidates(kind.in_parts)
)

_RARE_KINDS: set[GemmKind] = set()


def _rare(kind: GemmKind) -> GemmKind:
    """A kind whose properties other kinds have, too: the default run has none of its tiles."""
    _RARE_KINDS.add(kind)
    return kind


# Kinds that cover every type of operands and output, and every scaling.
KINDS = (
    GemmKind(a_type="e5m2", b_type="e4m3", d_type="f32", scaling="blocks", accumulate=True),
    _rare(GemmKind(a_type="e4m3", b_type="e4m3", d_type="f32", scaling="vectors", accumulate=True, k_tail=True)),
    GemmKind(a_type="e4m3", b_type="e4m3", d_type="f16", scaling="rows", accumulate=True),
    _rare(GemmKind(a_type="e5m2", b_type="e5m2", d_type="bf16", scaling="rows", k_tail=True)),
    GemmKind(a_type="e4m3", b_type="e5m2", d_type="bf16", scaling="vectors"),
    GemmKind(a_type="bf16", b_type="bf16", d_type="bf16", scaling="none", k_tail=True),
    _rare(GemmKind(a_type="bf16", b_type="bf16", d_type="f32", scaling="none", accumulate=True)),
    GemmKind(a_type="f16", b_type="f16", d_type="f16", scaling="none"),
    _rare(GemmKind(a_type="f16", b_type="f16", d_type="f32", scaling="none", k_tail=True)),
    GemmKind(b_major="rows"),
    GemmKind(a_major="rows", k_tail=True),
    GemmKind(d_type="f32", scaling="vectors", accumulate=True, a_major="rows", b_major="rows"),
    GemmKind(a_type="bf16", b_type="bf16", d_type="f32", scaling="none", a_major="rows", b_major="rows", k_tail=True),
    _rare(GemmKind(a_type="bf16", b_type="bf16", scaling="none", b_major="rows")),
    GemmKind(bias="bf16", d_type="f32"),
    GemmKind(activation="silu_and_mul", bias="f32"),
    GemmKind(activation="silu_and_mul", scaling="vectors", d_type="f16", k_tail=True),
    _rare(GemmKind(activation="silu_and_mul", scaling="none", a_type="bf16", b_type="bf16", d_type="f32")),
    GemmKind(activation="silu_and_mul", scaling="rows", bias="f16", b_major="rows"),
    GemmKind(d_type="e4m3"),
    GemmKind(d_type="e5m2", scaling="vectors", bias="bf16", k_tail=True),
    GemmKind(activation="silu_and_mul", d_type="e4m3"),
    _rare(GemmKind(activation="silu_and_mul", d_type="e4m3", scaling="vectors", bias="f32")),
    _rare(GemmKind(activation="silu_and_mul", d_type="e4m3", scaling="none", a_type="f16", b_type="f16")),
)
# Kinds whose b has four bits, with every type of a and of scales.
MXFP4 = {"b_type": "e2m1", "scaling": "groups", "b_scale_type": "e8m0"}
SHUFFLED = {**MXFP4, "b_type": "shuffled_e2m1"}
FOUR_BIT_KINDS = (
    _rare(GemmKind(**MXFP4, k_tail=True)),
    GemmKind(a_type="e5m2", b_type="e2m1", d_type="f32", scaling="groups", accumulate=True),
    GemmKind(**MXFP4, activation="silu_and_mul", bias="f32"),
    GemmKind(a_type="bf16", **MXFP4),
    _rare(GemmKind(a_type="bf16", b_type="e2m1", d_type="f32", scaling="groups", accumulate=True, k_tail=True)),
    GemmKind(a_type="bf16", **MXFP4, activation="silu_and_mul"),
    GemmKind(**SHUFFLED, k_tail=True),
    _rare(GemmKind(**SHUFFLED, d_type="f32", accumulate=True)),
    GemmKind(a_type="bf16", **SHUFFLED, activation="silu_and_mul", bias="f32", k_tail=True),
    _rare(GemmKind(a_type="bf16", **SHUFFLED)),
)
FOUR_BITS = tuple(config for kind in FOUR_BIT_KINDS for config in gemm_candidates(kind))
# Kinds whose b is int4, with every number of values and type of scales.
INT4_KINDS = (
    GemmKind(a_type="bf16", b_type="int4", scaling="groups", b_scale_type="bf16", k_tail=True),
    GemmKind(a_type="bf16", b_type="int4", d_type="f32", scaling="groups", group_k=128, k_tail=True),
    GemmKind(a_type="bf16", b_type="int4", d_type="f32", scaling="groups", group_k=64, accumulate=True),
    GemmKind(b_type="int4", scaling="groups", group_k=128),
    GemmKind(a_type="bf16", b_type="int4", d_type="f32", scaling="groups", b_scale_type="f32_and_zero"),
    GemmKind(
        a_type="bf16", b_type="int4", scaling="groups", b_scale_type="f32_and_zero", group_k=128, bias="f32",
        activation="silu_and_mul",
    ),
    GemmKind(b_type="int4", scaling="groups", b_scale_type="bf16"),
    GemmKind(b_type="int4", d_type="f32", scaling="groups", b_scale_type="f32_and_zero", group_k=64, accumulate=True),
    GemmKind(
        b_type="int4", scaling="groups", b_scale_type="f32_and_zero", bias="f32", activation="silu_and_mul",
    ),
    GemmKind(a_type="e5m2", b_type="int4", d_type="f32", scaling="groups", b_scale_type="f32_and_zero", group_k=128),
    GemmKind(b_type="shuffled_int4", d_type="f32", scaling="groups", b_scale_type="bf16"),
    GemmKind(
        b_type="shuffled_int4", scaling="groups", group_k=64, bias="f32", activation="silu_and_mul",
    ),
    GemmKind(b_type="int4", scaling="groups"),
    GemmKind(b_type="shuffled_int4", scaling="groups", group_k=128),
    GemmKind(a_type="bf16", b_type="int4", scaling="groups", group_k=128),
)  # fmt: skip
INT4 = tuple(config for kind in INT4_KINDS for config in gemm_candidates(kind))
GROUPED_FOUR_BITS = tuple(
    config
    for grouping in ("contiguous", "psum", "masked")
    for config in gemm_candidates(GemmKind(**MXFP4, grouping=grouping, d_type="f32", k_tail=True))
)

# First GEMMs of layers of experts, with all that their rows and results may need.
EXPERTS = tuple(
    config
    for kind in (
        GemmKind(activation="clamped_silu_and_mul", bias="bf16"),
        GemmKind(activation="clamped_silu_and_mul", bias="bf16", k_tail=True, **MXFP4),
        GemmKind(activation="clamped_silu_and_mul", bias="bf16", a_type="bf16", **MXFP4),
    )
    for config in gemm_candidates(dataclasses.replace(kind, grouping="psum", gathers_a=True))
)

# Kernels for masked groups with tiles of two heights.
TALLER = tuple(
    config
    for kind in KINDS
    if kind.a_major == "k"
    for config in gemm_candidates(dataclasses.replace(kind, grouping="masked"))
    if config.taller
)


def for_other_kinds(configs: Iterable[GemmConfig]) -> Iterator[GemmConfig]:
    """Gives each configuration the next kind in KINDS that it supports, in turn."""
    kinds = itertools.cycle(KINDS)
    for config in configs:
        for kind in itertools.islice(kinds, len(KINDS)):
            try:
                other = dataclasses.replace(config, kind=dataclasses.replace(kind, k_tail=config.kind.k_tail))
            except ValueError:
                continue
            yield other
            break


OF_EVERY_KIND = tuple(config for kind in KINDS for config in gemm_candidates(kind)) + tuple(
    for_other_kinds(OTHERS + OF_SCALES_BY_ROWS)
)
# For 4096x2112, this configuration has as many tiles as the device has CUs.
AS_MANY_TILES_AS_CUS = (
    GemmConfig(256, 112, 8, 1, 3, "pingpong", kind=GemmKind(a_type="bf16", b_type="bf16", scaling="none")),
)
OF_EVERY_KIND += AS_MANY_TILES_AS_CUS
# To quantise, the largest magnitudes of a tile's rows go through LDS, which the schedules leave in different states.
OF_EVERY_KIND += tuple(
    dataclasses.replace(config, kind=GemmKind(d_type="e4m3", k_tail=config.kind.k_tail))
    for config in OTHERS
    if config.block_n == 128 and config.block_m <= 128
)


def has_row_scales_in_lds(config: GemmConfig) -> bool:
    """Whether scales of rows go through LDS, see ``kRowScalesInLds``; for FP8 activations."""
    is_large = config.schedule == "alone" and config.wave_m * config.wave_n >= 64 * 48
    return (config.waves_k > 1 or is_large) and config.wave_m > 16 and config.wave_m * config.num_stages > 64


def config_id(config: GemmConfig) -> str:
    return config.kernel_name


def quick(configs: Iterable[GemmConfig]) -> list[GemmConfig]:
    """Every 29th tile of each kind: for one kind the largest, 30th largest and so on, for the next the others.

    Mistakes in the code of a kind show with any tile, and mistakes in the code of a tile with any kind.
    """
    of_kinds: dict[GemmKind, list[GemmConfig]] = {}
    for config in configs:
        of_kinds.setdefault(config.kind, []).append(config)
    chosen = []
    for turn, tiles in enumerate(of_kinds.values()):
        tiles.sort(key=lambda config: config.block_m * config.block_n, reverse=True)
        chosen += tiles[turn % min(len(tiles), 29) :: 29]
    return chosen


def each_tile(configs: Sequence[GemmConfig], only: Iterable[GemmConfig] | None = None) -> pytest.MarkDecorator:
    """Runs a test with each configuration; the default run takes the ``quick`` ones, or ``only``."""
    return pytest.mark.parametrize(
        "config", these(configs, set(quick(configs) if only is None else only)), ids=config_id
    )


def _quick_of_usual_kinds(configs: Iterable[GemmConfig], kinds: Sequence[GemmKind]) -> list[GemmConfig]:
    return [config for config in quick(configs) if config.kind in kinds and config.kind not in _RARE_KINDS]


# The default run has the tiles of OTHERS for FP8 only.
QUICK_OF_EVERY_KIND = [*_quick_of_usual_kinds(OF_EVERY_KIND, KINDS), *AS_MANY_TILES_AS_CUS]
QUICK_FOUR_BITS = _quick_of_usual_kinds(FOUR_BITS, FOUR_BIT_KINDS)

QUICK_ALL = (*quick(CHOSEN), *ALWAYS)
each_dense_tile = each_tile(ALL, only=QUICK_ALL)

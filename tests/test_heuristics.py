"""Which configurations exist, and which one a problem gets."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deep_gemm_rocm.heuristics import GemmConfig, GemmKind, choose_gemm_config, gemm_candidates

VALID = GemmConfig(block_m=64, block_n=128, waves_m=2, waves_n=2, num_stages=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mfma_rows": 8}, "mfma_rows"),
        ({"schedule": "magic"}, "schedule"),
        ({"kind": GemmKind(grouping="contiguous"), "block_m": 256}, "128 rows"),
        ({"waves_m": 0}, "waves_m"),
        ({"waves_m": 4, "waves_n": 4}, "threads"),
        ({"block_m": 40}, "divide the tile"),
        ({"block_m": 0}, "divide the tile"),
        ({"block_n": 192, "waves_n": 2}, "share a scale"),
        ({"num_stages": 0}, "num_stages"),
        ({"group_m": 0}, "group_m"),
        ({"block_m": 256, "num_stages": 3}, "LDS"),
        ({"schedule": "pinned", "num_stages": 3}, "2 stages"),
        ({"schedule": "pinned", "block_m": 128, "mfma_rows": 32}, "32x32"),
        ({"schedule": "pinned"}, "64x64"),
        ({"schedule": "pingpong", "num_stages": 2, "waves_m": 4}, "3 stages"),
        ({"schedule": "pingpong", "num_stages": 3}, "8 waves"),
        ({"schedule": "pingpong", "num_stages": 3, "waves_m": 1, "waves_n": 8}, "two halves"),
        ({"schedule": "producer", "num_stages": 3}, "producer_waves"),
        ({"schedule": "producer", "num_stages": 2, "producer_waves": 4}, "3 stages"),
        ({"schedule": "producer", "num_stages": 3, "producer_waves": 3}, "divide the others"),
        ({"schedule": "producer", "num_stages": 3, "producer_waves": 2}, "registers"),
        ({"schedule": "producer", "num_stages": 3, "producer_waves": 4, "waves_n": 4}, "threads"),
        (
            {"schedule": "producer", "num_stages": 3, "producer_waves": 4, "kind": GemmKind(d_type="e4m3")},
            "waves that only load",
        ),
        ({"producer_waves": 2}, "only the producer schedule"),
        ({"mfma_rows": 32, "kind": GemmKind(scaling="vectors")}, "more columns"),
        ({"schedule": "pinned", "block_m": 128, "kind": GemmKind(scaling="vectors")}, "scales of columns"),
    ],
)
def test_impossible_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        dataclasses.replace(VALID, **changes)
    assert "GemmConfig(" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grouping": "by colour"}, "grouping"),
        ({"a_type": "f32"}, "operands"),
        ({"a_type": "bf16"}, "operands"),
        ({"a_type": "bf16", "b_type": "bf16"}, "only FP8 operands have scales"),
        ({"d_type": "int8"}, "d_type"),
        ({"scaling": "tensor"}, "scaling"),
    ],
)
def test_impossible_kinds_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GemmKind(**changes)


def test_names_spell_out_the_configuration():
    assert VALID.kernel_name == "gemm_nt_e4m3_blocks_bf16_64x128x128_w2x2_mfma16_s2_multistage"
    producer = dataclasses.replace(VALID, schedule="producer", num_stages=3, producer_waves=4)
    assert producer.kernel_name == "gemm_nt_e4m3_blocks_bf16_64x128x128_w2x2p4_mfma16_s3_producer"
    kind = GemmKind("bf16", "bf16", "f32", "none", accumulate=True, grouping="masked", k_tail=True)
    name = "m_grouped_masked_gemm_nt_bf16_f32_c_64x128x64_w2x2_mfma16_s2_multistage_ktail"
    assert dataclasses.replace(VALID, kind=kind).kernel_name == name


@given(m=st.integers(1, 2**31 - 1), n=st.integers(1, 2**20), k=st.integers(1, 2**16).map(lambda blocks: 16 * blocks))
def test_every_problem_gets_a_configuration(m, n, k):
    config = choose_gemm_config(GemmKind(), m, n, k)
    assert config in gemm_candidates(config.kind)
    assert config.kind.k_tail == (k % 128 != 0)


def test_small_m_gets_small_tiles_and_large_m_large_ones():
    tile_rows = [choose_gemm_config(GemmKind(), m, 4096, 7168).block_m for m in (1, 128, 512, 4096)]
    assert tile_rows == sorted(tile_rows)
    assert tile_rows[0] == 16
    assert tile_rows[-1] == 256


@given(
    m=st.integers(1, 2**20),
    n=st.integers(1, 2**16),
    groups=st.integers(1, 300),
    max_block_m=st.sampled_from([16, 32, 64, 128, 256]),
)
def test_tiles_of_groups_are_no_larger_than_allowed(m, n, groups, max_block_m):
    config = choose_gemm_config(GemmKind(grouping="masked"), m, n, 7168, num_groups=groups, max_block_m=max_block_m)
    assert config in gemm_candidates(GemmKind(grouping="masked"), max_block_m)
    assert config.block_m <= max_block_m
    assert config.kind.grouping == "masked"


def test_a_cu_has_room_for_its_workgroups():
    for config in gemm_candidates(GemmKind()):
        assert config.workgroups_per_cu >= 1
        assert config.workgroups_per_cu * config.lds_bytes <= 64 * 1024
        assert config.workgroups_per_cu * config.num_threads <= 512


def test_at_least_three_configurations_are_in_use():
    shapes = [(m, n) for m in (1, 64, 128, 512, 4096) for n in (576, 2112, 4096, 7168, 24576)]
    assert len({choose_gemm_config(GemmKind(), m, n, 7168) for m, n in shapes}) >= 3

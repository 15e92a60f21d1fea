"""How decoding splits keys."""

from __future__ import annotations

import pytest

from deep_gemm_rocm.heuristics import DecodeConfig, is_busy_unsplit


@pytest.mark.parametrize(
    ("sequences", "heads", "busy"),
    [
        (0, 128, True),
        (1, 128, False),
        (121, 128, False),
        (122, 128, True),
        (152, 128, True),
        (153, 128, False),
        (304, 128, True),
        (305, 128, True),
        (152, 64, False),
        (304, 64, True),
        (305, 64, False),
    ],
)
def test_keys_are_not_split_where_a_workgroup_for_each_tile_keeps_the_chip_busy(sequences, heads, busy):
    config = DecodeConfig("bf16", "bf16", 576, 512, latent_rows=64)
    assert is_busy_unsplit(config, sequences, heads) is busy

"""How decoding splits keys."""

from __future__ import annotations

import pytest

from deep_gemm_rocm.heuristics import DecodeConfig, for_few_workgroups, is_busy_unsplit, splits_for_any_batch
from deep_gemm_rocm.heuristics.decode_config import latent_rows


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


def test_room_for_keys_decides_nothing_about_splits():
    """A longer block table may count on more splits, of no fewer keys."""
    config = DecodeConfig("bf16", "bf16", 576, 512, latent_rows=64)
    assert splits_for_any_batch(config, 128, 1, 0) == (1, 512)
    assert splits_for_any_batch(config, 128, 1, 4096) == (9, 512)
    assert splits_for_any_batch(config, 128, 1, 2**20) == (32, 512)


@pytest.mark.parametrize(("pieces", "rows"), [(38, 16), (39, 32), (76, 32), (77, 64)])
def test_few_workgroups_have_fewer_rows(pieces, rows):
    config = DecodeConfig("bf16", "bf16", 576, 512, latent_rows=64)
    assert for_few_workgroups(config, 128, pieces).latent_rows == rows
    narrow = DecodeConfig("bf16", "bf16", 576, 512, latent_rows=16)
    assert for_few_workgroups(narrow, 16, pieces) == narrow


@pytest.mark.parametrize(
    ("queries", "keys", "rows"),
    [(8, 2**20, 16), (17, 2**20, 32), (128, 8192, 16), (128, 14591, 16), (128, 14592, 32), (128, 29184, 64)],
)
def test_short_pieces_have_fewer_rows(queries, keys, rows):
    assert latent_rows(queries, keys) == rows

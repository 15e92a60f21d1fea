"""The LDS layout of every configuration: reads find what was stored, without bank conflicts."""

from __future__ import annotations

import itertools

import pytest
from helpers.gemm_configs import ALL, FOUR_BITS, INT4, config_id
from helpers.host_functions import compile_functions

from deep_gemm_rocm.heuristics import GemmConfig
from deep_gemm_rocm.heuristics.gemm_config import MFMA_ROWS

WAVE = 64
BANKS = 32
CHUNKS = 8  # of 16 bytes in a row of 128

# Groups of lanes that an MI300X serves at a time: 8 neighbours for ds_write_b128, READ_GROUPS for ds_read_b128.
WRITE_GROUPS = [range(first, first + 8) for first in range(0, WAVE, 8)]
READ_GROUPS = [
    [half + lane for lane in (*range(low, low + 4), *range(high, high + 4))]
    for half in (0, 32)
    for low, high in ((0, 20), (4, 16), (8, 28), (12, 24))
]

SOURCE = """
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/hardware/mfma_shape.h"
using namespace deep_gemm_rocm;
extern "C" {
int passes(int rows, int threads, int chunks) { return ceil_div(rows, rows_per_pass(threads, chunks)); }
int stored_row(int thread, int pass, int threads, int chunks) {
  return thread_row(thread, chunks) + pass * rows_per_pass(threads, chunks);
}
int stored_chunk(int thread, int chunks) { return thread_chunk(thread, chunks); }
int stored_at(int thread, int pass, int threads, int chunks) {
  return store_offset(thread, chunks) + first_row_offset(pass * rows_per_pass(threads, chunks));
}
int half_stored_at(int thread, int pass, int threads, int chunks, int i, int half) {
  return half_store_offset(thread, chunks, i, half) + first_row_offset(pass * rows_per_pass(threads, chunks));
}
int reads(int mfma_rows) {
  return mfma_rows == 16 ? fragment_reads<MfmaShape<16>>() : fragment_reads<MfmaShape<32>>();
}
int read_at(int neighbours, int lane, int read, int first_row) {
  using Shape = MfmaShape<16>;
  const int offset = neighbours ? read_offset<Shape, KOrder::kNeighbours>(lane, read) : read_offset<Shape>(lane, read);
  return first_row_offset(first_row) + offset;
}
int column(int mfma_rows, int joined, int row) {
  return mfma_rows == 32 ? RowsByLane<MfmaShape<32>, 1>::of_lds_row(row)
         : joined == 1   ? RowsByLane<MfmaShape<16>, 1>::of_lds_row(row)
                         : RowsByLane<MfmaShape<16>, 2>::of_lds_row(row);
}
int lds_row(int mfma_rows, int joined, int column) {
  return mfma_rows == 32 ? RowsByLane<MfmaShape<32>, 1>::lds_row_of(column)
         : joined == 1   ? RowsByLane<MfmaShape<16>, 1>::lds_row_of(column)
                         : RowsByLane<MfmaShape<16>, 2>::lds_row_of(column);
}
int group_of_row(int mfma_rows, int row) {
  return mfma_rows == 16 ? MfmaShape<16>::group_of_row(row) : MfmaShape<32>::group_of_row(row);
}
int element_of_row(int mfma_rows, int row) {
  return mfma_rows == 16 ? MfmaShape<16>::element_of_row(row) : MfmaShape<32>::element_of_row(row);
}
}
"""

THROUGH_LDS = tuple(config for config in FOUR_BITS + INT4 if config.schedule != "alone")
IN_ORDER = [config for config in THROUGH_LDS if config.kind.promotions > 1]
every_config = pytest.mark.parametrize("config", ALL + THROUGH_LDS, ids=config_id)


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    return compile_functions(tmp_path_factory.mktemp("lds_layout"), SOURCE)


def loads(config: GemmConfig, *, in_halves: bool = False) -> list[tuple[int, int, int]]:
    """The rows that are loaded at once, the threads that load them, and the chunks that each stores.

    Args:
        in_halves: whether of those operands, of a and b, of whose chunks halves change places, or of the others.
    """
    threads = config.waves_m * config.waves_n * WAVE
    parts_of_a, parts_of_b = 1, 1
    if config.schedule == "pingpong":
        parts_of_a, parts_of_b = (1, 2) if config.halves_of_n else (2, 1)
    operands = [
        (config.block_m // parts_of_a, threads // parts_of_a, 1),
        (config.block_n // parts_of_b, threads // parts_of_b, 2 if config.kind.widens_b else 1),
    ]
    is_in_order = config in IN_ORDER
    have_halves = (is_in_order, is_in_order and config.kind.b_type != "shuffled_int4")
    return [operand for operand, has_halves in zip(operands, have_halves, strict=True) if has_halves == in_halves]


def stores(functions, rows: int, threads: int, chunks: int):
    """For each wave instruction, row, chunk and byte offset of each lane; None for lanes that store no row."""
    for pass_, wave, i in itertools.product(
        range(functions.passes(rows, threads, chunks)), range(threads // WAVE), range(chunks)
    ):
        lanes = []
        for thread in range(wave * WAVE, (wave + 1) * WAVE):
            row = functions.stored_row(thread, pass_, threads, chunks)
            at = functions.stored_at(thread, pass_, threads, chunks) ^ i * 16
            lanes.append((row, functions.stored_chunk(thread, chunks) + i, at) if row < rows else None)
        yield lanes


def fragment_reads(functions, rows: int, *, neighbours: bool):
    """For each wave instruction, the fragment's first row and the byte offset of each lane.

    Args:
        neighbours: whether a lane's chunks are neighbours.
    """
    for first_row in range(0, rows, MFMA_ROWS):
        for read in range(functions.reads(MFMA_ROWS)):
            yield first_row, [functions.read_at(neighbours, lane, read, first_row) for lane in range(WAVE)]


def assert_no_conflict(offsets: list[int]) -> None:
    banks = [(offset // 4 + word) % BANKS for offset in offsets for word in range(4)]
    assert all(offset % 16 == 0 for offset in offsets)
    assert len(set(banks)) == len(banks)


@every_config
def test_stores_and_reads_have_no_bank_conflicts(functions, config):
    for rows, *threads in loads(config):
        for lanes in stores(functions, rows, *threads):
            for group in WRITE_GROUPS:
                assert_no_conflict([lanes[lane][2] for lane in group if lanes[lane]])
        for _, offsets in fragment_reads(functions, rows, neighbours=config.kind.widens_b):
            for group in READ_GROUPS:
                assert_no_conflict([offsets[lane] for lane in group])


@every_config
def test_reads_find_what_was_stored(functions, config):
    for rows, *threads in loads(config):
        lds = {}
        for lanes in stores(functions, rows, *threads):
            lds.update({offset: (row, chunk) for row, chunk, offset in filter(None, lanes)})
        assert sorted(lds) == list(range(0, rows * 128, 16))
        assert sorted(lds.values()) == [(row, chunk) for row in range(rows) for chunk in range(CHUNKS)]

        read = [
            (first_row, lane, *lds[offset])
            for first_row, offsets in fragment_reads(functions, rows, neighbours=config.kind.widens_b)
            for lane, offset in enumerate(offsets)
        ]
        assert all(row == first_row + lane % MFMA_ROWS for first_row, lane, row, _ in read)
        assert sorted(place[2:] for place in read) == sorted(lds.values())


@pytest.mark.parametrize("config", IN_ORDER, ids=config_id)
def test_halves_of_chunks_are_stored_in_the_order_of_mfmas(functions, config):
    """The n-th MFMA takes the n-th 32 bytes of a row, of which a lane group has 8. Two reads feed four MFMAs."""
    half_bytes = 8
    assert loads(config, in_halves=True)
    for rows, threads, chunks in loads(config, in_halves=True):
        lds = {}
        passes = range(functions.passes(rows, threads, chunks))
        for pass_, i, half in itertools.product(passes, range(chunks), range(2)):
            stored = []
            for thread in range(threads):
                row = functions.stored_row(thread, pass_, threads, chunks)
                k = 16 * (functions.stored_chunk(thread, chunks) + i) + half_bytes * half
                if row < rows:
                    stored.append(functions.half_stored_at(thread, pass_, threads, chunks, i, half))
                    lds[stored[-1]] = row, k
            for first in range(0, len(stored), 16):  # lanes that ds_write_b64 serves at a time
                words = [offset // 4 + word for offset in stored[first : first + 16] for word in range(2)]
                assert len({word % BANKS for word in words}) == len(words) == BANKS
        assert sorted(lds) == list(range(0, rows * 128, half_bytes))
        for i, (first_row, offsets) in enumerate(fragment_reads(functions, rows, neighbours=False)):
            for group in READ_GROUPS:
                assert_no_conflict([offsets[lane] for lane in group])
            first_mfma = 2 * (i % functions.reads(MFMA_ROWS))
            for lane, mfma in itertools.product(range(WAVE), (first_mfma, first_mfma + 1)):
                k = 32 * mfma + half_bytes * (lane // MFMA_ROWS)
                assert lds[offsets[lane] + half_bytes * (mfma - first_mfma)] == (first_row + lane % MFMA_ROWS, k)


@pytest.mark.parametrize(("mfma_rows", "formula"), [
    (16, lambda group, element: 4 * group + element),
    (32, lambda group, element: 8 * (element // 4) + 4 * group + element % 4),
])  # fmt: skip
def test_rows_of_mfma_results(functions, mfma_rows, formula):
    """AMD's formula for the row of a lane's element, against its inverse in the header."""
    for row in range(mfma_rows):
        assert formula(functions.group_of_row(mfma_rows, row), functions.element_of_row(mfma_rows, row)) == row


@pytest.mark.parametrize(("mfma_rows", "joined"), [(16, 1), (16, 2), (32, 1)])
def test_lanes_hold_consecutive_columns(functions, mfma_rows, joined):
    rows = range(4 * mfma_rows)
    assert sorted(functions.column(mfma_rows, joined, row) for row in rows) == list(rows)
    assert [functions.lds_row(mfma_rows, joined, functions.column(mfma_rows, joined, row)) for row in rows] == list(
        rows
    )
    held = {}
    for row in rows:
        fragment, mfma_row = divmod(row, mfma_rows)
        run, place = divmod(fragment, joined)
        key = (run, functions.group_of_row(mfma_rows, mfma_row))
        element = (place, functions.element_of_row(mfma_rows, mfma_row))
        held.setdefault(key, {})[element] = functions.column(mfma_rows, joined, row)
    for elements in held.values():
        columns = [elements[element] for element in sorted(elements)]
        assert columns == list(range(columns[0], columns[0] + len(columns)))
        assert columns[0] % len(columns) == 0

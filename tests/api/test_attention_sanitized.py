"""Attention under the simulator's sanitizer: no races, no missing waits, no reads of uninitialised memory."""

from __future__ import annotations

from functools import partial

import pytest
import test_append_kv_cache as append
import test_flash_attention as forward
import test_flash_decode as decode
import test_mla_decode as mla
import test_mla_decode_fp8 as mla_fp8
import test_mqa_logits as logits
import test_paged_attention as paged
import test_sparse_mla as sparse
import torch

from deep_gemm_rocm.heuristics.choices import replaced
from deep_gemm_rocm.runtime import hip

# Problems are big, so each test makes its own.
FORWARD = [
    partial(forward.Problem, 100, 150, heads=1, widths=(64, 64), causal=True),
    partial(forward.Problem, 150, 200, heads=1, widths=(64, 64), causal=True),
    partial(forward.Problem, 150, 200, heads=1, dtype=forward.FP8, scales="block"),
    partial(forward.Problem, 20, 100, heads=1, widths=(256, 256)),
    partial(forward.Problem, 150, 200, heads=1, widths=(80, 80), softcap=2.0, sink=True),
    partial(decode.Problem, (150,), tokens_q=70, heads=1, kv_heads=1, widths=(64, 64)),
    partial(forward.Problem, 150, 200, heads=1, widths=(192, 128), causal=True),
    partial(decode.Problem, (150,), tokens_q=140, heads=1, kv_heads=1, widths=(192, 128)),
    partial(forward.Problem, 150, 200, heads=1, widths=(80, 80), dtype_of_keys=forward.FP8, scales="token"),
    partial(decode.Problem, (150, 3), tokens_q=70, heads=1, kv_heads=1, widths=(80, 80), factors="tokens"),
    partial(decode.Problem, (150, 3), 70, heads=1, kv_heads=1, widths=(64, 64), page_size=48),
    partial(decode.Problem, (150, 3), 70, heads=1, kv_heads=1, widths=(64, 64), page_size=48, dtype=decode.FP8),
]
DECODE = [
    partial(decode.Problem, (100, 0, 33), widths=(64, 64)),
    partial(decode.Problem, (70,), tokens_q=2, dtype=decode.FP8),
    partial(decode.Problem, (70,), widths=(256, 256), page_size=64),
    partial(decode.Problem, (70,), widths=(80, 80), softcap=2.0, sink=True),
    partial(decode.Problem, (70, 3), tokens_q=5, widths=(80, 80), factors="tokens"),
    partial(decode.Problem, (70, 3), tokens_q=2, widths=(64, 64), page_size=48),
]


def in_tiles(queries, problem, check=forward.Problem.run):
    def run():
        with replaced(forward.Tiles(queries)):
            check(problem())

    return run


RUNS = {
    "flash_attention": in_tiles(64, FORWARD[0]),
    "flash_attention-turns": in_tiles(256, FORWARD[1]),
    "flash_attention-turns-16": in_tiles(128, FORWARD[1]),
    "flash_attention-fp8": in_tiles(256, FORWARD[2]),
    "flash_attention-wide": in_tiles(128, FORWARD[3]),
    "flash_attention-narrow": in_tiles(256, FORWARD[4]),
    "flash_attention-pages": in_tiles(256, FORWARD[5], paged.check),
    "flash_attention-latent": in_tiles(256, FORWARD[6]),
    "flash_attention-latent-16": in_tiles(128, FORWARD[6]),
    "flash_attention-latent-pages": in_tiles(256, FORWARD[7], paged.check),
    "flash_attention-factors": in_tiles(256, FORWARD[8]),
    "flash_attention-pages-factors": in_tiles(128, FORWARD[9], paged.check),
    "flash_attention-odd-pages": in_tiles(256, FORWARD[10], paged.check),
    "flash_attention-fp8-odd-pages": in_tiles(256, FORWARD[11], paged.check),
    "decode": lambda: DECODE[0]().run(3),
    "decode-fp8": lambda: DECODE[1]().run(),
    "decode-wide": lambda: DECODE[2]().run(2),
    "decode-narrow": lambda: DECODE[3]().run(2),
    "decode-factors": lambda: DECODE[4]().run(2),
    "decode-odd-pages": lambda: DECODE[5]().run(2),
    "mla": lambda: mla.Latent((70, 0), tokens_q=2).run(2),
    "mla-odd-pages": lambda: mla.Latent((70, 0), tokens_q=2, page_size=3).run(2),
    "mla-shared": lambda: mla.Latent((270, 0, 130)).run(),
    "mla-fp8": lambda: mla_fp8.Problem("e4m3_656", (70, 0), tokens_q=2).run(2),
    "mla-fp8-queries": lambda: mla_fp8.Problem("e4m3_656", (70, 0), tokens_q=2, q_descale=0.1).run(2),
    "mla-fp8-16": lambda: mla_fp8.Problem("e4m3", (300, 0)).run(2),
    "sparse": lambda: sparse.Problem("e4m3_584", (90, 0, 33), 90).run(1),
    "sparse-two": lambda: sparse.Both(
        sparse.Problem("e4m3_656", (20, 0, 33)), sparse.Problem("e4m3_656", (90, 3, 0), 90, seed=1)
    ).run(1),
    "append": append.test_factors_of_heads,
    "append-factors": lambda: append.assert_appended_with_factors(torch.tensor([3, 20]), 3, (80, 128)),
    "mqa_logits": lambda: logits.Problem(20, 300, 32, 32).run(),
    "paged_mqa_logits": lambda: logits.Paged((100, 0, 1), 2, 32, 32).run(),
    "paged_mqa_logits_shuffled": lambda: logits.Paged((100, 0, 1), 2, 32, 32, shuffled=True).run(),
}
IN_DEFAULT_RUN = (
    "flash_attention-turns", "flash_attention-fp8", "flash_attention-pages-factors", "flash_attention-latent", "decode",
    "decode-factors", "mla-shared", "sparse-two", "append", "append-factors", "paged_mqa_logits",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in IN_DEFAULT_RUN else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_clean(monkeypatch, name):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    for seed in range(2):
        monkeypatch.setenv("DG_SIM_SEED", str(seed))
        RUNS[name]()

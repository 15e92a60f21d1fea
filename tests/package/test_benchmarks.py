"""The benchmark suite checks what it runs, and reports what it measured."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import re

import pytest
import torch
from helpers.default_run import some
from rich.console import Console
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.benchmarks import attention_problems, page, problems, report, row_problems, shapes, suite, tune
from deep_gemm_rocm.benchmarks.baselines import BASELINES, Baseline
from deep_gemm_rocm.benchmarks.measure import Sampling, Timing, time_calls
from deep_gemm_rocm.benchmarks.operations import OPERATIONS
from deep_gemm_rocm.benchmarks.problems import WrongResultError, kernel_names
from deep_gemm_rocm.benchmarks.shapes import AttentionShape, RowsShape, Shape
from deep_gemm_rocm.benchmarks.suite import Result
from deep_gemm_rocm.cli import UsageError
from deep_gemm_rocm.cli.tune import run as run_tune
from deep_gemm_rocm.heuristics import choose_dense
from deep_gemm_rocm.heuristics.gemm_problem import Choice
from deep_gemm_rocm.heuristics.gemm_table import TunedTable
from deep_gemm_rocm.heuristics.gemm_tiles import gemm_candidates, legal_configs
from deep_gemm_rocm.simulator import power
from deep_gemm_rocm.testing import attention_reference, visible_keys

DENSE = Shape(48, 128, 256)
GROUPED = Shape(48, 128, 256, 3)
ONCE = Sampling(1, 0, 0)


@pytest.fixture
def device():
    from deep_gemm_rocm.runtime import hip

    return hip.runtime().tensor_device


def assert_runs_and_is_checked(problem):
    with pytest.raises(WrongResultError, match="NaN"):
        problem.check()
    problem.run()
    assert problem.check() <= 1
    assert kernel_names(problem)
    problem.d.view(-1)[3] = 1e9
    with pytest.raises(WrongResultError, match="1 of"):
        problem.check()


@pytest.mark.parametrize("op", some(problems.OPERATIONS, 14))
def test_every_operation_runs_and_is_checked(op, device):
    assert_runs_and_is_checked(problems.make(op, GROUPED if "grouped" in op else DENSE, device).copy())


ATTENTION = {
    "mla_prefill": "2x70x130x4x2x192",
    "flash_attention_decode": "2x1x130x4x2x64",
    "flash_attention_decode_fp8_cache": "2x1x130x4x2x64",
    "mla_decode": "2x1x70x20x1x576",
}


@pytest.mark.parametrize(
    ("op", "text"), [("fp8_mqa_logits", "1x70x130x32x1x64"), ("fp8_paged_mqa_logits", "2x2x130x32x1x64")]
)
def test_logits_run_and_are_checked(op, text, device):
    operation = OPERATIONS[op]
    assert_runs_and_is_checked(operation.make(op, operation.parse(text), device).copy())
    for bad in ("1x70x130x32x2x64", "1x70x130x33x1x64"):
        with pytest.raises(ValueError, match=r"heads? of keys|must have"):
            operation.parse(bad)


@pytest.mark.parametrize("op", ["sparse_mla", "fp8_sparse_mla"])
def test_attention_to_chosen_tokens_runs_and_is_checked(op, device):
    operation = OPERATIONS[op]
    problem = operation.make(op, operation.parse("2x3x100x5x40"), device)
    assert problem.flops == 2 * 6 * 5 * 40 * (576 + 512)
    token_bytes = 1152 if op == "sparse_mla" else 656
    assert problem.bytes == 6 * (40 * (token_bytes + 4) + 5 * 2 * (576 + 512))
    assert_runs_and_is_checked(problem.copy())
    with pytest.raises(ValueError, match="at most all tokens"):
        operation.parse("2x3x100x5x101")


def test_a_selection_runs_and_is_checked(device):
    operation = OPERATIONS["top_k_per_row"]
    problem = operation.make("top_k_per_row", operation.parse("5x3000x70"), device).copy()
    assert problem.bytes == 5 * (3000 + 70) * 4
    with pytest.raises(WrongResultError, match="350 of 350 positions"):
        problem.check()
    problem.run()
    assert problem.check() == 0
    problem.d.view(-1)[3] += 1
    with pytest.raises(WrongResultError, match="1 of 350 positions"):
        problem.check()
    with pytest.raises(ValueError, match="2048"):
        operation.parse("5x3000x2049")
    with pytest.raises(ValueError, match="at most all columns"):
        operation.parse("5x100x101")


def test_experts_run_and_are_checked(device):
    operation = OPERATIONS["fused_moe"]
    shape = operation.parse("9x256x128x5x2")
    problem = operation.make("fused_moe", shape, device)
    assert problem.flops == 2 * 9 * 2 * (256 * 256 + 128 * 256)
    used = len(problem.ids.unique())
    assert problem.bytes == used * (3 * 256 * 128 + 6 * 4) + 9 * (256 + 2 * 4 + 2 * 256)
    assert_runs_and_is_checked(problem.copy())
    for bad in ("9x256x128x5x6", "9x250x128x5x2"):
        with pytest.raises(ValueError, match=r"at most all experts|multiple of"):
            operation.parse(bad)


@pytest.mark.parametrize(
    ("op", "bytes_of_weight"),
    [
        ("bf16_fused_moe", 2),
        ("fp8_fp4_fused_moe", 17 / 32),
        pytest.param("bf16_shuffled_fp4_fused_moe", 13 / 24, marks=pytest.mark.slow),  # rows of scales are padded
        pytest.param("bf16_int4_fused_moe", 9 / 16, marks=pytest.mark.slow),
    ],
)
def test_experts_of_other_types_run_and_are_checked(op, bytes_of_weight, device):
    operation = OPERATIONS[op]
    shape = operation.parse("9x320x160x5x2")
    problem = operation.make(op, shape, device)
    x_bytes = 320 + 3 * 4 if op.startswith("fp8") else 2 * 320
    assert problem.bytes == len(problem.ids.unique()) * 3 * 320 * 160 * bytes_of_weight + 9 * (x_bytes + 2 * 320)
    assert_runs_and_is_checked(problem.copy())
    with pytest.raises(ValueError, match="multiple of"):
        operation.parse("9x250x128x5x2")


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op.endswith("int4_fused_moe")])
def test_scales_of_int4_experts_lie_as_repack_int4_leaves_them(op):
    operation = OPERATIONS[op]
    problem = operation.make(op, operation.parse("5x256x128x6x2"), "cpu")
    assert all(weight[1].mT.is_contiguous() for weight in (problem.gate_up, problem.down))


@pytest.mark.parametrize("op", row_problems.OPERATIONS)
def test_rows_run_and_are_checked(op, device):
    operation = OPERATIONS[op]
    problem = operation.make(op, operation.parse("70x256" if op == "route_top_k" else "70x200"), device).copy()
    held = problem.bytes
    with pytest.raises(WrongResultError, match="NaN"):
        problem.check()
    problem.run()
    assert problem.check() <= 1
    assert kernel_names(problem)
    assert problem.bytes == held
    problem.results[1][0, 0] += 1
    with pytest.raises(WrongResultError, match="results are wrong"):
        problem.check()


def test_reports_tell_how_much_of_the_memorys_bandwidth_rows_use():
    """After 2.5 µs of a launch, all of 4.3 TB/s."""
    timing = Timing(6.0, 6.0, 6.0, sustained_us=6.5, joules=1e-3)
    result = suite.Result("per_token_cast_to_fp8", RowsShape(9, 512), suite.OURS, "cast", 0, 17_203_200, True, timing)
    assert result.tflops is result.tflops_per_watt is None
    assert result.share_of_bandwidth == pytest.approx(1)
    assert "of memory" in report.markdown_table([result])[0]
    assert "100%" in report.markdown_table([result])[2]
    assert report.line(result).endswith("2647 GB/s")
    assert dataclasses.replace(result, flops=1).share_of_bandwidth is None


@pytest.mark.parametrize("op", attention_problems.OPERATIONS)
def test_every_attention_runs_and_is_checked(op, device):
    operation = OPERATIONS[op]
    shape = operation.parse(ATTENTION.get(op.removeprefix("fp8_"), "2x70x130x4x2x64"))
    assert_runs_and_is_checked(operation.make(op, shape, device).copy())


@pytest.mark.parametrize("op", attention_problems.OPERATIONS)
def test_every_baseline_tells_whether_it_has_attention(op):
    shape = OPERATIONS[op].parse(ATTENTION.get(op.removeprefix("fp8_"), "2x128x128x4x2x64"))
    problem = OPERATIONS[op].make(op, shape, "meta")
    missing = {name: baseline.missing(problem) for name, baseline in BASELINES.items()}
    assert "fp8_cache" not in op or all(missing.values())


def test_kernels_over_an_fp8_cache_are_not_tuned():
    """They take the choices of those over a bf16 cache, whose rows of the table their times would replace."""
    with pytest.raises(UsageError, match="expected one of"):
        run_tune(Console(), ["flash_attention_fp8_cache"], ["1x128x128x2x1x64"], None, 1, False, "time")


def test_work_of_attention(device):
    shape = shapes.parse("2x3x8x4x2x64", AttentionShape)
    problem = OPERATIONS["flash_attention_causal"].make("flash_attention_causal", shape, device)
    assert problem.flops == 2 * 2 * 4 * (6 + 7 + 8) * (64 + 64)
    assert problem.bytes == 2 * 2 * 64 * (3 * 4 + 2 * 8 * 2 + 3 * 4)
    with pytest.raises(ValueError, match="BATCHxTOKENS_QxTOKENS_K"):
        shapes.parse("2x3x8x4x2", AttentionShape)
    with pytest.raises(ValueError, match=r"numbers below 2\*\*31, got '2x3x2147483648x4x2x64'"):
        shapes.parse("2x3x2147483648x4x2x64", AttentionShape)


@pytest.mark.slow
def test_suite_measures_attention_beside_triton():
    shape = shapes.parse("1x128x128x2x1x64", AttentionShape)
    ours, triton, rocblas = suite.run("flash_attention", shape, ["triton", "rocblas"], ONCE, lambda _: None)
    assert ours.how == "flash_attention_bf16_d64x64_q64_mfma16"
    assert ours.timing.median_us > 0
    assert (triton.timing is None) == (importlib.util.find_spec("triton") is None), triton.missing
    assert rocblas.missing == "it has no flash_attention"


def test_work_counts_what_groups_have(device):
    masked = problems.make("m_grouped_bf16_gemm_nt_masked", GROUPED, device)
    rows = sum(masked.group_sizes)
    assert masked.flops == 2 * rows * 128 * 256
    assert masked.bytes == 2 * (rows * 256 + 3 * 128 * 256 + rows * 128)
    dense = problems.make("fp8_gemm_nt", DENSE, device)
    assert (dense.flops, dense.bytes) == (2 * 48 * 128 * 256, 48 * 256 + 128 * 256 + 2 * 48 * 128)


def test_copies_rotate_and_keep_strides(device):
    problem = problems.make("fp8_gemm_nt", DENSE, device)
    copies = Sampling(iters=5, cold_iters=1, rotating_mb=1).copies(problem)
    assert len({copy.a[0].data_ptr() for copy in copies}) == 6
    assert copies[0].a[1].stride() == problem.a[1].stride()
    order = []
    calls = [lambda index=index: order.append(index) for index in range(3)]
    time_calls(calls, Sampling(iters=4, cold_iters=1, rotating_mb=0))
    assert order == [0, 1, 2, 0, 1]


def test_baselines_are_checked_and_the_fastest_candidate_counts(monkeypatch, device):
    def slow(problem):
        problem.run()
        problem.run()

    def wrong(problem):
        problem.run()
        problem.d[1, 2] = 1000

    def failing(problem):
        raise RuntimeError("too much LDS")

    ways = [("failing", failing), ("slow", slow), ("quick", problems.Problem.run)]
    monkeypatch.setitem(BASELINES, "good", Baseline(lambda _: "", lambda _: ways))
    monkeypatch.setitem(BASELINES, "wrong", Baseline(lambda _: "", lambda _: [("wrong", wrong)]))
    monkeypatch.setitem(BASELINES, "absent", Baseline(lambda _: "isn't installed", lambda _: []))
    results = list(suite.run("fp8_gemm_nt", DENSE, ["good", "wrong", "absent"], ONCE, lambda _: None))
    ours, good, wrong_one, absent = results
    assert ours.by == suite.OURS
    assert ours.how.startswith("gemm_nt_e4m3_blocks_bf16")
    assert good.how == "quick (best of 2)"
    assert good.timing.median_us == pytest.approx(ours.timing.median_us, rel=0.2)
    assert wrong_one.timing is None
    assert "WrongResultError" in wrong_one.missing
    assert absent.missing == "isn't installed"


@pytest.mark.parametrize(
    ("op", "dense_op"),
    [("m_grouped_fp8_gemm_nt_contiguous", "fp8_gemm_nt"), ("m_grouped_bf16_gemm_nt_masked", "bf16_gemm_nt")],
)
def test_dense_baseline_has_the_rows_of_all_groups(op, dense_op, device):
    grouped = problems.make(op, GROUPED, device)
    dense = BASELINES["dense"].instead(grouped)
    assert dense.flops == grouped.flops
    assert dense.d.shape == (sum(grouped.group_sizes), 128)
    ours, result = suite.run(op, GROUPED, ["dense"], ONCE, lambda _: None)
    assert (result.op, result.shape, result.flops) == (op, GROUPED, ours.flops)
    assert result.bytes == dense.bytes < ours.bytes
    assert result.how.startswith(f"{dense_op} {dense.shape}: gemm_nt_")
    assert 0 < result.error <= 1
    assert list(report.speedups([ours, result])) == ["dense"]


def test_dense_baseline_is_checked(monkeypatch):
    run = problems.Problem.run

    def wrong(problem):
        run(problem)
        if not problem.group_sizes:
            problem.d[1, 2] = 1000

    monkeypatch.setattr(problems.Problem, "run", wrong)
    ours, dense = suite.run("m_grouped_fp8_gemm_nt_masked", GROUPED, ["dense"], ONCE, lambda _: None)
    assert ours.timing
    assert dense.timing is None
    assert "WrongResultError" in dense.missing


@pytest.mark.parametrize("op", ["fp8_gemm_nt", "k_grouped_bf16_gemm_tn_contiguous"])
def test_only_groups_of_rows_have_a_dense_baseline(op, device):
    problem = problems.make(op, GROUPED if "grouped" in op else DENSE, device)
    assert BASELINES["dense"].missing(problem) == f"{op} has no groups of rows"


@pytest.mark.parametrize("op", ["fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked"])
def test_triton_computes_the_same(op, device):
    triton_gemm = pytest.importorskip("deep_gemm_rocm.benchmarks.triton_gemm")
    problem = problems.make(op, GROUPED if "grouped" in op else DENSE, device)
    assert len(set(triton_gemm.configurations(problem))) >= 8
    triton_gemm.run(problem, triton_gemm.Config(32, 64, 4, 2))
    assert problem.check() <= 1


@pytest.mark.parametrize("op", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_triton_splits_k(op, device):
    triton_gemm = pytest.importorskip("deep_gemm_rocm.benchmarks.triton_gemm")
    problem = problems.make(op, Shape(20, 130, 640), device)
    splits = {config.SPLIT_K for config in triton_gemm.configurations(problem)}
    assert splits == ({1, 2} if op.startswith("fp8") else {1, 2, 4})
    problem.d.fill_(torch.nan)
    triton_gemm.run(problem, triton_gemm.Config(32, 64, 4, 2, SPLIT_K=2))
    assert problem.check() <= 1
    large = problems.make(op, Shape(20, 130, 640), "meta")
    large = dataclasses.replace(large, shape=Shape(4096, 24576, 1536))
    assert {config.SPLIT_K for config in triton_gemm.configurations(large)} == {1}


def test_at_least_eight_triton_configurations(device):
    triton_gemm = pytest.importorskip("deep_gemm_rocm.benchmarks.triton_gemm")
    problem = problems.make("bf16_gemm_nt", DENSE, device)
    for m in (1, 64, 4096):
        configs = triton_gemm.configurations(dataclasses.replace(problem, shape=Shape(m, 128, 256)))
        assert len(set(configs)) >= 8


def test_command_writes_what_it_measured(tmp_path):
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "json", "markdown")}
    options = [f"--{name}={path}" for name, path in files.items()]
    arguments = ["bench", "--op=bf16_gemm_nt", "--shapes=16x128x256", "--baseline=rocblas", "--plot", str(tmp_path)]
    if not _has_matplotlib():
        arguments = arguments[:-2]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code == 0, result.output
    document = json.loads(files["json"].read_text())
    ours, rocblas = document["results"]
    assert document["header"]["times"] == "simulated"
    assert ours["timing"]["median_us"] > 0
    assert ours["error"] <= 1
    assert ours["simulated"] is True
    assert ours["tflops"] == pytest.approx(2 * 16 * 128 * 256 / ours["timing"]["sustained_us"] / 1e6)
    assert rocblas["timing"] is None
    assert "ROCBLAS_LIBRARY" in rocblas["missing"]
    rows = list(csv.DictReader(files["csv"].open()))
    assert [row["by"] for row in rows] == ["deep_gemm_rocm", "rocblas"]
    assert float(rows[0]["median_us"]) == ours["timing"]["median_us"]
    assert "µs, simulated" in files["markdown"].read_text()
    assert "simulated" in result.output
    if _has_matplotlib():
        assert (tmp_path / "bf16_gemm_nt.png").read_bytes().startswith(b"\x89PNG")


def test_tuning_keeps_the_best_and_goes_on_where_it_was(tmp_path):
    table = tmp_path / "table.csv"
    arguments = ["tune", f"--out={table}", "--count=2", "--shapes=16x128x256"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "(simulated, sustained)" in line]
    times = [float(line.split(": ")[1].split()[0]) for line in lines]
    assert len(times) == 2
    (row,) = TunedTable.read(table).rows.values()
    assert row.time_us == pytest.approx(min(times), rel=0.02)
    assert row.simulated
    assert (row.m, row.n, row.k) == (16, 128, 256)
    again = CliRunner().invoke(app, [*arguments[:-1], "--shapes=16x128x256,1x128x256"])
    assert again.output.count("is in the table") == 1
    assert len(TunedTable.read(table).rows) == 2


def test_tuning_passes_over_what_fails(monkeypatch, device):
    problem = problems.make("fp8_gemm_nt", DENSE, device)
    wanted = tune.asked_for(problem)
    assert (wanted.m, wanted.n, wanted.k) == DENSE[:3]
    first, second, *_ = tune.candidates(wanted, 3)
    assert first != second
    real = problems.Problem.run

    def run(self):
        real(self)
        if choose_dense(*wanted[:5]) == first:
            self.d[3, 4] = 1000.0

    monkeypatch.setattr(problems.Problem, "run", run)
    trials = []
    row = tune.tune(problem, 2, ONCE, trials.append)
    assert (row.config, row.splits) == second
    assert len([trial for trial in trials if trial.timing]) == 2


def test_tuning_for_energy_takes_what_needs_less_and_longer(device):
    wanted = tune.asked_for(problems.make("fp8_gemm_nt", DENSE, device))
    first, second, *_ = map(Choice, gemm_candidates(wanted.kind, wanted.max_block_m))
    trials = [tune.Trial(first, Timing(8, 8, 8, 9.0, 0.003)), tune.Trial(second, Timing(8, 8, 8, 10.0, 0.002))]
    assert [trial.choice for trial in tune.best_first(wanted, trials)] == [first, second]
    assert [trial.choice for trial in tune.best_first(wanted, trials, "energy")] == [second, first]


@pytest.mark.parametrize(("time_us", "wins"), [(10.1, True), (10.3, False)])
def test_tuning_takes_a_candidate_of_the_heuristic_where_others_save_little(time_us, wins, monkeypatch, device):
    problem = problems.make("fp8_gemm_nt", DENSE, device)
    wanted = tune.asked_for(problem)
    first, second, *_ = gemm_candidates(wanted.kind, wanted.max_block_m)
    other = next(config for config in legal_configs(wanted) if config not in gemm_candidates(wanted.kind))
    times = {Choice(first): 20.0, Choice(other): 10.0, Choice(second): time_us}

    def time_calls(calls, sampling, **_):
        taken = times[choose_dense(*wanted[:5])]
        return Timing(taken, taken, taken)

    monkeypatch.setattr(tune, "candidates", lambda wanted, count: list(times))
    monkeypatch.setattr(tune.measure, "time_calls", time_calls)
    monkeypatch.setattr(problems.Problem, "check", lambda self: 0.5)
    row = tune.tune(problem, len(times), ONCE, lambda trial: None)
    assert (row.config, row.time_us) == ((second, time_us) if wins else (other, 10.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes=16x128"], "MxNxK"),
        (["--shapes=16x0x128"], "MxNxK"),
        (["--op=gemm"], "fp8_gemm_nt"),
        (["--baseline=cublas"], "rocblas"),
        (["--chip=mi355x"], "mi325x"),
    ],
)
def test_command_says_what_it_knows(arguments, message):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 1
    assert message in result.output


def test_command_tells_times_of_other_chips(tmp_path):
    """Routing is limited by the vector ALUs, whose clock is lower on an MI308X."""
    microseconds = {}
    for chip in ("mi300x", "mi308x"):
        file = tmp_path / f"{chip}.json"
        arguments = [
            "--op=route_top_k",
            "--shapes=64x256",
            "--baseline=none",
            "--no-check",
            f"--json={file}",
        ]
        assert CliRunner().invoke(app, ["bench", f"--chip={chip}", *arguments]).exit_code == 0
        document = json.loads(file.read_text())
        assert document["header"]["times"] == ("simulated" if chip == "mi300x" else "simulated for MI308X")
        microseconds[chip] = document["results"][0]["timing"]["sustained_us"]
    assert microseconds["mi308x"] > 1.1 * microseconds["mi300x"]


def test_models_have_shapes():
    assert Shape(1, 10240, 8192) in shapes.of_model("llama-3-70b", "fp8_gemm_nt")
    assert shapes.parse("1x2x3x4", Shape) == Shape(1, 2, 3, 4)
    assert str(Shape(1, 2, 3)) == "1x2x3"


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (40, ["shape", "by"]),
        (80, ["shape", "by", "µs,\nsimulated,\nsustained", "interval", "TFLOPS", "MFMA"]),
        (1000, None),
    ],
)
def test_a_table_leaves_columns_out_where_it_has_no_room(width, headings):
    timing = Timing(10.0, 10.0, 10.0, 12.5, 1e-3, 0.5, "vector L1 83%")
    results = [Result("fp8_gemm_nt", Shape(128, 4096, 7168), suite.OURS, "", 10**9, 10**6, True, timing, 1.0)]
    table = report.table(results, "", width)
    console = Console(file=io.StringIO(), width=1000)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert all(cell in lines[-2] for cell in ("128x4096x7168", "deep_gemm_rocm"))
    if headings is None:
        assert len(table.columns) == len(report.markdown_table(results)[0].split("|")) - 2
    else:
        assert [column.header for column in table.columns] == headings


def test_summary_compares_equal_problems_by_regime():
    def result(by, shape, microseconds, flops):
        return Result("fp8_gemm_nt", shape, by, "", flops, 10**6, True, Timing(microseconds, 0, 0), 0.5)

    times = {  # ours, Triton's and AITER's
        (Shape(1, 2, 3), 10**6): (10.0, 20.0, 5.0),
        (Shape(4, 5, 6), 10**6): (10.0, 5.0, 40.0),
        (Shape(7, 8, 9), 5 * 10**8): (10.0, 30.0, 30.0),
        (Shape(10, 11, 12), 10**9): (10.0, 40.0, 20.0),
    }
    names = (suite.OURS, "triton", "aiter")
    results = [
        result(by, shape, time, flops)
        for (shape, flops), of in times.items()
        for by, time in zip(names, of, strict=True)
    ]
    assert report.speedups(results)["triton"]["fp8_gemm_nt 4x5x6"] == 0.5
    lines = report.summary(results)
    assert len(lines) == 9
    assert lines[0] == (
        "memory-bound: triton takes 1.00 times as long (geometric mean of 2, least 0.50, fp8_gemm_nt 4x5x6)"
    )
    means = [
        (*line.partition(" takes ")[0].split(": "), float(line.partition(" takes ")[2].split()[0])) for line in lines
    ]
    assert means == [
        ("memory-bound", "triton", 1.0), ("in between", "triton", 3.0), ("compute-bound", "triton", 4.0),
        ("memory-bound", "aiter", 1.41), ("in between", "aiter", 3.0), ("compute-bound", "aiter", 2.0),
        ("memory-bound", "the best baseline", 0.5), ("in between", "the best baseline", 3.0),
        ("compute-bound", "the best baseline", 2.0),
    ]  # fmt: skip
    only = [result for result in results if result.by != "aiter"]
    assert len(report.summary(only)) == 3


def test_a_baselines_returned_result_is_what_is_checked(monkeypatch, device):
    def returning(problem, change=0.0):
        right = problem.copy()
        right.run()
        right.d[1, 2] += change
        return right.d

    ways = {"right": returning, "wrong": lambda problem: returning(problem, 1000.0)}
    for name, way in ways.items():
        monkeypatch.setitem(BASELINES, name, Baseline(lambda _: "", lambda _, way=way: [("one", way)]))
    _, right, wrong = suite.run("fp8_gemm_nt", DENSE, ["right", "wrong"], ONCE, lambda _: None)
    assert right.timing
    assert right.error <= 1
    assert "1 of" in wrong.missing


def test_page_has_every_problem_and_its_picture(tmp_path):
    timing = Timing(10.0, 10.0, 10.0, 12.5, 0.0075, 0.5, "HBM 50%")
    results = [
        Result(op, shape, suite.OURS, "a_kernel", 10**9, 10**6, True, timing)
        for op, of_op in page.problems().items()
        for shape in of_op
    ]
    about = report.header(Sampling(1, 0, 0, check=False))
    beside = [
        Result(
            "fp8_gemm_nt",
            Shape(64, 7168, 2048),
            by,
            how,
            10**9,
            10**6,
            True,
            dataclasses.replace(timing, sustained_us=us),
        )
        for by, how, us in ((suite.OURS, "a_kernel", 8.0), ("aiter", "32x128, K in 2 parts (best of 11)", 16.0))
    ]
    layouts = [
        Result("fp8_gemm_nt", DENSE, by, "of_layouts", 10**9, 10**6, True, dataclasses.replace(timing, sustained_us=us))
        for by, us in ((suite.OURS, 8.0), ("row_scales", 10.0))
    ]
    four_bits = [
        Result(op, DENSE, suite.OURS, "of_four_bits", 10**9, 10**6, True, dataclasses.replace(timing, sustained_us=us))
        for op, us in zip(page.FOUR_BITS, (8.0, 10.0, 5.0, 16.0, 4.0, 2.0, 9.0, 3.0, 4.5, 6.0), strict=True)
    ]
    page.write(tmp_path / "page.md", results, beside, layouts, four_bits, about)
    text = (tmp_path / "page.md").read_text()
    interval = "{:.3g} to {:.3g}".format(*power.interval(12.5))
    assert f"| 4096x7168x2048 | 12.50 | {interval} | 80 | 80 | 7.5 | 0.133 | 10.00 | 50% | HBM 50% | a_kernel |" in text
    assert "| 4096x7168x2048 | 167.0 | 12.5 | 0.07 |" in text
    assert "| 64x7168x2048 | 16.0 | 32x128, K in 2 parts | 8.0 | 0.50 | 7.5 | 7.5 |" in text
    assert f"| fp8_gemm_nt | {DENSE} | 8.00 | 10.00 | +25.0% |" in text
    assert f"| {DENSE} | 8.00 | 10.00 (0.80) | 5.00 (1.60) | 16.00 (0.50) | 4.00 (2.00) | 2.00 (4.00) |" in text
    assert f"| {DENSE} | 9.00 | 3.00 (3.00) | 4.50 (2.00) | 6.00 (1.50) |" in text
    assert text.count("a_kernel") == len(results)
    if _has_matplotlib():
        page.draw(tmp_path / page.PICTURE, results)
        picture = (tmp_path / page.PICTURE).read_bytes()
        assert b"4096x7168x2048" in picture
        page.draw(tmp_path / page.PICTURE, results)
        assert (tmp_path / page.PICTURE).read_bytes() == picture


def test_command_writes_the_page(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(page, "problems", lambda: {"fp8_gemm_nt": (DENSE,)})
    monkeypatch.setattr(page, "PUBLISHED", {DENSE: 5.0})
    monkeypatch.setattr(page, "LAYOUTS_OF_SCALES", {"fp8_gemm_nt": (DENSE,)})
    monkeypatch.setattr(page, "FOUR_BITS", dict.fromkeys(page.FOUR_BITS, (DENSE,)))
    monkeypatch.setattr(page, "draw", lambda path, results: drawn.append(path))
    monkeypatch.setattr("deep_gemm_rocm.cli.bench._need_matplotlib", lambda option: None)
    monkeypatch.delenv("AITER_PATH", raising=False)
    result = CliRunner().invoke(app, ["bench", "--write-docs", str(tmp_path / "page.md")])
    assert result.exit_code == 0, result.output
    assert "without AITER's kernels" in result.output
    assert "| 48x128x256 | 5.0 |" in (tmp_path / "page.md").read_text()
    assert "| bf16 activations | bf16 | MXFP4 |" in (tmp_path / "page.md").read_text()
    assert drawn == [tmp_path / "speed.svg"]


def test_the_picture_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("deep_gemm_rocm.cli.bench.importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["bench", "--write-docs", str(tmp_path / "page.md")])
    assert result.exit_code == 1
    assert "--write-docs needs matplotlib" in result.output


def test_scales_by_rows_give_the_same_bits_from_other_strides():
    ours, by_rows = suite.run("fp8_gemm_nt", DENSE, ["row_scales"], ONCE, lambda _: None)
    assert by_rows.how == ours.how
    assert by_rows.error == ours.error
    assert by_rows.timing.microseconds > 0
    problem = problems.make("fp8_gemm_nt", DENSE, "cpu")
    other = BASELINES["row_scales"].instead(problem)
    assert other.a[1].is_contiguous()
    assert not problem.a[1].is_contiguous()
    assert BASELINES["row_scales"].missing(problems.make("bf16_gemm_nt", DENSE, "cpu"))


def test_unchecked_times_are_those_of_checked_runs():
    (checked,) = suite.run("fp8_gemm_nt", DENSE, [], ONCE, lambda _: None)
    (unchecked,) = suite.run("fp8_gemm_nt", DENSE, [], dataclasses.replace(ONCE, check=False), lambda _: None)
    assert unchecked.error is None
    assert unchecked.timing == checked.timing


def _has_matplotlib():
    return importlib.util.find_spec("matplotlib") is not None


@pytest.mark.parametrize("causal", [False, True])
def test_triton_attention_is_right(causal, device):
    triton_attention = pytest.importorskip("deep_gemm_rocm.benchmarks.triton_attention")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 256, heads, 64, generator=generator).bfloat16() for heads in (2, 1, 1))
    out = torch.full(q.shape, torch.nan).bfloat16().to(device)
    config = triton_attention.Config(128, 64, 4, 1, 2, 16)
    triton_attention.run(*(tensor.to(device) for tensor in (q, k, v)), out, causal, config)
    attention_reference(q, k, v, seen=visible_keys(256, 256, causal, None)).assert_accurate(out.cpu())


@pytest.mark.slow  # compiles two or three kernels for each
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("mla_prefill", "1x128x128x2x2x192"),
        ("mla_decode", "2x1x100x20x1x576"),
        ("flash_attention_decode", "2x1x100x8x2x64"),
        ("per_token_cast_to_fp8", "3x200"),
        ("silu_and_mul_cast_to_fp8", "3x200"),
        ("rms_norm_cast_to_fp8", "3x200"),
        ("route_top_k", "5x64"),
        ("fused_moe", "5x256x128x6x2"),
    ],
)
def test_triton_computes_what_is_between_gemms(op, shape, device):
    """The last candidate, which splits keys in the most parts or has the most warps."""
    pytest.importorskip("triton")
    operation = OPERATIONS[op]
    problem = operation.make(op, operation.parse(shape), device)
    *_, (_, run) = BASELINES["triton"].candidates(problem)
    run(problem)
    assert 0 <= problem.check() <= 1


def test_plots_have_plain_ticks_and_one_entry_for_each_library(tmp_path, monkeypatch):
    """Every shape has a line, but the legend names each library once."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    results = [
        Result("fp8_gemm_nt", Shape(m, n, 7168), by, "", 2 * m * n * 7168, m * n, True, Timing(time, 0, 0))
        for m in (64, 128, 4096) for n in (576, 2112, 4096) for by, time in ((suite.OURS, 9.0), ("triton", 12.0))
    ]  # fmt: skip
    report.plot(tmp_path, results, {"times": "simulated"})
    over_m, roofline = figures[0].axes
    assert len(over_m.lines) == 6
    assert [text.get_text() for text in over_m.get_legend().get_texts()] == [suite.OURS, "triton"]
    assert len(roofline.get_legend().get_texts()) == 3  # and the roof
    for axes in (over_m, roofline):
        low, high = axes.get_xlim()
        ticks = {text.get_text() for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high}
        assert len(ticks) >= 3
        assert all(re.fullmatch(r"[0-9,.]+", tick) for tick in ticks)

"""The command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from deep_gemm_rocm import jit, simulator
from deep_gemm_rocm.__main__ import app, bench
from deep_gemm_rocm.benchmarks.operations import OPERATIONS
from deep_gemm_rocm.cli import attention_demo, demo
from deep_gemm_rocm.jit import folders, toolchain
from deep_gemm_rocm.runtime import hip, session


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DG_DEVICE", "sim")
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def invoke_beside_others(monkeypatch):
    """The same with the kernel cache of other tests, for tests that say nothing about it."""
    monkeypatch.setenv("DG_DEVICE", "sim")
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(demo, "_N", 48)
    monkeypatch.setattr(demo, "_K", 256)
    monkeypatch.setattr(demo, "_MS", (16, 5))


def raises(error: Exception):
    def function(*_):
        raise error

    return function


def test_info_tells_what_is_in_use(invoke, tmp_path):
    result = invoke("info")
    assert result.exit_code == 0, result.output
    lines = {line[:15].strip(): line[15:] for line in result.output.splitlines()}
    assert "MI300X" in lines["device"]
    assert "simulated" in lines["device"]
    assert str(simulator.library_path()) in lines["HIP runtime"]
    assert "gfx942, 304 compute units" in lines["device 0"]
    assert toolchain.choose().version in lines["compiler used"]
    assert lines["kernel cache"] == f"{tmp_path / 'cache'} (0 kernels, 0.0 of 4096 MiB)"
    assert lines["torch"] == torch.__version__


def test_info_says_where_kernels_go_that_cannot_be_kept(invoke, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    output = invoke("info").output
    private = tmp_path / f"deep_gemm_rocm_cache-{os.geteuid()}"
    assert f"kernel cache   {tmp_path}/file/cache (0 kernels" in output
    assert "can't be read" not in output  # what isn't there can't be opened with chmod
    assert f"can't be written ({tmp_path}/file: Not a directory), so new kernels go to {private} (0 kernels" in output
    private.chmod(0o777)
    assert "so each process compiles its own kernels" in invoke("info").output


def test_info_says_that_kernels_cannot_be_loaded(invoke, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(folders, "is_noexec", lambda path: path == tmp_path / "cache")
    assert f"{tmp_path}/cache is mounted noexec" in invoke("info").output


def test_info_says_which_settings_are_wrong(invoke, tmp_path, monkeypatch):
    assert f"setting        DG_JIT_CACHE_DIR={tmp_path}/cache" in invoke("info").output
    wrong = {"DG_BATCH_INVARIANT": "7"}
    names = ("DG_TUNED_TABLE", "DG_TUNED_ATTENTION_TABLE", "DG_SIM_TIMING_CONSTANTS")
    for name in names:
        wrong[name] = str(tmp_path / name)
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with session.using(session.Session()):
        result = invoke("info")
    assert result.exit_code == 1
    assert "wrong          DG_BATCH_INVARIANT must be 0 or 1, got '7'" in result.output
    for name in names:
        assert re.search(rf"wrong .*{tmp_path}/{name}", result.output)


def test_info_says_what_to_install(invoke, monkeypatch):
    monkeypatch.setattr(toolchain.Hipcc, "find", lambda: None)
    monkeypatch.setattr(toolchain.Ziglang, "find", lambda: None)
    monkeypatch.setattr(hip, "runtime", raises(hip.NoDeviceError("no device; do this")))
    result = invoke("info")
    assert result.exit_code == 1
    assert "missing        no device; do this" in result.output
    assert "pip install ziglang" in result.output
    assert "kernel cache" in result.output  # the rest of the report is shown nevertheless


def test_demo_measures_and_checks(invoke, small, tmp_path):
    jit.forget()
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    assert "device: AMD Instinct MI300X (simulated)" in result.output
    assert f"compiler: {toolchain.choose().name}" in result.output
    assert "M=16: compiling, running" in result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["M=16", "M=5"]
    assert all(float(row[5]) <= 1 for row in rows)
    assert "as close to the exact result" in result.output
    assert os.environ["DG_JIT_CACHE_DIR"] == str(tmp_path / "cache")
    kept = [path.name for path in (tmp_path / "cache/kernels").iterdir()]
    assert kept
    assert all(name.startswith("cast") for name in kept), kept


@pytest.mark.slow
def test_demo_fails_on_a_wrong_result(invoke, small, monkeypatch):
    gemm_fp8 = demo.gemm_fp8

    def wrong(a, b):
        result = gemm_fp8(a, b)
        result[3, 4] += 1 + result[3, 4].abs()
        return result

    monkeypatch.setattr(demo, "gemm_fp8", wrong)
    result = invoke("demo")
    assert result.exit_code == 1
    assert "2 elements are outside their bound" in result.output  # one in each of the two results


def test_errors_are_told_without_a_traceback(invoke_beside_others, monkeypatch):
    monkeypatch.setattr(demo, "gemm_fp8", raises(jit.ToolchainError("nothing here [can] compile")))
    result = invoke_beside_others("demo")
    assert result.exit_code == 1
    assert "ToolchainError: nothing here [can] compile" in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DG_BATCH_INVARIANT", "yes", "SettingError: DG_BATCH_INVARIANT must be 0 or 1, got 'yes'"),
        ("DG_TUNED_TABLE", "/absent", "FileNotFoundError: [Errno 2] DG_TUNED_TABLE can't be read: No such file"),
        ("DG_TUNED_TABLE", __file__, f"TableError: {__file__}, line 1: expected the columns kind, m, n, k"),
    ],
)
def test_mistakes_in_the_environment_are_told_without_a_traceback(
    invoke_beside_others, small, monkeypatch, variable, value, message
):
    monkeypatch.setenv(variable, value)
    with session.using(session.Session()):  # which reads the environment anew
        result = invoke_beside_others("demo")
    assert result.exit_code == 1
    assert message in result.output
    assert isinstance(result.exception, SystemExit)


def words(output: str) -> str:
    return " ".join(output.replace("│", " ").split())


def test_bench_goes_on_after_a_shape_that_a_function_refuses(invoke_beside_others):
    options = "--op", "bf16_gemm_nt", "--baseline", "none", "--no-check"
    result = invoke_beside_others("bench", *options, "--shapes", "16x64x100,16x64x128")
    assert result.exit_code == 1
    assert "bf16_gemm_nt 16x64x100: K must be a multiple of 8, got 100" in result.output
    assert "bf16_gemm_nt 16x64x128 deep_gemm_rocm: " in result.output
    assert isinstance(result.exception, SystemExit)


def test_tune_names_what_a_function_refuses(invoke, tmp_path):
    table = tmp_path / "table.csv"
    result = invoke("tune", "--op", "bf16_gemm_nt", "--shapes", "16x64x100", "--out", str(table))
    assert result.exit_code == 1
    assert "K must be a multiple of 8, got 100" in result.output
    assert str(table) not in result.output
    assert not table.exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [(["bench"], "--csv"), (["bench"], "--json"), (["bench"], "--markdown"), (["bench"], "--write-docs"),
     (["tune"], "--out"), (["calibrate"], "--out"), (["sim", "profile", __file__], "--json"),
     (["sim", "profile", __file__], "--html"), (["sim", "profile", __file__], "--timeline")],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_before_measuring(invoke, tmp_path, command, option):
    result = invoke(*command, option, str(tmp_path / "absent" / "file"))
    assert result.exit_code == 2
    assert "there is no folder" in words(result.output)
    assert option in result.output
    result = invoke(*command, option, str(tmp_path))
    assert result.exit_code == 2
    assert "is a folder" in words(result.output)
    result = invoke(*command, option, "/proc/absent")  # where not even root may write
    assert result.exit_code == 2
    assert "can't be written" in words(result.output)


@pytest.mark.slow
def test_the_whole_demo_in_a_process_of_its_own(tmp_path):
    environment = os.environ | {"DG_JIT_CACHE_DIR": str(tmp_path), "DG_DEVICE": "sim"}
    done = subprocess.run(
        [sys.executable, "-m", "deep_gemm_rocm", "demo"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("simulated", "N=2112 K=7168", "│ M=128 │", "│  M=77 │", "as close to the exact result"):
        assert part in done.stdout


@pytest.fixture
def small_attention(monkeypatch):
    monkeypatch.setattr(attention_demo, "_HEADS", 4)
    monkeypatch.setattr(attention_demo, "_KV_HEADS", 1)
    monkeypatch.setattr(attention_demo, "_TOKENS", 150)
    monkeypatch.setattr(attention_demo, "_CONTEXTS", (130, 1))


@pytest.mark.slow
def test_attention_demo_measures_and_checks(invoke, small_attention):
    jit.forget()
    result = invoke("demo", "--attention")
    assert result.exit_code == 0, result.output
    assert "Attention of 4 heads of 128, 1 of keys and values, bf16" in result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["prefill", "decode"]
    assert all(float(row[5]) <= 1 for row in rows)
    assert "as close to the exact result" in result.output


@pytest.mark.parametrize(
    "function", [pytest.param("flash_attention", marks=pytest.mark.slow), "flash_attention_decode"]
)
def test_attention_demo_fails_on_a_wrong_result(invoke_beside_others, small_attention, monkeypatch, function):
    right = getattr(attention_demo, function)

    def wrong(*args, **options):
        out = right(*args, **options)
        out[0, 0, 1, 7] += 1
        return out

    monkeypatch.setattr(attention_demo, function, wrong)
    result = invoke_beside_others("demo", "--attention")
    assert result.exit_code == 1
    assert "1 elements are outside their bound" in result.output


@pytest.mark.slow
def test_the_whole_attention_demo_in_a_process_of_its_own(tmp_path):
    environment = os.environ | {"DG_JIT_CACHE_DIR": str(tmp_path), "DG_DEVICE": "sim"}
    command = [sys.executable, "-m", "deep_gemm_rocm", "demo", "--attention"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in (
        "simulated",
        "32 heads of 128, 8 of keys",
        "keys and values of 1024 tokens",
        "as close to the exact result",
    ):
        assert part in done.stdout


def test_info_refuses_a_cache_that_others_can_write(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(folder))
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 1
    assert "can be written by others" in result.output


def expanded(pattern: str) -> list[str]:
    """Names with a shell's braces."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    parts, _, after = rest.partition("}")
    return [before + part + end for part in parts.split(",") for end in expanded(after)]


def test_bench_names_its_functions():
    text = bench.__doc__.partition("Functions:")[2].partition(";")[0]
    patterns = re.findall(r"(?:[^\s,{}]|\{[^}]*\})+", text)
    assert sorted(name for pattern in patterns for name in expanded(pattern)) == sorted(OPERATIONS)

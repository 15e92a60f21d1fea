"""What the JIT tells while it works: the log, counters, and a line on a terminal."""

from __future__ import annotations

import logging
import os
import pty
import re
import sys
import time

import filelock
import pytest
from helpers.fake_compiler import SOURCE, Compiler
from helpers.forked import in_child, start_child

import deep_gemm_rocm as dg
from deep_gemm_rocm import logs
from deep_gemm_rocm.jit import CacheError, cache, folders, progress
from deep_gemm_rocm.jit.counters import Counters
from deep_gemm_rocm.jit.source import Source
from deep_gemm_rocm.runtime import session


@pytest.fixture(autouse=True)
def counters(caplog):
    """Counters that begin at zero."""
    caplog.set_level(logging.DEBUG, "deep_gemm_rocm")
    with session.using(session.current().derived(counters := Counters())):
        yield counters


def counted(counters: Counters) -> dict[str, float]:
    """The counters that aren't zero, without times."""
    return {name: value for name, value in counters.values().items() if value and "seconds" not in name}


def test_a_compile_and_a_hit_are_counted_and_logged(root, compiler, counters, caplog):
    for _ in range(3):
        artefact = cache.obtain(SOURCE, compiler)
    assert counted(counters) == {"compiles": 1, "cache_misses": 1, "cache_hits": 2}
    assert counters.values()["compile_seconds"] == artefact.compile_seconds > 0
    entry = artefact.library.parent
    said = [record.getMessage() for record in caplog.records if record.name == "deep_gemm_rocm.jit.cache"]
    assert said[0] == "compiling scale: none of this name is in the cache"
    assert re.fullmatch(r"compiled scale in \d\.\d\d s", said[1])
    assert said[2:] == [f"found {entry}"] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "2"}, "the compiler's version changed"),
        ({"version": "2", "name": "other"}, "the compiler's name and version changed"),
        ({}, "its source changed"),
    ],
)
def test_the_log_says_why_a_kernel_is_compiled(root, compiler, caplog, change, reason):
    cache.obtain(SOURCE, compiler)
    for name, value in change.items():
        setattr(compiler, name, value)
    cache.obtain(SOURCE if change else Source("scale", "int other;", {}), compiler)
    assert f"compiling scale: {reason}" in caplog.messages


def test_a_damaged_kernel_is_counted_and_logged(root, compiler, counters, caplog):
    entry = cache.obtain(SOURCE, compiler).library.parent
    (entry / "kernel.so").write_bytes(b"damaged")
    cache.obtain(SOURCE, compiler)
    assert counted(counters) == {"compiles": 2, "cache_misses": 2, "cache_refusals": 1}
    assert f"refused {entry}: its library isn't what was compiled" in caplog.messages
    assert "compiling scale: the one in the cache is refused" in caplog.messages


def test_a_kernel_that_is_evicted_meanwhile_is_not_refused(root, compiler, counters, monkeypatch):
    cache.obtain(SOURCE, compiler)
    why_unsafe = folders.why_unsafe

    def evict_before(path):
        if path.name.startswith("scale-"):
            monkeypatch.setattr(folders, "why_unsafe", why_unsafe)
            cache.evict(root, 0)
        return why_unsafe(path)

    monkeypatch.setattr(folders, "why_unsafe", evict_before)
    assert not cache.obtain(SOURCE, compiler).from_cache
    assert counted(counters) == {"compiles": 2, "cache_misses": 2, "cache_evictions": 1}


def test_an_unsafe_folder_is_counted_and_logged(root, compiler, counters, caplog):
    cache.obtain(SOURCE, compiler)
    root.chmod(0o777)
    with pytest.raises(CacheError) as refused:
        cache.obtain(SOURCE, compiler)
    assert counters.values()["cache_refusals"] == 1
    assert str(refused.value) in caplog.messages


def test_evictions_are_counted_and_logged(root, compiler, counters, caplog, monkeypatch):
    old = cache.obtain(SOURCE, compiler).library.parent
    monkeypatch.setattr(cache, "max_bytes", lambda: 1)
    cache.obtain(Source("new", "", {}), compiler)
    assert counters.values()["cache_evictions"] == 1
    assert any(message.startswith(f"evicted {old}, ") for message in caplog.messages)


def test_a_wait_for_another_process_is_counted_and_logged(root, compiler, counters, caplog):
    child = start_child(cache.obtain, SOURCE, Compiler(compiler.log, seconds=0.5))
    deadline = time.monotonic() + 30
    while compiler.builds == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cache.obtain(SOURCE, compiler).from_cache
    child.join()
    assert counted(counters) == {"cache_misses": 1, "lock_waits": 1}
    assert counters.values()["lock_seconds"] > 0
    entry = next(root.glob("kernels/scale-*"))
    assert f"waiting for another process to compile {entry.name}" in caplog.messages


def test_a_wait_in_vain_is_counted(root, compiler, counters, monkeypatch):
    entry = cache.obtain(SOURCE, compiler).library.parent
    (entry / "kernel.so").write_bytes(b"damaged")
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.05)
    with filelock.FileLock(root / "locks" / f"{entry.name}.lock"):
        cache.obtain(SOURCE, compiler)
    assert counters.values()["lock_waits"] == 1
    assert counters.values()["lock_seconds"] >= 0.05


def test_stats_have_all_counters(root, compiler):
    before = dg.stats()
    cache.obtain(SOURCE, compiler)
    after = dg.stats()
    assert before.keys() == after.keys()
    assert all(type(value) in (int, float) for value in after.values())
    assert after["compiles"] == before["compiles"] + 1
    described = dg.stats.__doc__
    assert all(f"``{name}``" in described for name in after)


# ---- loggers


@pytest.fixture
def clean_loggers():
    """The package's loggers as they are before the package is imported."""
    loggers = [
        logging.getLogger(name) for name in ("deep_gemm_rocm", "deep_gemm_rocm.jit", "deep_gemm_rocm.heuristics")
    ]
    before = [(logger.handlers, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers = []
        logger.setLevel(logging.NOTSET)
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers = handlers
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("DG_JIT_DEBUG", "1", {"jit.cache"}),
        ("DG_PRINT_CONFIGS", "1", {"heuristics.gemm_choice"}),
        ("DG_JIT_DEBUG", "0", set()),
        ("DG_PRINT_CONFIGS", "", set()),
    ],
)
def test_deepgemms_variables_show_the_log_on_stderr(clean_loggers, monkeypatch, capsys, variable, value, shown):
    monkeypatch.setenv(variable, value)
    logs.set_up()
    for name in ("jit.cache", "heuristics.gemm_choice"):
        logging.getLogger(f"deep_gemm_rocm.{name}").debug("a message")
    lines = capsys.readouterr().err.splitlines()
    assert {line.split()[2] for line in lines} == {f"deep_gemm_rocm.{name}:" for name in shown}
    assert all(line.endswith(": a message") for line in lines)


def test_nothing_is_printed_unless_asked_for(clean_loggers, monkeypatch, capsys):
    monkeypatch.delenv("DG_JIT_DEBUG", raising=False)
    monkeypatch.delenv("DG_PRINT_CONFIGS", raising=False)
    logs.set_up()
    logging.getLogger("deep_gemm_rocm.jit.cache").error("a message")
    assert capsys.readouterr().err == ""


# ---- the line on a terminal


def on_terminal(seconds: float) -> str:
    """All that a terminal gets while something takes ``seconds``."""
    terminal, stderr = pty.openpty()

    def work():
        os.dup2(stderr, 2)
        with open(2, "w", encoding="utf-8", closefd=False) as sys.stderr:
            sys.__stderr__ = sys.stderr
            with progress.shown("compiling scale"):
                time.sleep(seconds)

    in_child(work)
    os.close(stderr)
    text = b""
    while True:
        try:
            text += os.read(terminal, 4096)
        except OSError:  # all was read
            os.close(terminal)
            return text.decode()


def test_a_long_compile_shows_a_line_that_goes_away(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.05)
    text = on_terminal(0.5)
    assert "compiling scale" in text
    assert "\x1b[2K" in text[text.rindex("compiling scale") :]  # the line is erased
    assert "\n" not in text[text.rindex("\x1b[2K") :]


def test_a_short_compile_shows_nothing():
    assert on_terminal(0.0) == ""


def test_a_file_gets_no_line(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.0)
    with open(tmp_path / "stderr", "w+", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setattr(sys, "__stderr__", file)
        with progress.shown("compiling scale"):
            time.sleep(0.05)
        file.seek(0)
        assert file.read() == ""

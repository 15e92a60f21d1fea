"""The kernel cache: concurrent processes, crashes, damage, and unusable or unsafe folders."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import signal
import tarfile
import time
from pathlib import Path

import filelock
import pytest
from helpers.fake_compiler import LIBRARY, SOURCE, Compiler, whole
from helpers.forked import in_children, start_child
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.jit import CacheError, CompileError, cache, folders, maintenance
from deep_gemm_rocm.jit.source import Source


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("kernels/*"))


def test_a_second_call_compiles_nothing(root, compiler):
    first = cache.obtain(SOURCE, compiler)
    second = cache.obtain(SOURCE, compiler)
    assert (first.from_cache, second.from_cache, compiler.builds) == (False, True, 1)
    assert first.library == second.library
    assert first.compile_seconds == second.compile_seconds
    assert whole(second)


def test_an_entry_holds_the_source_it_was_compiled_from(root, compiler):
    entry = cache.obtain(SOURCE, compiler).library.parent
    assert (entry / "kernel.hip").read_text() == SOURCE.kernel
    assert (entry / "include" / "a.h").read_text() == SOURCE.headers["a.h"]


@pytest.mark.parametrize(
    "source",
    [
        Source("scale", SOURCE.kernel + " ", SOURCE.headers),
        Source("scale", SOURCE.kernel, {"a.h": "int b;\n"}),
        Source("scale", SOURCE.kernel, {"b.h": "int a;\n"}),
        Source("scale", SOURCE.kernel, {}),
    ],
    ids=["kernel", "header", "header's name", "header left out"],
)
def test_every_text_is_part_of_the_key(root, compiler, source):
    cache.obtain(SOURCE, compiler)
    assert not cache.obtain(source, compiler).from_cache
    assert len(entries(root)) == 2


def test_the_toolchain_is_part_of_the_key(root, compiler):
    cache.obtain(SOURCE, compiler)
    compiler.version = "2"
    assert not cache.obtain(SOURCE, compiler).from_cache
    compiler.version = "1"
    assert cache.obtain(SOURCE, compiler).from_cache


def test_the_folder_is_read_on_every_call(tmp_path, monkeypatch, compiler):
    for name in ("one", "two"):
        monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / name))
        assert cache.obtain(SOURCE, compiler).library.is_relative_to(tmp_path / name)
    monkeypatch.delenv("DG_JIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders.folder() == tmp_path / "xdg" / "deep_gemm_rocm"


def test_many_processes_compile_once(root, tmp_path):
    slow = Compiler(tmp_path / "log", seconds=0.3)
    found = in_children(16, lambda: (whole(artefact := cache.obtain(SOURCE, slow)), artefact.from_cache))
    assert slow.builds == 1
    assert all(good for good, _ in found)
    assert sum(from_cache for _, from_cache in found) == 15


def test_a_killed_compile_leaves_the_cache_usable(root, tmp_path, compiler):
    child = start_child(cache.obtain, SOURCE, Compiler(compiler.log, seconds=60))
    deadline = time.monotonic() + 30
    while compiler.builds == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    start = time.monotonic()
    assert whole(cache.obtain(SOURCE, compiler))
    assert time.monotonic() - start < 30  # the dead process's lock is free
    assert compiler.builds == 2


def test_a_process_killed_while_publishing_leaves_no_entry(root, compiler):
    def die_in_the_middle():
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        cache.obtain(SOURCE, compiler)

    child = start_child(die_in_the_middle)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    (leftover,) = entries(root)
    assert leftover.name.startswith(".")
    assert whole(cache.obtain(SOURCE, compiler))
    (entry,) = entries(root)
    assert not entry.name.startswith(".")


def test_an_interrupted_compile_cleans_up(root, tmp_path, monkeypatch, compiler):
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.obtain(SOURCE, compiler)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert entries(root) == []


def test_a_failed_compile_keeps_its_source_and_no_entry(root, monkeypatch, compiler):
    def failing(folder: Path) -> None:
        raise CompileError(["cc", "-O3"], folder / "kernel.hip", "error: no")

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "build", failing)
        with pytest.raises(CompileError) as failed:
            cache.obtain(SOURCE, compiler)
    assert failed.value.source.read_text() == SOURCE.kernel
    assert entries(root) == []
    assert whole(cache.obtain(SOURCE, compiler))


def damaged(name: str):
    def truncate(entry):
        os.truncate(entry / "kernel.so", 100)

    def flip(entry):
        library = bytearray((entry / "kernel.so").read_bytes())
        library[1234] ^= 1
        (entry / "kernel.so").write_bytes(library)

    def empty(entry):
        os.truncate(entry / "kernel.so", 0)

    def lose_library(entry):
        (entry / "kernel.so").unlink()

    def lose_manifest(entry):
        (entry / "manifest.json").unlink()

    def truncate_manifest(entry):
        os.truncate(entry / "manifest.json", 10)

    def empty_manifest(entry):
        (entry / "manifest.json").write_text("")

    def strange_manifest(entry):
        (entry / "manifest.json").write_text(json.dumps(["sha256"]))

    def binary_manifest(entry):
        (entry / "manifest.json").write_bytes(b"\xff\xfe\x00")

    return locals()[name]


@pytest.mark.parametrize(
    "damage",
    [
        *("truncate", "flip", "empty", "lose_library", "lose_manifest"),
        *("truncate_manifest", "empty_manifest", "strange_manifest", "binary_manifest"),
    ],
)
def test_a_damaged_entry_is_set_aside_and_rebuilt(root, compiler, damage):
    entry = cache.obtain(SOURCE, compiler).library.parent
    damaged(damage)(entry)
    rebuilt = cache.obtain(SOURCE, compiler)
    assert (rebuilt.from_cache, compiler.builds) == (False, 2)
    assert whole(rebuilt)
    assert (root / "quarantine" / entry.name).is_dir()
    assert cache.obtain(SOURCE, compiler).from_cache


def test_an_entry_damaged_twice_is_rebuilt_twice(root, compiler):
    for _ in range(2):
        damaged("flip")(cache.obtain(SOURCE, compiler).library.parent)
        assert whole(cache.obtain(SOURCE, compiler))
    assert compiler.builds == 3


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "step", ["os.fsync", "shutil.copyfile", "shutil.copystat", "pathlib.Path.write_text", "pathlib.Path.rename"]
)
def test_a_full_disk_costs_a_warning(root, compiler, monkeypatch, step):
    """The disk may be full at any step of storing the compiled kernel."""

    def build(folder: Path) -> None:
        Compiler.build(compiler, folder)
        patch.setattr(step, no_space)

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "build", build)
        with pytest.warns(RuntimeWarning, match="No space left") as told:
            unkept = cache.obtain(SOURCE, compiler)
    assert str(told[0].message).count("No space left") == 1  # not once for each header
    assert whole(unkept)
    assert entries(root) == []
    assert whole(cache.obtain(SOURCE, compiler))
    assert len(entries(root)) == 1


def test_a_full_disk_for_scratch_files_is_an_error_that_says_so(root, compiler, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", no_space)
        with pytest.raises(CacheError, match=r"no room to compile in the temporary folder.*No space left.*TMPDIR"):
            cache.obtain(SOURCE, compiler)
    assert compiler.builds == 0
    assert whole(cache.obtain(SOURCE, compiler))


def test_a_lock_that_is_never_released_costs_time_only(root, compiler, monkeypatch):
    entry = cache.obtain(SOURCE, compiler).library.parent
    damaged("empty")(entry)
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.1)
    with filelock.FileLock(root / "locks" / f"{entry.name}.lock"):
        assert whole(cache.obtain(SOURCE, compiler))


def test_an_entry_that_appears_meanwhile_wins(root, tmp_path, monkeypatch, compiler):
    class Overtaken(Compiler):
        def build(self, folder: Path) -> None:
            cache.obtain(SOURCE, compiler)
            super().build(folder)

    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.1)
    assert cache.obtain(SOURCE, Overtaken(tmp_path / "other")).from_cache
    assert len(entries(root)) == 1


# ---- size


SOURCES = [Source(f"kernel{index}", "", {}) for index in range(6)]


@pytest.fixture
def six_kernels(root, compiler):
    """Makes entries of SOURCES, last used in this order, a minute apart."""
    for minutes, source in enumerate(SOURCES):
        age(cache.obtain(source, compiler).library.parent, minutes * 60)
    return root


def age(entry: Path, seconds_since_epoch: float) -> None:
    os.utime(entry / "manifest.json", (seconds_since_epoch, seconds_since_epoch))


def names(found: list[cache.Entry]) -> list[str]:
    return [entry.path.name.partition("-")[0] for entry in found]


def test_entries_are_listed_by_their_last_use(six_kernels, compiler):
    cache.obtain(SOURCES[1], compiler)
    found = cache.entries(six_kernels)
    assert names(found) == ["kernel0", "kernel2", "kernel3", "kernel4", "kernel5", "kernel1"]
    assert all(len(LIBRARY) <= entry.bytes < len(LIBRARY) + 2000 for entry in found)
    assert found[1].last_used == 120
    assert found[-1].last_used == pytest.approx(time.time(), abs=60)


def test_sizes_are_noted_once(six_kernels, monkeypatch):
    """A large cache has too many files to ask for all their sizes after each compile."""
    found = cache.entries(six_kernels)
    with monkeypatch.context() as patched:
        patched.setattr(cache, "_bytes_of_files", lambda _: pytest.fail("files were looked at"))
        assert cache.entries(six_kernels) == found
    for entry in found:
        (entry.path / "manifest.json").write_text("{}")
    assert all(0 <= now.bytes - then.bytes < 20 for now, then in zip(cache.entries(six_kernels), found, strict=True))


def test_what_was_not_used_for_longest_is_evicted(six_kernels, compiler, monkeypatch):
    monkeypatch.setattr(cache, "max_bytes", lambda: 4 * 20_000)
    cache.obtain(SOURCES[0], compiler)  # used again, so it stays
    assert len(cache.entries(six_kernels)) == 6  # nothing was added
    new = cache.obtain(Source("new", "", {}), compiler)
    assert whole(new)
    assert names(cache.entries(six_kernels)) == ["kernel4", "kernel5", "kernel0", "new"]
    assert not list(six_kernels.glob("kernels/.*"))
    assert not cache.obtain(SOURCES[1], compiler).from_cache


def test_the_kernel_that_is_asked_for_is_never_evicted(six_kernels, compiler, monkeypatch):
    monkeypatch.setattr(cache, "max_bytes", lambda: 1)
    new = cache.obtain(Source("new", "", {}), compiler)
    assert whole(new)
    assert names(cache.entries(six_kernels)) == ["new"]


def test_the_size_is_read_on_every_call(root, compiler, monkeypatch):
    assert cache.max_bytes() == 4096 * 2**20
    monkeypatch.setenv("DG_JIT_CACHE_MAX_MIB", "3")
    assert cache.max_bytes() == 3 * 2**20
    for wrong in ("0", "-1", "2 GiB", "1.5"):
        monkeypatch.setenv("DG_JIT_CACHE_MAX_MIB", wrong)
        with pytest.raises(
            CacheError, match=f"DG_JIT_CACHE_MAX_MIB must be a positive whole number of MiB, got '{wrong}'"
        ):
            cache.obtain(SOURCE, compiler)
    assert compiler.builds == 0


def test_processes_that_evict_each_others_kernels_all_succeed(root, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "max_bytes", lambda: 2 * 20_000)

    def use_all():
        return all(whole_or_gone(cache.obtain(source, Compiler(tmp_path / "log"))) for source in SOURCES * 4)

    def whole_or_gone(artefact):
        try:
            return whole(artefact)
        except FileNotFoundError:  # evicted in the meantime; loading would ask for it again
            return True

    assert all(in_children(4, use_all))
    assert len(cache.entries(root)) <= 6
    assert maintenance.verify(root).damaged == []


@pytest.mark.parametrize("offset", [-1e9, 1e9], ids=["past", "future"])
def test_clocks_that_are_wrong_cost_nothing_but_the_order(root, compiler, monkeypatch, offset):
    """The wrong clock may be that of this machine, or of another one that shares the folder."""
    entry = cache.obtain(SOURCE, compiler).library.parent
    age(entry, time.time() + offset)
    assert cache.obtain(SOURCE, compiler).from_cache
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + offset)
    assert whole(cache.obtain(Source("other", "", {}), compiler))
    assert maintenance.prune(root, 2**20) == []
    assert len(maintenance.verify(root).whole) == 2


# ---- maintenance


def test_verify_sets_damage_aside(six_kernels):
    for index, damage in enumerate(("flip", "lose_library", "lose_manifest")):
        damaged(damage)(next(six_kernels.glob(f"kernels/kernel{index}-*")))
    found = maintenance.verify(six_kernels)
    assert names(found.whole) == ["kernel3", "kernel4", "kernel5"]
    assert sorted(names(found.damaged)) == ["kernel0", "kernel1", "kernel2"]
    assert len(list((six_kernels / "quarantine").iterdir())) == 3
    assert maintenance.verify(six_kernels).damaged == []


def test_prune_removes_what_killed_processes_left(root, tmp_path, monkeypatch, compiler):
    monkeypatch.setattr(compiler, "build", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    start_child(cache.obtain, SOURCE, compiler).join()
    (scratch,) = (tmp_path / "scratch").iterdir()
    (lock,) = root.glob("locks/*")
    (others := tmp_path / "scratch" / "others").mkdir()
    maintenance.prune(root, 0)
    assert scratch.exists()
    assert lock.exists()
    for path in (scratch, lock, others):
        os.utime(path, (0, 0))
    maintenance.prune(root, 0)
    assert not scratch.exists()
    assert not lock.exists()
    assert others.exists()


def test_prune_removes_what_nobody_needs(six_kernels):
    damaged("flip")(next(six_kernels.glob("kernels/kernel5-*")))
    maintenance.verify(six_kernels)
    for name, seconds in (("abandoned", 7200), ("being filled", 60)):
        (leftover := six_kernels / "kernels" / f".{name}").mkdir()
        os.utime(leftover, (time.time() - seconds,) * 2)
    assert names(maintenance.prune(six_kernels, 3 * 20_000)) == ["kernel0", "kernel1"]
    assert names(cache.entries(six_kernels)) == ["kernel2", "kernel3", "kernel4"]
    assert not (six_kernels / "quarantine").exists()
    assert [path.name for path in six_kernels.glob("kernels/.*")] == [".being filled"]


def test_a_cache_is_shipped(six_kernels, tmp_path, monkeypatch, compiler):
    damaged("flip")(next(six_kernels.glob("kernels/kernel0-*")))
    assert maintenance.export(six_kernels, tmp_path / "kernels.tar.gz") == 5
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "there"))
    cache.obtain(SOURCES[1], compiler)
    assert maintenance.import_from(tmp_path / "there", tmp_path / "kernels.tar.gz") == (4, 5)
    assert maintenance.import_from(tmp_path / "there", tmp_path / "kernels.tar.gz") == (0, 5)
    builds = compiler.builds
    assert all(cache.obtain(source, compiler).from_cache for source in SOURCES[1:])
    assert compiler.builds == builds
    entry = cache.obtain(SOURCES[5], compiler).library.parent
    assert (entry / "kernel.hip").read_text() == SOURCES[5].kernel
    assert (entry.stat().st_mode & 0o777, (entry / "kernel.so").stat().st_mode & 0o777) == (0o755, 0o644)


def test_an_export_that_fails_leaves_an_earlier_one(root, tmp_path, compiler, monkeypatch):
    cache.obtain(SOURCE, compiler)
    file = tmp_path / "kernels.tar.gz"
    file.write_bytes(b"an earlier one")
    monkeypatch.setattr("tarfile.TarFile.add", no_space)
    with pytest.raises(OSError, match="No space left"):
        maintenance.export(root, file)
    assert file.read_bytes() == b"an earlier one"
    assert not list(tmp_path.glob("*.new"))


def test_headers_are_shipped_too(root, tmp_path, compiler):
    entry = cache.obtain(SOURCE, compiler).library.parent
    maintenance.export(root, tmp_path / "kernels.tar.gz")
    maintenance.import_from(tmp_path / "there", tmp_path / "kernels.tar.gz")
    there = tmp_path / "there" / "kernels" / entry.name
    assert (there / "include" / "a.h").read_text() == SOURCE.headers["a.h"]


def test_what_was_damaged_on_its_way_is_not_imported(root, tmp_path, compiler):
    cache.obtain(SOURCE, compiler)
    file = tmp_path / "kernels.tar.gz"
    maintenance.export(root, file)
    good = file.read_bytes()
    for bad in (good[:100], good[: len(good) // 2], b"", b"nonsense", flipped(good)):
        file.write_bytes(bad)
        with pytest.raises(CacheError, match=r"damaged|no file that"):
            maintenance.import_from(tmp_path / "there", file)
        assert cache.entries(tmp_path / "there") == []
        assert not list((tmp_path / "there").glob("kernels/.*"))


def flipped(archive: bytes) -> bytes:
    """The archive with a flipped bit in the library, and correct checksums of its own."""
    unpacked = bytearray(gzip.decompress(archive))
    unpacked[unpacked.index(LIBRARY[:200]) + 100] ^= 1
    return gzip.compress(bytes(unpacked))


@pytest.mark.parametrize(
    "name", ["../kernel-{0}/kernel.so", "/tmp/x", "kernel-{0}/../../x", "kernel-{0}/include/../../x", "kernel-{0}/evil"]
)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_an_archive_writes_nothing_but_kernels(root, tmp_path, name, kind):
    member = tarfile.TarInfo(name.format("0" * 40))
    member.type, member.size, member.linkname = kind, 1 if kind == tarfile.REGTYPE else 0, "/etc/passwd"
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(CacheError, match="no part of a kernel cache"):
        maintenance.import_from(root, tmp_path / "bad.tar.gz")
    assert not list(root.rglob("*"))


# ---- the commands


def command(*arguments: str):
    return CliRunner().invoke(app, ["cache", *arguments])


def test_commands(six_kernels, tmp_path, monkeypatch):
    listed = command("list")
    assert listed.exit_code == 0
    assert "6 kernels (0.1 MiB)" in listed.output
    assert "may grow to 4096 MiB" in listed.output
    assert "fake" in listed.output
    assert "1970-01-01" in listed.output
    assert "6 kernels in" in command("export", str(tmp_path / "kernels.tar.gz")).output
    damaged("flip")(next(six_kernels.glob("kernels/kernel0-*")))
    assert "damaged" in command("list").output
    verified = command("verify")
    assert verified.exit_code == 1
    assert "5 kernels (0.1 MiB) whole, 1 damaged" in verified.output
    assert "1 of 6 kernels were new" in command("import", str(tmp_path / "kernels.tar.gz")).output
    verified = command("verify")
    assert (verified.exit_code, "0 damaged" in verified.output) == (0, True)
    pruned = command("prune", "--max-mib", "0")
    assert "removed 6 kernels (0.1 MiB), 0 kernels (0.0 MiB) left" in pruned.output
    assert "0 kernels" in command("list").output


def test_commands_refuse_a_folder_of_others(six_kernels):
    six_kernels.chmod(0o777)
    for arguments in (("list",), ("verify",), ("prune",), ("export", "x.tar.gz")):
        result = command(*arguments)
        assert result.exit_code == 1
        assert "CacheError: the kernel cache folder" in result.output


@pytest.mark.parametrize("arguments", [("list",), ("verify",), ("prune",), ("export", "x.tar.gz")])
def test_no_command_takes_a_file_for_the_cache(tmp_path, monkeypatch, arguments):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "file"))
    refused = command(*arguments)
    assert refused.exit_code == 1
    assert f"{tmp_path}/file is a file: set DG_JIT_CACHE_DIR to a folder" in refused.output

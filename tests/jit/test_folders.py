"""The cache's folder: who may read and write it, and what takes its place."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import platformdirs
import pytest
from helpers.fake_compiler import SOURCE, whole
from helpers.forked import in_child

from deep_gemm_rocm.jit import CacheError, cache, folders, maintenance
from deep_gemm_rocm.jit.source import Source

NOBODY = 65534
OTHER = Source("other", "", {})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def open_parents(tmp_path):
    """Others may get at the test's folders."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    (tmp_path / "scratch").chmod(0o1777)


def modes(root: Path) -> set[str]:
    """Kinds and modes of all that is in a cache."""
    return {f"{'d' if path.is_dir() else 'f'}{path.stat().st_mode & 0o777:o}" for path in root.rglob("*")}


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o755), (0o022, 0o755), (0o027, 0o750), (0o077, 0o700)])
def test_the_umask_only_decides_who_may_enter(root, compiler, umask, mask, mode):
    """Root builds a cache in an image, and others read it. A umask may close it, but not open it for writing."""
    umask(mask)
    entry = cache.obtain(SOURCE, compiler).library.parent
    maintenance.export(root, root.parent / "kernels.tar.gz")
    cache.obtain(Source("damaged", "", {}), compiler).library.write_bytes(b"")
    maintenance.verify(root)
    maintenance.import_from(root.parent / "new" / "there", root.parent / "kernels.tar.gz")
    assert modes(root) == {"d755", "f644"}
    assert modes(root.parent / "new" / "there") == {"d755", "f644"}
    for folder in (root, root.parent / "new", root.parent / "new" / "there"):
        assert folder.stat().st_mode & 0o777 == mode
    assert cache.read(entry)


@needs_root
def test_what_root_built_is_read_by_others(root, tmp_path, compiler, open_parents, caplog):
    """As it is, without any chmod. New kernels go to the user's own folder, from where the next process has them."""
    cache.obtain(SOURCE, compiler)
    compiler.log.chmod(0o666)

    def as_nobody():
        os.setuid(NOBODY)
        found = [cache.obtain(source, compiler) for source in (SOURCE, OTHER, OTHER, Source("third", "", {}))]
        warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        return [(artefact.from_cache, whole(artefact), artefact.library) for artefact in found], warned

    found, warned = in_child(as_nobody)
    private = tmp_path / "scratch" / f"deep_gemm_rocm_cache-{NOBODY}"
    assert [(from_cache, good) for from_cache, good, _ in found] == [
        (True, True),
        (False, True),
        (True, True),
        (False, True),
    ]
    assert found[0][2].is_relative_to(root)
    assert all(library.is_relative_to(private) for _, _, library in found[1:])
    assert private.stat().st_mode & 0o777 == 0o700
    assert warned == [
        f"the kernel cache {root} can't be written ({root}/kernels: Permission denied): new kernels go to {private}"
    ]


@needs_root
def test_a_closed_cache_is_replaced(root, tmp_path, compiler, open_parents, umask):
    umask(0o077)
    entry = cache.obtain(SOURCE, compiler).library.parent
    compiler.log.chmod(0o666)

    def as_nobody():
        os.setuid(NOBODY)
        return cache.obtain(SOURCE, compiler).from_cache, folders.why_unreadable(root), folders.why_unwritable(root)

    assert in_child(as_nobody) == (
        False, f"{root}/kernels: Permission denied", f"{root}/kernels: Permission denied",
    )  # fmt: skip
    root.chmod(0o755)
    assert in_child(as_nobody) == (True, None, f"{root}/kernels: Permission denied")
    entry.chmod(0o700)
    assert in_child(as_nobody)[1] == f"1 of its 1 kernels are closed to user id {NOBODY}"


@needs_root
def test_a_private_folder_of_others_is_not_used(root, tmp_path, compiler, open_parents):
    """Anybody can make folders in the temporary folder."""
    cache.obtain(SOURCE, compiler)
    compiler.log.chmod(0o666)
    private = tmp_path / "scratch" / f"deep_gemm_rocm_cache-{NOBODY}"
    private.mkdir()
    os.chown(private, 12345, 12345)

    def as_nobody():
        os.setuid(NOBODY)
        with pytest.warns(RuntimeWarning, match=r"compiled for this process only.*DG_JIT_CACHE_DIR"):
            artefact = cache.obtain(OTHER, compiler)
        return whole(artefact), artefact.library.is_relative_to(private)

    assert in_child(as_nobody) == (True, False)


def test_a_folder_that_cannot_exist_is_replaced(root, tmp_path, monkeypatch, compiler):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    first = cache.obtain(SOURCE, compiler)
    assert whole(first)
    assert first.library.is_relative_to(folders.private_folder())
    assert cache.obtain(SOURCE, compiler).from_cache


@pytest.mark.parametrize("below", ["", "kernels"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(root, compiler, mode, below):
    cache.obtain(SOURCE, compiler)
    (root / below).chmod(mode)
    with pytest.raises(CacheError, match=r"written by others.*DG_JIT_CACHE_DIR.*chmod -R go-w"):
        cache.obtain(SOURCE, compiler)
    (root / below).chmod(0o755)
    assert cache.obtain(SOURCE, compiler).from_cache


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def test_a_folder_of_another_user_is_refused(root, compiler, monkeypatch):
    cache.obtain(SOURCE, compiler)
    give_away(root, monkeypatch)
    with pytest.raises(CacheError, match="belongs to user id"):
        cache.obtain(SOURCE, compiler)


def test_a_link_of_another_user_is_refused(root, tmp_path, compiler, monkeypatch):
    """Its owner could let it lead elsewhere after the check."""
    cache.obtain(SOURCE, compiler)
    (tmp_path / "link").symlink_to(root)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "link"))
    assert cache.obtain(SOURCE, compiler).from_cache
    give_away(tmp_path / "link", monkeypatch)
    with pytest.raises(CacheError, match="belongs to user id"):
        cache.obtain(SOURCE, compiler)


@pytest.mark.parametrize("file", ["", "kernel.so"])
def test_a_kernel_that_others_can_write_to_is_compiled_again(root, compiler, caplog, file):
    entry = cache.obtain(SOURCE, compiler).library.parent
    (entry / file).chmod(0o666 if file else 0o777)
    again = cache.obtain(SOURCE, compiler)
    assert (again.from_cache, whole(again)) == (False, True)
    assert f"refused {entry}: it can be written by others" in caplog.text


@pytest.fixture
def homeless(root, monkeypatch):
    """A user without an entry in /etc/passwd, in an environment without HOME."""
    for name in ("HOME", "XDG_CACHE_HOME", "DG_JIT_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])


@pytest.mark.parametrize("is_old", [False, True])
def test_without_a_home_the_cache_is_a_private_temporary_folder(homeless, monkeypatch, compiler, is_old):
    if is_old:  # platformdirs before 4.4
        monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("~/.cache", name))
    with pytest.warns(RuntimeWarning, match=r"no home directory.*set HOME, or DG_JIT_CACHE_DIR"):
        entry = cache.obtain(SOURCE, compiler).library.parent
    private = Path(tempfile.gettempdir(), f"deep_gemm_rocm_cache-{os.geteuid()}")
    assert entry.is_relative_to(private)
    assert private not in cache.build_folders()  # which are pruned


def test_a_home_that_is_asked_for_and_missing_is_an_error(homeless, monkeypatch, compiler):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "~/kernels")
    with pytest.raises(CacheError, match="DG_JIT_CACHE_DIR is ~/kernels, and there is no home directory"):
        cache.obtain(SOURCE, compiler)


def test_without_a_temporary_folder_there_is_advice(homeless, monkeypatch, compiler):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(CacheError, match=r"No usable temporary directory.*TMPDIR.*DG_JIT_CACHE_DIR"):
        cache.obtain(SOURCE, compiler)


def test_looking_at_a_folder_makes_none(tmp_path):
    assert folders.why_unwritable(tmp_path / "not" / "there") is None
    assert folders.why_unreadable(tmp_path / "not" / "there") is None
    assert not list(tmp_path.iterdir())

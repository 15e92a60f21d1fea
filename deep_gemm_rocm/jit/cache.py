"""Compiled kernels on disk, shared by every process that uses the same folder.

An entry is a folder, named by a hash of all that went into it, that appears by one atomic rename and is never changed
afterwards. So readers need no lock; the lock only keeps processes from doing the same work twice, and losing it (a
file system without locks, a holder that hangs) costs time, never correctness.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs

from ..hip import ARCH
from .errors import CacheError, CompileError
from .source import HEADER_FOLDER, KERNEL_FILE, Source
from .toolchain import LIBRARY_FILE, Toolchain

_MAX_MIB = 4096
_SCHEMA = 1  # of the key and of an entry's files; change it and older entries are no longer found
MANIFEST_FILE = "manifest.json"
_LOCK_SECONDS = 60.0
_BUILD_PREFIX = "deep_gemm_rocm-"


@dataclass(frozen=True)
class Entry:
    """A kernel in the cache; whether its files are whole is another question.

    Attributes:
        path: its folder.
        bytes: of its files.
        last_used: when a process last loaded it, in seconds since the epoch; 0 if it has lost its manifest.
    """

    path: Path
    bytes: int
    last_used: float


@dataclass(frozen=True)
class Manifest:
    """Attributes:
    compile_seconds: what the compile took.
    toolchain: the name of what compiled it.
    """

    compile_seconds: float
    toolchain: str


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel, its bytes verified.

    Attributes:
        library: the shared library.
        from_cache: whether it was found, here or after waiting for another process; else it was compiled just now.
        compile_seconds: what the compile took, whenever that was.
    """

    library: Path
    from_cache: bool
    compile_seconds: float


def folder() -> Path:
    """Where compiled kernels are kept: ``DG_JIT_CACHE_DIR``, read on every call, or the user's cache folder."""
    chosen = os.environ.get("DG_JIT_CACHE_DIR")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("deep_gemm_rocm")


def max_bytes() -> int:
    """How large the cache may grow: ``DG_JIT_CACHE_MAX_MIB``, read on every call, 4096 MiB unless it is set.

    Raises:
        CacheError: it is not a positive number.
    """
    chosen = os.environ.get("DG_JIT_CACHE_MAX_MIB") or str(_MAX_MIB)
    if not chosen.isdecimal() or int(chosen) == 0:
        raise CacheError(f"DG_JIT_CACHE_MAX_MIB must be a positive whole number of MiB, got {chosen!r}")
    return int(chosen) * 2**20


def entries(root: Path) -> list[Entry]:
    """What is in the cache folder, the least recently used kernel first."""
    found = []
    for path in root.glob("kernels/[!.]*"):
        with contextlib.suppress(OSError):  # it is being removed
            manifest = path / MANIFEST_FILE
            found.append(Entry(path, _bytes(path), manifest.stat().st_mtime if manifest.exists() else 0.0))
    return sorted(found, key=lambda entry: (entry.last_used, entry.path))


def _bytes(entry: Path) -> int:
    """Of its files, as noted when it was made: thousands of entries have more files than can be looked at each time."""
    try:
        return int(json.loads((entry / MANIFEST_FILE).read_bytes())["bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        return _bytes_of_files(entry)


def _bytes_of_files(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def evict(root: Path, limit: int, keep: Path | None = None) -> list[Entry]:
    """Removes least recently used kernels, but never ``keep``, until all take up no more than ``limit`` bytes.

    A process that has loaded one of them goes on using it. What can't be removed stays.

    Returns:
        What was removed.
    """
    candidates = entries(root)
    total = sum(entry.bytes for entry in candidates)
    removed = []
    for entry in candidates:
        if total <= limit:
            break
        if entry.path != keep and _remove(entry.path):
            total -= entry.bytes
            removed.append(entry)
    return removed


def obtain(source: Source, toolchain: Toolchain) -> Artefact:
    """The compiled ``source``: from the cache, or compiled now and, if the cache can be written, kept there.

    Raises:
        CacheError: the cache folder belongs to, or can be written by, somebody else; or its size is not a number.
        CompileError, ToolchainError: see ``Toolchain.build``.
    """
    root = folder()
    limit = max_bytes()
    prepare(root)
    entry = root / "kernels" / f"{source.name}-{_key(source, toolchain)}"
    if found := read(entry):
        return found
    with _lock(root / "locks", entry.name):
        artefact = read(entry) or _build(source, toolchain, entry)
    evict(root, limit, keep=entry)
    return artefact


def _key(source: Source, toolchain: Toolchain) -> str:
    ingredients = {
        "schema": _SCHEMA,
        "arch": ARCH,
        "kernel": source.kernel,
        "headers": dict(source.headers),
        "toolchain": toolchain.identity(),
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:40]


def prepare(root: Path) -> None:
    """Makes the folder if that is possible, and refuses one that is not safe.

    Raises:
        CacheError: see ``check_folder``.
    """
    # Where it can't be made nothing can be read either, and keeping the kernel will fail and say so.
    with contextlib.suppress(OSError):
        _make_folder(root)
    check_folder(root)


def check_folder(root: Path) -> None:
    """What is in there gets executed, so nobody but its owner (this user, or root) may be able to write to it.

    Raises:
        CacheError: somebody else may. A folder that can't be looked at is no danger.
    """
    try:
        found = root.stat()
    except OSError:
        return
    advice = "Code from there would run as you: set DG_JIT_CACHE_DIR to a folder of your own"
    if found.st_uid not in (os.geteuid(), 0):
        raise CacheError(f"the kernel cache folder {root} belongs to user id {found.st_uid}. {advice}.")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(found.st_mode)
        raise CacheError(
            f"the kernel cache folder {root} can be written by others ({mode}). {advice}, or chmod 700 it."
        )


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def read(entry: Path) -> Artefact | None:
    """The entry if it is there and whole; it counts as used now."""
    manifest = manifest_of(entry)
    if manifest is None:
        return None
    with contextlib.suppress(OSError):  # a cache that can only be read evicts nothing
        os.utime(entry / MANIFEST_FILE)
    return Artefact(entry / LIBRARY_FILE, from_cache=True, compile_seconds=manifest.compile_seconds)


def manifest_of(entry: Path) -> Manifest | None:
    """What was noted when the entry was made, if it is there and whole."""
    try:
        manifest = json.loads((entry / MANIFEST_FILE).read_bytes())
        if manifest["sha256"] != _sha256(entry / LIBRARY_FILE):
            return None
        return Manifest(float(manifest["compile_seconds"]), str(manifest["toolchain"]["name"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def _lock(locks: Path, name: str) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
            _make_folder(locks)
            held.enter_context(filelock.FileLock(locks / f"{name}.lock", timeout=_LOCK_SECONDS))
        yield


def _build(source: Source, toolchain: Toolchain, entry: Path) -> Artefact:
    """Compiles in a folder of this machine's own, so that the compiler's scratch files never touch a shared disk."""
    try:
        build = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX))
        source.write(build)
    except OSError as error:
        raise CacheError(f"there is no room to compile in the temporary folder: {error}. Set TMPDIR.") from error
    try:
        start = time.perf_counter()
        toolchain.build(build)
        seconds = time.perf_counter() - start
    except CompileError:
        raise  # it names the source in there
    except BaseException:
        shutil.rmtree(build, ignore_errors=True)
        raise
    if found := read(entry):  # the lock was given up, and somebody else was quicker
        shutil.rmtree(build, ignore_errors=True)
        return found
    manifest = {
        "schema": _SCHEMA,
        "arch": ARCH,
        "sha256": _sha256(build / LIBRARY_FILE),
        "compile_seconds": seconds,
        "toolchain": toolchain.identity(),
    }
    try:
        _publish(build, manifest, entry)
    except OSError as error:
        warnings.warn(
            f"the kernel cache can't keep {entry}: {error}. The kernel was compiled for this process only; "
            "set DG_JIT_CACHE_DIR to a folder that can be written.",
            RuntimeWarning,
            stacklevel=2,
        )
        atexit.register(shutil.rmtree, build, ignore_errors=True)
        return Artefact(build / LIBRARY_FILE, from_cache=False, compile_seconds=seconds)
    shutil.rmtree(build, ignore_errors=True)
    return Artefact(entry / LIBRARY_FILE, from_cache=False, compile_seconds=seconds)


def build_folders() -> Iterator[Path]:
    """Where kernels are being compiled, or were when their process was killed."""
    return Path(tempfile.gettempdir()).glob(f"{_BUILD_PREFIX}*")


def _publish(build: Path, manifest: dict[str, object], entry: Path) -> None:
    """Makes the entry appear, whole and on the disk, in one step."""
    with staging(entry) as filled:
        for name in (LIBRARY_FILE, KERNEL_FILE):
            shutil.copyfile(build / name, filled / name)
        if (build / HEADER_FOLDER).is_dir():
            shutil.copytree(build / HEADER_FOLDER, filled / HEADER_FOLDER)
        noted = manifest | {"bytes": _bytes_of_files(filled)}
        (filled / MANIFEST_FILE).write_text(json.dumps(noted, indent=2))


@contextlib.contextmanager
def staging(entry: Path) -> Iterator[Path]:
    """A folder that becomes the entry, on the disk and in one step, once it is filled; if that fails it disappears."""
    _make_folder(entry.parent)
    for leftover in entry.parent.glob(f".{entry.name}-*"):  # of a process that was killed in here
        shutil.rmtree(leftover, ignore_errors=True)
    filled = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    try:
        yield filled
        for path in (*filled.rglob("*"), filled):
            _sync(path)
        set_aside(entry)
        filled.rename(entry)
        _sync(entry.parent)
    except BaseException:
        shutil.rmtree(filled, ignore_errors=True)
        raise


def set_aside(entry: Path) -> None:
    """Moves an entry that failed its check out of the way, where it can still be looked at."""
    if not entry.exists():
        return
    quarantine = entry.parents[1] / "quarantine"
    _make_folder(quarantine)
    shutil.rmtree(quarantine / entry.name, ignore_errors=True)
    entry.rename(quarantine / entry.name)


def _remove(entry: Path) -> bool:
    """Whether the entry could be removed: from one moment to the next for everybody else, file by file behind that."""
    try:
        doomed = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
        entry.rename(doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

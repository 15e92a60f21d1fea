"""Compiled kernels on disk, shared by every process that uses the same folder.

An entry is a folder, named by a hash of everything that went into it. It appears by an atomic rename and is never
changed afterwards. So readers need no lock. The lock only keeps processes from doing the same work twice: losing it (a
file system without locks, a holder that hangs) costs time, never correctness.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from ..runtime.hip import ARCH
from . import folders, progress
from .counters import count
from .errors import CacheError, CompileError
from .source import HEADER_FOLDER, KERNEL_FILE, Source
from .toolchain import LIBRARY_FILE, Toolchain

_MAX_MIB = 4096
_SCHEMA = 1  # version of the key and of an entry's files; after a change, older entries aren't found
MANIFEST_FILE = "manifest.json"
_LOCK_SECONDS = 60.0
_BUILD_PREFIX = "deep_gemm_rocm-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A kernel in the cache, whose files may be damaged.

    Attributes:
        path: its folder.
        bytes: the total size of its files.
        last_used: when a process last loaded it, in seconds since the epoch; 0 if the manifest is missing.
    """

    path: Path
    bytes: int
    last_used: float


@dataclass(frozen=True)
class Manifest:
    """Attributes:
    compile_seconds: the time of the compile.
    toolchain: the name of the toolchain that compiled it.
    """

    compile_seconds: float
    toolchain: str


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel, its bytes verified.

    Attributes:
        library: the shared library.
        from_cache: whether it was found in the cache, maybe after another process compiled it; else this call did.
        compile_seconds: the time of the compile, now or earlier.
    """

    library: Path
    from_cache: bool
    compile_seconds: float


def max_bytes() -> int:
    """The cache's maximum size: ``DG_JIT_CACHE_MAX_MIB``, read on every call, by default 4096 MiB.

    Raises:
        CacheError: the variable is not a positive number.
    """
    chosen = os.environ.get("DG_JIT_CACHE_MAX_MIB") or str(_MAX_MIB)
    if not chosen.isdecimal() or int(chosen) == 0:
        raise CacheError(f"DG_JIT_CACHE_MAX_MIB must be a positive whole number of MiB, got {chosen!r}")
    return int(chosen) * 2**20


def entries(root: Path) -> list[Entry]:
    """The kernels in the cache folder, the least recently used one first."""
    found = []
    for path in root.glob("kernels/[!.]*"):
        with contextlib.suppress(OSError):  # another process is removing it
            manifest = path / MANIFEST_FILE
            found.append(Entry(path, _bytes(path), manifest.stat().st_mtime if manifest.exists() else 0.0))
    return sorted(found, key=lambda entry: (entry.last_used, entry.path))


def _bytes(entry: Path) -> int:
    """The size of an entry's files, from its manifest: a cache may have too many files to ask for the size of each."""
    try:
        return int(json.loads((entry / MANIFEST_FILE).read_bytes())["bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        return _bytes_of_files(entry)


def _bytes_of_files(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def evict(root: Path, limit: int, keep: Path | None = None) -> list[Entry]:
    """Removes the least recently used kernels, but never ``keep``, until the rest take up at most ``limit`` bytes.

    Processes that have loaded a removed kernel can go on using it. Kernels that can't be removed stay.

    Returns:
        The removed kernels.
    """
    candidates = entries(root)
    total = sum(entry.bytes for entry in candidates)
    removed = []
    for entry in candidates:
        if total <= limit:
            break
        if entry.path != keep and _remove(entry.path):
            _log.info("evicted %s, %d KiB", entry.path, entry.bytes // 1024)
            total -= entry.bytes
            removed.append(entry)
    count(cache_evictions=len(removed))
    return removed


def obtain(source: Source, toolchain: Toolchain) -> Artefact:
    """The compiled ``source``: from the cache, or compiled now and stored there, or where ``folders.places`` says.

    Raises:
        CacheError: another user owns the cache folder or can write to it, or the maximum size is not a number.
        CompileError, ToolchainError: see ``Toolchain.build``.
    """
    root = folders.folder()
    limit = max_bytes()
    _prepare(root)
    name = f"{source.name}-{_key(source, toolchain)}"
    for place in folders.places(root):
        entry = place / "kernels" / name
        if found := _looked_up(entry):
            _log.debug("found %s", entry)
            count(cache_hits=1)
            return found
    count(cache_misses=1)
    _log.info("compiling %s: %s", source.name, _why_missing(entry, source, toolchain))
    with _lock(entry):
        artefact = read(entry) or _build(source, toolchain, entry)
    evict(place, limit, keep=entry)
    return artefact


def _prepare(root: Path) -> None:
    try:
        folders.prepare(root)
    except CacheError as error:
        _log.error("%s", error)
        count(cache_refusals=1)
        raise


def _why_missing(entry: Path, source: Source, toolchain: Toolchain) -> str:
    """How the kernel differs from the last one of its name, for the log."""
    if os.path.lexists(entry):
        return "the one in the cache is refused"
    last = max(entry.parent.glob(f"{source.name}-*"), key=_used, default=None)
    if last is None:
        return "none of this name is in the cache"
    try:
        before = json.loads((last / MANIFEST_FILE).read_bytes())["toolchain"]
        changed = [part for part, now in toolchain.identity().items() if before[part] != now]
    except (OSError, ValueError, TypeError, KeyError):
        return "the last one of this name is damaged"
    return f"the compiler's {' and '.join(changed)} changed" if changed else "its source changed"


def _used(entry: Path) -> float:
    try:
        return (entry / MANIFEST_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _key(source: Source, toolchain: Toolchain) -> str:
    ingredients = {
        "schema": _SCHEMA,
        "arch": ARCH,
        "kernel": source.kernel,
        "headers": dict(source.headers),
        "toolchain": toolchain.identity(),
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:40]


def _looked_up(entry: Path) -> Artefact | None:
    """``read``, which notes an entry that is there and isn't used."""
    try:
        return _read(entry)
    except FileNotFoundError:
        return None
    except _RefusedError as error:
        _log.warning("refused %s: %s", entry, error)
        count(cache_refusals=1)
        return None


def read(entry: Path) -> Artefact | None:
    """Returns the entry if it exists and is undamaged, and marks it as used."""
    with contextlib.suppress(FileNotFoundError, _RefusedError):
        return _read(entry)
    return None


def _read(entry: Path) -> Artefact:
    manifest = _examined(entry)
    with contextlib.suppress(OSError):  # a read-only cache evicts nothing, so it needs no times
        os.utime(entry / MANIFEST_FILE)
    return Artefact(entry / LIBRARY_FILE, from_cache=True, compile_seconds=manifest.compile_seconds)


def manifest_of(entry: Path) -> Manifest | None:
    """The entry's manifest, if the entry exists and is undamaged."""
    with contextlib.suppress(FileNotFoundError, _RefusedError):
        return _examined(entry)
    return None


class _RefusedError(Exception):
    """An entry can't be used; the message says why."""


def _examined(entry: Path) -> Manifest:
    """
    Raises:
        FileNotFoundError: there is no such entry.
        _RefusedError: it is damaged, can't be read, or others can write to it.
    """
    if not os.path.lexists(entry):
        raise FileNotFoundError(entry)
    try:
        if danger := folders.why_unsafe(entry) or folders.why_unsafe(entry / LIBRARY_FILE):
            raise _RefusedError(f"it {danger}")
        manifest = json.loads((entry / MANIFEST_FILE).read_bytes())
        if manifest["sha256"] != _sha256(entry / LIBRARY_FILE):
            raise _RefusedError("its library isn't what was compiled")
        return Manifest(float(manifest["compile_seconds"]), str(manifest["toolchain"]["name"]))
    except (ValueError, TypeError, KeyError) as error:
        raise _RefusedError("its manifest is damaged") from error
    except OSError as error:
        if not os.path.lexists(entry):  # another process evicted it meanwhile
            raise FileNotFoundError(entry) from error
        raise _RefusedError(str(error)) from error


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def _lock(entry: Path) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
            locks = entry.parents[1] / "locks"
            folders.make_readable(locks)
            lock = filelock.FileLock(locks / f"{entry.name}.lock", mode=folders.FILE_MODE)
            try:
                held.enter_context(lock.acquire(timeout=0))
            except filelock.Timeout:
                with _waiting(entry):
                    held.enter_context(lock.acquire(timeout=_LOCK_SECONDS))
        yield


@contextlib.contextmanager
def _waiting(entry: Path) -> Iterator[None]:
    """Notes how long another process, which compiles the entry, makes this one wait."""
    _log.info("waiting for another process to compile %s", entry.name)
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        _log.info("waited %.1f s for %s", seconds, entry.name)
        count(lock_waits=1, lock_seconds=seconds)


def _build(source: Source, toolchain: Toolchain, entry: Path) -> Artefact:
    """Compiles in a local temporary folder, so that the compiler's scratch files never touch a shared disk."""
    try:
        build = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX))
        source.write(build)
    except OSError as error:
        raise CacheError(f"there is no room to compile in the temporary folder: {error}. Set TMPDIR.") from error
    try:
        start = time.perf_counter()
        with progress.shown(f"compiling {source.name}"):
            toolchain.build(build)
        seconds = time.perf_counter() - start
        _log.info("compiled %s in %.2f s", source.name, seconds)
        count(compiles=1, compile_seconds=seconds)
    except CompileError:
        raise  # the error names the source in the folder, so keep it
    except BaseException:
        shutil.rmtree(build, ignore_errors=True)
        raise
    if found := read(entry):  # this process gave up waiting for the lock, and its holder was quicker
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
        reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error  # of many files, the first's
        warnings.warn(
            f"the kernel cache can't keep {entry}: {reason}. The kernel was compiled for this process only; "
            "set DG_JIT_CACHE_DIR to a folder that can be written.",
            RuntimeWarning,
            stacklevel=2,
        )
        atexit.register(shutil.rmtree, build, ignore_errors=True)
        return Artefact(build / LIBRARY_FILE, from_cache=False, compile_seconds=seconds)
    shutil.rmtree(build, ignore_errors=True)
    return Artefact(entry / LIBRARY_FILE, from_cache=False, compile_seconds=seconds)


def build_folders() -> Iterator[Path]:
    """The folders of running compiles, and of those whose process was killed."""
    return Path(tempfile.gettempdir()).glob(f"{_BUILD_PREFIX}*")


def _publish(build: Path, manifest: dict[str, object], entry: Path) -> None:
    """Makes the complete entry appear in one step, after it was synced to disk."""
    with staging(entry) as filled:
        for name in (LIBRARY_FILE, KERNEL_FILE):
            shutil.copyfile(build / name, filled / name)
        if (build / HEADER_FOLDER).is_dir():
            shutil.copytree(build / HEADER_FOLDER, filled / HEADER_FOLDER)
        noted = manifest | {"bytes": _bytes_of_files(filled)}
        (filled / MANIFEST_FILE).write_text(json.dumps(noted, indent=2), encoding="utf-8")


@contextlib.contextmanager
def staging(entry: Path) -> Iterator[Path]:
    """Yields a folder to fill. It is then synced to disk and renamed to the entry in one step; on an error, removed."""
    folders.make_readable(entry.parent)
    for leftover in entry.parent.glob(f".{entry.name}-*"):  # left by a process that was killed here
        shutil.rmtree(leftover, ignore_errors=True)
    filled = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    try:
        yield filled
        for path in (*filled.rglob("*"), filled):
            path.chmod(folders.FOLDER_MODE if path.is_dir() else folders.FILE_MODE)  # whatever the umask is
            _sync(path)
        set_aside(entry)
        filled.rename(entry)
        _sync(entry.parent)
    except BaseException:
        shutil.rmtree(filled, ignore_errors=True)
        raise


def set_aside(entry: Path) -> None:
    """Moves a damaged entry aside, where people can still inspect it."""
    if not entry.exists():
        return
    quarantine = entry.parents[1] / "quarantine"
    folders.make_readable(quarantine)
    shutil.rmtree(quarantine / entry.name, ignore_errors=True)
    entry.rename(quarantine / entry.name)


def _remove(entry: Path) -> bool:
    """Removes an entry, which disappears in one step for other processes; False if that isn't possible."""
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

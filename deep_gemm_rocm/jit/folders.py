"""The kernel cache's folder: where it is, whether it is safe, and what takes its place where it can't be written.

Files of the cache are executed, so only this user and root may write to it. Others may read it, unless the folder
itself is closed to them: a new one obeys the umask, and everything inside of it is readable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from ..runtime import session
from .errors import CacheError

FOLDER_MODE, FILE_MODE = 0o755, 0o644

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger(__name__)


def folder() -> Path:
    """The cache folder: ``DG_JIT_CACHE_DIR``, read on every call, or the user's cache folder.

    A user without a home directory has a private temporary folder, and a warning.

    Raises:
        CacheError: ``DG_JIT_CACHE_DIR`` begins with ``~`` and there is no home directory; or there is none, and no
            temporary folder.
    """
    chosen = os.environ.get("DG_JIT_CACHE_DIR")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        found = platformdirs.user_cache_path("deep_gemm_rocm")
        if found.is_absolute():  # older platformdirs leave a ~ that they can't expand
            return found
    except RuntimeError as error:
        if chosen:
            raise CacheError(f"DG_JIT_CACHE_DIR is {chosen}, and there is no home directory: {error}") from error
    private = private_folder()
    warnings.warn(
        f"user id {os.geteuid()} has no home directory, so kernels are kept in {private}; set HOME, or "
        "DG_JIT_CACHE_DIR to the folder of the kernel cache",
        RuntimeWarning,
        stacklevel=2,
    )
    return private


def private_folder() -> Path:
    """The folder of this user's kernels below the temporary folder.

    Raises:
        CacheError: there is no temporary folder.
    """
    try:
        return Path(tempfile.gettempdir(), f"deep_gemm_rocm_cache-{os.geteuid()}")
    except OSError as error:
        raise CacheError(f"{error}. Set TMPDIR, or DG_JIT_CACHE_DIR to the folder of the kernel cache.") from error


def places(root: Path) -> Iterator[Path]:
    """The folders that may have a kernel: the cache, and if it can't be written, this user's private folder.

    New kernels go to the last one.
    """
    yield root
    reason = why_unwritable(root)
    if reason is None:
        return
    with contextlib.suppress(CacheError, OSError):  # without a fallback, storing a kernel in ``root`` warns
        fallback = private_folder()
        if fallback != root:
            make_private(fallback)
            session.current().of(_Told).once(
                f"the kernel cache {root} can't be written ({reason}): new kernels go to {fallback}"
            )
            yield fallback


class _Told(session.Part):
    """Messages that were logged."""

    def __init__(self) -> None:
        self._messages: set[str] = set()

    def once(self, message: str) -> None:
        """Logs a warning for the first time in the session."""
        if message not in self._messages:
            self._messages.add(message)
            _log.warning(message)


def prepare(root: Path) -> None:
    """Makes the folder if possible, and refuses an unsafe one.

    Raises:
        CacheError: see ``check``.
    """
    # If the folder can't be made, it has no kernels either, and another one takes its place.
    with contextlib.suppress(OSError):
        make(root)
    check(root)


def make(path: Path) -> None:
    """Makes a folder and its parents, which nobody else may write to, whatever the umask is.

    Raises:
        OSError: that's not possible.
    """
    if not path.parent.exists():
        make(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_readable(path: Path) -> None:
    """Makes a folder within the cache, which whoever may enter the cache can read.

    Raises:
        OSError: that's not possible.
    """
    with contextlib.suppress(FileExistsError):
        make(path.parent)
        path.mkdir(mode=FOLDER_MODE)
        path.chmod(FOLDER_MODE)  # whatever the umask is


def make_private(path: Path) -> None:
    """Makes a folder that only this user may read.

    Raises:
        OSError: that's not possible.
        CacheError: see ``check``.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    check(path)


def check(root: Path) -> None:
    """Checks that only this user or root can write to a cache folder, since its files get executed.

    Raises:
        CacheError: somebody else owns it or can write to it. A folder that can't be read is no danger.
    """
    for path in (root, root / "kernels"):
        try:
            danger = why_unsafe(path)
        except OSError:
            return
        if danger:
            raise CacheError(
                f"the kernel cache folder {path} {danger}. Code from there would run as you: set DG_JIT_CACHE_DIR to a "
                f"folder of your own, or `chown -R {os.geteuid()}` and `chmod -R go-w` it if you trust its kernels."
            )


def why_unsafe(path: Path) -> str | None:
    """Who else can write to a file or folder, or exchange a link to it; None if only this user and root can.

    Raises:
        OSError: it isn't there, or can't be looked at.
    """
    link, found = path.lstat(), path.stat()
    for owner in (link.st_uid, found.st_uid):
        if owner not in (os.geteuid(), 0):
            return f"belongs to user id {owner}"
    return f"can be written by others ({stat.filemode(found.st_mode)})" if found.st_mode & _OTHERS_WRITE else None


def why_unwritable(root: Path) -> str | None:
    """The reason why no kernel can be added to a cache; None if one can, also where the folder must be made first."""
    nearest = root / "kernels"
    try:
        while not nearest.exists():
            nearest = nearest.parent
        tempfile.TemporaryFile(dir=nearest).close()  # unlike os.access, this also finds full disks
    except OSError as error:
        return f"{nearest}: {error.strerror}"
    return None


def why_unreadable(root: Path) -> str | None:
    """The reason why kernels can't be read from a cache; None if they can, or if there are none."""
    try:
        entries = [os.access(entry, os.R_OK | os.X_OK) for entry in os.scandir(root / "kernels")]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    closed = entries.count(False)
    return f"{closed} of its {len(entries)} kernels are closed to user id {os.geteuid()}" if closed else None


def is_noexec(path: Path) -> bool:
    """Whether the file system forbids to execute its files, and thus to load kernels.

    Raises:
        OSError: ``path`` isn't there.
    """
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)

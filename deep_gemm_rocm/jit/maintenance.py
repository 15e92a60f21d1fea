"""Maintenance of a kernel cache: verifying, pruning, exporting and importing its kernels."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..files import replacing
from . import cache, folders
from .cache import MANIFEST_FILE, Entry
from .errors import CacheError
from .source import HEADER_FOLDER, KERNEL_FILE
from .toolchain import LIBRARY_FILE

_ENTRY_NAME = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{40}")
_ABANDONED_SECONDS = 3600  # older temporary folders and locks are abandoned; no process needs them for so long


class Verified(NamedTuple):
    """Undamaged entries, and damaged ones, which have been set aside."""

    whole: list[Entry]
    damaged: list[Entry]


def verify(root: Path) -> Verified:
    """Compares each kernel's bytes with the hash from its compile, and sets damaged kernels aside.

    Raises:
        OSError: a damaged entry can't be set aside.
    """
    found = Verified([], [])
    for entry in cache.entries(root):
        if cache.manifest_of(entry.path):
            found.whole.append(entry)
        else:
            found.damaged.append(entry)
            cache.set_aside(entry.path)
    return found


def prune(root: Path, limit: int) -> list[Entry]:
    """Removes damaged entries, leftovers of dead processes, and the least recently used kernels beyond ``limit`` bytes.

    Leftovers are in the cache and in the temporary folder, where kernels are compiled.

    Returns:
        The kernels that were removed.
    """
    shutil.rmtree(root / "quarantine", ignore_errors=True)
    for folder in (*root.glob("kernels/.*"), *cache.build_folders()):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for lock in root.glob("locks/*"):
        if _is_abandoned(lock):
            lock.unlink(missing_ok=True)
    return cache.evict(root, limit)


def _is_abandoned(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.geteuid() and time.time() - found.st_mtime > _ABANDONED_SECONDS


def export(root: Path, file: Path) -> int:
    """Writes every whole kernel of the cache into a .tar.gz file, which is there once it is complete.

    Returns:
        The number of kernels.

    Raises:
        OSError: the file can't be written.
    """
    count = 0
    with replacing(file) as new, tarfile.open(new, "w:gz") as archive:
        for entry in sorted(cache.entries(root), key=lambda entry: entry.path):
            if cache.manifest_of(entry.path):
                archive.add(entry.path, entry.path.name, filter=_anonymous)
                count += 1
    return count


def import_from(root: Path, file: Path) -> tuple[int, int]:
    """Imports the kernels in a file from ``export`` into the cache. Kernels that the cache has already stay unchanged.

    Kernels are code: import only what you trust. The hashes protect against damage, not against malice.

    Returns:
        The number of new kernels, and the number of all kernels in the file.

    Raises:
        CacheError: the file isn't from ``export``, or is damaged (kernels before the damage have been imported), or the
            cache folder is unsafe.
        OSError: the file can't be read, or the cache not written.
    """
    folders.prepare(root)
    new = count = 0
    try:
        with tarfile.open(file, "r:gz") as archive:
            for name, files in _entries_of(archive):
                count += 1
                entry = root / "kernels" / name
                if cache.manifest_of(entry):
                    continue
                with cache.staging(entry) as filled:
                    for path, content in files.items():
                        (filled / path).parent.mkdir(parents=True, exist_ok=True)
                        (filled / path).write_bytes(content)
                        (filled / path).chmod(folders.FILE_MODE)  # whatever the umask is
                    if cache.manifest_of(filled) is None:
                        raise CacheError(f"{file} is damaged: its kernel {name} is not what was exported")
                new += 1
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise CacheError(f"{file} is damaged, or no file that `cache export` wrote: {error}") from error
    return new, count


def _entries_of(archive: tarfile.TarFile) -> Iterator[tuple[str, dict[PurePosixPath, bytes]]]:
    """Yields each kernel's name and files. Raises CacheError for any file that ``export`` doesn't write."""
    files = (member for member in archive if not member.isdir())
    for name, members in itertools.groupby(files, lambda member: PurePosixPath(member.name).parts[0]):
        contents = {}
        for member in members:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or not _ENTRY_NAME.fullmatch(name) or not _is_of_an_entry(path):
                raise CacheError(
                    f"{member.name} in the archive is no part of a kernel cache; nothing of it was written"
                )
            contents[path] = content.read()
        yield name, contents


def _is_of_an_entry(path: PurePosixPath) -> bool:
    in_headers = len(path.parts) > 1 and path.parts[0] == HEADER_FOLDER and ".." not in path.parts
    return in_headers or str(path) in (LIBRARY_FILE, KERNEL_FILE, MANIFEST_FILE)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member

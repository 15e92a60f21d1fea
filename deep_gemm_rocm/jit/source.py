"""A rendered kernel and the headers it reaches, as one unit.

The cache's key and the compiler must see the same text even while somebody edits a header. So the headers are read
once: what is hashed is written out and compiled, and the include folder itself is not on the compiler's command line.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)

KERNEL_FILE = "kernel.hip"
HEADER_FOLDER = "include"


@dataclass(frozen=True)
class Source:
    """Attributes:
    name: what the kernel is called in the cache: its own name, or its template's without the suffixes.
    kernel: the rendered HIP C++.
    headers: text of every header reached, by its path below the include folder.
    """

    name: str
    kernel: str
    headers: Mapping[str, str]

    @classmethod
    def collect(cls, name: str, kernel: str, include_dir: Path) -> Source:
        """Follows ``#include`` from ``kernel`` through ``include_dir``; headers found elsewhere are not ours."""
        headers: dict[str, str] = {}
        pending = list(_candidates(kernel, ""))
        while pending:
            for path in pending.pop():
                if path in headers:
                    break
                file = include_dir / path
                if file.is_file():
                    headers[path] = file.read_text()
                    pending += _candidates(headers[path], posixpath.dirname(path))
                    break
        return cls(name, kernel, headers)

    def write(self, folder: Path) -> Path:
        """Lays the files out for a compiler that runs in ``folder`` with ``-I include``; returns the kernel's path."""
        for path, text in self.headers.items():
            file = folder / HEADER_FOLDER / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        kernel = folder / KERNEL_FILE
        kernel.write_text(self.kernel)
        return kernel


def _candidates(text: str, folder: str) -> Iterator[list[str]]:
    """For each ``#include`` in ``text``, the paths below the include folder where a compiler looks for it, in order."""
    for bracket, name in _INCLUDE.findall(text):
        places = [name] if bracket == "<" else [posixpath.join(folder, name), name]
        yield [path for path in map(posixpath.normpath, places) if not path.startswith(("..", "/"))]

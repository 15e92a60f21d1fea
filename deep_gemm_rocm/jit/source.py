"""A rendered kernel and the headers that it includes, as one unit.

The cache's key and the compiler must see the same text, even while somebody edits a header. So headers are read once,
hashed, and written out for the compiler. The include folder itself is not on the compiler's command line.
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
    name: the kernel's name in the cache: its own, or that of its template without the suffixes.
    kernel: the rendered HIP C++.
    headers: the text of every included header, by its path below the include folder.
    """

    name: str
    kernel: str
    headers: Mapping[str, str]

    @classmethod
    def collect(cls, name: str, kernel: str, include_dir: Path) -> Source:
        """Collects the headers in ``include_dir`` that ``kernel`` includes, directly or not; ignores all others."""
        headers: dict[str, str] = {}
        pending = list(_candidates(kernel, ""))
        while pending:
            for path in pending.pop():
                if path in headers:
                    break
                file = include_dir / path
                if file.is_file():
                    headers[path] = file.read_text(encoding="utf-8")
                    pending += _candidates(headers[path], posixpath.dirname(path))
                    break
        return cls(name, kernel, headers)

    def write(self, folder: Path) -> Path:
        """Writes the files for a compiler that runs in ``folder`` with ``-I include``; returns the kernel's path."""
        for path, text in self.headers.items():
            file = folder / HEADER_FOLDER / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        kernel = folder / KERNEL_FILE
        kernel.write_text(self.kernel, encoding="utf-8")
        return kernel


def _candidates(text: str, folder: str) -> Iterator[list[str]]:
    """For each ``#include``, the paths below the include folder where a compiler looks for the header, in order."""
    for bracket, name in _INCLUDE.findall(text):
        places = [name] if bracket == "<" else [posixpath.join(folder, name), name]
        yield [path for path in map(posixpath.normpath, places) if not path.startswith(("..", "/"))]

"""A toolchain for tests of the kernel cache, which compiles nothing."""

from __future__ import annotations

import time
from pathlib import Path

from deep_gemm_rocm.jit import cache
from deep_gemm_rocm.jit.source import Source

SOURCE = Source("scale", '#include "a.h"\nint kernel;\n', {"a.h": "int a;\n"})
LIBRARY = bytes(range(256)) * 64


class Compiler:
    """A toolchain that writes LIBRARY and counts its builds in a file."""

    name = "fake"
    version = "1"

    def __init__(self, log: Path, seconds: float = 0.0) -> None:
        self.log = log
        self.seconds = seconds

    def identity(self) -> dict[str, object]:
        return {"name": self.name, "version": self.version}

    def build(self, folder: Path) -> None:
        with self.log.open("a") as log:
            log.write("build\n")
        time.sleep(self.seconds)
        (folder / "kernel.so").write_bytes(LIBRARY)

    @property
    def builds(self) -> int:
        return self.log.read_text().count("build") if self.log.exists() else 0


def whole(artefact: cache.Artefact) -> bool:
    return artefact.library.read_bytes() == LIBRARY

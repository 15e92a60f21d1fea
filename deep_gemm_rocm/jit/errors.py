"""Errors of making and loading kernels."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

_LOG_LINES = 40


class JitError(RuntimeError):
    """A kernel could not be made or loaded."""


class ToolchainError(JitError):
    """No compiler on this machine can target gfx942. The message says what to install."""


class CacheError(JitError):
    """The kernel cache's folder is unsafe, or can't be used. The message says why and what to do."""


class CaptureError(JitError):
    """A captured call needs a kernel that this process hasn't loaded. The message says what to do."""


class LoadError(JitError):
    """A compiled kernel could not be loaded into this process."""


class CompileError(JitError):
    """A compiler or linker refused a rendered kernel.

    Attributes:
        command: the program and its arguments; it ran in the folder of ``source``.
        source: the path of the rendered source, which is kept together with its headers.
        log: everything that the program printed. The message shows its end.
    """

    def __init__(self, command: Sequence[str], source: Path, log: str) -> None:
        self.command = tuple(command)
        self.source = source
        self.log = log
        lines = log.strip().splitlines() or ["(the compiler printed nothing)"]
        shown = lines[-_LOG_LINES:]
        if len(shown) < len(lines):
            shown.insert(0, f"… {len(lines) - len(shown)} lines before")
        super().__init__(
            "\n".join(
                [
                    "a kernel did not compile.",
                    f"  command: {shlex.join(self.command)}",
                    f"  source, kept: {source}",
                    "  log:",
                    *(f"    {line}" for line in shown),
                ]
            )
        )

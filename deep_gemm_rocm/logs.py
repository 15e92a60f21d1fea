"""The library's loggers: one for each module, below ``deep_gemm_rocm``. They are silent unless a program listens."""

from __future__ import annotations

import logging
import os

# DeepGEMM's environment variables, and the logger that each of them shows on stderr.
_SHOWN_BY = {"DG_JIT_DEBUG": f"{__package__}.jit", "DG_PRINT_CONFIGS": f"{__package__}.heuristics"}


def set_up() -> None:
    """Silences the loggers, except those that the environment asks to be shown on stderr."""
    logging.getLogger(__package__).addHandler(logging.NullHandler())
    for variable, name in _SHOWN_BY.items():
        if os.environ.get(variable, "0") not in ("", "0"):
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
            logger = logging.getLogger(name)
            logger.setLevel(logging.DEBUG)
            logger.addHandler(handler)

"""Lets vLLM on ROCm use this package where it uses DeepGEMM on NVIDIA: a plugin for vLLM's plugin system.

vLLM calls every entry point of the group ``vllm.general_plugins`` in each of its processes before it loads a model. Put
this file into a package of yours and add to its pyproject.toml

    [project.entry-points."vllm.general_plugins"]
    deep_gemm_rocm = "your_package.vllm_adapter:register"

vLLM looks for a package called ``deep_gemm``, and asks the platform whether DeepGEMM may be used, which ROCm's denies.
The first is answered by ``install_as_deep_gemm``; the second gate is opened for MI300X only.

vLLM's ROCm platform converts weights to e4m3fnuz with scales doubled, by itself. Nobody has run this on hardware yet:
names are those of vLLM's vllm/utils/deep_gemm.py and vllm/platforms, and ``register`` says which one it misses.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import deep_gemm_rocm


def register() -> None:
    """vLLM's plugin: harmless if it is called twice, or where there is no MI300X.

    Raises:
        RuntimeError: this vLLM has no such gate; the message names it.
    """
    if not _is_mi300x():
        return
    deep_gemm_rocm.install_as_deep_gemm()
    os.environ.setdefault("VLLM_USE_DEEP_GEMM", "1")
    os.environ.setdefault("VLLM_USE_DEEP_GEMM_E8M0", "0")  # scales that are powers of two, for other hardware
    _open_gate(importlib.import_module("vllm.platforms").current_platform)
    # It remembers what it found when it was imported.
    helpers: Any = importlib.import_module("vllm.utils.deep_gemm")
    for cached in ("is_deep_gemm_supported", "_lazy_init"):
        clear = getattr(getattr(helpers, cached, None), "cache_clear", None)
        if clear is not None:
            clear()


def _open_gate(platform: Any) -> None:
    kind = type(platform)
    if not hasattr(kind, "support_deep_gemm"):
        raise RuntimeError(f"{kind.__module__}.{kind.__name__} has no support_deep_gemm: this vLLM is another version")
    kind.support_deep_gemm = classmethod(lambda cls: True)


def _is_mi300x() -> bool:
    try:
        return not deep_gemm_rocm.hip.runtime().is_simulated
    except deep_gemm_rocm.hip.NoDeviceError:
        return False

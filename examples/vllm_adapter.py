"""Lets vLLM on ROCm use this package where it uses DeepGEMM on NVIDIA: a plugin for vLLM's plugin system.

vLLM calls every entry point of the group ``vllm.general_plugins`` in each of its processes before it loads a model. Put
this file into a package of yours and add to its pyproject.toml

    [project.entry-points."vllm.general_plugins"]
    deep_gemm_rocm = "your_package.vllm_adapter:register"

vLLM looks for a package called ``deep_gemm`` and asks its platform whether DeepGEMM is supported. ``register`` installs
this package under that name, and makes the ROCm platform say yes on an MI300X.

vLLM's ROCm platform itself converts weights to e4m3fnuz with doubled scales. Nobody has run this on hardware yet. The
names are those of vLLM's vllm/utils/deep_gemm.py and vllm/platforms. If a version of vLLM lacks one, ``register`` says
which.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import deep_gemm_rocm


def register() -> None:
    """Makes vLLM use this package. Does nothing if called again, or if there is no MI300X.

    Raises:
        RuntimeError: this version of vLLM decides in another way.
    """
    if not _is_mi300x():
        return
    deep_gemm_rocm.install_as_deep_gemm()
    os.environ.setdefault("VLLM_USE_DEEP_GEMM", "1")
    os.environ.setdefault("VLLM_USE_DEEP_GEMM_E8M0", "0")  # scales that are powers of two, for other hardware
    _open_gate(importlib.import_module("vllm.platforms").current_platform)
    # vLLM caches the answers that it got when it was imported.
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

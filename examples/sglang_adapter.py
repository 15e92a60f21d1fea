"""Lets SGLang on ROCm use this package where it uses DeepGEMM on NVIDIA: import it before ``sglang``.

    python -c "import sglang_adapter; sglang_adapter.register(); import runpy; runpy.run_module('sglang.launch_server')"

SGLang imports ``deep_gemm`` if ``ENABLE_JIT_DEEPGEMM`` is on. Its configurer computes that from the CUDA architecture
when it is imported. So ``register`` installs this package under that name, and imports the configurer while the
architecture looks like Hopper, whose scales are fp32 as they are here. Nobody has run this on hardware yet. If a
version of SGLang lacks one of the names that are needed, ``register`` says which.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import deep_gemm_rocm

_CONFIGURER = "sglang.srt.layers.deep_gemm_wrapper.configurer"
_HOPPER = 90


def register() -> None:
    """Makes SGLang use this package. Does nothing if called again, or if there is no MI300X.

    Raises:
        RuntimeError: SGLang's layers were imported before, or this version decides in another way.
    """
    if not _is_mi300x():
        return
    deep_gemm_rocm.install_as_deep_gemm()
    if _CONFIGURER not in sys.modules:
        _import_as_if_on_hopper()
    configurer: Any = sys.modules[_CONFIGURER]
    if not getattr(configurer, "ENABLE_JIT_DEEPGEMM", False):
        raise RuntimeError(
            "SGLang's ENABLE_JIT_DEEPGEMM is off: its layers were imported before sglang_adapter.register(), or "
            "SGLANG_ENABLE_JIT_DEEPGEMM says so, or this SGLang is another version"
        )
    if getattr(configurer, "DEEPGEMM_SCALE_UE8M0", False):
        raise RuntimeError("SGLang would pack scales as UE8M0, which gfx942 has no use for: this is another version")


def _import_as_if_on_hopper() -> None:
    utils: Any = importlib.import_module("sglang.srt.utils")
    if not hasattr(utils, "get_device_sm"):
        raise RuntimeError("sglang.srt.utils has no get_device_sm: this SGLang is another version")
    real = utils.get_device_sm
    utils.get_device_sm = lambda: _HOPPER
    try:
        importlib.import_module(_CONFIGURER)
    finally:
        utils.get_device_sm = real


def _is_mi300x() -> bool:
    try:
        return not deep_gemm_rocm.hip.runtime().is_simulated
    except deep_gemm_rocm.hip.NoDeviceError:
        return False

"""The plug-in of vLLM, an entry point of ``vllm.general_plugins``: vLLM calls ``register`` in each of its processes.

It neither sets ``VLLM_USE_DEEP_GEMM`` nor opens ``support_deep_gemm``: what lies behind these is written for OCP FP8
and keeps models from loading where weights are FNUZ.
"""

from __future__ import annotations

import logging
import os

from . import parts

_LOGGER = logging.getLogger("vllm.deep_gemm_rocm")  # below vLLM's own logger, which shows it


def register() -> dict[str, str]:
    """Makes this process's vLLM use this package's kernels, if it runs on gfx942. Repeated calls change nothing.

    ``DG_VLLM=0`` in the environment keeps vLLM as it is.

    Returns:
        For each part ``installed``, or why it stands back; nothing on other hardware or with ``DG_VLLM=0``.
    """
    if os.environ.get("DG_VLLM") == "0" or not parts.is_wanted(_is_gfx942, "vLLM", _LOGGER):
        return {}
    import vllm

    def linear() -> None:
        from . import vllm_linear

        vllm_linear.install()

    def experts() -> None:
        from . import vllm_experts

        vllm_experts.install()

    def indexer() -> None:
        from . import vllm_indexer

        vllm_indexer.install()

    def mxfp4() -> None:
        from . import vllm_mxfp4

        vllm_mxfp4.install()

    def int4() -> None:
        from . import vllm_int4

        vllm_int4.install()

    def mla() -> None:
        from . import vllm_mla

        vllm_mla.install()

    found = {
        "FP8 linear layers": linear,
        "FP8 experts": experts,
        "MXFP4 layers and experts": mxfp4,
        "int4 layers and experts": int4,
        "MLA attention": mla,
        "the sparse indexer": indexer,
    }
    return parts.install(found, f"vLLM {vllm.__version__}", _LOGGER)


def _is_gfx942() -> bool:
    """Asks vLLM, which needs no HIP context for the answer; workers are forked after plug-ins are loaded."""
    from vllm.platforms import current_platform

    if not current_platform.is_rocm():
        return False
    from vllm.platforms.rocm import on_gfx942

    is_gfx942: bool = on_gfx942()
    return is_gfx942

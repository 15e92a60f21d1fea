"""Arguments and launches of the kernels that write DeepSeek's latent cache."""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import present
from .launch import Launch, Sizes


class AppendLatentArguments(Structure):
    """The structure of the same name in latent_cache.h."""

    _fields_ = (
        ("latent", c_void_p),
        ("rotary", c_void_p),
        ("cache", c_void_p),
        ("slots", c_void_p),
        ("latent_stride", c_int64),
        ("rotary_stride", c_int64),
        ("page_bytes", c_int64),
        ("num_slots", c_int64),
        ("tokens", c_int),
        ("page_size", c_int),
        ("has_wide_slots", c_int),
        ("is_ocp", c_int),
        ("descale", c_void_p),
    )


def append_latent_launch(
    latent: torch.Tensor,
    rotary: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    descale: torch.Tensor | None,
    layout: str,
    is_ocp: bool,
) -> Launch:
    """Describes the launch for checked arguments of ``append_mla_cache``, with at least one token.

    Args:
        descale: fp32 [1], what values of ``e4m3`` are multiplied with; 1 if None.
        layout: ``bf16``, with tokens of 576 elements; ``bf16_512``; ``e4m3``; ``e4m3_656`` or ``e4m3_584``.
    """
    pages, page_size = cache.shape[:2]
    arguments = AppendLatentArguments(
        latent_stride=latent.stride(0),
        rotary_stride=rotary.stride(0),
        page_bytes=cache.stride(0) * cache.element_size(),
        num_slots=pages * page_size,
        tokens=len(latent),
        page_size=page_size,
        has_wide_slots=slots.dtype == torch.int64,
        is_ocp=is_ocp,
    )
    pointers = present(
        latent=("kv_c", latent), rotary=("k_pe", rotary), cache=("cache", cache), slots=("slots", slots),
        descale=("kv_descale", descale),
    )  # fmt: skip
    values = {"layout": layout, "kernel_name": f"append_mla_cache_{layout}"}
    request = Request("append_mla_cache.hip.j2", values)
    return Launch(
        request,
        arguments,
        pointers,
        written=("cache",),
        aligned=("latent", "rotary", "cache"),
        sizes=lambda tokens: Sizes(request, {"tokens": tokens}, {}),
    )

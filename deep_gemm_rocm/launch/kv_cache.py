"""Arguments and launches of the kernels that write a paged cache of keys and values."""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import present
from .attention import HeadsTensor, PagedTensor
from .launch import Launch


class AppendedHeads(Structure):
    _fields_ = (
        ("tokens", HeadsTensor),
        ("cache", PagedTensor),
        ("descale", c_void_p),
        ("descale_stride", c_int64),
        ("width", c_int),
    )

    @classmethod
    def of(cls, tokens: torch.Tensor, cache: torch.Tensor, descale: torch.Tensor | None) -> AppendedHeads:
        stride = 0 if descale is None or len(descale) == 1 else descale.stride(0)
        return cls(HeadsTensor.of(tokens), PagedTensor.of(cache), None, stride, tokens.shape[-1])


class AppendKvArguments(Structure):
    """The structure of the same name in kv_cache.h."""

    _fields_ = (
        ("k", AppendedHeads),
        ("v", AppendedHeads),
        ("slots", c_void_p),
        ("num_slots", c_int64),
        ("tokens", c_int),
        ("heads", c_int),
        ("page_size", c_int),
        ("has_wide_slots", c_int),
    )


def append_kv_launch(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    type_: str,
    cache_type: str,
) -> Launch:
    """Describes the launch for checked arguments of ``append_kv_cache``, with at least one token.

    Args:
        type_, cache_type: ``bf16`` or ``f16``; the latter may be ``e4m3``, too.
    """
    pages, page_size, heads, _ = k_cache.shape
    arguments = AppendKvArguments(
        k=AppendedHeads.of(k, k_cache, k_descale),
        v=AppendedHeads.of(v, v_cache, v_descale),
        num_slots=pages * page_size,
        tokens=len(k),
        heads=heads,
        page_size=page_size,
        has_wide_slots=slots.dtype == torch.int64,
    )
    pointers = present(slots=("slots", slots)) | present(
        **{
            "k.tokens.data": ("k", k), "v.tokens.data": ("v", v),
            "k.cache.data": ("k_cache", k_cache), "v.cache.data": ("v_cache", v_cache),
            "k.descale": ("k_descale", k_descale), "v.descale": ("v_descale", v_descale),
        }
    )  # fmt: skip
    values = {"type": type_, "cache_type": cache_type, "kernel_name": f"append_kv_cache_{type_}_{cache_type}"}
    written = ("k.cache.data", "v.cache.data")
    request = Request("append_kv_cache.hip.j2", values)
    return Launch(request, arguments, pointers, written=written, aligned=(*written, "k.tokens.data", "v.tokens.data"))

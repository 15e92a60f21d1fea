"""Arguments and launches of the kernels that write a paged cache of keys and values."""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import present
from .attention import HeadsTensor
from .decode import PagedTensor
from .launch import Launch, Sizes


class AppendedHeads(Structure):
    _fields_ = (
        ("tokens", HeadsTensor),
        ("cache", PagedTensor),
        ("descale", PagedTensor),
        ("width", c_int),
    )

    @classmethod
    def of(cls, tokens: torch.Tensor, cache: torch.Tensor, descale: torch.Tensor | None) -> AppendedHeads:
        strides = (0, 0, 0) if descale is None else descale.expand(cache.shape[:-1]).stride()
        return cls(HeadsTensor.of(tokens), PagedTensor.of(cache), PagedTensor(None, *strides), tokens.shape[-1])


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
    of_tokens: bool,
) -> Launch:
    """Describes the launch for checked arguments of ``append_kv_cache``, with at least one token.

    Args:
        type_, cache_type: ``bf16`` or ``f16``; the latter may be ``e4m3``, too.
        of_tokens: whether there is a factor for each token, which is written.
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
            "k.descale.data": ("k_descale", k_descale), "v.descale.data": ("v_descale", v_descale),
        }
    )  # fmt: skip
    name = f"append_kv_cache_{type_}_{cache_type}{'_tokens' if of_tokens else ''}"
    values: dict[str, str | bool] = {
        "type": type_, "cache_type": cache_type, "of_tokens": of_tokens, "kernel_name": name,
    }  # fmt: skip
    caches = ("k.cache.data", "v.cache.data")
    written = (*caches, "k.descale.data", "v.descale.data") if of_tokens else caches
    request = Request("append_kv_cache.hip.j2", values)
    return Launch(
        request,
        arguments,
        pointers,
        written=written,
        aligned=(*caches, "k.tokens.data", "v.tokens.data"),
        sizes=lambda tokens: Sizes(request, {"tokens": tokens}, {}),
    )

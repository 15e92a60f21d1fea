"""Writing DeepSeek's latent cache, for MLA."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import is_traced, one_of
from ..launch.latent_cache import append_latent_launch
from ..launch.repeated import Described, launches_of_rows
from ..problems.latent import LATENT_FP8_DTYPES, check_latent_descale
from ..problems.sequences import check_slots
from ..problems.tensors import ALIGNMENT, check_data, check_form, check_not_shared, check_one_device

_ROTARY = 64
_MOST_SLOTS = 2**31 - 1
_MAX_PAGE_SIZE = 2**16
_MAX_TOKENS = 2**22
# By dtype and width of the cache: the kernels' name of the layout, and the width of the latent vector.
_LAYOUTS = {
    (torch.bfloat16, 576): ("bf16", 512),
    (torch.bfloat16, 512): ("bf16_512", 448),
    **{(dtype, 576): ("e4m3", 512) for dtype in LATENT_FP8_DTYPES},
    (torch.uint8, 656): ("e4m3_656", 512),
    (torch.uint8, 584): ("e4m3_584", 448),
}
_DTYPES = (torch.bfloat16, *LATENT_FP8_DTYPES, torch.uint8)


@launches_of_rows("kv_c", "k_pe", "slots")
def append_mla_cache(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    kv_descale: torch.Tensor | None = None,
    fp8_dtype: torch.dtype = torch.float8_e4m3fnuz,
) -> Described[None]:
    """Writes tokens to DeepSeek's latent cache in one of five layouts, which the cache's dtype and width tell.

    In uint8 caches FP8 values are quantised by scales of 128 or 64 neighbouring values: the largest magnitude divided
    by 240, the largest FNUZ number, or by 448, OCP's. Scales are at least 2^-126. If one of these values is a NaN or an
    infinity, all of them read as NaN. The layouts of 656 and 584 bytes are FlashMLA's, of DeepSeek-V3.2 and V4.

    In other FP8 caches a value is divided by ``kv_descale`` and rounded to nearest, ties to even. What exceeds the
    largest number becomes that; a NaN stays one. A zero has no sign, in OCP's format either.

    Args:
        kv_c: bf16 [tokens, 512], the latent vectors; [tokens, 448] for bf16 with width 512, and for 584 bytes. Up to
            2^22 tokens.
        k_pe: bf16 [tokens, 64], the rotary parts. Rows of both are contiguous and any multiple of 16 bytes apart.
        cache: [pages, page, 1, width] or [pages, page, width], written in place. Each page is contiguous; pages are any
            multiple of 16 bytes apart, and have up to 65536 tokens. It is
            bf16 with width 576, as ``mla_decode`` and ``sparse_mla`` take it, or 512, as ``sparse_mla`` does: the
            latent vector, then the rotary part;
            float8_e4m3fnuz or float8_e4m3fn with width 576, as ``mla_decode`` takes it: the same in FP8;
            uint8 with width 656: for each token 512 FP8 values, 4 fp32 scales of 128 values each, 64 bf16 of the rotary
            part;
            or uint8 with width 584: for all tokens of a page 448 FP8 values and 64 bf16 of the rotary part, and then
            for all its tokens 8 bytes, 7 scales of 64 values each, powers of two rounded up as e8m0, and a zero.
        slots: int32 or int64 [tokens], contiguous: page number · page + offset. A token whose slot is negative, or not
            in the cache, is not written. Slots must be different.
        kv_descale: fp32 [1], factor of a cache of 576 FP8 values, positive; 1 if None.
        fp8_dtype: the format of FP8 values in a uint8 cache, torch.float8_e4m3fnuz, the one that an MI300X multiplies,
            or torch.float8_e4m3fn, of OCP.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        torch.ops.deep_gemm_rocm.append_mla_cache(kv_c, k_pe, cache, slots, kv_descale, fp8_dtype)
        return None, None
    layout, width = _layout(cache)
    check_form("kv_c", kv_c, torch.bfloat16, (None, width))
    tokens = len(kv_c)
    if tokens > _MAX_TOKENS:
        raise ValueError(f"kv_c must have up to {_MAX_TOKENS} tokens, got {tokens}")
    check_form("k_pe", k_pe, torch.bfloat16, (tokens, _ROTARY))
    for name, tensor in (("kv_c", kv_c), ("k_pe", k_pe)):
        if tensor.data_ptr() % ALIGNMENT or (tokens > 1 and tensor.stride(0) * tensor.element_size() % ALIGNMENT):
            raise ValueError(f"rows of {name} must start at multiples of {ALIGNMENT} bytes, got {tensor.stride()}")
    check_slots(slots, tokens)
    if fp8_dtype not in LATENT_FP8_DTYPES:
        raise TypeError(f"fp8_dtype must be {one_of(LATENT_FP8_DTYPES)}, got {fp8_dtype!r}")
    tensors = {"kv_c": kv_c, "k_pe": k_pe, "cache": cache, "slots": slots}
    check_latent_descale(kv_descale, layout, tensors)
    check_one_device(tensors)
    check_not_shared("cache", cache, tensors)
    if tokens == 0 or cache.numel() == 0:
        return None, None
    is_ocp = torch.float8_e4m3fn == (fp8_dtype if cache.dtype == torch.uint8 else cache.dtype)
    return None, append_latent_launch(kv_c, k_pe, cache, slots, kv_descale, layout, is_ocp)


def _layout(cache: Any) -> tuple[str, int]:
    """Checks the cache; returns the kernels' name of its layout, and the width of latent vectors."""
    check_data("cache", cache)
    if cache.dim() not in (3, 4) or (cache.dim() == 4 and cache.shape[2] != 1):
        raise ValueError(f"cache must be [pages, page, 1, width] or [pages, page, width], got {tuple(cache.shape)}")
    if cache.dtype not in _DTYPES:
        raise TypeError(f"cache must be {one_of(_DTYPES)}, got {cache.dtype}")
    width = cache.shape[-1]
    layout = _LAYOUTS.get((cache.dtype, width))
    if layout is None:
        raise ValueError(
            "cache must have tokens of 576 or 512 elements in bf16, of 576 in FP8, or of 656 or 584 bytes in uint8, "
            f"got {width} elements of {cache.dtype}"
        )
    pages, page_size = cache.shape[:2]
    if page_size > _MAX_PAGE_SIZE or pages * page_size > _MOST_SLOTS:
        raise ValueError(
            f"cache must have pages of up to {_MAX_PAGE_SIZE} tokens and {_MOST_SLOTS} tokens, got {tuple(cache.shape)}"
        )
    page_bytes = page_size * width * cache.element_size()
    stride = cache.stride(0) * cache.element_size()
    if pages and page_size and not cache[0].is_contiguous():
        raise ValueError(f"each page of cache must be contiguous, got strides {cache.stride()}")
    if cache.data_ptr() % ALIGNMENT or (pages > 1 and (stride % ALIGNMENT or stride < page_bytes)):
        raise ValueError(
            f"pages of cache must start at multiples of {ALIGNMENT} bytes and not overlap, got strides {cache.stride()}"
        )
    return layout

"""Bytes of DeepSeek's latent cache, and the numbers that attention reads there."""

from __future__ import annotations

import torch

FNUZ, OCP = torch.float8_e4m3fnuz, torch.float8_e4m3fn
BF16 = torch.bfloat16


def rounded(values: torch.Tensor) -> torch.Tensor:
    """fp32 as the nearest bf16, ties away from zero."""
    bits = values.view(torch.int32)
    return torch.where(values.isfinite(), (bits + 0x8000) & ~0xFFFF, bits).view(torch.float32).to(BF16)


def random_codes(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """FP8 codes of any number but NaN."""
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return torch.where(codes.view(dtype).float().isnan(), torch.tensor(7, dtype=torch.uint8), codes)


def random_tokens(
    layout: str, count: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of a layout: bytes of the tokens, bytes of scales apart from them, and the numbers in bf16."""
    none = torch.empty(count, 0, dtype=torch.uint8)
    if layout == "bf16":
        values = torch.randn(count, 576, generator=generator).to(BF16)
        return values.view(torch.uint8), none, values
    if layout == "e4m3":
        codes = random_codes((count, 576), dtype, generator)
        return codes, none, codes.view(dtype).to(BF16)
    width, group = (512, 128) if layout == "e4m3_656" else (448, 64)
    codes = random_codes((count, width), dtype, generator)
    rotary = torch.randn(count, 64, generator=generator).to(BF16)
    if layout == "e4m3_656":
        scales = torch.rand(count, 4, generator=generator) / 64 + 0.001
        parts, apart = [codes, scales.view(torch.uint8), rotary.view(torch.uint8)], none
    else:
        exponents = torch.randint(115, 123, (count, 7), generator=generator, dtype=torch.uint8)
        scales = torch.exp2(exponents.float() - 127)
        padding = torch.full((count, 1), 255, dtype=torch.uint8)
        parts, apart = [codes, rotary.view(torch.uint8)], torch.cat([exponents, padding], 1)
    values = codes.view(dtype).float() * scales.repeat_interleave(group, 1)
    return torch.cat(parts, 1), apart, torch.cat([rounded(values), rotary], 1)


class LatentCache:
    """A cache of ``pages`` pages whose tokens are all NaN but for those that are put there."""

    def __init__(self, layout: str, pages: int, page_size: int, dtype: torch.dtype = FNUZ) -> None:
        self.layout, self.dtype, self.page_size = layout, dtype, page_size
        self.token_bytes = {"bf16": 1152, "e4m3": 576, "e4m3_656": 656, "e4m3_584": 576}[layout]
        scale_bytes = 8 if layout == "e4m3_584" else 0
        # 0xff is NaN in bf16, fp32, e8m0 and OCP; in FNUZ it is 0x80, which OCP reads as zero.
        self.bytes = torch.full((pages, page_size * (self.token_bytes + scale_bytes)), 0xFF, dtype=torch.uint8)
        data = self.bytes[:, : page_size * self.token_bytes].unflatten(1, (page_size, -1))
        width = {"bf16": 0, "e4m3": 576, "e4m3_656": 512, "e4m3_584": 448}[layout]
        if dtype == FNUZ:
            data[..., :width] = 0x80

    def put(self, slots: torch.Tensor, tokens: torch.Tensor, scales: torch.Tensor) -> None:
        for slot, token, scale in zip(slots.tolist(), tokens, scales, strict=True):
            page, place = self.bytes[slot // self.page_size], slot % self.page_size
            page[place * self.token_bytes :][: self.token_bytes] = token
            page[self.page_size * self.token_bytes + place * 8 :][: len(scale)] = scale

    @property
    def tensor(self) -> torch.Tensor:
        """The cache as attention takes it, [pages, page, 1, width]."""
        shape = (len(self.bytes), self.page_size, 1, -1)
        if self.layout == "bf16":
            return self.bytes.view(BF16).view(shape)
        return (self.bytes.view(self.dtype) if self.layout == "e4m3" else self.bytes).view(shape)

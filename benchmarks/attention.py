"""Attention beside Triton's, and decoding beside what memory allows: ``python benchmarks/attention.py forward``.

``python -m deep_gemm_rocm bench`` measures and checks the same; this computes nothing but times, so it is quicker.

On hardware by events; in simulation by the timing model, where one row of 8192 tokens and 32 heads takes minutes.
DG_SIM_TIMING_CONSTANTS can name a file with a smaller chip, whose CUs are the same: ``xcds = 1`` and
``cus_per_xcd = 4`` below ``[chip]``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated

import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import hip
from deep_gemm_rocm.benchmarks import triton_attention
from deep_gemm_rocm.benchmarks.measure import Sampling, Timing, time_calls

app = typer.Typer(add_completion=False, help=__doc__)
_FP8 = torch.float8_e4m3fnuz
_PAGE = 64


@app.command()
def forward(
    tokens: Annotated[int, typer.Option(help="Queries and keys, a multiple of 256.")] = 8192,
    heads: int = 32,
    kv_heads: int = 8,
    width: Annotated[int, typer.Option(help="Of a head.")] = 128,
    triton: Annotated[bool, typer.Option(help="Compare with the fastest configuration of Triton's.")] = True,
) -> None:
    """Time attention of a prompt: bf16 and FP8, causal and not."""
    print("| | µs | TFLOPS | MFMA utilisation | Triton's, µs | of ours |")
    print("|---|---|---|---|---|---|")
    for causal in (False, True):
        flops = 4 * tokens * tokens * heads * width / (2 if causal else 1)
        for dtype in (torch.bfloat16, _FP8):
            q, k, v = (_zeros(1, tokens, count, width, dtype=dtype) for count in (heads, kv_heads, kv_heads))
            ours = _time(lambda q=q, k=k, v=v, causal=causal: _forward(q, k, v, causal))
            name = f"{str(dtype).removeprefix('torch.')}{', causal' if causal else ''}"
            row = [name, f"{ours.median_us:.0f}", f"{flops / ours.median_us / 1e6:.0f}", _utilization(ours)]
            if triton and dtype == torch.bfloat16:
                out = torch.empty_like(q)
                theirs = {
                    str(config): _time(functools.partial(triton_attention.run, q, k, v, out, causal, config)).median_us
                    for config in triton_attention.CONFIGS
                    if tokens % config.BM == 0
                }
                best = min(theirs, key=theirs.__getitem__)
                row += [f"{theirs[best]:.0f} ({best})", f"{theirs[best] / ours.median_us:.2f}"]
            else:
                row += ["", ""]
            print(f"| {' | '.join(row)} |", flush=True)


@app.command()
def decode(
    batch: int = 64,
    context: Annotated[int, typer.Option(help="Tokens of each sequence.")] = 8192,
    mla_heads: Annotated[list[int] | None, typer.Option(help="Heads of mla_decode, a row each.")] = None,
) -> None:
    """Time a step over a paged cache: 32 heads of 128 with 8 of keys, and MLA."""
    print("| | µs | TB/s of the cache |")
    print("|---|---|---|")
    pages = -(-context // _PAGE)
    options = {
        "block_table": torch.randperm(batch * pages).int().view(batch, pages).to(_device()),
        "context_lens": torch.full((batch,), context, dtype=torch.int32, device=_device()),
    }
    for dtype in (torch.bfloat16, _FP8):
        q = _zeros(batch, 1, 32, 128, dtype=dtype)
        k, v = (_zeros(batch * pages, _PAGE, 8, 128, dtype=dtype) for _ in range(2))
        scales = _scales(dtype)
        timing = _time(
            lambda q=q, k=k, v=v, scales=scales: deep_gemm_rocm.flash_attention_decode(q, k, v, **options, **scales)
        )
        _print_bandwidth(f"decode, {str(dtype).removeprefix('torch.')}", timing, k.nbytes + v.nbytes)
    cache = _zeros(batch * pages, _PAGE, 1, 576, dtype=torch.bfloat16)
    for heads in mla_heads or (16, 128):
        q = _zeros(batch, 1, heads, 576, dtype=torch.bfloat16)
        timing = _time(lambda q=q: deep_gemm_rocm.mla_decode(q, cache, **options))
        _print_bandwidth(f"MLA decode, {heads} heads, bfloat16", timing, cache.nbytes)


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
    deep_gemm_rocm.flash_attention(q, k, v, causal=causal, **_scales(q.dtype))


def _scales(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    names = ("q_descale", "k_descale", "v_descale") if dtype == _FP8 else ()
    return {name: torch.ones(1, device=_device()) for name in names}


def _time(call: Callable[[], None]) -> Timing:
    return time_calls([call], Sampling.default(), compute="sampled")


def _utilization(timing: Timing) -> str:
    return "" if timing.mfma_utilization is None else f"{timing.mfma_utilization:.0%}"


def _print_bandwidth(name: str, timing: Timing, cache_bytes: int) -> None:
    print(f"| {name} | {timing.median_us:.0f} | {cache_bytes / timing.median_us / 1e6:.2f} |", flush=True)


def _device() -> str:
    return hip.runtime().tensor_device


def _zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=_device())


if __name__ == "__main__":
    app()

"""A decoder layer beside the same layer in Triton: ``python benchmarks/decoder_layer.py``.

The steps are those of examples/decoder_layer.py, each measured by itself, with the fastest of Triton's configurations.
Writing the cache, rotary embeddings and Triton's sorting of tokens by expert aren't counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from deep_gemm_rocm.benchmarks import suite
from deep_gemm_rocm.benchmarks.measure import Sampling
from deep_gemm_rocm.benchmarks.operations import OPERATIONS

Step = tuple[str, str, str]  # what it does, the operation, its shape
CONTEXT = 4096  # tokens of a sequence


def deepseek_v3(tokens: int, *, prompt: bool) -> Iterator[Step]:
    yield "normalise, quantise", "rms_norm_cast_to_fp8", f"{tokens}x7168"
    yield "project down", "fp8_gemm_nt", f"{tokens}x2112x7168"
    yield "normalise, quantise", "rms_norm_cast_to_fp8", f"{tokens}x1536"
    yield "project queries up", "fp8_gemm_nt", f"{tokens}x24576x1536"
    if prompt:
        yield "quantise", "per_token_cast_to_fp8", f"{tokens}x512"
        yield "project keys and values up", "fp8_gemm_nt", f"{tokens}x32768x512"
        yield "attend", "mla_prefill", f"1x{tokens}x{tokens}x128x128x192"
    else:
        yield "absorb keys", "m_grouped_bf16_gemm_nt_masked", f"{tokens}x512x128x128"
        yield "attend", "mla_decode", f"{tokens}x1x{CONTEXT}x128x1x576"
        yield "absorb values", "m_grouped_bf16_gemm_nt_masked", f"{tokens}x128x512x128"
    yield "quantise", "per_token_cast_to_fp8", f"{tokens}x16384"
    yield "project out", "fp8_gemm_nt", f"{tokens}x7168x16384"
    yield "normalise, quantise", "rms_norm_cast_to_fp8", f"{tokens}x7168"
    yield "score experts", "bf16_gemm_nt", f"{tokens}x256x7168"
    yield "choose experts", "route_top_k", f"{tokens}x256"
    yield "experts", "fused_moe", f"{tokens}x7168x2048x32x8"
    yield "shared expert, first GEMM", "fp8_gemm_nt", f"{tokens}x4096x7168"
    yield "activate, quantise", "silu_and_mul_cast_to_fp8", f"{tokens}x2048"
    yield "shared expert, second GEMM", "fp8_gemm_nt", f"{tokens}x7168x2048"


def qwen3_235b(tokens: int, *, prompt: bool) -> Iterator[Step]:
    yield "normalise, quantise", "rms_norm_cast_to_fp8", f"{tokens}x4096"
    yield "project", "fp8_gemm_nt", f"{tokens}x9216x4096"
    if prompt:
        yield "attend", "flash_attention_causal", f"1x{tokens}x{tokens}x64x4x128"
    else:
        yield "attend", "flash_attention_decode", f"{tokens}x1x{CONTEXT}x64x4x128"
    yield "quantise", "per_token_cast_to_fp8", f"{tokens}x8192"
    yield "project out", "fp8_gemm_nt", f"{tokens}x4096x8192"
    yield "normalise, quantise", "rms_norm_cast_to_fp8", f"{tokens}x4096"
    yield "score experts", "bf16_gemm_nt", f"{tokens}x128x4096"
    yield "choose experts", "route_top_k", f"{tokens}x128"
    yield "experts", "fused_moe", f"{tokens}x4096x1536x16x8"


LAYERS = {"deepseek-v3": deepseek_v3, "qwen-3-235b": qwen3_235b}


def rows(steps: Iterator[Step]) -> Iterator[str]:
    """The lines of a table."""
    yield "| step | function and shape | µs | Triton, µs | ratio |"
    yield "|---|---|---:|---:|---:|"
    measured: dict[tuple[str, str], list[float]] = {}
    sums = [0.0, 0.0]
    for what, op, text in steps:
        if (op, text) not in measured:
            shape = OPERATIONS[op].parse(text)
            results = list(suite.run(op, shape, ["triton"], Sampling(1, 0, 0, check=False), lambda _: None))
            if missing := [result.missing for result in results if result.timing is None]:
                raise SystemExit(f"{op} {text}: {missing[0]}")
            measured[op, text] = [result.timing.microseconds for result in results if result.timing]
        ours, triton = measured[op, text]
        sums = [sums[0] + ours, sums[1] + triton]
        yield f"| {what} | `{op}` {text} | {ours:.1f} | {triton:.1f} | {triton / ours:.2f} |"
    yield f"| all | | {sums[0]:.0f} | {sums[1]:.0f} | {sums[1] / sums[0]:.2f} |"


def main(
    model: Annotated[Literal["deepseek-v3", "qwen-3-235b"], typer.Option(help="Whose layer.")] = "deepseek-v3",
    tokens: Annotated[int, typer.Option(help="Sequences of a step, or tokens of a prompt.")] = 64,
    prompt: Annotated[bool, typer.Option(help="Whether the tokens are a prompt.")] = False,
    without: Annotated[list[str] | None, typer.Option(help="A step to leave out, since it takes long.")] = None,
) -> None:
    """Print the table of a layer on one of eight devices."""
    left_out = without or []
    for line in rows(step for step in LAYERS[model](tokens, prompt=prompt) if step[0] not in left_out):
        print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)

"""The command line: ``python -m deep_gemm_rocm COMMAND``."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from . import __version__
from .api.warmup import models
from .cli import UsageError, cache, sim, writable
from .heuristics.tables import TableError
from .jit import JitError
from .runtime.hip import HipError, NoDeviceError
from .runtime.settings import SettingError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="FP8 kernels for AMD's MI300X, real or simulated.")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"deep_gemm_rocm {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
            # As Python does by itself in the locale C, unless it is told not to.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


app.add_typer(sim.app, name="sim")
app.add_typer(cache.app, name="cache")


@app.command()
def info() -> None:
    """Tell which runtime, device, compiler and cache folder are in use, and what is missing."""
    from .cli.info import show

    _finish(show)


@app.command()
def demo(
    attention: Annotated[bool, typer.Option(help="Run attention of a layer of Llama-3-8B instead.")] = False,
) -> None:
    """Run a projection of DeepSeek-V3 in FP8 and check every element of the result."""
    from .cli import attention_demo, demo

    _finish(attention_demo.run if attention else demo.run)


@app.command()
def selftest() -> None:
    """Check matrix cores, compiler, cache, every family of kernels and graphs, and print a report."""
    from .cli.selftest import run

    _finish(run)


@app.command()
def warmup(
    model: Annotated[str | None, typer.Option(help=f"One of {', '.join(models())}.")] = None,
    shapes: Annotated[
        Path | None, typer.Option(help="A file of workloads, see docs/serving.md.", exists=True, dir_okay=False)
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=1, help="Ranks that share the weights of a layer (tensor parallelism).")
    ] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compiles at once; as many as CPUs by default.")] = None,
) -> None:
    """Compile all kernels that a model needs into the kernel cache."""
    from .cli.warmup import run

    if model is not None and model not in models():
        raise typer.BadParameter(f"must be one of {', '.join(models())}, got {model}", param_hint="--model")
    file = shapes if model is None else models()[model]
    if file is None or (model is not None and shapes is not None):
        raise typer.BadParameter("give one of them", param_hint="--model, --shapes")
    _finish(lambda console: run(console, file, ranks, jobs))


@app.command()
def bench(
    op: Annotated[str, typer.Option(help="Functions, with commas between; see below.")] = "fp8_gemm_nt",
    shapes: Annotated[
        str,
        typer.Option(
            help=f"MxNxK, MxNxKxGROUPS, deepgemm, {', '.join(models())}; with commas between. See below for other "
            "functions than GEMM."
        ),
    ] = "deepgemm",
    baseline: Annotated[
        str,
        typer.Option(
            help="triton, rocblas, hipblaslt, torch_scaled_mm, aiter, dense, row_scales, all or none; with commas "
            "between. dense compares grouped GEMM with the dense kernel at the same FLOPs; aiter runs the code objects "
            "of the checkout that AITER_PATH names; rocblas and hipblaslt call the libraries that ROCBLAS_LIBRARY and "
            "HIPBLASLT_LIBRARY name, simulated too; row_scales is this package's kernel where a's scales are "
            "contiguous by rows."
        ),
    ] = "all",
    iters: Annotated[int | None, typer.Option(min=1, help="Timed calls.")] = None,
    cold_iters: Annotated[int | None, typer.Option(min=0, help="Calls before them.")] = None,
    rotating: Annotated[int | None, typer.Option(min=0, help="MB of inputs between which calls alternate.")] = None,
    csv: Annotated[Path | None, typer.Option(help="File for all numbers.", callback=writable)] = None,
    json: Annotated[
        Path | None, typer.Option(help="File for all numbers, with versions and clocks.", callback=writable)
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for a report.", callback=writable)] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for plots (PNG, needs matplotlib).", file_okay=False)
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Check results. Without, simulated times come several times quicker.")
    ] = True,
    chip: Annotated[
        str | None,
        typer.Option(
            help="Simulated times of another chip: mi325x, mi308x or mi300a. Kernels still see an MI300X's CUs."
        ),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            "--write-docs", help="Write docs/benchmarks.md there, with its picture beside it.", callback=writable
        ),
    ] = None,
) -> None:
    """Benchmark kernels against baselines: timed by events on hardware, by the timing model on the simulated MI300X.

    Functions:
    {fp8,bf16,fp8_fp4,bf16_fp4,fp8_shuffled_fp4,bf16_shuffled_fp4,fp8_int4,fp8_shuffled_int4,bf16_int4}_gemm_nt,
    fp8_fp4_gemm_nt_f32_scales, {fp8,bf16,fp8_shuffled}_int4_gemm_nt_groups_of_32,
    fp8_int4_gemm_nt_groups_of_32_f32_scales,
    m_grouped_{fp8,bf16,fp8_fp4,fp8_int4,bf16_int4}_gemm_nt_{contiguous,masked},
    k_grouped_{fp8,bf16}_gemm_tn_contiguous, {,fp8_}flash_attention{,_causal,_decode},
    flash_attention{,_decode}_fp8_cache, mla_prefill, {,fp8_}mla_decode, {,fp8_}sparse_mla, fp8_{,paged_}mqa_logits,
    top_k_per_row,
    {,bf16_,fp8_fp4_,bf16_fp4_,fp8_shuffled_fp4_,bf16_shuffled_fp4_,bf16_int4_,fp8_int4_,fp8_shuffled_int4_}fused_moe,
    per_{token,block,channel,row,tensor}_cast_to_fp8, {rms_norm,silu_and_mul}_cast_to_fp8, route_top_k; all for
    all of them.

    Shapes of attention are BATCHxTOKENS_QxTOKENS_KxHEADSxKV_HEADSxWIDTH, and those of fused_moe
    TOKENSxHIDDENxINTERMEDIATExEXPERTSxTOP_K.
    """
    from .benchmarks.baselines import BASELINES
    from .benchmarks.operations import OPERATIONS
    from .cli.bench import run, write_docs

    if docs:
        _finish(lambda console: write_docs(console, docs))

    def chosen(text: str, known: Iterable[str]) -> list[str]:
        return list(known) if text == "all" else [name for name in text.split(",") if name and name != "none"]

    given = {"iters": iters, "cold_iters": cold_iters, "rotating_mb": rotating, "check": check, "chip": chip}
    _finish(
        lambda console: run(
            console,
            chosen(op, OPERATIONS),
            shapes.split(","),
            chosen(baseline, BASELINES),
            {name: number for name, number in given.items() if number is not None},
            csv=csv,
            json=json,
            markdown=markdown,
            plot=plot,
        )
    )


@app.command()
def tune(
    op: Annotated[str, typer.Option(help="Functions, with commas between; see bench.")] = "fp8_gemm_nt",
    shapes: Annotated[
        str, typer.Option(help=f"MxNxK, MxNxKxGROUPS, deepgemm, {', '.join(models())}; with commas between. See bench.")
    ] = "deepgemm",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The table; rows that it has are kept. tuned_gemm.csv or tuned_attention.csv by default.",
            callback=writable,
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Configurations to measure for each shape.")] = 6,
    again: Annotated[bool, typer.Option(help="Whether to measure what is in the table as well.")] = False,
    by: Annotated[
        Literal["time", "energy"], typer.Option(help="What is least for the best; energy in simulation only.")
    ] = "time",
) -> None:
    """Measure the most promising configurations for each shape and keep the best ones in a table.

    For GEMM, a configuration that the heuristic may also choose wins if it takes at most 2% more, since it saves a
    kernel.
    """
    from .benchmarks.problems import OPERATIONS
    from .cli.tune import run

    ops = list(OPERATIONS) if op == "all" else op.split(",")
    _finish(lambda console: run(console, ops, shapes.split(","), out, count, again, by))


@app.command()
def calibrate(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="File for the constants, for DG_SIM_TIMING_CONSTANTS.",
            callback=writable,
        ),
    ] = Path("timing_constants.toml"),
    only: Annotated[str, typer.Option(help="Constants, such as l1.hit_clocks, with commas between.")] = "",
) -> None:
    """Measure this machine's MI300X, and find constants with which the timing model agrees with it. Takes minutes.

    Latencies, bandwidths, issue rates, the cost of launches, and the clock under load. The table shows each constant
    before and after, and the figure that it was found by, as measured and in the model before.
    """
    from .cli.calibrate import run

    _finish(lambda console: run(console, out, [name for name in only.split(",") if name]))


def _finish(command: Callable[[Console], bool]) -> None:
    """Runs a command and exits with status 0 if it returns True, else 1."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        good = command(console)
    except (JitError, HipError, NoDeviceError, SettingError, TableError, UsageError, OSError) as error:
        console.print(Text.assemble((type(error).__name__, "red"), f": {error}"))
        good = False
    raise typer.Exit(0 if good else 1)


if __name__ == "__main__":
    app()

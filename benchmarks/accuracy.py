"""The timing model beside published measurements: ``python benchmarks/accuracy.py CHECKOUT_OF_AITER``.

Runs AMD's own code objects in the model and divides their simulated times, under sustained load, by those that AITER's
tables of tuned kernels give. ``accuracy.csv`` holds those measurements. A row's hash decides whether constants may be
fitted to it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

import rich.progress
import torch
import typer

from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks.aiter import CODE, Argument, CodeObject
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.simulator import power
from deep_gemm_rocm.simulator.constants import chip_constants, current
from deep_gemm_rocm.simulator.library import library_path

ROWS = Path(__file__).with_name("accuracy.csv")
# Fewer than by default, since there are many rows.
MOST_INSTRUCTIONS = 5e6

TEMPLATE = """# How far the timing model is from measurements

This page is written by

```sh
python benchmarks/accuracy.py CHECKOUT_OF_AITER --write docs/accuracy.md
```

It runs AMD's own kernels, the code objects in `hsa/gfx942` of [AITER](https://github.com/ROCm/aiter), in the model,
and divides their simulated times under sustained load by those that AITER's tables of tuned kernels (`aiter/configs`)
tell. A ratio below 1 means that the model is too fast. Nobody here has measured anything.

- **WMAPE** is the sum of all errors over the sum of all measured times, so long kernels count more.
- One row in three may be **fitted to**, which the hash of a row decides. The others are **held out**. Constants were
  chosen by the former, but a few held-out rows were seen when mechanisms of the memory system were compared.
- The tables name the number of CUs. Which chip has it is told by the pull request that added the row: #2125 and #3951
  measured on an MI325X, all others on an MI308X. **No row was measured on an MI300X**: its times follow from those
  of its relatives and from what AMD publishes of its power.
- Rows whose time is that of another row too are copies in AITER's tables, and left out. Of #2896, which has hundreds
  of rows, every sixth was taken, then two of three, by hashes.
- This page has {count} of the {all} rows of `benchmarks/accuracy.csv`. The others, mostly large launches, were not run
  because they take minutes each.

Nine of ten rows that are held out take between {least:.2f} and {most:.2f} of the simulated time. Every simulated time
is shown with the interval that follows from it.

## Errors

{by_class}

## Sources that disagree

The same kernels take longer in one pull request than in another, at shapes that differ little: machines were in
different states. No model can be right for both.

Experts of #1418 come from memory at 2.4 to 3.3 TB/s, where the model reads 3.5 to 3.9. A limit of 176 lines under way
in a CU would bring the worst row, 1024x512x7168, from 0.70 to 0.97, but 8x512x6144 of #4236, which reads 4.1 TB/s, from
1.13 to 1.54, 64x512x6144 from 0.93 to 1.16, and int8 512x1280x8192 from 1.04 to 1.08. So it isn't that.

{by_source}

## What isn't compared here

- **AMD's "max achievable" rates** and their clocks (FP8, bf16 and f16 on MI300X and MI325X) calibrate the power
  model; `tests/simulator/test_power.py` holds the six clocks to 5%. hipBLASLt's kernels that reached them aren't in
  AITER.
- **hipBLASLt's and RadeonFlow's published times** need kernels that somebody has to build first.
- **Composable Kernel's rows of AITER's tables**, which are the most, have no code objects.
- **Micro-benchmarks** of latencies and bandwidths are in [timing.md](timing.md#how-far-it-is-from-hardware), and
  `tests/simulator/test_timing.py` holds them.

## Rows

{by_row}
"""


@dataclass(frozen=True)
class Row:
    """A published time of one kernel. ``n`` of a mixture of experts counts gate and up of one expert, ``m`` tokens."""

    kind: str
    chip: str
    source: str
    kernel: str
    m: int
    n: int
    k: int
    split: int
    experts: int
    topk: int
    us: float

    @property
    def name(self) -> str:
        return "/".join(map(str, astuple(self)[:-1]))

    @property
    def fits(self) -> bool:
        """Whether constants may be fitted to it: one row in three."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 3 == 0

    @property
    def shape(self) -> str:
        experts = f", {self.topk} of {self.experts} experts" if self.experts else ""
        split = f", split {self.split}" if self.split > 1 else ""
        return f"{self.m}x{self.n}x{self.k}{experts}{split}"


def rows() -> list[Row]:
    with ROWS.open(encoding="utf-8") as file:
        numbers = ("m", "n", "k", "split", "experts", "topk")
        return [
            Row(**{**r, **{name: int(r[name]) for name in numbers}, "us": float(r["us"])}) for r in csv.DictReader(file)
        ]


# ---- AITER's kernels ----


@dataclass(frozen=True)
class Launch:
    """A kernel, its grid, and its arguments: tensors, integers and null pointers, each in 16 bytes."""

    grid: tuple[int, int, int]
    arguments: Sequence[Argument]


def tile(row: Row) -> tuple[int, int]:
    """Rows and columns of the kernel's tile, from its name."""
    text = next(part for part in row.kernel.split("_") if part[0].isdigit() and "x" in part)
    m, n = text.split("x")
    return int(m), int(n)


def zeros(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Memory that is never touched on the host takes no room there."""
    return torch.zeros(*shape, dtype=dtype)


def scales(count: int) -> torch.Tensor:
    return zeros(count, dtype=torch.float32)


def fp8_gemm(row: Row) -> Launch:
    """Scales of 1x128 and 128x128; the workgroups of a split add up with atomics."""
    m, n, k, (tile_m, tile_n) = row.m, row.n, row.k, tile(row)
    out, a, b = zeros(m, n, dtype=torch.bfloat16), zeros(m, k), zeros(n, k)
    tensors = [out, a, b, scales(m * k // 128), scales(n * k // 128**2), scales(n)]
    numbers = [m, n, k, k, k, 2 * n, row.split, m, n // 128, k // 128]
    grid = (n // tile_n * row.split, math.ceil(m / tile_m), 1)
    return Launch(grid, [*tensors, *numbers])


def int8_gemm(row: Row) -> Launch:
    """Scales for each row and column."""
    m, n, k, (tile_m, tile_n) = row.m, row.n, row.k, tile(row)
    out, a, b = zeros(m, n, dtype=torch.bfloat16), zeros(m, k), zeros(n, k)
    tensors = [out, a, b, scales(m), scales(n), scales(n)]
    grid = (n // tile_n * row.split, math.ceil(m / tile_m), 1)
    return Launch(grid, [*tensors, m, n, k, k, k, 2 * n, row.split])


def bf16_gemm(row: Row) -> Launch:
    m, n, k, (tile_m, tile_n) = row.m, row.n, row.k, tile(row)
    out, a, b = (zeros(*shape, dtype=torch.bfloat16) for shape in ((m, n), (m, k), (n, k)))
    one = 0x3F800000
    numbers = [one, 0, 2 * n, 0, 2 * n, 0, 2 * k, 0, 2 * k, 0, m, n, k, row.split, 1]
    semaphores = zeros(16 * 64, dtype=torch.int32)
    grid = (math.ceil(n / tile_n), math.ceil(m / tile_m), row.split)
    return Launch(grid, [out, None, a, b, *numbers, None, 0, semaphores])


def sorted_tokens(row: Row, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of random experts in blocks, each of one expert: slot << 24 | token, the expert of each block, and the
    number of rows with padding."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(row.m, row.experts, generator=generator).topk(row.topk).indices
    ids, experts = [], []
    for expert in range(row.experts):
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        padding = -len(token) % block
        ids += [slot << 24 | token, torch.full((padding,), row.topk << 24 | row.m)]
        experts += [expert] * ((len(token) + padding) // block)
    most = row.m * row.topk + row.experts * block - row.topk
    used = torch.cat(ids).to(torch.int32)
    sorted_ids = torch.cat([used, torch.full((most - len(used),), row.topk << 24 | row.m, dtype=torch.int32)])
    blocks = torch.tensor(experts + [0] * (math.ceil(most / block) - len(experts)), dtype=torch.int32)
    return sorted_ids, blocks, torch.tensor([len(used), row.m], dtype=torch.int32)


def moe_stage1(row: Row) -> Launch:
    """Gate and up of each token's experts, then their product, in FP8 or bf16."""
    tokens, inter, dim, (tile_m, tile_n) = row.m, row.n // 2, row.k, tile(row)
    ids, blocks, used = sorted_tokens(row, tile_m)
    blockscale = "blockscale" in row.kernel
    out_dtype = torch.int8 if blockscale else torch.bfloat16
    out = zeros(tokens + math.ceil(tokens * 4 / 128), row.topk, inter, dtype=out_dtype)  # FP8, then its scales
    x, weights = zeros(tokens, dim), zeros(row.experts, row.n, dim)
    scales_of_expert = row.n * dim // 128**2 if blockscale else row.n
    x_scales = scales(tokens * (dim // 128 if blockscale else 1))
    tensors = [out, x, weights, used, x_scales, scales(row.experts * scales_of_expert), None, ids, blocks]
    strides = [dim, dim, topk_bytes(out), row.n * dim, 4 * scales_of_expert, 4 * inter]
    numbers = [dim, inter, tokens, row.experts, *strides, row.topk, 0, 0]
    grid = (math.ceil(inter / tile_n), len(blocks), 1)
    return Launch(grid, [*tensors, *numbers, None])


def topk_bytes(out: torch.Tensor) -> int:
    return out.stride(0) * out.element_size()


# The folder of the code objects, and the launch.
KINDS: dict[str, tuple[str, Callable[[Row], Launch]]] = {
    "FP8 blockscale GEMM": ("fp8gemm_blockscale", fp8_gemm),
    "int8 GEMM": ("i8gemm", int8_gemm),
    "bf16 GEMM": ("bf16gemm", bf16_gemm),
    "fused MoE stage 1": ("fmoe_2stages", moe_stage1),
}


def code_object(row: Row, aiter: Path) -> bytes:
    folder, _ = KINDS[row.kind]
    return (aiter / CODE / folder / f"{row.kernel}.co").read_bytes()


def run(row: Row, aiter: Path, constants: dict[str, float]) -> simulator.KernelProfile:
    """The profile of the row's kernel, on its chip."""
    folder, launch_of = KINDS[row.kind]
    launch = launch_of(row)
    symbol = f"_ZN5aiter{len(row.kernel)}{row.kernel}E"
    kernel = CodeObject(hip.runtime(), aiter / CODE / folder / f"{row.kernel}.co", symbol)
    changes = {"sampling.most_instructions": MOST_INSTRUCTIONS, **constants}
    with simulator.profile(changes, chip=row.chip, compute="sampled") as prof:
        kernel.launch(launch.grid, launch.arguments)
    return prof.kernels[0]


# ---- Results ----

RECOMPUTED = ("power.", "launch.overhead_ns")
# The parts of a profile that a row's time follows from.
KEPT = ("cycles", "time_us", "mfma_utilization", "activity", "busy", "l2_hit_rate", "hbm_bytes", "stalls")


class Cache:
    """Results by what they depend on, so that constants of power can be fitted without running kernels again."""

    def __init__(self, folder: Path, aiter: Path, changes: dict[str, float]) -> None:
        self.folder, self.aiter, self.changes = folder, aiter, changes
        sources = sorted(path for path in (library_path().parents[1] / "csrc/engine").rglob("*.*") if path.is_file())
        self.engine = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)

    def constants(self, row: Row) -> dict[str, float]:
        return current({**chip_constants(row.chip), **self.changes})

    def path(self, row: Row) -> Path:
        constants = {name: value for name, value in self.constants(row).items() if not name.startswith(RECOMPUTED)}
        code = hashlib.sha256(code_object(row, self.aiter)).hexdigest()
        facts = json.dumps([self.engine, constants, row.name, code, MOST_INSTRUCTIONS])
        return self.folder / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"

    def result(self, row: Row) -> dict[str, Any]:
        path = self.path(row)
        if not path.exists():
            profile = run(row, self.aiter, self.changes)
            path.write_text(json.dumps({name: getattr(profile, name) for name in KEPT}), encoding="utf-8")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def sustained(self, row: Row) -> power.Sustained:
        found = self.result(row)
        return power.sustained(found["cycles"], found["activity"], found["busy"], self.constants(row))


# ---- Report ----

Found = tuple[Row, power.Sustained]


def errors(found: Sequence[Found]) -> str:
    """Cells: rows, weighted mean absolute percentage error, geometric mean and worst ratio, rows beyond 30%."""
    ratios = [load.microseconds / row.us for row, load in found]
    wmape = sum(abs(load.microseconds - row.us) for row, load in found) / sum(row.us for row, _ in found)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    return f"{len(found)} | {wmape:.1%} | {mean:.2f} | {worst:.2f} | {sum(abs(ratio - 1) > 0.3 for ratio in ratios)}"


def error_table(found: Sequence[Found]) -> Iterator[str]:
    yield "| rows | count | WMAPE | geometric mean | worst | beyond 30% |"
    yield "|---|---|---|---|---|---|"
    for title, fitted in (("held out", False), ("fitted to", True)):
        part = [f for f in found if f[0].fits == fitted]
        for chip, kind in sorted({(row.chip, row.kind) for row, _ in part}):
            group = [f for f in part if (f[0].chip, f[0].kind) == (chip, kind)]
            yield f"| {title}: {kind}, {chip} | {errors(group)} |"
        if part:
            yield f"| **{title}: all** | {errors(part)} |"


def source_table(found: Sequence[Found]) -> Iterator[str]:
    """Where sources of one chip and kind differ from the model by different factors, they disagree with each other."""
    yield "| chip | kernels | source | rows | geometric mean |"
    yield "|---|---|---|---|---|"
    for key in sorted({(row.chip, row.kind, row.source) for row, _ in found}):
        ratios = [load.microseconds / row.us for row, load in found if (row.chip, row.kind, row.source) == key]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        yield f"| {' | '.join(key)} | {len(ratios)} | {mean:.2f} |"


def spread(found: Sequence[Found]) -> tuple[float, float]:
    """Between which ratios of measured to simulated time nine of ten rows lie."""
    ratios = sorted(row.us / load.microseconds for row, load in found)
    at = [ratios[round(share * (len(ratios) - 1))] for share in (0.05, 0.95)]
    return at[0], at[1]


def row_table(found: Sequence[Found]) -> Iterator[str]:
    yield "| chip | source | kernel | MxNxK | measured, µs | simulated, µs | ratio | MHz | fitted |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row, load in found:
        times = f"{row.us:.1f} | {load.microseconds:.1f} | {load.microseconds / row.us:.2f} | {load.mhz:.0f}"
        yield f"| {row.chip} | {row.source} | {row.kernel} | {row.shape} | {times} | {'yes' if row.fits else ''} |"


def page(found: Sequence[Found]) -> str:
    least, most = spread([f for f in found if not f[0].fits] or found)
    tables = [list(table(found)) for table in (error_table, source_table, row_table)]
    by_class, by_source, by_row = ("\n".join(table) for table in tables)
    counts = {"count": len(found), "all": len(rows())}
    return TEMPLATE.format(**counts, least=least, most=most, by_class=by_class, by_source=by_source, by_row=by_row)


def changes_in(text: str) -> dict[str, float]:
    """The constants of ``--change``.

    Raises:
        typer.BadParameter: one has no number, or is no constant.
    """
    known, changes = current(), {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            changes[name] = float(value)
        except ValueError:
            raise typer.BadParameter(f"expected NAME=NUMBER, got {part!r}", param_hint="--change") from None
        if name not in known:
            raise typer.BadParameter(f"there is no constant {name}", param_hint="--change")
    return changes


def main(
    aiter: Annotated[Path, typer.Argument(help="A checkout of github.com/ROCm/aiter.", exists=True, file_okay=False)],
    cache: Annotated[Path, typer.Option(help="Keeps results.")] = Path("build/accuracy"),
    only: Annotated[str, typer.Option(help="Rows whose name contains it.")] = "",
    fit: Annotated[bool, typer.Option(help="Only rows that constants may be fitted to.")] = False,
    change: Annotated[str, typer.Option(help="Constants, as in l1.fill_bytes=128,hbm.extra_ns=150.")] = "",
    kept: Annotated[bool, typer.Option(help="Only rows whose results are kept.")] = False,
    write: Annotated[Path | None, typer.Option(help="Writes the page, docs/accuracy.md.")] = None,
) -> None:
    """Print the page: errors of each class, of each source and of each row."""
    if not (aiter / CODE).is_dir():
        raise typer.BadParameter(f"expected a checkout of AITER, with a folder {CODE}, got {aiter}", param_hint="aiter")
    changes = changes_in(change)
    results = Cache(cache, aiter, changes)
    chosen = [row for row in rows() if only in row.name and (row.fits or not fit)]
    chosen = [row for row in chosen if not kept or results.path(row).exists()]
    if not chosen:
        raise typer.BadParameter("no row is chosen by --only, --fit and --kept")
    found = [(row, results.sustained(row)) for row in rich.progress.track(chosen, "running kernels")]
    text = page(found)
    print(text) if write is None else write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

"""The page docs/benchmarks.md and its picture, docs/speed.svg: ``python -m deep_gemm_rocm bench --write-docs``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .operations import OPERATIONS
from .report import REGIMES, geomean, markdown_table, regime
from .shapes import DENSE, AnyShape, Shape
from .suite import OURS, Result

PICTURE = "speed.svg"

# Microseconds on an MI300X, recipe 1x128x128. They are kernel times over rotated arguments, so with cold caches.
PUBLISHED = {
    Shape(64, 2112, 7168): 19.1577,
    Shape(64, 7168, 2048): 11.0504,
    Shape(128, 2112, 7168): 19.7518,
    Shape(128, 7168, 2048): 13.4382,
    Shape(1024, 2112, 7168): 57.3845,
    Shape(1024, 7168, 2048): 56.4329,
    Shape(4096, 2112, 7168): 167.5622,
    Shape(4096, 7168, 2048): 167.0036,
    Shape(16384, 2112, 7168): 668.8131,
    Shape(16384, 7168, 2048): 613.4158,
}
_SOURCE = (
    "[AITER's table](https://github.com/ROCm/aiter/blob/1a4121e559b347d3567a3b4cf6daefe99f541044/"
    "aiter/configs/model_configs/a8w8_blockscale_tuned_gemm_ds_v3.csv)"
)

_PUBLISHED_OP = "fp8_gemm_nt"
BESIDE_AITER = {
    _PUBLISHED_OP: tuple(
        Shape(*extents)
        for extents in (
            (64, 7168, 2048), (128, 4096, 7168), (1024, 1536, 7168), (1024, 7168, 2048), (1024, 4608, 7168),
            (4096, 7168, 2048), (4096, 4096, 7168),
        )
    )
}  # fmt: skip
# Where scales by rows cost the most, and one grouped problem of each kind.
LAYOUTS_OF_SCALES: dict[str, tuple[AnyShape, ...]] = {
    _PUBLISHED_OP: tuple(
        Shape(*extents)
        for extents in (
            (64, 7168, 2048), (128, 4096, 7168), (1024, 1536, 7168), (1024, 7168, 2048), (4096, 576, 7168),
            (4096, 2112, 7168), (4096, 7168, 2048), (4096, 4096, 7168),
        )
    ),
    "m_grouped_fp8_gemm_nt_contiguous": (Shape(512, 4096, 7168, 4),),
    "m_grouped_fp8_gemm_nt_masked": (Shape(1024, 4096, 7168),),
    "fp8_fp4_gemm_nt": tuple(Shape(*extents) for extents in ((128, 4096, 7168), (256, 4096, 7168), (1024, 7168, 7168))),
    "fp8_shuffled_fp4_gemm_nt": (Shape(64, 4096, 7168), Shape(512, 1536, 7168)),
    "fp8_int4_gemm_nt": (Shape(128, 4096, 7168), Shape(1024, 7168, 7168)),
    "fp8_shuffled_int4_gemm_nt": (Shape(1024, 7168, 7168),),
}  # fmt: skip
# Weights of four bits by type of the activations, after weights of that type.
_OF_FOUR_BITS = {
    "FP8": {
        "FP8": "fp8_gemm_nt",
        "MXFP4": "fp8_fp4_gemm_nt",
        "MXFP4, shuffled": "fp8_shuffled_fp4_gemm_nt",
        "int4 of 32": "fp8_int4_gemm_nt_groups_of_32",
        "int4 of 32, shuffled": "fp8_shuffled_int4_gemm_nt_groups_of_32",
        "int4 of 128, shuffled": "fp8_shuffled_int4_gemm_nt",
    },
    "bf16": {
        "bf16": "bf16_gemm_nt",
        "MXFP4": "bf16_fp4_gemm_nt",
        "MXFP4, shuffled": "bf16_shuffled_fp4_gemm_nt",
        "int4 of 32": "bf16_int4_gemm_nt_groups_of_32",
    },
}
_SHAPES_OF_FOUR_BITS = tuple(
    Shape(*extents)
    for extents in (
        *((m, n, k) for n, k in ((4096, 7168), (18432, 7168), (7168, 18432)) for m in (1, 16, 64)),
        (1024, 4096, 7168), (1024, 7168, 7168), (4096, 4096, 7168),
    )
)  # fmt: skip
FOUR_BITS: dict[str, tuple[AnyShape, ...]] = {
    op: _SHAPES_OF_FOUR_BITS for ops in _OF_FOUR_BITS.values() for op in ops.values()
}
_BETWEEN_GEMMS = (
    "Kernels between two GEMMs. **of memory** is the share of the modelled memory's bandwidth (4.3 TB/s) that is used "
    "once the launch itself, 2.5 µs in the model, is over; more than all, where results stay in caches."
)
_LATENT_STEPS = " ".join(f"{batch}x1x8192x{heads}x1x576" for batch in (1, 64) for heads in (16, 128))
_ROWS = "1x7168 1024x7168 4096x7168"
# A sentence on each operation, and the shapes that are measured.
_SECTIONS = {
    "fp8_gemm_nt": ("Dense FP8 with fine-grained scales, MxNxK: the shapes of DeepGEMM's tests.", ""),
    "bf16_gemm_nt": (
        "Dense bf16, MxNxK.",
        "128x4096x7168 4096x2112x7168 4096x4096x7168 4096x7168x2048 4096x24576x1536",
    ),
    "m_grouped_fp8_gemm_nt_contiguous": (
        "Mixture of experts, prefill: MxNxKxGROUPS, where groups have 0.7 to 1.3 times M rows.",
        "8192x4096x7168x4 4096x7168x2048x8",
    ),
    "m_grouped_fp8_gemm_nt_masked": (
        "Mixture of experts, decoding: expected MxNxKxGROUPS, where groups have 0.7 to 1.3 times M rows.",
        "20x6144x7168x6 20x7168x3072x6 20x7168x3072x32 192x6144x7168x32 1024x4096x7168x1",
    ),
    "fused_moe": (
        "A whole layer of experts, DeepSeek-V3's on one of eight devices: TOKENSxHIDDENxINTERMEDIATExEXPERTSxTOP_K. "
        "AITER's table for it (a8w8_blockscale_tuned_fmoe_ds_v3.csv) gives 363, 408, 1091 and 3549 µs on hardware for "
        "both GEMMs alone. That was an MI325X, whose memory is faster: `bench --chip mi325x` tells 332 and 347 µs for "
        "64 and 128 tokens.",
        "64x7168x2048x33x9 128x7168x2048x33x9 1024x7168x2048x33x9 4096x7168x2048x33x9",
    ),
    "per_token_cast_to_fp8": (_BETWEEN_GEMMS + " Casts of bf16: TOKENSxCOLUMNS.", _ROWS),
    "per_block_cast_to_fp8": ("A scale for 128x128.", _ROWS),
    "per_channel_cast_to_fp8": ("A scale for 128 of a column.", _ROWS),
    "per_row_cast_to_fp8": ("A scale for a row.", _ROWS),
    "per_tensor_cast_to_fp8": ("Two launches, which both read the input; one for up to 65536 values.", _ROWS),
    "rms_norm_cast_to_fp8": ("With a residual: TOKENSxCOLUMNS.", _ROWS),
    "silu_and_mul_cast_to_fp8": ("TOKENSxCOLUMNS of the result.", "1x2048 1024x2048 4096x2048"),
    "route_top_k": ("DeepSeek-V3's choice of 8: TOKENSxEXPERTS.", "1x256 1024x256 4096x256"),
    "k_grouped_fp8_gemm_tn_contiguous": (
        "Weight gradients of experts: MxNxKxGROUPS, where groups have 0.7 to 1.3 times K.",
        "7168x2048x2048x16",
    ),
    "flash_attention_causal": (
        "Prompts in bf16, causal: SEQUENCESxQUERIESxKEYSxHEADSxKV_HEADSxWIDTH.",
        "1x2048x2048x32x8x128 1x8192x8192x32x8x128",
    ),
    "fp8_flash_attention_causal": ("The same in FP8.", "1x8192x8192x32x8x128"),
    "flash_attention_fp8_cache": (
        "Prompts in bf16, causal, over a cache in FP8, which is in pages of 64 tokens.",
        "1x2048x2048x32x8x128 1x8192x8192x32x8x128",
    ),
    "mla_prefill": (
        "DeepSeek's prompts in bf16, causal: heads of 192 elements, of which values have 128.",
        "1x1024x1024x128x128x192 1x4096x4096x64x64x192",
    ),
    "flash_attention_decode": ("A decoding step over a paged bf16 cache.", "1x1x8192x32x8x128 64x1x8192x32x8x128"),
    "mla_decode": (
        "A decoding step over DeepSeek's latent cache, with 16 and with 128 heads.",
        _LATENT_STEPS,
    ),
    "fp8_mla_decode": ("The same over a cache in FP8.", _LATENT_STEPS),
    "fp8_mqa_logits": ("Logits of the sparse indexer.", "1x2048x8192x64x1x128 1x4096x4096x64x1x128"),
    "fp8_paged_mqa_logits": (
        "The same for decoding steps, over a paged cache, without a schedule: the kernel shares out its work itself.",
        "1x1x32768x64x1x128 64x2x8192x64x1x128",
    ),
}

_INTRODUCTION = """# Benchmarks

Every time of this library on this page is **simulated**: nobody has run it on an MI300X yet. The page is written by

```sh
python -m deep_gemm_rocm bench --write-docs docs/benchmarks.md
```

which takes about an hour on two cores. The same code gives the same times on any machine.

- **Sustained** times are those at the clock that the power limit leaves a kernel that runs again and again. TFLOPS and
  GB/s follow from them. They are the ones to compare with measurements.
- **interval**: between which times a measurement would lie in nine of ten cases, by the model's errors in
  [accuracy.md](accuracy.md).
- **µs at a fixed 2100 MHz** is what a single launch takes at the boost clock.
- **MFMA** is the part of the time for which the chip's matrix cores work. **busiest** is the resource nearest to its
  limit on the CUs that have work.
- AMD's "max achievable" rates are 1273 TFLOPS in FP8 and 708 in bf16.
- **mJ** is the modelled energy of a call under sustained load.
- Each launch begins with an empty Infinity Cache. To save time, results are not computed here. The tests check
  them, and so does `python -m deep_gemm_rocm bench` for whatever it times.

[timing.md](timing.md) describes the model and tells how far it is from hardware.
"""


def problems() -> dict[str, tuple[AnyShape, ...]]:
    """The shapes on the page, by operation."""
    shapes: dict[str, tuple[AnyShape, ...]] = {
        op: tuple(OPERATIONS[op].parse(name) for name in names.split()) for op, (_, names) in _SECTIONS.items()
    }
    shapes[_PUBLISHED_OP] = tuple(dict.fromkeys((*DENSE, *PUBLISHED)))
    return shapes


def write(
    path: Path,
    results: Sequence[Result],
    beside_aiter: Sequence[Result],
    layouts_of_scales: Sequence[Result],
    of_four_bits: Sequence[Result],
    about: dict[str, str],
) -> None:
    """Writes the page; of the facts about the machine only those that simulated times depend on.

    Args:
        results: those of ``problems``.
        beside_aiter: those of ``BESIDE_AITER``, with the baseline ``aiter``; empty to leave it out.
        layouts_of_scales: those of ``LAYOUTS_OF_SCALES``, with the baseline ``row_scales``.
        of_four_bits: those of ``FOUR_BITS``.
    """
    lines = [_INTRODUCTION, "| | |", "|---|---|"]
    lines += [f"| {name} | {about[name]} |" for name in ("device", "compiler", "date")]
    lines += _beside_published(results)
    if beside_aiter:
        lines += ["", *_beside_assembler(beside_aiter)]
    lines += ["", *layouts_section(layouts_of_scales)]
    lines += ["", *four_bits_section(of_four_bits)]
    for op, (title, _) in _SECTIONS.items():
        lines += ["", f"## {op}", "", title, "", *markdown_table([r for r in results if r.op == op], without=("by",))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _published(results: Sequence[Result]) -> list[tuple[Shape, float, float, str]]:
    """Shape, microseconds published, ours, and the regime."""
    ours = {r.shape: (r.timing.microseconds, regime(r)) for r in results if r.op == _PUBLISHED_OP and r.timing}
    return [(shape, time, *ours[shape]) for shape, time in PUBLISHED.items()]


def _means(rows: Sequence[tuple[Shape, float, float, str]]) -> str:
    """The mean ratio of each regime, for that of all shapes tells mostly which were chosen."""
    ratios = {kind: [ours / theirs for _, theirs, ours, of_row in rows if of_row == kind] for kind in REGIMES}
    return ", ".join(f"{geomean(some):.2f} {kind} ({len(some)})" for kind, some in ratios.items() if some)


def _beside_published(results: Sequence[Result]) -> list[str]:
    rows = _published(results)
    return [
        "",
        "## Beside published measurements",
        "",
        f"AITER's kernels are Composable Kernel's, measured on an MI300X; their times are from {_SOURCE}.",
        "Ours are other kernels, and simulated, so a ratio below 1 doesn't show that ours are faster. A problem is",
        "memory-bound or compute-bound if its bytes or its FLOPs take at least twice as long as the other at the",
        "chip's peaks.",
        "",
        f"Geometric means of the ratios, with numbers of shapes: {_means(rows)}.",
        "",
        f"![FP8 GEMM: ours simulated, beside AMD's measured]({PICTURE})",
        "",
        "| MxNxK | AITER, µs measured | ours, µs, simulated, sustained | ratio | regime |",
        "|---|---|---|---|---|",
        *(
            f"| {shape} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.2f} | {kind} |"
            for shape, theirs, ours, kind in rows
        ),
    ]


def _beside_assembler(results: Sequence[Result]) -> list[str]:
    ours, aiters = ({r.shape: r for r in results if (r.by == OURS) == own} for own in (True, False))
    return [
        "## Beside AITER's assembler kernels, in the same model",
        "",
        "Both are simulated: ours, and the code objects of a checkout of AITER (`AITER_PATH`), of which the best tile",
        "and number of parts of K count. AITER's take weights in a layout of their own. Where K is in parts, they add",
        "bf16 with atomics; to fill the output with zeros before takes time that is not counted here.",
        "",
        "| MxNxK | AITER, µs | tile | ours, µs | ratio | AITER, mJ | ours, mJ |",
        "|---|---|---|---|---|---|---|",
        *(_row_beside(theirs, ours[shape]) for shape, theirs in aiters.items()),
    ]


def _row_beside(theirs: Result, ours: Result) -> str:
    if theirs.timing is None or ours.timing is None:
        return f"| {theirs.shape} | {theirs.missing} | | | | | |"
    times = theirs.timing.microseconds, ours.timing.microseconds
    their_mj, our_mj = (1e3 * (timing.joules or 0) for timing in (theirs.timing, ours.timing))
    cells = [
        str(theirs.shape), f"{times[0]:.1f}", theirs.how.partition(" (")[0], f"{times[1]:.1f}",
        f"{times[1] / times[0]:.2f}", f"{their_mj:.1f}", f"{our_mj:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def layouts_section(results: Sequence[Result]) -> list[str]:
    """The section on layouts of scales."""
    ours = {(r.op, r.shape): r for r in results if r.by == OURS}
    return [
        "## Layouts of scales",
        "",
        "Scales of activations by columns, as this package's casts return them and all other tables here have them,",
        "and by rows. By rows, a wave's loads touch 16 lines in place of one. Where the vector L1 is busy and can't",
        "keep these lines until the next K-block, that costs time and energy, unless scales go through LDS. By rows,",
        "some problems take another tile (docs/kernels.md).",
        "",
        "| function | shape | by columns, µs | by rows, µs | more |",
        "|---|---|---|---|---|",
        *(_row_of_layouts(ours[r.op, r.shape], r) for r in results if r.by != OURS),
    ]


def _row_of_layouts(by_columns: Result, by_rows: Result) -> str:
    assert by_columns.timing
    assert by_rows.timing, by_rows.missing
    columns, rows = by_columns.timing.microseconds, by_rows.timing.microseconds
    return f"| {by_rows.op} | {by_rows.shape} | {columns:.2f} | {rows:.2f} | {rows / columns - 1:+.1%} |"


def four_bits_section(results: Sequence[Result]) -> list[str]:
    """The section on weights of four bits."""
    times = {(r.op, r.shape): r.timing.microseconds for r in results if r.timing}
    lines = [
        "## Weights of four bits",
        "",
        "Sustained µs, MxNxK, and in brackets the speed beside that of weights of the activations' type: above 1, four",
        "bits are faster. MXFP4 has exponents as scales, int4 bf16 for groups of 32 values and fp32 for groups of 128;",
        "FP8 weights have fp32 for 128x128.",
    ]
    for activations, ops in _OF_FOUR_BITS.items():
        lines += ["", f"| {activations} activations | {' | '.join(ops)} |", "|---" * (len(ops) + 1) + "|"]
        shapes = dict.fromkeys(shape for op, shape in times if op in ops.values())
        lines += [_row_of_four_bits(shape, [times[op, shape] for op in ops.values()]) for shape in shapes]
    return lines


def _row_of_four_bits(shape: AnyShape, microseconds: Sequence[float]) -> str:
    wide, *narrow = microseconds
    cells = [str(shape), f"{wide:.2f}", *(f"{time:.2f} ({wide / time:.2f})" for time in narrow)]
    return f"| {' | '.join(cells)} |"


def draw(path: Path, results: Sequence[Result]) -> None:
    """Draws TFLOPS of the published problems, ours beside the measured ones, as SVG.

    Raises:
        ImportError: matplotlib isn't installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = _published(results)
    names = [str(shape) for shape, *_ in rows]
    places = range(len(rows))

    def rate(shape: Shape, microseconds: float) -> float:
        return 2e-6 * shape.m * shape.n * shape.k / microseconds

    # The same bytes for the same times.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": PICTURE, "font.family": "sans-serif"}):
        figure, axes = pyplot.subplots(figsize=(8, 4.2))
        measured = [rate(shape, theirs) for shape, theirs, *_ in rows]
        simulated = [rate(shape, ours) for shape, _, ours, _ in rows]
        for offset, rates, color, label in (
            (-0.2, simulated, "#d1495b", "deep_gemm_rocm, simulated MI300X, sustained"),
            (0.2, measured, "#9aa5b1", "AITER (Composable Kernel), measured on an MI300X"),
        ):
            bars: Any = axes.barh([place + offset for place in places], rates, 0.4, color=color, label=label)
            axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlabel("TFLOPS, MxNxK, FP8 with scales for 1x128 and 128x128")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper right")
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)

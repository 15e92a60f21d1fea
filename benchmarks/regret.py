"""How much time choices lose where the chip isn't what the model takes it for: ``python benchmarks/regret.py``.

Published measurements leave open how fast vector L1 is filled, what HBM gives, and which clock a launch runs at. At
each corner of that range, the configuration that calls take is compared with the most promising others. Its regret is
the share of its time that the best of them would save.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated

import options
import typer

from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks import operations, problems, tune
from deep_gemm_rocm.benchmarks.operations import AnyProblem
from deep_gemm_rocm.benchmarks.shapes import DENSE
from deep_gemm_rocm.heuristics import forced, gemm_table
from deep_gemm_rocm.heuristics.gemm_choice import ranked_choices
from deep_gemm_rocm.heuristics.gemm_problem import Choice, GemmProblem

_HBM_CHANNELS = 128
_CORNERS = {
    f"L1 {fill}, HBM {hbm}, {mhz}": {
        "l1.fill_bytes": float(fill),
        "l1.port_bytes": float(fill),
        "hbm.bytes_per_ns": hbm * 1000 / _HBM_CHANNELS,
        "chip.clock_mhz": float(mhz),
    }
    for fill, hbm, mhz in itertools.product((64, 128), (4.3, 4.6), (1400, 2100))
}


def microseconds(problem: AnyProblem, choice: Choice, constants: Mapping[str, float]) -> float:
    """Time of a call at the clock of the corner."""
    with forced(choice), simulator.profile(constants, compute="sampled") as prof:
        problem.run()
    return sum(kernel.time_us for kernel in prof.kernels)


def regrets(problem: AnyProblem, taken: Choice, others: Sequence[Choice]) -> dict[str, tuple[float, Choice]]:
    """For each corner, the share of time that the best choice saves, and that choice."""
    found = {}
    for corner, constants in _CORNERS.items():
        times = {choice: microseconds(problem, choice, constants) for choice in dict.fromkeys((taken, *others))}
        best = min(times, key=lambda choice: times[choice])
        found[corner] = (1 - times[best] / times[taken], best)
    return found


def main(
    op: Annotated[str, typer.Option(help="A function of bench for dense GEMM.")] = "fp8_gemm_nt",
    shapes: Annotated[str, typer.Option(help="MxNxK, with commas between; DeepGEMM's by default.")] = "",
    count: Annotated[int, typer.Option(help="Configurations for each shape.", min=2)] = 6,
    most: Annotated[float, typer.Option(help="The regret beyond which the exit status is 1.")] = 0.05,
) -> None:
    """Print the regret of each shape at each corner."""
    chosen = options.shapes_in(shapes, DENSE)
    if op not in problems.OPERATIONS:
        raise typer.BadParameter(f"expected one of {', '.join(problems.OPERATIONS)}, got {op!r}", param_hint="--op")
    print(f"| M x N x K | {' | '.join(_CORNERS)} | taken | best where it loses most |")
    print(f"|---{'|---' * len(_CORNERS)}|---|---|")
    worst = 0.0
    for shape in chosen:
        problem = operations.make(op, shape, "cpu")
        wanted = tune.asked_for(problem)
        assert isinstance(wanted, GemmProblem)
        taken = gemm_table.table().find(wanted) or ranked_choices(wanted)[0]
        others = [choice for choice in tune.candidates(wanted, count) if isinstance(choice, Choice)]
        found = regrets(problem, taken, others)
        loss, best = max(found.values(), key=lambda regret: regret[0])
        cells = " | ".join(f"{regret:.1%}" for regret, _ in found.values())
        print(f"| {shape} | {cells} | {taken} | {best} |", flush=True)
        worst = max(worst, loss)
    print(f"\nlargest regret: {worst:.1%}")
    if worst > most:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

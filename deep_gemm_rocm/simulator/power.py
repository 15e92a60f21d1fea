"""The clock that the power limit leaves a kernel that runs again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Measured over simulated time: nine of ten rows of docs/accuracy.md that no constant was fitted to lie between these.
_LEAST, _MOST = 0.86, 1.13

_PICO = 1e-12
# Consumers of energy in the core's voltage domain, with the constant that prices each.
_CORE = {
    "matrix_fp8_clocks": "power.matrix_fp8_pj",
    "matrix_i8_clocks": "power.matrix_i8_pj",
    "matrix_f16_clocks": "power.matrix_f16_pj",
    "matrix_other_clocks": "power.matrix_bf16_pj",
    "vector_clocks": "power.vector_pj",
    "lds_clocks": "power.lds_pj",
    "l1_bytes": "power.l1_pj",
    "l2_bytes": "power.l2_pj",
    "cu_clocks": "power.cu_pj",
}
_MEMORY = {"mall_bytes": "power.mall_pj", "hbm_bytes": "power.hbm_pj"}
_WITH_CLOCKS_OF_THEIR_OWN = ("fabric", "HBM")


@dataclass(frozen=True)
class Sustained:
    """A launch under sustained load.

    Attributes:
        mhz: the core clock.
        microseconds: the time of the launch, with its fixed cost.
        joules: the energy of the launch.
    """

    mhz: float
    microseconds: float
    joules: float


def stretch(busy: Mapping[str, float], slower: float) -> float:
    """By how much a launch takes longer if the cores' clock is ``slower`` times slower.

    While memory is the busier, the launch takes as long as memory does, until a resource of the cores needs longer. The
    time in which neither is busy is latency, which the cores' clock sets.

    Args:
        busy: for each resource, the share of the time at the boost clock in which it is busy.
    """
    memory = min(1.0, max(busy[name] for name in _WITH_CLOCKS_OF_THEIR_OWN))
    cores = min(1.0, max(share for name, share in busy.items() if name not in _WITH_CLOCKS_OF_THEIR_OWN))
    return max(memory, cores * slower) + (1 - max(memory, cores)) * slower


def sustained(
    cycles: float, activity: Mapping[str, float], busy: Mapping[str, float], constants: Mapping[str, float]
) -> Sustained:
    """The highest clock at which the launch, repeated without pause, stays within the power limit.

    The dynamic power of the cores grows with a power of the clock, as voltage rises with it. Memory has clocks of its
    own.

    Args:
        cycles: core clocks of the launch at the boost clock.
        activity: what it did, as the profile counts it.
        busy: as for ``stretch``.
        constants: those of the models, by section and name.
    """
    boost, overhead = constants["chip.clock_mhz"], constants["launch.overhead_ns"] / 1000
    reference, exponent = constants["power.reference_mhz"], constants["power.energy_exponent"]
    core = _PICO * sum(activity[name] * constants[price] for name, price in _CORE.items())
    memory = _PICO * sum(activity[name] * constants[price] for name, price in _MEMORY.items())

    def at(mhz: float) -> Sustained:
        microseconds = overhead + cycles / boost * stretch(busy, boost / mhz)
        joules = core * (mhz / reference) ** exponent + memory + constants["power.idle_w"] * microseconds * 1e-6
        return Sustained(mhz, microseconds, joules)

    def fits(state: Sustained) -> bool:
        return state.joules <= constants["power.limit_w"] * state.microseconds * 1e-6

    if fits(at(boost)):
        return at(boost)
    low, high = constants["power.least_mhz"], boost
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return at(low)


def without_idling(
    cycles: float, activity: Mapping[str, float], busy: Mapping[str, float], constants: Mapping[str, float]
) -> Sustained:
    """As ``sustained``, for a launch that does the same with its busiest resource at work all the time.

    A better schedule alone makes no launch quicker than that, for what it does takes as much energy.
    """
    share = max(busy.values())
    if not 0 < share < 1:
        return sustained(cycles, activity, busy, constants)
    always = {name: of_resource / share for name, of_resource in busy.items()}
    return sustained(share * cycles, {**activity, "cu_clocks": share * activity["cu_clocks"]}, always, constants)


def interval(microseconds: float) -> tuple[float, float]:
    """Between which times a measurement would lie in nine of ten cases, for a simulated one under sustained load."""
    return _LEAST * microseconds, _MOST * microseconds

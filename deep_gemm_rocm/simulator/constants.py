"""Constants of the timing and the power model, and the chips that the models know."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent

# Between which the power model can compute; other constants of it may be anything from 0 to a million.
_POWER = {"power.reference_mhz": (1, 1e6), "power.least_mhz": (1, 1e6), "power.energy_exponent": (0, 10)}


def chips() -> tuple[str, ...]:
    """The names that ``chip_constants`` takes."""
    return ("mi300x", *sorted(path.stem for path in (_FOLDER / "chips").glob("*.toml")))


def chip_constants(chip: str) -> dict[str, float]:
    """What distinguishes a chip from the MI300X, by section and name, as in ``{"chip.xcds": 4}``.

    Raises:
        ValueError: the chip is none of ``chips()``.
    """
    if chip.lower() not in chips():
        raise ValueError(f"chip: expected one of {', '.join(chips())}, got {chip}")
    return {} if chip.lower() == "mi300x" else _read(_FOLDER / "chips" / f"{chip.lower()}.toml")


def packaged() -> dict[str, float]:
    """The MI300X's constants, by section and name."""
    return _read(_FOLDER / "mi300x_timing.toml")


def current(changes: Mapping[str, float] | None = None) -> dict[str, float]:
    """All constants in use, by section and name: the MI300X's, then those of the file that ``DG_SIM_TIMING_CONSTANTS``
    names, then the changes.

    Raises:
        FileNotFoundError, ValueError: the file is missing, or has a line that is no constant, or the power model can't
            compute with a value.
    """
    result = packaged()
    of_power = [name for name in result if name.startswith("power.")]
    if file := os.environ.get("DG_SIM_TIMING_CONSTANTS"):
        result.update(_read(Path(file)))
    result.update(changes or {})
    _check_power(result, of_power)
    return result


def _check_power(constants: Mapping[str, float], known: Collection[str]) -> None:
    """Checks the constants that the engine, which checks the others, leaves to ``power.py``."""
    for name, value in constants.items():
        if not name.startswith("power."):
            continue
        if name not in known:
            raise ValueError(f"{name} is no constant of the power model: expected one of {', '.join(known)}")
        least, most = _POWER.get(name, (0, 1e6))
        if not least <= value <= most:
            raise ValueError(f"{name}: expected a number from {least:g} to {most:g}, got {value:g}")


def _read(path: Path) -> dict[str, float]:
    """Reads the subset of TOML that the engine reads: sections, numbers and comments."""
    result, section = {}, ""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = text.partition("#")[0].strip()
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif line:
            name, _, value = line.partition("=")
            try:
                result[section + name.strip()] = float(value)
            except ValueError:
                raise ValueError(f"{path}:{number}: expected name = number, got {line}") from None
    return result

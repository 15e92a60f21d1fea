"""The settings that DeepGEMM's setters change."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from . import session


class SettingError(ValueError):
    """An environment variable has a value that it can't have; the message names both."""


class Values(NamedTuple):
    """Attributes:
    alignment: in contiguous layouts, each group's first row is a multiple of this.
    num_sms: compute units that a GEMM may occupy; None for all.
    compile_mode: 1 if functions compile but don't launch, else 0.
    batch_invariant: whether a row's result must not depend on what shares its batch.
    tc_util, pdl: without effect; kept for their getters.
    """

    alignment: int = 128
    num_sms: int | None = None
    compile_mode: int = 0
    batch_invariant: bool = False
    tc_util: int = 100
    pdl: bool = False


class Settings(session.Part):
    """Attributes:
    values: the current settings. A remembered call is repeated only under the settings of the first call.
    """

    def __init__(self) -> None:
        self.values = Values(batch_invariant=_switched_on("DG_BATCH_INVARIANT"))


def _switched_on(name: str) -> bool:
    """Whether an environment variable is 1.

    Raises:
        SettingError: it is neither 0 nor 1.
    """
    value = os.environ.get(name) or "0"
    if value not in ("0", "1"):
        raise SettingError(f"{name} must be 0 or 1, got {value!r}")
    return value == "1"


def values() -> Values:
    """The settings of the current session."""
    return session.current().of(Settings).values


def change(**changes: Any) -> None:
    """Changes some settings of the current session."""
    settings = session.current().of(Settings)
    settings.values = settings.values._replace(**changes)


def num_cus() -> int:
    """How many compute units a GEMM may occupy.

    Raises:
        NoDeviceError: there is no device.
    """
    chosen = values().num_sms
    return session.current().runtime.num_cus if chosen is None else chosen

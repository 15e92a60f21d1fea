"""What the plug-ins of all servers share: checks of what they replace, and parts that stand back."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

K_UNIT = 16  # FP8 elements that a lane loads: widths of layers are a multiple of it


class MovedError(Exception):
    """Something that a part of a plug-in replaces or calls isn't what it was written for."""


def check_parameters(function: Callable[..., Any], *names: str) -> None:
    """Checks that a function of the server has the parameters that a part counts on.

    Args:
        function: what is replaced or called; ``self`` and ``cls`` of unbound methods are parameters.
        names: all its parameters in order.

    Raises:
        MovedError: it has others.
    """
    found = tuple(inspect.signature(function).parameters)
    if found != names:
        raise MovedError(f"{function.__qualname__} takes ({', '.join(found)}), not ({', '.join(names)})")


def check_fields(of: type, *names: str) -> None:
    """Checks that a class of the server, a data class or a named tuple, has the fields that a part reads.

    Raises:
        MovedError: it lacks some.
    """
    found = inspect.signature(of).parameters
    lacking = [name for name in names if name not in found]
    if lacking:
        raise MovedError(f"{of.__qualname__} has no {', '.join(lacking)}")


def check_replaces(theirs: Any, ours: Any) -> None:
    """``check_parameters`` for one of the server's functions or methods and what is to replace it."""
    theirs, ours = (getattr(function, "__func__", function) for function in (theirs, ours))
    code = ours.__code__  # its signature would be that of the function that it wraps
    check_parameters(theirs, *code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def replace_wherever_imported(replacement: Any) -> None:
    """Puts a function where the one that it wraps is: in its own module, and in those that imported it by name.

    Args:
        replacement: made with ``functools.wraps``.
    """
    name, original = replacement.__name__, replacement.__wrapped__
    for module in list(sys.modules.values()):
        # None stands for a module that must not be imported.
        if module is not None and vars(module).get(name) is original:
            setattr(module, name, replacement)


def is_wanted(is_gfx942: Callable[[], bool], server: str, logger: logging.Logger) -> bool:
    """Whether the server runs on gfx942. Where it can't be asked, that is logged, and nothing is installed.

    Args:
        is_gfx942: asks the server.
        server: its name, for the log.
        logger: one that the server shows.
    """
    try:
        return is_gfx942()
    # Servers don't expect that a plug-in raises: none would start.
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        logger.warning("deep_gemm_rocm leaves everything to %s, which is not as expected: %s", server, why)
        return False


def install(parts: Mapping[str, Callable[[], Any]], server: str, logger: logging.Logger) -> dict[str, str]:
    """Installs each part, or leaves the server as it is there.

    Args:
        parts: what each part brings, and the function that installs it. Such a function checks all it needs before it
            changes anything.
        server: the server's name and version, for the log.
        logger: one that the server shows.

    Returns:
        For each part ``installed``, or why it stands back.
    """
    outcomes = {}
    for part, install_part in parts.items():
        try:
            install_part()
        # Whatever a server of another version raises while it is examined, it must go on without this part.
        except Exception as error:
            outcomes[part] = f"{type(error).__name__}: {error}"
            logger.warning("deep_gemm_rocm leaves %s to %s, which is not as expected: %s", part, server, outcomes[part])
        else:
            outcomes[part] = "installed"
    installed = [part for part, outcome in outcomes.items() if outcome == "installed"]
    if installed:
        logger.info("deep_gemm_rocm provides %s", ", ".join(installed))
    return outcomes

"""The commands of ``sim debug``."""

from __future__ import annotations

import cmd
import inspect
import re
import sys
from collections.abc import Callable, Sequence

import numpy as np
import typer

from .. import simulator
from ..simulator.source_lines import Place

_LANES_OF_A_LINE = 8
_ALSO = {"b": "break", "bt": "backtrace", "l": "list", "r": "continue", "run": "continue"}


class Session(cmd.Cmd):
    """Reads commands from the terminal, or from what is piped in, until the kernel has ended or ``quit``."""

    intro = "Stopped before the kernel begins. `help` lists the commands."
    prompt = "(sim) "

    def __init__(self, debugger: simulator.Debugger) -> None:
        super().__init__()
        self._debugger = debugger
        self._echoes = not sys.stdin.isatty()
        self.failed = False

    def start(self, commands: Sequence[str] = ()) -> None:
        """Executes the commands and shows them, or those from standard input: from a terminal with line editing."""
        if not commands and not self._echoes:
            self.cmdloop()
            return
        self._echoes = True
        for line in commands or sys.stdin:
            if self.onecmd(line.strip()):
                return

    # ---- Going on ----

    def do_break(self, argument: str) -> None:
        """break LINE | FILE:LINE | *OFFSET: stop there; OFFSET is in bytes from the kernel's entry. Without an
        argument, list the breakpoints."""
        if argument:
            added = self._debugger.break_at(argument)
            offsets = ", ".join(f"{offset:#x}" for offset in added.offsets)
            self._say(f"breakpoint {added.number} at {added.where}: {offsets}")
            return
        for known in self._debugger.breakpoints:
            self._say(f"{known.number}: {known.where}")

    def do_delete(self, argument: str) -> None:
        """delete NUMBER: remove a breakpoint."""
        self._debugger.delete(_whole("NUMBER", argument))

    def do_continue(self, argument: str) -> None:
        """continue: go on to the next breakpoint, or to where the wave fails; also called run."""
        self._go(self._debugger.run)

    def do_step(self, argument: str) -> None:
        """step [COUNT]: execute COUNT instructions, one by default. The first step stops before the first one."""
        count = _whole("COUNT", argument or "1", least=1)
        self._go(lambda: self._debugger.step(count))

    def do_next(self, argument: str) -> None:
        """next: go on to another source line."""
        self._go(self._debugger.next_line)

    def do_quit(self, argument: str) -> bool:
        """quit: end the launch."""
        return True

    do_EOF = do_quit  # noqa: N815 - the name that cmd calls at the end of the input

    # ---- Looking ----

    def do_where(self, argument: str) -> None:
        """where: the next instruction and its source line."""
        self._show(self._debugger.stop)

    def do_backtrace(self, argument: str) -> None:
        """backtrace: the source line, and the calls through which the compiler inlined it."""
        for number, place in enumerate(self._debugger.backtrace()):
            self._say(f"#{number} {_described(place)}")

    def do_list(self, argument: str) -> None:
        """list: the instructions around the next one."""
        now = self._debugger.stop.offset
        for offset, text in self._debugger.instructions():
            self._say(f"{'->' if offset == now else '  '} {offset:#06x} {text}")

    def do_print(self, argument: str) -> None:
        """print REGISTER [TYPE] [LANES]: a register, such as v7, a0, s4, vcc, exec, m0 or scc. LANES are as in 0-3,63.
        TYPE is hex, f32, f64, i32, u32, i64, u64, f16x2, bf16x2, fp8x4, bf8x4 (FNUZ, as on the MI300X), ocp_fp8x4,
        ocp_bf8x4, i16x2, i8x4 or u8x4; v and a are f32 by default, others hex."""
        name, *rest = argument.split()
        is_vector = re.match(r"[va]\d", name) is not None
        lanes = rest.pop() if rest and re.fullmatch(r"[\d,-]+", rest[-1]) else "0-63"
        type = rest[0] if rest else "f32" if is_vector else "hex"
        is_wide = name in ("vcc", "exec", "flat_scratch")
        number_type = ("u64" if is_wide else "u32") if type == "hex" else type
        if not is_vector:
            self._say(f"{name} {type}: {_text(self._debugger.scalar(name, number_type), type)}")
            return
        values = self._debugger.vector(name, number_type)
        shown = lanes_of(lanes)
        for start in range(0, len(shown), _LANES_OF_A_LINE):
            part = shown[start : start + _LANES_OF_A_LINE]
            self._say(f"{name} {type} lane {part[0]:2}: " + " ".join(_text(values[lane], type) for lane in part))
        self._say_inactive()

    def do_lds(self, argument: str) -> None:
        """lds OFFSET ROWSxCOLUMNS [TYPE] [BYTES]: a matrix in LDS from a byte on. TYPE is as f32 (the default), f16,
        bf16, fp8, i32 or u8; BYTES are from one row to the next."""
        words = argument.split()
        shape = re.fullmatch(r"(\d+)x(\d+)", words[1]) if len(words) > 1 else None
        if shape is None:
            raise ValueError("expected OFFSET ROWSxCOLUMNS, as in: lds 0 16x16 f32")
        row_bytes = _whole("BYTES", words[3]) if len(words) > 3 else None
        type = words[2] if len(words) > 2 else "f32"
        size = int(shape[1]), int(shape[2])
        values = self._debugger.lds(_whole("OFFSET", words[0]), size, type, row_bytes)
        texts = [[_text(value, type) for value in row] for row in values]
        width = max(len(text) for row in texts for text in row)
        for number, row in enumerate(texts):
            self._say(f"{number:3}: " + " ".join(text.rjust(width) for text in row))

    def do_variables(self, argument: str) -> None:
        """variables [LANE]: the variables in scope, the innermost first, with their values in a lane, 0 by default."""
        lane = _whole("LANE", argument or "0")
        if lane > 63:
            raise ValueError(f"LANE: expected 0 to 63, got {lane}")
        found = self._debugger.variables()
        for variable in found:
            self._say(f"{variable.type} {variable.name} = {variable.in_lane(lane)}")
        if not found:
            self._say("no variables: compile with debug information (-g)")

    def do_help(self, argument: str) -> None:
        """help [COMMAND]: what all commands do, or one. Each may be shortened as long as it is unambiguous."""
        names = [self.parseline(argument)[0]] if argument else [name.removeprefix("do_") for name in self.get_names()]
        for name in names:
            method = getattr(self, f"do_{name}", None)
            if name is None or method is None:
                raise ValueError(f"no such command: {argument}")
            self._say(str(inspect.getdoc(method)))

    # ---- Inside ----

    def onecmd(self, line: str) -> bool:
        if self._echoes:
            self._say(f"{self.prompt}{line}".rstrip())
        try:
            return bool(super().onecmd(line))
        except (ValueError, IndexError) as error:
            self._say(str(error))
        except simulator.SimulatorError as error:
            self.failed = True
            self._say(str(error))
        except KeyboardInterrupt:
            return True
        return False

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        """Completes the name of the command."""
        name, argument, text = super().parseline(line)
        if name in _ALSO:
            return _ALSO[name], argument, text
        if name and not hasattr(self, f"do_{name}"):
            found = [known for known in self.completenames(name) if known != "EOF"]
            if len(found) == 1:
                return found[0], argument, text
        return name, argument, text

    def default(self, line: str) -> None:
        self._say(f"no such command, or several: {line.split()[0]}; `help` lists them")

    def emptyline(self) -> bool:
        return False

    def get_names(self) -> list[str]:
        return [name for name in super().get_names() if name.startswith("do_") and name != "do_EOF"]

    def _go(self, go: Callable[[], simulator.Stop | None]) -> None:
        stop = go()
        if stop is None:
            self._say("the kernel has ended")
        else:
            self._show(stop)

    def _show(self, stop: simulator.Stop) -> None:
        if stop.failure:
            self.failed = True
            self._say(stop.failure)
        place = f"\n  at {_described(stop.place)}" if stop.place else ""
        self._say(f"{stop.offset:#x} {stop.text}{place}")

    def _say_inactive(self) -> None:
        inactive = np.flatnonzero(~self._debugger.exec)
        if inactive.size:
            self._say(f"inactive lanes: {_ranges(inactive)}")

    def _say(self, text: str) -> None:
        typer.echo(text)


def lanes_of(text: str) -> list[int]:
    """Parses 0-3,63 as [0, 1, 2, 3, 63].

    Raises:
        ValueError: the text is none, or names lanes above 63.
    """
    lanes: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            raise ValueError(f"expected lanes as in 0-3,63, got {text}")
        lanes += range(int(low), int(high or low) + 1)
    if not lanes or max(lanes) > 63:
        raise ValueError(f"expected lanes from 0 to 63, got {text}")
    return lanes


def _whole(name: str, text: str, least: int = 0) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name}: expected a number from {least} on, got {text or 'nothing'}")
    return number


def _text(value: np.ndarray | np.generic, type: str) -> str:
    """A number, or the elements of a packed one."""
    if type == "hex":
        return f"{int(value):#0{2 * value.itemsize + 2}x}"
    if np.ndim(value):
        return "(" + " ".join(_text(part, type) for part in np.asarray(value)) + ")"
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)


def _ranges(lanes: np.ndarray) -> str:
    """Lanes as 0-3,63."""
    parts = np.split(lanes, np.flatnonzero(np.diff(lanes) != 1) + 1)
    return ",".join(str(part[0]) if part.size == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _described(place: Place) -> str:
    return f"{place}: {place.text}" if place.text else str(place)

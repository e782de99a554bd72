"""Edit and continue: a run goes on with the program's file as it is now."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from opstep.runtime.debugger.breakpoints import Breakpoint
from opstep.runtime.debugger.frames import Frame, stack
from opstep.runtime.debugger.host import Host
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.meeting import Waiting
from opstep.runtime.ir.diagnostics import OpstepError

NO_LONGER = "No longer as they were set by hand"


class Reloaded(NamedTuple):
    """What came of reading the file again: `reused` of `of` values did not have to be computed, and
    the values that were set by hand, `dropped`, are those of the program again.
    """

    reused: int
    of: int
    moved: list[Breakpoint]
    dropped: list[str]

    @property
    def dropped_text(self) -> str:
        """A sentence about what was lost, for where something was."""
        return f"{NO_LONGER}: {', '.join(self.dropped)}."


def restart_program(machine: Machine[Host], host: Host) -> None:
    """Goes on with another program where nothing is known of the run: from its first step."""
    host.begin_anew()
    machine.replace_program(host)
    machine.begin_anew(0)


def replace_program(machine: Machine[Host], host: Host) -> list[str]:
    """Goes on with another program at the start of the step. Gives the names of what is no longer
    as it was set.
    """
    machine.memo_hits = machine.memo_lookups = 0
    machine.replace_program(host)
    return machine.restart_step()


def replayed(machine: Machine, length: int, frames: list[Frame]) -> Generator[bool, None, None]:
    """Runs a step that was begun anew as far as it had come; then it stands at the start of the
    innermost of these frames. Values whose op and operands are the same are kept. Yields behind
    each point, and False where it waits for another rank.
    """
    history, names = machine.history, [f.name for f in frames]
    entered = history.cursor
    try:
        while True:
            here = history.next_point()
            if here is None:
                break
            if history.index() in here[0].points.entered:
                now = [f.name for f in stack(machine, here, history.cursor)]
                if now == names:
                    entered = history.cursor
            if history.cursor >= length:
                break
            try:
                if not machine.forward():
                    break
            except Waiting:
                yield False
            except OpstepError:
                break
            else:
                yield True
    finally:
        history.cursor = entered

"""What a debugger needs of a program; `opstep.api.debugging` has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from opstep.runtime.debugger.activation import Node
from opstep.runtime.debugger.breakpoints import Texts
from opstep.runtime.debugger.machine import MachineHost
from opstep.runtime.ir.diagnostics import OpstepError


class Host(MachineHost, Protocol):
    """Plans and named tensors of a program, its texts, and runs of it at full speed."""

    def texts(self) -> list[Texts]: ...

    @property
    def changed_in_place(self) -> frozenset[tuple[str, int]] | None:
        """The lines of Python that changed tensors in place; None where that is not known."""
        ...

    def reload(self) -> Host:
        """The program of the file as it is now. Raises `OpstepError`, with every error in it."""
        ...

    def commit(self, tensors: Mapping[str, Node]) -> None:
        """These are the named tensors from now on."""
        ...

    def failed_assert(self, code: int) -> OpstepError:
        """What is said of an assert that failed."""
        ...

    def begin_anew(self) -> None:
        """The named tensors are those that the session began with."""
        ...

    def run_fast(
        self, steps: int, go_on: Callable[[], bool]
    ) -> tuple[int, Mapping | None, OpstepError | None]:
        """Steps at full speed, while `go_on`: how many were done, and what the last one gave, or
        what ended the step behind them.
        """
        ...

"""The debugger with the moves that only gdb's words ask for."""

from __future__ import annotations

from opstep.debugging import Debugger
from opstep.runtime.debugger.checks import Stop, hidden
from opstep.runtime.debugger.frames import depth_of
from opstep.runtime.debugger.travel import Reloaded


class Stepper(Debugger):
    """Like any debugger; see its `go`."""

    def go(self, command: str, thread: int | None = None, granularity: str = "statement") -> Stop:
        """From behind an op, where trouble stops, a step leads to the statement that is next, which
        was not shown yet; and backwards the trouble that one stands behind is met first.
        """
        if granularity == "statement" and self._after and command in ("in", "over"):
            self._after = False
            here = self.machine.here()
            if here is not None and not hidden(here):
                return self._stopped(self.checks.at_point() or Stop("step", thread=self._thread()))
        watched = self.breakpoints.filters or self.breakpoints.data
        if command == "reverse_continue" and watched and not self._after:
            stop = self._behind()
            if stop is not None:
                return self._stopped(stop)
        return super().go(command, thread, granularity)

    def reload(self) -> Reloaded:
        """After a run at full speed, of which nothing is kept, it stands at the begin."""
        if self.stack():
            return super().reload()
        self.host = self.host.reload()
        moved = self.breakpoints.moved(self.host.texts())
        self.machine, self.outputs = self._machine(), None
        self._stopped(Stop("restart", thread=self._thread()))
        return Reloaded(0, 0, moved)

    def step_back(self) -> Stop:
        """Back by one point, into graphs that were called."""
        self._pausing.clear()
        return self._stopped(self._backwards(lambda at: True))

    def back_out(self) -> Stop:
        """Back to where the present graph was called."""
        self._pausing.clear()
        here = self._here()
        depth = depth_of(here) if here else 1
        return self._stopped(self._backwards(lambda at: depth_of(at) < depth))

    def until(self) -> Stop:
        """Over the next op; at the end of a loop's turn, out of the loop."""
        self._pausing.clear()
        here = self._here()
        if here is None:
            return self.go("over")
        depth, began = depth_of(here), here[0]
        loop = began.parent if began.role in ("test", "body") else None

        def arrived(at) -> bool:
            activation = at[0]
            again = activation is not began and activation.parent is loop and loop is not None
            return depth_of(at) <= depth and not (again and activation.role in ("test", "body"))

        return self._stopped(self._forwards(arrived))

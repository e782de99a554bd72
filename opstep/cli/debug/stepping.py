"""The debugger with the moves that only gdb's commands ask for."""

from __future__ import annotations

from opstep.api.debugging import Debugger
from opstep.runtime.debugger.checks import Stop
from opstep.runtime.debugger.frames import depth_of


class Stepper(Debugger):
    """Like any debugger, with more commands."""

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

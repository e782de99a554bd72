"""The names that are seen in frames, and what a stop keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.dap.frames import Stacks

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.plan.plan import Plan

MOST_NUMBERED = 16  # frames of large graphs whose numbering is kept


class VisibleNames:
    """``session.per_stop(VisibleNames)``: the names of the frames that were looked at."""

    def __init__(self, session: Session):
        self._numbered = session.per_session(Numbered)
        self._names: dict[tuple[int, int], list[str]] = {}

    def names(self, frame: Frame) -> list[str]:
        """The values that are there, in the order of the program; inputs come first."""
        key = id(frame.activation), frame.frame
        if key not in self._names:
            self._names[key] = self._present(frame)
        return self._names[key]

    def forget(self) -> None:
        """Something was set."""
        self._names.clear()

    def _present(self, frame: Frame) -> list[str]:
        """As `Frame.names` finds them, in a time that grows with those that are there: a graph may
        have 100,000.
        """
        activation, position = frame.activation, frame.position
        scope, env = activation.plan.scopes[frame.frame], activation.env
        if activation.replaced:
            return [name for name, v in scope.items() if activation.at(v, position) is not None]
        if len(scope) <= len(env):
            nowhere = (position + 1,)
            return [name for name, v in scope.items() if env.get(v, nowhere)[0] <= position]
        names, numbers = self._numbered.of(activation.plan, frame.frame)
        present = [numbers[v] for v, found in env.items() if found[0] <= position and v in numbers]
        return [names[k] for k in sorted(k for several in present for k in several)]


class Numbered:
    """``session.per_session(Numbered)``: the numbers of values among the names of large graphs."""

    def __init__(self, _: Session):
        self._by_frame: dict[tuple[int, int], tuple[Plan, list[str], dict[int, list[int]]]] = {}

    def of(self, plan: Plan, frame: int) -> tuple[list[str], dict[int, list[int]]]:
        """A frame's names, and the numbers of each value in them: it may have two."""
        key = id(plan), frame
        if key not in self._by_frame:
            if len(self._by_frame) >= MOST_NUMBERED:
                self._by_frame.clear()
            numbers: dict[int, list[int]] = {}
            for k, v in enumerate(plan.scopes[frame].values()):
                numbers.setdefault(v, []).append(k)
            self._by_frame[key] = plan, list(plan.scopes[frame]), numbers
        return self._by_frame[key][1:]


def renew(session: Session) -> None:
    """A value was set: numbers of frames and scopes hold, what they show is looked up again."""
    session.per_stop(VisibleNames).forget()
    session.per_stop(Stacks).renew()

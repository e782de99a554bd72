"""Which points a step runs to."""

from __future__ import annotations

from opstep.runtime.debugger.activation import Activation, Point
from opstep.runtime.debugger.frames import depth_of
from opstep.runtime.debugger.runner import Arrived
from opstep.runtime.ir.control import BODY, TEST


def arrival(command: str, here: tuple[Activation, Point] | None) -> Arrived:
    """The points that a command leads to from one; None: from the end, back by one point."""
    if here is None or command in ("in", "back_in"):
        return anywhere
    depth = depth_of(here)
    if command in ("over", "back"):
        return lambda at: depth_of(at) <= depth
    if command in ("out", "back_out"):
        return lambda at: depth_of(at) < depth
    if command == "until":
        return past_turn(here[0], depth)
    raise KeyError(command)


def anywhere(at: tuple[Activation, Point]) -> bool:
    """Wherever it is."""
    return True


def past_turn(began: Activation, depth: int) -> Arrived:
    """Over the next op; at the end of a loop's turn, out of the loop."""
    loop = began.parent if began.role in (TEST, BODY) else None

    def arrived(at: tuple[Activation, Point]) -> bool:
        again = at[0] is not began and at[0].parent is loop and loop is not None
        return depth_of(at) <= depth and not (again and at[0].role in (TEST, BODY))

    return arrived

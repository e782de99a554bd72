"""What a statement calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.runtime.debugger.debugger import Debugger


def graphs_called(debugger: Debugger) -> list[str]:
    """Names of the graphs that the statement at the present position calls, or may call: by its
    name, or as attributes of control flow.
    """
    from opstep.runtime.ir.effects import called_graphs

    upcoming = debugger.machine.history.next_point()
    if upcoming is None:
        return []
    activation, point = upcoming
    if point.kind == "call":
        callee = getattr(point.statement, "callee", None)
        return [callee.text] if callee else []
    if point.step < 0:
        return []
    step = activation.plan.steps[point.step]
    return list(called_graphs(step.attrs)) if step.op.traits.host else []

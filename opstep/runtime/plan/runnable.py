"""Plans that a caller has changed, before they are run."""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.hazards import RACES, check
from opstep.runtime.plan.plan import Plan


def runnable(plan: Plan, graph: str, types: tuple[TensorType, ...]) -> Plan:
    """A plan that a caller has changed. Raises `InputError` where it is for something else, writes
    where it has no memory, or could not come to its end.
    """
    if plan.signature != (graph, types):
        planned = f"{plan.graph}({', '.join(map(str, plan.signature[1]))})"
        requested = f"{graph}({', '.join(map(str, types))})"
        raise InputError(f"the plan is one of {planned}, and {requested} is to be run")
    for b, buffer in enumerate(plan.buffers):
        if buffer.offset >= 0 and buffer.offset + buffer.nbytes > plan.arena:
            raise InputError(
                f"the plan cannot be run: b{b} ends at byte {buffer.offset + buffer.nbytes}, and "
                f"the arena has {plan.arena}"
            )
    for value in plan.values:
        nbytes: Any = value.type.nbytes  # concrete here
        if nbytes > plan.buffers[value.buffer].nbytes:
            raise InputError(
                f"the plan cannot be run: b{value.buffer} has no room for {value.name}"
            )
    for i in plan.instructions:
        event = getattr(i, "event", -1)
        if getattr(i, "stream", 0) >= max(plan.streams, 1) or event >= plan.events:
            raise InputError(
                f"the plan cannot be run: {i} is beyond its {plan.streams} streams and "
                f"{plan.events} events"
            )
    for hazard in check(plan):
        if hazard.kind not in (*RACES, "unwritten", "overwritten", "overlap"):
            raise InputError(f"the plan cannot be run: {hazard}")
    return plan

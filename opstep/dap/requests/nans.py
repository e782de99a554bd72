"""Where NaNs and infinities of a tensor come from: opstep/nanReport; and there: opstep/goToOp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.dap.frames import handle_of
from opstep.dap.nanreport import report_json
from opstep.dap.python_variables import value_name
from opstep.dap.registry import BAD_ARGUMENTS, DapError, request
from opstep.dap.requests.execution import resume
from opstep.dap.requests.memory import origin_of
from opstep.runtime.debugger.applied import producer_of
from opstep.runtime.debugger.problems import Problem

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.node import Node

NO_TENSOR = 2250


@dataclass(frozen=True)
class NanReportArguments:
    """`name`: a tensor of the frame; or the `memory_reference` of one; without both, the one that
    stopped the run.
    """

    name: str | None = None
    frame_id: int | None = None
    memory_reference: str | None = None


@request("opstep/nanReport", custom=True)
def nan_report(session: Session, arguments: NanReportArguments) -> dict[str, Any]:
    """Where the NaNs and infinities of a tensor were born, of which elements and by which rule, and
    which way they came. `kind` of the first link: finite, origin, propagated or given.
    """
    from opstep.runtime.nan.backtrace import trace_back

    node = _suspect(session, arguments)
    s = session.debugger.machine.executor.statistics(node)
    if not s.nan + s.posinf + s.neginf:
        return {"found": False, "text": f"{node.name} is finite", "links": []}
    frame_handle = handle_of(session, arguments.frame_id)
    return report_json(session, frame_handle, trace_back(session.debugger.machine.executor, node))


@request("opstep/goToOp", custom=True)
def go_to_op(session: Session, memory_reference: str) -> None:
    """Goes back to behind the op that computed a tensor, and stops there for its NaNs.
    `memory_reference`: of a tensor that a report names.
    """
    node = origin_of(session, memory_reference).node()
    producer = None if node is None else producer_of(node)
    if node is None or producer is None:
        raise DapError("it came from outside: no op of this run made it", NO_TENSOR)
    debugger, op = session.debugger, producer.op.name
    s = debugger.machine.executor.statistics(node)
    counts = {"nan": s.nan, "inf": s.posinf + s.neginf}
    kind = "nan" if s.nan else "inf"
    told = " and ".join(f"{n:,} {'NaN' if k == 'nan' else k}" for k, n in counts.items() if n)
    message = f"{node.name}, the result of {op}: {told} of {node.type.size:,} elements"
    stop = debugger.stand_behind(node, lambda position: Problem(kind, message, node, position))
    resume(session, lambda: stop, announced=True)


def present(session: Session, node: Node) -> Node:
    """What a value of the innermost graph is now: something before it may have been set."""
    calls = session.debugger.calls()
    found = calls[0].lookup(node.name) if calls and node.name else None
    return found if found is not None and found.type == node.type else node


def _suspect(session: Session, arguments: NanReportArguments) -> Node:
    if arguments.memory_reference is not None:
        node = origin_of(session, arguments.memory_reference).node()
        if node is None:
            raise DapError("it was computed for an answer: no op made it", NO_TENSOR)
        return node
    if arguments.name is None:
        stop = session.debugger.stop
        if stop is None or stop.exception is None or stop.exception.node is None:
            raise DapError("name: which tensor? The run is not stopped at a NaN", BAD_ARGUMENTS)
        return present(session, stop.exception.node)
    frame_handle = handle_of(session, arguments.frame_id)
    node = frame_handle.lookup(value_name(session, frame_handle, arguments.name))
    if node is None:
        raise DapError(f"{arguments.name[:80]} has no value here", NO_TENSOR)
    return node

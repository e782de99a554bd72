"""What is wrong: exceptionInfo with the verdict, and what may be watched: dataBreakpointInfo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.dap.checking import NULL
from opstep.dap.frames import FrameHandle, handle_of, stream_of
from opstep.dap.python_variables import value_name
from opstep.dap.registry import INITIALIZED, DapError, State, request
from opstep.dap.requests.nans import present
from opstep.dap.requests.variables import opened_of
from opstep.dap.tensor_origins import NamedTensor
from opstep.dap.variables import Range, Tensor
from opstep.runtime.debugger.applied import index_of, producer_of
from opstep.runtime.ir.control import BODY, TEST
from opstep.runtime.ir.graph import Apply
from opstep.runtime.ir.lexer import bare_name, quote_name
from opstep.runtime.ir.op import OPS
from opstep.runtime.nan.findings import ORIGIN

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.nan.backtrace import Backtrace

NO_EXCEPTION = 2240
TITLES = {
    "nan": "NaN",
    "inf": "infinity",
    "uninitialised": "elements that an op left unwritten",
    "assert": "failed assert",
    "device": "error of the device",
    "error": "error",
}


@request("exceptionInfo", capability="supportsExceptionInfoRequest")
def exception_info(session: Session, thread_id: int) -> dict[str, Any]:
    """Why the run stands, in one line, with the place to look at: of a NaN or an infinity where it
    was born, and by which rule. ``innerException`` has the elements and operands, as
    ``opstep/nanReport`` has, in words.
    """
    debugger = session.debugger.at(stream_of(session, thread_id))
    problem = debugger.stop.exception if debugger.stop else None
    if problem is None:
        raise DapError("the run is not stopped at an exception", NO_EXCEPTION)
    stack = debugger.stack()
    message = problem.message if problem.error is None else session.worded(problem.error)
    line, place = message.strip().partition("\n")[0], _place(stack)
    details: dict[str, Any] = {
        "message": message,
        "typeName": TITLES.get(problem.kind, problem.kind),
    }
    if problem.node is not None and problem.kind in ("nan", "inf"):
        from opstep.runtime.nan.backtrace import describe, trace_back

        node = present(session, problem.node)
        found = trace_back(debugger.machine.executor, node)
        line, place = found.line, _birth(found) or place
        details["innerException"] = [
            {"message": describe(link), "typeName": link.kind} for link in found.links
        ]
    if place:
        details["stackTrace"] = place
    if problem.node is not None and problem.node.name:
        details["evaluateName"] = quote_name(problem.node.name)
    ends = problem.error is not None
    return {
        "exceptionId": problem.kind,
        "description": line,
        "breakMode": "unhandled" if ends else "always",
        "details": details,
    }


def _place(stack: list[Frame]) -> str:
    """Where a run stands, as clients make a link of it."""
    return f"at {stack[0].name} ({stack[0].path}:{stack[0].line})" if stack else ""


def _birth(found: Backtrace) -> str:
    """The place where it was born, if the run does not stand there."""
    born = next((link.where for link in found.links if link.kind == ORIGIN and link.where), None)
    if born is None or found.links[0].kind == ORIGIN:
        return ""
    return f"born at {born.graph} ({born.imported or f'{born.path}:{born.line}'})"


# --- data breakpoints -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DataBreakpointInfoArguments:
    name: str
    variables_reference: int | None = None
    frame_id: int | None = None
    as_address: bool = False


@request("dataBreakpointInfo", states=INITIALIZED)
def data_breakpoint_info(
    session: Session, arguments: DataBreakpointInfoArguments
) -> dict[str, Any]:
    """Whether something can be watched, and under which id: a tensor of a scope, an expression over
    one tensor (its id has the predicate), or ``*`` for all.
    """
    if arguments.as_address:
        return _not("memory is watched by a tensor's name")
    if arguments.name.strip() == "*":
        return _watched("*", "all tensors, on the condition")
    if session.state is not State.STOPPED:
        return _not("the run is not stopped")
    if arguments.variables_reference:
        return _of_variable(session, arguments.variables_reference, arguments.name)
    return _of_expression(session, arguments)


def _of_variable(session: Session, number: int, name: str) -> dict[str, Any]:
    opened = opened_of(session, number)
    if isinstance(opened, (Tensor, Range)):
        origin = opened.of.origin if isinstance(opened, Range) else opened.origin
        if isinstance(origin, NamedTensor):
            return _named(origin.frame_handle, origin.name, "the whole tensor")
        return _not("only tensors that have a name can be watched")
    target = opened.target(name)
    if target is None:
        return _not(f"{name} cannot be watched")
    frame_handle, named = target
    return _named(frame_handle, value_name(session, frame_handle, bare_name(named)))


def _of_expression(session: Session, arguments: DataBreakpointInfoArguments) -> dict[str, Any]:
    from opstep.runtime.expressions import ExpressionError, parse

    frame_handle, text = handle_of(session, arguments.frame_id), arguments.name.strip()
    named = value_name(session, frame_handle, bare_name(text))
    if _is_name(frame_handle, named):
        return _named(frame_handle, named)
    try:
        names = [value_name(session, frame_handle, n) for n in parse(text).names]
    except ExpressionError as error:
        return _not(str(error))
    visible = [name for name in names if _is_name(frame_handle, name)]
    if not visible:
        return _not("it speaks of no tensor that is here")
    name = max(visible, key=lambda n: _since(frame_handle, n))
    id, where = data_id(frame_handle, name)
    if not id:
        return _not(where)
    if where:
        return _not(f"{name} is {where}: watch {id}, on a condition that calls it value")
    return _watched(f"{id} if {text}", f"{text}, whenever {name} changes")


def _named(frame_handle: FrameHandle, name: str, what: str = "") -> dict[str, Any]:
    id, where = data_id(frame_handle, name)
    if not id:
        return _not(where)
    return _watched(id, ", ".join(part for part in (name, what, where) if part))


def _is_name(frame_handle: FrameHandle, name: str) -> bool:
    """Whether the frame has such a name, also where it has no value yet."""
    frame = frame_handle.frame
    return frame.value(name) is not None or frame.lookup(name) is not None


def _since(frame_handle: FrameHandle, name: str) -> tuple[bool, float]:
    """When a name gets its value: the one that is computed last is watched, as the others are there
    then.
    """
    from opstep.runtime.debugger.changes import definition_point

    value, activation = frame_handle.frame.value(name), frame_handle.frame.activation
    if value is None:
        return False, -1
    found = activation.env.get(value)
    return (True, definition_point(activation, value)) if found is None else (False, found[0])


def data_id(frame_handle: FrameHandle, name: str) -> tuple[str, str]:
    """What setDataBreakpoints calls a tensor: params by their name; others with their graph, where
    an op computes them, which may be another than the frame's: then the second text says so. The
    first is "" where no op does.
    """
    frame, plan = frame_handle.frame, frame_handle.frame.activation.plan
    value = frame.value(name)
    if value is None:
        return name, ""
    if value in frame.activation.points.named:
        return frame.activation.points.named[value], ""
    if plan.frames[frame.frame].parent < 0 and value in plan.inputs:
        again = _next_turn(frame, plan.inputs.index(value))
        if again:
            return again, f"what {again.replace('.', ' computes as ')}"
    node = frame.lookup(name)
    producer = producer_of(node) if node is not None else None
    if node is not None and producer is not None:
        plan, step = producer.plan, producer.step
        inner = step.results[index_of(node, producer)]
    else:  # it is not computed yet, or was set by hand
        step, inner = next((s for s in plan.steps if value in s.results), None), value
    if step is None:
        return "", f"{name} came from outside: no op changes it"
    graph, inner = plan.frames[step.frame].graph.name.text, plan.values[inner].name
    if (graph, inner) == (frame.graph.name.text, name):
        return f"{graph}.{name}", ""
    return f"{graph}.{inner}", f"what {graph} computes as {inner}"


def _next_turn(frame: Frame, k: int) -> str:
    """What a loop's body computes for its state of that number; "" where no op of its does."""
    activation = frame.activation
    if activation.parent is None or activation.role not in (TEST, BODY):
        return ""
    step = activation.parent.plan.steps[activation.parent.points[activation.call].step]
    graphs = {g.name.text: g for text in frame.machine.host.texts() for g in text.graphs}
    body = graphs[step.attrs["body"].name]
    state = body.body[-1].values[k].text
    applied = (s for s in body.body if isinstance(s, Apply) and s.callee.text in OPS)
    made = any(result.name.text == state for s in applied for result in s.results)
    return f"{body.name.text}.{state}" if made else ""


def _watched(id: str, description: str) -> dict[str, Any]:
    return {
        "dataId": id,
        "description": description,
        "accessTypes": ["write"],
        "canPersist": True,
    }


def _not(why: str) -> dict[str, Any]:
    return {"dataId": NULL, "description": why}

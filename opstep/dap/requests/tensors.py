"""Requests of our own, for views of tensors and of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.dap.frames import FrameHandle, handle_of
from opstep.dap.python_variables import value_name
from opstep.dap.registry import (
    BAD_ARGUMENTS,
    DapError,
    HistogramArguments,
    TensorArguments,
    request,
)
from opstep.dap.requests.memory import origin_of
from opstep.dap.requests.variables import evaluated
from opstep.dap.source_view import python_place
from opstep.editors import views
from opstep.editors.views import MOST_BINS, HostTensor, Viewed, statistics_json
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.lexer import bare_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.activation import Node

NO_TENSOR = 2250
MOST_POINTS = 10_000  # of a timeline, or a history, in one response


@dataclass(frozen=True)
class SliceArguments(TensorArguments):
    """`max_elements`: the tensor is thinned out, by strides, until it has no more."""

    max_elements: int | None = None


def tensor_of(session: Session, arguments: TensorArguments) -> Viewed:
    """What an expression gives, as a tensor. Raises `DapError`."""
    frame_handle, extra = handle_of(session, arguments.frame_id), {}
    if arguments.memory_reference is not None:
        node = origin_of(session, arguments.memory_reference).node()
        if node is None:
            raise DapError(f"{arguments.expression[:80]} was computed for an answer", NO_TENSOR)
        extra["value"] = node
    value = evaluated(session, frame_handle, arguments.expression, extra)
    if isinstance(value, (np.ndarray, np.generic)):
        return HostTensor(np.asarray(value))
    if isinstance(value, (bool, int, float)):
        return HostTensor(np.asarray(value))
    if not hasattr(value, "statistics"):
        raise DapError(f"{arguments.expression[:80]} is not a tensor", NO_TENSOR)
    return value


@request("opstep/tensorType", custom=True)
def tensor_type(session: Session, arguments: TensorArguments) -> dict[str, Any]:
    """What a tensor is, of which nothing is copied for that."""
    tensor = tensor_of(session, arguments)
    body, t = views.type_json(tensor), tensor.type
    if t.dtype.is_float:  # integers that look like it may well have been written
        body["unwritten"] = f"{int(payload(t.dtype)):0{t.dtype.itemsize * 2}x}"
    return body


@request("opstep/tensorSlice", custom=True)
def tensor_slice(session: Session, arguments: SliceArguments) -> dict[str, Any]:
    """Elements as bytes in base64, little-endian, the last axis fastest."""
    if arguments.max_elements is not None and arguments.max_elements < 1:
        raise DapError("maxElements is at least 1", BAD_ARGUMENTS)
    tensor = tensor_of(session, arguments)
    with refused(NO_TENSOR):
        return views.sliced(tensor, arguments.max_elements)


@contextmanager
def refused(id: int) -> Iterator[None]:
    """What views cannot have is an error with this number."""
    try:
        yield
    except InputError as error:
        raise DapError(error.diagnostics[0].message, id) from None


# --- figures --------------------------------------------------------------------------------------


@request("opstep/statistics", custom=True)
def statistics(session: Session, arguments: TensorArguments) -> dict[str, Any]:
    """All figures of a tensor, taken on its device."""
    tensor = tensor_of(session, arguments)
    return {"type": str(tensor.type), "statistics": statistics_json(tensor.statistics())}


@request("opstep/histogram", custom=True)
def histogram(session: Session, arguments: HistogramArguments) -> dict[str, Any]:
    """Bins of equal width over the finite elements, which are copied for that."""
    if not 1 <= arguments.bins <= MOST_BINS:
        raise DapError(f"bins is 1 to {MOST_BINS}", BAD_ARGUMENTS)
    tensor = tensor_of(session, arguments)
    with refused(BAD_ARGUMENTS):
        return views.histogram(tensor, arguments.bins, arguments.low, arguments.high)


@request("opstep/statisticsHistory", custom=True)
def statistics_history(
    session: Session, name: str, frame_id: int | None = None, count: int = 1000
) -> dict[str, Any]:
    """A tensor's figures over the steps of the run, or the turns of its loop, as far as the
    debugger remembers them; a named tensor's over its versions. Oldest first. `name`: a value of
    the frame's graph, or a named tensor, maybe in backquotes.
    """
    frame_handle = handle_of(session, frame_id)
    name = value_name(session, frame_handle, bare_name(name))
    if frame_handle.frame.lookup(name) is None:
        raise DapError(f"{name[:80]} has no value here", NO_TENSOR)
    most = max(1, min(count, MOST_POINTS))
    entries = []
    for label, node in _versions(frame_handle, name)[-most:]:
        session.check_cancelled()
        s = session.debugger.machine.executor.statistics(node)
        entries.append(label | {"type": str(node.type), "statistics": statistics_json(s)})
    return {"entries": entries}


def _versions(frame_handle: FrameHandle, name: str) -> list[tuple[dict[str, Any], Node]]:
    frame = frame_handle.frame
    history = frame.machine.history
    value = frame.value(name)
    if value is None:
        versions = history.named.of(name)
        return [({"position": at}, node) for at, node in versions if at <= history.cursor]
    found, visited = [], set()
    for activation, _ in [*history.log[: history.cursor - history.base], (frame.activation, 0)]:
        current = frame.activation
        if id(activation) in visited or activation.points is not current.points:
            continue
        visited.add(id(activation))
        if activation.parent is current.parent and activation.role == current.role:
            node = activation.at(value, history.cursor, frame.frame)
            if node is not None:
                found.append(({"step": activation.turn}, node))
    return found


# --- the run --------------------------------------------------------------------------------------


@request("opstep/plan", custom=True)
def plan(session: Session, frame_id: int | None = None) -> dict[str, Any]:
    """The plan of a frame, in its text form, and the step that is next."""
    frame = handle_of(session, frame_id).frame
    upcoming = frame.machine.history.next_point()
    in_frame = upcoming is not None and upcoming[0] is frame.activation
    return {
        "graph": frame.activation.plan.graph,
        "text": str(frame.activation.plan),
        "step": upcoming[1].step if upcoming is not None and in_frame else -1,
    }


@request("opstep/timeline", custom=True)
def timeline(session: Session, start: int | None = None, count: int = 1000) -> dict[str, Any]:
    """What was run so far, in the order of issue, with streams and the events between them: the
    last points before where one stands, or those from `start` on. Without times: under the
    debugger they would say nothing.
    """
    machine = session.debugger.machine
    count = max(1, min(count, MOST_POINTS))
    first = machine.history.cursor - count if start is None else start
    first = max(first, machine.history.base)
    last = min(first + count, machine.history.cursor)
    points = [_point(session, position) for position in range(first, last)]
    return {"first": machine.history.base, "position": machine.history.cursor, "points": points}


def _point(session: Session, position: int) -> dict[str, Any]:

    machine = session.debugger.machine
    activation, k = machine.history.log[position - machine.history.base]
    point, plan = activation.points[k], activation.plan
    body: dict[str, Any] = {
        "position": position,
        "kind": point.kind,
        "graph": activation.frame_name(point.frame),
        "stream": point.stream,
    }
    graph = plan.frames[point.frame].graph
    if point.statement is not None:
        source = plan.frames[point.frame].source
        if source is not None:
            body["line"] = session.client.line(source.locate(point.statement.span.start)[0])
        body |= python_place(session, graph, point.statement)
    if point.step >= 0:
        step = plan.steps[point.step]
        results = [{"name": plan.values[v].name, "type": str(plan.values[v].type)}
                   for v in step.results]  # fmt: skip
        body |= {"op": step.op.name, "results": results}
        body |= {"waits": list(point.waits), "records": list(point.records)}
    return body

"""Where a run stands: stackTrace and scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.dap.code import code_reference, statement_reference
from opstep.dap.facts import Fields, memory_entries, op_entries
from opstep.dap.frames import FrameHandle, Stacks, handle_of
from opstep.dap.python_variables import Variables, all_values
from opstep.dap.registry import request
from opstep.dap.source_view import SourceView, View
from opstep.dap.variables import Names, Writer
from opstep.dap.visible_names import VisibleNames
from opstep.trace.describe import call_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame


DEEMPHASIZED = {"presentationHint": "deemphasize"}


@dataclass(frozen=True)
class StackFrameFormat:
    parameters: bool = False
    parameter_types: bool = False
    parameter_names: bool = False
    parameter_values: bool = False
    line: bool = False
    module: bool = False


@dataclass(frozen=True)
class StackTraceArguments:
    thread_id: int
    start_frame: int = 0
    levels: int = 0
    format: StackFrameFormat | None = None


@request("stackTrace", capability="supportsDelayedStackTraceLoading")
def stack_trace(session: Session, arguments: StackTraceArguments) -> dict[str, Any]:
    """The frames of a stream, innermost first: graphs and turns of loops; functions of Python in
    place of those that were imported, see `SourceView`.
    """
    frames = session.per_stop(Stacks).of(arguments.thread_id)
    first = max(arguments.start_frame, 0)
    last = first + arguments.levels if arguments.levels > 0 else len(frames)
    imported = any(frame.python for frame in frames)
    bodies = [_frame(session, arguments, frame, imported) for frame in frames[first:last]]
    return {"stackFrames": bodies, "totalFrames": len(frames)}


def _frame(
    session: Session, arguments: StackTraceArguments, frame: Frame, imported: bool
) -> dict[str, Any]:
    """`imported`: frames around it show Python."""
    client, source, python = session.client, session.source_of(frame), frame.python
    session.per_session(SourceView).report_changed(frame)
    found: dict[str, Any] = {
        "id": session.per_stop(Stacks).number(arguments.thread_id, frame),
        "name": _name(frame, arguments.format),
        "source": source,
        "line": client.line(frame.line),
        "column": client.column(frame.column),
        "canRestart": python is None or not python.level,
    }
    if python is None and not client.selects_frames:
        line, column = frame.end
        found |= {"endLine": client.line(line), "endColumn": client.column(column)}
    if python is None and imported:  # what Python calls is not the user's: it is passed over
        found |= {"presentationHint": "subtle", "source": source | DEEMPHASIZED}
    elif python is not None and (python.at.changed or not python.at.found):
        found["presentationHint"] = "subtle"
    reference = statement_reference(session, frame) if python else code_reference(session, frame)
    if reference:
        found["instructionPointerReference"] = reference
    return found


def _name(frame: Frame, form: StackFrameFormat | None) -> str:
    """``halve [i=3]``; of a call also what it is for, see `call_name`."""
    plan = frame.activation.plan
    if frame.python:
        return frame.name
    name = frame.name if plan.frames[frame.frame].parent < 0 else call_name(plan, frame.frame)
    if form is None:
        return name
    if form.parameters:
        name += f"({', '.join(_parameters(frame, form))})"
    if form.module:
        name = f"{frame.path.rpartition('/')[2]}!{name}"
    return f"{name}, line {frame.line}" if form.line else name


def _parameters(frame: Frame, form: StackFrameFormat) -> list[str]:
    found = []
    for name, node in frame.inputs().items():
        types = f": {node.type}" if form.parameter_types else ""
        found.append(f"{name}{types}" if form.parameter_names else str(node.type))
    return found


# --- scopes ---------------------------------------------------------------------------------------


@request("scopes")
def scopes(session: Session, frame_id: int) -> dict[str, Any]:
    """Values, Inputs, Params, Op and Memory of a frame; of a function of Python its variables
    first. What clients open, the first, has something. Nothing is looked at yet.
    """
    frame_handle = handle_of(session, frame_id)
    w, key = Writer(session), frame_id
    graph = frame_handle.of_graph() if frame_handle.frame.python else frame_handle
    inputs = _scope(w, key, "Inputs", inputs_of(session, graph), presentationHint="arguments")
    if frame_handle.frame.python:
        variables, values = Variables(session, frame_handle), all_values(session, frame_handle)
        locals_ = _scope(w, key, "Locals", variables, presentationHint="locals")
        found = [locals_, inputs, _scope(w, key, "All values", values)]
        if not variables.named:  # as in a backward, which has no variables of its own
            found = [found[2], inputs, locals_] if values.names else [inputs, found[2], locals_]
    else:
        values = values_of(session, frame_handle)
        found = [inputs, _scope(w, key, "Values", values, presentationHint="locals")]
        if values.names:
            found.reverse()
    found.append(_scope(w, key, "Params", params_of(graph)))
    if frame_handle.frame.statement is not None:
        found.append(_scope(w, key, "Op", Fields(lambda: op_entries(graph))))
    memory = Fields(lambda: memory_entries(graph))
    return {"scopes": [*found, _scope(w, key, "Memory", memory)]}


def _scope(w: Writer, key: int, name: str, of: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "expensive": False, **w.counts(of, ("scope", key, name)), **more}


def inputs_of(session: Session, frame_handle: FrameHandle) -> Names:
    """What the frame's graph was given."""
    visible = set(session.per_stop(VisibleNames).names(frame_handle.frame))
    names = [b.name.text for b in frame_handle.frame.graph.inputs if b.name.text in visible]
    return Names(frame_handle, names, frame_handle.lookup)


def values_of(session: Session, frame_handle: FrameHandle) -> Names:
    """What the frame's graph has computed so far."""
    inputs = {b.name.text for b in frame_handle.frame.graph.inputs}
    names = [n for n in session.per_stop(VisibleNames).names(frame_handle.frame) if n not in inputs]
    return Names(frame_handle, names, frame_handle.lookup)


def params_of(frame_handle: FrameHandle) -> Names:
    """All named tensors of the program."""
    return Names(frame_handle, list(frame_handle.frame.machine.host.tensors), frame_handle.lookup)


# --- what is shown --------------------------------------------------------------------------------


@request("opstep/sourceView", custom=True)
def source_view(session: Session, view: View | None = None) -> dict[str, Any]:
    """Frames show Python's lines, or the graph's text, from now on; without a `view`, the other."""
    wanted = session.per_session(SourceView)
    wanted.view = view or ("auto" if wanted.view == "graph" else "graph")
    session.debugger.view = wanted.view
    session.forget(Stacks)
    if session.client.supports_invalidated_event:
        session.after(lambda: session.event("invalidated", {"areas": ["stacks", "variables"]}))
    return {"view": wanted.view}

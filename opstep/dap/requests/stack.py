"""Where a run stands: stackTrace and scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.dap.code import code_reference
from opstep.dap.facts import Fields, memory_entries, op_entries
from opstep.dap.frames import FrameHandle, Stacks, handle_of
from opstep.dap.registry import request
from opstep.dap.variables import Names, Writer
from opstep.dap.visible_names import VisibleNames

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame


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
    """The frames of a stream, innermost first: graphs, turns of loops, lines that they were
    imported from.
    """
    frames = session.per_stop(Stacks).of(arguments.thread_id)
    first = max(arguments.start_frame, 0)
    last = first + arguments.levels if arguments.levels > 0 else len(frames)
    bodies = [_frame(session, arguments, frame) for frame in frames[first:last]]
    return {"stackFrames": bodies, "totalFrames": len(frames)}


def _frame(session: Session, arguments: StackTraceArguments, frame: Frame) -> dict[str, Any]:
    client = session.client
    text = frame.source.text if frame.source and not frame.imported else ""
    source = session.source(frame.path, text)
    found: dict[str, Any] = {
        "id": session.per_stop(Stacks).number(arguments.thread_id, frame),
        "name": _name(frame, arguments.format),
        "source": source,
        "line": client.line(frame.line),
        "column": client.column(frame.column),
        "canRestart": frame.imported is None,
    }
    if not frame.imported:
        if not client.selects_frames:
            line, column = frame.end
            found |= {"endLine": client.line(line), "endColumn": client.column(column)}
    elif "path" not in source:  # a file of the importer that is not here
        found["presentationHint"] = "subtle"
    if not frame.number:
        reference = code_reference(session, frame)
        if reference:
            found["instructionPointerReference"] = reference
    return found


def _name(frame: Frame, form: StackFrameFormat | None) -> str:
    if form is None or frame.imported:
        return frame.name
    name = frame.name
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


@dataclass(frozen=True)
class ScopesArguments:
    frame_id: int


@request("scopes")
def scopes(session: Session, arguments: ScopesArguments) -> dict[str, Any]:
    """Inputs, Values, Params, Op and Memory of a frame; those of a line that a statement was
    imported from are those of the statement's graph. Nothing is looked at yet.
    """
    frame_handle = handle_of(session, arguments.frame_id)
    w, key = Writer(session), arguments.frame_id
    found = [
        _scope(w, key, "Inputs", inputs_of(session, frame_handle), presentationHint="arguments"),
        _scope(w, key, "Values", values_of(session, frame_handle), presentationHint="locals"),
        _scope(w, key, "Params", params_of(frame_handle)),
    ]
    if frame_handle.frame.statement is not None:
        found.append(_scope(w, key, "Op", Fields(lambda: op_entries(frame_handle))))
    memory = Fields(lambda: memory_entries(frame_handle))
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

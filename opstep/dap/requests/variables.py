"""Values: variables, setVariable, setExpression, evaluate, completions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from opstep.dap.client import Source
from opstep.dap.facts import Fields
from opstep.dap.frames import FrameHandle, handle_of
from opstep.dap.python_variables import value_name, variable
from opstep.dap.registry import BAD_ARGUMENTS, DapError, request
from opstep.dap.styling import why_not_finite
from opstep.dap.tensor_origins import ComputedTensor, NamedTensor, Opened
from opstep.dap.variables import Writer
from opstep.dap.visible_names import renew
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.lexer import QUOTED, bare_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.activation import Node
    from opstep.runtime.expressions import ExpressionError

NOT_SET, WRONG_EXPRESSION = 2202, 2203
MOST_COPIED = 1 << 17  # elements that the clipboard gets
_ASSIGNMENT = re.compile(
    rf"\s*((?:[A-Za-z_][\w.]*|{QUOTED})(?:\[[^=]*\])?)\s*=(?!=)\s*(.+)", re.DOTALL
)


@dataclass(frozen=True)
class ValueFormat:
    hex: bool = False


@request("variables", capability=("supportsValueFormattingOptions", "supportsANSIStyling"))
def variables(
    session: Session,
    variables_reference: int,
    filter_: Literal["indexed", "named"] | None = None,
    start: int = 0,
    count: int = 0,
    format_: ValueFormat | None = None,
) -> dict[str, Any]:
    """What is in a scope, a tensor, a row of it, a table."""
    if start < 0 or count < 0:
        raise DapError("variables: start and count are not negative", BAD_ARGUMENTS)
    opened = opened_of(session, variables_reference)
    w = Writer(session, bool(format_ and format_.hex), styled=True)
    found = w.children(opened, filter_, start, count)
    return {"variables": found}


def opened_of(session: Session, number: int) -> Opened:
    """What a ``variablesReference`` stands for. Raises `DapError`."""
    return session.references.get(number, Opened, "variablesReference")


# --- setting --------------------------------------------------------------------------------------


@request("setVariable", capability="supportsSetVariable")
def set_variable(
    session: Session,
    variables_reference: int,
    name: str,
    value: str,
    format_: ValueFormat | None = None,
) -> dict[str, Any]:
    """Gives a tensor, or an element or a row of it, another value. What depends on it is computed
    again, and nothing else.
    """
    opened = opened_of(session, variables_reference)
    target = opened.target(name)
    if target is None:
        raise DapError(f"{name} cannot be set", NOT_SET)
    frame_handle, expression = target
    set_to(session, frame_handle, expression, value)
    return result_body(session, frame_handle, expression, format_, "value")


@request("setExpression", capability="supportsSetExpression")
def set_expression(
    session: Session,
    expression: str,
    value: str,
    frame_id: int | None = None,
    format_: ValueFormat | None = None,
) -> dict[str, Any]:
    """Likewise, of what is written: ``x``, ``x[0, :3]``, ``x[nan(x)]``."""
    frame_handle = handle_of(session, frame_id)
    set_to(session, frame_handle, expression, value)
    return result_body(session, frame_handle, expression, format_, "value")


def set_to(session: Session, frame_handle: FrameHandle, target: str, value: str) -> None:
    """Raises `DapError` where that cannot be; then nothing has changed."""
    from opstep.runtime.expressions import ExpressionError, assign

    scope = session.debugger.scope(frame_handle.frame)
    try:
        name, array, part = assign(scope, target, value)
    except ExpressionError as error:
        about = error.text or f"{target} = {value}"
        raise WrongExpression(error, NOT_SET, f"{about[:200]}: ") from None
    change(session, frame_handle, scope.value_name(name) or name, array, part)


def change(
    session: Session,
    frame_handle: FrameHandle,
    name: str,
    array: np.ndarray,
    part: np.ndarray | None,
) -> None:
    """Gives a name another value, and tells the client what it has to look at anew."""
    debugger, stood = session.debugger, session.debugger.position
    frame = frame_handle.frame
    frames = [(f.name, f.line) for f in debugger.stack()]
    try:
        debugger.set(frame, name, array, part)
    except OpstepError:
        if debugger.position != stood:  # it was set, and then an op that depends on it failed
            _report_stop_elsewhere(session)
        raise
    renew(session)
    if not frame_handle.alive:  # the op that is next is in no call of it; what was set can be told
        frame_handle.update(frame._replace(position=debugger.position))
    same = frames == [(f.name, f.line) for f in debugger.stack()]
    areas = ["variables"] if same else ["stacks", "variables"]
    if session.client.supports_invalidated_event:
        session.after(lambda: session.event("invalidated", {"areas": areas}))


def _report_stop_elsewhere(session: Session) -> None:
    """Tells of a stop where nobody asked to go."""
    from opstep.runtime.debugger.checks import Stop

    debuggee, stop = session.debuggee, session.debugger.stop
    assert debuggee is not None
    text = "an op failed that depends on what was set: the run is stopped before it"
    reported = Stop("step", text, stop.thread if stop else 0)
    debuggee.announce()
    session.inbox.put_first(lambda: debuggee.go(lambda: reported))  # behind the response


def result_body(
    session: Session, frame_handle: FrameHandle, expression: str, form: ValueFormat | None,
    key: str, styled: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What an expression is now, as responses tell it; `key` is what they call its text."""
    value = evaluated(session, frame_handle, expression)
    w = Writer(session, bool(form and form.hex), styled)
    found = variable_of(w, frame_handle, expression, value)
    body = {key: found.pop("value")} | found
    body.pop("name")
    for of_rows in ("evaluateName", "__vscodeVariableMenuContext"):
        body.pop(of_rows, None)
    return body


# --- expressions ----------------------------------------------------------------------------------


class WrongExpression(DapError):
    """In one line, as hovers and watches show it; `whole` has a caret below the place."""

    def __init__(self, error: ExpressionError, id: int = WRONG_EXPRESSION, about: str = ""):
        super().__init__(f"{about}{error}", id)
        self.whole = str(error.diagnostic)


@dataclass(frozen=True)
class EvaluateArguments:
    expression: str
    frame_id: int | None = None
    context: str | None = None
    format: ValueFormat | None = None
    source: Source | None = None


@request("evaluate", capability=("supportsEvaluateForHovers", "supportsClipboardContext"))
def evaluate(session: Session, arguments: EvaluateArguments) -> dict[str, Any]:
    """An expression over the tensors of a frame. In the console ``x[3] = 0`` sets, too, and errors
    have as many lines as they like.
    """
    try:
        return _answer(session, arguments)
    except WrongExpression as error:
        if arguments.context != "repl":
            raise
        raise DapError(error.whole, error.id, short=error.text) from None


def _answer(session: Session, arguments: EvaluateArguments) -> dict[str, Any]:
    frame_handle = handle_of(session, arguments.frame_id)
    text = arguments.expression
    setting = _ASSIGNMENT.fullmatch(text) if arguments.context == "repl" else None
    if setting:
        set_to(session, frame_handle, setting[1], setting[2])
        text = setting[1]
    if arguments.context == "clipboard":
        copy = copied(evaluated(session, frame_handle, text))
        if copy is not None:
            return {"result": copy, "variablesReference": 0}
    styled = arguments.context == "hover"  # where nothing can be edited, or is copied
    body = result_body(session, frame_handle, text, arguments.format, "result", styled)
    if arguments.context != "clipboard":
        body["result"] += why_not_finite(frame_handle.frame, text, body["result"])
    return body


def evaluated(
    session: Session, frame_handle: FrameHandle, text: str, extra: dict[str, Node] | None = None
) -> Any:
    """`extra`: tensors by names that the frame has not. Raises `DapError`, which points at what is
    wrong.
    """
    from opstep.runtime.expressions import ExpressionError

    try:
        return session.debugger.evaluate(text, frame_handle.frame, extra)
    except ExpressionError as error:
        raise WrongExpression(error) from None


def variable_of(
    w: Writer, frame_handle: FrameHandle, expression: str, value: Any
) -> dict[str, Any]:
    """Any value of an expression as a variable of that name."""
    from opstep.runtime.expressions import ValueTable
    from opstep.runtime.expressions.text import value_text

    if isinstance(value, np.generic):
        return w.element(expression, value)
    if isinstance(value, ValueTable):
        return w.opening(expression, value_text(value), table(value), value.kind)
    if isinstance(value, (str, bool, int, float, tuple, list)) or value is None:
        return w.plain(expression, value_text(value))
    if isinstance(value, np.ndarray):
        found = w.tensor(expression, ComputedTensor(value, expression, frame_handle))
    else:
        name = bare_name(expression)
        known = value_name(w.session, frame_handle, name)
        origin = (
            NamedTensor(frame_handle, known)
            if frame_handle.frame.lookup(known) is not None
            else ComputedTensor(value, expression, frame_handle)
        )
        origin.handle().statistics()  # asked for by name: it is said at once
        if known != name:
            return variable(w, frame_handle, name, known)
        found = w.tensor(expression, origin)
    return found


def table(value: Any) -> Fields:
    """Rows by what stands first in them; the figures that have names."""
    from opstep.runtime.expressions.text import value_text

    first = [value_text(row[0]) for row in value.rows if row]
    unique = len(set(first)) == len(first)
    entries: list[tuple[str, Any]] = []
    for k, row in enumerate(value.rows):
        cells = row[1:] if unique else row
        titles = value.columns[1:] if unique else value.columns
        texts = [value_text(cell) for cell in cells]
        if len(texts) > 1:
            texts = [f"{t} {x}" for t, x in zip(titles, texts, strict=False)]
        entries.append((first[k] if unique else f"[{k}]", "  ".join(texts)))
    names = {name for name, _ in entries}
    entries += [(n, value_text(v)) for n, v in value.fields.items() if n not in names]
    return Fields(lambda: entries)


def copied(value: Any) -> str | None:
    """All elements of a tensor, as NumPy and Python read lists; None for what is not a tensor."""
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "array"):
        size: Any = value.type.size
        if size > MOST_COPIED:
            hint = "take a part of it: x[:100], or save it"
            raise DapError(f"{value.type} is too much for the clipboard: {hint}")
        array = value.array()
    else:
        return None
    return str(array.tolist())


# --- completions ----------------------------------------------------------------------------------


TYPES = {"tensor": "variable", "function": "function", "word": "keyword", "dtype": "enum"}


@request(
    "completions",
    capability="supportsCompletionsRequest",
    advertises={"completionTriggerCharacters": [".", "(", "["]},
)
def completions(
    session: Session, text: str, column: int, line: int | None = None, frame_id: int | None = None
) -> dict[str, Any]:
    """What may stand at a place of an expression: tensors of the frame, functions, words."""
    from opstep.runtime.expressions import complete

    frame_handle = handle_of(session, frame_id)
    lines = text.split("\n")
    row = 0 if line is None else session.client.our_line(line) - 1
    text = lines[min(max(row, 0), len(lines) - 1)]
    column = session.client.our_column(column) - 1
    names = session.debugger.scope(frame_handle.frame).names()
    first = 1 if session.client.columns_start_at1 else 0
    return {
        "targets": [
            {
                "label": c.text,
                "type": TYPES.get(c.kind, "text"),
                "detail": c.detail,
                "start": c.start + first,
                "length": c.end - c.start,
                "sortText": f"{k:05}",
            }
            for k, c in enumerate(complete(text, column, names))
        ]
    }

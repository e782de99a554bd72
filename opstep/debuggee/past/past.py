"""The past of the main thread: moves between recorded lines, stacks and variables as they were.

A position is the time of a recorded event, which happened before its line ran; None is the present.
All is asked while the program is stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from opstep.debuggee.past import evaluating, kinds, texts
from opstep.debuggee.past.moments import Moments
from opstep.debuggee.past.rebuild import AS_NOW, MARKS, Then
from opstep.debuggee.past.recorder import Recorder
from opstep.runtime.ir.errors import InputError

MEMORY = 256 << 20
TARGETS = 200  # turns of a line that are offered to go back to
FIRST_REFERENCE = 1 << 30  # those of the present are below
Breakpoints = dict[str, dict[int, str | None]]


class Moved(NamedTuple):
    position: int | None
    reason: str  # "step", "breakpoint", "entry" (the recording begins here), "present"
    text: str


class Event(NamedTuple):
    position: int
    frame: int
    line: int
    lasti: int
    code: int


class Past:
    """What was recorded. `begin` makes it."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._native = recorder.native
        self._looked_at = -1
        self._codes: list[CodeType] = []
        self._paths: list[str] = []
        self._thens: dict[int, Then] = {}
        self._seen_from: tuple[int, int] | None = None  # by the expression that is evaluated
        self._references: dict[int, Callable[[], list[tuple[str, Any, Then]]]] = {}
        self.steps: list[int] = []
        self.text_of: Callable[[Any], str] = texts.text_of
        self.children_of: Callable[[Any], list[tuple[str, Any]]] = texts.children_of

    @staticmethod
    def begin(folders: list[str], memory: int = MEMORY) -> Past:
        """Begins to record the lines of files in these folders, in the main thread. Raises
        `InputError` with the reason where that cannot be.
        """
        return Past(Recorder(folders, memory))

    def end(self) -> None:
        self._recorder.end()

    def is_user(self, path: str) -> bool:
        """Whether the lines of a file are recorded."""
        return self._recorder.is_user(path)

    def watch_writes(self) -> None:
        """PyTorch is there: from now on what ops write to is copied first, as far as it is known
        and larger than what is compared. On the main thread.
        """
        self._recorder.watch_writes()

    def step_done(self) -> None:
        """Notes that a step of training is done. Lines may then be hot anew."""
        self.steps.append(self._native.step_done())

    # --- moves ------------------------------------------------------------------------------------

    def move(
        self, kind: str, position: int | None, breakpoints: Breakpoints,
        stopped: FrameType | None = None,
    ) -> Moved:  # fmt: skip
        """One move of DAP: stepBack, reverseContinue, next, stepIn, stepOut or continue.
        `stopped`: the frame in which the program is stopped in the present.
        """
        self._refresh()
        last = self._last_begun(stopped)
        if kind not in ("stepBack", "reverseContinue"):
            return self._forward(kind, position, breakpoints, last)
        if kind == "stepBack":
            found = self._step_back(position, last)
        else:
            return self._reverse(position, breakpoints, last)
        if found is None:
            return self._first(position)
        return Moved(found.position, "step", "")

    def _step_back(self, position: int | None, last: Event | None) -> Event | None:
        if position is not None:
            return self._find(position, True, self._chain(self._event(position).frame))
        latest = self._find(1 << 62, True)
        if last is None or latest is None or last.position == latest.position:
            return last  # within the line
        return self._find(latest.position, True, self._chain(latest.frame))

    def _reverse(self, position: int | None, breakpoints: Breakpoints, last: Event | None) -> Moved:
        start = position if position is not None else (last.position + 1 if last else 0)
        found, text = self._find_breakpoint(start, True, breakpoints)
        if found is None:
            return self._first(position)
        return Moved(found.position, "breakpoint", text)

    def _first(self, position: int | None) -> Moved:
        first = self._find(0, False)
        if first is None or (position is not None and position <= first.position):
            return Moved(position, "entry", "nothing was recorded before")
        dropped = self._native.statistics()["dropped"]
        what = f"{dropped:,} lines before were dropped" if dropped else "the recording begins here"
        return Moved(first.position, "entry", what)

    def _forward(
        self, kind: str, position: int | None, breakpoints: Breakpoints, last: Event | None
    ) -> Moved:
        present = Moved(None, "present", "Paused in the present")
        if position is None or last is None:
            return present
        found, text, reason = None, "", "step"
        if kind == "continue":
            found, text = self._find_breakpoint(position, False, breakpoints)
            reason = "breakpoint"
        elif kind == "stepIn":
            found = self._find(position, False)
        elif kind in ("next", "stepOut"):
            chain = self._chain(self._event(position).frame)
            chain = chain[1:] if kind == "stepOut" else chain
            found = self._find(position, False, chain) if chain else None
        else:
            raise InputError(f"there is no move {kind}")
        if found is None or found.position > last.position:
            return present
        return Moved(found.position, reason, text)

    def _last_begun(self, stopped: FrameType | None) -> Event | None:
        """The last event whose line has begun. That of the present line may be recorded though the
        line has not begun: the program is stopped at the very instruction then.
        """
        last = self._find(1 << 62, True)
        if last is None or stopped is None:
            return last
        is_present = (
            self._codes[last.code] is stopped.f_code
            and last.line == stopped.f_lineno
            and last.lasti == stopped.f_lasti
        )
        return self._find(last.position, True) if is_present else last

    def _find_breakpoint(
        self, position: int, backwards: bool, breakpoints: Breakpoints
    ) -> tuple[Event | None, str]:
        by_path = {os.path.abspath(path): lines for path, lines in breakpoints.items()}
        here = [by_path.get(path) for path in self._paths]
        lines = [set(found) if found else None for found in here]
        while True:
            event = self._find(position, backwards, None, lines)
            if event is None:
                return None, ""
            condition = (here[event.code] or {})[event.line]
            try:
                if not condition or self.evaluate(condition, event.position, 0):
                    return event, ""
            except Exception as error:
                return event, f"the condition {condition} fails: {error}"
            position = event.position

    # --- moments ----------------------------------------------------------------------------------

    def moment(self, position: int | None) -> str:
        """Of training and of the loop: "step 12, iteration 2 of 3"."""
        moments = Moments(self._native, self._native.codes(), self.steps)
        return moments.text(1 << 62 if position is None else position)

    def targets(
        self, path: str, line: int, position: int | None = None, most: int = TARGETS
    ) -> list[tuple[int, str]]:
        """Positions before `position` at which a line ran, the latest first, with their moments."""
        self._refresh()
        moments, found = Moments(self._native, self._codes, self.steps), []
        start = position if position is not None else 1 << 62
        while len(found) < most:
            event, _ = self._find_breakpoint(start, True, {path: {line: None}})
            if event is None:
                break
            start = event.position
            found.append((start, moments.text(start, loops=3)))
        return found

    # --- what was there ---------------------------------------------------------------------------

    def stack(self, position: int) -> list[dict[str, Any]]:
        """Frames, the innermost first."""
        self._refresh()
        found = []
        for frame, line in self._calls(position):
            code = self._codes[self._native.frame(frame)[1]]
            path = os.path.abspath(code.co_filename)
            name = self._globals_name(frame) or Path(path).stem
            found.append({"name": code.co_name, "path": path, "line": line, "module": name})
        return found

    def scopes(self, position: int, frame: int) -> list[dict[str, Any]]:
        """DAP's scopes of the frame with this number in `stack`."""
        self._refresh()
        then, id = self._then(position), self._frame_at(position, frame)
        _, code, globals_node, _ = self._native.frame(id)
        is_function = self._codes[code].co_flags & CO_OPTIMIZED
        found = [("Locals", lambda: self._locals(id, then))]
        if is_function:
            found.append(("Globals", lambda: self._names(globals_node, then)))
        return [
            {"name": name, "variablesReference": self._reference(get), "expensive": False}
            for name, get in found
        ]

    def variables(self, reference: int) -> list[dict[str, Any]]:
        """DAP's variables of a scope or a value; `marks` has what is not certain of one."""
        return [self._variable(*each) for each in self._references[reference]()]

    def evaluate(self, expression: str, position: int, frame: int = 0) -> Any:
        """The value of an expression over copies of what was there. Raises where it would need the
        present, or what it raises itself.
        """
        return self._evaluate(expression, Then(self._native, position), frame)

    def _evaluate(self, expression: str, then: Then, frame: int) -> Any:
        self._refresh()
        id = self._frame_at(then.time, frame)
        globals_node = self._native.frame(id)[2]
        scopes = [self._handles_of(id, then.time), self._handles_in(globals_node, then.time)]
        before, self._seen_from = self._seen_from, (then.time, frame)
        try:
            return evaluating.evaluate(expression, scopes, then, self._recorder.is_user)
        finally:
            self._seen_from = before

    def ago(self, expression: str, runs: int, running: FrameType | None = None) -> Any:
        """The value of an expression when a line ran that many times before: the line of the
        script that runs an expression now, or else that of the position that is looked at.
        """
        self._refresh()
        if running is not None:
            path, line, position, skipped = running.f_code.co_filename, running.f_lineno, None, 1
        elif self._seen_from is None:
            raise LookupError("op.ago is for values at a stop, not for conditions")
        else:
            position, number = self._seen_from
            frame, line = self._calls(position)[number]
            path = self._paths[self._native.frame(frame)[1]]
            position, skipped = self._native.last(position, frame)[0], 0
        found = self.targets(path, line, position, runs + skipped)[runs + skipped - 1 :]
        if runs < 1 or not found:
            times = f"{runs:,} times before" if runs != 1 else "before"
            raise LookupError(f"this line did not run {times}, as far as is kept")
        value, marks = self.valued(expression, found[0][0])
        if marks:
            raise InputError(f"what {expression} was then is not known for certain: {marks[0]}")
        return value

    def watch(self, expression: str, position: int, frame: int = 0) -> dict[str, Any]:
        """The value of an expression as DAP's variable, with the marks of all that it used."""
        then = Then(self._native, position)
        value = self._evaluate(expression, then, frame)
        return self._variable(expression, value, then, then.all_marks())

    # --- for views --------------------------------------------------------------------------------

    def valued(self, expression: str, position: int, frame: int = 0) -> tuple[Any, list[str]]:
        """The value of an expression, with the marks of all that it used."""
        then = Then(self._native, position)
        value = self._evaluate(expression, then, frame)
        return value, _in_order(then.all_marks())

    def child(self, reference: int, name: str) -> tuple[Any, list[str]]:
        """The value of one of `variables`, with its own marks."""
        if reference not in self._references:
            raise InputError("the program has gone on: open it again")
        for found, value, then in self._references[reference]():
            if found == name:
                return value, _in_order(then.marks(value))
        raise InputError(f"{name[:80]} is not there")

    def names(self, position: int, frame: int = 0) -> tuple[dict[str, Any], list[str]]:
        """The locals of a frame."""
        self._refresh()
        found = self._locals(self._frame_at(position, frame), self._then(position))
        return {name: value for name, value, _ in found}, []

    def _variable(
        self, name: str, value: Any, then: Then, marks: set[str] | None = None
    ) -> dict[str, Any]:
        if marks is None:
            marks = _shown_marks(then, value)
        reference = 0
        if kinds.is_tensor(type(value)) or texts.has_children(value):
            reference = self._reference(lambda: self._children(value, then))
        return {
            "name": name,
            "value": self.text_of(value),
            "type": texts.type_name(value),
            "variablesReference": reference,
            "marks": _in_order(marks),
        }

    def _children(self, value: Any, then: Then) -> list[tuple[str, Any, Then]]:
        found = self.children_of(value)
        if kinds.is_tensor(type(value)):
            for _, child in found:
                then.share_marks(value, child)
        return [(name, child, then) for name, child in found]

    # --- inside -----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Compares all contents once after the program has run on."""
        if self._native.statistics()["now"] == self._looked_at:
            return
        self._native.look_at_all()
        self._looked_at = self._native.statistics()["now"]
        self._codes = self._native.codes()
        self._paths = [os.path.abspath(code.co_filename) for code in self._codes]
        self._thens.clear()
        self._references.clear()

    def _then(self, position: int) -> Then:
        return self._thens.setdefault(position, Then(self._native, position))

    def _find(
        self, position: int, backwards: bool, frames: list[int] | None = None,
        lines: list[set[int] | None] | None = None,
    ) -> Event | None:  # fmt: skip
        wanted = set(frames) if frames is not None else None
        found = self._native.find(position, backwards, wanted, lines)
        return Event(*found) if found else None

    def _event(self, position: int) -> Event:
        found = self._find(position + 1, True)
        if found is None or found.position != position:
            raise InputError("the past no longer has this position")
        return found

    def _chain(self, frame: int) -> list[int]:
        """The frame and those that called it."""
        found = []
        while frame and (known := self._native.frame(frame)) is not None:
            found.append(frame)
            frame = known[0]
        return found

    def _calls(self, position: int) -> list[tuple[int, int]]:
        """(frame, line) of the stack at a position."""
        top = self._event(position)
        found = [(top.frame, top.line)]
        for frame in self._chain(top.frame)[1:]:
            if (event := self._find(position, True, [frame])) is not None:
                found.append((frame, event.line))
        return found

    def _frame_at(self, position: int, frame: int) -> int:
        calls = self._calls(position)
        if not 0 <= frame < len(calls):
            raise InputError(f"there is no frame {frame} at this position")
        return calls[frame][0]

    def _handles_of(self, frame: int, position: int) -> dict[str, Any]:
        _, code, globals_node, locals_node = self._native.frame(frame)
        if self._codes[code].co_flags & CO_OPTIMIZED:
            return self._native.slots(frame, position) or {}
        return self._handles_in(locals_node or globals_node, position)

    def _handles_in(self, node: Any, position: int) -> dict[str, Any]:
        content = self._native.content(node, position)[4]
        return {name: value for name, value in content if isinstance(name, str)}

    def _locals(self, frame: int, then: Then) -> list[tuple[str, Any, Then]]:
        _, code, globals_node, locals_node = self._native.frame(frame)
        if not self._codes[code].co_flags & CO_OPTIMIZED:
            return self._names(locals_node or globals_node, then)
        slots = self._native.slots(frame, then.time) or {}
        return [(n, then.value(v), then) for n, v in slots.items() if not n.startswith(".")]

    def _names(self, node: Any, then: Then) -> list[tuple[str, Any, Then]]:
        names = self._handles_in(node, then.time).items()
        return [(n, then.value(v), then) for n, v in names if not n.startswith("__")]

    def _globals_name(self, frame: int) -> str:
        node = self._native.frame(frame)[2]
        live = self._native.content(node, 0)[2] or {}
        return live.get("__name__", "")

    def _reference(self, get: Callable[[], list[tuple[str, Any, Then]]]) -> int:
        number = FIRST_REFERENCE + len(self._references)
        self._references[number] = get
        return number

    # --- summary ----------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Counts of what is kept: events, bytes, the time now, events that were dropped, ..."""
        return self._native.statistics()

    def left_out(self) -> list[str]:
        """What the past does not hold, in words."""
        kept, said = self._native.statistics(), []
        if kept["dropped"]:
            said.append(f"{kept['dropped']:,} older lines were dropped to stay within memory")
        codes = self._native.codes()
        hot = [f"{Path(codes[c].co_filename).name}:{line}" for c, line in kept["hot"]]
        if hot:
            more = f" and {len(hot) - 5} more" if len(hot) > 5 else ""
            said.append(
                f"of {', '.join(hot[:5])}{more}, which ran often, the first 1,000 turns of a step "
                "are kept, and the last 1,000 lines of their functions; what changed there in "
                f'containers is marked "{AS_NOW}" or "uncertain"'
            )
        if sum(map(_is_theirs, threading.enumerate())) > 1:
            said.append("threads other than the main one are not recorded")
        if self._recorder.without_tensors:
            said.append(f"values of tensors are not kept: {self._recorder.without_tensors}")
        if self._recorder.without_writes:
            said.append(f"values of large tensors are not kept: {self._recorder.without_writes}")
        if dropped := self._recorder.dropped_copies():
            said.append(f"{dropped:,} older values of large tensors were dropped")
        return said


def _is_theirs(thread: threading.Thread) -> bool:
    """Neither pydevd's nor ours."""
    marks = ("pydev_do_not_trace", "is_pydev_daemon_thread")
    return not thread.name.startswith("opstep ") and not any(getattr(thread, m, 0) for m in marks)


def _in_order(marks: set[str]) -> list[str]:
    return [m for m in MARKS if m in marks]


def _shown_marks(then: Then, value: Any, depth: int = 2) -> set[str]:
    """Of all that the text of a value shows."""
    marks = set(then.marks(value))
    if depth:
        for _, child in texts.children_of(value):
            marks |= _shown_marks(then, child, depth - 1)
    return marks
